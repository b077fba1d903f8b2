/* shoal plot: loss and accuracy of training runs against their steps. */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <unistd.h>

#include "lab.h"
#include "log_curves.h"
#include "plot.h"
#include "repro.h"

enum { MOST_LOGS = PLOT_COLOURS };

typedef struct {
    const char *picture;
} plot_job;

static const option_row rows[] =
    {{"output", 'o', "FILE",
      "output: a picture (.svg or .png); for one log also its table (.csv) or\n"
      "events for TensorBoard (a name that contains tfevents)",
      SETS_TEXT(plot_job, picture)},
     HELP_ROW,
     {0}};

const command_help plot_help =
    {"plot",
     "plot LOG... -o FILE | plot DIR",
     "Draws logs of shoal train (files, or folders of runs; up to 7): loss and accuracy\n"
     "against steps. Lines are training, averaged over neighbouring steps; markers are\n"
     "validation. If DIR is the folder of shoal repro speech or lf-mmi, draws its "
     "pictures:\n"
     "errors and losses against hours, and the matrix of kinds.\n",
     rows,
     NULL,
     "FILE"};

static void open_log(log_curves *log, const char *path) {
    struct stat information;
    const bool folder = stat(path, &information) == 0 && S_ISDIR(information.st_mode);
    const int length = snprintf(log->path, sizeof log->path, "%s%s", path,
                                folder ? "/" SHOAL_RUN_LOG : "");
    if (length < 0 || length >= (int)sizeof log->path)
        die(EXIT_USAGE, "%.80s...: the path is too long", path);
    snprintf(log->name, CURVE_NAME, "%s", path);
    make_utf8(log->name);
    plan_input(log->path);
    const int code = log_curves_read("plot", log, AGAINST_STEPS);
    if (code != EXIT_OK)
        leave(code);
}

static plot_series series_of(const log_curves *log, curve_name name, int colour,
                             bool validation) {
    const log_curve *line = &log->curves[name];
    return (plot_series){.name = validation ? log->name : NULL,
                         .x = line->x,
                         .y = line->y,
                         .count = line->count,
                         .colour = colour,
                         .marker = validation ? PLOT_CIRCLE : PLOT_NO_MARKER,
                         .dashed = validation};
}

/* A table or events for other tools, instead of a picture. */
static bool is_export(const char *path) {
    const size_t length = strlen(path);
    return strstr(path, "tfevents") ||
           (length > 4 && strcmp(path + length - 4, ".csv") == 0);
}

int plot_command(int count, char **arguments) {
    plot_job job = {0};
    char file[4096];
    begin_command(&plot_help, count, arguments, &job);
    count -= optind;
    arguments += optind;
    if (count == 1 && !job.picture &&
        (size_t)snprintf(file, sizeof file, "%s/" REPRO_RESULTS, arguments[0]) <
            sizeof file &&
        access(file, F_OK) == 0) { /* the folder of a shoal repro */
        repro_plot(arguments[0]);
        return EXIT_OK;
    }
    if (count == 0 || count > MOST_LOGS)
        die_of_usage(count ? "give at most 7 logs" : "no log was given");
    if (!job.picture)
        die_of_usage("--output is missing");
    if (count == 1 && is_export(job.picture)) {
        plan_output(job.picture);
        demand(shoal_run_export(begin_context(1, NULL), arguments[0], job.picture),
               EXIT_BAD_INPUT);
        return EXIT_OK;
    }
    if (plot_obstacle(job.picture))
        die(EXIT_USAGE, "%s", plot_obstacle(job.picture));
    plan_output(job.picture);
    log_curves *logs = reserve_zeros((size_t)count, sizeof *logs);
    for (int i = 0; i < count; i++)
        open_log(&logs[i], arguments[i]);
    static plot_series series[2][2 * MOST_LOGS];
    for (int i = 0; i < count; i++) {
        series[0][2 * i] = series_of(&logs[i], CURVE_LOSS, i, false);
        series[0][2 * i + 1] = series_of(&logs[i], CURVE_VALIDATION_LOSS, i, true);
        series[1][2 * i] = series_of(&logs[i], CURVE_ACCURACY, i, false);
        series[1][2 * i + 1] = series_of(&logs[i], CURVE_VALIDATION_ACCURACY, i, true);
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
    plot_write(job.picture, &figure);
    free(logs);
    return EXIT_OK;
}
