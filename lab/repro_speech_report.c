/* The tables of shoal repro speech, with the figures of the method's paper beside. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "common.h"
#include "repro_speech.h"
#include "table.h"

/* ---- The paper --------------------------------------------------------------------- */

/* WSJ, 9 layers: error on test in %, seconds per epoch, hours to converge. */
static const struct {
    const char *kind;
    double error, seconds, hours;
} paper[] = {{"full", 5.03, 2514, 87.99},
             {"lsh-1", 9.43, 1004, 189.64},
             {"lsh-4", 8.59, 2320, 210.09},
             {"clustered-100", 7.50, 803, 102.15},
             {"i-clustered-100", 5.61, 1325, 72.14}};
enum { PAPER = sizeof paper / sizeof *paper };

/* Its matrix, on the validation set; 0: not there. */
static const char *const paper_trained[] = {"full",  "shared-full",   "lsh-1",
                                            "lsh-4", "clustered-100", "i-clustered-100"};
enum { TRAINED = sizeof paper_trained / sizeof *paper_trained };
static const struct {
    const char *kind;
    double errors[TRAINED];
} paper_matrix[] = {{"full", {5.14, 0, 0, 0, 7.10, 5.56}},
                    {"shared-full", {0, 6.57, 25.16, 41.61, 0, 0}},
                    {"lsh-1", {0, 71.40, 10.43, 13.76, 0, 0}},
                    {"lsh-4", {0, 64.29, 9.35, 9.33, 0, 0}},
                    {"clustered-100", {44.88, 40.86, 68.06, 66.43, 7.06, 18.83}},
                    {"clustered-200", {21.76, 25.86, 57.75, 57.24, 6.34, 8.95}},
                    {"i-clustered-100", {9.29, 13.22, 41.65, 48.20, 8.80, 5.95}},
                    {"i-clustered-200", {6.38, 8.43, 30.09, 42.43, 7.71, 5.60}},
                    {"oracle-top-32", {17.16, 77.18, 43.35, 59.38, 24.32, 6.96}}};

static double paper_cell(const char *evaluated, const char *trained) {
    for (size_t i = 0; i < sizeof paper_matrix / sizeof *paper_matrix; i++)
        for (int k = 0; k < TRAINED; k++)
            if (strcmp(paper_matrix[i].kind, evaluated) == 0 &&
                strcmp(paper_trained[k], trained) == 0)
                return paper_matrix[i].errors[k];
    return 0;
}

/* ---- Figures ----------------------------------------------------------------------- */

static const speech_cell *full_of(const speech_grid *grid) {
    for (int i = 0; i < grid->count; i++)
        if (strcmp(grid->cells[i].name, "full") == 0)
            return &grid->cells[i];
    return NULL;
}

/* Of a cell's own kind. */
static const json_t *test_of(const speech_cell *cell, const char *when) {
    return json_object_get(json_object_get(cell->result, when), "test");
}

static const json_t *wrong_of(const speech_cell *cell, const char *when) {
    return json_object_get(json_array_get(json_object_get(test_of(cell, when), "kinds"),
                                          0),
                           "wrong");
}

