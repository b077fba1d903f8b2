#define _GNU_SOURCE
#include "log_curves.h"

#include <errno.h>

static void add_point(log_curve *line, double x, double y) {
    line->stride += line->stride == 0;
    line->sum_x += x;
    line->sum_y += y;
    if (++line->pending < line->stride)
        return;
    if (line->count == CURVE_POINTS) {
        for (int i = 0; i < CURVE_POINTS / 2; i++) {
            line->x[i] = (line->x[2 * i] + line->x[2 * i + 1]) / 2;
            line->y[i] = (line->y[2 * i] + line->y[2 * i + 1]) / 2;
        }
        line->count = CURVE_POINTS / 2;
        line->stride *= 2;
        return; /* the new point waits until its wider mean is complete */
    }
    line->x[line->count] = line->sum_x / line->pending;
    line->y[line->count++] = line->sum_y / line->pending;
    line->sum_x = line->sum_y = 0;
    line->pending = 0;
}

static double number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* The object on the next line, or NULL at the end of the log: an incomplete last line
   is no error, because the training may be running. *wrong is set if the line is not an
   object. A line that does not start like one is not read to its end, which may not
   exist. */
static json_t *next_line(FILE *file, char **text, size_t *capacity, bool *wrong) {
    const int first = ungetc(fgetc(file), file);
    const ssize_t size = first == '{' ? getline(text, capacity, file) : 0;
    const bool whole = size > 0 && (*text)[size - 1] == '\n';
    json_t *line = whole ? json_loadb(*text, (size_t)size, 0, NULL) : NULL;
    *wrong = whole ? !line : first != '{' && first != EOF;
    return line;
}

int log_curves_read(const char *command, log_curves *log, curve_against against) {
    FILE *file = fopen(log->path, "r");
    char *text = NULL;
    size_t capacity = 0;
    bool wrong = false;
    int64_t number = 1;
    if (!file)
        return complain(EXIT_BAD_INPUT, command, "%s: cannot open it: %s", log->path,
                        strerror(errno));
    for (json_t *line; (line = next_line(file, &text, &capacity, &wrong)); number++) {
        static const char *const keys[CURVES] = {"loss", "accuracy", "validation_loss",
                                                 "validation_accuracy"};
        const double at = against == AGAINST_STEPS ? number_of(line, "step")
                                                   : number_of(line, "seconds") / 3600;
        for (int i = 0; i < CURVES; i++) {
            const double value = number_of(line, keys[i]);
            const double scale =
                i == CURVE_ACCURACY || i == CURVE_VALIDATION_ACCURACY ? 100 : 1;
            if (isfinite(at) && isfinite(value))
                add_point(&log->curves[i], at, scale * value);
        }
        const json_t *config = json_object_get(line, "config");
        const char *kind = json_string_value(json_object_get(config, "attention"));
        const double length = number_of(config, "length");
        if (kind && isfinite(length))
            snprintf(log->name, CURVE_NAME, "%s, L = %.0f", kind, length);
        else if (kind)
            snprintf(log->name, CURVE_NAME, "%s", kind);
        make_utf8(log->name); /* the name may have been truncated inside a character */
        json_decref(line);
    }
    free(text);
    fclose(file);
    if (wrong)
        return complain(EXIT_BAD_INPUT, command,
                        "%s: line %" PRId64 " is not a JSON object", log->path, number);
    if (log->curves[CURVE_LOSS].count + log->curves[CURVE_VALIDATION_LOSS].count == 0)
        return complain(EXIT_BAD_INPUT, command, "%s: the log has no steps to draw",
                        log->path);
    return EXIT_OK;
}
