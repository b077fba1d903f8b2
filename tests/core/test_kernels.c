/* Every kernel of every table that runs here against the scalar one, over awkward sizes.
   A kernel that joins src/kernels/list.h needs a check_NAME, here or, if it is between
   the products of a model, in kernels_of_models.c, or this does not build. */
#include <math.h>
#include <string.h>

#include "cases.h"
#include "kernel_checks.h"
#include "support.h"

static const int COUNTS[] = {0, 1, 2, 3, 5, 7, 8, 9, 23, 24, 25, 63, 64};
static const int LARGE_DIMS[] = {96, 97, 128, 129, 200, 260};

/* ---- The sizes -------------------------------------------------------------------- */

/* 1 .. 70, then the larger ones. */
enum { ALL_DIMS = 70 + sizeof LARGE_DIMS / sizeof *LARGE_DIMS };

static int dim_at(int i) {
    return i < 70 ? i + 1 : LARGE_DIMS[i - 70];
}

/* One comparison; the salt says what else is given. */
typedef void comparison(const kernel_table *table, int width, int count, int dim,
                        int salt);

/* Every width of the table, every count, the first `dims` dims, salts 0 .. salts - 1. */
static void walk(const kernel_table *table, int dims, int salts, comparison *compare) {
    for (int width = table->lanes; width <= table->panel; width += table->lanes)
        for (int c = 0; c < COUNT_OF(COUNTS); c++)
            for (int d = 0; d < dims; d++)
                for (int salt = 0; salt < salts; salt++)
                    compare(table, width, COUNTS[c], dim_at(d), salt);
}

/* ---- Panels ----------------------------------------------------------------------- */

static void pack_once(const kernel_table *table, int width, int most, int dim, int salt) {
    const int count = most < width ? most : width;
    const int rows = count + salt, stride = dim + salt % 3;
    float *x = random_rows(rows, stride, dim);
    if (rows > 0)
        x[0] = NAN; /* must not reach lanes that stand for no query */
    int32_t *index = salt % 2 ? random_index(count, rows) : NULL;
    float_pair panel = pair_create(dim * width);
    SCALAR->pack(x, stride, index, count, width, dim, 0.3f, panel.expected);
    table->pack(x, stride, index, count, width, dim, 0.3f, panel.actual);
    pair_compare(panel, 0, "pack", table->isa);
    guarded_finish("pack");
}

CHECK(pack, walk(table, ALL_DIMS, 4, pack_once))

static void unpack_once(const kernel_table *table, int width, int most, int dim,
                        int salt) {
    const int count = most < width ? most : width, onto = salt & 2;
    const int rows = count + salt % 3, stride = dim + salt % 5;
    float *panel = random_panel(dim, width);
    float *factor = salt & 4 ? random_rows(count, 1, 1) : NULL;
    float *shift = salt & 8 ? random_rows(dim, 1, 1) : NULL;
    int32_t *index = salt % 2 ? random_index(count, rows) : NULL;
    float_pair x = pair_create(rows > 0 ? (rows - 1) * stride + dim : 0);
    SCALAR->unpack(panel, count, width, dim, factor, shift, onto, x.expected, stride,
                   index);
    table->unpack(panel, count, width, dim, factor, shift, onto, x.actual, stride, index);
    pair_compare(x, 2 * EPSILON, "unpack", table->isa);
    guarded_finish("unpack");
}

CHECK(unpack, walk(table, ALL_DIMS, 16, unpack_once))

static void score_once(const kernel_table *table, int width, int count, int dim,
                       int salt) {
    const int stride = dim + count % 3 + salt;
    float *panel = random_panel(dim, width), *rows = random_rows(count, stride, dim);
    float_pair scores = pair_create(count * width);
    SCALAR->score(panel, width, dim, rows, stride, count, scores.expected);
    table->score(panel, width, dim, rows, stride, count, scores.actual);
    compare_bits(scores, "score", table);
    guarded_finish("score");
}

CHECK(score, walk(table, ALL_DIMS, 1, score_once))

