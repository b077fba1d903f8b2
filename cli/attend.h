/* shoal attend, in three files: the command line and report (attend.c), arrays from and
   to files (attend_arrays.c), and the work itself (attend_run.c). */
#ifndef SHOAL_CLI_ATTEND_H
#define SHOAL_CLI_ATTEND_H

#include <stdbool.h>

#include "shoal.h"
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
    bool has_seed, json;

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
} attend_job;

/* Each returns an exit code, after a complaint where it is not EXIT_OK. */
int load_inputs(attend_job *job);
int check_destinations(attend_job *job);
int reserve_outputs(attend_job *job);
int write_outputs(attend_job *job);
void release_arrays(attend_job *job);

int run_attention(attend_job *job);

/* Elements and bytes of an array that exists. */
int64_t array_elements(const shoal_array *array);
static inline size_t array_bytes(const shoal_array *array) {
    return (size_t)array_elements(array) * 4;
}

#endif
