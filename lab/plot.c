/* Figures drawn with cairo and saved as .svg, or as .png with three pixels per point.
   Sizes are in points. */
#define _GNU_SOURCE
#include "plot.h"

#include <errno.h>
#include <strings.h>

#include "lab.h"

bool plot_option(void *unused, const char *name, const char *path) {
    const char *why = plot_obstacle(path);
    (void)unused;
    if (why)
        complain(EXIT_USAGE, command_name(), "--%s: %.159s", name, why);
    return !why;
}

#if !defined(SHOAL_HAVE_CAIRO)

const char *plot_obstacle(const char *path) {
    (void)path;
    return "this program was built without cairo and cannot draw; install libcairo2-dev "
           "and build again";
}

void plot_write(const char *path, const plot_figure *figure) {
    (void)figure;
    die(EXIT_USAGE, "%s", plot_obstacle(path));
}

#else

#include <cairo-svg.h>

/* ---- Axes ------------------------------------------------------------------------- */

/* An axis with known ends, mapped to pixels. */
typedef struct {
    plot_axis axis;
    double low, high;     /* of the data, rounded outwards */
    double first, length; /* pixel of low, and pixels from low to high (negative:
                             upwards) */
} ruler;

enum { TICKS = 64 };

typedef struct {
    double value;
    char text[24]; /* empty for a minor tick */
} tick;

/* Whether a value can be shown: not NaN, and not far too large. */
static bool shows(const plot_axis *axis, double value) {
    const double most = 1e100; /* so that sums and ratios are finite */
    return fabs(value) <= most && (axis->scale == PLOT_LINEAR || value >= 1 / most);
}

