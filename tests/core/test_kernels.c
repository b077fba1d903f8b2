/* Every kernel of every table that this machine supports, compared with the scalar one
   over awkward sizes. A kernel in src/kernels/list.h without a check_NAME here does not
   compile. */
#include <math.h>
#include <string.h>

#include "cases.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#define KERNEL_LIST SHOAL_KERNELS
#define KERNELS_AT sh_kernel_table_at
typedef kernel_table checked_kernels;
#include "kernel_checks.h"
#include "support.h"

static const int COUNTS[] = {0, 1, 2, 3, 5, 7, 8, 9, 23, 24, 25, 63, 64};
static const int LARGE_DIMS[] = {96, 97, 128, 129, 200, 260};

/* ---- Sizes ------------------------------------------------------------------------ */

/* 1 .. 70, then the larger ones. */
enum { ALL_DIMS = 70 + sizeof LARGE_DIMS / sizeof *LARGE_DIMS };

static int dim_at(int i) {
    return i < 70 ? i + 1 : LARGE_DIMS[i - 70];
}

/* One comparison; the salt selects a variant of the input. */
typedef void comparison(const checked_kernels *kernels, int width, int count, int dim,
                        int salt);

/* All widths of the table, all counts, the first `dims` dims, salts 0 .. salts - 1. */
static void walk(const checked_kernels *kernels, int dims, int salts,
                 comparison *compare) {
    for (int width = kernels->lanes; width <= kernels->panel; width += kernels->lanes)
        for (int c = 0; c < COUNT_OF(COUNTS); c++)
            for (int d = 0; d < dims; d++)
                for (int salt = 0; salt < salts; salt++)
                    compare(kernels, width, COUNTS[c], dim_at(d), salt);
}

/* ---- Panels ----------------------------------------------------------------------- */

static void pack_once(const checked_kernels *kernels, int width, int most, int dim,
                      int salt) {
    const int count = most < width ? most : width;
    const int rows = count + salt, stride = dim + salt % 3;
    float *x = random_rows(rows, stride, dim);
    if (rows > 0)
        x[0] = NAN; /* must not affect lanes without a query */
    int32_t *index = salt % 2 ? random_index(count, rows) : NULL;
    float_pair panel = pair_create(dim * width);
    SCALAR->pack(x, stride, index, count, width, dim, 0.3f, panel.expected);
    kernels->pack(x, stride, index, count, width, dim, 0.3f, panel.actual);
    pair_compare(panel, 0, "pack", kernels->isa);
    guarded_finish("pack");
}

CHECK(pack, walk(kernels, ALL_DIMS, 4, pack_once))

static void unpack_once(const checked_kernels *kernels, int width, int most, int dim,
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
    kernels->unpack(panel, count, width, dim, factor, shift, onto, x.actual, stride,
                    index);
    pair_compare(x, 2 * EPSILON, "unpack", kernels->isa);
    guarded_finish("unpack");
}

CHECK(unpack, walk(kernels, ALL_DIMS, 16, unpack_once))

static void score_once(const checked_kernels *kernels, int width, int count, int dim,
                       int salt) {
    const int stride = dim + count % 3 + salt;
    float *panel = random_panel(dim, width), *rows = random_rows(count, stride, dim);
    float_pair scores = pair_create(count * width);
    SCALAR->score(panel, width, dim, rows, stride, count, scores.expected);
    kernels->score(panel, width, dim, rows, stride, count, scores.actual);
    compare_bits(scores, "score", kernels);
    guarded_finish("score");
}

CHECK(score, walk(kernels, ALL_DIMS, 1, score_once))

static void mix_once(const checked_kernels *kernels, int width, int count, int dim,
                     int salt) {
    const int stride = dim + count % 3;
    float *weights = random_panel(count, width), *rows = random_rows(count, stride, dim);
    float *keep = salt ? random_panel(1, width) : NULL;
    float_pair out = pair_create(dim * width);
    SCALAR->mix(weights, width, rows, stride, count, dim, keep, out.expected);
    kernels->mix(weights, width, rows, stride, count, dim, keep, out.actual);
    compare_bits(out, "mix", kernels);
    guarded_finish("mix");
}

