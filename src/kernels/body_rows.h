/* Softmax, candidates and hashes, written once for every vector width. */
#include "kernels/kernels.h"
#include "kernels/simd.h"

/* e^x for x <= 0, to a relative error of about 2e-7: 2^n times a polynomial of degree 5
   in the rest. Its constant term is exactly 1, because every block of a stream multiplies
   what the earlier blocks gave by e^(old top - new top), which is mostly e^0: an error
   there would be multiplied in once for every block. The other coefficients are the best
   for the relative error. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the
   low bits. Results below 2^-126 become 2^-126, which adds nothing to a sum that holds
   e^0. NaN stays NaN. */
INLINE vf exp_negative(vf x) {
    const vf log2e = v_splat(1.44269504f), shift = v_splat(12582912.0f);
    x = v_max(v_splat(-87.336544f), x);
    vf shifted = v_fma(x, log2e, shift);
    vf rest = v_fma(x, log2e, shift - shifted);
    vf p = v_fma(rest, v_splat(0.0013264727f), v_splat(0.0096715130f));
    p = v_fma(p, rest, v_splat(0.0555073358f));
    p = v_fma(p, rest, v_splat(0.2402224243f));
    p = v_fma(p, rest, v_splat(0.6931470037f));
    p = v_fma(p, rest, v_splat(1.0f));
    return p * v_pow2((vi)shifted);
}

static void softmax_step(float *scores, int width, int count, float *top, float *sum,
                         float *keep) {
    for (int i = 0; i < width; i += LANES) {
        vf old = v_load(top + i), highest = old, even = {0}, odd = {0};
        for (int r = 0; r < count; r++)
            highest = v_max(highest, v_load(scores + r * width + i));
        int r = 0;
        for (; r + 2 <= count; r += 2) {
            float *pair = scores + r * width + i;
            vf first = exp_negative(v_load(pair) - highest);
            vf second = exp_negative(v_load(pair + width) - highest);
            v_store(pair, first);
            v_store(pair + width, second);
            even += first;
            odd += second;
        }
        if (r < count) {
            vf last = exp_negative(v_load(scores + r * width + i) - highest);
            v_store(scores + r * width + i, last);
            even += last;
        }
        vf kept = exp_negative(old - highest);
        v_store(keep + i, kept);
        v_store(sum + i, v_fma(v_load(sum + i), kept, even + odd));
        v_store(top + i, highest);
    }
}

static void softmax_slope(float *scores, float *slopes, int width, int count,
                          const float *top, const float *inverse, const float *delta,
                          float scale) {
    for (int i = 0; i < width; i += LANES) {
        vf highest = v_load(top + i), by = v_load(inverse + i), shift = v_load(delta + i);
        for (int r = 0; r < count; r++) {
            float *score = scores + r * width + i, *slope = slopes + r * width + i;
            vf p = exp_negative(v_load(score) - highest) * by;
            v_store(score, p);
            v_store(slope, v_splat(scale) * p * (v_load(slope) - shift));
        }
    }
}

static void dot_columns(const float *a, const float *b, int width, int count,
                        float *products) {
    for (int i = 0; i < width; i += LANES) {
        vf sum = {0};
        for (int r = 0; r < count; r++)
            sum = v_fma(v_load(a + r * width + i), v_load(b + r * width + i), sum);
        v_store(products + i, sum);
    }
}

/* Which of up to 64 rows of one vector of lanes hold at least `least`: bit r of a lane's
   word is row r's. Bits are collected lane by lane, without a branch for each row. */
INLINE unsigned rows_from(const float *rows, int width, int count, vf least,
                          const bool or_equal, uint64_t words[LANES]) {
    uint32_t low[LANES], high[LANES];
    vi found[2] = {{0}};
    UNROLL for (int half = 0; half < 2; half++) {
        vu bit = (vu)v_index(1); /* the last one doubles to 0 */
        for (int r = 32 * half; r < count && r < 32 * half + 32; r++, bit += bit) {
            const vf x = v_load(rows + (int64_t)r * width);
            found[half] |= (vi)bit & (or_equal ? (vi)(x >= least) : (vi)(x > least));
        }
    }
    memcpy(low, &found[0], sizeof low);
    memcpy(high, &found[1], sizeof high);
    for (int lane = 0; lane < LANES; lane++)
        words[lane] = low[lane] | (uint64_t)high[lane] << 32;
    return v_lanes((found[0] | found[1]) != (vi){0});
}

