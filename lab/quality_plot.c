/* The picture: error against time, one chart per folder, with the Pareto front. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "plot.h"
#include "quality.h"

/* What one chart points to while it is drawn. */
typedef struct {
    double x[QUALITY_KINDS], y[QUALITY_KINDS];
    double front_x[QUALITY_KINDS], front_y[QUALITY_KINDS];
    plot_series series[QUALITY_KINDS + 1]; /* the front first, below the points */
    char title[QUALITY_NAME + 48];
} folder_picture;

/* The front from the fastest on, as a line. */
static int trace_front(const quality_job *job, const quality_folder *folder,
                       folder_picture *picture) {
    int count = 0;
    for (int kind = 0; kind < job->kinds; kind++) {
        if (!quality_on_front(job, folder, kind))
            continue;
        int at = count++;
        for (; at > 0 && picture->front_x[at - 1] > picture->x[kind]; at--) {
            picture->front_x[at] = picture->front_x[at - 1];
            picture->front_y[at] = picture->front_y[at - 1];
        }
        picture->front_x[at] = picture->x[kind];
        picture->front_y[at] = picture->y[kind];
    }
    return count;
}

/* 1, 2 or 5 times a power of ten: the largest that is no more. */
static double round_down(double value) {
    const double power = pow(10, floor(log10(value)));
    const double digit = value / power;
    return power * (digit >= 5 ? 5 : digit >= 2 ? 2 : 1);
}

/* From the fastest to the slowest, outwards to where there are ticks. */
static plot_axis time_axis(const quality_job *job, const folder_picture *picture) {
    double low = INFINITY, high = 0;
    for (int kind = 0; kind < job->kinds; kind++) {
        low = fmin(low, picture->x[kind]);
        high = fmax(high, picture->x[kind]);
    }
    return (plot_axis){.label = "ms per call",
                       .scale = PLOT_LOG,
                       .low = round_down(low * 0.99),
                       .high = 1 / round_down(0.99 / high)};
}

/* From just below 0, where full is, so that its marker shows whole. */
static plot_axis error_axis(const quality_job *job, const folder_picture *picture) {
    double high = 1e-6;
    for (int kind = 0; kind < job->kinds; kind++)
        high = fmax(high, picture->y[kind]);
    return (plot_axis){.label = "relative L2 error",
                       .scale = PLOT_LINEAR,
                       .low = -0.03 * high,
                       .high = 1.05 * high};
}

/* The legend is shared, so where folders differ in C it says C. */
static bool same_clusters(const quality_job *job) {
    for (int i = 1; i < job->folder_count; i++)
        if (job->folders[i].clusters != job->folders[0].clusters)
            return false;
    return true;
}

static plot_chart draw_folder(const quality_job *job, const quality_folder *folder,
                              folder_picture *picture) {
    const bool alike = same_clusters(job);
    for (int kind = 0; kind < job->kinds; kind++) {
        picture->x[kind] = 1e3 * quality_mean(folder, kind, METRIC_SECONDS);
        picture->y[kind] = quality_mean(folder, kind, METRIC_ERROR);
        picture->series[1 + kind] =
            (plot_series){.name = alike ? folder->spelling[kind] : job->kind_texts[kind],
                          .x = &picture->x[kind],
                          .y = &picture->y[kind],
                          .count = 1,
                          .colour = kind % PLOT_COLOURS,
                          .marker = (plot_marker)(kind % PLOT_NO_MARKER)};
    }
    picture->series[0] = (plot_series){.name = "Pareto front",
                                       .x = picture->front_x,
                                       .y = picture->front_y,
                                       .count = trace_front(job, folder, picture),
                                       .colour = PLOT_GREY,
                                       .marker = PLOT_NO_MARKER,
                                       .dashed = true};
    snprintf(picture->title, sizeof picture->title, alike ? "%s" : "%s, C = %" PRId64,
             folder->title, folder->clusters);
    return (plot_chart){.title = picture->title,
                        .x = time_axis(job, picture),
                        .y = error_axis(job, picture),
                        .series = picture->series,
                        .series_count = job->kinds + 1};
}

int quality_write_plot(const quality_job *job) {
    const size_t most = (size_t)job->folder_count;
    folder_picture *pictures = calloc(most, sizeof *pictures);
    plot_chart *charts = calloc(most, sizeof *charts);
    char caption[160], reason[4300];
    const int threads = shoal_context_threads(job->context);
    int count = 0, code = EXIT_OK;
    snprintf(caption, sizeof caption, "shoal %s, %s, %d thread%s; mean over layers%s",
             shoal_version(), shoal_context_isa(job->context), threads,
             threads == 1 ? "" : "s", job->interrupted ? "; interrupted" : "");
    for (int i = 0; i < job->folder_count && pictures && charts; i++)
        if (job->folders[i].done > 0) {
            charts[count] = draw_folder(job, &job->folders[i], &pictures[count]);
            count++;
        }
    const plot_figure figure = {.charts = charts, .count = count, .caption = caption};
    if (!pictures || !charts)
        code = complain(EXIT_RESOURCES, "quality", "out of memory");
    else if (count > 0 && !plot_write(job->plot_path, &figure, reason, sizeof reason))
        code = complain(EXIT_RESOURCES, "quality", "%s", reason);
    free(pictures);
    free(charts);
    return code;
}
