/* The tables of shoal repro speech and lf-mmi, with the figures of the method's paper
   beside. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "repro_speech.h"
#include "table.h"

/* ---- Figures ----------------------------------------------------------------------- */

static const speech_cell *full_of(const speech_grid *grid) {
    for (int i = 0; i < grid->count; i++)
        if (strcmp(grid->cells[i].name, "full") == 0)
            return &grid->cells[i];
    return NULL;
}

static const json_t *test_of(const speech_cell *cell, const char *when) {
    return json_object_get(json_object_get(cell->result, when), "test");
}

/* What each sequence has, and what is wrong of it with the cell's own kind. */
static const json_t *lengths_of(const speech_cell *cell, const char *when,
                                speech_measure measure) {
    const json_t *test = test_of(cell, when);
    return measure == OF_WORDS
               ? json_object_get(json_object_get(test, "words"), "lengths")
               : json_object_get(test, "labels");
}

static const json_t *wrong_of(const speech_cell *cell, const char *when,
                              speech_measure measure) {
    const json_t *row = json_array_get(json_object_get(test_of(cell, when), "kinds"), 0);
    return json_object_get(measure == OF_WORDS ? json_object_get(row, "words") : row,
                           "wrong");
}

/* How much more than full's the error is, on the same draws of sequences. */
static bool beyond_full(const speech_cell *cell, const speech_cell *full,
                        const char *when, speech_measure measure,
                        shoal_rate_interval *interval) {
    const json_t *lengths = lengths_of(cell, when, measure);
    const json_t *mine = wrong_of(cell, when, measure);
    const json_t *others = wrong_of(full, when, measure);
    const size_t count = json_array_size(lengths);
    shoal_sequence_errors *drawn = calloc(count + 1, sizeof *drawn);
    const bool possible = drawn && count > 0 && json_array_size(mine) == count &&
                          json_array_size(others) == count;
    for (size_t i = 0; possible && i < count; i++)
        drawn[i] = (shoal_sequence_errors){json_number_value(json_array_get(lengths, i)),
                                           json_number_value(json_array_get(mine, i)),
                                           json_number_value(json_array_get(others, i))};
    if (possible)
        *interval = shoal_bootstrap_rates(drawn, (int64_t)count, 1);
    free(drawn);
    return possible;
}

/* Hours until dev's error is as low as full's best; NAN: it never was. */
static double hours_to_full(const speech_cell *cell, const speech_cell *full) {
    const log_curve *line = &cell->log.curves[CURVE_VALIDATION_ACCURACY];
    const double wanted = full ? speech_number(full, "epochs", "dev_error_rate") : NAN;
    for (int i = 0; i < line->count; i++)
        if (100 - line->y[i] <= wanted + 1e-6)
            return line->x[i];
    return NAN;
}

/* The last loss on dev within the epochs; NAN: there is none. */
static double final_loss(const speech_cell *cell) {
    const log_curve *line = &cell->log.curves[CURVE_VALIDATION_LOSS];
    const double end = speech_number(cell, "epochs", "seconds") / 3600;
    double loss = NAN;
    for (int i = 0; i < line->count && line->x[i] <= end + 1e-6; i++)
        loss = line->y[i];
    return loss;
}

/* Hours until dev's loss is as low as full's after all epochs; that of the training has
   masks in some epochs and none in others. */
static double hours_to_loss(const speech_cell *cell, const speech_cell *full) {
    const log_curve *line = &cell->log.curves[CURVE_VALIDATION_LOSS];
    const double wanted = full ? final_loss(full) : NAN;
    for (int i = 0; i < line->count; i++)
        if (line->y[i] <= wanted)
            return line->x[i];
    return NAN;
}

static const char *const controls[] = {"uniform attention", "no attention",
                                       "clustered-1"};
enum { CONTROLS = sizeof controls / sizeof *controls };

static double own_error(const speech_grid *grid, const speech_cell *cell) {
    return speech_tested(cell, "epochs", NULL, grid->experiment->measure, "error_rate");
}

/* The smallest of the controls' errors. */
static double least_control(const speech_grid *grid, const speech_cell *cell) {
    double least = NAN;
    for (int i = 0; i < CONTROLS; i++)
        least = fmin(least, speech_tested(cell, "epochs", controls[i],
                                          grid->experiment->measure, "error_rate"));
    return least;
}

/* ---- Tables ------------------------------------------------------------------------ */

/* What there is to show, the paper's first. */
static int measures_of(const speech_grid *grid, speech_measure measures[2]) {
    measures[0] = grid->experiment->measure;
    measures[1] = measures[0] == OF_WORDS ? OF_UNITS : OF_WORDS;
    return speech_has_words(grid) ? 2 : 1;
}

