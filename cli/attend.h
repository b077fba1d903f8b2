/* shoal attend: declarations shared by its files. */
#ifndef SHOAL_CLI_ATTEND_H
#define SHOAL_CLI_ATTEND_H

#include "command.h"
#include "shoal_models.h"

/* Shapes: B batch, H heads, G key/value heads, N queries, S keys. */
typedef enum {
    INPUT_Q,             /* [B, H, N, D] */
    INPUT_K,             /* [B, G, S, D] */
    INPUT_V,             /* [B, G, S, Dv] */
    INPUT_QUERY_LENGTHS, /* [B] */
    INPUT_KEY_LENGTHS,   /* [B] */
    INPUT_GROUPS,        /* [B, H, N] */
    INPUT_GRAD_OUT,      /* [B, H, N, Dv] */
    INPUTS
} attend_input;

typedef enum {
    OUTPUT_OUT,    /* [B, H, N, Dv] */
    OUTPUT_GROUPS, /* [B, H, N] */
    OUTPUT_TOP,    /* [B, H, clusters, topk] */
    OUTPUT_GRAD_Q, /* shapes of Q, K and V */
    OUTPUT_GRAD_K,
    OUTPUT_GRAD_V,
    OUTPUTS
} attend_output;

typedef struct {
    /* Options; a path is NULL if it was not given. */
    const char *kind;
    const char *input_paths[INPUTS], *output_paths[OUTPUTS];
    const char *isa;
    int64_t threads, check_samples; /* check_samples 0 disables the check */
    float scale;                    /* 0 selects the library's default */
    uint64_t seed;
    size_t largest_whole; /* bytes of inputs and output above which the work is divided
                             into slices */
    bool has_seed, json;
    shoal_transport *ranks; /* NULL for a single process */

    /* State. */
    shoal_context *context;
    shoal_attention attention;
    shoal_problem problem;
    bool shared; /* the kind uses the queries as keys */
    shoal_array inputs[INPUTS], outputs[OUTPUTS];
    int64_t *query_lengths, *key_lengths; /* [B], or NULL */

    /* Results. */
    int64_t slices;
    double seconds; /* of forward and backward */
    size_t workspace;
    shoal_error error;
    shoal_attention picked; /* the kind chosen by auto for the last slice */
    int64_t sent;           /* bytes sent by rank 0 for the attention */
} attend_job;

/* Every process computes its rows; rank 0 collects all outputs (attend_ranks.c). */
void attend_over_ranks(attend_job *job);

#endif
