/* The log of a training: JSON lines. */
#define _GNU_SOURCE
#include "train.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include <shoal_models.h>

/* The shortest decimal that reads back to the same number; NaN has none. */
static const char *real_text(char text[32], double value, bool is_float) {
    if (!isfinite(value))
        return "null";
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (is_float ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value)
            break;
    }
    return text;
}

static bool write_config(train_log *log, const shoal_train_config *config) {
    json_t *line = json_pack("{s:s, s:o}", "shoal", shoal_version(), "config",
                             train_config_json(config));
    const bool written = line &&
                         json_dumpf(line, log->file, JSON_REAL_PRECISION(9)) == 0 &&
                         fputc('\n', log->file) != EOF && fflush(log->file) == 0;
    json_decref(line);
    return written;
}

/* Whether a line belongs to the steps up to `progress`; one that was not written whole
   belongs to none. *step is the line's, if it has one. */
static bool line_is_past(const char *line, size_t size,
                         const shoal_train_progress *progress, int64_t *step) {
    if (size == 0 || line[size - 1] != '\n')
        return false;
    json_t *object = json_loadb(line, size, 0, NULL);
    const json_t *number = json_object_get(object, "step");
    const bool of_validation = json_object_get(object, "validation_loss") != NULL;
    const int64_t found = json_integer_value(number);
    const bool past =
        object && (!number || found < progress->step ||
                   (found == progress->step && !(of_validation && progress->validate)));
    if (past && number)
        *step = found;
    json_decref(object);
    return past;
}

/* The lines before the first that is later than the progress, or damaged. */
typedef struct {
    off_t bytes;
    int64_t lines, step; /* step: the last one's */
} past_lines;

static past_lines read_past(FILE *file, const shoal_train_progress *progress) {
    char *line = NULL;
    size_t capacity = 0;
    past_lines past = {0};
    ssize_t size;
    rewind(file);
    while ((size = getline(&line, &capacity, file)) > 0 &&
           line_is_past(line, (size_t)size, progress, &past.step)) {
        past.bytes += size;
        past.lines++;
    }
    free(line);
    return past;
}

/* Whether the log can be continued from a checkpoint. It was on the disk before the
   checkpoint was, so a log whose readable lines end before the checkpoint's step was
   damaged later; it is refused, and not cut, to keep the lines behind the damage. An empty
   one is new. */
static bool reaches(FILE *file, const past_lines *past,
                    const shoal_train_progress *progress) {
    return past->step >= progress->step ||
           (fseeko(file, 0, SEEK_END) == 0 && ftello(file) == 0);
}

/* Cuts off what the run will write again; a new log begins with the configuration. All
   writes go to the end, wherever reading has left the position. */
static bool cut(train_log *log, off_t kept, const shoal_train_config *config) {
    return ftruncate(fileno(log->file), kept) == 0 &&
           fseeko(log->file, 0, SEEK_END) == 0 && (kept > 0 || write_config(log, config));
}

int train_log_open(train_log *log, const char *command, const char *path,
                   const shoal_train_config *config,
                   const shoal_train_progress *progress) {
    snprintf(log->path, sizeof log->path, "%s", path);
    log->file = fopen(path, "a+");
    if (!log->file)
        return complain(EXIT_RESOURCES, command, "%s cannot be written: %s", path,
                        strerror(errno));
    const past_lines past = progress->step > 0 ? read_past(log->file, progress)
                                               : (past_lines){0};
    int code = EXIT_OK;
    if (!reaches(log->file, &past, progress))
        code = complain(EXIT_BAD_INPUT, command,
                        "%s: line %" PRId64 " is damaged or missing, and the checkpoint "
                        "is of step %" PRId64 "; mend the log, or move it away to begin "
                        "another one there",
                        path, past.lines + 1, progress->step);
    else if (!cut(log, past.bytes, config)) {
        code = complain(EXIT_RESOURCES, command, "%s cannot be written: %s", path,
                        strerror(errno));
        if (past.bytes == 0)
            unlink(path); /* an empty one would pass for a training */
    }
    if (code != EXIT_OK)
        train_log_close(log);
    return code;
}

bool train_log_step(train_log *log, int64_t number, const shoal_train_step *step,
                    double seconds) {
    char loss[32], accuracy[32], norm[32], rate[32];
    return fprintf(log->file,
                   "{\"step\": %" PRId64 ", \"loss\": %s, \"accuracy\": %s, "
                   "\"gradient_norm\": %s, \"learning_rate\": %s, \"seconds\": %.3f}\n",
                   number, real_text(loss, step->score.loss, false),
                   real_text(accuracy, step->score.accuracy, false),
                   real_text(norm, step->gradient_norm, false),
                   real_text(rate, step->learning_rate, true), seconds) > 0 &&
           fflush(log->file) == 0;
}

bool train_log_validation(train_log *log, int64_t number, const shoal_score *score,
                          double seconds) {
    char loss[32], accuracy[32];
    return fprintf(log->file,
                   "{\"step\": %" PRId64 ", \"validation_loss\": %s, "
                   "\"validation_accuracy\": %s, \"correct\": %" PRId64
                   ", \"counted\": %" PRId64 ", \"seconds\": %.3f}\n",
                   number, real_text(loss, score->loss, false),
                   real_text(accuracy, score->accuracy, false), score->correct,
                   score->counted, seconds) > 0 &&
           fflush(log->file) == 0;
}

bool train_log_sync(train_log *log) {
    return fflush(log->file) == 0 &&
           (fsync(fileno(log->file)) == 0 || errno == EINVAL || errno == EROFS);
}

void train_log_close(train_log *log) {
    if (log->file)
        fclose(log->file);
    log->file = NULL;
}

json_t *train_log_last_validation(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;
    json_t *last = NULL;
    while (file && getline(&text, &capacity, file) > 0) {
        json_t *line = strstr(text, "validation_loss") ? json_loads(text, 0, NULL) : NULL;
        if (!line)
            continue;
        json_decref(last);
        last = line;
    }
    free(text);
    if (file)
        fclose(file);
    return last;
}