static void mix_once(const kernel_table *table, int width, int count, int dim, int salt) {
    const int stride = dim + count % 3;
    float *weights = random_panel(count, width), *rows = random_rows(count, stride, dim);
    float *keep = salt ? random_panel(1, width) : NULL;
    float_pair out = pair_create(dim * width);
    SCALAR->mix(weights, width, rows, stride, count, dim, keep, out.expected);
    table->mix(weights, width, rows, stride, count, dim, keep, out.actual);
    compare_bits(out, "mix", table);
    guarded_finish("mix");
}

CHECK(mix, walk(table, ALL_DIMS, 2, mix_once))

static void score_at_once(const kernel_table *table, int width, int count, int dim,
                          int salt) {
    const int stride = dim + count % 3 + salt, all = count + 5;
    float *panel = random_panel(dim, width), *rows = random_rows(all, stride, dim);
    int32_t *index = random_index(count, all);
    float_pair scores = pair_create(count * width);
    SCALAR->score_at(panel, width, dim, rows, stride, index, count, scores.expected);
    table->score_at(panel, width, dim, rows, stride, index, count, scores.actual);
    compare_bits(scores, "score_at", table);
    guarded_finish("score_at");
}

CHECK(score_at, walk(table, ALL_DIMS, 1, score_at_once))

static void mix_at_once(const kernel_table *table, int width, int count, int dim,
                        int salt) {
    const int stride = dim + count % 3 + salt, all = count + 5;
    float *weights = random_panel(count, width), *rows = random_rows(all, stride, dim);
    int32_t *index = random_index(count, all);
    float_pair out = pair_create(dim * width);
    SCALAR->mix_at(weights, width, rows, stride, index, count, dim, out.expected);
    table->mix_at(weights, width, rows, stride, index, count, dim, out.actual);
    compare_bits(out, "mix_at", table);
    guarded_finish("mix_at");
}

CHECK(mix_at, walk(table, ALL_DIMS, 1, mix_at_once))

static void add_and_raise_once(const kernel_table *table, int width, int count, int dim,
                               int salt) {
    (void)dim;
    float *more = random_panel(1, width);
    float_pair scores = pair_create(count * width), best = pair_create(count * width);
    if (salt && count > 0)
        scores.expected[0] = scores.actual[0] = NAN; /* is never the best */
    SCALAR->add_and_raise(more, width, count, scores.expected, best.expected);
    table->add_and_raise(more, width, count, scores.actual, best.actual);
    pair_compare(scores, 0, "add_and_raise", table->isa);
    pair_compare(best, 0, "add_and_raise", table->isa);
    guarded_finish("add_and_raise");
}

CHECK(add_and_raise, walk(table, 1, 2, add_and_raise_once))

static void largest_above_once(const kernel_table *table, int width, int count, int dim,
                               int salt) {
    (void)dim;
    float *scores = random_panel(count, width), *more = random_panel(1, width);
    float *below = random_rows(1, count, count);
    float_pair out = pair_create(width);
    if (salt == 1)
        more[width / 2] = NAN;
    if (salt == 2 && count > 0)
        scores[width / 2] = NAN;
    SCALAR->largest_above(scores, width, count, below, more, out.expected);
    table->largest_above(scores, width, count, below, more, out.actual);
    compare_bits(out, "largest_above", table);
    guarded_finish("largest_above");
}

CHECK(largest_above, walk(table, 1, 3, largest_above_once))

static void add_across_once(const kernel_table *table, int width, int count, int dim,
                            int salt) {
    const int lanes = dim < width ? dim : width, stride = count + salt;
    float *x = random_rows(lanes, stride, count);
    float_pair scores = pair_create(count * width);
    SCALAR->add_across(x, stride, lanes, width, count, scores.expected);
    table->add_across(x, stride, lanes, width, count, scores.actual);
    compare_bits(scores, "add_across", table);
    guarded_finish("add_across");
}

CHECK(add_across, walk(table, 50, 2, add_across_once))

static void add_to_rows_once(const kernel_table *table, int width, int count, int dim,
                             int salt) {
    (void)dim;
    float *x = random_rows(count, salt, salt > 0);
    float_pair scores = pair_create(count * width);
    if (count > 0 && salt == 0)
        x = random_rows(1, 1, 1);
    SCALAR->add_to_rows(x, salt, width, count, scores.expected);
    table->add_to_rows(x, salt, width, count, scores.actual);
    compare_bits(scores, "add_to_rows", table);
    guarded_finish("add_to_rows");
}

