/* The verbs that vector code is written in. Each table_*.c is compiled with the flags of
 * its instruction set (cmake/Kernels.cmake), which choose the width and the verbs here:
 *
 *     floats  vf   v_load v_store v_load_some v_store_some v_load_halves v_load_bytes
 *                  v_splat v_fma v_max v_pow2 v_positive v_greater v_lanes v_any v_index
 *                  v_float v_choose
 *                  v_transpose, and + - *
 *     bytes   vb   b_load b_store b_splat b_table b_lookup b_min b_if_equal, and + ==
 *     int16   vh   h_load h_store h_splat h_add_where
 */
#ifndef SHOAL_KERNELS_SIMD_H
#define SHOAL_KERNELS_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16, TILE_ROWS = 8 };
#elif defined(__AVX2__)
#include <immintrin.h>
enum { LANES = 8, TILE_ROWS = 4 };
#elif defined(__ARM_NEON)
#include <arm_neon.h>
enum { LANES = 4, TILE_ROWS = 8 };
#endif

/* TILE_ROWS x TILE_VECTORS sums, the vectors and one broadcast fill the registers. */
enum { TILE_VECTORS = 3, BYTES = LANES * 4 };

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint8_t vb __attribute__((vector_size(BYTES)));
typedef int16_t vh __attribute__((vector_size(BYTES)));

#define INLINE static inline __attribute__((always_inline))

/* Before a loop whose bounds are constants once its function is inlined: accumulators are
   registers only if every index is known. */
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL PRAGMA(clang loop unroll(full))
#define UNROLL_BY(times) PRAGMA(clang loop unroll_count(times))
#else
#define UNROLL PRAGMA(GCC unroll 16)
#define UNROLL_BY(times) PRAGMA(GCC unroll times)
#endif

INLINE vf v_load(const float *x) {
    vf v;
    memcpy(&v, x, sizeof v);
    return v;
}

INLINE void v_store(float *x, vf v) {
    memcpy(x, &v, sizeof v);
}

INLINE vf v_splat(float x) {
    return x - (vf){0};
}

INLINE vb b_load(const uint8_t *x) {
    vb v;
    memcpy(&v, x, sizeof v);
    return v;
}

INLINE void b_store(uint8_t *x, vb v) {
    memcpy(x, &v, sizeof v);
}

INLINE vb b_splat(uint8_t x) {
    return x - (vb){0};
}

INLINE vh h_load(const int16_t *x) {
    vh v;
    memcpy(&v, x, sizeof v);
    return v;
}

INLINE void h_store(int16_t *x, vh v) {
    memcpy(x, &v, sizeof v);
}

INLINE vh h_splat(int16_t x) {
    return x - (vh){0};
}

/* x + by in the lanes whose bit is set, x elsewhere. */
INLINE vh h_add_where(vh x, vh by, uint64_t bits) {
#if defined(__AVX512F__)
    return (vh)_mm512_mask_add_epi16((__m512i)x, (__mmask32)bits, (__m512i)x,
                                     (__m512i)by);
#elif defined(__AVX2__)
    const vh own = {1,       1 << 1,  1 << 2,  1 << 3,   1 << 4,  1 << 5,
                    1 << 6,  1 << 7,  1 << 8,  1 << 9,   1 << 10, 1 << 11,
                    1 << 12, 1 << 13, 1 << 14, INT16_MIN};
    return x + (by & (vh)((h_splat((int16_t)bits) & own) == own));
#else
    const vh own = {1, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 7};
    return x + (by & (vh)((h_splat((int16_t)(bits & 255)) & own) == own));
#endif
}

/* One lane's fused multiply-add, for loops that compilers make vectors of. */
#define FUSED(a, b, c) __builtin_fmaf(a, b, c)

/* Eight halves to floats. */
INLINE void widen8(const uint16_t *halves, float *out) {
#if defined(__F16C__)
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128((const void *)halves)));
#elif defined(__ARM_NEON)
    for (int i = 0; i < 8; i += 4)
        vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + i))));
#endif
}

