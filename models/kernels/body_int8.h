/* Products of bytes: rows of 8 bits without a sign by weights of INT8_MOST levels to
 * either side of 0, exact in 32 bits, then floats. Sums of integers have no order, and
 * what follows them is elementwise without fused products, so the bits are the same on
 * every instruction set, with its dot products or without.
 *
 * vpmaddubsw adds two products in 16 bits; 2 * 255 * 63 fits, so weights have 7 bits
 * (docs/notebook/precision.md compares the alternatives). */
#include "models/kernels/kernels.h"

#if defined(__AVX512F__)
#define INT8_TILE_ROWS 12
enum { INT8_VECTORS = 2 };
#elif defined(__AVX2__)
#define INT8_TILE_ROWS 6
enum { INT8_VECTORS = 2 };
#else
#define INT8_TILE_ROWS 6
enum { INT8_VECTORS = 4 };
#endif
enum { INT8_TILE = INT8_TILE_ROWS };

/* ---- Without dot products ---------------------------------------------------------- */

INLINE vi int8_dot_plain(vi sums, vi x, vi w) {
#if defined(__AVX512F__)
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)x, (__m512i)w);
    return sums + (vi)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)x, (__m256i)w);
    return sums + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    /* 8 bits with and without a sign have no product of their own: 16 bits. */
    const uint8x16_t bytes = vreinterpretq_u8_s32((int32x4_t)x);
    const int8x16_t weights = vreinterpretq_s8_s32((int32x4_t)w);
    const int16x8_t low = vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))),
                                    vmovl_s8(vget_low_s8(weights)));
    const int16x8_t high = vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(bytes))),
                                     vmovl_s8(vget_high_s8(weights)));
    return sums + (vi)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}

#define INT8_NAME(x) int8_plain_##x
#define INT8_TARGET
#define INT8_DOT int8_dot_plain
#define INT8_BELOW 0
#include "models/kernels/body_int8_tile.h"

static void int8_product(int64_t quads, const int8_block *w, const uint8_t *x,
                         int64_t x_stride, const int8_row *of, int rows, float *y,
                         int64_t y_stride) {
    int8_plain_any(quads, w, x, x_stride, of, rows, y, y_stride);
}

/* ---- With the processor's dot products --------------------------------------------- */

#if defined(__AVX512F__)
#define INT8_TARGET __attribute__((target("avx512vnni")))
#define INT8_DOT(sums, x, w)                                                             \
    (vi) _mm512_dpbusd_epi32((__m512i)(sums), (__m512i)(x), (__m512i)(w))
#define INT8_BELOW 0
#elif defined(__AVX2__)
#define INT8_TARGET __attribute__((target("avxvnni")))
#define INT8_DOT(sums, x, w)                                                             \
    (vi) _mm256_dpbusd_avx_epi32((__m256i)(sums), (__m256i)(x), (__m256i)(w))
#define INT8_BELOW 0
#else
/* sdot has signs on both sides. As an instruction: compilers differ in where they let its
   function be called, and in how an assembler is told that it may have it. */
#ifdef __clang__
#define INT8_TARGET __attribute__((target("dotprod")))
#define SDOT "sdot %0.4s, %1.16b, %2.16b"
#else
#define INT8_TARGET
#define SDOT ".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b"
#endif
INT8_TARGET INLINE vi int8_dot_native(vi sums, vi x, vi w) {
    const uint8x16_t bytes = vreinterpretq_u8_s32((int32x4_t)x);
    const int8x16_t below = vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)));
    const int8x16_t weights = vreinterpretq_s8_s32((int32x4_t)w);
    int32x4_t all = (int32x4_t)sums;
    __asm__(SDOT : "+w"(all) : "w"(below), "w"(weights));
    return (vi)all;
}
#define INT8_DOT int8_dot_native
#define INT8_BELOW 128
#endif
#define INT8_NAME(x) int8_native_##x
#include "models/kernels/body_int8_tile.h"

static void int8_product_dot(int64_t quads, const int8_block *w, const uint8_t *x,
                             int64_t x_stride, const int8_row *of, int rows, float *y,
                             int64_t y_stride) {
    int8_native_any(quads, w, x, x_stride, of, rows, y, y_stride);
}
