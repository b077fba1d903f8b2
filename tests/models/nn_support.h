/* Shared by the tests of layers: small models with random weights, batches of sequences
   of different lengths, and a training step. */
#ifndef SHOAL_TESTS_NN_SUPPORT_H
#define SHOAL_TESTS_NN_SUPPORT_H

#include "models/nn/model.h"

typedef struct {
    const char *name;
    const char *attention;
    bool shared_qk, post_norm, relu, learned, no_positions, features;
    float dropout;
    int64_t convolutions; /* only with features */
    shoal_pooling pooling;
    shoal_form form; /* other than plain: with TEST_TYPES types, post-norm, learned
                        positions */
    int64_t layers, heads, head_dim, feed_forward;
    int64_t lengths[4]; /* of the sequences; -1 ends the list */
} model_case;

/* A model and one batch for it, on the heap. */
typedef struct {
    shoal_model_config config;
    shoal_model_inputs inputs;
    uint64_t seed;
    int64_t rows, longest;
    int64_t *offsets;
    int32_t *tokens, *targets, *types;
    int32_t *wanted, *wanted_targets; /* rows whose target counts, and their targets */
    float *features;
    shoal_model *model;
    parameters *arena; /* owned by the model */
} model_setup;

enum { TEST_VOCABULARY = 7, TEST_FEATURES = 5, TEST_OUTPUTS = 6, TEST_TYPES = 3 };

shoal_model_config config_of(const model_case *c);
/* Weights and data are pure functions of the seed. Every parameter is random, including
   biases and norms, so that no gradient is right by accident. */
model_setup setup_create(shoal_context *context, const model_case *c, bool training,
                         uint64_t seed);
void setup_destroy(model_setup *setup);
/* Selects the logits of all rows, or only of those whose target counts. */
void setup_want(model_setup *setup, bool all);
int64_t setup_logit_rows(const model_setup *setup);
/* Forward; the model owns the logits. */
float *setup_forward(model_setup *setup);
/* Forward, loss, backward. */
shoal_loss setup_step(shoal_context *context, model_setup *setup);
/* Values as doubles, [arena->size]. The caller frees them. */
double *setup_values(const model_setup *setup);
/* The loss for other values, [arena->size], in double precision by plain loops;
   clusters and exact keys are those of the model's last forward, since they are
   constants. logits: [rows][outputs] unless NULL. */
double setup_exact_loss(const model_setup *setup, const double *values, double *logits);

/* Round to nearest, ties to even; infinite beyond 65504. */
uint16_t half_from_float(float value);

#endif
