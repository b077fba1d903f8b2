/* Output of an experiment: values of cells, tables, and comparisons with the paper's
   order. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>

#include "repro.h"
#include "table.h"

const char *const repro_controls[] = {"uniform attention", "no attention", "clustered-1",
                                      NULL};

const char *repro_row(const repro_job *job, int index) {
    return index < job->tested_count       ? job->tested[index]
           : index - job->tested_count < 3 ? repro_controls[index - job->tested_count]
                                           : NULL;
}

/* ---- Values ------------------------------------------------------------------------ */

/* The value at the path that ends before `end`, or NULL. */
static const json_t *look(const json_t *at, const char *path, const char *end) {
    while (at && path < end) {
        char name[REPRO_NAME];
        const bool bracket = *path == '[';
        path += bracket || *path == '.';
        size_t size = 0;
        while (path + size < end && !strchr(bracket ? "]" : ".[", path[size]))
            size++;
        snprintf(name, sizeof name, "%.*s", (int)size, path);
        path += size + bracket;
        const json_t *found = json_object_get(at, name);
        for (size_t i = 0; bracket && i < json_array_size(at) && !found; i++) {
            const json_t *row = json_array_get(at, i);
            if (strcmp(repro_text(row, "kind"), name) == 0 ||
                (isdigit((unsigned char)*name) && (size_t)atoi(name) == i))
                found = row;
        }
        at = found;
    }
    return at;
}

static const json_t *value_of(const repro_job *job, const repro_cell *cell,
                              const char *path, const char *end) {
    return strncmp(path, "paper.", 6) == 0
               ? look(json_object_get(job->table, "paper"), path + 6, end)
               : look(cell->seen, path, end);
}

const json_t *repro_at(const repro_job *job, const repro_cell *cell, const char *path,
                       ...) {
    char text[REPRO_TEXT];
    va_list arguments;
    va_start(arguments, path);
    vsnprintf(text, sizeof text, path, arguments);
    va_end(arguments);
    return value_of(job, cell, text, text + strlen(text));
}

/* Hours of training, calibrated if possible, including those of the cell it started
   from. */
static double hours_of(const repro_job *job, const repro_cell *cell, const char *when) {
    const repro_cell *before = repro_find(job, cell->from);
    const double seconds = isfinite(cell->seconds_per_step)
                               ? repro_number(job, cell, "%s.steps", when) *
                                     cell->seconds_per_step
                               : repro_number(job, cell, "%s.seconds", when);
    return seconds / 3600 + (before ? hours_of(job, before, "epochs") : 0);
}

/* Last loss on dev within the epochs. */
static double final_loss(const repro_job *job, const repro_cell *cell) {
    const log_curve *line = &cell->log.curves[CURVE_VALIDATION_LOSS];
    const double end = hours_of(job, cell, "epochs");
    double loss = NAN;
    for (int i = 0; i < line->count && line->x[i] <= end + 1e-6; i++)
        loss = line->y[i];
    return loss;
}

/* Hours until dev's error is as low as full's best, or its loss as low as full's after
   all epochs (the training loss includes masking in some epochs); NAN if never. */
static double hours_to_full(const repro_job *job, const repro_cell *cell, bool loss) {
    const repro_cell *full = repro_find(job, "full");
    const log_curve *line =
        &cell->log.curves[loss ? CURVE_VALIDATION_LOSS : CURVE_VALIDATION_ACCURACY];
    const double wanted = !full ? (double)NAN
                          : loss
                              ? final_loss(job, full)
                              : repro_number(job, full, "epochs.dev_error_rate") + 1e-6;
    for (int i = 0; i < line->count; i++)
        if ((loss ? line->y[i] : 100 - line->y[i]) <= wanted)
            return line->x[i];
    return NAN;
}

