/* Row functions for x86-64 with AVX2, FMA and F16C, which every processor with AVX2 has.
   The instruction set is asked for here and not by flags of the build: nothing of this
   file runs before crew_of has looked at the context's kernel table. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "nn/half.h"
#include "nn/rows.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))),                   \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define ROW_TABLE avx2_rows
#define FUSED(a, b, c) __builtin_fmaf(a, b, c)
#define WIDEN8(halves, floats)                                                           \
    _mm256_storeu_ps(floats, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(halves))))

#include "nn/rows_body.h"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int no_avx2_here; /* an empty file is not C */
#endif