CHECK(add_to_rows, walk(table, 1, 3, add_to_rows_once))

/* Any width that has room for the lanes is legal here, and any number of lanes. */
static void spread_once(const kernel_table *table, int panel, int count, int dim,
                        int salt) {
    const int lanes = salt ? panel : panel - 1, width = lanes + salt;
    const int stride = dim + lanes % 3, out_stride = dim + count % 4;
    float *weights = random_panel(count, width), *x = random_rows(lanes, stride, dim);
    float_pair out = pair_create(count > 0 ? (count - 1) * out_stride + dim : 0);
    SCALAR->spread(weights, width, lanes, x, stride, dim, count, out.expected,
                   out_stride);
    table->spread(weights, width, lanes, x, stride, dim, count, out.actual, out_stride);
    pair_compare(out, EPSILON * (float)(lanes + 8), "spread", table->isa);
    guarded_finish("spread");
}

CHECK(spread, walk(table, ALL_DIMS, 2, spread_once))

/* ---- Softmax ---------------------------------------------------------------------- */

/* Spread over 40, some far below; lanes get NaN and infinities by the salt. */
static void fill_scores(float *scores, int width, int count, int salt) {
    for (int i = 0; i < count * width; i++)
        scores[i] = draw_uniform() * 20 - (draw_below(20) == 0 ? 200.0f : 0);
    for (int i = 0; i < width && count > 0; i++) {
        float *score = &scores[draw_below(count) * width + i];
        if (salt == 1 && i % 3 == 0)
            *score = i % 2 ? NAN : -NAN;
        if (salt == 2 && i % 3 == 1)
            *score = INFINITY;
        if (salt == 2 && i % 3 == 2)
            *score = -INFINITY;
    }
}

/* e^0 is exactly 1: an error in `keep` would grow with every block of a long stream. */
static float exp_tolerance(float expected, float epsilons) {
    return expected == 1 ? 0 : epsilons * EPSILON * fmaxf(expected, 1e-3f);
}

static void compare_lane(float_pair all, int at, float tolerance, const char *what,
                         const kernel_table *table) {
    pair_compare((float_pair){all.expected + at, all.actual + at, 1}, tolerance, what,
                 table->isa);
}

static void compare_softmax(float_pair scores, float_pair top, float_pair sum,
                            float_pair keep, int width, int count,
                            const kernel_table *table) {
    for (int i = 0; i < width; i++) {
        if (isnan(sum.expected[i]) || isnan(sum.actual[i])) {
            if (!isnan(sum.actual[i]) || !isnan(sum.expected[i]))
                fail_msg("softmax_step of %s: a NaN in lane %d was lost", table->isa, i);
            continue;
        }
        compare_lane(top, i, 0, "softmax_step's top", table);
        compare_lane(keep, i, exp_tolerance(keep.expected[i], 16), "softmax_step's keep",
                     table);
        compare_lane(sum, i, 8 * EPSILON * fmaxf(1, sum.expected[i]),
                     "softmax_step's sum", table);
        for (int at = i; at < count * width; at += width)
            compare_lane(scores, at, exp_tolerance(scores.expected[at], 16),
                         "softmax_step's weight", table);
    }
}

static void softmax_once(const kernel_table *table, int width, int count, int dim,
                         int salt) {
    (void)dim;
    float_pair scores = pair_create(count * width), keep = pair_create(width);
    float_pair top = pair_create(width), sum = pair_create(width);
    fill_scores(scores.expected, width, count, salt % 3);
    for (int i = 0; i < width; i++) {
        int fresh = count > 0 && i % 2;
        top.expected[i] = fresh ? -INFINITY : draw_uniform() * 25;
        sum.expected[i] = fresh ? 0 : 1 + 10 * fabsf(draw_uniform());
    }
    pair_copy(scores);
    pair_copy(top);
    pair_copy(sum);
    SCALAR->softmax_step(scores.expected, width, count, top.expected, sum.expected,
                         keep.expected);
    table->softmax_step(scores.actual, width, count, top.actual, sum.actual, keep.actual);
    compare_softmax(scores, top, sum, keep, width, count, table);
    guarded_finish("softmax_step");
}

