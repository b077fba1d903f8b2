/* Every kernel of every table that runs here against the scalar one, over awkward sizes.
   A kernel that joins src/kernels/list.h needs a check_NAME below, or this does not
   build. */
#include <math.h>
#include <string.h>

#include "cases.h"
#include "guarded.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "support.h"

static const int COUNTS[] = {0, 1, 2, 3, 5, 7, 8, 9, 23, 24, 25, 63, 64};
static const int LARGE_DIMS[] = {96, 97, 128, 129, 200, 260};
static const float EPSILON = 1.1920929e-7f;

typedef void check_function(const kernel_table *table);
#define DECLARE_CHECK(name, arguments) static check_function check_##name;
SHOAL_KERNELS(DECLARE_CHECK)

#define SCALAR sh_kernel_table_at(0)

#define CHECK(name, walks)                                                               \
    static void check_##name(const kernel_table *table) {                                \
        walks;                                                                           \
    }

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

/* For kernels whose sums have one order on every instruction set. */
static void compare_bits(float_pair pair, const char *what, const kernel_table *table) {
    bytes_compare(pair.expected, pair.actual, pair.count * sizeof(float), what,
                  table->isa);
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

static void check_signs(const kernel_table *table) {
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

static void check_nearest(const kernel_table *table) {
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

static void check_closest(const kernel_table *table) {
    const int counts[] = {1, 2, 3, 4, 5, 7, 100};
    for (int width = table->lanes; width <= table->panel; width += table->lanes)
        for (int64_t i = 0; i < COUNT_OF(counts); i++)
            for (int rank = 1; rank <= 33; rank++)
                for (int salt = 0; salt < 4; salt++)
                    closest_once(table, width, rank, counts[i], salt);
}

static void check_tally(const kernel_table *table) {
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

static void check_sum_rows(const kernel_table *table) {
    const int counts[] = {0, 1, 2, 11, 12, 13, 63, 64, 65, 128, 200};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int d = 0; d < ALL_DIMS; d++)
            for (int salt = 0; salt < 2; salt++)
                sum_once(table, counts[i], dim_at(d), salt);
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

static void check_scatter_rows(const kernel_table *table) {
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

static void check_two_dots(const kernel_table *table) {
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

static void check_dots_at(const kernel_table *table) {
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

static void check_largest(const kernel_table *table) {
    const int counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 100, 257, 1100};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int salt = 0; salt < 3; salt++)
            for (int part = 0; part <= 4; part++)
                largest_once(table, counts[i], counts[i] * part / 4, salt);
}

/* ---- Between the products of a model ---------------------------------------------- */

static const int LENGTHS[] = {0,  1,  2,  3,  7,  8,   9,   15,  16,  17,  31,
                              32, 33, 64, 65, 97, 255, 256, 257, 511, 513, 700};

/* Every length, salts 0 .. salts - 1. */
static void walk_lengths(const kernel_table *table, int salts,
                         void (*compare)(const kernel_table *table, int count,
                                         int salt)) {
    for (int64_t i = 0; i < COUNT_OF(LENGTHS); i++)
        for (int salt = 0; salt < salts; salt++)
            compare(table, LENGTHS[i], salt);
}

/* [1][count], wide enough for the tails of an activation, with odd ones by the salt. */
static float *wide_row(int count, int salt) {
    const float odd[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, 1e30f, -1e30f};
    float *x = random_rows(1, count, count);
    for (int i = 0; i < count; i++)
        x[i] *= 16;
    for (int i = 0; i < 8 && count > 0 && salt; i++)
        x[draw_below(count)] = odd[i];
    return x;
}

static void add_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->add(count, x, y.expected);
    table->add(count, x, y.actual);
    compare_bits(y, "add", table);
    guarded_finish("add");
}

CHECK(add, walk_lengths(table, 1, add_once))

static void multiply_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->multiply(count, x, y.expected);
    table->multiply(count, x, y.actual);
    compare_bits(y, "multiply", table);
    guarded_finish("multiply");
}

CHECK(multiply, walk_lengths(table, 1, multiply_once))

static void scale_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float_pair x = pair_create(count);
    SCALAR->scale_by(count, 0.3f, x.expected);
    table->scale_by(count, 0.3f, x.actual);
    compare_bits(x, "scale_by", table);
    guarded_finish("scale_by");
}

CHECK(scale_by, walk_lengths(table, 1, scale_once))

static void lerp_once(const kernel_table *table, int count, int salt) {
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->lerp(count, salt ? 1 : 0.01f, x, y.expected);
    table->lerp(count, salt ? 1 : 0.01f, x, y.actual);
    compare_bits(y, "lerp", table);
    guarded_finish("lerp");
}

CHECK(lerp, walk_lengths(table, 2, lerp_once))

static void relu_once(const kernel_table *table, int count, int salt) {
    float *x = wide_row(count, salt);
    float_pair out = pair_create(count);
    SCALAR->relu(count, x, out.expected);
    table->relu(count, x, out.actual);
    pair_compare(out, 0, "relu", table->isa);
    guarded_finish("relu");
}

CHECK(relu, walk_lengths(table, 2, relu_once))

/* Fused multiply-adds are rounded otherwise: some units of what is largest in a sum. */
static void gelu_compare(float_pair values, const float *x, const char *what,
                         const kernel_table *table) {
    for (size_t i = 0; i < values.count; i++)
        pair_compare((float_pair){values.expected + i, values.actual + i, 1},
                     4 * EPSILON * fmaxf(1, fabsf(x[i])), what, table->isa);
}

static void gelu_once(const kernel_table *table, int count, int salt) {
    float *x = wide_row(count, salt);
    float_pair out = pair_create(count);
    SCALAR->gelu(count, x, out.expected);
    table->gelu(count, x, out.actual);
    gelu_compare(out, x, "gelu", table);
    guarded_finish("gelu");
}

CHECK(gelu, walk_lengths(table, 2, gelu_once))

static void relu_slope_once(const kernel_table *table, int count, int salt) {
    float *x = wide_row(count, salt % 2);
    float_pair dx = pair_create(count), out = pair_create(count);
    SCALAR->relu_slope(count, x, dx.expected, dx.expected,
                       salt > 1 ? out.expected : NULL);
    table->relu_slope(count, x, dx.actual, dx.actual, salt > 1 ? out.actual : NULL);
    pair_compare(dx, 0, "relu_slope", table->isa);
    pair_compare(out, 0, "relu_slope's out", table->isa);
    guarded_finish("relu_slope");
}

CHECK(relu_slope, walk_lengths(table, 4, relu_slope_once))

static void gelu_slope_once(const kernel_table *table, int count, int salt) {
    float *x = wide_row(count, salt % 2);
    float_pair dx = pair_create(count), out = pair_create(count);
    SCALAR->gelu_slope(count, x, dx.expected, dx.expected,
                       salt > 1 ? out.expected : NULL);
    table->gelu_slope(count, x, dx.actual, dx.actual, salt > 1 ? out.actual : NULL);
    gelu_compare(dx, x, "gelu_slope", table);
    gelu_compare(out, x, "gelu_slope's out", table);
    guarded_finish("gelu_slope");
}

CHECK(gelu_slope, walk_lengths(table, 4, gelu_slope_once))

static void norm_once(const kernel_table *table, int size, int salt) {
    const int count = size ? 1 + salt * 4 : 0;
    float *x = random_rows(count, size, size), *scale = random_rows(1, size, size);
    float *shift = random_rows(1, size, size);
    float_pair y = pair_create(count * size), statistics = pair_create(2 * count);
    SCALAR->norm_rows(count, size, x, scale, shift, 1e-5f, y.expected,
                      salt ? statistics.expected : NULL);
    table->norm_rows(count, size, x, scale, shift, 1e-5f, y.actual,
                     salt ? statistics.actual : NULL);
    compare_bits(y, "norm_rows", table);
    compare_bits(statistics, "norm_rows' statistics", table);
    guarded_finish("norm_rows");
}

CHECK(norm_rows, walk_lengths(table, 2, norm_once))

static void norm_slope_once(const kernel_table *table, int size, int salt) {
    const int count = size ? 1 + salt * 3 : 0;
    float *x = random_rows(count, size, size), *scale = random_rows(1, size, size);
    float *statistics = random_rows(count, 2, 2), *dy = random_rows(count, size, size);
    float *base = salt ? random_rows(count, size, size) : NULL;
    float_pair dx = pair_create(count * size);
    float_pair dscale = pair_create(size), dshift = pair_create(size);
    SCALAR->norm_rows_slope(count, size, x, statistics, scale, dy, base, dx.expected,
                            dscale.expected, dshift.expected);
    table->norm_rows_slope(count, size, x, statistics, scale, dy, base, dx.actual,
                           dscale.actual, dshift.actual);
    compare_bits(dx, "norm_rows_slope", table);
    compare_bits(dscale, "norm_rows_slope's dscale", table);
    compare_bits(dshift, "norm_rows_slope's dshift", table);
    guarded_finish("norm_rows_slope");
}

CHECK(norm_rows_slope, walk_lengths(table, 2, norm_slope_once))

static void column_once(const kernel_table *table, int width, int salt) {
    const int counts[] = {0, 1, 5, 256, 300};
    const int stride = width + salt % 2;
    float *x = random_rows(counts[salt], stride, width);
    float_pair sums = pair_create(width);
    SCALAR->column_sums(counts[salt], width, x, stride, sums.expected);
    table->column_sums(counts[salt], width, x, stride, sums.actual);
    compare_bits(sums, "column_sums", table);
    guarded_finish("column_sums");
}

CHECK(column_sums, walk_lengths(table, 5, column_once))

/* salt 1: the gradient takes the place of the logits; 2: it is not wanted; 3: a NaN. */
static void entropy_once(const kernel_table *table, int classes, int salt) {
    if (classes == 0)
        return;
    const int target = draw_below(classes);
    float_pair x = pair_create(classes), gradient = pair_create(classes);
    float_pair loss = pair_create(1);
    int64_t best[2];
    for (int i = 0; i < classes; i++)
        x.expected[i] *= 30;
    if (salt == 3)
        x.expected[draw_below(classes)] = NAN;
    pair_copy(x);
    float_pair to = salt == 1 ? x : salt == 2 ? (float_pair){0} : gradient;
    SCALAR->cross_entropy(classes, x.expected, target, 0.1f, to.expected, loss.expected,
                          &best[0]);
    table->cross_entropy(classes, x.actual, target, 0.1f, to.actual, loss.actual,
                         &best[1]);
    assert_int_equal(best[0], best[1]);
    pair_compare(loss, 32 * EPSILON, "cross_entropy", table->isa);
    pair_compare(x, EPSILON, "cross_entropy's logits", table->isa);
    pair_compare(gradient, EPSILON, "cross_entropy's gradient", table->isa);
    guarded_finish("cross_entropy");
}

CHECK(cross_entropy, walk_lengths(table, 4, entropy_once))

static uint16_t *random_halves(int count) {
    uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
    for (int i = 0; i < count; i++) /* no infinity, no NaN */
        halves[i] = (uint16_t)(draw() & 0xbbff);
    return halves;
}

static void dots_once(const kernel_table *table, int inputs, int salt) {
    const int rows = salt / 2, stride = inputs + rows % 3, half = salt % 2;
    float *x = random_rows(rows, stride, inputs);
    const void *w = half ? (void *)random_halves(inputs)
                         : (void *)random_rows(1, inputs, inputs);
    float_pair out = pair_create(rows);
    SCALAR->dots(inputs, rows, x, stride, w, half, out.expected);
    table->dots(inputs, rows, x, stride, w, half, out.actual);
    compare_bits(out, "dots", table);
    guarded_finish("dots");
}

CHECK(dots, walk_lengths(table, 18, dots_once))

/* Every half there is, NaN aside to the bit, in an order that leaves ordinary ones for
   the end, which is not a whole vector. */
static void check_widen(const kernel_table *table) {
    for (int first = 0; first < 11; first++) {
        const int count = 65536 - first;
        uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
        for (int i = 0; i < count; i++)
            halves[i] = (uint16_t)(first + i * 0x6a5);
        float_pair out = pair_create(count);
        SCALAR->widen(count, halves, out.expected);
        table->widen(count, halves, out.actual);
        pair_compare(out, 0, "widen", table->isa);
        guarded_finish("widen");
    }
}

/* Every half comes back, and what lies between two goes to the nearer. */
static void check_narrow(const kernel_table *table) {
    enum { COUNT = 65536 + 37 };
    float *x = guarded_input(COUNT * sizeof *x);
    uint16_t *expected = guarded_input(COUNT * sizeof *expected);
    uint16_t *actual = guarded_input(COUNT * sizeof *actual);
    for (int shift = -1; shift <= 1; shift++) {
        for (int i = 0; i < COUNT; i++) {
            const uint16_t half = (uint16_t)(i * 0x6a5);
            const float next = half_to_float((uint16_t)(half ^ 1));
            const float here = half_to_float(half);
            x[i] = isnan(here) || isnan(next) ? 1e30f
                   : shift < 0                ? here
                                              : here + 0.5f * (next - here);
            x[i] = shift > 0 ? nextafterf(x[i], i % 2 ? INFINITY : -INFINITY) : x[i];
            assert_true(shift >= 0 || x[i] == here || isinf(here) || x[i] == 1e30f);
        }
        SCALAR->narrow(COUNT, x, expected);
        table->narrow(COUNT, x, actual);
        bytes_compare(expected, actual, COUNT * sizeof *actual, "narrow", table->isa);
        for (int i = 0; i < COUNT && shift < 0; i++)
            assert_true(half_to_float(actual[i]) == x[i] || fabsf(x[i]) > 65504);
    }
    guarded_finish("narrow");
}

static void packed_once(const kernel_table *table, int inputs, int salt) {
    static const int widths[] = {1, 2, 4, 8, 12};
    const int width = widths[salt % 5], form = salt / 5 % 3, rows = width - salt / 15;
    const int stride = PACKED_OUTPUTS + salt % 3;
    if (form == PACKED_BYTES)
        inputs = (inputs + PACKED_GROUP - 1) / PACKED_GROUP * PACKED_GROUP;
    const int count = inputs * PACKED_OUTPUTS;
    const int groups = inputs / PACKED_GROUP;
    float *x = random_rows(inputs, width, width);
    void *w = form == PACKED_FLOATS ? (void *)random_rows(1, count, count)
              : form == PACKED_HALVES
                  ? (void *)random_halves(count)
                  : (void *)random_halves(groups * (int)sizeof(packed_group) / 2);
    float_pair y = pair_create(rows > 0 ? (rows - 1) * stride + PACKED_OUTPUTS : 0);
    SCALAR->packed(inputs, w, form, x, width, rows, y.expected, stride);
    table->packed(inputs, w, form, x, width, rows, y.actual, stride);
    compare_bits(y, "packed", table);
    guarded_finish("packed");
}

CHECK(packed, walk_lengths(table, 45, packed_once))

static uint32_t *random_brains(int64_t count) {
    uint32_t *pairs = guarded_input((size_t)count * sizeof *pairs);
    for (int64_t i = 0; i < count; i++) /* about 1 */
        pairs[i] = ((uint32_t)draw() & 0x80ff80ffu) | 0x3f003f00u;
    return pairs;
}

static void brains_once(const kernel_table *table, int pairs, int salt) {
    const int rows = salt, stride = PACKED_OUTPUTS + salt % 3;
    uint32_t *w = random_brains((int64_t)pairs * PACKED_OUTPUTS);
    uint32_t *x = random_brains((int64_t)pairs * PACKED_ROWS);
    float_pair y = pair_create(rows > 0 ? (rows - 1) * stride + PACKED_OUTPUTS : 0);
    SCALAR->brains(pairs, w, x, rows, y.expected, stride);
    table->brains(pairs, w, x, rows, y.actual, stride);
    pair_compare(y, 1e-4f, "brains", table->isa);
    guarded_finish("brains");
}

CHECK(brains, walk_lengths(table, PACKED_ROWS + 1, brains_once))

static void brain_panel_once(const kernel_table *table, int pairs, int salt) {
    const int rows = salt, inputs = 2 * pairs, stride = inputs + salt % 3;
    float *x = random_rows(rows, stride, inputs);
    float_pair panel = pair_create(pairs * PACKED_ROWS);
    SCALAR->brain_panel(inputs, rows, x, stride, (uint32_t *)(void *)panel.expected);
    table->brain_panel(inputs, rows, x, stride, (uint32_t *)(void *)panel.actual);
    compare_bits(panel, "brain_panel", table);
    for (int p = 0; p < pairs; p++)
        for (int r = 0; r < rows; r++) {
            uint32_t pair;
            memcpy(&pair, panel.actual + p * PACKED_ROWS + r, sizeof pair);
            const float one = x[r * stride + 2 * p], other = x[r * stride + 2 * p + 1];
            assert_true(fabsf(bits_to_float(pair << 16) - one) <= fabsf(one) / 256);
            assert_true(fabsf(bits_to_float(pair & 0xffff0000u) - other) <=
                        fabsf(other) / 256);
        }
    guarded_finish("brain_panel");
}

CHECK(brain_panel, walk_lengths(table, PACKED_ROWS + 1, brain_panel_once))

static void peak_once(const kernel_table *table, int count, int salt) {
    float_pair largest = pair_create(1);
    int64_t who[2];
    double total[2];
    if (count == 0)
        return;
    float *x = random_rows(1, count, count);
    for (int i = 0; i < count; i++)
        x[i] = salt == 1 && i % 3 ? -INFINITY : 30 * x[i];
    if (salt == 2) /* the first of equals */
        x[draw_below(count)] = x[draw_below(count)] = 1000;
    SCALAR->peak(count, x, largest.expected, &who[0], &total[0]);
    table->peak(count, x, largest.actual, &who[1], &total[1]);
    compare_bits(largest, "peak", table);
    assert_int_equal(who[0], who[1]);
    assert_true(x[who[0]] == largest.expected[0]);
    assert_true(fabs(total[0] - total[1]) <= 1e-6 * total[0]);
    guarded_finish("peak");
}

CHECK(peak, walk_lengths(table, 3, peak_once))

static void soften_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float_pair x = pair_create(count), total = pair_create(1);
    SCALAR->soften(count, x.expected, total.expected);
    table->soften(count, x.actual, total.actual);
    pair_compare(x, 8 * EPSILON, "soften", table->isa);
    pair_compare(total, EPSILON * (float)(32 + count), "soften's sum", table->isa);
    guarded_finish("soften");
}

CHECK(soften, walk_lengths(table, 1, soften_once))

/* Floats around every half: itself, halfway to the next, and a little more and less than
   that; NaN and what is too large. */
static float near_a_half(int bfloats, int i) {
    union {
        uint32_t bits;
        float value;
    } pun;
    pun.value = half_to_float((uint16_t)(i / 4));
    if (bfloats)
        pun.bits = (uint32_t)(i / 4) << 16;
    const uint32_t half_way = bfloats ? 0x8000u : 0x1000u;
    const uint32_t more[] = {0, half_way, half_way + 1, half_way - 1};
    pun.bits += more[i % 4];
    return pun.value;
}

static int is_nan_half(uint16_t half, int bfloats) {
    return (half & 0x7fff) > (bfloats ? 0x7f80 : 0x7c00);
}

static void check_round_of(const kernel_table *table, int bfloats) {
    for (int first = 0; first < 11; first++) {
        const int count = 4 * 65536 - first;
        float *x = guarded_input((size_t)count * sizeof *x);
        uint16_t *expected = guarded_output((size_t)count * sizeof *expected);
        uint16_t *actual = guarded_output((size_t)count * sizeof *actual);
        for (int i = 0; i < count; i++)
            x[i] = near_a_half(bfloats, (first + i * 0x6a5) % (4 * 65536));
        (bfloats ? SCALAR->round_bfloats : SCALAR->round_halves)(count, x, expected);
        (bfloats ? table->round_bfloats : table->round_halves)(count, x, actual);
        for (int i = 0; i < count; i++)
            if (expected[i] != actual[i] &&
                !(is_nan_half(expected[i], bfloats) && is_nan_half(actual[i], bfloats)))
                fail_msg("%s: %a becomes %#x, not %#x", table->isa, (double)x[i],
                         actual[i], expected[i]);
        guarded_finish("rounding");
    }
}

/* The scalar kernel by its definition: no half is nearer, and of two as near it is the
   even one. */
static void check_nearest_half(float x, int bfloats) {
    uint16_t half;
    (bfloats ? SCALAR->round_bfloats : SCALAR->round_halves)(1, &x, &half);
    if (isnan(x)) {
        assert_true(is_nan_half(half, bfloats));
        return;
    }
    float near[3];
    const uint16_t some[3] = {half, (uint16_t)(half - 1), (uint16_t)(half + 1)};
    (bfloats ? SCALAR->widen_bfloats : SCALAR->widen)(3, some, near);
    const double largest = bfloats ? 0x1.ffp127 : 65520.0;
    if (isinf(near[0])) {
        assert_true(fabs((double)x) >= largest && signbit(x) == signbit(near[0]));
        return;
    }
    assert_true(signbit(x) == signbit(near[0]));
    const double error = fabs((double)x - (double)near[0]);
    for (int i = 1; i < 3; i++) {
        const double other = fabs((double)x - (double)near[i]);
        if ((some[i] ^ half) & 0x8000 || isnan(near[i]) || isinf(near[i]))
            continue;
        assert_true(error < other || (error == other && half % 2 == 0));
    }
}

static void scalar_halves_are_the_nearest(void **state) {
    for (int i = 0; i < 4 * 65536; i++)
        for (int bfloats = 0; bfloats < 2; bfloats++)
            check_nearest_half(near_a_half(bfloats, i), bfloats);
}

CHECK(round_halves, check_round_of(table, 0))
CHECK(round_bfloats, check_round_of(table, 1))

static void check_widen_bfloats(const kernel_table *table) {
    for (int first = 0; first < 11; first++) {
        const int count = 65536 - first;
        uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
        for (int i = 0; i < count; i++)
            halves[i] = (uint16_t)(first + i * 0x6a5);
        float *out = guarded_output((size_t)count * sizeof *out);
        table->widen_bfloats(count, halves, out);
        for (int i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, &out[i], sizeof bits);
            assert_true(bits == (uint32_t)halves[i] << 16);
        }
        guarded_finish("widen_bfloats");
    }
}