CHECK(mix, walk(kernels, ALL_DIMS, 2, mix_once))

static void score_at_once(const checked_kernels *kernels, int width, int count, int dim,
                          int salt) {
    const int stride = dim + count % 3 + salt, all = count + 5;
    float *panel = random_panel(dim, width), *rows = random_rows(all, stride, dim);
    int32_t *index = random_index(count, all);
    float_pair scores = pair_create(count * width);
    SCALAR->score_at(panel, width, dim, rows, stride, index, count, scores.expected);
    kernels->score_at(panel, width, dim, rows, stride, index, count, scores.actual);
    compare_bits(scores, "score_at", kernels);
    guarded_finish("score_at");
}

CHECK(score_at, walk(kernels, ALL_DIMS, 1, score_at_once))

static void mix_at_once(const checked_kernels *kernels, int width, int count, int dim,
                        int salt) {
    const int stride = dim + count % 3 + salt, all = count + 5;
    float *weights = random_panel(count, width), *rows = random_rows(all, stride, dim);
    int32_t *index = random_index(count, all);
    float_pair out = pair_create(dim * width);
    SCALAR->mix_at(weights, width, rows, stride, index, count, dim, out.expected);
    kernels->mix_at(weights, width, rows, stride, index, count, dim, out.actual);
    compare_bits(out, "mix_at", kernels);
    guarded_finish("mix_at");
}

CHECK(mix_at, walk(kernels, ALL_DIMS, 1, mix_at_once))

static void add_and_raise_once(const checked_kernels *kernels, int width, int count,
                               int dim, int salt) {
    (void)dim;
    float *more = random_panel(1, width);
    float_pair scores = pair_create(count * width), best = pair_create(count * width);
    if (salt && count > 0)
        scores.expected[0] = scores.actual[0] = NAN; /* never the best */
    SCALAR->add_and_raise(more, width, count, scores.expected, best.expected);
    kernels->add_and_raise(more, width, count, scores.actual, best.actual);
    pair_compare(scores, 0, "add_and_raise", kernels->isa);
    pair_compare(best, 0, "add_and_raise", kernels->isa);
    guarded_finish("add_and_raise");
}

CHECK(add_and_raise, walk(kernels, 1, 2, add_and_raise_once))

static void largest_above_once(const checked_kernels *kernels, int width, int count,
                               int dim, int salt) {
    (void)dim;
    float *scores = random_panel(count, width), *more = random_panel(1, width);
    float *below = random_rows(1, count, count);
    float_pair out = pair_create(width);
    if (salt == 1)
        more[width / 2] = NAN;
    if (salt == 2 && count > 0)
        scores[width / 2] = NAN;
    SCALAR->largest_above(scores, width, count, below, more, out.expected);
    kernels->largest_above(scores, width, count, below, more, out.actual);
    compare_bits(out, "largest_above", kernels);
    guarded_finish("largest_above");
}

CHECK(largest_above, walk(kernels, 1, 3, largest_above_once))

static void add_across_once(const checked_kernels *kernels, int width, int count, int dim,
                            int salt) {
    const int lanes = dim < width ? dim : width, stride = count + salt;
    float *x = random_rows(lanes, stride, count);
    float_pair scores = pair_create(count * width);
    SCALAR->add_across(x, stride, lanes, width, count, scores.expected);
    kernels->add_across(x, stride, lanes, width, count, scores.actual);
    compare_bits(scores, "add_across", kernels);
    guarded_finish("add_across");
}

CHECK(add_across, walk(kernels, 50, 2, add_across_once))

static void add_to_rows_once(const checked_kernels *kernels, int width, int count,
                             int dim, int salt) {
    (void)dim;
    float *x = random_rows(count, salt, salt > 0);
    float_pair scores = pair_create(count * width);
    if (count > 0 && salt == 0)
        x = random_rows(1, 1, 1);
    SCALAR->add_to_rows(x, salt, width, count, scores.expected);
    kernels->add_to_rows(x, salt, width, count, scores.actual);
    compare_bits(scores, "add_to_rows", kernels);
    guarded_finish("add_to_rows");
}