CHECK(softmax_step, walk(table, 1, 12, softmax_once))

static void slope_once(const kernel_table *table, int width, int count, int dim,
                       int salt) {
    (void)dim;
    float_pair scores = pair_create(count * width), slopes = pair_create(count * width);
    float *top = random_panel(1, width), *inverse = random_panel(1, width);
    float *delta = random_panel(1, width);
    for (int i = 0; i < count * width; i++)
        scores.expected[i] = top[i % width] - 30 * fabsf(draw_uniform());
    if (salt == 1)
        top[0] = inverse[width - 1] = delta[width / 2] = NAN;
    if (salt == 2 && count > 0)
        scores.expected[0] = -INFINITY;
    pair_copy(scores);
    SCALAR->softmax_slope(scores.expected, slopes.expected, width, count, top, inverse,
                          delta, 0.7f);
    table->softmax_slope(scores.actual, slopes.actual, width, count, top, inverse, delta,
                         0.7f);
    pair_compare(scores, 8 * EPSILON, "softmax_slope's p", table->isa);
    pair_compare(slopes, 16 * EPSILON, "softmax_slope's slope", table->isa);
    guarded_finish("softmax_slope");
}

CHECK(softmax_slope, walk(table, 1, 3, slope_once))

static void dot_once(const kernel_table *table, int width, int count, int dim, int salt) {
    (void)dim;
    float *a = random_panel(count + salt, width), *b = random_panel(count + salt, width);
    float_pair products = pair_create(width);
    SCALAR->dot_columns(a, b, width, count + salt, products.expected);
    table->dot_columns(a, b, width, count + salt, products.actual);
    pair_compare(products, EPSILON * (float)(count + salt + 8), "dot_columns",
                 table->isa);
    guarded_finish("dot_columns");
}

CHECK(dot_columns, walk(table, 1, 10, dot_once))

/* ---- Candidates and hashes -------------------------------------------------------- */

static void collect_once(const kernel_table *table, int width, int count, int dim,
                         int salt) {
    (void)dim;
    const int64_t capacity = count + 3;
    const size_t bytes = (size_t)(width * capacity) * sizeof(uint64_t);
    float *scores = random_panel(count, width), *lowest = random_panel(1, width);
    uint64_t *expected = guarded_output(bytes), *actual = guarded_output(bytes);
    int32_t *counts[2] = {guarded_output((size_t)width * 4),
                          guarded_output((size_t)width * 4)};
    fill_scores(scores, width, count, salt);
    for (int i = 0; i < width; i++) {
        lowest[i] = i % 4 == 0 ? -INFINITY : i % 4 == 3 ? INFINITY : 20 * draw_uniform();
        counts[0][i] = counts[1][i] = i % 4;
    }
    if (count > 1)
        lowest[width - 1] = scores[width - 1]; /* equal is not more */
    SCALAR->collect(scores, width, count, 1000, lowest, expected, capacity, counts[0]);
    table->collect(scores, width, count, 1000, lowest, actual, capacity, counts[1]);
    bytes_compare(expected, actual, bytes, "collect", table->isa);
    bytes_compare(counts[0], counts[1], (size_t)width * 4, "collect's counts",
                  table->isa);
    guarded_finish("collect");
}

CHECK(collect, walk(table, 1, 3, collect_once))

static void signs_once(const kernel_table *table, int width, int bits) {
    const float odd[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1e-45f};
    const size_t bytes = (size_t)((bits + 7) / 8 - 1) * HASH_BLOCK + (size_t)width;
    float *scores = random_panel(bits, width);
    uint8_t *expected = guarded_output(bytes), *actual = guarded_output(bytes);
    for (int i = 0; i < 6 && i < bits * width; i++)
        scores[draw_below(bits * width)] = odd[i];
    SCALAR->signs(scores, width, bits, expected);
    table->signs(scores, width, bits, actual);
    bytes_compare(expected, actual, bytes, "signs", table->isa);
    guarded_finish("signs");
}

