/* Attention maps as a picture: for each kind a row of boxes per token of the question,
   the words of the text above, and on the right the tokens above the threshold. */
#define _GNU_SOURCE
#include "maps.h"

#include "plot.h"

#if !defined(SHOAL_HAVE_CAIRO)

void maps_draw(const char *path, const attention_maps *maps) {
    (void)maps;
    die(EXIT_USAGE, "%s", plot_obstacle(path));
}

#else
#include <cairo.h>

enum { BOX = 10, LINE = 13, LEFT = 90, TITLE = 22, WORDS = 74, LIST = 330, BELOW = 26 };

static double panel_height(const attention_maps *maps) {
    return TITLE + WORDS + LINE * (double)maps->rows + 12;
}

static double right_edge(const attention_maps *maps) {
    return LEFT + BOX * (double)maps->tokens;
}

static void draw_kind(cairo_t *cr, const attention_maps *maps, int which, double top) {
    const maps_kind *kind = &maps->measured[which];
    char title[2 * KIND_NAME + 64];
    snprintf(title, sizeof title,
             which ? "%s: %.1f %% of the weight on other tokens than with %s" : "%s",
             maps->kinds.names[which], 100 * kind->away, maps->kinds.names[0]);
    cairo_set_font_size(cr, 10);
    cairo_set_source_rgb(cr, 0, 0, 0);
    plot_bold(cr, true);
    plot_text(cr, 8, top + 14, 0, title);
    plot_bold(cr, false);
    cairo_set_font_size(cr, 8.5);
    for (int64_t i = 0; i < maps->tokens; i++) {
        cairo_save(cr);
        cairo_translate(cr, LEFT + BOX * ((double)i + 0.8), top + TITLE + WORDS - 4);
        cairo_rotate(cr, -M_PI / 2);
        plot_text(cr, 0, 0, 0, maps->words[i]);
        cairo_restore(cr);
    }
    for (int64_t row = 0; row < maps->rows; row++) {
        /* Colours show the square root, so that small weights are visible. */
        const double y = top + TITLE + WORDS + LINE * (double)row;
        char list[256];
        cairo_set_source_rgb(cr, 0, 0, 0);
        plot_text(cr, LEFT - 6, y + LINE - 3.5, 1, maps->words[maps->first + row]);
        maps_list(maps, kind, row, list, sizeof list);
        plot_text(cr, right_edge(maps) + 8, y + LINE - 3.5, 0, list);
        for (int64_t i = 0; i < maps->tokens; i++) {
            const double weight = (double)kind->weights[row * maps->tokens + i];
            const heatmap_box box = {LEFT + BOX * (double)i, y, BOX, LINE};
            heatmap_draw_box(cr, box, sqrt(fmax(weight, 0)), "");
        }
    }
    /* A thin line before the first token of the context. */
    const double x = LEFT + BOX * (double)maps->context - 0.5;
    cairo_set_source_rgb(cr, 0.8, 0.2, 0.2);
    cairo_set_line_width(cr, 1);
    cairo_move_to(cr, x, top + TITLE + 10);
    cairo_line_to(cr, x, top + TITLE + WORDS + LINE * (double)maps->rows);
    cairo_stroke(cr);
}

static void paint_maps(cairo_t *cr, const void *what) {
    const attention_maps *maps = what;
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    for (int i = 0; i < maps->kinds.count; i++)
        draw_kind(cr, maps, i, panel_height(maps) * i);
    cairo_set_font_size(cr, 8.5);
    cairo_set_source_rgb(cr, 0.35, 0.35, 0.35);
    plot_text(cr, 8, panel_height(maps) * maps->kinds.count + 12, 0, maps->caption);
}

void maps_draw(const char *path, const attention_maps *maps) {
    plot_paint(path, right_edge(maps) + LIST,
               panel_height(maps) * maps->kinds.count + BELOW, paint_maps, maps);
}

#endif
