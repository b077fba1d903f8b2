/* Figures as files: .svg, or .png with three pixels to the point. */
#define _GNU_SOURCE
#include "plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common.h"
#include "replace.h"

static bool ends_in(const char *path, const char *ending) {
    const size_t size = strlen(path), tail = strlen(ending);
    return size > tail && strcasecmp(path + size - tail, ending) == 0;
}

#if !defined(SHOAL_HAVE_CAIRO)

bool plot_possible(const char *path, char *reason, size_t size) {
    (void)path;
    (void)ends_in;
    snprintf(reason, size,
             "this build cannot draw: it was made without cairo "
             "(libcairo2-dev)");
    return false;
}

bool plot_write(const char *path, const plot_figure *figure, char *reason, size_t size) {
    (void)figure;
    return plot_possible(path, reason, size);
}

#else

#include <cairo-svg.h>

#include "plot_draw.h"

enum { PIXELS = 3 };

bool plot_possible(const char *path, char *reason, size_t size) {
    if (ends_in(path, ".svg") || ends_in(path, ".png"))
        return true;
    snprintf(reason, size, "%s must end in .svg or .png", path);
    return false;
}

static cairo_status_t write_bytes(void *file, const unsigned char *bytes,
                                  unsigned count) {
    return fwrite(bytes, 1, count, file) == count ? CAIRO_STATUS_SUCCESS
                                                  : CAIRO_STATUS_WRITE_ERROR;
}

static cairo_status_t paint_to(FILE *file, bool svg, double width, double height,
                               plot_painter *paint, const void *what) {
    cairo_surface_t *surface =
        svg ? cairo_svg_surface_create_for_stream(write_bytes, file, width, height)
            : cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(width * PIXELS),
                                         (int)ceil(height * PIXELS));
    cairo_t *cr = cairo_create(surface);
    if (!svg)
        cairo_scale(cr, PIXELS, PIXELS);
    paint(cr, what);
    cairo_status_t status = cairo_status(cr);
    cairo_destroy(cr);
    if (status == CAIRO_STATUS_SUCCESS && !svg)
        status = cairo_surface_write_to_png_stream(surface, write_bytes, file);
    cairo_surface_finish(surface);
    if (status == CAIRO_STATUS_SUCCESS)
        status = cairo_surface_status(surface);
    cairo_surface_destroy(surface);
    return status;
}

bool plot_paint(const char *path, double width, double height, plot_painter *paint,
                const void *what, char *reason, size_t size) {
    replacement to;
    cairo_status_t status = CAIRO_STATUS_WRITE_ERROR;
    if (!plot_possible(path, reason, size))
        return false;
    FILE *file = replace_begin(&to, path);
    if (file)
        status = paint_to(file, ends_in(path, ".svg"), width, height, paint, what);
    if (file && replace_end(&to, status == CAIRO_STATUS_SUCCESS))
        return true;
    const bool disk = status == CAIRO_STATUS_SUCCESS ||
                      status == CAIRO_STATUS_WRITE_ERROR;
    snprintf(reason, size, "%s cannot be written: %s", path,
             disk ? strerror(errno) : cairo_status_to_string(status));
    return false;
}

static void paint_figure(cairo_t *cr, const void *figure) {
    plot_draw(cr, figure);
}

bool plot_write(const char *path, const plot_figure *figure, char *reason, size_t size) {
    return plot_paint(path, plot_width(figure), plot_height(figure), paint_figure, figure,
                      reason, size);
}

#endif

bool take_plot(const char *command, const char *value, const char **path) {
    char reason[160];
    *path = value;
    if (plot_possible(value, reason, sizeof reason))
        return true;
    complain(EXIT_USAGE, command, "--plot: %s", reason);
    return false;
}
