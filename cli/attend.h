/* shoal attend: what its parts share. */
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
    OUTPUT_GRAD_Q, /* as Q, K and V */
    OUTPUT_GRAD_K,
    OUTPUT_GRAD_V,
    OUTPUTS
} attend_output;

typedef struct {
    /* What was asked for; a path that is NULL was not. */
    const char *kind;
    const char *input_paths[INPUTS], *output_paths[OUTPUTS];
    const char *isa;
    int64_t threads, check_samples; /* check_samples 0: no check */
    float scale;                    /* 0: the library's default */
    uint64_t seed;
    size_t largest_whole; /* bytes of inputs and output above which the work is cut */
    bool has_seed, json;
    shoal_transport *ranks; /* NULL: a process alone */

    /* What is worked on. */
    shoal_context *context;
    shoal_attention attention;
    shoal_problem problem;
    bool shared; /* the keys are the queries */
    shoal_array inputs[INPUTS], outputs[OUTPUTS];
    int64_t *query_lengths, *key_lengths; /* [B], or NULL */

    /* What came out. */
    int64_t slices;
    double seconds; /* forward and backward */
    size_t workspace;
    shoal_error error;
    shoal_attention picked; /* what auto picked, for the last slice */
    int64_t sent;           /* bytes that the first rank sent for the attention */
} attend_job;

/* Every process does its rows, and the first gets all outputs (attend_ranks.c). */
void attend_over_ranks(attend_job *job);

#endif
