/* Between plot.c and plot_draw.c, in builds with cairo. */
#ifndef SHOAL_CLI_PLOT_DRAW_H
#define SHOAL_CLI_PLOT_DRAW_H

#include <cairo.h>

#include "plot.h"

double plot_width(const plot_figure *figure); /* in points */
double plot_height(const plot_figure *figure);
void plot_draw(cairo_t *cr, const plot_figure *figure);

#endif
