/* Figures of publication quality: charts in rows with one legend below; a chart has two
   axes (linear or logarithmic), lines with markers, and notes. Drawn by cairo as .svg
   or .png; a build without cairo reports an error. */
#ifndef SHOAL_LAB_PLOT_H
#define SHOAL_LAB_PLOT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum { PLOT_LINEAR, PLOT_LOG } plot_scale;

typedef struct {
    const char *label;
    plot_scale scale;
    bool doubling;    /* logarithmic only: ticks at powers of two instead of ten */
    double low, high; /* both 0 to use the range of the data */
} plot_axis;

typedef enum {
    PLOT_CIRCLE,
    PLOT_SQUARE,
    PLOT_TRIANGLE,
    PLOT_DIAMOND,
    PLOT_CROSS,
    PLOT_NO_MARKER
} plot_marker;

/* Colour-blind readers can tell the colours apart; PLOT_GREY is for references. */
enum { PLOT_COLOURS = 7, PLOT_GREY = -1 };

typedef struct {
    const char *name; /* in the legend; NULL if not in it */
    const double *x, *y;
    int count;
    int colour; /* 0 .. PLOT_COLOURS - 1, or PLOT_GREY */
    plot_marker marker;
    bool dashed;
    const bool *hollow; /* [count] or NULL: draws points such as estimates with hollow
                           markers */
} plot_series;

/* Points of the kind with this number, which selects colour and marker. */
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

/* A ring around a point, a thin line down to the x axis, and a text beside it. */
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
    const plot_chart *charts; /* next to each other; the series of the first one make
                                 the legend */
    int count;
    const char *caption; /* small, below everything; may be NULL */
} plot_figure;

/* The reason why no figure can be written to this path, or NULL. */
const char *plot_obstacle(const char *path);
/* Checks the path of a picture in a row of options; prints a message if it is
   unsuitable. */
bool plot_option(void *unused, const char *name, const char *path);

/* Pictures are written atomically; the program exits on failure. */
void plot_write(const char *path, const plot_figure *figure);

/* Writes any picture of this size in points; `paint` gets `what`. This and the
   functions below, except heatmap_write, exist only in builds with cairo. */
struct _cairo;
typedef void plot_painter(struct _cairo *cr, const void *what);
void plot_paint(const char *path, double width, double height, plot_painter *paint,
                const void *what);
/* across: share of the text to the left of x. */
void plot_text(struct _cairo *cr, double x, double y, double across, const char *text);
void plot_bold(struct _cairo *cr, bool bold);

/* ---- Heatmaps (heatmap.c) --------------------------------------------------------- */

typedef struct {
    double x, y, width, height;
} heatmap_box;

/* A box coloured by a share from 0 to 1 with a text in it; grey for NAN. */
void heatmap_draw_box(struct _cairo *cr, heatmap_box box, double share, const char *text);

/* A table of numbers with names; low values have the brightest colour. */
typedef struct {
    const char *title, *caption, *across, *down; /* across, down: titles of the two
                                                    axes */
    int rows, columns;
    const char *const *row_names, *const *column_names;
    const double *values; /* [rows][columns]; NAN if missing */
} heatmap_table;

void heatmap_write(const char *path, const heatmap_table *table);

#endif