/* The smallest of 1, 2 or 5 times a power of ten that is at least step. */
static double round_step(double step) {
    const double power = pow(10, floor(log10(step)));
    const double digit = step / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static double linear_step(const ruler *r) {
    return round_step((r->high - r->low) / 6);
}

/* Finds ends that include all data of the chart along one axis. */
static void fit(ruler *r, const plot_chart *chart, bool vertical) {
    r->axis = vertical ? chart->y : chart->x;
    r->low = r->axis.low;
    r->high = r->axis.high;
    if (r->low < r->high)
        return;
    r->low = INFINITY;
    r->high = -INFINITY;
    for (int s = 0; s < chart->series_count; s++)
        for (int i = 0; i < chart->series[s].count; i++) {
            const double value = vertical ? chart->series[s].y[i] : chart->series[s].x[i];
            r->low = shows(&r->axis, value) ? fmin(r->low, value) : r->low;
            r->high = shows(&r->axis, value) ? fmax(r->high, value) : r->high;
        }
    const bool log = r->axis.scale == PLOT_LOG;
    if (!(r->low <= r->high)) {
        r->low = 1;
        r->high = 2;
    }
    /* A range that ticks can divide. */
    const double least = fmax(1e-9 * fabs(r->high), 1e-90);
    if (r->high - r->low <= least) {
        r->low = log ? r->low / 2 : r->low - fmax(1, least);
        r->high = log ? r->high * 2 : r->high + fmax(1, least);
    }
    /* A margin of a tenth of the range, then extended to a tick if one is near; a
       logarithmic axis ends at 1, 2 or 5 times a power of ten. */
    const double step = linear_step(r);
    const double margin = pow(r->high / r->low, vertical ? 0.06 : 0.04);
    r->low = log ? r->low / margin : floor(r->low / step) * step;
    r->high = log ? r->high * margin : ceil(r->high / step) * step;
    if (log && vertical) {
        r->high = round_step(r->high);
        r->low = 1 / round_step(1 / r->low);
    }
}

static double place(const ruler *r, double value) {
    const bool log_scale = r->axis.scale == PLOT_LOG;
    const double share = log_scale ? log(value / r->low) / log(r->high / r->low)
                                   : (value - r->low) / (r->high - r->low);
    return r->first + share * r->length;
}

/* ---- Ticks ------------------------------------------------------------------------- */

static void write_value(char *text, size_t size, double value, bool doubling) {
    const double magnitude = fabs(value);
    const bool millions = value >= 1048576 && fmod(value, 1048576) == 0;
    if (doubling && value >= 1024 && fmod(value, 1024) == 0)
        snprintf(text, size, millions ? "%.0fM" : "%.0fk",
                 value / (millions ? 1048576 : 1024));
    else if (magnitude >= 1e6 || (magnitude > 0 && magnitude < 1e-3))
        snprintf(text, size, "%.0e", value);
    else
        snprintf(text, size, "%.6g", value);
}

static void add_tick(const ruler *r, tick *ticks, int *count, double value,
                     bool labelled) {
    const double slack = 1e-9 * fabs(value);
    if (*count == TICKS || value < r->low - slack || value > r->high + slack)
        return;
    ticks[*count].value = value;
    ticks[*count].text[0] = 0;
    if (labelled)
        write_value(ticks[*count].text, sizeof ticks->text, value, r->axis.doubling);
    ++*count;
}

/* Fills at most TICKS and returns their number. On a logarithmic axis every digit gets
   a tick; the number of labelled ticks depends on the number of decades. */
static int find_ticks(const ruler *r, tick *ticks) {
    int count = 0;
    if (r->axis.scale == PLOT_LINEAR) {
        const double step = linear_step(r), first = ceil(r->low / step - 1e-9);
        for (int i = 0; (first + i) * step <= r->high + 1e-9 * step; i++)
            add_tick(r, ticks, &count, (first + i) * step + 0.0, true); /* avoids -0 */
    } else if (r->axis.doubling) {
        const int first = (int)ceil(log2(r->low) - 1e-9);
        const int last = (int)floor(log2(r->high) + 1e-9);
        const int every = 1 + (last - first) / 9;
        for (int power = first; power <= last; power++)
            add_tick(r, ticks, &count, pow(2, power), (power - first) % every == 0);
    } else {
        const double decades = log10(r->high / r->low);
        const int first = (int)floor(log10(r->low) - 1e-9);
        for (int power = first; pow(10, power) <= r->high * (1 + 1e-9); power++)
            for (int digit = 1; digit < (decades > 5 ? 2 : 10); digit++) {
                const bool few = digit == 1 || digit == 2 || digit == 5;
                add_tick(r, ticks, &count, digit * pow(10, power),
                         digit == 1 || (decades < 2.7 && few) || decades < 0.5);
            }
    }
    return count;
}

/* ---- Sizes and colours ------------------------------------------------------------- */

enum { CHART_WIDTH = 330, CHART_HEIGHT = 300, LEGEND_LINE = 16 };
static const double left_margin = 58, right_margin = 14, top_margin = 28,
                    bottom_margin = 44, text_size = 10, small_text = 8.5;

/* The palette of Okabe and Ito, darkened for a white background. */
static const double palette[PLOT_COLOURS][3] = {{0.00, 0.00, 0.00}, {0.00, 0.45, 0.70},
                                                {0.84, 0.37, 0.00}, {0.00, 0.62, 0.45},
                                                {0.80, 0.47, 0.65}, {0.90, 0.62, 0.00},
                                                {0.34, 0.71, 0.91}};

/* ---- Text and markers ------------------------------------------------------------- */

static void set_colour(cairo_t *cr, int colour) {
    if (colour == PLOT_GREY)
        cairo_set_source_rgb(cr, 0.5, 0.5, 0.5);
    else
        cairo_set_source_rgb(cr, palette[colour % PLOT_COLOURS][0],
                             palette[colour % PLOT_COLOURS][1],
                             palette[colour % PLOT_COLOURS][2]);
}

static double text_width(cairo_t *cr, const char *text) {
    cairo_text_extents_t extents;
    cairo_text_extents(cr, text, &extents);
    return extents.x_advance;
}

void plot_text(cairo_t *cr, double x, double y, double across, const char *text) {
    cairo_move_to(cr, x - across * text_width(cr, text), y);
    cairo_show_text(cr, text);
    cairo_new_path(cr);
}

void plot_bold(cairo_t *cr, bool bold) {
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
}

/* Vertical text starting at (x, y) with a white outline. */
static void draw_upright(cairo_t *cr, double x, double y, double across,
                         const char *text) {
    cairo_save(cr);
    cairo_translate(cr, x, y);
    cairo_rotate(cr, -M_PI / 2);
    cairo_move_to(cr, -across * text_width(cr, text), 0);
    cairo_text_path(cr, text);
    cairo_save(cr);
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_set_line_width(cr, 3);
    cairo_stroke(cr);
    cairo_restore(cr);
    plot_text(cr, 0, 0, across, text);
    cairo_restore(cr);
}

static void draw_line(cairo_t *cr, double x0, double y0, double x1, double y1) {
    cairo_move_to(cr, x0, y0);
    cairo_line_to(cr, x1, y1);
    cairo_stroke(cr);
}

static void draw_marker(cairo_t *cr, const plot_series *series, double x, double y,
                        bool hollow) {
    if (series->marker == PLOT_NO_MARKER)
        return;
    /* Radii differ so that the areas of markers look equal. */
    const double r = 3.2;
    cairo_new_path(cr);
    switch (series->marker) {
    case PLOT_CIRCLE: cairo_arc(cr, x, y, r, 0, 2 * M_PI); break;
    case PLOT_SQUARE: cairo_rectangle(cr, x - 2.8, y - 2.8, 5.6, 5.6); break;
    case PLOT_TRIANGLE:
        cairo_move_to(cr, x, y - 4.2);
        cairo_line_to(cr, x + 3.7, y + 2.6);
        cairo_line_to(cr, x - 3.7, y + 2.6);
        cairo_close_path(cr);
        break;
    case PLOT_DIAMOND:
        cairo_move_to(cr, x, y - 4.2);
        cairo_line_to(cr, x + 3.8, y);
        cairo_line_to(cr, x, y + 4.2);
        cairo_line_to(cr, x - 3.8, y);
        cairo_close_path(cr);
        break;
    case PLOT_CROSS:
        cairo_move_to(cr, x - r, y - r);
        cairo_line_to(cr, x + r, y + r);
        cairo_move_to(cr, x - r, y + r);
        cairo_line_to(cr, x + r, y - r);
        break;
    default: break;
    }
    if (series->marker != PLOT_CROSS) {
        if (hollow)
            cairo_set_source_rgb(cr, 1, 1, 1);
        else
            set_colour(cr, series->colour);
        cairo_fill_preserve(cr);
    }
    set_colour(cr, series->colour);
    cairo_set_line_width(cr, series->marker == PLOT_CROSS ? 1.5 : 1.0);
    cairo_stroke(cr);
}

static void line_style(cairo_t *cr, const plot_series *series) {
    const double dashes[] = {4, 3};
    cairo_set_dash(cr, dashes, series->dashed ? 2 : 0, 0);
    cairo_set_line_width(cr, series->colour == PLOT_GREY ? 1.0 : 1.5);
    set_colour(cr, series->colour);
}

/* ---- One chart --------------------------------------------------------------------- */

typedef struct {
    cairo_t *cr;
    const plot_chart *chart;
    ruler x, y;
} canvas;

/* Ticks of one axis, with grid lines at the labelled ones. */
static void draw_ticks(const canvas *on, bool vertical) {
    tick ticks[TICKS];
    const ruler *along = vertical ? &on->y : &on->x;
    const int count = find_ticks(along, ticks);
    const double left = on->x.first, bottom = on->y.first;
    for (int i = 0; i < count; i++) {
        const double at = place(along, ticks[i].value), size = ticks[i].text[0] ? 4 : 2;
        cairo_set_line_width(on->cr, 0.5);
        cairo_set_source_rgb(on->cr, 0.88, 0.88, 0.88);
        if (ticks[i].text[0] && vertical)
            draw_line(on->cr, left, at, left + on->x.length, at);
        else if (ticks[i].text[0])
            draw_line(on->cr, at, bottom, at, bottom + on->y.length);
        cairo_set_source_rgb(on->cr, 0.25, 0.25, 0.25);
        if (vertical)
            draw_line(on->cr, left - size, at, left, at);
        else
            draw_line(on->cr, at, bottom, at, bottom + size);
        plot_text(on->cr, vertical ? left - 7 : at, vertical ? at + 3.5 : bottom + 15,
                  vertical ? 1 : 0.5, ticks[i].text);
    }
    if (vertical)
        draw_upright(on->cr, left - 44, bottom + on->y.length / 2, 0.5, on->y.axis.label);
    else
        plot_text(on->cr, left + on->x.length / 2, bottom + 31, 0.5, on->x.axis.label);
}

static bool point_shows(const canvas *on, const plot_series *series, int i) {
    return shows(&on->x.axis, series->x[i]) && shows(&on->y.axis, series->y[i]);
}

static void draw_series(const canvas *on, const plot_series *series) {
    line_style(on->cr, series);
    bool begun = false;
    for (int i = 0; i < series->count; i++) {
        if (!point_shows(on, series, i)) {
            begun = false; /* gap in the line */
            continue;
        }
        const double x = place(&on->x, series->x[i]);
        const double y = place(&on->y, series->y[i]);
        if (begun)
            cairo_line_to(on->cr, x, y);
        else
            cairo_move_to(on->cr, x, y);
        begun = true;
    }
    cairo_stroke(on->cr);
    cairo_set_dash(on->cr, NULL, 0, 0);
    for (int i = 0; i < series->count; i++)
        if (point_shows(on, series, i))
            draw_marker(on->cr, series, place(&on->x, series->x[i]),
                        place(&on->y, series->y[i]), series->hollow && series->hollow[i]);
}

/* Whether the text of a note goes to the right of its line, because another line is
   close on the left. */
static bool note_goes_right(const canvas *on, int n) {
    const double x = place(&on->x, on->chart->notes[n].x);
    for (int other = 0; other < on->chart->note_count; other++) {
        const double before = place(&on->x, on->chart->notes[other].x);
        if (other != n && x - before < 15 && (x > before || (x == before && other < n)))
            return true;
    }
    return false;
}

/* Start of the text: above earlier texts on the same side that are close. */
static double note_height(const canvas *on, int n) {
    double height = 5;
    for (int other = 0; other < n; other++)
        if (note_goes_right(on, other) == note_goes_right(on, n) &&
            fabs(place(&on->x, on->chart->notes[other].x) -
                 place(&on->x, on->chart->notes[n].x)) < 15)
            height += text_width(on->cr, on->chart->notes[other].text) + 8;
    return height;
}

static void draw_notes(const canvas *on) {
    const double dots[] = {1.2, 2}, bottom = on->y.first;
    cairo_set_font_size(on->cr, small_text);
    for (int n = 0; n < on->chart->note_count; n++) {
        const plot_note *note = &on->chart->notes[n];
        const double x = place(&on->x, note->x), y = place(&on->y, note->y);
        set_colour(on->cr, note->colour);
        cairo_set_line_width(on->cr, 0.8);
        cairo_set_dash(on->cr, dots, 2, 0);
        draw_line(on->cr, x, y + 6, x, bottom);
        cairo_set_dash(on->cr, NULL, 0, 0);
        cairo_set_line_width(on->cr, 1.1);
        cairo_arc(on->cr, x, y, 5.5, 0, 2 * M_PI);
        cairo_stroke(on->cr);
        draw_upright(on->cr, note_goes_right(on, n) ? x + 8.5 : x - 2.5,
                     bottom - note_height(on, n), 0, note->text);
    }
    cairo_set_font_size(on->cr, text_size);
}

static void draw_chart(cairo_t *cr, const plot_chart *chart) {
    canvas on = {.cr = cr, .chart = chart};
    on.x.first = left_margin;
    on.x.length = CHART_WIDTH - left_margin - right_margin;
    on.y.first = CHART_HEIGHT - bottom_margin;
    on.y.length = top_margin - on.y.first;
    fit(&on.x, chart, false);
    fit(&on.y, chart, true);
    plot_bold(cr, true);
    cairo_set_source_rgb(cr, 0, 0, 0);
    plot_text(cr, on.x.first + on.x.length / 2, top_margin - 9, 0.5, chart->title);
    plot_bold(cr, false);
    draw_ticks(&on, false);
    draw_ticks(&on, true);
    cairo_set_dash(cr, NULL, 0, 0);
    cairo_set_source_rgb(cr, 0.25, 0.25, 0.25);
    cairo_set_line_width(cr, 0.8);
    cairo_rectangle(cr, on.x.first, on.y.first + on.y.length, on.x.length, -on.y.length);
    cairo_stroke(cr);
    cairo_save(cr);
    cairo_rectangle(cr, on.x.first, top_margin, on.x.length, -on.y.length);
    cairo_clip(cr);
    for (int s = 0; s < chart->series_count; s++)
        draw_series(&on, &chart->series[s]);
    draw_notes(&on);
    cairo_restore(cr);
}

/* ---- Legend and figure ------------------------------------------------------------- */

/* Up to four charts form one row; more are in rows of three. */
static int columns_of(const plot_figure *figure) {
    return figure->count > 4 ? 3 : figure->count;
}

static double figure_width(const plot_figure *figure) {
    return CHART_WIDTH * columns_of(figure);
}

static double charts_height(const plot_figure *figure) {
    const int columns = columns_of(figure);
    return CHART_HEIGHT * ((figure->count + columns - 1) / columns);
}

/* Places entries in centred rows; draws them if `draw` is set, and returns the
   height. */
static double place_legend(cairo_t *cr, const plot_figure *figure, double top,
                           bool draw) {
    const plot_series *series = figure->charts[0].series;
    const int count = figure->charts[0].series_count;
    const double width = figure_width(figure) - 30;
    int first = 0, rows = 0;
    while (first < count) {
        double total = 0;
        int end = first;
        for (; end < count; end++) {
            const double entry = series[end].name ? 44 + text_width(cr, series[end].name)
                                                  : 0;
            if (total > 0 && total + entry > width)
                break;
            total += entry;
        }
        double x = 15 + (width - total) / 2, y = top + LEGEND_LINE * (rows + 0.5);
        for (; draw && first < end; first++) {
            if (!series[first].name)
                continue;
            line_style(cr, &series[first]);
            draw_line(cr, x, y, x + 24, y);
            cairo_set_dash(cr, NULL, 0, 0);
            draw_marker(cr, &series[first], x + 12, y, false);
            cairo_set_source_rgb(cr, 0, 0, 0);
            plot_text(cr, x + 29, y + 3.5, 0, series[first].name);
            x += 44 + text_width(cr, series[first].name);
        }
        first = end;
        rows++;
    }
    return rows * LEGEND_LINE;
}

static void paint_figure(cairo_t *cr, const void *what) {
    const plot_figure *figure = what;
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    cairo_set_line_join(cr, CAIRO_LINE_JOIN_ROUND);
    cairo_set_font_size(cr, text_size);
    const double bottom = charts_height(figure);
    const double legend = place_legend(cr, figure, bottom, true);
    const int columns = columns_of(figure);
    for (int i = 0; i < figure->count; i++) {
        cairo_save(cr);
        cairo_translate(cr, i % columns * CHART_WIDTH, i / columns * CHART_HEIGHT);
        draw_chart(cr, &figure->charts[i]);
        cairo_restore(cr);
    }
    if (!figure->caption)
        return;
    cairo_set_font_size(cr, small_text);
    cairo_set_source_rgb(cr, 0.35, 0.35, 0.35);
    plot_text(cr, figure_width(figure) / 2, bottom + legend + 13, 0.5, figure->caption);
}

/* ---- Files ------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *ending) {
    const size_t size = strlen(path), tail = strlen(ending);
    return size >= tail && strcasecmp(path + size - tail, ending) == 0;
}

enum { PIXELS = 3 };

const char *plot_obstacle(const char *path) {
    static char reason[4200];
    if (ends_in(path, ".svg") || ends_in(path, ".png"))
        return NULL;
    snprintf(reason, sizeof reason, "%s must end in .svg or .png", path);
    return reason;
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

void plot_paint(const char *path, double width, double height, plot_painter *paint,
                const void *what) {
    replacement to;
    cairo_status_t status = CAIRO_STATUS_WRITE_ERROR;
    if (plot_obstacle(path))
        die(EXIT_RESOURCES, "%s", plot_obstacle(path));
    FILE *file = replace_begin(&to, path);
    if (file)
        status = paint_to(file, ends_in(path, ".svg"), width, height, paint, what);
    if (file && replace_end(&to, status == CAIRO_STATUS_SUCCESS))
        return;
    const bool disk = status == CAIRO_STATUS_SUCCESS ||
                      status == CAIRO_STATUS_WRITE_ERROR;
    die(EXIT_RESOURCES, "%s cannot be written: %s", path,
        disk ? strerror(errno) : cairo_status_to_string(status));
}

/* The height depends on the legend, which needs a surface to measure text. */
void plot_write(const char *path, const plot_figure *figure) {
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, 1, 1);
    cairo_t *cr = cairo_create(surface);
    cairo_set_font_size(cr, text_size);
    const double legend = place_legend(cr, figure, 0, false);
    cairo_destroy(cr);
    cairo_surface_destroy(surface);
    plot_paint(path, figure_width(figure),
               charts_height(figure) + legend + (figure->caption ? 18 : 4) + 4,
               paint_figure, figure);
}

#endif
