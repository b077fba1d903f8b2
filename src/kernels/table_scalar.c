/* The specification of every kernel, in plain C. Other tables must agree with it. */
#include <math.h>

#include "kernels/kernels.h"

static void pack(const float *x, int64_t stride, const int32_t *index, int count,
                 int width, int dim, float scale, float *panel) {
    for (int d = 0; d < dim; d++)
        for (int i = 0; i < width; i++) {
            int64_t row = i < count && index ? index[i] : i;
            panel[d * width + i] = i < count ? scale * x[row * stride + d] : 0;
        }
}

static void unpack(const float *panel, int count, int width, int dim, const float *factor,
                   const float *shift, int onto, float *x, int64_t stride,
                   const int32_t *index) {
    for (int i = 0; i < count; i++) {
        float *row = x + (index ? index[i] : i) * stride;
        for (int d = 0; d < dim; d++) {
            float value = (factor ? factor[i] : 1) * panel[d * width + i];
            row[d] = (onto ? row[d] : 0) + (value + (shift ? shift[d] : 0));
        }
    }
}

static void score(const float *panel, int width, int dim, const float *rows,
                  int64_t stride, int count, float *scores) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++) {
            float sum = 0;
            for (int d = 0; d < dim; d++)
                sum = fmaf(rows[r * stride + d], panel[d * width + i], sum);
            scores[r * width + i] = sum;
        }
}

static void mix(const float *weights, int width, const float *rows, int64_t stride,
                int count, int dim, const float *keep, float *out) {
    for (int d = 0; d < dim; d++)
        for (int i = 0; i < width; i++) {
            float sum = 0;
            for (int r = 0; r < count; r++)
                sum = fmaf(rows[r * stride + d], weights[r * width + i], sum);
            float old = out[d * width + i];
            out[d * width + i] = keep ? fmaf(old, keep[i], sum) : old + sum;
        }
}

static void score_at(const float *panel, int width, int dim, const float *rows,
                     int64_t stride, const int32_t *index, int count, float *scores) {
    for (int r = 0; r < count; r++)
        score(panel, width, dim, rows + index[r] * stride, stride, 1, scores + r * width);
}

static void mix_at(const float *weights, int width, const float *rows, int64_t stride,
                   const int32_t *index, int count, int dim, float *out) {
    for (int d = 0; d < dim; d++)
        for (int i = 0; i < width; i++) {
            float sum = 0;
            for (int r = 0; r < count; r++)
                sum = fmaf(rows[index[r] * stride + d], weights[r * width + i], sum);
            out[d * width + i] += sum;
        }
}

static void spread(const float *weights, int64_t width, int lanes, const float *x,
                   int64_t stride, int dim, int count, float *out, int64_t out_stride) {
    for (int r = 0; r < count; r++)
        for (int d = 0; d < dim; d++) {
            float sum = 0;
            for (int i = 0; i < lanes; i++)
                sum = fmaf(weights[r * width + i], x[i * stride + d], sum);
            out[r * out_stride + d] += sum;
        }
}

static void add_across(const float *x, int64_t stride, int lanes, int width, int count,
                       float *scores) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < lanes; i++)
            scores[r * width + i] += x[i * stride + r];
}

static void add_to_rows(const float *x, int64_t stride, int width, int count,
                        float *scores) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++)
            scores[r * width + i] += x[r * stride];
}

/* At least 2^-126, as in the vector tables: all agree where every score is -inf. */
static float exp_negative(float x) {
    return expf(x < -87.336544f ? -87.336544f : x);
}

static void softmax_step(float *scores, int width, int count, float *top, float *sum,
                         float *keep) {
    for (int i = 0; i < width; i++) {
        float highest = top[i], block = 0;
        for (int r = 0; r < count; r++)
            if (!(scores[r * width + i] <= highest))
                highest = scores[r * width + i];
        for (int r = 0; r < count; r++) {
            float *value = &scores[r * width + i];
            *value = exp_negative(*value - highest);
            block += *value;
        }
        keep[i] = exp_negative(top[i] - highest);
        sum[i] = fmaf(sum[i], keep[i], block);
        top[i] = highest;
    }
}