CHECK(add_to_rows, walk(kernels, 1, 3, add_to_rows_once))

/* Any width with room for the lanes is allowed, and any number of lanes. */
static void spread_once(const checked_kernels *kernels, int panel, int count, int dim,
                        int salt) {
    const int lanes = salt ? panel : panel - 1, width = lanes + salt;
    const int stride = dim + lanes % 3, out_stride = dim + count % 4;
    float *weights = random_panel(count, width), *x = random_rows(lanes, stride, dim);
    float_pair out = pair_create(count > 0 ? (count - 1) * out_stride + dim : 0);
    SCALAR->spread(weights, width, lanes, x, stride, dim, count, out.expected,
                   out_stride);
    kernels->spread(weights, width, lanes, x, stride, dim, count, out.actual, out_stride);
    pair_compare(out, EPSILON * (float)(lanes + 8), "spread", kernels->isa);
    guarded_finish("spread");
}

CHECK(spread, walk(kernels, ALL_DIMS, 2, spread_once))

/* ---- Softmax ---------------------------------------------------------------------- */

/* Spread over 40, some far below; some lanes get NaN and infinities, depending on the
   salt. */
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
                         const checked_kernels *kernels) {
    pair_compare((float_pair){all.expected + at, all.actual + at, 1}, tolerance, what,
                 kernels->isa);
}

static void compare_softmax(float_pair scores, float_pair top, float_pair sum,
                            float_pair keep, int width, int count,
                            const checked_kernels *kernels) {
    for (int i = 0; i < width; i++) {
        if (isnan(sum.expected[i]) || isnan(sum.actual[i])) {
            if (!isnan(sum.actual[i]) || !isnan(sum.expected[i]))
                fail_msg("softmax_step of %s: a NaN in lane %d was lost", kernels->isa,
                         i);
            continue;
        }
        compare_lane(top, i, 0, "softmax_step's top", kernels);
        compare_lane(keep, i, exp_tolerance(keep.expected[i], 16), "softmax_step's keep",
                     kernels);
        compare_lane(sum, i, 8 * EPSILON * fmaxf(1, sum.expected[i]),
                     "softmax_step's sum", kernels);
        for (int at = i; at < count * width; at += width)
            compare_lane(scores, at, exp_tolerance(scores.expected[at], 16),
                         "softmax_step's weight", kernels);
    }
}

static void softmax_once(const checked_kernels *kernels, int width, int count, int dim,
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
    kernels->softmax_step(scores.actual, width, count, top.actual, sum.actual,
                          keep.actual);
    compare_softmax(scores, top, sum, keep, width, count, kernels);
    guarded_finish("softmax_step");
}

CHECK(softmax_step, walk(kernels, 1, 12, softmax_once))

static void slope_once(const checked_kernels *kernels, int width, int count, int dim,
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
    kernels->softmax_slope(scores.actual, slopes.actual, width, count, top, inverse,
                           delta, 0.7f);
    pair_compare(scores, 8 * EPSILON, "softmax_slope's p", kernels->isa);
    pair_compare(slopes, 16 * EPSILON, "softmax_slope's slope", kernels->isa);
    guarded_finish("softmax_slope");
}

CHECK(softmax_slope, walk(kernels, 1, 3, slope_once))

static void dot_once(const checked_kernels *kernels, int width, int count, int dim,
                     int salt) {
    (void)dim;
    float *a = random_panel(count + salt, width), *b = random_panel(count + salt, width);
    float_pair products = pair_create(width);
    SCALAR->dot_columns(a, b, width, count + salt, products.expected);
    kernels->dot_columns(a, b, width, count + salt, products.actual);
    pair_compare(products, EPSILON * (float)(count + salt + 8), "dot_columns",
                 kernels->isa);
    guarded_finish("dot_columns");
}

CHECK(dot_columns, walk(kernels, 1, 10, dot_once))

/* ---- Candidates and hashes -------------------------------------------------------- */

/* Lists of `rows` candidates and the same again; lane i of those to come has i % 4, or,
   for collect_all, 2. */