/* And back, to the nearest. */
INLINE void round8(const float *x, uint16_t *halves) {
#if defined(__F16C__)
    _mm_storeu_si128((void *)halves,
                     _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__ARM_NEON)
    for (int i = 0; i < 8; i += 4)
        vst1_u16(halves + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
#endif
}

/* Eight floats to the nearest halves. */
INLINE void narrow8(const float *x, uint16_t *halves) {
#if defined(__F16C__)
    /* The second operand where either is NaN. */
    const __m256 most = _mm256_set1_ps(65504.0f), least = _mm256_set1_ps(-65504.0f);
    const __m256 bounded = _mm256_max_ps(least, _mm256_min_ps(most, _mm256_loadu_ps(x)));
    _mm_storeu_si128((void *)halves, _mm256_cvtps_ph(bounded, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__ARM_NEON)
    const float32x4_t most = vdupq_n_f32(65504.0f), least = vdupq_n_f32(-65504.0f);
    for (int i = 0; i < 8; i += 4) {
        const float32x4_t bounded = vmaxq_f32(least, vminq_f32(most, vld1q_f32(x + i)));
        vst1_u16(halves + i, vreinterpret_u16_f16(vcvt_f16_f32(bounded)));
    }
#endif
}

#if defined(__AVX512F__)

/* Halves and signed bytes as floats, a vector of them. */
INLINE vf v_load_halves(const uint16_t *x) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
}

INLINE vf v_load_bytes(const int8_t *x) {
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)x)));
}

INLINE vf v_load_some(const float *x, int count) {
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), x);
}

INLINE void v_store_some(float *x, vf v, int count) {
    _mm512_mask_storeu_ps(x, (__mmask16)((1u << count) - 1), (__m512)v);
}

INLINE vf v_fma(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

/* The second argument where either is NaN, so a NaN score is not lost. */
INLINE vf v_max(vf a, vf b) {
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}

/* Bit i is a[i] > b[i]; NaN is not. */
INLINE unsigned v_greater(vf a, vf b) {
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
}

INLINE int v_any(vi mask) {
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}

/* Bit i is the sign of lane i. */
INLINE unsigned v_lanes(vi mask) {
    return _mm512_movepi32_mask((__m512i)mask);
}

/* yes in the lanes where all bits of mask are set, no where none is. */
INLINE vi v_choose(vi mask, vi yes, vi no) {
    return (vi)_mm512_mask_mov_epi32((__m512i)no, _mm512_movepi32_mask((__m512i)mask),
                                     (__m512i)yes);
}

INLINE vb b_table(const uint8_t *x) {
    return (vb)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)x));
}

INLINE vb b_lookup(vb table, vb index) {
    return (vb)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
}

INLINE vb b_min(vb a, vb b) {
    return (vb)_mm512_min_epu8((__m512i)a, (__m512i)b);
}

/* yes where a == b, no elsewhere. */
INLINE vb b_if_equal(vb a, vb b, vb yes, vb no) {
    __mmask64 equal = _mm512_cmpeq_epi8_mask((__m512i)a, (__m512i)b);
    return (vb)_mm512_mask_mov_epi8((__m512i)no, equal, (__m512i)yes);
}

#define V_LOW(a, b)                                                                      \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define V_HIGH(a, b)                                                                     \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,  \
                            15, 31)

#elif defined(__AVX2__)

INLINE vf v_load_halves(const uint16_t *x) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)x));
}

INLINE vf v_load_bytes(const int8_t *x) {
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)x)));
}

INLINE __m256i mask_some(int count) {
    static const int32_t ramp[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(const void *)(ramp + 8 - count));
}

INLINE vf v_load_some(const float *x, int count) {
    return (vf)_mm256_maskload_ps(x, mask_some(count));
}

INLINE void v_store_some(float *x, vf v, int count) {
    _mm256_maskstore_ps(x, mask_some(count), (__m256)v);
}

INLINE vf v_fma(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

INLINE vf v_max(vf a, vf b) {
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}

INLINE unsigned v_greater(vf a, vf b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ));
}

INLINE int v_any(vi mask) {
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
}