static double term_of(const repro_job *job, const repro_cell *cell, const char *term,
                      const char *end) {
    char when[32] = "", *rest;
    const double number = strtod(term, &rest);
    if (rest == end && rest != term)
        return number;
    if (sscanf(term, "hours(%31[a-z])", when) == 1)
        return hours_of(job, cell, when);
    if (strncmp(term, "reach(", 6) == 0)
        return hours_to_full(job, cell, strncmp(term + 6, "loss", 4) == 0);
    const json_t *value = value_of(job, cell, term, end);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

double repro_number(const repro_job *job, const repro_cell *cell, const char *terms,
                    ...) {
    char text[REPRO_TEXT], by = '+';
    double result = 0;
    va_list arguments;
    va_start(arguments, terms);
    vsnprintf(text, sizeof text, terms, arguments);
    va_end(arguments);
    for (const char *at = text, *end = text;; at = end += 3) {
        for (bool inside = false; *end && (inside || *end != ' '); end++)
            inside = *end == '[' || (inside && *end != ']');
        const double value = term_of(job, cell, at, end);
        result = by == '*' ? result * value : by == '/' ? result / value : result + value;
        if (strlen(end) < 3)
            return result;
        by = end[1];
    }
}

void repro_percent(char text[32], double share) {
    const double percent = share < 1 && share > 0.9999 ? 99.99 : 100 * share;
    snprintf(text, 32, share == 1 ? "%.0f" : "%.2f", percent);
}

/* Formats a value: "percent", "time" of seconds, or a number of decimals, 2 by
   default. */
static void print_value(char text[32], double value, const char *format) {
    if (strcmp(format, "percent") == 0)
        repro_percent(text, value);
    else if (strcmp(format, "time") == 0)
        snprintf(text, 32,
                 value < 600     ? "%.0f s"
                 : value < 36000 ? "%.0f min"
                                 : "%.1f h",
                 value < 600     ? value
                 : value < 36000 ? value / 60
                                 : value / 3600);
    else
        snprintf(text, 32, "%.*f", isdigit((unsigned char)*format) ? *format - '0' : 2,
                 value);
}

/* Replaces @row, @metric and @name. */
static void replace_words(char text[REPRO_TEXT], const char *format, const char *row,
                          const char *metric, const char *name) {
    const char *const words[][2] = {{"@row", row}, {"@metric", metric}, {"@name", name}};
    size_t used = 0;
    while (*format && used + 1 < REPRO_TEXT) {
        const char *put = NULL;
        for (int i = 0; i < 3 && !put; i++)
            if (strncmp(format, words[i][0], strlen(words[i][0])) == 0) {
                put = words[i][1];
                format += strlen(words[i][0]);
            }
        used += (size_t)snprintf(text + used, REPRO_TEXT - used, "%.*s",
                                 put ? REPRO_NAME : 1, put ? put : format++);
    }
    text[used < REPRO_TEXT ? used : REPRO_TEXT - 1] = 0;
}

bool repro_fill(const repro_job *job, const repro_cell *cell, const char *format,
                const char *row, const char *metric, char text[REPRO_TEXT]) {
    char whole[REPRO_TEXT], terms[REPRO_TEXT], value[32];
    size_t used = 0;
    replace_words(whole, format, row, metric, cell->name);
    for (const char *at = whole; *at && used < REPRO_TEXT - 1;) {
        if (*at != '{') {
            text[used++] = *at++;
            continue;
        }
        const char *end = strchrnul(at, '}');
        snprintf(terms, sizeof terms, "%.*s", (int)(end - at - 1), at + 1);
        at = end + (*end != 0);
        char *colon = strrchr(terms, ':');
        const bool formatted = colon && !strchr(colon, ']');
        if (formatted)
            *colon = 0;
        const json_t *found = repro_at(job, cell, "%s", terms);
        const double number =
            json_is_string(found) ? 0 : repro_number(job, cell, "%s", terms);
        if (!isfinite(number))
            return false;
        print_value(value, number, formatted ? colon + 1 : "");
        used +=
            (size_t)snprintf(text + used, REPRO_TEXT - used, "%s",
                             json_is_string(found) ? json_string_value(found) : value);
    }
    text[used < REPRO_TEXT ? used : REPRO_TEXT - 1] = 0;
    return true;
}

/* ---- Errors ------------------------------------------------------------------------ */

static bool some_cell_has(const repro_job *job, const char *terms) {
    for (int i = 0; i < job->count; i++)
        if (!*terms || isfinite(repro_number(job, &job->cells[i], "%s", terms)))
            return true;
    return false;
}

/* A measure of errors is shown if some cell has it; the first one always is. */
static const json_t *measure_at(const repro_job *job, size_t index) {
    const json_t *list = json_object_get(job->table, "measures");
    const json_t *measure = json_array_get(list, index);
    for (int i = 0; i < job->count && index > 0; i++)
        for (int k = 0; k < 2; k++)
            if (repro_at(job, &job->cells[i], "%s.test.kinds[0]%s.error_rate",
                         k ? "minutes" : "epochs", repro_text(measure, "of")))
                return measure;
    return index == 0 ? measure : NULL;
}

/* Difference of the error from full's, on the same bootstrap samples. */
static bool beyond_full(const repro_job *job, const repro_cell *cell, const char *when,
                        const json_t *measure, shoal_rate_interval *interval) {
    const repro_cell *full = repro_find(job, "full");
    const char *of = repro_text(measure, "of");
    if (!full || cell == full)
        return false;
    const json_t *lengths =
        repro_at(job, cell, "%s.test.%s", when, repro_text(measure, "lengths"));
    const json_t *mine = repro_at(job, cell, "%s.test.kinds[0]%s.wrong", when, of);
    const json_t *others = repro_at(job, full, "%s.test.kinds[0]%s.wrong", when, of);
    const size_t count = json_array_size(lengths);
    if (count == 0 || json_array_size(mine) != count || json_array_size(others) != count)
        return false;
    shoal_sequence_errors *drawn = reserve(count, sizeof *drawn);
    for (size_t i = 0; i < count; i++)
        drawn[i] = (shoal_sequence_errors){json_number_value(json_array_get(lengths, i)),
                                           json_number_value(json_array_get(mine, i)),
                                           json_number_value(json_array_get(others, i))};
    *interval = shoal_bootstrap_rates(drawn, (int64_t)count, 1);
    free(drawn);
    return true;
}

static void add_errors(const repro_job *job, text_table *table, const repro_cell *cell,
                       const char *when) {
    const json_t *measure;
    for (size_t i = 0; (measure = measure_at(job, i)); i++) {
        double values[3];
        static const char *const names[3] = {"error_rate", "low", "high"};
        shoal_rate_interval interval;
        if (!cell) {
            table_add(table, "%s", repro_text(measure, "heading"));
            table_add(table, "95 %%");
            table_add(table, "minus full, 95 %%");
            continue;
        }
        for (int k = 0; k < 3; k++)
            values[k] = repro_number(job, cell, "%s.test.kinds[0]%s.%s", when,
                                     repro_text(measure, "of"), names[k]);
        table_number(table, values[0]);
        table_add(table, isfinite(values[0]) ? "%.2f to %.2f" : "-", values[1],
                  values[2]);
        if (beyond_full(job, cell, when, measure, &interval))
            table_add(table, "%+.2f to %+.2f", interval.difference_low,
                      interval.difference_high);
        else
            table_add(table, "-");
    }
}

/* ---- Tables ------------------------------------------------------------------------ */

/* Adds a row of a table of cells, or the heading if cell is NULL. */
static void add_cell(const repro_job *job, const json_t *how, text_table *table,
                     const repro_cell *cell) {
    const json_t *columns = json_object_get(how, "columns");
    const char *corner = repro_text(how, "corner"), *first = repro_text(how, "first");
    char text[REPRO_TEXT];
    if (cell && !repro_fill(job, cell, *first ? first : "{name}", "", "", text))
        strcpy(text, "-");
    table_row(table, cell ? text : *corner ? corner : "cell");
    for (size_t i = 0; i < json_array_size(columns); i++) {
        const json_t *column = json_array_get(columns, i);
        if (!json_is_array(column))
            add_errors(job, table, cell, repro_text(how, "at"));
        else if (!cell)
            table_add(table, "%s", repro_item(column, 0));
        else
            table_add(table, "%s",
                      repro_fill(job, cell, repro_item(column, 1), "", "", text) ? text
                                                                                 : "-");
    }
}

/* One value of a table of rows by cells: the first template whose values all exist. */
static void add_crossed(const repro_job *job, const json_t *how, text_table *table,
                        const repro_cell *cell, const char *row, const char *metric) {
    const json_t *forms = json_object_get(how, "cross");
    char text[REPRO_TEXT];
    for (size_t i = 0; i < json_array_size(forms); i++)
        if (repro_fill(job, cell, repro_item(forms, i), row, metric, text)) {
            table_add(table, "%s", text);
            return;
        }
    const bool why = *repro_text(how, "missing") && !cell->result;
    table_add(table, "%s", !why ? "-" : cell->missing ? "no data" : "not run");
}

static const char *metric_of(const repro_cell *cell, size_t index) {
    const json_t *metrics = json_object_get(cell->facts, "metrics");
    return index < json_array_size(metrics) ? repro_item(metrics, index)
           : index == 0 && !metrics         ? ""
                                            : NULL;
}

/* Rows are the evaluated kinds and columns the cells, for each metric; or rows are the
   values of the last axis. row NULL: the heading; paper: the paper's values. */
static void add_row(const repro_job *job, const json_t *how, text_table *table, int row,
                    const char *name, const char *paper) {
    const bool axis = strcmp(repro_text(how, "rows"), "axis") == 0;
    const char *column = repro_text(how, "column"), *metric;
    const json_t *theirs =
        paper ? json_object_get(json_object_get(job->table, "paper"), paper) : NULL;
    char text[REPRO_TEXT];
    table_row(table, name);
    for (int i = 0; i < job->count; i += axis ? job->inner : 1)
        for (size_t m = 0; (metric = metric_of(&job->cells[i], m)); m++) {
            const repro_cell *cell = &job->cells[axis && row > 0 ? i + row : i];
            const char *figure = repro_text(theirs, cell->name);
            if (paper)
                table_add(table, "%s", m ? " " : *figure ? figure : "-");
            else if (row >= 0)
                add_crossed(job, how, table, cell, name, metric);
            else
                table_add(table, "%s",
                          repro_fill(job, cell, *column ? column : "{name}", "", metric,
                                     text)
                              ? text
                              : "-");
        }
}

static void make_crossed(const repro_job *job, const json_t *how, text_table *table) {
    const bool axis = strcmp(repro_text(how, "rows"), "axis") == 0;
    const char *name, *paper = repro_text(how, "paper");
    json_t *value;
    add_row(job, how, table, -1, repro_text(how, "corner"), NULL);
    for (int i = 0; axis ? i < job->inner : repro_row(job, i) != NULL; i++)
        add_row(job, how, table, i, axis ? job->cells[i].kind : repro_row(job, i), NULL);
    json_object_foreach(*paper ? json_object_get(job->table, "paper") : NULL, name,
                        value) {
        char text[2 * REPRO_NAME];
        snprintf(text, sizeof text, "%s%s", paper, name);
        add_row(job, how, table, 0, text, name);
    }
}

/* ---- Notes ------------------------------------------------------------------------- */

/* NAN if not done; infinite if it never was as good as full. */
static double ours_of(const repro_job *job, const char *name, const char *terms,
                      const char *error) {
    const repro_cell *cell = repro_find(job, name);
    if (!cell || isnan(repro_number(job, cell, "%s", error)))
        return NAN;
    const double value = repro_number(job, cell, "%s", terms);
    return isnan(value) && strncmp(terms, "reach", 5) == 0 ? (double)INFINITY : value;
}

/* Counts pairs of kinds that are in the paper's order; the first row is the error. */
static void say_order(const repro_job *job, const json_t *orders, size_t row,
                      FILE *file) {
    const json_t *order = json_array_get(orders, row);
    const char *error = repro_item(json_array_get(orders, 0), 1);
    const char *words[3] = {repro_item(order, 0), repro_item(order, 1),
                            repro_item(order, 2)};
    int pairs = 0, agreed = 0;
    json_t *theirs = json_object_get(json_object_get(job->table, "paper"), words[2]);
    for (void *one = json_object_iter(theirs); one;
         one = json_object_iter_next(theirs, one))
        for (void *other = json_object_iter(theirs); other != one;
             other = json_object_iter_next(theirs, other)) {
            const double a = ours_of(job, json_object_iter_key(one), words[1], error);
            const double b = ours_of(job, json_object_iter_key(other), words[1], error);
            if (isnan(a) || isnan(b) || (isinf(a) && isinf(b)))
                continue;
            pairs++;
            agreed += json_number_value(json_object_iter_value(one)) <
                              json_number_value(json_object_iter_value(other))
                          ? a < b
                          : a > b;
        }
    if (pairs > 0)
        fprintf(file, "%s: %d of %d pairs of kinds are in the paper's order%s.\n",
                words[0], agreed, pairs, agreed == pairs ? ": full agreement" : "");
}

/* Reports cells that hardly use their attention: a control is less than this many
   points worse. */
static void say_controls(const repro_job *job, double points, FILE *file) {
    const char *of = repro_text(measure_at(job, 0), "of");
    for (int i = 0; i < job->count; i++) {
        double values[4] = {0}; /* own value and those of the controls */
        for (int k = 0; k < 4; k++)
            values[k] = repro_number(job, &job->cells[i],
                                     "epochs.test.kinds[%s]%s.error_rate",
                                     k ? repro_controls[k - 1] : "0", of);
        const double control = fmin(fmin(values[1], values[2]), values[3]);
        if (control < values[0] + points)
            fprintf(file,
                    "%s hardly uses its attention: a control has %.2f %%, the model %.2f "
                    "%%; its comparisons are not meaningful.\n",
                    job->cells[i].name, control, values[0]);
    }
}

/* Uses the first cell that has all values. */
static void say_note(const repro_job *job, const char *note, FILE *file) {
    char text[REPRO_TEXT];
    for (int i = 0; i < job->count; i++)
        if (repro_fill(job, &job->cells[i], note, "", "", text)) {
            fprintf(file, "%s", text);
            return;
        }
}

static void say_unfinished(const repro_job *job, FILE *file) {
    int missing = 0;
    for (int i = 0; i < job->count; i++)
        missing += !job->cells[i].result;
    if (missing > 0)
        fprintf(file, "%d of %d cells are not finished.\n", missing, job->count);
}

/* ---- All tables ------------------------------------------------------------------- */

static void print_shown(const repro_job *job, const json_t *how, bool markdown,
                        FILE *file) {
    static text_table table;
    const json_t *orders = json_object_get(how, "orders");
    const char *in = repro_text(how, "in"), *title = repro_text(how, "title");
    if ((*in && strcmp(in, markdown ? "markdown" : "text") != 0) ||
        !some_cell_has(job, repro_text(how, "if")))
        return;
    if (json_is_array(json_object_get(how, "columns")) ||
        json_is_array(json_object_get(how, "cross"))) {
        memset(&table, 0, sizeof table);
        if (json_object_get(how, "cross")) {
            make_crossed(job, how, &table);
        } else {
            add_cell(job, how, &table, NULL);
            for (int i = 0; i < job->count; i++)
                if (!json_object_get(how, "begun") || !*job->cells[i].from)
                    add_cell(job, how, &table, &job->cells[i]);
        }
        fprintf(file, "%s%s", title, *title ? "\n\n" : "");
        table_print(&table, markdown, file);
    }
    if (orders)
        fprintf(file, "\n");
    for (size_t i = 0; i < json_array_size(orders); i++)
        say_order(job, orders, i, file);
    if (json_object_get(how, "controls"))
        say_controls(job, json_number_value(json_object_get(how, "controls")), file);
    say_note(job, repro_text(how, "note"), file);
    if (json_object_get(how, "unfinished"))
        say_unfinished(job, file);
}

/* The requested cells in the order of the table. */
static json_t *tested_json(const repro_job *job) {
    static const char *const fields[] = {"accuracy", "steps", "seconds", "stopped_early"};
    json_t *cells = json_array();
    for (int i = 0; i < job->count; i++) {
        const repro_cell *cell = &job->cells[i];
        json_t *row = json_copy(cell->facts);
        json_object_set_new(row, "kind", json_text(cell->kind));
        json_object_del(row, "attention");
        json_object_del(row, "cell");
        json_object_set_new(row, "finished", json_boolean(cell->result != NULL));
        for (int k = 0; k < 4; k++) {
            json_t *value = json_object_get(cell->seen, fields[k]);
            if (value)
                json_object_set(row,
                                k == 0 && !cell->result ? "validation_accuracy"
                                                        : fields[k],
                                value);
        }
        json_array_append_new(cells, row);
    }
    return json_pack("{s:s, s:s, s:o}", "experiment", job->name, "shoal", shoal_version(),
                     "cells", cells);
}

static void print_all(const repro_job *job, bool markdown, FILE *file) {
    static const char by_default[] =
        "[{\"columns\": [[\"state\", \"{state}\"], [\"steps\", \"{steps:0}\"]]}]";
    json_t *shown = json_object_get(job->table, "show");
    json_t *list = shown ? json_incref(shown) : json_loads(by_default, 0, NULL);
    for (size_t i = 0; i < json_array_size(list); i++)
        print_shown(job, json_array_get(list, i), markdown, file);
    json_decref(list);
    fflush(file);
}

void repro_report(const repro_job *job) {
    const char *name = repro_text(job->table, "file");
    char path[REPRO_PATH];
    replacement to;
    repro_draw(job);
    if (*name) {
        FILE *file = replace_begin(&to, repro_path(path, job->folder, name));
        if (file)
            print_all(job, true, file);
        if (!file || !replace_end(&to, !ferror(file)))
            die(EXIT_RESOURCES, "%s cannot be written: %s", path, strerror(errno));
    }
    if (job->json)
        print_json(job->form == OF_TEST ? tested_json(job) : repro_results(job));
    else
        print_all(job, job->markdown, stdout);
}
