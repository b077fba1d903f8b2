/* Prints the speed of the models' matrix products beside OpenBLAS's sgemm, one thread
 * each, at the sizes of training: build/bench/products [ROWS...]. Both sides alternate,
 * the best time counts, and the result is compared with OpenBLAS's first. Compare like
 * with like: SHOAL_ISA=avx2 beside OPENBLAS_CORETYPE=Haswell, AVX-512 beside SkylakeX.
 * Shares below .95 are marked. */
#include <cblas.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "models/nn/products.h"
#include "shoal.h"

void openblas_set_num_threads(int threads);

static const double bar = 0.95, seconds = 0.12;

typedef enum { FORWARD, DATA, WEIGHTS, KINDS } product_kind;
static const char *const names[] = {"x W'", "dy W", "dy' x"};

typedef struct {
    shoal_context *context;
    product_kind kind;
    int rows, inputs, outputs;
    float *x, *w, *y; /* [rows][inputs], [outputs][inputs], [rows][outputs] */
    float *results[2];
} multiplication;

static float *numbers(int64_t count, bool random) {
    float *x = malloc(sizeof *x * (size_t)count);
    if (!x) {
        fprintf(stderr, "products: not enough memory\n");
        exit(1);
    }
    for (int64_t i = 0; i < count; i++)
        x[i] = random ? (float)(rand() % 2001 - 1000) * 1e-3f : 0;
    return x;
}

static void ours(const multiplication *m) {
    const const_matrix x = {m->x, m->inputs}, w = {m->w, m->inputs},
                       y = {m->y, m->outputs};
    const int64_t rows = m->rows, inputs = m->inputs, outputs = m->outputs;
    float *to = m->results[0];
    if (m->kind == FORWARD)
        sh_matmul_forward(m->context, rows, inputs, outputs, x, w, false,
                          (matrix){to, outputs}, (epilogue){0});
    else if (m->kind == DATA)
        sh_matmul_data(m->context, rows, inputs, outputs, y, w, false,
                       (matrix){to, inputs}, (epilogue){0});
    else
        sh_matmul_weights(m->context, rows, inputs, outputs, y, x, (matrix){to, inputs},
                          NULL);
}

static void theirs(const multiplication *m) {
    const int rows = m->rows, inputs = m->inputs, outputs = m->outputs;
    float *to = m->results[1];
    if (m->kind == FORWARD)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, outputs, inputs, 1,
                    m->x, inputs, m->w, inputs, 0, to, outputs);
    else if (m->kind == DATA)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, inputs, outputs, 1,
                    m->y, outputs, m->w, inputs, 0, to, inputs);
    else
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, outputs, inputs, rows, 1,
                    m->y, outputs, m->x, inputs, 1, to, inputs);
}

static void verify(const multiplication *m, int64_t count) {
    const int depth = m->kind == FORWARD ? m->inputs
                      : m->kind == DATA  ? m->outputs
                                         : m->rows;
    ours(m);
    theirs(m);
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(m->results[0][i] - m->results[1][i]) <= 2e-6f * (float)depth)) {
            fprintf(stderr, "products: element %lld of %s is %g, not %g\n", (long long)i,
                    names[m->kind], (double)m->results[0][i], (double)m->results[1][i]);
            exit(1);
        }
}

/* Ours over theirs, in speed. */
static double race(shoal_context *context, product_kind kind, int rows, int inputs,
                   int outputs) {
    const int64_t count = kind == FORWARD ? (int64_t)rows * outputs
                          : kind == DATA  ? (int64_t)rows * inputs
                                          : (int64_t)outputs * inputs;
    multiplication m = {context,
                        kind,
                        rows,
                        inputs,
                        outputs,
                        numbers((int64_t)rows * inputs, true),
                        numbers((int64_t)outputs * inputs, true),
                        numbers((int64_t)rows * outputs, true),
                        {numbers(count, false), numbers(count, false)}};
    verify(&m, count);
    double best[2] = {INFINITY, INFINITY}, begun = sh_seconds();
    for (int round = 0; round < 4 || sh_seconds() - begun < seconds; round++)
        for (int side = 0; side < 2; side++) {
            const double start = sh_seconds();
            (side == 0 ? ours : theirs)(&m);
            best[side] = fmin(best[side], sh_seconds() - start);
        }
    const double operations = 2e-9 * rows * inputs * outputs;
    const double share = best[1] / best[0];
    printf("%-5s rows %4d inputs %4d outputs %4d: %6.1f Gop/s, OpenBLAS %6.1f: %.3f%s\n",
           names[kind], rows, inputs, outputs, operations / best[0], operations / best[1],
           share, share < bar ? "  BELOW" : "");
    fflush(stdout);
    free(m.x);
    free(m.w);
    free(m.y);
    free(m.results[0]);
    free(m.results[1]);
    return share;
}

int main(int count, char **arguments) {
    const int sizes[][2] = {{192, 192},  {192, 768}, {256, 256},  {384, 384}, {384, 1536},
                            {1536, 384}, {768, 768}, {768, 3072}, {3072, 768}};
    const int usual[] = {200, 1000, 4000};
    const int rows_count = count > 1 ? count - 1 : 3;
    shoal_context *context;
    if (shoal_context_create(&(shoal_options){.threads = 1}, &context) != SHOAL_OK ||
        sh_products_hold(context) != SHOAL_OK) {
        fprintf(stderr, "products: %s\n", shoal_context_message(context));
        return 1;
    }
    openblas_set_num_threads(1);
    printf("kernels %s, OpenBLAS for %s\n", shoal_context_isa(context),
           openblas_get_corename());
    for (product_kind kind = FORWARD; kind < KINDS; kind++) {
        double sum = 0, least = INFINITY;
        int shares = 0;
        for (int size = 0; size < (int)(sizeof sizes / sizeof *sizes); size++)
            for (int r = 0; r < rows_count; r++, shares++) {
                const int rows = count > 1 ? atoi(arguments[1 + r]) : usual[r];
                const double share =
                    race(context, kind, rows, sizes[size][0], sizes[size][1]);
                sum += log(share);
                least = fmin(least, share);
            }
        printf("%-5s share of OpenBLAS: mean %.3f, least %.3f\n", names[kind],
               exp(sum / shares), least);
    }
    sh_products_drop(context);
    shoal_context_destroy(context);
    return 0;
}