INLINE unsigned v_lanes(vi mask) {
    return (unsigned)_mm256_movemask_ps((__m256)mask);
}

INLINE vi v_choose(vi mask, vi yes, vi no) {
    return (vi)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)mask);
}

INLINE vb b_table(const uint8_t *x) {
    return (vb)_mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)x));
}

INLINE vb b_lookup(vb table, vb index) {
    return (vb)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
}

INLINE vb b_min(vb a, vb b) {
    return (vb)_mm256_min_epu8((__m256i)a, (__m256i)b);
}

INLINE vb b_if_equal(vb a, vb b, vb yes, vb no) {
    return (vb)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)(a == b));
}

#define V_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define V_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

#elif defined(__ARM_NEON)

INLINE vf v_load_halves(const uint16_t *x) {
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x)));
}

INLINE vf v_load_bytes(const int8_t *x) {
    vf v;
    for (int i = 0; i < LANES; i++)
        v[i] = (float)x[i];
    return v;
}

INLINE vf v_load_some(const float *x, int count) {
    vf v = {0};
    for (int i = 0; i < count; i++)
        v[i] = x[i];
    return v;
}

INLINE void v_store_some(float *x, vf v, int count) {
    for (int i = 0; i < count; i++)
        x[i] = v[i];
}

INLINE vf v_fma(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

INLINE vf v_max(vf a, vf b) {
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}

INLINE unsigned v_lanes(vi mask) {
    static const uint32_t bits[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32((uint32x4_t)(mask >> 31), vld1q_u32(bits)));
}

INLINE unsigned v_greater(vf a, vf b) {
    return v_lanes((vi)(a > b));
}

INLINE int v_any(vi mask) {
    return vmaxvq_u32((uint32x4_t)mask) != 0;
}

INLINE vi v_choose(vi mask, vi yes, vi no) {
    return (vi)vbslq_s32((uint32x4_t)mask, (int32x4_t)yes, (int32x4_t)no);
}

INLINE vb b_table(const uint8_t *x) {
    return b_load(x);
}

INLINE vb b_lookup(vb table, vb index) {
    return (vb)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
}

INLINE vb b_min(vb a, vb b) {
    return (vb)vminq_u8((uint8x16_t)a, (uint8x16_t)b);
}

INLINE vb b_if_equal(vb a, vb b, vb yes, vb no) {
    return (vb)vbslq_u8((uint8x16_t)(a == b), (uint8x16_t)yes, (uint8x16_t)no);
}

#define V_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define V_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)

#endif

/* 2^n for n in -126 .. 127. n is in the low 9 bits; the shift drops the others. */
INLINE vf v_pow2(vi n) {
    return (vf)((n + 127) << 23);
}

INLINE vi v_index(int32_t i) {
    return i + (vi){0};
}

INLINE vf v_float(vi x) {
    return __builtin_convertvector(x, vf);
}

/* All bits set in the lanes that are > 0 (NaN is not). */
INLINE vi v_positive(vf x) {
    return (vi)(x > (vf){0});
}

/* rows[i][j] <-> rows[j][i]. */
#if defined(__AVX2__) && !defined(__AVX512F__)
/* Shuffles across the two halves are slow here: exchange halves once, at the end. */
INLINE void v_transpose(vf rows[LANES]) {
    vf pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] =
            __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] =
            __builtin_shufflevector(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            vf low = pairs[i + j], high = pairs[i + j + 2];
            quads[i + 2 * j] =
                __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
            quads[i + 2 * j + 1] =
                __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        rows[i] =
            __builtin_shufflevector(quads[i], quads[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] =
            __builtin_shufflevector(quads[i], quads[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
#else
/* Interleaving row i with row i + LANES / 2, log2(LANES) times over, transposes. */
INLINE void v_transpose(vf rows[LANES]) {
    for (int step = 1; step < LANES; step *= 2) {
        vf next[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = V_LOW(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = V_HIGH(rows[i], rows[i + LANES / 2]);
        }
        memcpy(rows, next, sizeof next);
    }
}
#endif

#endif