void check_signs(const kernel_table *table) {
    for (int width = table->lanes; width <= table->panel; width += table->lanes)
        for (int bits = 1; bits <= 255; bits += bits < 70 ? 1 : 37)
            signs_once(table, width, bits);
}

/* few: four bits have so few values that ties are everywhere. The last of 256 bits is
   always 0, since a distance has one byte. */
static void nearest_once(const kernel_table *table, int bytes, int count, int few) {
    const int nibble_count = 2 * bytes, values = few ? 2 : 16;
    uint8_t *nibbles = guarded_input((size_t)(nibble_count * HASH_BLOCK));
    uint8_t *tables = guarded_input((size_t)(count * nibble_count * 16));
    uint8_t *expected = guarded_output(2 * HASH_BLOCK),
            *actual = guarded_output(HASH_BLOCK);
    uint8_t *centre = guarded_output(HASH_BLOCK);
    for (int n = 0; n < nibble_count; n++) {
        int largest = n == 63 && values == 16 ? 8 : values;
        for (int i = 0; i < HASH_BLOCK; i++)
            nibbles[n * HASH_BLOCK + i] = (uint8_t)draw_below(largest);
        for (int c = 0; c < count; c++) {
            unsigned own = (unsigned)draw_below(largest);
            for (unsigned x = 0; x < 16; x++)
                tables[(c * nibble_count + n) * 16 + (int)x] =
                    (uint8_t)__builtin_popcount(x ^ own);
        }
    }
    SCALAR->nearest(nibbles, nibble_count, tables, count, expected,
                    expected + HASH_BLOCK);
    table->nearest(nibbles, nibble_count, tables, count, actual, centre);
    bytes_compare(expected, actual, HASH_BLOCK, "nearest's distance", table->isa);
    bytes_compare(expected + HASH_BLOCK, centre, HASH_BLOCK, "nearest's centre",
                  table->isa);
    guarded_finish("nearest");
}

void check_nearest(const kernel_table *table) {
    const int counts[] = {1, 2, 3, 25, 100, 255, NEAREST_CENTRES};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int bytes = 1; bytes <= 32; bytes += bytes < 9 ? 1 : 23 - bytes % 2)
            for (int few = 0; few < 2; few++)
                nearest_once(table, bytes, counts[i], few);
}

/* What the list says of `closest`, for one lane. */
static void closest_lane(const float *panel, int width, int rank, const float *centres,
                         int stride, const float *bias, int count, float *best,
                         int32_t *who) {
    *best = -INFINITY;
    *who = 0;
    for (int c = 0; c < count; c++) {
        float value = bias[c];
        for (int r = 0; r < rank; r++)
            value = fmaf(centres[c * stride + r], panel[r * width], value);
        if (value > *best) { /* never for NaN, nor for an equal that comes later */
            *best = value;
            *who = c;
        }
    }
}

/* salt 0: random; 1: so few values that ties are everywhere; 2: NaN and infinities in
   lanes, centres and biases; 3: nothing but NaN. */
static void fill_closest(float *panel, int lanes, float *centres, int stride, int rank,
                         float *bias, int count, int salt) {
    for (int i = 0; i < lanes && salt == 1; i++)
        panel[i] = (float)(draw_below(3) - 1);
    for (int c = 0; c < count; c++) {
        for (int r = 0; r < rank && salt == 1; r++)
            centres[c * stride + r] = (float)(draw_below(3) - 1);
        bias[c] = salt == 1 ? (float)draw_below(2) : salt == 3 ? NAN : bias[c];
    }
    if (salt != 2)
        return;
    const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        panel[draw_below(lanes)] = odd[i];
        bias[draw_below(count)] = odd[draw_below(3)];
        centres[draw_below(count) * stride + draw_below(rank)] = odd[draw_below(2) * i];
    }
}

