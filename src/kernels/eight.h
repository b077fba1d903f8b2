/* Eight lanes side by side on any instruction set. Loops over them are elementwise, or
 * sums in a fixed order: compilers make vectors of them without being allowed to reorder
 * anything. So all vector tables give the same bits, and the scalar one differs by the
 * fused roundings alone. After simd.h these are its verbs, for the scalar tables the same
 * in plain C:
 *     FUSED(a, b, c)        a b + c, rounded once where the instruction set can
 *     widen8(halves, out)   eight halves to floats
 *     round8(x, halves)     eight floats to halves, as round_to_half
 *     narrow8(x, halves)    eight floats to halves, as float_to_half */
#ifndef SHOAL_KERNELS_EIGHT_H
#define SHOAL_KERNELS_EIGHT_H

#include <string.h>

#include "kernels/half.h"

typedef float v8 __attribute__((vector_size(32)));
enum { CHUNK = 256 }; /* numbers that a loop keeps on the stack */

#define LOAD(v, x) memcpy(&(v), (x), sizeof(v8))
#define STORE(x, v) memcpy((x), &(v), sizeof(v8))

static inline float sum_of_8(const v8 *v) {
    float pairs[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = (*v)[i] + (*v)[i + 4];
    return (pairs[0] + pairs[2]) + (pairs[1] + pairs[3]);
}

#ifndef SHOAL_KERNELS_SIMD_H
#define FUSED(a, b, c) ((a) * (b) + (c))

static inline void widen8(const uint16_t *halves, float *out) {
    for (int i = 0; i < 8; i++)
        out[i] = half_to_float(halves[i]);
}

static inline void round8(const float *x, uint16_t *halves) {
    for (int i = 0; i < 8; i++)
        halves[i] = round_to_half(x[i]);
}

static inline void narrow8(const float *x, uint16_t *halves) {
    for (int i = 0; i < 8; i++)
        halves[i] = float_to_half(x[i]);
}

#endif

#endif
