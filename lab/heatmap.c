#include "lab.h"
#include "plot.h"
#if !defined(SHOAL_HAVE_CAIRO)

void heatmap_write(const char *path, const heatmap_table *table) {
    (void)table;
    die(EXIT_USAGE, "%s", plot_obstacle(path));
}

#else
#include <cairo.h>

/* ---- Boxes and texts ----------------------------------------------------------- */

void heatmap_draw_box(cairo_t *cr, heatmap_box box, double share, const char *text) {
    double rgb[3] = {0.93, 0.93, 0.93};
    if (!isnan(share)) {
        /* From dark blue through green to yellow with increasing lightness, which is
           readable in grey and for colour-blind readers. */
        static const double anchors[][3] = {{0.17, 0.07, 0.37}, {0.16, 0.29, 0.53},
                                            {0.11, 0.48, 0.56}, {0.16, 0.66, 0.49},
                                            {0.55, 0.81, 0.33}, {0.97, 0.91, 0.25}};
        enum { LAST = sizeof anchors / sizeof *anchors - 1 };
        const double at = fmin(fmax(share, 0), 1) * LAST;
        const int left = at >= LAST ? LAST - 1 : (int)at;
        for (int i = 0; i < 3; i++)
            rgb[i] = anchors[left][i] +
                     (at - left) * (anchors[left + 1][i] - anchors[left][i]);
    }
    cairo_rectangle(cr, box.x, box.y, box.width - 1, box.height - 1);
    cairo_set_source_rgb(cr, rgb[0], rgb[1], rgb[2]);
    cairo_fill(cr);
    const double ink = isnan(share) || share > 0.5 ? 0 : 1;
    cairo_set_source_rgb(cr, ink, ink, ink);
    plot_text(cr, box.x + box.width / 2, box.y + box.height / 2 + 3.5, 0.5, text);
}

/* ---- Tables -------------------------------------------------------------------- */

enum { WIDTH = 62, HEIGHT = 30, LEFT = 150, TOP = 130, BELOW = 40 };

static void paint_table(cairo_t *cr, const void *what) {
    const heatmap_table *table = what;
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < table->rows * table->columns; i++) {
        low = fmin(low, table->values[i]);
        high = fmax(high, table->values[i]);
    }
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    cairo_set_font_size(cr, 10);
    cairo_set_source_rgb(cr, 0, 0, 0);
    plot_bold(cr, true);
    plot_text(cr, 8, 18, 0, table->title);
    plot_bold(cr, false);
    plot_text(cr, LEFT - 6, TOP - 20, 1, table->across);
    plot_text(cr, LEFT - 6, TOP - 6, 1, table->down);
    for (int i = 0; i < table->rows; i++)
        plot_text(cr, LEFT - 6, TOP + HEIGHT * (i + 0.5) + 3.5, 1, table->row_names[i]);
    for (int j = 0; j < table->columns; j++) { /* slanted labels */
        cairo_save(cr);
        cairo_translate(cr, LEFT + WIDTH * (j + 0.5), TOP - 6);
        cairo_rotate(cr, -0.7);
        plot_text(cr, 0, 0, 0, table->column_names[j]);
        cairo_restore(cr);
    }
    for (int i = 0; i < table->rows; i++)
        for (int j = 0; j < table->columns; j++) {
            const double value = table->values[i * table->columns + j];
            const heatmap_box box = {LEFT + WIDTH * j, TOP + HEIGHT * i, WIDTH, HEIGHT};
            char text[32] = "-";
            if (!isnan(value))
                snprintf(text, sizeof text, "%.2f", value);
            heatmap_draw_box(cr, box, high > low ? (high - value) / (high - low) : value,
                             text);
        }
    cairo_set_font_size(cr, 8.5);
    cairo_set_source_rgb(cr, 0.35, 0.35, 0.35);
    plot_text(cr, 8, TOP + HEIGHT * table->rows + 24, 0, table->caption);
}

void heatmap_write(const char *path, const heatmap_table *table) {
    const double width = LEFT + WIDTH * table->columns + 90;
    const double height = TOP + HEIGHT * table->rows + BELOW;
    plot_paint(path, width < 480 ? 480 : width, height, paint_table, table);
}

#endif