/* Count is at most 64. */
static void collect(const float *scores, int width, int count, int32_t first,
                    const float *floor, float *list, int32_t *keys, int32_t *counts) {
    for (int i = 0; i < width; i += LANES) {
        uint64_t words[LANES];
        unsigned lanes =
            rows_from(scores + i, width, count, v_load(floor + i), false, words);
        for (; lanes; lanes &= lanes - 1) {
            const int lane = i + __builtin_ctz(lanes);
            int64_t at = (int64_t)counts[lane] * width + lane;
            for (uint64_t hits = words[lane - i]; hits; hits &= hits - 1, at += width) {
                const int r = __builtin_ctzll(hits);
                list[at] = scores[r * width + lane];
                keys[at] = first + r;
                counts[lane]++;
            }
        }
    }
}

static void collect_all(const float *scores, int width, int count, int32_t first,
                        const float *floor, float *list, int32_t *keys, int32_t *counts) {
    const int64_t from = (int64_t)counts[0] * width;
    const vf none = v_splat(-__builtin_inff());
    for (int i = 0; i < width; i += LANES) {
        const vf low = v_load(floor + i);
        for (int r = 0; r < count; r++) {
            const vf score = v_load(scores + r * width + i);
            const vi key = v_index(first + r);
            v_store(list + from + r * width + i,
                    (vf)v_choose((vi)(score > low), (vi)score, (vi)none));
            memcpy(keys + from + r * width + i, &key, sizeof key);
        }
    }
    for (int i = 0; i < width; i++)
        counts[i] += count;
}

/* A number whose order as an integer is the float's, and back: float_order. */
INLINE vi v_order(vi bits) {
    return bits ^ ((bits >> 31) & v_index(INT32_MAX));
}

/* What is known of the k-th largest of every lane: `found` >= k are at least the float of
   order `least`, and `fewer` < k at least that of order `above`. */
typedef struct {
    vi least, above, found, fewer;
} list_bounds;

INLINE list_bounds bound_lists(const float *list, int width, int32_t rows) {
    const vf none = v_splat(-__builtin_inff());
    vf deepest = none, highest = none; /* the lowest, negated */
    vi live = {0};
    UNROLL_BY(2) for (int32_t r = 0; r < rows; r++) {
        const vf x = v_load(list + (int64_t)r * width);
        const vi is_live = (vi)(x > none);
        deepest = v_max(deepest, (vf)v_choose(is_live, (vi)-x, (vi)none));
        highest = v_max(highest, x);
        live -= is_live;
    }
    return (list_bounds){.least = v_order((vi)-deepest),
                         .above = v_order((vi)highest) + 1,
                         .found = live};
}

/* Where the k-th largest would be if numbers were evenly spread, and every third time in
   the middle of all floats that there are: one of them comes to an end soon. */
INLINE vi next_order(const list_bounds *now, int32_t k, int turn) {
    const vi middle = (now->least & now->above) + ((now->least ^ now->above) >> 1);
    if (turn % 3 == 2)
        return middle;
    const vf low = (vf)v_order(now->least), high = (vf)v_order(now->above);
    const vf part = (v_float(now->found - k) + v_splat(0.5f)) /
                    v_float(now->found - now->fewer);
    const vi guess = v_order((vi)(low + (high - low) * part));
    return v_choose((guess > now->least) & (guess < now->above), guess, middle);
}

/* Moves what is at least the bound to the front of every list. Where too many are, since
   some are equal, `equals` of those that equal the bound are kept. */
INLINE void keep_largest(int width, int32_t rows, vf least, int32_t *equals, float *list,
                         int32_t *keys, int32_t *counts) {
    float bound[LANES];
    v_store(bound, least);
    memset(counts, 0, LANES * sizeof *counts);
    for (int32_t first = 0; first < rows; first += 64) {
        const int count = rows - first < 64 ? rows - first : 64;
        const int64_t from = (int64_t)first * width;
        uint64_t words[LANES];
        unsigned lanes = rows_from(list + from, width, count, least, true, words);
        for (; lanes; lanes &= lanes - 1) {
            const int lane = __builtin_ctz(lanes);
            int64_t to = (int64_t)counts[lane] * width + lane;
            for (uint64_t hits = words[lane]; hits; hits &= hits - 1) {
                const int64_t at = from + __builtin_ctzll(hits) * width + lane;
                const float score = list[at];
                if (score == bound[lane] && equals[lane]-- <= 0)
                    continue;
                list[to] = score;
                keys[to] = keys[at];
                to += width;
                counts[lane]++;
            }
        }
    }
}