static void softmax_slope(float *scores, float *slopes, int width, int count,
                          const float *top, const float *inverse, const float *delta,
                          float scale) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++) {
            int at = r * width + i;
            scores[at] = exp_negative(scores[at] - top[i]) * inverse[i];
            slopes[at] = scale * scores[at] * (slopes[at] - delta[i]);
        }
}

static void dot_columns(const float *a, const float *b, int width, int count,
                        float *products) {
    for (int i = 0; i < width; i++) {
        products[i] = 0;
        for (int r = 0; r < count; r++)
            products[i] = fmaf(a[r * width + i], b[r * width + i], products[i]);
    }
}

static void collect(const float *scores, int width, int count, int32_t first,
                    const float *floor, float *list, int32_t *keys, int32_t *counts) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++)
            if (scores[r * width + i] > floor[i]) {
                list[counts[i] * width + i] = scores[r * width + i];
                keys[counts[i]++ * width + i] = first + r;
            }
}

static void collect_all(const float *scores, int width, int count, int32_t first,
                        const float *floor, float *list, int32_t *keys, int32_t *counts) {
    for (int i = 0; i < width; i++)
        for (int r = 0; r < count; r++) {
            const float score = scores[r * width + i];
            list[counts[i] * width + i] = score > floor[i] ? score : -INFINITY;
            keys[counts[i]++ * width + i] = first + r;
        }
}

/* How many of a lane's list are at least the float whose order is `least`. */
static int32_t count_from(const float *list, int width, int32_t rows, int32_t least) {
    int32_t found = 0;
    for (int32_t r = 0; r < rows; r++)
        found += list[r * width] > -INFINITY && float_order(list[r * width]) >= least;
    return found;
}

static void cut_lists(int width, int32_t rows, int32_t k, int32_t most, float *list,
                      int32_t *keys, int32_t *counts, float *floor) {
    /* k or more are at least `least`, and `above` are not. */
    int64_t least = float_order(-FLT_MAX), above = (int64_t)float_order(INFINITY) + 1;
    int32_t found = count_from(list, width, rows, (int32_t)least), kept = 0;
    const int enough = found >= k;
    while (found > most && above - least > 1) {
        const int64_t next = least + (above - least) / 2;
        const int32_t some = count_from(list, width, rows, (int32_t)next);
        least = some >= k ? next : least;
        found = some >= k ? some : found;
        above = some >= k ? above : next;
    }
    int32_t equals = found > most ? k - count_from(list, width, rows, (int32_t)above)
                                  : INT32_MAX;
    for (int32_t r = 0; r < rows; r++) {
        const float score = list[r * width];
        if (!(score > -INFINITY) || float_order(score) < least ||
            (float_order(score) == least && equals-- <= 0))
            continue;
        list[kept * width] = score;
        keys[kept++ * width] = keys[r * width];
    }
    for (int32_t r = kept; r < rows; r++)
        list[r * width] = -INFINITY;
    *counts = kept;
    if (enough && float_of_order((int32_t)least) > *floor)
        *floor = float_of_order((int32_t)least);
}

static void signs(const float *scores, int width, int bits, uint8_t *planes) {
    for (int plane = 0; plane * 8 < bits; plane++)
        for (int i = 0; i < width; i++) {
            int byte = 0;
            for (int b = plane * 8; b < bits && b < plane * 8 + 8; b++)
                byte |= (scores[b * width + i] > 0) << (b % 8);
            planes[plane * HASH_BLOCK + i] = (uint8_t)byte;
        }
}

static void nearest(const uint8_t *nibbles, int nibble_count, const uint8_t *tables,
                    int count, uint8_t *distance, uint8_t *centre) {
    for (int i = 0; i < HASH_BLOCK; i++) {
        int best = 256;
        for (int c = 0; c < count; c++) {
            int sum = 0;
            for (int n = 0; n < nibble_count; n++)
                sum += tables[(c * nibble_count + n) * 16 + nibbles[n * HASH_BLOCK + i]];
            if (sum < best) {
                best = sum;
                distance[i] = (uint8_t)sum;
                centre[i] = (uint8_t)c;
            }
        }
    }
}

