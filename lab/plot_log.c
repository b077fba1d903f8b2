/* shoal plot: loss and accuracy of trainings against their steps. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "plot.h"
#include "train.h"

enum { MOST_LOGS = PLOT_COLOURS, POINTS = 400, NAME = 96 };

typedef struct {
    const char *picture;
} plot_job;

static const option_row rows[] = {{"output", 'o', "FILE", "the picture (.svg or .png)",
                                   SETS_TEXT(plot_job, picture)},
                                  HELP_ROW,
                                  {0}};

const command_help plot_help =
    {"plot",
     "plot LOG... -o FILE",
     "Draws logs of shoal train (the files, or the folders that hold them; up to 7):\n"
     "loss and accuracy against steps. Lines are training, in means over neighbouring\n"
     "steps; markers are validation.\n",
     rows,
     NULL,
     "FILE"};

/* A curve as it is read: means of `stride` neighbours once there are too many points. */
typedef struct {
    double x[POINTS], y[POINTS];
    int count, stride, pending;
    double sum_x, sum_y;
} curve;

static void add_point(curve *line, double x, double y) {
    line->stride += line->stride == 0;
    line->sum_x += x;
    line->sum_y += y;
    if (++line->pending < line->stride)
        return;
    if (line->count == POINTS) {
        for (int i = 0; i < POINTS / 2; i++) {
            line->x[i] = (line->x[2 * i] + line->x[2 * i + 1]) / 2;
            line->y[i] = (line->y[2 * i] + line->y[2 * i + 1]) / 2;
        }
        line->count = POINTS / 2;
        line->stride *= 2;
        return; /* the new point waits for the rest of its wider mean */
    }
    line->x[line->count] = line->sum_x / line->pending;
    line->y[line->count++] = line->sum_y / line->pending;
    line->sum_x = line->sum_y = 0;
    line->pending = 0;
}

typedef enum { LOSS, ACCURACY, VALIDATION_LOSS, VALIDATION_ACCURACY, CURVES } curve_name;

typedef struct {
    char path[TRAIN_PATH], name[NAME];
    curve curves[CURVES];
} plotted_log;

static double number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void take_line(plotted_log *log, const json_t *line) {
    static const char *const keys[CURVES] = {"loss", "accuracy", "validation_loss",
                                             "validation_accuracy"};
    const double step = number_of(line, "step");
    for (int i = 0; i < CURVES; i++) {
        const double value = number_of(line, keys[i]);
        const double scale = i == ACCURACY || i == VALIDATION_ACCURACY ? 100 : 1;
        if (isfinite(step) && isfinite(value))
            add_point(&log->curves[i], step, scale * value);
    }
    const json_t *config = json_object_get(line, "config");
    const char *kind = json_string_value(json_object_get(config, "attention"));
    if (kind)
        snprintf(log->name, NAME, "%s, L = %.0f", kind, number_of(config, "length"));
    make_utf8(log->name); /* it may have been cut inside a letter */
}

/* The next line's object, NULL where the log ends: a last line that was not written whole
   is no mistake, the training may be running. *wrong: it is no object. What does not
   begin like one is not read on, for it may have no end. */
static json_t *next_line(FILE *file, char **text, size_t *capacity, bool *wrong) {
    const int first = ungetc(fgetc(file), file);
    const ssize_t size = first == '{' ? getline(text, capacity, file) : 0;
    const bool whole = size > 0 && (*text)[size - 1] == '\n';
    json_t *line = whole ? json_loadb(*text, (size_t)size, 0, NULL) : NULL;
    *wrong = whole ? !line : first != '{' && first != EOF;
    return line;
}

