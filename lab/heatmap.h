/* Heatmaps: numbers in coloured boxes. In builds with cairo only, but for
   heatmap_write, which says so elsewhere. */
#ifndef SHOAL_LAB_HEATMAP_H
#define SHOAL_LAB_HEATMAP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    double x, y, width, height;
} heatmap_box;

struct _cairo;
/* A box with the colour of a share of 0 to 1, and the text in it; NAN: grey. */
void heatmap_draw_box(struct _cairo *cr, heatmap_box box, double share, const char *text);
/* across: the share of the text that lies left of x. */
void heatmap_draw_text(struct _cairo *cr, double x, double y, double across,
                       const char *text);
void heatmap_set_bold(struct _cairo *cr, bool bold);

/* A table of numbers with names; low is the brightest colour. */
typedef struct {
    const char *title, *caption, *across, *down; /* across, down: what the names are */
    int rows, columns;
    const char *const *row_names, *const *column_names;
    const double *values; /* [rows][columns]; NAN: none */
} heatmap_table;

/* Writes the picture whole or not at all; on failure the reason is filled in. */
bool heatmap_write(const char *path, const heatmap_table *table, char *reason,
                   size_t size);

#endif
