/* Row functions with AVX2, FMA and F16C. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "models/nn/half.h"
#include "models/nn/rows.h"

#define ROW_TABLE sh_avx2_rows
#define FUSED(a, b, c) __builtin_fmaf(a, b, c)
#define WIDEN8(halves, floats)                                                           \
    _mm256_storeu_ps(floats, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(halves))))

#include "models/nn/rows_body.h"
