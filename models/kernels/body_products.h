/* Products of matrices: a tile of the result stays in registers while the sum passes. The
   columns of the result are lanes, its rows are broadcast; both factors are packed in the
   order in which the tile reads them (models/nn/products.c). */
#include "models/kernels/kernels.h"

/* Rows and vectors of one tile in registers; the sums, the vectors and a broadcast fill
   them. PRODUCT_ROWS by PRODUCT_COLUMNS is a whole number of tiles. */
#if defined(__AVX512F__)
enum { TILE_HEIGHT = 12, TILE_WIDTH = 2 };
#elif defined(__AVX2__)
enum { TILE_HEIGHT = 6, TILE_WIDTH = 2 };
#else
enum { TILE_HEIGHT = 6, TILE_WIDTH = 4 };
#endif

/* Vectors that PRODUCT_ROWS floats fill; the last may overlap what follows. */
enum { PANEL_VECTORS = (PRODUCT_ROWS + LANES - 1) / LANES };

/* `features` steps of the sum, at most LANES, of rows that lie one below the other. */
INLINE void turn_rows(const float *x, int64_t stride, int rows, int features,
                      float *panel) {
    vf squares[PANEL_VECTORS][LANES];
    UNROLL
    for (int v = 0; v < PANEL_VECTORS; v++) {
        UNROLL
        for (int i = 0; i < LANES; i++) {
            const int row = v * LANES + i;
            squares[v][i] = row >= rows         ? (vf){0}
                            : features == LANES ? v_load(x + row * stride)
                                                : v_load_some(x + row * stride, features);
        }
        v_transpose(squares[v]);
    }
    /* Each store may overlap the next, which comes later. */
    for (int k = 0; k < features; k++) {
        UNROLL
        for (int v = 0; v < PANEL_VECTORS; v++)
            v_store(panel + k * PRODUCT_ROWS + v * LANES, squares[v][k]);
    }
}

INLINE void copy_rows(const float *x, int rows, float *panel) {
    UNROLL
    for (int v = 0; v < PANEL_VECTORS; v++) {
        const int live = rows - v * LANES;
        v_store(panel + v * LANES, live >= LANES ? v_load(x + v * LANES)
                                   : live > 0    ? v_load_some(x + v * LANES, live)
                                                 : (vf){0});
    }
}

static void product_panel(int64_t depth, int rows, const float *x, int64_t stride,
                          int depth_major, float *panel) {
    int64_t k = 0;
    if (depth_major && rows == PRODUCT_ROWS)
        for (; k < depth; k++)
            copy_rows(x + k * stride, PRODUCT_ROWS, panel + k * PRODUCT_ROWS);
    else if (depth_major)
        for (; k < depth; k++)
            copy_rows(x + k * stride, rows, panel + k * PRODUCT_ROWS);
    else if (rows == PRODUCT_ROWS)
        for (; k + LANES <= depth; k += LANES)
            turn_rows(x + k, stride, PRODUCT_ROWS, LANES, panel + k * PRODUCT_ROWS);
    for (; k < depth; k += LANES)
        turn_rows(x + k, stride, rows, depth - k < LANES ? (int)(depth - k) : LANES,
                  panel + k * PRODUCT_ROWS);
}

/* `rows` rows by TILE_WIDTH vectors. */
INLINE void product_sums(int64_t depth, const float *a, const float *b, int rows,
                         vf sums[TILE_HEIGHT][TILE_WIDTH]) {
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < TILE_WIDTH; v++)
            sums[r][v] = (vf){0};
    }
    for (int64_t k = 0; k < depth; k++, a += PRODUCT_ROWS, b += PRODUCT_COLUMNS) {
        vf columns[TILE_WIDTH];
        UNROLL
        for (int v = 0; v < TILE_WIDTH; v++)
            columns[v] = v_load(b + v * LANES);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const vf one = v_splat(a[r]);
            UNROLL
            for (int v = 0; v < TILE_WIDTH; v++)
                sums[r][v] = v_fma(one, columns[v], sums[r][v]);
        }
    }
}

/* A tile of which the first `live` rows, at most `rows`, are written. */
INLINE void whole_tile(int64_t depth, const float *a, const float *b, int rows, int live,
                       int onto, float *c, int64_t stride) {
    vf sums[TILE_HEIGHT][TILE_WIDTH];
    product_sums(depth, a, b, rows, sums);
    UNROLL
    for (int r = 0; r < rows; r++) {
        if (r >= live)
            break;
        UNROLL
        for (int v = 0; v < TILE_WIDTH; v++) {
            float *to = c + r * stride + v * LANES;
            v_store(to, onto ? v_load(to) + sums[r][v] : sums[r][v]);
        }
    }
}

/* The same of fewer than TILE_WIDTH vectors of columns. */
static void narrow_tile(int64_t depth, const float *a, const float *b, int live,
                        int columns, int onto, float *c, int64_t stride) {
    vf sums[TILE_HEIGHT][TILE_WIDTH];
    product_sums(depth, a, b, TILE_HEIGHT, sums);
    for (int r = 0; r < TILE_HEIGHT && r < live; r++)
        for (int v = 0; v * LANES < columns; v++) {
            float *to = c + r * stride + v * LANES;
            const int some = columns - v * LANES < LANES ? columns - v * LANES : LANES;
            v_store_some(to, onto ? v_load_some(to, some) + sums[r][v] : sums[r][v],
                         some);
        }
}

static void product_tile(int64_t depth, const float *a, const float *b, int rows,
                         int columns, int onto, float *c, int64_t stride) {
    const int third = TILE_HEIGHT / 3;
    for (int left = 0; left < columns; left += TILE_WIDTH * LANES)
        for (int row = 0; row < rows; row += TILE_HEIGHT) {
            const int live = rows - row;
            const float *from = a + row, *by = b + left;
            float *to = c + row * stride + left;
            if (columns - left < TILE_WIDTH * LANES)
                narrow_tile(depth, from, by, live, columns - left, onto, to, stride);
            else if (live > 2 * third)
                whole_tile(depth, from, by, 3 * third, live, onto, to, stride);
            else if (live > third)
                whole_tile(depth, from, by, 2 * third, live, onto, to, stride);
            else
                whole_tile(depth, from, by, third, live, onto, to, stride);
        }
}
