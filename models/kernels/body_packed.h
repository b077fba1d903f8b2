/* Products of few rows with packed matrices: outputs are lanes, a tile of rows and
   vectors of outputs stays in registers, and each sum goes through the inputs in order,
   so that a row's result does not depend on the rows beside it. */
#include "models/kernels/kernels.h"

/* Vectors of outputs and rows of one tile; the sums, the vectors and a broadcast fill
   the registers. */
#if defined(__AVX512F__)
enum { PACKED_VECTORS = 2, PACKED_TILE = 12 };
#elif defined(__AVX2__)
enum { PACKED_VECTORS = 2, PACKED_TILE = 6 };
#else
enum { PACKED_VECTORS = 4, PACKED_TILE = 6 };
#endif

typedef struct {
    int64_t inputs;
    const void *w; /* from the tile's first output on */
    const float *x;
    int width;
} packed_job;

INLINE void packed_add(const packed_job *job, int rows, int64_t input, const vf *w,
                       vf sums[PACKED_TILE][PACKED_VECTORS]) {
    const float *x = job->x + input * job->width;
    UNROLL
    for (int r = 0; r < rows; r++) {
        const vf one = v_splat(x[r]);
        UNROLL
        for (int v = 0; v < PACKED_VECTORS; v++)
            sums[r][v] = v_fma(one, w[v], sums[r][v]);
    }
}

INLINE void packed_groups(const packed_job *job, int rows, int64_t first,
                          vf sums[PACKED_TILE][PACKED_VECTORS]) {
    const packed_group *group = job->w;
    for (int64_t input = 0; input < job->inputs; group++) {
        vf w[PACKED_VECTORS], scale[PACKED_VECTORS], shift[PACKED_VECTORS];
        UNROLL
        for (int v = 0; v < PACKED_VECTORS; v++) {
            scale[v] = v_load_halves(group->scale + first + v * LANES);
            shift[v] = v_load_halves(group->shift + first + v * LANES);
        }
        for (int i = 0; i < PACKED_GROUP; i++, input++) {
            UNROLL
            for (int v = 0; v < PACKED_VECTORS; v++)
                w[v] = v_fma(v_load_bytes(group->bytes[i] + first + v * LANES), scale[v],
                             shift[v]);
            packed_add(job, rows, input, w, sums);
        }
    }
}

INLINE void packed_numbers(const packed_job *job, int rows, int64_t first, bool half,
                           vf sums[PACKED_TILE][PACKED_VECTORS]) {
    for (int64_t input = 0; input < job->inputs; input++) {
        const int64_t at = input * PACKED_OUTPUTS + first;
        vf w[PACKED_VECTORS];
        UNROLL
        for (int v = 0; v < PACKED_VECTORS; v++)
            w[v] = half ? v_load_halves((const uint16_t *)job->w + at + v * LANES)
                        : v_load((const float *)job->w + at + v * LANES);
        packed_add(job, rows, input, w, sums);
    }
}

/* One tile: `rows` of x, PACKED_VECTORS vectors of outputs from `first` on; the first
   `live` rows are written. */
INLINE void packed_tile(const packed_job *job, int rows, int64_t first, int form,
                        int live, float *y, int64_t stride) {
    vf sums[PACKED_TILE][PACKED_VECTORS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < PACKED_VECTORS; v++)
            sums[r][v] = (vf){0};
    }
    if (form == PACKED_BYTES)
        packed_groups(job, rows, first, sums);
    else
        packed_numbers(job, rows, first, form == PACKED_HALVES, sums);
    UNROLL
    for (int r = 0; r < rows; r++) {
        if (r >= live)
            break;
        UNROLL
        for (int v = 0; v < PACKED_VECTORS; v++)
            v_store(y + r * stride + first + v * LANES, sums[r][v]);
    }
}

INLINE void packed_panel(packed_job job, int tile, int form, int rows, float *y,
                         int64_t stride) {
    const int width = job.width;
    for (int row = 0; row < width && row < rows; row += tile, job.x += tile)
        for (int first = 0; first < PACKED_OUTPUTS; first += PACKED_VECTORS * LANES)
            packed_tile(&job, tile, first, form, rows - row, y + row * stride, stride);
}

INLINE void packed_any(packed_job job, int form, int rows, float *y, int64_t stride) {
    switch (job.width) {
    case 1: packed_panel(job, 1, form, rows, y, stride); break;
    case 2: packed_panel(job, 2, form, rows, y, stride); break;
    case 4: packed_panel(job, 4, form, rows, y, stride); break;
    case 8: packed_panel(job, PACKED_TILE > 8 ? 8 : 4, form, rows, y, stride); break;
    default: packed_panel(job, PACKED_TILE, form, rows, y, stride); break;
    }
}

static void packed(int64_t inputs, const void *w, int form, const float *x, int width,
                   int rows, float *y, int64_t stride) {
    const packed_job job = {inputs, w, x, width};
    if (form == PACKED_HALVES)
        packed_any(job, PACKED_HALVES, rows, y, stride);
    else if (form == PACKED_FLOATS)
        packed_any(job, PACKED_FLOATS, rows, y, stride);
    else
        packed_any(job, PACKED_BYTES, rows, y, stride);
}

/* ---- Pairs of bfloat16 ------------------------------------------------------------ */

#if defined(__AVX512F__)
__attribute__((target("avx512bf16"))) static void
bf16_product_native(int64_t pairs, const uint32_t *w, const uint32_t *x, int rows,
                    float *y, int64_t stride) {
    __m512 sums[PACKED_ROWS][2];
    UNROLL
    for (int r = 0; r < PACKED_ROWS; r++)
        sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; p++) {
        const __m512bh first = (__m512bh)_mm512_loadu_si512(w + p * PACKED_OUTPUTS);
        const __m512bh second = (__m512bh)_mm512_loadu_si512(w + p * PACKED_OUTPUTS + 16);
        UNROLL
        for (int r = 0; r < PACKED_ROWS; r++) {
            const __m512bh one = (__m512bh)_mm512_set1_epi32((int)x[p * PACKED_ROWS + r]);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], first, one);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], second, one);
        }
    }
    UNROLL
    for (int r = 0; r < PACKED_ROWS; r++) {
        if (r >= rows)
            break;
        _mm512_storeu_ps(y + r * stride, sums[r][0]);
        _mm512_storeu_ps(y + r * stride + 16, sums[r][1]);
    }
}

static void bf16_product(int64_t pairs, const uint32_t *w, const uint32_t *x, int rows,
                         float *y, int64_t stride) {
    if (__builtin_cpu_supports("avx512bf16"))
        bf16_product_native(pairs, w, x, rows, y, stride);
    else
        bf16_product_plain(pairs, w, x, rows, y, stride);
}
#else
static void bf16_product(int64_t pairs, const uint32_t *w, const uint32_t *x, int rows,
                         float *y, int64_t stride) {
    bf16_product_plain(pairs, w, x, rows, y, stride);
}
#endif