typedef struct {
    float *list[2], *lowest;
    int32_t *keys[2], *counts[2];
    size_t bytes; /* of list or keys */
} list_pair;

static list_pair make_lists(int width, int rows, int even) {
    list_pair made = {.bytes = (size_t)(width * rows) * 4,
                      .lowest = random_panel(1, width)};
    for (int which = 0; which < 2; which++) {
        made.list[which] = guarded_output(made.bytes);
        made.keys[which] = guarded_output(made.bytes);
        made.counts[which] = guarded_output((size_t)width * 4);
        for (int i = 0; i < width; i++)
            made.counts[which][i] = even ? 2 : i % 4;
    }
    for (int i = 0; i < width; i++)
        made.lowest[i] = i % 4 == 0   ? -INFINITY
                         : i % 4 == 3 ? INFINITY
                                      : 20 * draw_uniform();
    return made;
}

static void compare_lists(const list_pair *lists, int width, const char *name,
                          const checked_kernels *kernels) {
    bytes_compare(lists->list[0], lists->list[1], lists->bytes, name, kernels->isa);
    bytes_compare(lists->keys[0], lists->keys[1], lists->bytes, name, kernels->isa);
    bytes_compare(lists->counts[0], lists->counts[1], (size_t)width * 4, name,
                  kernels->isa);
    guarded_finish(name);
}

static void collect_once(const checked_kernels *kernels, int width, int count, int dim,
                         int salt) {
    (void)dim;
    float *scores = random_panel(count, width);
    list_pair lists = make_lists(width, count + 3, 0);
    fill_scores(scores, width, count, salt);
    if (count > 1)
        lists.lowest[width - 1] = scores[width - 1]; /* equal is not greater */
    SCALAR->collect(scores, width, count, 1000, lists.lowest, lists.list[0],
                    lists.keys[0], lists.counts[0]);
    kernels->collect(scores, width, count, 1000, lists.lowest, lists.list[1],
                     lists.keys[1], lists.counts[1]);
    compare_lists(&lists, width, "collect", kernels);
}

CHECK(collect, walk(kernels, 1, 3, collect_once))

static void collect_all_once(const checked_kernels *kernels, int width, int count,
                             int dim, int salt) {
    (void)dim;
    float *scores = random_panel(count, width);
    list_pair lists = make_lists(width, count + 2, 1);
    fill_scores(scores, width, count, salt);
    SCALAR->collect_all(scores, width, count, 1000, lists.lowest, lists.list[0],
                        lists.keys[0], lists.counts[0]);
    kernels->collect_all(scores, width, count, 1000, lists.lowest, lists.list[1],
                         lists.keys[1], lists.counts[1]);
    compare_lists(&lists, width, "collect_all", kernels);
}

CHECK(collect_all, walk(kernels, 1, 3, collect_all_once))

/* One lane: what is left are the largest of what was there, of equal ones the first, in
   order and at least k of them if there were k. */
static void check_cut_lane(const float *before, const float *list, const int32_t *keys,
                           int width, int rows, int k, int most, int32_t kept,
                           float lowest, float raised) {
    int live = 0, at_least = 0;
    for (int r = 0; r < rows; r++)
        live += before[r * width] > -INFINITY;
    assert_true(kept <= (live < most ? live : most));
    assert_true(kept >= (live < k ? live : k));
    for (int r = 0, at = 0; r < rows; r++) {
        int better = 0;
        for (int other = 0; other < rows; other++)
            better += before[other * width] > before[r * width] ||
                      (before[other * width] == before[r * width] && other < r);
        if (better >= kept || !(before[r * width] > -INFINITY))
            continue;
        assert_true(list[at * width] == before[r * width]);
        assert_int_equal(keys[at++ * width], 7 * r);
    }
    for (int r = 0; r < rows; r++) {
        if (r >= kept)
            assert_true(list[r * width] == -INFINITY);
        at_least += list[r * width] >= raised;
    }
    assert_true(raised >= lowest);
    if (raised > lowest)
        assert_true(at_least >= k);
}