static void adam_once(const kernel_table *table, int count, int salt) {
    const adam_numbers how = {.beta1 = 0.9f,
                              .beta2 = 0.999f,
                              .coupled = salt & 1 ? 0.01f : 0,
                              .keep = 0.99f,
                              .momentum = 0.02f,
                              .inverse = 1.5f,
                              .epsilon = 1e-8f,
                              .adaptive = salt & 2};
    float *gradient = random_rows(1, count, count);
    float_pair first = pair_create(count), second = pair_create(count);
    float_pair values = pair_create(count);
    for (int i = 0; i < count; i++)
        second.expected[i] = fabsf(second.expected[i]);
    pair_copy(second);
    SCALAR->adam(count, &how, gradient, first.expected, second.expected, values.expected);
    table->adam(count, &how, gradient, first.actual, second.actual, values.actual);
    compare_bits(first, "adam's first moment", table);
    compare_bits(second, "adam's second moment", table);
    compare_bits(values, "adam", table);
    guarded_finish("adam");
}

CHECK(adam, walk_lengths(table, 4, adam_once))

static void squares_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    double expected, actual;
    SCALAR->sum_squares(count, x, &expected);
    table->sum_squares(count, x, &actual);
    bytes_compare(&expected, &actual, sizeof actual, "sum_squares", table->isa);
    guarded_finish("sum_squares");
}

