/* --scope layer: the paper's whole layer as a model of one layer over features.

   The weights are drawn as for a training, except those of the three projections, which
   are permutations with signs: a one in every row and column. A product takes as long
   whatever its numbers are, and so the queries, keys and values are known to the last
   bit. Given the same, the attention alone makes the same choices, and it tells them. */
#include "bench.h"

#if !defined(SHOAL_HAVE_MODELS)

const char *bench_layer_missing(void) {
    return "this build has no layers: it was made without OpenBLAS, jansson, FFTW, "
           "libsndfile, soxr or zlib";
}

shoal_status bench_layer_create(const bench_job *job, const bench_data *data, int kind,
                                bench_layer *layer) {
    (void)job;
    (void)data;
    (void)kind;
    (void)layer;
    return SHOAL_INVALID;
}

void bench_layer_destroy(bench_layer *layer) {
    (void)layer;
}

size_t bench_layer_workspace(const bench_layer *layer) {
    (void)layer;
    return 0;
}

shoal_status bench_layer_forward(bench_layer *layer, const bench_data *data) {
    (void)layer;
    (void)data;
    return SHOAL_INVALID;
}

shoal_status bench_layer_backward(bench_layer *layer, const bench_data *data) {
    return bench_layer_forward(layer, data);
}

shoal_status bench_layer_call(bench_layer *layer, const bench_data *data,
                              double *seconds) {
    (void)seconds;
    return bench_layer_forward(layer, data);
}

#else

#include <string.h>

#include "common.h"
#include <shoal_models.h>

const char *bench_layer_missing(void) {
    return NULL;
}

/* ---- Making one -------------------------------------------------------------------- */

static const char *const part_names[PARTS] =
    {[PART_OUTPUT] = "attention.output.weight",
     [PART_OUTPUT_BIAS] = "attention.output.bias",
     [PART_WIDEN] = "feed_forward.widen.weight",
     [PART_WIDEN_BIAS] = "feed_forward.widen.bias",
     [PART_NARROW] = "feed_forward.narrow.weight",
     [PART_NARROW_BIAS] = "feed_forward.narrow.bias",
     [PART_FIRST_SCALE] = "attention_norm.scale",
     [PART_FIRST_SHIFT] = "attention_norm.shift",
     [PART_SECOND_SCALE] = "forward_norm.scale",
     [PART_SECOND_SHIFT] = "forward_norm.shift",
     [PART_QUERY] = "attention.query.weight",
     [PART_QUERY + 1] = "attention.key.weight",
     [PART_QUERY + 2] = "attention.value.weight",
     [PART_QUERY_BIAS] = "attention.query.bias",
     [PART_QUERY_BIAS + 1] = "attention.key.bias",
     [PART_QUERY_BIAS + 2] = "attention.value.bias"};

static void find_parts(bench_layer *layer) {
    shoal_parameter found;
    for (int i = 0; shoal_model_parameter(layer->model, i, &found); i++)
        for (int part = 0; part < PARTS; part++)
            if (strstr(found.name, part_names[part]))
                layer->parts[part] = found;
}

/* No weight is 0 or 1, which could hide a mistake; biases of the projections stay 0. */
static void set_weights(const bench_layer *layer, const bench_data *data, uint64_t seed) {
    const int64_t model = data->heads * data->dim;
    for (int part = 0; part < FREE_PARTS; part++)
        for (int64_t i = 0;
             layer->parts[part].rank == 1 && i < bench_part_count(layer, part); i++)
            layer->parts[part].values[i] += 0.1f *
                                            bench_noise(seed, 32 + (uint64_t)part, i);
    for (int p = 0; p < BENCH_PROJECTIONS; p++) {
        float *weight = layer->parts[PART_QUERY + p].values;
        if (!weight)
            continue;
        memset(weight, 0, (size_t)(model * model) * sizeof *weight);
        for (int64_t a = 0; a < model; a++) {
            const int32_t source = data->sources[p * model + a];
            weight[a * model + (source >= 0 ? source : ~source)] = source >= 0 ? 1 : -1;
        }
    }
}

shoal_status bench_layer_create(const bench_job *job, const bench_data *data, int kind,
                                bench_layer *layer) {
    const shoal_model_config config = {.max_length = data->length,
                                       .layers = 1,
                                       .heads = data->heads,
                                       .head_dim = data->dim,
                                       .feed_forward = job->feed_forward,
                                       .attention = job->attention[kind],
                                       .norm = SHOAL_NORM_POST,
                                       .activation = SHOAL_GELU,
                                       .positions = SHOAL_NO_POSITIONS};
    *layer = (bench_layer){0};
    const shoal_status status =
        shoal_model_create(job->context, &config, job->seed, data->batch,
                           data->batch * data->length,
                           job->train ? SHOAL_WITH_BACKWARD : 0, &layer->model);
    if (status != SHOAL_OK)
        return status;
    find_parts(layer);
    set_weights(layer, data, job->seed);
    return SHOAL_OK;
}

void bench_layer_destroy(bench_layer *layer) {
    shoal_model_destroy(layer->model);
    *layer = (bench_layer){0};
}

size_t bench_layer_workspace(const bench_layer *layer) {
    return shoal_model_workspace(layer->model);
}

/* ---- Running it -------------------------------------------------------------------- */

static shoal_model_inputs inputs_of(const bench_data *data) {
    return (shoal_model_inputs){.batch = data->batch,
                                .offsets = data->offsets,
                                .features = data->features};
}

shoal_status bench_layer_forward(bench_layer *layer, const bench_data *data) {
    const shoal_model_inputs inputs = inputs_of(data);
    return shoal_model_forward(layer->model, &inputs, &layer->out);
}

shoal_status bench_layer_backward(bench_layer *layer, const bench_data *data) {
    const shoal_model_inputs inputs = inputs_of(data);
    return shoal_model_backward(layer->model, &inputs, data->slope, data->dfeatures);
}

shoal_status bench_layer_call(bench_layer *layer, const bench_data *data,
                              double *seconds) {
    if (data->train)
        memcpy(data->slope, data->noise, (size_t)data->query_count * sizeof(float));
    const double begun = seconds_now();
    shoal_status status = bench_layer_forward(layer, data);
    if (status == SHOAL_OK && data->train)
        status = bench_layer_backward(layer, data);
    *seconds = seconds_now() - begun;
    return status;
}

#endif

/* ---- In every build ---------------------------------------------------------------- */

int64_t bench_part_count(const bench_layer *layer, int part) {
    const shoal_parameter *found = &layer->parts[part];
    int64_t count = found->values ? 1 : 0;
    for (int i = 0; i < found->rank; i++)
        count *= found->shape[i];
    return count;
}

uint64_t bench_layer_digest(const bench_layer *layer, const bench_data *data) {
    uint64_t digest = bench_fold(1, layer->out, data->query_count);
    if (!data->train)
        return digest;
    digest = bench_fold(digest, data->dfeatures, data->query_count);
    for (int part = 0; part < PARTS; part++)
        digest = bench_fold(digest, layer->parts[part].gradients,
                            bench_part_count(layer, part));
    return digest;
}