static int read_log(plotted_log *log) {
    FILE *file = fopen(log->path, "r");
    char *text = NULL;
    size_t capacity = 0;
    bool wrong = false;
    int64_t number = 1;
    if (!file)
        return complain(EXIT_BAD_INPUT, "plot", "%s: cannot open it: %s", log->path,
                        strerror(errno));
    for (json_t *line; (line = next_line(file, &text, &capacity, &wrong)); number++) {
        take_line(log, line);
        json_decref(line);
    }
    free(text);
    fclose(file);
    if (wrong)
        return complain(EXIT_BAD_INPUT, "plot", "%s: line %" PRId64 " is no JSON object",
                        log->path, number);
    if (log->curves[LOSS].count + log->curves[VALIDATION_LOSS].count == 0)
        return complain(EXIT_BAD_INPUT, "plot", "%s: it has no steps to draw", log->path);
    return EXIT_OK;
}

static int open_log(plotted_log *log, const char *path) {
    struct stat information;
    const bool folder = stat(path, &information) == 0 && S_ISDIR(information.st_mode);
    const int length =
        snprintf(log->path, TRAIN_PATH, "%s%s", path, folder ? "/" TRAIN_LOG : "");
    if (length < 0 || length >= TRAIN_PATH)
        return complain(EXIT_USAGE, "plot", "%.80s...: the path is too long", path);
    snprintf(log->name, NAME, "%s", path);
    make_utf8(log->name);
    const int code = will_read("plot", log->path);
    return code == EXIT_OK ? read_log(log) : code;
}

static plot_series series_of(const plotted_log *log, curve_name name, int colour,
                             bool validation) {
    const curve *line = &log->curves[name];
    return (plot_series){.name = validation ? log->name : NULL,
                         .x = line->x,
                         .y = line->y,
                         .count = line->count,
                         .colour = colour,
                         .marker = validation ? PLOT_CIRCLE : PLOT_NO_MARKER,
                         .dashed = validation};
}

static int draw(const plotted_log *logs, int count, const char *path) {
    static plot_series series[2][2 * MOST_LOGS];
    char reason[4300];
    for (int i = 0; i < count; i++) {
        series[0][2 * i] = series_of(&logs[i], LOSS, i, false);
        series[0][2 * i + 1] = series_of(&logs[i], VALIDATION_LOSS, i, true);
        series[1][2 * i] = series_of(&logs[i], ACCURACY, i, false);
        series[1][2 * i + 1] = series_of(&logs[i], VALIDATION_ACCURACY, i, true);
    }
    const plot_axis steps = {.label = "steps", .scale = PLOT_LINEAR};
    const plot_chart charts[] =
        {{.title = "loss",
          .x = steps,
          .y = {.label = "cross-entropy, nats", .scale = PLOT_LINEAR},
          .series = series[0],
          .series_count = 2 * count},
         {.title = "accuracy",
          .x = steps,
          .y = {.label = "right, %", .scale = PLOT_LINEAR, .low = 0, .high = 102},
          .series = series[1],
          .series_count = 2 * count}};
    const plot_figure figure = {.charts = charts,
                                .count = 2,
                                .caption = "lines: training; markers: validation"};
    if (plot_write(path, &figure, reason, sizeof reason))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "plot", "%s", reason);
}

static int run(const char *picture, int count, char **paths) {
    char reason[4300];
    if (count == 0 || count > MOST_LOGS)
        return complain(EXIT_USAGE, "plot", "%s; usage: shoal %s",
                        count ? "more than 7 logs" : "no log was given", plot_help.usage);
    if (!picture)
        return complain(EXIT_USAGE, "plot", "no picture was named; usage: shoal %s",
                        plot_help.usage);
    if (!plot_possible(picture, reason, sizeof reason))
        return complain(EXIT_USAGE, "plot", "%s", reason);
    plotted_log *logs = calloc((size_t)count, sizeof *logs);
    int code = logs ? will_write("plot", picture)
                    : complain(EXIT_RESOURCES, "plot", "out of memory");
    for (int i = 0; i < count && code == EXIT_OK; i++)
        code = open_log(&logs[i], paths[i]);
    if (code == EXIT_OK)
        code = draw(logs, count, picture);
    free(logs);
    return code;
}

int plot_command(int count, char **arguments) {
    plot_job job = {0};
    const int ended = take_options(&plot_help, count, arguments, &job);
    return ended >= 0 ? ended : run(job.picture, count - optind, arguments + optind);
}