/* How much more than full's the error is, on the same draws of sequences. */
static bool beyond_full(const speech_cell *cell, const speech_cell *full,
                        const char *when, bootstrap_interval *interval) {
    const json_t *labels = json_object_get(test_of(cell, when), "labels");
    const json_t *mine = wrong_of(cell, when), *others = wrong_of(full, when);
    const size_t count = json_array_size(labels);
    utterance_errors *drawn = calloc(count + 1, sizeof *drawn);
    const bool possible = drawn && count > 0 && json_array_size(mine) == count &&
                          json_array_size(others) == count;
    for (size_t i = 0; possible && i < count; i++)
        drawn[i] = (utterance_errors){json_number_value(json_array_get(labels, i)),
                                      json_number_value(json_array_get(mine, i)),
                                      json_number_value(json_array_get(others, i))};
    if (possible)
        *interval = bootstrap_rates(drawn, (int64_t)count, 1);
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

/* The smallest of the controls' errors. */
static double least_control(const speech_cell *cell, const char *when) {
    const double uniform = speech_tested(cell, when, "uniform attention", "error_rate");
    const double none = speech_tested(cell, when, "no attention", "error_rate");
    const double one = speech_tested(cell, when, "clustered-1", "error_rate");
    return fmin(uniform, fmin(none, one));
}

/* ---- Tables ------------------------------------------------------------------------ */

static void add_error(text_table *table, const speech_cell *cell, const speech_cell *full,
                      const char *when) {
    const double error = speech_tested(cell, when, NULL, "error_rate");
    bootstrap_interval interval;
    table_number(table, error);
    if (isfinite(error))
        table_add(table, "%.2f to %.2f", speech_tested(cell, when, NULL, "low"),
                  speech_tested(cell, when, NULL, "high"));
    else
        table_add(table, "-");
    if (full && cell != full && beyond_full(cell, full, when, &interval))
        table_add(table, "%+.2f to %+.2f", interval.difference_low,
                  interval.difference_high);
    else
        table_add(table, "-");
}

static void add_controls(text_table *table, const speech_cell *cell, const char *when) {
    table_number(table, speech_tested(cell, when, "uniform attention", "error_rate"));
    table_number(table, speech_tested(cell, when, "no attention", "error_rate"));
    table_number(table, speech_tested(cell, when, "clustered-1", "error_rate"));
}

static void make_epochs(const speech_grid *grid, text_table *table) {
    static const char *const heads[] = {"layers",      "test %",
                                        "95 %",        "beyond full, 95 %",
                                        "uniform",     "none",
                                        "clustered-1", "s / epoch",
                                        "hours",       "hours to full",
                                        "paper %",     "paper s / epoch",
                                        "paper hours"};
    const speech_cell *full = full_of(grid);
    table_row(table, "cell");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        table_add(table, "%s", heads[i]);
    for (int i = 0; i < grid->count; i++) {
        const speech_cell *cell = &grid->cells[i];
        int known = 0;
        table_row(table, cell->name);
        const json_t *layers = json_object_get(cell->result, "layers");
        table_add(table, "%d", (int)json_integer_value(layers));
        add_error(table, cell, full, "epochs");
        add_controls(table, cell, "epochs");
        table_number(table, speech_number(cell, "epochs", "seconds_per_epoch"));
        table_number(table, speech_hours(grid, cell, "epochs"));
        table_number(table, hours_to_full(cell, full));
        while (known < PAPER && strcmp(paper[known].kind, cell->name) != 0)
            known++;
        table_number(table, known < PAPER ? paper[known].error : (double)NAN);
        table_number(table, known < PAPER ? paper[known].seconds : (double)NAN);
        table_number(table, known < PAPER ? paper[known].hours : (double)NAN);
    }
}

static void make_minutes(const speech_grid *grid, text_table *table) {
    static const char *const heads[] = {"epochs",     "test %",
                                        "95 %",       "beyond full, 95 %",
                                        "uniform",    "none",
                                        "clustered-1"};
    const speech_cell *full = full_of(grid);
    table_row(table, "cell");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        table_add(table, "%s", heads[i]);
    for (int i = 0; i < grid->count; i++) {
        const speech_cell *cell = &grid->cells[i];
        const json_t *all = json_object_get(cell->result, "all_epochs");
        if (*cell->from)
            continue;
        table_row(table, cell->name);
        table_number(table, speech_number(cell, "minutes", "steps") /
                                speech_number(cell, "epochs", "steps") *
                                json_number_value(all));
        add_error(table, cell, full, "minutes");
        add_controls(table, cell, "minutes");
    }
}

/* The paper's figure in parentheses. */
static void make_matrix(const speech_grid *grid, text_table *table) {
    static const char *const controls[] = {"uniform attention", "no attention",
                                           "clustered-1"};
    table_row(table, "evaluated \\ trained");
    for (int k = 0; k < grid->count; k++)
        table_add(table, "%s", grid->cells[k].name);
    for (int i = 0; i < grid->tested_count + 3; i++) {
        const char *kind = i < grid->tested_count ? grid->tested[i]
                                                  : controls[i - grid->tested_count];
        table_row(table, kind);
        for (int k = 0; k < grid->count; k++) {
            const double error =
                speech_tested(&grid->cells[k], "epochs", kind, "error_rate");
            const double theirs = paper_cell(kind, grid->cells[k].name);
            if (isfinite(error) && theirs > 0)
                table_add(table, "%.2f (%.2f)", error, theirs);
            else
                table_number(table, error);
        }
    }
}

/* ---- Whether the orders agree ------------------------------------------------------ */

typedef enum { ERROR, SECONDS, HOURS } paper_column;

static double theirs_of(int kind, paper_column column) {
    return column == ERROR     ? paper[kind].error
           : column == SECONDS ? paper[kind].seconds
                               : paper[kind].hours;
}

/* NAN: not done; infinite: it never was as good as full. */
static double ours_of(const speech_grid *grid, int kind, paper_column column) {
    for (int i = 0; i < grid->count; i++) {
        const speech_cell *cell = &grid->cells[i];
        const double error = speech_tested(cell, "epochs", NULL, "error_rate");
        if (strcmp(cell->name, paper[kind].kind) != 0 || isnan(error))
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
    for (int i = 0; i < PAPER; i++)
        for (int k = 0; k < i; k++) {
            const double a = ours_of(grid, i, column), b = ours_of(grid, k, column);
            if (isnan(a) || isnan(b) || (isinf(a) && isinf(b)))
                continue;
            pairs++;
            agreed += (theirs_of(i, column) < theirs_of(k, column)) == (a < b);
        }
    if (pairs > 0)
        fprintf(file, "%s: %d of %d pairs of kinds are in the paper's order%s.\n", what,
                agreed, pairs, agreed == pairs ? ": it agrees" : "");
}

enum { FAR_WORSE = 3 }; /* points */

static void say_controls(const speech_grid *grid, FILE *file) {
    for (int i = 0; i < grid->count; i++) {
        const double error = speech_tested(&grid->cells[i], "epochs", NULL, "error_rate");
        const double control = least_control(&grid->cells[i], "epochs");
        if (control < error + FAR_WORSE)
            fprintf(file,
                    "%s hardly uses its attention: a control has %.2f %% where it has "
                    "%.2f %%; its comparisons do not count.\n",
                    grid->cells[i].name, control, error);
    }
}

/* ---- All --------------------------------------------------------------------------- */

static bool has_minutes(const speech_grid *grid) {
    for (int i = 0; i < grid->count; i++)
        if (isfinite(speech_number(&grid->cells[i], "minutes", "steps")))
            return true;
    return false;
}

static void print_all(const speech_grid *grid, bool markdown, FILE *file) {
    static text_table tables[3];
    memset(tables, 0, sizeof tables);
    make_epochs(grid, &tables[0]);
    make_minutes(grid, &tables[1]);
    make_matrix(grid, &tables[2]);
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
    fprintf(file, "\nError on test with another kind than was trained, after the same "
                  "epochs; in parentheses\nthe paper's, on its validation set:\n\n");
    table_print(&tables[2], markdown, file);
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