static void cut_lists(int width, int32_t rows, int32_t k, int32_t most, float *list,
                      int32_t *keys, int32_t *counts, float *floor) {
    list_bounds now = bound_lists(list, width, rows);
    vi kept, equals, active = now.found > most;
    const vi enough = now.found >= k;
    for (int turn = 0; v_any(active); turn++) {
        const vi next = next_order(&now, k, turn);
        const vf bound = (vf)v_order(next);
        vi some = {0};
        UNROLL_BY(4)
        for (int32_t r = 0; r < rows; r++)
            some -= (vi)(v_load(list + (int64_t)r * width) >= bound);
        const vi up = active & (some >= k), down = active & (some < k);
        now.least = v_choose(up, next, now.least);
        now.found = v_choose(up, some, now.found);
        now.above = v_choose(down, next, now.above);
        now.fewer = v_choose(down, some, now.fewer);
        active = (now.found > most) & (now.above - 1 > now.least);
    }
    const vf least = (vf)v_order(now.least);
    int32_t equal_ones[LANES];
    equals = v_choose(now.found > most, k - now.fewer, v_index(INT32_MAX));
    memcpy(equal_ones, &equals, sizeof equals);
    keep_largest(width, rows, least, equal_ones, list, keys, counts);
    memcpy(&kept, counts, sizeof kept);
    for (int32_t r = 0; r < rows; r++) {
        float *row = list + (int64_t)r * width;
        const vi is_kept = v_index(r) < kept;
        v_store(row,
                (vf)v_choose(is_kept, (vi)v_load(row), (vi)v_splat(-__builtin_inff())));
    }
    const vf low = v_load(floor);
    v_store(floor, (vf)v_choose(enough & (vi)(least > low), (vi)least, (vi)low));
}

/* b where a is NaN. */
INLINE vf larger(vf a, vf b) {
    return (vf)v_choose((vi)(a > b), (vi)a, (vi)b);
}

static void add_and_raise(const float *more, int width, int count, float *scores,
                          float *best) {
    for (int i = 0; i < width; i += LANES) {
        const vf add = v_load(more + i);
        for (int r = 0; r < count; r++) {
            const int at = r * width + i;
            const vf sum = v_load(scores + at) + add;
            v_store(scores + at, sum);
            v_store(best + at, larger(sum, v_load(best + at)));
        }
    }
}

static void largest_above(const float *scores, int width, int count, const float *below,
                          const float *more, float *out) {
    const vf lowest = v_splat(-__builtin_inff());
    for (int i = 0; i < width; i += LANES) {
        vf best = lowest;
        for (int r = 0; r < count; r++)
            best = larger(v_load(scores + r * width + i) - v_splat(below[r]), best);
        best += v_load(more + i);
        v_store(out + i, (vf)v_choose((vi)(best == best), (vi)best, (vi)lowest));
    }
}

/* How many of x are at least `least`. */
INLINE int32_t count_from(const float *x, int32_t count, float least) {
    vi sums = {0};
    int32_t i = 0, total = 0;
    for (; i + LANES <= count; i += LANES)
        sums -= (vi)(v_load(x + i) >= v_splat(least));
    for (; i < count; i++)
        total += x[i] >= least;
    for (int lane = 0; lane < LANES; lane++)
        total += sums[lane];
    return total;
}