CHECK(sum_squares, walk_lengths(table, 1, squares_once))

/* ---- CTC -------------------------------------------------------------------------- */

static double *random_mantissas(int count) {
    double *x = guarded_input((size_t)count * sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = 1.5 + 0.49 * (double)draw_uniform();
    return x;
}

/* Some near each other, some far apart, some of what cannot be. */
static int64_t *random_exponents(int count) {
    int64_t *x = guarded_input((size_t)count * sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = draw_below(5) == 0   ? CTC_NEVER
               : draw_below(5) == 0 ? -draw_below(100000)
                                    : -draw_below(60);
    return x;
}

static void compare_doubles(const double *expected, const double *actual, int count,
                            const char *what, const kernel_table *table) {
    bytes_compare(expected, actual, (size_t)count * sizeof *expected, what, table->isa);
}

static void compare_exponents(const int64_t *expected, const int64_t *actual, int count,
                              const char *what, const kernel_table *table) {
    bytes_compare(expected, actual, (size_t)count * sizeof *expected, what, table->isa);
}

typedef struct {
    double *numbers[2];
    int64_t *powers[2];
} wide_pair;

static wide_pair wide_create(int count) {
    wide_pair made;
    for (int i = 0; i < 2; i++) {
        made.numbers[i] = guarded_output((size_t)count * sizeof(double));
        made.powers[i] = guarded_output((size_t)count * sizeof(int64_t));
        memset(made.numbers[i], 0, (size_t)count * sizeof(double));
        memset(made.powers[i], 0, (size_t)count * sizeof(int64_t));
    }
    return made;
}

static void wide_compare(wide_pair pair, int count, const char *what,
                         const kernel_table *table) {
    compare_doubles(pair.numbers[0], pair.numbers[1], count, what, table);
    compare_exponents(pair.powers[0], pair.powers[1], count, what, table);
}

/* Against the other tables, and the scalar one against e^x itself. */
static void powers_once(const kernel_table *table, int count, int salt) {
    float *x = random_rows(1, count, count);
    wide_pair to = wide_create(count), values = wide_create(count);
    for (int i = 0; i < count; i++)
        x[i] = (x[i] - 1) * (salt ? 1e4f : 40.0f);
    SCALAR->powers(count, x, 0, to.numbers[0], to.powers[0], values.numbers[0]);
    table->powers(count, x, 0, to.numbers[1], to.powers[1], values.numbers[1]);
    wide_compare(to, count, "powers", table);
    wide_compare(values, count, "powers' values", table);
    for (int i = 0; i < count; i++) {
        const double log_found = log(to.numbers[0][i]) +
                                 (double)to.powers[0][i] * 0.69314718055994531;
        assert_true(fabs(log_found - (double)x[i]) <=
                    1e-12 * fmax(1, fabs((double)x[i])));
        assert_true(fabs(values.numbers[0][i] - exp((double)x[i])) <= 1e-12);
    }
    guarded_finish("powers");
}

CHECK(powers, walk_lengths(table, 2, powers_once))

static void blanks_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    const double *blanks = random_mantissas(count), *labels = random_mantissas(count);
    const int64_t *blank_powers = random_exponents(count);
    const int64_t *label_powers = random_exponents(count);
    wide_pair to = wide_create(count);
    SCALAR->ctc_blanks(count, blanks, blank_powers, labels, label_powers, 0.3, -7,
                       to.numbers[0], to.powers[0]);
    table->ctc_blanks(count, blanks, blank_powers, labels, label_powers, 0.3, -7,
                      to.numbers[1], to.powers[1]);
    wide_compare(to, count, "ctc_blanks", table);
    for (int i = 0; i < count; i++)
        if (blank_powers[i] > -900 && label_powers[i] > -900)
            assert_true(
                fabs(ldexp(to.numbers[0][i], (int)to.powers[0][i]) /
                         (ldexp(0.3, -7) * (ldexp(blanks[i], (int)blank_powers[i]) +
                                            ldexp(labels[i], (int)label_powers[i]))) -
                     1) < 1e-14);
    guarded_finish("ctc_blanks");
}

CHECK(ctc_blanks, walk_lengths(table, 3, blanks_once))

static void labels_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    const double *blanks = random_mantissas(count), *labels = random_mantissas(count + 1);
    const int64_t *blank_powers = random_exponents(count);
    const int64_t *label_powers = random_exponents(count + 1);
    const double *mantissas = random_mantissas(count);
    const int64_t *exponents = random_exponents(count);
    int64_t *skips = random_exponents(count);
    for (int i = 0; i < count; i++)
        skips[i] = i % 3 ? 0 : CTC_NEVER;
    wide_pair to = wide_create(count);
    SCALAR->ctc_labels(count, blanks, blank_powers, labels, label_powers, skips,
                       mantissas, exponents, to.numbers[0], to.powers[0]);
    table->ctc_labels(count, blanks, blank_powers, labels, label_powers, skips, mantissas,
                      exponents, to.numbers[1], to.powers[1]);
    wide_compare(to, count, "ctc_labels", table);
    guarded_finish("ctc_labels");
}

CHECK(ctc_labels, walk_lengths(table, 3, labels_once))

static void meet_once(const kernel_table *table, int count, int salt) {
    const double *ahead = random_mantissas(count), *behind = random_mantissas(count);
    const int64_t *ahead_powers = random_exponents(count);
    const int64_t *behind_powers = random_exponents(count);
    const int64_t *exponents = NULL;
    if (salt) {
        int64_t *small = random_exponents(count);
        for (int i = 0; i < count; i++)
            small[i] = -draw_below(50);
        exponents = small;
    }
    wide_pair to = wide_create(count);
    SCALAR->ctc_meet(count, ahead, ahead_powers, behind, behind_powers, exponents, -3,
                     to.numbers[0]);
    table->ctc_meet(count, ahead, ahead_powers, behind, behind_powers, exponents, -3,
                    to.numbers[1]);
    wide_compare(to, count, "ctc_meet", table);
    guarded_finish("ctc_meet");
}

CHECK(ctc_meet, walk_lengths(table, 2, meet_once))

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