static void add_heads(const speech_grid *grid, text_table *table, const char *second,
                      const char *const *rest, int count) {
    speech_measure measures[2];
    const int shown = measures_of(grid, measures);
    table_row(table, "cell");
    table_add(table, "%s", second);
    for (int i = 0; i < shown; i++) {
        table_add(table, "%s",
                  measures[i] == OF_WORDS                      ? "test words %"
                  : grid->experiment->loss == SHOAL_SPEECH_CTC ? "test %"
                                                               : "test phones %");
        table_add(table, "95 %%");
        table_add(table, "beyond full, 95 %%");
    }
    for (int i = 0; i < count; i++)
        table_add(table, "%s", rest[i]);
}

static void add_error(text_table *table, const speech_cell *cell, const speech_cell *full,
                      const char *when, speech_measure measure) {
    const double error = speech_tested(cell, when, NULL, measure, "error_rate");
    shoal_rate_interval interval;
    table_number(table, error);
    if (isfinite(error))
        table_add(table, "%.2f to %.2f", speech_tested(cell, when, NULL, measure, "low"),
                  speech_tested(cell, when, NULL, measure, "high"));
    else
        table_add(table, "-");
    if (full && cell != full && beyond_full(cell, full, when, measure, &interval))
        table_add(table, "%+.2f to %+.2f", interval.difference_low,
                  interval.difference_high);
    else
        table_add(table, "-");
}

/* Errors of each measure, and of the paper's with the controls. */
static void add_errors(const speech_grid *grid, text_table *table,
                       const speech_cell *cell, const char *when) {
    speech_measure measures[2];
    const int shown = measures_of(grid, measures);
    for (int i = 0; i < shown; i++)
        add_error(table, cell, full_of(grid), when, measures[i]);
    for (int i = 0; i < CONTROLS; i++)
        table_number(table,
                     speech_tested(cell, when, controls[i], measures[0], "error_rate"));
}

static void make_epochs(const speech_grid *grid, text_table *table) {
    static const char *const heads[] = {"uniform",        "none",    "clustered-1",
                                        "s / epoch",      "hours",   "hours to full",
                                        "to full's loss", "paper %", "paper s / epoch",
                                        "paper hours"};
    const speech_cell *full = full_of(grid);
    add_heads(grid, table, "layers", heads, sizeof heads / sizeof *heads);
    for (int i = 0; i < grid->count; i++) {
        const speech_cell *cell = &grid->cells[i];
        const paper_row *known = paper_find(grid->experiment, cell->name);
        table_row(table, cell->name);
        const json_t *layers = json_object_get(cell->result, "layers");
        table_add(table, "%d", (int)json_integer_value(layers));
        add_errors(grid, table, cell, "epochs");
        table_number(table, speech_number(cell, "epochs", "seconds_per_epoch"));
        table_number(table, speech_hours(grid, cell, "epochs"));
        table_number(table, hours_to_full(cell, full));
        table_number(table, hours_to_loss(cell, full));
        table_number(table, known ? known->error : (double)NAN);
        table_number(table, known ? known->seconds : (double)NAN);
        table_number(table, known ? known->hours : (double)NAN);
    }
}

static void make_minutes(const speech_grid *grid, text_table *table) {
    static const char *const heads[] = {"uniform", "none", "clustered-1"};
    add_heads(grid, table, "epochs", heads, CONTROLS);
    for (int i = 0; i < grid->count; i++) {
        const speech_cell *cell = &grid->cells[i];
        const json_t *all = json_object_get(cell->result, "all_epochs");
        if (*cell->from)
            continue;
        table_row(table, cell->name);
        table_number(table, speech_number(cell, "minutes", "steps") /
                                speech_number(cell, "epochs", "steps") *
                                json_number_value(all));
        add_errors(grid, table, cell, "minutes");
    }
}

/* The paper's figure in parentheses. */
static void make_matrix(const speech_grid *grid, speech_measure measure,
                        text_table *table) {
    table_row(table, "evaluated \\ trained");
    for (int k = 0; k < grid->count; k++)
        table_add(table, "%s", grid->cells[k].name);
    for (int i = 0; i < grid->tested_count + CONTROLS; i++) {
        const char *kind = i < grid->tested_count ? grid->tested[i]
                                                  : controls[i - grid->tested_count];
        table_row(table, kind);
        for (int k = 0; k < grid->count; k++) {
            const double error =
                speech_tested(&grid->cells[k], "epochs", kind, measure, "error_rate");
            const double theirs =
                measure == grid->experiment->measure
                    ? paper_error(grid->experiment, kind, grid->cells[k].name)
                    : 0;
            if (isfinite(error) && theirs > 0)
                table_add(table, "%.2f (%.2f)", error, theirs);
            else
                table_number(table, error);
        }
    }
}

/* ---- Whether the orders agree ------------------------------------------------------ */

typedef enum { ERROR, SECONDS, HOURS } paper_column;

static double theirs_of(const paper_row *row, paper_column column) {
    return column == ERROR ? row->error : column == SECONDS ? row->seconds : row->hours;
}