/* The orders (float_order) of the smallest and of the largest. */
INLINE void find_range(const float *x, int32_t count, int64_t *low, int64_t *high) {
    float least = x[0], most = x[0];
    int32_t i = 0;
    if (count >= LANES) {
        vf lows = v_load(x), highs = lows;
        for (i = LANES; i + LANES <= count; i += LANES) {
            const vf some = v_load(x + i);
            lows = (vf)v_choose((vi)(some < lows), (vi)some, (vi)lows);
            highs = v_max(highs, some);
        }
        for (int lane = 0; lane < LANES; lane++) {
            least = lows[lane] < least ? lows[lane] : least;
            most = highs[lane] > most ? highs[lane] : most;
        }
    }
    for (; i < count; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    *low = float_order(least);
    *high = float_order(most);
}

/* A number that k or more of x are at least, *found of them: the k-th largest, or a
   smaller one that is above the next. Between what has k or more and what has fewer the
   next try is where it would be if numbers were evenly spread, and every third time in
   the middle of all floats that there are: one of them comes to an end soon. */
INLINE float find_least(const float *x, int32_t count, int32_t k, int32_t *found) {
    int64_t least, above;
    int32_t fewer = 0;
    find_range(x, count, &least, &above);
    *found = count;
    above++;
    for (int turn = 1; *found != k && above - least > 1; turn++) {
        const float low = float_of_order((int32_t)least);
        const float high = float_of_order((int32_t)above);
        const float part = ((float)(*found - k) + 0.5f) / (float)(*found - fewer);
        const float guess = low + (high - low) * part;
        int64_t next = least + (above - least) / 2;
        if (turn % 3 != 0 && guess > low && guess < high)
            next = float_order(guess);
        const int32_t some = count_from(x, count, float_of_order((int32_t)next));
        if (some >= k) {
            least = next;
            *found = some;
        } else {
            above = next;
            fewer = some;
        }
    }
    return float_of_order((int32_t)least);
}

/* Where more than k were found, `least` is one of them, and not all that equal it are
   taken. */
INLINE void take_first(const float *x, int32_t count, int32_t k, float least,
                       int32_t *places) {
    int32_t equals = k;
    for (int32_t i = 0; i < count; i++)
        equals -= x[i] > least;
    for (int32_t i = 0, taken = 0; taken < k; i++)
        if (x[i] > least || (x[i] == least && equals-- > 0))
            places[taken++] = i;
}

static void largest(const float *x, int32_t count, int32_t k, int32_t *places) {
    int32_t found = 0, i = 0;
    if (k == 0)
        return;
    const float least = find_least(x, count, k, &found);
    if (found > k) {
        take_first(x, count, k, least, places);
        return;
    }
    for (; i + LANES <= count; i += LANES) {
        unsigned hits = v_greater(v_splat(least), v_load(x + i));
        for (hits = ~hits & (unsigned)((UINT64_C(1) << LANES) - 1); hits;
             hits &= hits - 1)
            *places++ = i + __builtin_ctz(hits);
    }
    for (; i < count; i++)
        if (x[i] >= least)
            *places++ = i;
}

static void signs(const float *scores, int width, int bits, uint8_t *planes) {
    for (int plane = 0; plane * 8 < bits; plane++) {
        int count = bits - plane * 8 < 8 ? bits - plane * 8 : 8;
        const float *rows = scores + plane * 8 * width;
        for (int i = 0; i < width; i += LANES) {
            vi byte = {0}, bit = byte + 1;
            for (int b = 0; b < count; b++, bit += bit)
                byte |= v_positive(v_load(rows + b * width + i)) & bit;
            for (int lane = 0; lane < LANES; lane++)
                planes[plane * HASH_BLOCK + i + lane] = (uint8_t)byte[lane];
        }
    }
}

enum { BLOCK_VECTORS = HASH_BLOCK / BYTES };

/* Distances of a block of hashes from two centres at once: a table lookup and an addition
   for every four bits of every hash, each load of them used twice. */
INLINE void distances(const uint8_t *nibbles, int nibble_count, const uint8_t *first,
                      const uint8_t *second, vb sums[2][BLOCK_VECTORS]) {
    UNROLL for (int v = 0; v < BLOCK_VECTORS; v++) sums[0][v] = sums[1][v] = (vb){0};
    UNROLL_BY(2) for (int n = 0; n < nibble_count; n++) {
        vb table = b_table(first + n * 16), other = b_table(second + n * 16);
        UNROLL for (int v = 0; v < BLOCK_VECTORS; v++) {
            vb index = b_load(nibbles + n * HASH_BLOCK + v * BYTES);
            sums[0][v] += b_lookup(table, index);
            sums[1][v] += b_lookup(other, index);
        }
    }
}

static void nearest(const uint8_t *nibbles, int nibble_count, const uint8_t *tables,
                    int count, uint8_t *distance, uint8_t *centre) {
    vb best[BLOCK_VECTORS], who[BLOCK_VECTORS] = {{0}};
    for (int v = 0; v < BLOCK_VECTORS; v++)
        best[v] = b_splat(255);
    for (int c = 0; c < count; c += 2) {
        /* The last of an odd number is compared twice, which changes nothing. */
        int next = c + 1 < count ? c + 1 : c;
        vb sums[2][BLOCK_VECTORS];
        distances(nibbles, nibble_count, tables + c * nibble_count * 16,
                  tables + next * nibble_count * 16, sums);
        UNROLL for (int v = 0; v < BLOCK_VECTORS; v++)
            UNROLL for (int which = 0; which < 2; which++) {
            vb least = b_min(best[v], sums[which][v]);
            who[v] =
                b_if_equal(least, best[v], who[v], b_splat((uint8_t)(which ? next : c)));
            best[v] = least;
        }
    }
    for (int v = 0; v < BLOCK_VECTORS; v++) {
        b_store(distance + v * BYTES, best[v]);
        b_store(centre + v * BYTES, who[v]);
    }
}

static void tally(uint64_t word, int16_t by, int16_t counters[64]) {
    enum { COUNTERS = BYTES / 2 };
    const vh step = h_splat(by);
    UNROLL for (int b = 0; b < 64; b += COUNTERS)
        h_store(counters + b, h_add_where(h_load(counters + b), step, word >> b));
}
