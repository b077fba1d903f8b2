/* Where an axis ends, where its ticks are and what they say: no drawing here. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plot.h"

bool plot_shows(const plot_axis *axis, double value) {
    const double most = 1e100; /* so that sums and ratios are finite */
    return fabs(value) <= most && (axis->scale == PLOT_LINEAR || value >= 1 / most);
}

static void widen(plot_ruler *ruler, double value) {
    if (!plot_shows(&ruler->axis, value))
        return;
    ruler->low = fmin(ruler->low, value);
    ruler->high = fmax(ruler->high, value);
}

/* 1, 2 or 5 times a power of ten: the smallest that is no less. */
static double round_step(double step) {
    const double power = pow(10, floor(log10(step)));
    const double digit = step / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static double linear_step(const plot_ruler *ruler) {
    return round_step((ruler->high - ruler->low) / 6);
}

/* A margin of a tenth of the data's own span, then outwards to a tick where that is near:
   a logarithmic axis ends at 1, 2 or 5 times a power of ten. */
static void round_ends(plot_ruler *ruler, bool vertical) {
    if (ruler->axis.scale == PLOT_LINEAR) {
        const double step = linear_step(ruler);
        ruler->low = floor(ruler->low / step) * step;
        ruler->high = ceil(ruler->high / step) * step;
        return;
    }
    const double margin = pow(ruler->high / ruler->low, vertical ? 0.06 : 0.04);
    ruler->low /= margin;
    ruler->high *= margin;
    if (vertical) {
        ruler->high = round_step(ruler->high);
        ruler->low = 1 / round_step(1 / ruler->low);
    }
}

void plot_fit(plot_ruler *ruler, const plot_chart *chart, bool vertical) {
    ruler->axis = vertical ? chart->y : chart->x;
    ruler->low = ruler->axis.low;
    ruler->high = ruler->axis.high;
    if (ruler->low < ruler->high)
        return;
    ruler->low = INFINITY;
    ruler->high = -INFINITY;
    for (int s = 0; s < chart->series_count; s++)
        for (int i = 0; i < chart->series[s].count; i++)
            widen(ruler, vertical ? chart->series[s].y[i] : chart->series[s].x[i]);
    const bool log = ruler->axis.scale == PLOT_LOG;
    if (!(ruler->low <= ruler->high)) {
        ruler->low = 1;
        ruler->high = 2;
    }
    /* A span that ticks can divide. */
    const double least = fmax(1e-9 * fabs(ruler->high), 1e-90);
    if (ruler->high - ruler->low <= least) {
        ruler->low = log ? ruler->low / 2 : ruler->low - fmax(1, least);
        ruler->high = log ? ruler->high * 2 : ruler->high + fmax(1, least);
    }
    round_ends(ruler, vertical);
}

double plot_place(const plot_ruler *ruler, double value) {
    const bool log_scale = ruler->axis.scale == PLOT_LOG;
    const double share = log_scale
                             ? log(value / ruler->low) / log(ruler->high / ruler->low)
                             : (value - ruler->low) / (ruler->high - ruler->low);
    return ruler->first + share * ruler->length;
}

/* ---- Ticks ------------------------------------------------------------------------- */

static void write_value(char *text, size_t size, double value, bool doubling) {
    const double magnitude = fabs(value);
    if (doubling && value >= 1024 && fmod(value, 1024) == 0)
        snprintf(text, size,
                 value >= 1048576 && fmod(value, 1048576) == 0 ? "%.0fM" : "%.0fk",
                 value /
                     (value >= 1048576 && fmod(value, 1048576) == 0 ? 1048576 : 1024));
    else if (magnitude >= 1e6 || (magnitude > 0 && magnitude < 1e-3))
        snprintf(text, size, "%.0e", value);
    else
        snprintf(text, size, "%.6g", value);
}

static void add_tick(const plot_ruler *ruler, plot_tick *ticks, int *count, double value,
                     bool labelled) {
    const double slack = 1e-9 * fabs(value);
    if (*count == PLOT_TICKS || value < ruler->low - slack || value > ruler->high + slack)
        return;
    ticks[*count].value = value;
    ticks[*count].text[0] = 0;
    if (labelled)
        write_value(ticks[*count].text, sizeof ticks->text, value, ruler->axis.doubling);
    ++*count;
}

static int doubling_ticks(const plot_ruler *ruler, plot_tick *ticks) {
    const int first = (int)ceil(log2(ruler->low) - 1e-9);
    const int last = (int)floor(log2(ruler->high) + 1e-9);
    const int every = 1 + (last - first) / 9;
    int count = 0;
    for (int power = first; power <= last; power++)
        add_tick(ruler, ticks, &count, pow(2, power), (power - first) % every == 0);
    return count;
}

/* Every digit gets a tick; how many of them get text depends on how many decades. */
static int decade_ticks(const plot_ruler *ruler, plot_tick *ticks) {
    const double decades = log10(ruler->high / ruler->low);
    const int first = (int)floor(log10(ruler->low) - 1e-9);
    int count = 0;
    for (int power = first; pow(10, power) <= ruler->high * (1 + 1e-9); power++)
        for (int digit = 1; digit < 10; digit++) {
            const bool few = digit == 1 || digit == 2 || digit == 5;
            if (decades > 5 && digit != 1)
                continue;
            add_tick(ruler, ticks, &count, digit * pow(10, power),
                     digit == 1 || (decades < 2.7 && few) || decades < 0.5);
        }
    return count;
}

static int linear_ticks(const plot_ruler *ruler, plot_tick *ticks) {
    const double step = linear_step(ruler), first = ceil(ruler->low / step - 1e-9);
    int count = 0;
    for (int i = 0; (first + i) * step <= ruler->high + 1e-9 * step; i++)
        add_tick(ruler, ticks, &count, (first + i) * step + 0.0, true); /* never -0 */
    return count;
}

int plot_ticks(const plot_ruler *ruler, plot_tick *ticks) {
    if (ruler->axis.scale == PLOT_LINEAR)
        return linear_ticks(ruler, ticks);
    return ruler->axis.doubling ? doubling_ticks(ruler, ticks)
                                : decade_ticks(ruler, ticks);
}
