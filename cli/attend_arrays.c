/* Arrays of shoal attend: read and compared with each other before any work begins,
   written after all of it has succeeded. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attend.h"
#include "common.h"
#include <shoal_models.h>

static const char *const type_names[] =
    {[SHOAL_FLOAT32] = "float32", [SHOAL_INT32] = "int32"};

int64_t array_elements(const shoal_array *array) {
    int64_t elements = 1;
    for (int i = 0; i < array->rank; i++)
        elements *= array->shape[i];
    return elements;
}

/* ---- Reading ---------------------------------------------------------------------- */

enum { SHAPE_TEXT = 200 };

static const char *shape_text(const shoal_array *array, char text[SHAPE_TEXT]) {
    size_t used = (size_t)snprintf(text, SHAPE_TEXT, "[");
    for (int i = 0; i < array->rank && used < SHAPE_TEXT; i++)
        used += (size_t)snprintf(text + used, SHAPE_TEXT - used, "%s%" PRId64,
                                 i ? ", " : "", array->shape[i]);
    if (used < SHAPE_TEXT)
        snprintf(text + used, SHAPE_TEXT - used, "]");
    return text;
}

static const struct {
    shoal_dtype dtype;
    int rank;
    const char *layout;
} expected[INPUTS] = {
    [INPUT_Q] = {SHOAL_FLOAT32, 4, "[batch, heads, length, dim]"},
    [INPUT_K] = {SHOAL_FLOAT32, 4, "[batch, heads, length, dim]"},
    [INPUT_V] = {SHOAL_FLOAT32, 4, "[batch, heads, length, dim]"},
    [INPUT_QUERY_LENGTHS] = {SHOAL_INT32, 1, "[batch]"},
    [INPUT_KEY_LENGTHS] = {SHOAL_INT32, 1, "[batch]"},
    [INPUT_GROUPS] = {SHOAL_INT32, 3, "[batch, heads, length]"},
    [INPUT_GRAD_OUT] = {SHOAL_FLOAT32, 4, "[batch, heads, length, dim]"},
};

static int read_input(attend_job *job, attend_input which) {
    char text[SHAPE_TEXT];
    const char *path = job->input_paths[which];
    shoal_array *array = &job->inputs[which];
    shoal_status status = shoal_array_read(job->context, path, array);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, "attend", job->context);
    if (array->dtype == expected[which].dtype && array->rank == expected[which].rank)
        return EXIT_OK;
    return complain(EXIT_BAD_INPUT, "attend", "%s is %s %s; it must be %s %s", path,
                    type_names[array->dtype], shape_text(array, text),
                    type_names[expected[which].dtype], expected[which].layout);
}

static int do_not_fit(const attend_job *job, attend_input one, attend_input other,
                      const char *rule) {
    char first[SHAPE_TEXT], second[SHAPE_TEXT];
    return complain(EXIT_BAD_INPUT, "attend", "%s %s and %s %s do not fit together: %s",
                    job->input_paths[one], shape_text(&job->inputs[one], first),
                    job->input_paths[other], shape_text(&job->inputs[other], second),
                    rule);
}

static int compare_queries_keys_values(const attend_job *job) {
    const int64_t *q = job->inputs[INPUT_Q].shape, *v = job->inputs[INPUT_V].shape;
    bool has_keys = job->inputs[INPUT_K].data != NULL;
    const int64_t *k = has_keys ? job->inputs[INPUT_K].shape : q;
    attend_input keys = has_keys ? INPUT_K : INPUT_Q;
    if (k[0] != q[0])
        return do_not_fit(job, INPUT_K, INPUT_Q, "the batches differ");
    if (k[3] != q[3])
        return do_not_fit(job, INPUT_K, INPUT_Q, "queries and keys must be of one size");
    if (k[1] != q[1] && (k[1] == 0 || q[1] % k[1] != 0))
        return do_not_fit(job, INPUT_K, INPUT_Q,
                          "the key heads must divide the query heads");
    if (job->shared && (k[1] != q[1] || k[2] != q[2]))
        return do_not_fit(job, INPUT_K, INPUT_Q,
                          "this kind needs the keys to be the queries (- for K says so)");
    if (v[0] != k[0] || v[1] != k[1] || v[2] != k[2])
        return do_not_fit(
            job, INPUT_V, keys,
            "every key needs one value: batch, heads and length must be equal");
    return EXIT_OK;
}

/* Lengths come as int32 and are wanted as int64; they must lie within the array. */
static int load_lengths(attend_job *job, attend_input which, int64_t longest,
                        int64_t **lengths) {
    if (!job->input_paths[which])
        return EXIT_OK;
    const shoal_array *array = &job->inputs[which];
    const int32_t *given = array->data;
    if (array->shape[0] != job->problem.batch)
        return do_not_fit(job, which, INPUT_Q, "there must be one length per sequence");
    *lengths = malloc((size_t)(array->shape[0] + 1) * sizeof **lengths);
    if (!*lengths)
        return complain(EXIT_RESOURCES, "attend", "out of memory");
    for (int64_t i = 0; i < array->shape[0]; i++) {
        if (given[i] < 0 || given[i] > longest)
            return complain(EXIT_BAD_INPUT, "attend",
                            "%s: length %" PRId32 " of sequence %" PRId64
                            " is not within 0 to %" PRId64,
                            job->input_paths[which], given[i], i, longest);
        (*lengths)[i] = given[i];
    }
    return EXIT_OK;
}