/* NAN: not done; infinite: it never was as good as full. */
static double ours_of(const speech_grid *grid, const char *kind, paper_column column) {
    for (int i = 0; i < grid->count; i++) {
        const speech_cell *cell = &grid->cells[i];
        const double error = own_error(grid, cell);
        if (strcmp(cell->name, kind) != 0 || isnan(error))
            continue;
        if (column == ERROR)
            return error;
        if (column == SECONDS)
            return speech_number(cell, "epochs", "seconds_per_epoch");
        const double hours = hours_to_full(cell, full_of(grid));
        return isnan(hours) ? (double)INFINITY : hours;
    }
    return NAN;
}

static void say_order(const speech_grid *grid, const char *what, paper_column column,
                      FILE *file) {
    int pairs = 0, agreed = 0;
    for (const paper_row *one = grid->experiment->paper; one->kind; one++)
        for (const paper_row *other = grid->experiment->paper; other < one; other++) {
            const double a = ours_of(grid, one->kind, column);
            const double b = ours_of(grid, other->kind, column);
            if (isnan(a) || isnan(b) || (isinf(a) && isinf(b)))
                continue;
            pairs++;
            agreed += theirs_of(one, column) < theirs_of(other, column) ? a < b : a > b;
        }
    if (pairs > 0)
        fprintf(file, "%s: %d of %d pairs of kinds are in the paper's order%s.\n", what,
                agreed, pairs, agreed == pairs ? ": it agrees" : "");
}

enum { FAR_WORSE = 3 }; /* points */

static void say_controls(const speech_grid *grid, FILE *file) {
    for (int i = 0; i < grid->count; i++) {
        const double error = own_error(grid, &grid->cells[i]);
        const double control = least_control(grid, &grid->cells[i]);
        if (control < error + FAR_WORSE)
            fprintf(file,
                    "%s hardly uses its attention: a control has %.2f %% where it has "
                    "%.2f %%; its comparisons do not count.\n",
                    grid->cells[i].name, control, error);
    }
}

/* What words were found by, of the first cell that has some. */
static void say_words(const speech_grid *grid, FILE *file) {
    for (int i = 0; i < grid->count; i++) {
        const json_t *words =
            json_object_get(test_of(&grid->cells[i], "epochs"), "words");
        const char *lexicon = json_string_value(json_object_get(words, "lexicon"));
        const char *lm = json_string_value(json_object_get(words, "lm"));
        if (!lexicon || !lm)
            continue;
        fprintf(file,
                "\nWords by %s and %s.\nThe text that a language model was made from "
                "may have some of these words: that of\npocketsphinx-en-us is not "
                "documented. Errors of units do not depend on it.\n",
                lexicon, lm);
        return;
    }
}

/* ---- All --------------------------------------------------------------------------- */

static bool has_minutes(const speech_grid *grid) {
    for (int i = 0; i < grid->count; i++)
        if (isfinite(speech_number(&grid->cells[i], "minutes", "steps")))
            return true;
    return false;
}

static void print_matrices(const speech_grid *grid, bool markdown, FILE *file) {
    static text_table table;
    speech_measure measures[2];
    const int shown = measures_of(grid, measures);
    for (int i = 0; i < shown; i++) {
        memset(&table, 0, sizeof table);
        make_matrix(grid, measures[i], &table);
        fprintf(file,
                "\n%s on test with another kind than was trained, after the same "
                "epochs%s:\n\n",
                measures[i] == OF_WORDS ? "Words wrong" : "Error",
                i == 0 && grid->experiment->tested
                    ? "; in parentheses\nthe paper's, on its validation set"
                    : "");
        table_print(&table, markdown, file);
    }
}

static void print_all(const speech_grid *grid, bool markdown, FILE *file) {
    static text_table tables[2];
    memset(tables, 0, sizeof tables);
    make_epochs(grid, &tables[0]);
    make_minutes(grid, &tables[1]);
    fprintf(file, "After the same epochs, the best model on dev:\n\n");
    table_print(&tables[0], markdown, file);
    fprintf(file, "\n");
    say_order(grid, "Error", ERROR, file);
    say_order(grid, "Seconds per epoch", SECONDS, file);
    say_order(grid, "Hours to full's error", HOURS, file);
    say_controls(grid, file);
    if (has_minutes(grid)) {
        fprintf(file, "\nAfter the same minutes, the best model on dev:\n\n");
        table_print(&tables[1], markdown, file);
    }
    print_matrices(grid, markdown, file);
    say_words(grid, file);
}

int speech_report(const speech_grid *grid, bool markdown) {
    char path[TRAIN_PATH];
    replacement to;
    if (!train_path("repro", path, grid->folder, "tables.md"))
        return EXIT_USAGE;
    print_all(grid, markdown, stdout);
    FILE *file = replace_begin(&to, path);
    if (file)
        print_all(grid, true, file);
    if (file && replace_end(&to, true))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "repro", "%s cannot be written: %s", path,
                    strerror(errno));
}
