/* What every layer needs to run, and how a layer's numbers are named.
 *
 * Activations are packed: [rows][features], sequences one after another, and offsets
 * [batch + 1] say where each begins. Padding does not exist, so it costs nothing.
 *
 * Work is cut into tasks whose bounds depend on the problem only; every sum has one
 * order. So the same input gives the same bits on any number of threads. */
#ifndef SHOAL_MODELS_NN_CREW_H
#define SHOAL_MODELS_NN_CREW_H

#include <stdbool.h>

#include "base/context.h"
#include "base/export.h"
#include "base/numbers.h"
#include "base/parallel.h"

struct row_kernels; /* nn/rows.h */

/* Who works, and with which row functions (they follow the context's instruction set). */
typedef struct {
    team workers;
    const struct row_kernels *rows;
} crew;

/* Also tells OpenBLAS to use one thread inside a call: the calls are made from our tasks,
   side by side. That setting belongs to the process (OpenBLAS has no other); it is the
   only one that this room touches. */
SHOAL_PRIVATE crew sh_crew_of(const shoal_context *context);

/* Numbers of a layer that learns, or that came from a file. Shapes stand where it is
   used. Weights [outputs][inputs] may be IEEE half precision in memory (arithmetic is
   float); biases and norms are float. */
typedef struct {
    const void *data; /* float, or uint16_t where half is set; NULL: absent (a bias) */
    float *gradient;  /* the same shape, added to by backward; NULL: inference only */
    bool half;
} nn_tensor;

/* Blocks of rows that one task of a row function works on. */
enum { ROW_BLOCK = 64 };

#endif