static void closest_once(const kernel_table *table, int width, int rank, int count,
                         int salt) {
    const int stride = rank + (count + salt) % 3;
    const size_t bytes = sizeof(int32_t) * (size_t)width;
    float *panel = random_panel(rank, width), *bias = random_rows(count, 1, 1);
    float *centres = random_rows(count, stride, rank);
    int32_t *expected = guarded_output(bytes), *actual = guarded_output(bytes);
    float_pair best = pair_create(width);
    fill_closest(panel, rank * width, centres, stride, rank, bias, count, salt);
    for (int i = 0; i < width; i++)
        closest_lane(panel + i, width, rank, centres, stride, bias, count,
                     best.expected + i, expected + i);
    table->closest(panel, width, rank, centres, stride, bias, count, best.actual, actual);
    bytes_compare(best.expected, best.actual, bytes, "closest's best", table->isa);
    bytes_compare(expected, actual, bytes, "closest's who", table->isa);
    guarded_finish("closest");
}

void check_closest(const kernel_table *table) {
    const int counts[] = {1, 2, 3, 4, 5, 7, 100};
    for (int width = table->lanes; width <= table->panel; width += table->lanes)
        for (int64_t i = 0; i < COUNT_OF(counts); i++)
            for (int rank = 1; rank <= 33; rank++)
                for (int salt = 0; salt < 4; salt++)
                    closest_once(table, width, rank, counts[i], salt);
}

void check_tally(const kernel_table *table) {
    for (int again = 0; again < 400; again++) {
        const uint64_t word = draw();
        uint8_t *expected = guarded_output(64), *actual = guarded_output(64);
        for (int b = 0; b < 64; b++)
            expected[b] = actual[b] = b % 3 ? (uint8_t)draw() : 255;
        SCALAR->tally(word, expected);
        table->tally(word, actual);
        bytes_compare(expected, actual, 64, "tally", table->isa);
        guarded_finish("tally");
    }
}

static void sum_once(const kernel_table *table, int count, int dim, int salt) {
    const int stride = dim + (dim + salt) % 3, rows = count + 2 * salt;
    float *x = random_rows(rows, stride, dim);
    int32_t *index = salt ? random_index(count, rows) : NULL;
    float *weights = salt ? random_rows(1, count, count) : NULL;
    float_pair sums = pair_create(dim);
    SCALAR->sum_rows(x, stride, index, weights, count, dim, sums.expected);
    table->sum_rows(x, stride, index, weights, count, dim, sums.actual);
    compare_bits(sums, "sum_rows", table);
    guarded_finish("sum_rows");
}

void check_sum_rows(const kernel_table *table) {
    const int counts[] = {0, 1, 2, 11, 12, 13, 63, 64, 65, 128, 200};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int d = 0; d < ALL_DIMS; d++)
            for (int salt = 0; salt < 2; salt++)
                sum_once(table, counts[i], dim_at(d), salt);
}

static void sum_wide_once(const kernel_table *table, int count, int dim) {
    const int stride = dim + dim % 3;
    const size_t bytes = (size_t)dim * sizeof(double);
    float *x = random_rows(count + 3, stride, dim);
    int32_t *index = random_index(count, count + 3);
    double *expected = guarded_output(bytes), *actual = guarded_output(bytes);
    for (int d = 0; d < dim; d++) {
        expected[d] = 0;
        for (int i = 0; i < count; i++)
            expected[d] += (double)x[index[i] * stride + d];
    }
    table->sum_rows_wide(x, stride, index, count, dim, actual);
    bytes_compare(expected, actual, bytes, "sum_rows_wide", table->isa);
    guarded_finish("sum_rows_wide");
}

void check_sum_rows_wide(const kernel_table *table) {
    const int counts[] = {0, 1, 2, 13, 64, 65};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int d = 0; d < ALL_DIMS; d++)
            sum_wide_once(table, counts[i], dim_at(d));
}

/* Few places, so that rows meet. */
static void scatter_once(const kernel_table *table, int count, int dim) {
    enum { PLACES = 5 };
    const int stride = dim + dim % 3;
    float *x = random_rows(count, stride, dim);
    float *weights = random_rows(1, count, count);
    int32_t *index = random_index(count, count), *from = random_index(count, count);
    for (int i = 0; i < count; i++)
        index[i] %= PLACES;
    float_pair out = pair_create(PLACES * dim);
    SCALAR->scatter_rows(x, stride, from, index, weights, count, dim, out.expected, dim);
    table->scatter_rows(x, stride, from, index, weights, count, dim, out.actual, dim);
    compare_bits(out, "scatter_rows", table);
    guarded_finish("scatter_rows");
}

