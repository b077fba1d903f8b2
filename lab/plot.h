/* Pictures good enough for a paper: a figure is charts in rows with one legend below;
   a chart has two axes (linear or logarithmic), lines with markers, and notes. Drawn by
   cairo as .svg or .png; a build without it says so. */
#ifndef SHOAL_LAB_PLOT_H
#define SHOAL_LAB_PLOT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum { PLOT_LINEAR, PLOT_LOG } plot_scale;

typedef struct {
    const char *label;
    plot_scale scale;
    bool doubling;    /* logarithmic only: ticks at powers of two, not of ten */
    double low, high; /* both 0: from the data */
} plot_axis;

typedef enum {
    PLOT_CIRCLE,
    PLOT_SQUARE,
    PLOT_TRIANGLE,
    PLOT_DIAMOND,
    PLOT_CROSS,
    PLOT_NO_MARKER
} plot_marker;

/* Colours are told apart by colour-blind readers too; PLOT_GREY is for references. */
enum { PLOT_COLOURS = 7, PLOT_GREY = -1 };

typedef struct {
    const char *name; /* in the legend; NULL: not there */
    const double *x, *y;
    int count;
    int colour; /* 0 .. PLOT_COLOURS - 1, or PLOT_GREY */
    plot_marker marker;
    bool dashed;
    const bool *hollow; /* [count] or NULL: points that are estimates, say */
} plot_series;

/* Points of the kind of that number, with a colour and a marker of its own. */
static inline plot_series plot_kind(const char *name, int kind, const double *x,
                                    const double *y, int count) {
    return (plot_series){.name = name,
                         .x = x,
                         .y = y,
                         .count = count,
                         .colour = kind % PLOT_COLOURS,
                         .marker = (plot_marker)(kind % PLOT_NO_MARKER)};
}

/* A grey dashed line. */
static inline plot_series plot_reference(const char *name, const double *x,
                                         const double *y, int count) {
    return (plot_series){.name = name,
                         .x = x,
                         .y = y,
                         .count = count,
                         .colour = PLOT_GREY,
                         .marker = PLOT_NO_MARKER,
                         .dashed = true};
}

/* A ring around a point, a thin line down to the x axis, and the text beside it. */
typedef struct {
    double x, y;
    const char *text;
    int colour;
} plot_note;

typedef struct {
    const char *title;
    plot_axis x, y;
    const plot_series *series;
    int series_count;
    const plot_note *notes;
    int note_count;
} plot_chart;

typedef struct {
    const plot_chart *charts; /* side by side; the first one's series make the legend */
    int count;
    const char *caption; /* small, below everything; may be NULL */
} plot_figure;

/* Why no figure can be written under this name; NULL: it can. */
const char *plot_obstacle(const char *path);
/* For rows of options that set the path of a picture: complains about such names. */
bool plot_option(void *unused, const char *name, const char *path);

/* All pictures are written whole or not at all; where that fails the program dies. */
void plot_write(const char *path, const plot_figure *figure);

/* Any picture of that size, in points; `paint` gets what it paints. This and what follows
   exists in builds with cairo only, but for heatmap_write. */
struct _cairo;
typedef void plot_painter(struct _cairo *cr, const void *what);
void plot_paint(const char *path, double width, double height, plot_painter *paint,
                const void *what);
/* across: the share of the text that lies left of x. */
void plot_text(struct _cairo *cr, double x, double y, double across, const char *text);
void plot_bold(struct _cairo *cr, bool bold);

/* ---- Heatmaps (heatmap.c): numbers in coloured boxes ------------------------------- */

typedef struct {
    double x, y, width, height;
} heatmap_box;

/* A box with the colour of a share of 0 to 1, and the text in it; NAN: grey. */
void heatmap_draw_box(struct _cairo *cr, heatmap_box box, double share, const char *text);

/* A table of numbers with names; low is the brightest colour. */
typedef struct {
    const char *title, *caption, *across, *down; /* across, down: what the names are */
    int rows, columns;
    const char *const *row_names, *const *column_names;
    const double *values; /* [rows][columns]; NAN: none */
} heatmap_table;

void heatmap_write(const char *path, const heatmap_table *table);

#endif