static void cut_once(const checked_kernels *kernels, int width, int rows, int k, int most,
                     int salt) {
    const size_t bytes = (size_t)(rows * width) * 4;
    float *before = guarded_input(bytes), *list = guarded_output(bytes);
    int32_t *keys = guarded_output(bytes), *counts = guarded_output((size_t)width * 4);
    float *lowest = guarded_output((size_t)width * 4);
    for (int i = 0; i < width; i++) {
        /* Of lane i some rows are past its end, and some may be -infinity. */
        const int end = salt == 3 ? (int)draw_below(rows + 1) : rows;
        lowest[i] = salt == 2 && i % 2 ? 1 : -INFINITY;
        counts[i] = end;
        for (int r = 0; r < rows; r++) {
            float score = 20 * draw_uniform() - 10;
            if (salt == 1) /* few values */
                score = (float)draw_below(4);
            if (salt == 2 && draw_below(3) == 0)
                score = draw_below(2) ? INFINITY : -INFINITY;
            before[r * width + i] = r < end ? score : -INFINITY;
            keys[r * width + i] = 7 * r;
        }
    }
    memcpy(list, before, bytes);
    for (int i = 0; i < width; i += kernels->lanes) {
        float old[MAX_PANEL];
        memcpy(old, lowest + i, sizeof(float) * (size_t)kernels->lanes);
        kernels->cut_lists(width, rows, k, most, list + i, keys + i, counts + i,
                           lowest + i);
        for (int lane = 0; lane < kernels->lanes; lane++)
            check_cut_lane(before + i + lane, list + i + lane, keys + i + lane, width,
                           rows, k, most, counts[i + lane], old[lane], lowest[i + lane]);
    }
    guarded_finish("cut_lists");
}

static void check_cut_lists(const checked_kernels *kernels) {
    const int sizes[] = {1, 2, 5, 31, 64, 130};
    for (int width = kernels->lanes; width <= kernels->panel;
         width += kernels->panel - kernels->lanes)
        for (int64_t i = 0; i < COUNT_OF(sizes); i++)
            for (int salt = 0; salt < 4; salt++)
                for (int k = 1; k <= sizes[i] + 1; k += 1 + k / 2) {
                    cut_once(kernels, width, sizes[i], k, k, salt);
                    cut_once(kernels, width, sizes[i], k, k + k / 8 + 1, salt);
                }
}

static void signs_once(const checked_kernels *kernels, int width, int bits) {
    const float odd[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1e-45f};
    const size_t bytes = (size_t)((bits + 7) / 8 - 1) * HASH_BLOCK + (size_t)width;
    float *scores = random_panel(bits, width);
    uint8_t *expected = guarded_output(bytes), *actual = guarded_output(bytes);
    for (int i = 0; i < 6 && i < bits * width; i++)
        scores[draw_below(bits * width)] = odd[i];
    SCALAR->signs(scores, width, bits, expected);
    kernels->signs(scores, width, bits, actual);
    bytes_compare(expected, actual, bytes, "signs", kernels->isa);
    guarded_finish("signs");
}

static void check_signs(const checked_kernels *kernels) {
    for (int width = kernels->lanes; width <= kernels->panel; width += kernels->lanes)
        for (int bits = 1; bits <= 255; bits += bits < 70 ? 1 : 37)
            signs_once(kernels, width, bits);
}

/* few: four bits have so few values that ties are frequent. The last of 256 bits is
   always 0, since a distance has one byte. */
static void nearest_once(const checked_kernels *kernels, int bytes, int count, int few) {
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
    kernels->nearest(nibbles, nibble_count, tables, count, actual, centre);
    bytes_compare(expected, actual, HASH_BLOCK, "nearest's distance", kernels->isa);
    bytes_compare(expected + HASH_BLOCK, centre, HASH_BLOCK, "nearest's centre",
                  kernels->isa);
    guarded_finish("nearest");
}

static void check_nearest(const checked_kernels *kernels) {
    const int counts[] = {1, 2, 3, 25, 100, 255, NEAREST_CENTRES};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int bytes = 1; bytes <= 32; bytes += bytes < 9 ? 1 : 23 - bytes % 2)
            for (int few = 0; few < 2; few++)
                nearest_once(kernels, bytes, counts[i], few);
}