void check_scatter_rows(const kernel_table *table) {
    const int counts[] = {0, 1, 2, 17, 80};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int d = 0; d < ALL_DIMS; d++)
            scatter_once(table, counts[i], dim_at(d));
}

static void two_dots_once(const kernel_table *table, int rows, int dim) {
    const int stride = dim + dim % 3;
    float *x = random_rows(rows, stride, dim);
    float *a = random_rows(1, dim, dim), *b = random_rows(1, dim, dim);
    float_pair with_a = pair_create(rows), with_b = pair_create(rows);
    SCALAR->two_dots(x, stride, rows, dim, a, b, with_a.expected, with_b.expected);
    table->two_dots(x, stride, rows, dim, a, b, with_a.actual, with_b.actual);
    const float tolerance = 8 * EPSILON * (float)(dim + 1);
    pair_compare(with_a, tolerance, "two_dots", table->isa);
    pair_compare(with_b, tolerance, "two_dots", table->isa);
    guarded_finish("two_dots");
}

void check_two_dots(const kernel_table *table) {
    for (int rows = 0; rows <= 35; rows++)
        for (int d = 0; d < ALL_DIMS; d++)
            two_dots_once(table, rows, dim_at(d));
}

static void dots_at_once(const kernel_table *table, int rows, int dim) {
    const int stride = dim + dim % 3;
    float *x = random_rows(rows + 3, stride, dim), *a = random_rows(1, dim, dim);
    int32_t *index = random_index(rows, rows + 3);
    float_pair out = pair_create(rows);
    SCALAR->dots_at(x, stride, index, rows, dim, a, out.expected);
    table->dots_at(x, stride, index, rows, dim, a, out.actual);
    pair_compare(out, 8 * EPSILON * (float)(dim + 1), "dots_at", table->isa);
    guarded_finish("dots_at");
}

void check_dots_at(const kernel_table *table) {
    for (int rows = 0; rows <= 35; rows++)
        for (int d = 0; d < ALL_DIMS; d++)
            dots_at_once(table, rows, dim_at(d));
}

/* Numbers of all sizes; few different ones, so that many are equal; and infinities. */
static void largest_once(const kernel_table *table, int count, int k, int salt) {
    float *x = random_rows(1, count, count);
    int32_t expected[1100], actual[1100];
    for (int i = 0; i < count; i++) {
        x[i] = salt == 1 ? floorf(2 * x[i]) : x[i] * powf(10, 8 * x[(i * 7) % count]);
        if (salt == 2 && i % 3 == 0)
            x[i] = i % 2 ? INFINITY : -INFINITY;
    }
    SCALAR->largest(x, count, k, expected);
    table->largest(x, count, k, actual);
    bytes_compare(expected, actual, sizeof *actual * (size_t)k, "largest", table->isa);
    guarded_finish("largest");
}

void check_largest(const kernel_table *table) {
    const int counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 100, 257, 1100};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int salt = 0; salt < 3; salt++)
            for (int part = 0; part <= 4; part++)
                largest_once(table, counts[i], counts[i] * part / 4, salt);
}

/* ---- The list --------------------------------------------------------------------- */

static void on_every_table(check_function *check) {
    for (int i = 1; sh_kernel_table_at(i); i++) {
        if (!sh_kernel_table_runs(sh_kernel_table_at(i))) {
            print_message("%s does not run here\n", sh_kernel_table_at(i)->isa);
            continue;
        }
        guarded_forget();
        check(sh_kernel_table_at(i));
    }
}

#define TEST_OF(name, arguments)                                                         \
    static void name(void **state) {                                                     \
        (void)state;                                                                     \
        on_every_table(check_##name);                                                    \
    }
SHOAL_KERNELS(TEST_OF)

static void scalar_closest_is_its_definition(void **state) {
    check_closest(SCALAR);
}

int main(void) {
#define ROW(name, arguments) cmocka_unit_test(name),
    const struct CMUnitTest tests[] = {SHOAL_KERNELS(ROW) cmocka_unit_test(
                                           scalar_closest_is_its_definition),
                                       cmocka_unit_test(scalar_halves_are_the_nearest)};
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
