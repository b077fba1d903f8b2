/* The picture: time and memory per element against the length. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "bench.h"
#include "common.h"
#include "plot.h"

enum { REFERENCE = BENCH_KINDS, SERIES };

/* What the charts point to while they are drawn. */
typedef struct {
    double x[BENCH_LENGTHS], time[SERIES][BENCH_LENGTHS], memory[SERIES][BENCH_LENGTHS];
    bool estimated[SERIES][BENCH_LENGTHS];
    plot_series times[SERIES], memories[SERIES];
    plot_note notes[BENCH_KINDS];
    char note_texts[BENCH_KINDS][32];
    int notes_used;
} bench_picture;

static void add_kind(bench_picture *picture, const bench_job *job, int kind) {
    for (int at = 0; at < job->lengths; at++) {
        const bench_row *row = &job->rows[at][kind];
        const double elements = bench_elements(job, at);
        const bool measured = bench_measured(row);
        const bool known = measured || (!row->wrong && row->estimate > 0);
        picture->estimated[kind][at] = !measured;
        picture->time[kind][at] =
            known ? (measured ? bench_best(row) : row->estimate) / elements * 1e6 : NAN;
        picture->memory[kind][at] = measured ? (double)row->workspace / elements : NAN;
    }
    picture->times[kind] = (plot_series){.name = job->spelling[kind],
                                         .x = picture->x,
                                         .y = picture->time[kind],
                                         .count = job->lengths,
                                         .colour = kind % PLOT_COLOURS,
                                         .marker = (plot_marker)(kind % PLOT_NO_MARKER),
                                         .hollow = picture->estimated[kind]};
    picture->memories[kind] = picture->times[kind];
    picture->memories[kind].y = picture->memory[kind];
    picture->memories[kind].hollow = NULL;
}

static void add_crossing(bench_picture *picture, const bench_job *job, int kind) {
    double length, seconds;
    if (bench_crossing(job, kind, &length, &seconds) != CROSSING_AT)
        return;
    char *text = picture->note_texts[picture->notes_used];
    snprintf(text, sizeof *picture->note_texts, "N \xe2\x89\x88 %.0f", length);
    picture->notes[picture->notes_used++] = (plot_note){.x = length,
                                                        .y = seconds * 1e6,
                                                        .text = text,
                                                        .colour = kind % PLOT_COLOURS};
}

/* What full would cost if all of its products ran as fast as sgemm. */
static bool add_reference(bench_picture *picture, const bench_job *job) {
    const double rate = job->machine.before.sgemm;
    int full = 0;
    while (full < job->kinds && job->attention[full].kind != SHOAL_FULL)
        full++;
    if (full == job->kinds || rate <= 0)
        return false;
    for (int at = 0; at < job->lengths; at++)
        picture->time[REFERENCE][at] = bench_operations(job, full, job->length[at]) /
                                       rate / bench_elements(job, at) * 1e6;
    picture->times[job->kinds] = (plot_series){.name = "full at the rate of sgemm",
                                               .x = picture->x,
                                               .y = picture->time[REFERENCE],
                                               .count = job->lengths,
                                               .colour = PLOT_GREY,
                                               .marker = PLOT_NO_MARKER,
                                               .dashed = true};
    return true;
}

static void write_caption(const bench_job *job, char *text, size_t size) {
    const int threads = shoal_context_threads(job->context);
    bool estimates = false;
    for (int at = 0; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds; kind++)
            estimates |= !bench_measured(&job->rows[at][kind]) &&
                         !job->rows[at][kind].wrong && job->rows[at][kind].estimate > 0;
    snprintf(text, size,
             "shoal %s, %s, %s, %d thread%s; batch %" PRId64 ", %" PRId64
             " heads of %" PRId64 ", float32%s%s%s",
             shoal_version(), job->machine.cpu, shoal_context_isa(job->context), threads,
             threads == 1 ? "" : "s", job->batch, job->heads, job->dim,
             job->layer ? ", whole layer" : "", estimates ? "; hollow: estimated" : "",
             job->interrupted ? "; interrupted" : "");
}

int bench_write_plot(const bench_job *job) {
    static bench_picture picture;
    char caption[400], reason[4300];
    for (int at = 0; at < job->lengths; at++)
        picture.x[at] = (double)job->length[at];
    for (int kind = 0; kind < job->kinds; kind++) {
        add_kind(&picture, job, kind);
        add_crossing(&picture, job, kind);
    }
    const bool reference = add_reference(&picture, job);
    write_caption(job, caption, sizeof caption);
    const plot_axis length = {.label = "sequence length N",
                              .scale = PLOT_LOG,
                              .doubling = true};
    const plot_chart charts[] =
        {{.title = job->train ? "Time, forward and backward" : "Time, forward",
          .x = length,
          .y = {.label = "\xc2\xb5s per element", .scale = PLOT_LOG},
          .series = picture.times,
          .series_count = job->kinds + reference,
          .notes = picture.notes,
          .note_count = picture.notes_used},
         {.title = job->layer ? "Memory of the layer and its weights"
                              : "Memory besides inputs and outputs",
          .x = length,
          .y = {.label = "bytes per element", .scale = PLOT_LOG},
          .series = picture.memories,
          .series_count = job->kinds}};
    const plot_figure figure = {.charts = charts, .count = 2, .caption = caption};
    if (plot_write(job->plot_path, &figure, reason, sizeof reason))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "bench", "%s", reason);
}
