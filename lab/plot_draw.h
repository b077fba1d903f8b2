/* Between plot.c and what draws, in builds with cairo. */
#ifndef SHOAL_CLI_PLOT_DRAW_H
#define SHOAL_CLI_PLOT_DRAW_H

#include <cairo.h>

#include "plot.h"

double plot_width(const plot_figure *figure); /* in points */
double plot_height(const plot_figure *figure);
void plot_draw(cairo_t *cr, const plot_figure *figure);

/* Any picture of that size, in points, as plot_write writes its figures; `paint` gets what
   it paints. */
typedef void plot_painter(cairo_t *cr, const void *what);
bool plot_paint(const char *path, double width, double height, plot_painter *paint,
                const void *what, char *reason, size_t size);

#endif
