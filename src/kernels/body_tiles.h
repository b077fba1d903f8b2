/* Panels and the three products on them, written once for every vector width. */
#include "kernels/kernels.h"
#include "kernels/simd.h"

/* One square of LANES rows by LANES features, or less of either. */
INLINE void pack_square(const float *const *rows, int d, int features, int width,
                        float scale, float *panel) {
    vf square[LANES];
    if (features == LANES)
        UNROLL for (int i = 0; i < LANES; i++) square[i] = v_load(rows[i] + d);
    else
        for (int i = 0; i < LANES; i++)
            square[i] = v_load_some(rows[i] + d, features);
    v_transpose(square);
    if (features == LANES)
        UNROLL for (int j = 0; j < LANES; j++)
            v_store(panel + (d + j) * width, v_splat(scale) * square[j]);
    else
        for (int j = 0; j < features; j++)
            v_store(panel + (d + j) * width, v_splat(scale) * square[j]);
}

static void pack(const float *x, int64_t stride, const int32_t *index, int count,
                 int width, int dim, float scale, float *panel) {
    for (int first = 0; first < width; first += LANES, panel += LANES) {
        const float *rows[LANES];
        int live = count - first < LANES ? count - first : LANES;
        for (int i = 0; i < LANES; i++) {
            int64_t row = first + (i < live ? i : 0);
            if (live > 0)
                rows[i] = x + (index ? index[row] : row) * stride;
        }
        if (live <= 0) {
            for (int d = 0; d < dim; d++)
                v_store(panel + d * width, (vf){0});
            continue;
        }
        for (int d = 0; d < dim; d += LANES)
            pack_square(rows, d, dim - d < LANES ? dim - d : LANES, width, scale, panel);
        /* Lanes past the last query repeated its first row: clear them. */
        for (int d = 0; d < dim && live < LANES; d++)
            for (int i = live; i < LANES; i++)
                panel[d * width + i] = 0;
    }
}

static void unpack(const float *panel, int count, int width, int dim, const float *factor,
                   const float *shift, int onto, float *x, int64_t stride,
                   const int32_t *index) {
    for (int first = 0; first < count; first += LANES) {
        int live = count - first < LANES ? count - first : LANES;
        vf by = factor ? v_load_some(factor + first, live) : v_splat(1);
        for (int d = 0; d < dim; d += LANES) {
            int features = dim - d < LANES ? dim - d : LANES;
            vf square[LANES];
            UNROLL for (int j = 0; j < LANES; j++) square[j] =
                j < features ? by * v_load(panel + (d + j) * width + first) : (vf){0};
            v_transpose(square);
            vf more = shift ? v_load_some(shift + d, features) : (vf){0};
            for (int i = 0; i < live; i++) {
                float *row = x + (index ? index[first + i] : first + i) * stride + d;
                vf value = square[i] + more;
                if (features < LANES)
                    v_store_some(row, onto ? v_load_some(row, features) + value : value,
                                 features);
                else
                    v_store(row, onto ? v_load(row) + value : value);
            }
        }
    }
}

/* LANES rows of x become lanes; those past the last one are 0. */
INLINE void load_across(const float *x, int64_t stride, int live, int features,
                        vf square[LANES]) {
    if (live == LANES && features == LANES)
        UNROLL for (int i = 0; i < LANES; i++) square[i] = v_load(x + i * stride);
    else
        for (int i = 0; i < LANES; i++)
            square[i] = i < live ? v_load_some(x + i * stride, features) : (vf){0};
    v_transpose(square);
}

static void add_across(const float *x, int64_t stride, int lanes, int width, int count,
                       float *scores) {
    for (int first = 0; first < lanes; first += LANES)
        for (int r = 0; r < count; r += LANES) {
            const int features = count - r < LANES ? count - r : LANES;
            float *to = scores + r * width + first;
            vf square[LANES];
            load_across(x + first * stride + r, stride,
                        lanes - first < LANES ? lanes - first : LANES, features, square);
            if (features == LANES)
                UNROLL for (int j = 0; j < LANES; j++)
                    v_store(to + j * width, v_load(to + j * width) + square[j]);
            else
                for (int j = 0; j < features; j++)
                    v_store(to + j * width, v_load(to + j * width) + square[j]);
        }
}

static void add_to_rows(const float *x, int64_t stride, int width, int count,
                        float *scores) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i += LANES) {
            float *to = scores + r * width + i;
            v_store(to, v_load(to) + v_splat(x[r * stride]));
        }
}

