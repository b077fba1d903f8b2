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

/* Whether a figure can be written under this name; if not, why. */
bool plot_possible(const char *path, char *reason, size_t size);
/* The value of --plot: kept in *path, or complains. */
bool take_plot(const char *command, const char *value, const char **path);

/* Writes the figure whole or not at all; on failure the reason is filled in. */
bool plot_write(const char *path, const plot_figure *figure, char *reason, size_t size);

/* Any picture of that size, in points, as plot_write writes its figures; `paint` gets
   what it paints. In builds with cairo only. */
struct _cairo;
typedef void plot_painter(struct _cairo *cr, const void *what);
bool plot_paint(const char *path, double width, double height, plot_painter *paint,
                const void *what, char *reason, size_t size);

#endif
