#define _GNU_SOURCE
#include "blas.h"

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "lab.h"

static const double measuring_seconds = 0.25;

enum { SIDE = 1024, ROW_MAJOR = 101, NOT_TRANSPOSED = 111 }; /* of cblas.h */

typedef struct {
    void (*sgemm)(int order, int turn_a, int turn_b, int rows, int columns, int depth,
                  float alpha, const float *a, int a_stride, const float *b, int b_stride,
                  float beta, float *c, int c_stride);
    int (*threads)(void);
    void (*set_threads)(int threads);
} open_blas;

/* A library stays loaded: it may have threads. */
static bool load(open_blas *blas) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so",
                                        "libopenblas.dylib"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    /* POSIX has functions in a void *, which C does not. */
    *(void **)&blas->sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&blas->threads = dlsym(library, "openblas_get_num_threads");
    *(void **)&blas->set_threads = dlsym(library, "openblas_set_num_threads");
    return blas->sgemm && blas->threads && blas->set_threads;
}

double blas_sgemm_rate(int threads) {
    open_blas blas;
    if (!load(&blas))
        return 0;
    float *a = malloc(3 * sizeof(float) * SIDE * SIDE), *b, *c;
    double best = INFINITY, begun = seconds_now();
    bool right = true;
    if (!a)
        return 0;
    b = a + SIDE * SIDE;
    c = b + SIDE * SIDE;
    for (int i = 0; i < SIDE * SIDE; i++)
        a[i] = b[i] = (float)((i / SIDE + i % SIDE) % 7 - 3);
    const int before = blas.threads();
    blas.set_threads(threads);
    while (best == INFINITY || seconds_now() - begun < measuring_seconds) {
        const double start = seconds_now();
        blas.sgemm(ROW_MAJOR, NOT_TRANSPOSED, NOT_TRANSPOSED, SIDE, SIDE, SIDE, 1, a,
                   SIDE, b, SIDE, 0, c, SIDE);
        best = fmin(best, seconds_now() - start);
    }
    blas.set_threads(before);
    /* A product of such matrices is exact in float32, so a row of the result can be
       compared bit for bit. */
    for (int column = 0; column < SIDE; column++) {
        float sum = 0;
        for (int i = 0; i < SIDE; i++)
            sum += a[i] * b[i * SIDE + column];
        right &= sum == c[column];
    }
    free(a);
    return right ? 2.0 * SIDE * SIDE * SIDE / best : 0;
}
