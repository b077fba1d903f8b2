/* What the tests of the layers share: small models with random weights, batches of
   sequences of different lengths, and a training step. */
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
    shoal_form form; /* not plain: with TEST_TYPES types, post-norm, learned positions */
    int64_t layers, heads, head_dim, feed_forward;
    int64_t lengths[4]; /* of the sequences; -1 ends the list */
} model_case;

/* A model and one batch for it, all on the heap. */
typedef struct {
    shoal_model_config config;
    shoal_model_inputs inputs;
    uint64_t seed;
    int64_t rows, longest;
    int64_t *offsets;
    int32_t *tokens, *targets, *types;
    int32_t *wanted, *wanted_targets; /* rows whose target counts, and those */
    float *features;
    shoal_model *model;
    parameters *arena; /* the model's */
} model_setup;

enum { TEST_VOCABULARY = 7, TEST_FEATURES = 5, TEST_OUTPUTS = 6, TEST_TYPES = 3 };

shoal_model_config config_of(const model_case *c);
/* Weights and data are pure functions of the seed. Every parameter is random, biases and
   norms too, so that no gradient is right by accident. */
model_setup setup_create(shoal_context *context, const model_case *c, bool training,
                         uint64_t seed);
void setup_destroy(model_setup *setup);
/* Whether the batch wants the logits of all rows, or of those whose target counts. */
void setup_want(model_setup *setup, bool all);
int64_t setup_logit_rows(const model_setup *setup);
/* Forward; the logits lie in the model. */
float *setup_forward(model_setup *setup);
/* Forward, loss, backward. */
shoal_loss setup_step(shoal_context *context, model_setup *setup);
/* Values as doubles, [arena->size]. The caller frees them. */
double *setup_values(const model_setup *setup);
/* The loss with other values, [arena->size], in exact arithmetic by the plainest loops;
   groups and top keys are those of the model's last forward, since they are constants.
   logits: [rows][outputs] unless NULL. */
double setup_exact_loss(const model_setup *setup, const double *values, double *logits);

/* Rounds to nearest, ties to even; beyond 65504 it is infinite. */
uint16_t half_from_float(float value);

#endif
