/* All that a model learns, in one arena: values, gradients of the same size, and a list
   that says what lies where. Optimizer moments are arrays of `size` floats beside it. */
#ifndef SHOAL_MODELS_NN_PARAMETERS_H
#define SHOAL_MODELS_NN_PARAMETERS_H

#include "models/nn/layers.h"

enum { PARAMETER_NAME = 80, PARAMETER_RANK = 3 };

/* How a parameter begins. */
typedef enum {
    START_ZERO,   /* biases, shifts */
    START_ONE,    /* scales of norms */
    START_XAVIER, /* uniform in +-sqrt(6 / (inputs + outputs)): keeps the variance of rows
                     through a linear layer and back (Glorot, Bengio 2010) */
    START_NORMAL  /* normal with the parameter's `spread` */
} parameter_start;

typedef struct {
    char name[PARAMETER_NAME]; /* "encoder.layers.0.attention.query.weight" */
    int rank;
    int64_t shape[PARAMETER_RANK];
    int64_t offset, count; /* in floats, from the beginning of values and of gradients */
    parameter_start start;
    float spread;
} parameter;

typedef struct {
    shoal_context *context;
    int64_t count;   /* entries of the list */
    parameter *list; /* NULL while measuring */
    int64_t size;    /* floats of the arena; gaps between parameters are and stay 0 */
    float *values;
    float *gradients; /* NULL: made for inference */
    bool overflow;
} parameters;

/* `describe` calls sh_parameters_add for each parameter; it runs twice, the first time to
   measure. Values and gradients begin as 0. One allocation. */
typedef void describe_function(parameters *into, const void *model);
shoal_status sh_parameters_create(shoal_context *context, describe_function *describe,
                                  const void *model, bool with_gradients,
                                  parameters **made);
/* The list alone; values is NULL. */
shoal_status sh_parameters_list(shoal_context *context, describe_function *describe,
                                const void *model, parameters **made);
void sh_parameters_destroy(parameters *arena); /* NULL is legal */

/* joined: begins where the one before ends, so that several are one matrix. */
typedef struct {
    parameter_start start;
    float spread;
    bool joined;
    int rank;
    int64_t shape[PARAMETER_RANK];
} parameter_shape;
static inline parameter_shape vector_shape(parameter_start start, int64_t size) {
    return (parameter_shape){.start = start, .rank = 1, .shape = {size}};
}

static inline parameter_shape matrix_shape(parameter_start start, int64_t outputs,
                                           int64_t inputs) {
    return (parameter_shape){.start = start, .rank = 2, .shape = {outputs, inputs}};
}

void sh_parameters_add(parameters *into, parameter_shape shape, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* NULL where there is none of that name. */
const parameter *sh_parameters_find(const parameters *arena, const char *name);
/* The same as a tensor; data is NULL where there is none. The name as by printf. */
nn_tensor sh_parameters_tensor(const parameters *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* First values, each a function of the seed and of its place in the list. */
void sh_parameters_start(parameters *arena, uint64_t seed);
void sh_parameters_clear_gradients(const shoal_context *context, parameters *arena);

#endif