/* The specification of `closest` in the list, for one lane. */
static void closest_lane(const float *panel, int width, int rank, const float *centres,
                         int stride, const float *bias, int count, float *best,
                         int32_t *who) {
    *best = -INFINITY;
    *who = 0;
    for (int c = 0; c < count; c++) {
        float value = bias[c];
        for (int r = 0; r < rank; r++)
            value = fmaf(centres[c * stride + r], panel[r * width], value);
        if (value > *best) { /* never for NaN, nor for a later tie */
            *best = value;
            *who = c;
        }
    }
}

/* salt 0: random; 1: few values with frequent ties; 2: NaN and infinities in lanes,
   centres and biases; 3: only NaN. */
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

static void closest_once(const checked_kernels *kernels, int width, int rank, int count,
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
    kernels->closest(panel, width, rank, centres, stride, bias, count, best.actual,
                     actual);
    bytes_compare(best.expected, best.actual, bytes, "closest's best", kernels->isa);
    bytes_compare(expected, actual, bytes, "closest's who", kernels->isa);
    guarded_finish("closest");
}

static void check_closest(const checked_kernels *kernels) {
    const int counts[] = {1, 2, 3, 4, 5, 7, 100};
    for (int width = kernels->lanes; width <= kernels->panel; width += kernels->lanes)
        for (int64_t i = 0; i < COUNT_OF(counts); i++)
            for (int rank = 1; rank <= 33; rank++)
                for (int salt = 0; salt < 4; salt++)
                    closest_once(kernels, width, rank, counts[i], salt);
}

static void check_tally(const checked_kernels *kernels) {
    for (int again = 0; again < 400; again++) {
        const uint64_t word = draw();
        const int16_t by = again % 2 ? 1 : -1;
        int16_t *expected = guarded_output(64 * sizeof *expected);
        int16_t *actual = guarded_output(64 * sizeof *actual);
        for (int b = 0; b < 64; b++)
            expected[b] = actual[b] = (int16_t)(draw() % 2000 - 1000);
        SCALAR->tally(word, by, expected);
        kernels->tally(word, by, actual);
        bytes_compare(expected, actual, 64 * sizeof *actual, "tally", kernels->isa);
        guarded_finish("tally");
    }
}

static void sum_once(const checked_kernels *kernels, int count, int dim, int salt) {
    const int stride = dim + (dim + salt) % 3, rows = count + 2 * salt;
    float *x = random_rows(rows, stride, dim);
    int32_t *index = salt ? random_index(count, rows) : NULL;
    float *weights = salt ? random_rows(1, count, count) : NULL;
    float_pair sums = pair_create(dim);
    SCALAR->sum_rows(x, stride, index, weights, count, dim, sums.expected);
    kernels->sum_rows(x, stride, index, weights, count, dim, sums.actual);
    compare_bits(sums, "sum_rows", kernels);
    guarded_finish("sum_rows");
}

static void check_sum_rows(const checked_kernels *kernels) {
    const int counts[] = {0, 1, 2, 11, 12, 13, 63, 64, 65, 128, 200};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int d = 0; d < ALL_DIMS; d++)
            for (int salt = 0; salt < 2; salt++)
                sum_once(kernels, counts[i], dim_at(d), salt);
}

static void sum_wide_once(const checked_kernels *kernels, int count, int dim) {
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
    kernels->sum_rows_wide(x, stride, index, count, dim, actual);
    bytes_compare(expected, actual, bytes, "sum_rows_wide", kernels->isa);
    guarded_finish("sum_rows_wide");
}

static void check_sum_rows_wide(const checked_kernels *kernels) {
    const int counts[] = {0, 1, 2, 13, 64, 65};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int d = 0; d < ALL_DIMS; d++)
            sum_wide_once(kernels, counts[i], dim_at(d));
}