/* Calls a function whose last argument is the number of vectors of a panel, so that it is
   a constant there. */
#define BY_WIDTH(width, function, ...)                                                   \
    do {                                                                                 \
        switch ((width) / LANES) {                                                       \
        case 1: function(__VA_ARGS__, 1); break;                                         \
        case 2: function(__VA_ARGS__, 2); break;                                         \
        default: function(__VA_ARGS__, 3); break;                                        \
        }                                                                                \
    } while (0)

/* R rows by V vectors of scores stay in registers while the features pass. `at`: of
   rows index[r] instead of r. */
INLINE void score_tile(const float *panel, int width, int dim, const float *rows,
                       int64_t stride, const bool at, const int32_t *index, float *scores,
                       const int R, const int V) {
    vf sums[TILE_ROWS * TILE_VECTORS] = {{0}};
    const float *row[TILE_ROWS * TILE_VECTORS];
    if (at)
        UNROLL for (int r = 0; r < R; r++) row[r] = rows + index[r] * stride;
    for (int d = 0; d < dim; d++) {
        vf queries[TILE_VECTORS];
        UNROLL for (int v = 0; v < V; v++)
            queries[v] = v_load(panel + d * width + v * LANES);
        UNROLL for (int r = 0; r < R; r++) {
            vf key = v_splat(at ? row[r][d] : rows[r * stride + d]);
            UNROLL for (int v = 0; v < V; v++)
                sums[r * V + v] = v_fma(key, queries[v], sums[r * V + v]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++)
        v_store(scores + r * width + v * LANES, sums[r * V + v]);
}

INLINE void score_rows(const float *panel, int width, int dim, const float *rows,
                       int64_t stride, int count, float *scores, const int V) {
    const int R = TILE_ROWS * TILE_VECTORS / V;
    int r = 0;
    for (; r + R <= count; r += R)
        score_tile(panel, width, dim, rows + r * stride, stride, false, NULL,
                   scores + r * width, R, V);
    for (; R > 4 && r + 4 <= count; r += 4)
        score_tile(panel, width, dim, rows + r * stride, stride, false, NULL,
                   scores + r * width, 4, V);
    rows += r * stride;
    scores += r * width;
    switch (count - r) {
    case 3: score_tile(panel, width, dim, rows, stride, false, NULL, scores, 3, V); break;
    case 2: score_tile(panel, width, dim, rows, stride, false, NULL, scores, 2, V); break;
    case 1: score_tile(panel, width, dim, rows, stride, false, NULL, scores, 1, V); break;
    }
}

static void score(const float *panel, int width, int dim, const float *rows,
                  int64_t stride, int count, float *scores) {
    BY_WIDTH(width, score_rows, panel, width, dim, rows, stride, count, scores);
}

INLINE void score_rows_at(const float *panel, int width, int dim, const float *rows,
                          int64_t stride, const int32_t *index, int count, float *scores,
                          const int V) {
    const int R = V == 1 ? 8 : 4;
    int r = 0;
    for (; r + R <= count; r += R)
        score_tile(panel, width, dim, rows, stride, true, index + r, scores + r * width,
                   R, V);
    for (; r < count; r++)
        score_tile(panel, width, dim, rows, stride, true, index + r, scores + r * width,
                   1, V);
}

static void score_at(const float *panel, int width, int dim, const float *rows,
                     int64_t stride, const int32_t *index, int count, float *scores) {
    BY_WIDTH(width, score_rows_at, panel, width, dim, rows, stride, index, count, scores);
}

/* R features by V vectors of the output stay in registers while the keys pass. index
   NULL: rows in order. */
INLINE void mix_tile(const float *weights, int width, const float *rows, int64_t stride,
                     const int32_t *index, int count, const float *keep, float *out,
                     const int R, const int V) {
    vf sums[TILE_ROWS * TILE_VECTORS] = {{0}};
    for (int r = 0; r < count; r++) {
        const float *row = rows + (index ? index[r] : r) * stride;
        vf weight[TILE_VECTORS];
        UNROLL for (int v = 0; v < V; v++)
            weight[v] = v_load(weights + r * width + v * LANES);
        UNROLL for (int d = 0; d < R; d++) {
            vf value = v_splat(row[d]);
            UNROLL for (int v = 0; v < V; v++)
                sums[d * V + v] = v_fma(value, weight[v], sums[d * V + v]);
        }
    }
    UNROLL for (int d = 0; d < R; d++) UNROLL for (int v = 0; v < V; v++) {
        float *place = out + d * width + v * LANES;
        vf kept = keep ? v_fma(v_load(place), v_load(keep + v * LANES), sums[d * V + v])
                       : v_load(place) + sums[d * V + v];
        v_store(place, kept);
    }
}

INLINE void mix_features(const float *weights, int width, const float *rows,
                         int64_t stride, const int32_t *index, int count, int dim,
                         const float *keep, float *out, const int V) {
    const int R = TILE_ROWS * TILE_VECTORS / V;
    int d = 0;
    for (; d + R <= dim; d += R)
        mix_tile(weights, width, rows + d, stride, index, count, keep, out + d * width, R,
                 V);
    for (; R > 4 && d + 4 <= dim; d += 4)
        mix_tile(weights, width, rows + d, stride, index, count, keep, out + d * width, 4,
                 V);
    rows += d;
    out += d * width;
    switch (dim - d) {
    case 3: mix_tile(weights, width, rows, stride, index, count, keep, out, 3, V); break;
    case 2: mix_tile(weights, width, rows, stride, index, count, keep, out, 2, V); break;
    case 1: mix_tile(weights, width, rows, stride, index, count, keep, out, 1, V); break;
    }
}

static void mix(const float *weights, int width, const float *rows, int64_t stride,
                int count, int dim, const float *keep, float *out) {
    BY_WIDTH(width, mix_features, weights, width, rows, stride, NULL, count, dim, keep,
             out);
}

static void mix_at(const float *weights, int width, const float *rows, int64_t stride,
                   const int32_t *index, int count, int dim, float *out) {
    BY_WIDTH(width, mix_features, weights, width, rows, stride, index, count, dim, NULL,
             out);
}

/* R keys by V vectors of features stay in registers while the queries pass. `some` is the
   number of features in the last vector. */
INLINE void spread_tile(const float *weights, int64_t width, int lanes, const float *x,
                        int64_t stride, float *out, int64_t out_stride, const int R,
                        const int V, int some) {
    vf sums[TILE_ROWS * TILE_VECTORS] = {{0}};
    for (int i = 0; i < lanes; i++) {
        const float *row = x + i * stride;
        vf values[TILE_VECTORS];
        UNROLL for (int v = 0; v < V - 1; v++) values[v] = v_load(row + v * LANES);
        values[V - 1] = some == LANES ? v_load(row + (V - 1) * LANES)
                                      : v_load_some(row + (V - 1) * LANES, some);
        UNROLL for (int r = 0; r < R; r++) {
            vf weight = v_splat(weights[r * width + i]);
            UNROLL for (int v = 0; v < V; v++)
                sums[r * V + v] = v_fma(weight, values[v], sums[r * V + v]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        float *place = out + r * out_stride;
        UNROLL for (int v = 0; v < V - 1; v++)
            v_store(place + v * LANES, v_load(place + v * LANES) + sums[r * V + v]);
        place += (V - 1) * LANES;
        if (some == LANES)
            v_store(place, v_load(place) + sums[r * V + V - 1]);
        else
            v_store_some(place, v_load_some(place, some) + sums[r * V + V - 1], some);
    }
}

INLINE void spread_rows(const float *weights, int64_t width, int lanes, const float *x,
                        int64_t stride, int count, float *out, int64_t out_stride,
                        const int V, int some) {
    const int R = TILE_ROWS * TILE_VECTORS / V;
    int r = 0;
    for (; r + R <= count; r += R)
        spread_tile(weights + r * width, width, lanes, x, stride, out + r * out_stride,
                    out_stride, R, V, some);
    for (; r < count; r++)
        spread_tile(weights + r * width, width, lanes, x, stride, out + r * out_stride,
                    out_stride, 1, V, some);
}

static void spread(const float *weights, int64_t width, int lanes, const float *x,
                   int64_t stride, int dim, int count, float *out, int64_t out_stride) {
    const int whole = LANES * TILE_VECTORS;
    int d = 0;
    for (; dim - d >= whole; d += whole)
        spread_rows(weights, width, lanes, x + d, stride, count, out + d, out_stride,
                    TILE_VECTORS, LANES);
    if (dim - d >= 2 * LANES) {
        spread_rows(weights, width, lanes, x + d, stride, count, out + d, out_stride, 2,
                    LANES);
        d += 2 * LANES;
    }
    for (; d < dim; d += LANES)
        spread_rows(weights, width, lanes, x + d, stride, count, out + d, out_stride, 1,
                    dim - d < LANES ? dim - d : LANES);
}

/* R centres by V vectors of queries stay in registers while the coordinates pass. */
INLINE void closest_tile(const float *panel, int width, int rank, const float *centres,
                         int stride, const float *bias, int first, vf *best, vi *who,
                         const int R, const int V) {
    vf sums[TILE_ROWS * TILE_VECTORS];
    UNROLL for (int c = 0; c < R; c++) UNROLL for (int v = 0; v < V; v++)
        sums[c * V + v] = v_splat(bias[c]);
    for (int r = 0; r < rank; r++) {
        vf queries[TILE_VECTORS];
        UNROLL for (int v = 0; v < V; v++)
            queries[v] = v_load(panel + r * width + v * LANES);
        UNROLL for (int c = 0; c < R; c++) {
            vf centre = v_splat(centres[c * stride + r]);
            UNROLL for (int v = 0; v < V; v++)
                sums[c * V + v] = v_fma(centre, queries[v], sums[c * V + v]);
        }
    }
    UNROLL for (int c = 0; c < R; c++) UNROLL for (int v = 0; v < V; v++) {
        vi better = (vi)(sums[c * V + v] > best[v]);
        who[v] = v_choose(better, v_index(first + c), who[v]);
        best[v] = (vf)v_choose(better, (vi)sums[c * V + v], (vi)best[v]);
    }
}

INLINE void closest_of(const float *panel, int width, int rank, const float *centres,
                       int stride, const float *bias, int count, float *best,
                       int32_t *who, const int V) {
    const int R = TILE_ROWS;
    vf highest[TILE_VECTORS];
    vi which[TILE_VECTORS];
    UNROLL for (int v = 0; v < V; v++) {
        highest[v] = v_splat(-__builtin_inff());
        which[v] = (vi){0};
    }
    int c = 0;
    for (; c + R <= count; c += R)
        closest_tile(panel, width, rank, centres + c * stride, stride, bias + c, c,
                     highest, which, R, V);
    for (; c + 2 <= count; c += 2)
        closest_tile(panel, width, rank, centres + c * stride, stride, bias + c, c,
                     highest, which, 2, V);
    if (c < count)
        closest_tile(panel, width, rank, centres + c * stride, stride, bias + c, c,
                     highest, which, 1, V);
    UNROLL for (int v = 0; v < V; v++) {
        v_store(best + v * LANES, highest[v]);
        memcpy(who + v * LANES, &which[v], sizeof which[v]);
    }
}

static void closest(const float *panel, int width, int rank, const float *centres,
                    int stride, const float *bias, int count, float *best, int32_t *who) {
    BY_WIDTH(width, closest_of, panel, width, rank, centres, stride, bias, count, best,
             who);
}

/* V vectors of the sum stay in registers while SUM_BLOCK rows pass. Rows of an index are
   anywhere in memory, so the one that comes SUM_AHEAD later is prefetched. */
enum { SUM_VECTORS = 8, SUM_AHEAD = 12 };

INLINE void sum_block(const float *x, int64_t stride, const int32_t *index,
                      const float *weights, int64_t first, int64_t last, int64_t count,
                      float *sums, const int V, int some) {
    vf block[SUM_VECTORS] = {{0}};
    for (int64_t i = first; i < last; i++) {
        const float *row = x + (index ? index[i] : i) * stride;
        if (index && i + SUM_AHEAD < count)
            for (int v = 0; v < V; v += 64 / (LANES * 4))
                __builtin_prefetch(x + index[i + SUM_AHEAD] * stride + v * LANES);
        const vf weight = v_splat(weights ? weights[i] : 1);
        UNROLL for (int v = 0; v < V; v++) block[v] =
            v_fma(weight,
                  some == LANES ? v_load(row + v * LANES) : v_load_some(row, some),
                  block[v]);
    }
    UNROLL for (int v = 0; v < V; v++) {
        float *place = sums + v * LANES;
        if (some == LANES)
            v_store(place, v_load(place) + block[v]);
        else
            v_store_some(place, v_load_some(place, some) + block[v], some);
    }
}

static void sum_rows(const float *x, int64_t stride, const int32_t *index,
                     const float *weights, int64_t count, int dim, float *sums) {
    memset(sums, 0, (size_t)dim * sizeof *sums);
    for (int64_t first = 0; first < count; first += SUM_BLOCK) {
        int64_t last = first + SUM_BLOCK < count ? first + SUM_BLOCK : count;
        int d = 0;
        for (; d + SUM_VECTORS * LANES <= dim; d += SUM_VECTORS * LANES)
            sum_block(x + d, stride, index, weights, first, last, count, sums + d,
                      SUM_VECTORS, LANES);
        for (; d < dim; d += LANES)
            sum_block(x + d, stride, index, weights, first, last, count, sums + d, 1,
                      dim - d < LANES ? dim - d : LANES);
    }
}

static void scatter_rows(const float *x, int64_t stride, const int32_t *from,
                         const int32_t *to, const float *weights, int64_t count, int dim,
                         float *out, int64_t out_stride) {
    for (int64_t i = 0; i < count; i++) {
        const float *row = x + from[i] * stride;
        float *place = out + to[i] * out_stride;
        const vf weight = v_splat(weights[i]);
        int d = 0;
        for (; d + LANES <= dim; d += LANES)
            v_store(place + d, v_fma(weight, v_load(row + d), v_load(place + d)));
        if (d < dim)
            v_store_some(place + d,
                         v_fma(weight, v_load_some(row + d, dim - d),
                               v_load_some(place + d, dim - d)),
                         dim - d);
    }
}

/* LANES vectors become one: lane i is the sum of vector i's lanes. */
INLINE vf sum_vectors(vf *sums) {
    UNROLL for (int n = LANES / 2; n > 0; n /= 2) UNROLL for (int i = 0; i < n; i++)
        sums[i] = V_LOW(sums[i], sums[i + n]) + V_HIGH(sums[i], sums[i + n]);
    return sums[0];
}

/* LANES rows at a time, so that their sums fill a vector. */
static void dots_at(const float *x, int64_t stride, const int32_t *index, int64_t rows,
                    int dim, const float *a, float *out) {
    for (int64_t first = 0; first < rows; first += LANES) {
        const int live = rows - first < LANES ? (int)(rows - first) : LANES;
        const float *row[LANES];
        vf sums[LANES] = {{0}};
        int d = 0;
        for (int r = 0; r < LANES; r++)
            row[r] = x + index[first + (r < live ? r : 0)] * stride;
        for (; d + LANES <= dim; d += LANES) {
            const vf by = v_load(a + d);
            UNROLL for (int r = 0; r < LANES; r++)
                sums[r] = v_fma(v_load(row[r] + d), by, sums[r]);
        }
        for (int r = 0; r < live && d < dim; r++)
            sums[r] = v_fma(v_load_some(row[r] + d, dim - d), v_load_some(a + d, dim - d),
                            sums[r]);
        v_store_some(out + first, sum_vectors(sums), live);
    }
}

/* LANES / 2 rows at a time, so that the sums of both vectors fill one. */
static void two_dots(const float *x, int64_t stride, int64_t rows, int dim,
                     const float *a, const float *b, float *with_a, float *with_b) {
    enum { HALF = LANES / 2 };
    for (int64_t first = 0; first < rows; first += HALF) {
        const int live = rows - first < HALF ? (int)(rows - first) : HALF;
        vf sums[LANES] = {{0}};
        float both[LANES];
        int d = 0;
        for (; d + LANES <= dim; d += LANES) {
            const vf va = v_load(a + d), vb_ = v_load(b + d);
            UNROLL for (int r = 0; r < HALF; r++) {
                const vf row = v_load(x + (first + (r < live ? r : 0)) * stride + d);
                sums[r] = v_fma(row, va, sums[r]);
                sums[HALF + r] = v_fma(row, vb_, sums[HALF + r]);
            }
        }
        for (int r = 0; r < live && d < dim; r++) {
            const vf row = v_load_some(x + (first + r) * stride + d, dim - d);
            sums[r] = v_fma(row, v_load_some(a + d, dim - d), sums[r]);
            sums[HALF + r] = v_fma(row, v_load_some(b + d, dim - d), sums[HALF + r]);
        }
        v_store(both, sum_vectors(sums));
        memcpy(with_a + first, both, sizeof(float) * (size_t)live);
        memcpy(with_b + first, both + HALF, sizeof(float) * (size_t)live);
    }
}