static int compare_the_rest(const attend_job *job) {
    const shoal_problem *problem = &job->problem;
    const int64_t *groups = job->inputs[INPUT_GROUPS].shape;
    const int64_t *grad = job->inputs[INPUT_GRAD_OUT].shape;
    if (job->input_paths[INPUT_GROUPS] &&
        (groups[0] != problem->batch || groups[1] != problem->heads ||
         groups[2] != problem->queries))
        return do_not_fit(job, INPUT_GROUPS, INPUT_Q,
                          "there must be one group per query");
    if (job->input_paths[INPUT_GRAD_OUT] &&
        (grad[0] != problem->batch || grad[1] != problem->heads ||
         grad[2] != problem->queries || grad[3] != problem->value_dim))
        return do_not_fit(
            job, INPUT_GRAD_OUT, INPUT_Q,
            "it must have the output's shape: the queries', with the values' "
            "size");
    return EXIT_OK;
}

static void describe_problem(attend_job *job) {
    const int64_t *q = job->inputs[INPUT_Q].shape, *v = job->inputs[INPUT_V].shape;
    job->problem = (shoal_problem){.batch = q[0],
                                   .heads = q[1],
                                   .kv_heads = v[1],
                                   .queries = q[2],
                                   .keys = v[2],
                                   .dim = q[3],
                                   .value_dim = v[3],
                                   .scale = job->scale};
}

int load_inputs(attend_job *job) {
    int code = EXIT_OK;
    for (int i = 0; i < INPUTS && code == EXIT_OK; i++)
        if (job->input_paths[i])
            code = read_input(job, (attend_input)i);
    if (code == EXIT_OK)
        code = compare_queries_keys_values(job);
    if (code != EXIT_OK)
        return code;
    describe_problem(job);
    code =
        load_lengths(job, INPUT_QUERY_LENGTHS, job->problem.queries, &job->query_lengths);
    if (code == EXIT_OK)
        code = load_lengths(job, INPUT_KEY_LENGTHS, job->problem.keys, &job->key_lengths);
    return code == EXIT_OK ? compare_the_rest(job) : code;
}

/* ---- Writing ---------------------------------------------------------------------- */

int check_destinations(attend_job *job) {
    for (int i = 0; i < OUTPUTS; i++) {
        int code = check_destination("attend", job->output_paths[i]);
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}

static int reserve_output(attend_job *job, attend_output which, shoal_array shaped) {
    int64_t bytes = 4;
    bool overflow = false;
    for (int i = 0; i < shaped.rank; i++)
        overflow |= __builtin_mul_overflow(bytes, shaped.shape[i], &bytes);
    shaped.data = overflow ? NULL : malloc(bytes ? (size_t)bytes : 1);
    if (!shaped.data)
        return complain(EXIT_RESOURCES, "attend",
                        "out of memory: no room for the outputs");
    job->outputs[which] = shaped;
    return EXIT_OK;
}

/* The output itself is needed for everything else; the rest only where asked for. */
int reserve_outputs(attend_job *job) {
    const shoal_problem *p = &job->problem;
    const int64_t batch = p->batch, heads = p->heads, kv_heads = p->kv_heads;
    const shoal_array shapes[OUTPUTS] = {
        [OUTPUT_OUT] = {.rank = 4, .shape = {batch, heads, p->queries, p->value_dim}},
        [OUTPUT_GROUPS] = {SHOAL_INT32, 3, {batch, heads, p->queries}, NULL, NULL, 0},
        [OUTPUT_TOP] = {SHOAL_INT32,
                        4,
                        {batch, heads, job->attention.clusters, job->attention.topk},
                        NULL,
                        NULL,
                        0},
        [OUTPUT_GRAD_Q] = {.rank = 4, .shape = {batch, heads, p->queries, p->dim}},
        [OUTPUT_GRAD_K] = {.rank = 4, .shape = {batch, kv_heads, p->keys, p->dim}},
        [OUTPUT_GRAD_V] = {.rank = 4, .shape = {batch, kv_heads, p->keys, p->value_dim}},
    };
    for (int i = 0; i < OUTPUTS; i++) {
        int code = EXIT_OK;
        if (i == OUTPUT_OUT || job->output_paths[i])
            code = reserve_output(job, (attend_output)i, shapes[i]);
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}

/* Pipes and devices are written directly: there is nothing to protect from an interrupt,
   and a reader that never comes must not make one impossible. */
static shoal_status write_output(const attend_job *job, attend_output which) {
    struct stat information;
    const char *path = job->output_paths[which];
    bool is_file = stat(path, &information) != 0 || S_ISREG(information.st_mode);
    if (is_file)
        writing_begin();
    shoal_status status = shoal_array_write(job->context, path, &job->outputs[which]);
    if (is_file)
        writing_end();
    return status;
}

int write_outputs(attend_job *job) {
    const char *written = NULL;
    for (int i = 0; i < OUTPUTS; i++) {
        const char *path = job->output_paths[i];
        if (!path)
            continue;
        progress_say("writing %s", path);
        shoal_status status = write_output(job, (attend_output)i);
        if (status != SHOAL_OK && written)
            complain(EXIT_RESOURCES, "attend",
                     "the outputs up to %s were written, but %s and "
                     "any after it were not",
                     written, path);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_RESOURCES, "attend", job->context);
        written = path;
    }
    return EXIT_OK;
}

void release_arrays(attend_job *job) {
    for (int i = 0; i < INPUTS; i++)
        shoal_array_release(&job->inputs[i]);
    for (int i = 0; i < OUTPUTS; i++)
        free(job->outputs[i].data);
    free(job->query_lengths);
    free(job->key_lengths);
}