/* Few destinations, so that rows collide. */
static void scatter_once(const checked_kernels *kernels, int count, int dim) {
    enum { PLACES = 5 };
    const int stride = dim + dim % 3;
    float *x = random_rows(count, stride, dim);
    float *weights = random_rows(1, count, count);
    int32_t *index = random_index(count, count), *from = random_index(count, count);
    for (int i = 0; i < count; i++)
        index[i] %= PLACES;
    float_pair out = pair_create(PLACES * dim);
    SCALAR->scatter_rows(x, stride, from, index, weights, count, dim, out.expected, dim);
    kernels->scatter_rows(x, stride, from, index, weights, count, dim, out.actual, dim);
    compare_bits(out, "scatter_rows", kernels);
    guarded_finish("scatter_rows");
}

static void check_scatter_rows(const checked_kernels *kernels) {
    const int counts[] = {0, 1, 2, 17, 80};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int d = 0; d < ALL_DIMS; d++)
            scatter_once(kernels, counts[i], dim_at(d));
}

static void two_dots_once(const checked_kernels *kernels, int rows, int dim) {
    const int stride = dim + dim % 3;
    float *x = random_rows(rows, stride, dim);
    float *a = random_rows(1, dim, dim), *b = random_rows(1, dim, dim);
    float_pair with_a = pair_create(rows), with_b = pair_create(rows);
    SCALAR->two_dots(x, stride, rows, dim, a, b, with_a.expected, with_b.expected);
    kernels->two_dots(x, stride, rows, dim, a, b, with_a.actual, with_b.actual);
    const float tolerance = 8 * EPSILON * (float)(dim + 1);
    pair_compare(with_a, tolerance, "two_dots", kernels->isa);
    pair_compare(with_b, tolerance, "two_dots", kernels->isa);
    guarded_finish("two_dots");
}

static void check_two_dots(const checked_kernels *kernels) {
    for (int rows = 0; rows <= 35; rows++)
        for (int d = 0; d < ALL_DIMS; d++)
            two_dots_once(kernels, rows, dim_at(d));
}

static void dots_at_once(const checked_kernels *kernels, int rows, int dim) {
    const int stride = dim + dim % 3;
    float *x = random_rows(rows + 3, stride, dim), *a = random_rows(1, dim, dim);
    int32_t *index = random_index(rows, rows + 3);
    float_pair out = pair_create(rows);
    SCALAR->dots_at(x, stride, index, rows, dim, a, out.expected);
    kernels->dots_at(x, stride, index, rows, dim, a, out.actual);
    pair_compare(out, 8 * EPSILON * (float)(dim + 1), "dots_at", kernels->isa);
    guarded_finish("dots_at");
}

static void check_dots_at(const checked_kernels *kernels) {
    for (int rows = 0; rows <= 35; rows++)
        for (int d = 0; d < ALL_DIMS; d++)
            dots_at_once(kernels, rows, dim_at(d));
}

/* Numbers of all magnitudes; few distinct ones, with many ties; and infinities. */
static void largest_once(const checked_kernels *kernels, int count, int k, int salt) {
    float *x = random_rows(1, count, count);
    int32_t expected[1100], actual[1100];
    for (int i = 0; i < count; i++) {
        x[i] = salt == 1 ? floorf(2 * x[i]) : x[i] * powf(10, 8 * x[(i * 7) % count]);
        if (salt == 2 && i % 3 == 0)
            x[i] = i % 2 ? INFINITY : -INFINITY;
    }
    SCALAR->largest(x, count, k, expected);
    kernels->largest(x, count, k, actual);
    bytes_compare(expected, actual, sizeof *actual * (size_t)k, "largest", kernels->isa);
    guarded_finish("largest");
}

static void check_largest(const checked_kernels *kernels) {
    const int counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 100, 257, 1100};
    for (int64_t i = 0; i < COUNT_OF(counts); i++)
        for (int salt = 0; salt < 3; salt++)
            for (int part = 0; part <= 4; part++)
                largest_once(kernels, counts[i], counts[i] * part / 4, salt);
}

/* ---- Plain loops, half precision -------------------------------------------------- */

