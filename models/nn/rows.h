/* Functions on rows: what stands between the products. One body (rows_body.h), compiled
   plainly and, on x86-64, for AVX2; the context's kernel table decides which runs. They
   use one thread: tasks call them. */
#ifndef SHOAL_MODELS_NN_ROWS_H
#define SHOAL_MODELS_NN_ROWS_H

#include "models/nn/activation.h"
#include "models/nn/matmul.h"

/* One optimizer step's numbers: see nn/optimizer.h for the formulas. */
typedef struct {
    float beta1, beta2;
    float coupled;  /* weight decay that is added to the gradient */
    float keep;     /* 1 - rate * decay, decoupled */
    float momentum; /* rate (times the rectification) / (1 - beta1^t) */
    float inverse;  /* 1 / (1 - beta2^t) */
    float epsilon;
    bool adaptive; /* divides by the root of the second moment */
} update_numbers;

typedef struct row_kernels {
    /* y[i] += x[i];  y[i] *= x[i]. */
    void (*add)(int64_t count, const float *x, float *y);
    void (*multiply)(int64_t count, const float *x, float *y);
    /* out[i] = f(x[i]); out may be x. */
    void (*activate)(activation kind, int64_t count, const float *x, float *out);
    /* dx[i] = dy[i] f'(x[i]), and out[i] = f(x[i]) unless out is NULL; dx may be dy. */
    void (*slope)(activation kind, int64_t count, const float *x, const float *dy,
                  float *dx, float *out);
    /* Layer norm of `count` rows of `size`; statistics [count][2] or NULL. */
    void (*norm)(int64_t count, int64_t size, const float *x, const float *scale,
                 const float *shift, float epsilon, float *y, float *statistics);
    /* Its gradient, plus base unless NULL; dscale and dshift [size] are added to. */
    void (*norm_slope)(int64_t count, int64_t size, const float *x,
                       const float *statistics, const float *scale, const float *dy,
                       const float *base, float *dx, float *dscale, float *dshift);
    /* sums[j] += sum over the rows of x[row][j]. */
    void (*column_sums)(int64_t count, int64_t width, const float *x, int64_t stride,
                        float *sums);
    /* The loss -log softmax(x)[target]; gradient[j] = factor (softmax(x)[j] - (j is the
       target)) unless NULL, which may be x. *best: the first largest. */
    float (*entropy)(int64_t classes, const float *x, int64_t target, float factor,
                     float *gradient, int64_t *best);
    /* out[r] = x[r] . w for r < rows <= FEW_ROWS. */
    void (*dots)(int64_t inputs, int64_t rows, const_matrix x, const void *w, bool half,
                 float *out);
    void (*widen)(int64_t count, const uint16_t *halves, float *out);
    void (*update)(int64_t count, const update_numbers *how, const float *gradient,
                   float *first, float *second, float *values);
    double (*squares)(int64_t count, const float *x);
    void (*scale)(int64_t count, float factor, float *x);
    /* y[i] += step (x[i] - y[i]). */
    void (*approach)(int64_t count, float step, const float *x, float *y);
} row_kernels;

extern const row_kernels sh_plain_rows, sh_avx2_rows;

#endif