static void closest(const float *panel, int width, int rank, const float *centres,
                    int stride, const float *bias, int count, float *best, int32_t *who) {
    for (int i = 0; i < width; i++) {
        best[i] = -INFINITY;
        who[i] = 0;
        for (int c = 0; c < count; c++) {
            float value = bias[c];
            for (int r = 0; r < rank; r++)
                value = fmaf(centres[c * stride + r], panel[r * width + i], value);
            if (value > best[i]) {
                best[i] = value;
                who[i] = c;
            }
        }
    }
}

static void tally(uint64_t word, int16_t by, int16_t counters[64]) {
    for (int b = 0; b < 64; b++)
        counters[b] = (int16_t)(counters[b] + (word >> b & 1 ? by : 0));
}

/* Blocks of rows are summed apart, so that errors grow with the blocks, not the rows. */
static void sum_rows(const float *x, int64_t stride, const int32_t *index,
                     const float *weights, int64_t count, int dim, float *sums) {
    for (int d = 0; d < dim; d++) {
        sums[d] = 0;
        for (int64_t first = 0; first < count; first += SUM_BLOCK) {
            float block = 0;
            for (int64_t i = first; i < count && i < first + SUM_BLOCK; i++)
                block = fmaf(weights ? weights[i] : 1,
                             x[(index ? index[i] : i) * stride + d], block);
            sums[d] += block;
        }
    }
}

static void scatter_rows(const float *x, int64_t stride, const int32_t *from,
                         const int32_t *to, const float *weights, int64_t count, int dim,
                         float *out, int64_t out_stride) {
    for (int64_t i = 0; i < count; i++)
        for (int d = 0; d < dim; d++) {
            float *place = &out[to[i] * out_stride + d];
            *place = fmaf(weights[i], x[from[i] * stride + d], *place);
        }
}

static void dots_at(const float *x, int64_t stride, const int32_t *index, int64_t rows,
                    int dim, const float *a, float *out) {
    for (int64_t r = 0; r < rows; r++) {
        out[r] = 0;
        for (int d = 0; d < dim; d++)
            out[r] = fmaf(x[index[r] * stride + d], a[d], out[r]);
    }
}

static void add_and_raise(const float *more, int width, int count, float *scores,
                          float *best) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++) {
            const int at = r * width + i;
            scores[at] += more[i];
            best[at] = scores[at] > best[at] ? scores[at] : best[at];
        }
}

static void largest_above(const float *scores, int width, int count, const float *below,
                          const float *more, float *out) {
    for (int i = 0; i < width; i++) {
        float best = -INFINITY;
        for (int r = 0; r < count; r++) {
            const float above = scores[r * width + i] - below[r];
            best = above > best ? above : best;
        }
        best += more[i];
        out[i] = best == best ? best : -INFINITY;
    }
}

static void largest(const float *x, int32_t count, int32_t k, int32_t *places) {
    for (int32_t i = 0, taken = 0; i < count && taken < k; i++) {
        int32_t better = 0;
        for (int32_t j = 0; j < count && better < k; j++)
            better += x[j] > x[i] || (x[j] == x[i] && j < i);
        if (better < k)
            places[taken++] = i;
    }
}

static void two_dots(const float *x, int64_t stride, int64_t rows, int dim,
                     const float *a, const float *b, float *with_a, float *with_b) {
    for (int64_t r = 0; r < rows; r++) {
        with_a[r] = with_b[r] = 0;
        for (int d = 0; d < dim; d++) {
            with_a[r] = fmaf(x[r * stride + d], a[d], with_a[r]);
            with_b[r] = fmaf(x[r * stride + d], b[d], with_b[r]);
        }
    }
}

#include "kernels/body_plain.h"

const kernel_table sh_scalar_table = {.isa = "scalar",
                                      .set = ISA_scalar,
                                      .lanes = 1,
                                      .panel = 16,
                                      SHOAL_KERNELS(KERNEL_ROW)};