static void add_once(const checked_kernels *kernels, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->add(count, x, y.expected);
    kernels->add(count, x, y.actual);
    compare_bits(y, "add", kernels);
    guarded_finish("add");
}

CHECK(add, walk_lengths(kernels, 1, add_once))

static void multiply_once(const checked_kernels *kernels, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->multiply(count, x, y.expected);
    kernels->multiply(count, x, y.actual);
    compare_bits(y, "multiply", kernels);
    guarded_finish("multiply");
}

CHECK(multiply, walk_lengths(kernels, 1, multiply_once))

static void dots_once(const checked_kernels *kernels, int inputs, int salt) {
    const int rows = salt / 2, stride = inputs + rows % 3, half = salt % 2;
    float *x = random_rows(rows, stride, inputs);
    const void *w = half ? (void *)random_halves(inputs)
                         : (void *)random_rows(1, inputs, inputs);
    float_pair out = pair_create(rows);
    SCALAR->dots(inputs, rows, x, stride, w, half, out.expected);
    kernels->dots(inputs, rows, x, stride, w, half, out.actual);
    compare_bits(out, "dots", kernels);
    guarded_finish("dots");
}

CHECK(dots, walk_lengths(kernels, 18, dots_once))

/* Every half-precision number, bit for bit except NaN, ordered so that ordinary ones
   come last, where a vector is incomplete. */
static void check_widen(const checked_kernels *kernels) {
    for (int first = 0; first < 11; first++) {
        const int count = 65536 - first;
        uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
        for (int i = 0; i < count; i++)
            halves[i] = (uint16_t)(first + i * 0x6a5);
        float_pair out = pair_create(count);
        SCALAR->widen(count, halves, out.expected);
        kernels->widen(count, halves, out.actual);
        pair_compare(out, 0, "widen", kernels->isa);
        guarded_finish("widen");
    }
}

/* Floats around every half-precision number: itself, halfway to the next, and slightly
   more and less than that; NaN and overflow. */
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

static void check_round_of(const checked_kernels *kernels, int bfloats) {
    for (int first = 0; first < 11; first++) {
        const int count = 4 * 65536 - first;
        float *x = guarded_input((size_t)count * sizeof *x);
        uint16_t *expected = guarded_output((size_t)count * sizeof *expected);
        uint16_t *actual = guarded_output((size_t)count * sizeof *actual);
        for (int i = 0; i < count; i++)
            x[i] = near_a_half(bfloats, (first + i * 0x6a5) % (4 * 65536));
        (bfloats ? SCALAR->round_bfloats : SCALAR->round_halves)(count, x, expected);
        (bfloats ? kernels->round_bfloats : kernels->round_halves)(count, x, actual);
        for (int i = 0; i < count; i++)
            if (expected[i] != actual[i] &&
                !(is_nan_half(expected[i], bfloats) && is_nan_half(actual[i], bfloats)))
                fail_msg("%s: %a becomes %#x, not %#x", kernels->isa, (double)x[i],
                         actual[i], expected[i]);
        guarded_finish("rounding");
    }
}

/* The scalar kernel by definition: round to nearest, ties to even. */
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

CHECK(round_halves, check_round_of(kernels, 0))
CHECK(round_bfloats, check_round_of(kernels, 1))

static void check_widen_bfloats(const checked_kernels *kernels) {
    for (int first = 0; first < 11; first++) {
        const int count = 65536 - first;
        uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
        for (int i = 0; i < count; i++)
            halves[i] = (uint16_t)(first + i * 0x6a5);
        float *out = guarded_output((size_t)count * sizeof *out);
        kernels->widen_bfloats(count, halves, out);
        for (int i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, &out[i], sizeof bits);
            assert_true(bits == (uint32_t)halves[i] << 16);
        }
        guarded_finish("widen_bfloats");
    }
}

static void scalar_closest_is_its_definition(void **state) {
    check_closest(SCALAR);
}

int main(void) {
    const struct CMUnitTest tests[] = {KERNEL_LIST(KERNEL_TEST) cmocka_unit_test(
                                           scalar_closest_is_its_definition),
                                       cmocka_unit_test(scalar_halves_are_the_nearest)};
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
