/* The picture of shoal repro copy: a panel per family of kinds, a row per number of
   clusters or rounds, a column per length, the accuracy as colour and number. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "plot.h"
#include "repro.h"

#if !defined(SHOAL_HAVE_CAIRO)

int repro_copy_draw(const repro_job *job) {
    (void)job;
    fprintf(stderr, "shoal repro: no pictures: %s\n", plot_obstacle("copy.svg"));
    return EXIT_OK;
}

#else
#include <cairo.h>

enum { CELL_WIDTH = 46, CELL_HEIGHT = 34, LEFT = 62, TOP = 40, GAP = 18 };
static const double text_size = 10, small_text = 8.5, bottom = 58;

/* Kinds of one family: the same spelling up to the number in it. */
typedef struct {
    char family[REPRO_NAME];
    int kinds[REPRO_KINDS];
    int count;
} panel;

typedef struct {
    panel panels[REPRO_KINDS];
    int count;
} panels;

/* "i-clustered-15:topk=64" -> "i-clustered:topk=64"; the number, or -1. */
static int64_t split_kind(const char *kind, char family[REPRO_NAME]) {
    const char *end = strchrnul(kind, ':'), *digits = end;
    int64_t number = -1;
    while (digits > kind && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    if (digits < end && digits > kind && digits[-1] == '-') {
        number = 0;
        for (const char *at = digits; at < end; at++)
            number = 10 * number + (*at - '0');
        snprintf(family, REPRO_NAME, "%.*s%s", (int)(digits - 1 - kind), kind, end);
        return number;
    }
    snprintf(family, REPRO_NAME, "%s", kind);
    return number;
}

static void sort_panels(const repro_job *job, panels *all) {
    for (int k = 0; k < job->kind_count; k++) {
        char family[REPRO_NAME];
        int at = 0;
        split_kind(job->kinds[k], family);
        while (at < all->count && strcmp(all->panels[at].family, family) != 0)
            at++;
        if (at == all->count)
            snprintf(all->panels[all->count++].family, REPRO_NAME, "%s", family);
        all->panels[at].kinds[all->panels[at].count++] = k;
    }
}

static int tallest(const panels *all) {
    int rows = 0;
    for (int i = 0; i < all->count; i++)
        rows = all->panels[i].count > rows ? all->panels[i].count : rows;
    return rows;
}

static double panel_width(const repro_job *job) {
    return LEFT + CELL_WIDTH * job->length_count + GAP;
}

static void draw_cell(cairo_t *cr, const copy_cell *cell, double x, double y) {
    char text[16] = "-";
    if (cell->done)
        repro_percent_text(text, cell->accuracy);
    heatmap_draw_box(cr, (heatmap_box){x, y, CELL_WIDTH, CELL_HEIGHT},
                     cell->done ? cell->accuracy : (double)NAN, text);
}

static void draw_panel(cairo_t *cr, const repro_job *job, const panel *one, double left) {
    char text[48], family[REPRO_NAME];
    const double middle = left + LEFT + CELL_WIDTH * job->length_count / 2.0;
    cairo_set_source_rgb(cr, 0, 0, 0);
    plot_bold(cr, true);
    plot_text(cr, middle, TOP - 14, 0.5, one->family);
    plot_bold(cr, false);
    for (int row = 0; row < one->count; row++) {
        const char *kind = job->kinds[one->kinds[row]];
        const int64_t number = split_kind(kind, family);
        const double y = TOP + CELL_HEIGHT * row;
        const bool rounds = strncmp(family, "lsh", 3) == 0;
        text[0] = 0;
        if (number >= 0)
            snprintf(text, sizeof text, "%s = %" PRId64, rounds ? "R" : "C", number);
        cairo_set_source_rgb(cr, 0, 0, 0);
        plot_text(cr, left + LEFT - 6, y + CELL_HEIGHT / 2.0 + 3.5, 1, text);
        for (int l = 0; l < job->length_count; l++) {
            const copy_cell cell = repro_copy_cell(job, kind, job->lengths[l]);
            draw_cell(cr, &cell, left + LEFT + CELL_WIDTH * l, y);
        }
    }
    cairo_set_source_rgb(cr, 0, 0, 0);
    for (int l = 0; l < job->length_count; l++) {
        snprintf(text, sizeof text, "%" PRId64, repro_positions(job->lengths[l]));
        plot_text(cr, left + LEFT + CELL_WIDTH * (l + 0.5),
                  TOP + CELL_HEIGHT * one->count + 12, 0.5, text);
    }
    plot_text(cr, middle, TOP + CELL_HEIGHT * one->count + 26, 0.5, "positions N");
}

static void draw(cairo_t *cr, const repro_job *job, const panels *all, double width,
                 double height) {
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    cairo_set_font_size(cr, text_size);
    for (int i = 0; i < all->count; i++)
        draw_panel(cr, job, &all->panels[i], i * panel_width(job));
    cairo_set_font_size(cr, small_text);
    cairo_set_source_rgb(cr, 0.35, 0.35, 0.35);
    plot_text(cr, width / 2, height - 9, 0.5,
              "masked copy: % of masked symbols right, on fresh sequences; -: not "
              "finished");
}

/* What is drawn, and how large. */
typedef struct {
    const repro_job *job;
    panels all;
    double width, height; /* in points */
} picture;

static void draw_picture(cairo_t *cr, const void *what) {
    const picture *one = what;
    draw(cr, one->job, &one->all, one->width, one->height);
}

static int write_picture(const picture *one, const char *name) {
    char path[TRAIN_PATH];
    if (!train_path("repro", path, one->job->folder, name))
        return EXIT_USAGE;
    plot_paint(path, one->width, one->height, draw_picture, one);
    return EXIT_OK;
}

int repro_copy_draw(const repro_job *job) {
    picture one = {.job = job};
    sort_panels(job, &one.all);
    one.width = panel_width(job) * one.all.count;
    one.height = TOP + CELL_HEIGHT * tallest(&one.all) + bottom;
    const int code = write_picture(&one, "copy.svg");
    return code == EXIT_OK ? write_picture(&one, "copy.png") : code;
}

#endif
