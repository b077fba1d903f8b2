/* shoal attend: all arrays are read and checked before the computation, and written
   after all of it has succeeded.

   A problem that fits comfortably in memory is one slice. A larger one is divided into
   one slice per sequence and key/value head, which one plan processes in turn: the
   result of a head does not depend on other heads, and the pages of finished inputs are
   released to the system. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attend.h"

enum { DEFAULT_SAMPLES = 256 };

static bool take_scale(void *job, const char *name, const char *value) {
    return parse_scale("attend", name, value, &((attend_job *)job)->scale);
}

static bool take_seed(void *shared, const char *name, const char *value) {
    attend_job *job = shared;
    job->has_seed = true;
    return parse_seed("attend", name, value, &job->seed);
}

static bool take_check(void *shared, const char *name, const char *value) {
    attend_job *job = shared;
    job->check_samples = DEFAULT_SAMPLES;
    return !value ||
           parse_integer("attend", name, value, 1, INT32_MAX, &job->check_samples);
}

static const option_row rows[] =
    {{"output", 'o', "FILE", "output file, [batch, heads, N, Dv]",
      SETS_TEXT(attend_job, output_paths[OUTPUT_OUT])},
     {"scale", 0, "X", "multiply the scores by X (default: 1/sqrt(dim))",
      TAKEN_BY(take_scale)},
     {"seed", 0, "S",
      "seed of the kind and of --check (default: that of the kind, which\n"
      "is 1 unless spelled as in lsh-4:seed=7)",
      TAKEN_BY(take_seed)},
     THREADS_ROW(attend_job),
     ISA_ROW(attend_job),
     {"query-lengths", 0, "FILE",
      "number of valid queries per sequence, int32 [batch] (default: all)",
      SETS_TEXT(attend_job, input_paths[INPUT_QUERY_LENGTHS])},
     {"key-lengths", 0, "FILE",
      "number of valid keys per sequence, int32 [batch] (default: all)",
      SETS_TEXT(attend_job, input_paths[INPUT_KEY_LENGTHS])},
     {"groups", 0, "FILE",
      "use these query clusters, int32 [batch, heads, N], -1 for padding\n"
      "(default: computed by the kind)",
      SETS_TEXT(attend_job, input_paths[INPUT_GROUPS])},
     {"save-groups", 0, "FILE", "write the query clusters that were used",
      SETS_TEXT(attend_job, output_paths[OUTPUT_GROUPS])},
     {"save-top", 0, "FILE",
      "write the exact keys of each cluster, int32 [batch, heads,\n"
      "clusters, topk], padded with -1",
      SETS_TEXT(attend_job, output_paths[OUTPUT_TOP])},
     {"grad-out", 0, "FILE", "gradient of the output; required by the next three options",
      SETS_TEXT(attend_job, input_paths[INPUT_GRAD_OUT])},
     {"grad-q", 0, "FILE", "write the gradient of Q",
      SETS_TEXT(attend_job, output_paths[OUTPUT_GRAD_Q])},
     {"grad-k", 0, "FILE",
      "write the gradient of K (0 if the kind uses the queries as keys:\n"
      "the gradient of Q is then complete)",
      SETS_TEXT(attend_job, output_paths[OUTPUT_GRAD_K])},
     {"grad-v", 0, "FILE", "write the gradient of V",
      SETS_TEXT(attend_job, output_paths[OUTPUT_GRAD_V])},
     {"check", 0, "[=SAMPLES]",
      "compare with exact attention on a seeded sample of queries\n"
      "(default: 256) and print the error",
      TAKEN_BY(take_check)},
     {"json", 0, NULL, "print one JSON object instead of text",
      SETS_FLAG(attend_job, json)},
     HELP_ROW,
     {0}};

const command_help attend_help =
    {"attend",
     "attend KIND Q.npy K.npy V.npy -o OUT.npy [options]",
     "Computes attention of the queries over the keys and values, which are arrays\n"
     "[batch, heads, length, dim] in .npy files of version 1 to 3: all float32, or all\n"
     "float16, which is computed in float32 and written as float16. The number of heads\n"
     "of K and V must divide that of Q. KIND is spelled as in shoal kinds. shared-full "
     "and\n"
     "lsh use the queries as keys: K must equal Q; - stands for Q. Outputs are written\n"
     "atomically, after everything else has succeeded.\n",
     rows,
     "-o may be omitted with --check, a gradient, --save-groups or --save-top.\n"
     "\n"
     "Under mpirun each process has a contiguous part of the positions, and rank 0 "
     "writes\n"
     "the outputs. Supported there: float32 and the kinds full, clustered-C, "
     "i-clustered-C\n"
     "and q-clustered-C, without --check.\n"
     "\n"
     "environment:\n"
     "  SHOAL_SLICE_ABOVE    if Q, K, V and the output have more bytes than this "
     "(default:\n"
     "                       536870912), process one sequence and key/value head after\n"
     "                       another to save memory; --check then prints the root mean\n"
     "                       square of their errors\n"
     "  SHOAL_ISA, OMP_NUM_THREADS    defaults of --isa and --threads\n",
     "KIND FILE"};

/* ---- The command line ------------------------------------------------------------- */

/* Takes the positional arguments and checks the options that need no file. */
static void take_words(attend_job *job, int count, char **words) {
    static const char *const names[] = {"KIND", "Q.npy", "K.npy", "V.npy"};
    if (count < 4)
        die(EXIT_USAGE, "%s is missing; usage: shoal %s", names[count],
            attend_help.usage);
    if (count > 4)
        die(EXIT_USAGE, "unexpected argument %s; usage: shoal %s", words[4],
            attend_help.usage);
    job->kind = words[0];
    for (int i = 0; i < 3; i++)
        job->input_paths[INPUT_Q + i] = words[1 + i];
    bool gradient = false, output = job->check_samples > 0;
    for (int i = 0; i < OUTPUTS; i++)
        output |= job->output_paths[i] != NULL;
    for (int i = OUTPUT_GRAD_Q; i <= OUTPUT_GRAD_V; i++)
        gradient |= job->output_paths[i] != NULL;
    if (!output)
        die(EXIT_USAGE, "nothing to do: give -o OUT.npy or --check");
    if (gradient && !job->input_paths[INPUT_GRAD_OUT])
        die(EXIT_USAGE, "gradients need --grad-out, the gradient of the output");
    if (!gradient && job->input_paths[INPUT_GRAD_OUT])
        die(EXIT_USAGE, "--grad-out needs --grad-q, --grad-k or --grad-v");
}

static void read_environment(attend_job *job) {
    static const char variable[] = "SHOAL_SLICE_ABOVE";
    const char *text = getenv(variable);
    char *rest = NULL;
    job->largest_whole = (size_t)512 << 20;
    if (!text || !*text)
        return;
    errno = 0;
    job->largest_whole = strtoull(text, &rest, 10);
    if (*text < '0' || *text > '9' || *rest || errno != 0)
        die(EXIT_USAGE, "%s is \"%s\"; set it to a number of bytes, or unset it",
            variable, text);
}

/* "clustered-C, shoal-C": the kinds with a property, an int at `offset` in
   shoal_kind_info. */
static const char *kinds_with(size_t offset) {
    static char names[200];
    for (int i = 0; shoal_kind_describe(i); i++) {
        const shoal_kind_info *kind = shoal_kind_describe(i);
        const size_t used = strlen(names);
        if (*(const int *)(const void *)((const char *)kind + offset))
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                     kind->name);
    }
    return names;
}

/* Parses the kind and checks the options that depend on it. */
static void parse_kind(attend_job *job) {
    const shoal_status status =
        shoal_attention_parse(job->context, job->kind, &job->attention);
    if (status != SHOAL_OK) {
        const int code = complain_status(status, EXIT_USAGE, "attend", job->context);
        fputs("shoal attend: shoal kinds lists the spelling of every kind\n", stderr);
        leave(code);
    }
    const shoal_kind_info *kind = shoal_kind_describe((int)job->attention.kind);
    job->shared = kind->keys_are_queries;
    if (job->has_seed)
        job->attention.seed = job->seed;
    if (!kind->has_clusters &&
        (job->input_paths[INPUT_GROUPS] || job->output_paths[OUTPUT_GROUPS]))
        die(EXIT_USAGE,
            "%s has no clusters of queries: --groups and --save-groups need one of %s",
            job->kind, kinds_with(offsetof(shoal_kind_info, has_clusters)));
    if (!kind->has_top_keys && job->output_paths[OUTPUT_TOP])
        die(EXIT_USAGE, "%s has no exact keys per cluster: --save-top needs one of %s",
            job->kind, kinds_with(offsetof(shoal_kind_info, has_top_keys)));
    if (strcmp(job->input_paths[INPUT_K], "-") != 0)
        return;
    if (!job->shared)
        die(EXIT_USAGE,
            "- for K.npy needs %s, which use the queries as keys; %s needs a file",
            kinds_with(offsetof(shoal_kind_info, keys_are_queries)), job->kind);
    job->input_paths[INPUT_K] = NULL;
}

/* ---- Reading ---------------------------------------------------------------------- */

static const char *const type_names[] = {[SHOAL_DTYPE_FLOAT32] = "float32",
                                         [SHOAL_DTYPE_INT32] = "int32",
                                         [SHOAL_DTYPE_FLOAT16] = "float16"};

static size_t element_bytes(shoal_dtype dtype) {
    return dtype == SHOAL_DTYPE_FLOAT16 ? 2 : 4;
}

static size_t array_bytes(const shoal_array *array) {
    size_t bytes = element_bytes(array->dtype);
    for (int i = 0; i < array->dimensions; i++)
        bytes *= (size_t)array->shape[i];
    return bytes;
}

enum { SHAPE_TEXT = 200 };

static const char *shape_text(const shoal_array *array, char text[SHAPE_TEXT]) {
    size_t used = (size_t)snprintf(text, SHAPE_TEXT, "[");
    for (int i = 0; i < array->dimensions && used < SHAPE_TEXT; i++)
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
    [INPUT_Q] = {SHOAL_DTYPE_FLOAT32, 4, "[batch, heads, length, dim]"},
    [INPUT_K] = {SHOAL_DTYPE_FLOAT32, 4, "[batch, heads, length, dim]"},
    [INPUT_V] = {SHOAL_DTYPE_FLOAT32, 4, "[batch, heads, length, dim]"},
    [INPUT_QUERY_LENGTHS] = {SHOAL_DTYPE_INT32, 1, "[batch]"},
    [INPUT_KEY_LENGTHS] = {SHOAL_DTYPE_INT32, 1, "[batch]"},
    [INPUT_GROUPS] = {SHOAL_DTYPE_INT32, 3, "[batch, heads, length]"},
    [INPUT_GRAD_OUT] = {SHOAL_DTYPE_FLOAT32, 4, "[batch, heads, length, dim]"},
};

static void read_input(attend_job *job, int which) {
    char text[SHAPE_TEXT];
    const char *path = job->input_paths[which];
    shoal_array *array = &job->inputs[which];
    demand(shoal_array_read(job->context, path, array), EXIT_BAD_INPUT);
    const bool is_half = array->dtype == SHOAL_DTYPE_FLOAT16 &&
                         expected[which].dtype == SHOAL_DTYPE_FLOAT32;
    if ((array->dtype != expected[which].dtype && !is_half) ||
        array->dimensions != expected[which].rank)
        die(EXIT_BAD_INPUT, "%s is %s %s; it must be %s %s", path,
            type_names[array->dtype], shape_text(array, text),
            type_names[expected[which].dtype], expected[which].layout);
}

/* Exits if two inputs do not fit together. */
static void fit(const attend_job *job, bool fits, attend_input one, attend_input other,
                const char *rule) {
    char first[SHAPE_TEXT], second[SHAPE_TEXT];
    if (!fits)
        die(EXIT_BAD_INPUT, "%s %s and %s %s do not fit together: %s",
            job->input_paths[one], shape_text(&job->inputs[one], first),
            job->input_paths[other], shape_text(&job->inputs[other], second), rule);
}

static void compare_shapes(const attend_job *job) {
    const int64_t *q = job->inputs[INPUT_Q].shape, *v = job->inputs[INPUT_V].shape;
    const attend_input keys = job->inputs[INPUT_K].data ? INPUT_K : INPUT_Q;
    const int64_t *k = job->inputs[keys].shape;
    fit(job, k[0] == q[0], INPUT_K, INPUT_Q, "the batches differ");
    fit(job, k[3] == q[3], INPUT_K, INPUT_Q,
        "queries and keys must have the same dimension");
    fit(job, k[1] == q[1] || (k[1] != 0 && q[1] % k[1] == 0), INPUT_K, INPUT_Q,
        "the number of key heads must divide the number of query heads");
    fit(job, !job->shared || (k[1] == q[1] && k[2] == q[2]), INPUT_K, INPUT_Q,
        "this kind uses the queries as keys; give - for K");
    fit(job, v[0] == k[0] && v[1] == k[1] && v[2] == k[2], INPUT_V, keys,
        "batch, heads and length of keys and values must be equal");
}

/* Converts int32 to int64 and checks that the lengths are within the array. */
static int64_t *load_lengths(attend_job *job, attend_input which, int64_t longest) {
    const shoal_array *array = &job->inputs[which];
    const int32_t *given = array->data;
    if (!job->input_paths[which])
        return NULL;
    fit(job, array->shape[0] == job->problem.batch, which, INPUT_Q,
        "there must be one length per sequence");
    int64_t *lengths = reserve((size_t)array->shape[0] + 1, sizeof *lengths);
    for (int64_t i = 0; i < array->shape[0]; i++) {
        if (given[i] < 0 || given[i] > longest)
            die(EXIT_BAD_INPUT,
                "%s: length %" PRId32 " of sequence %" PRId64
                " is not within 0 to %" PRId64,
                job->input_paths[which], given[i], i, longest);
        lengths[i] = given[i];
    }
    return lengths;
}

static void load_inputs(attend_job *job) {
    for (int i = 0; i < INPUTS; i++)
        if (job->input_paths[i])
            read_input(job, i);
    const shoal_dtype dtype = job->inputs[INPUT_Q].dtype;
    for (int i = INPUT_K; i < INPUTS; i++) /* float32 and float16 cannot be mixed */
        if (job->inputs[i].data && expected[i].dtype == SHOAL_DTYPE_FLOAT32 &&
            job->inputs[i].dtype != dtype)
            die(EXIT_BAD_INPUT, "%s is %s and %s is %s: use one type for all arrays",
                job->input_paths[INPUT_Q], type_names[dtype], job->input_paths[i],
                type_names[job->inputs[i].dtype]);
    compare_shapes(job);
    const int64_t *q = job->inputs[INPUT_Q].shape, *v = job->inputs[INPUT_V].shape;
    const int64_t *groups = job->inputs[INPUT_GROUPS].shape;
    const int64_t *grad = job->inputs[INPUT_GRAD_OUT].shape;
    job->problem = (shoal_problem){.size = sizeof(shoal_problem),
                                   .batch = q[0],
                                   .heads = q[1],
                                   .kv_heads = v[1],
                                   .queries = q[2],
                                   .keys = v[2],
                                   .dim = q[3],
                                   .value_dim = v[3],
                                   .scale = job->scale,
                                   .dtype = dtype};
    job->query_lengths = load_lengths(job, INPUT_QUERY_LENGTHS, q[2]);
    job->key_lengths = load_lengths(job, INPUT_KEY_LENGTHS, v[2]);
    fit(job, !job->input_paths[INPUT_GROUPS] || memcmp(groups, q, 3 * sizeof *q) == 0,
        INPUT_GROUPS, INPUT_Q, "there must be one cluster per query");
    fit(job,
        !job->input_paths[INPUT_GRAD_OUT] ||
            (memcmp(grad, q, 3 * sizeof *q) == 0 && grad[3] == v[3]),
        INPUT_GRAD_OUT, INPUT_Q,
        "it must have the shape of the output: queries by value dimension");
}

/* ---- Slices ----------------------------------------------------------------------- */

/* Every array is [batch, heads or kv heads, ...], so slices are equal parts of it. */
static void *part_of(const attend_job *job, const shoal_array *array, int64_t slice,
                     size_t *bytes) {
    *bytes = array_bytes(array) / (size_t)job->slices;
    return array->data ? (char *)array->data + (size_t)slice * *bytes : NULL;
}

static void *input_part(const attend_job *job, attend_input which, int64_t slice) {
    size_t bytes;
    return part_of(job, &job->inputs[which], slice, &bytes);
}

static void *output_part(const attend_job *job, attend_output which, int64_t slice) {
    size_t bytes;
    return part_of(job, &job->outputs[which], slice, &bytes);
}

/* Only pages entirely inside the slice; those at its ends may belong to a neighbour. */
static void give_back_inputs(const attend_job *job, int64_t slice) {
    static const attend_input large[] = {INPUT_Q, INPUT_K, INPUT_V, INPUT_GRAD_OUT};
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        size_t bytes;
        char *part = part_of(job, &job->inputs[large[i]], slice, &bytes);
        uintptr_t ahead = (page - (uintptr_t)part % page) % page;
        if (part && bytes > ahead + page)
            madvise(part + ahead, (bytes - ahead) / page * page, MADV_DONTNEED);
    }
}

/* Kinds that use the queries as keys never read the keys. A file with other keys is
   rejected, because it would be ignored. */
static void compare_shared_keys(const attend_job *job, const shoal_problem *part,
                                int64_t slice, const shoal_inputs *inputs) {
    const char *keys = input_part(job, INPUT_K, slice), *queries = inputs->q;
    const size_t element = element_bytes(part->dtype);
    for (int64_t row = 0; row < part->batch * part->heads && job->shared && keys; row++) {
        int64_t live = inputs->query_lengths ? inputs->query_lengths[row / part->heads]
                                             : part->queries;
        size_t begin = (size_t)(row * part->keys * part->dim) * element;
        if (memcmp(keys + begin, queries + begin, (size_t)(live * part->dim) * element) !=
            0)
            die(EXIT_BAD_INPUT,
                "%s differs from %s, but this kind uses the queries as keys; give - for "
                "K",
                job->input_paths[INPUT_K], job->input_paths[INPUT_Q]);
    }
}

static void keep(const attend_job *job, attend_output which, int64_t slice,
                 const int32_t *used) {
    size_t bytes;
    void *part = part_of(job, &job->outputs[which], slice, &bytes);
    if (part && used)
        memcpy(part, used, bytes);
}

/* Samples are spread evenly; with several slices the relative error is the root mean
   square of theirs. */
static void check_slice(attend_job *job, shoal_plan *plan, int64_t slice,
                        const shoal_inputs *inputs) {
    shoal_error error, *total = &job->error;
    int64_t samples = (job->check_samples + job->slices - 1) / job->slices;
    demand(shoal_error_estimate(plan, inputs, output_part(job, OUTPUT_OUT, slice),
                                samples, job->attention.seed + (uint64_t)slice, &error),
           EXIT_BAD_INPUT);
    double before = (double)total->samples, now = (double)error.samples;
    if (error.samples > 0)
        total->relative_error =
            before > 0 ? sqrt((before * total->relative_error * total->relative_error +
                               now * error.relative_error * error.relative_error) /
                              (before + now))
                       : error.relative_error;
    if (isnan(error.largest_error) || error.largest_error > total->largest_error)
        total->largest_error = error.largest_error;
    total->samples += error.samples;
}

static void run_slice(attend_job *job, const shoal_problem *part, shoal_plan *plan,
                      int64_t slice) {
    const int64_t sequence = job->slices > 1 ? slice / job->problem.kv_heads : 0;
    const shoal_inputs inputs =
        {.size = sizeof(shoal_inputs),
         .q = input_part(job, INPUT_Q, slice),
         .k = job->shared ? NULL : input_part(job, INPUT_K, slice),
         .v = input_part(job, INPUT_V, slice),
         .query_lengths = job->query_lengths ? job->query_lengths + sequence : NULL,
         .key_lengths = job->key_lengths ? job->key_lengths + sequence : NULL,
         .clusters = input_part(job, INPUT_GROUPS, slice)};
    const shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                       .out = output_part(job, OUTPUT_OUT, slice),
                                       .dout = input_part(job, INPUT_GRAD_OUT, slice),
                                       .dq = output_part(job, OUTPUT_GRAD_Q, slice),
                                       .dk = output_part(job, OUTPUT_GRAD_K, slice),
                                       .dv = output_part(job, OUTPUT_GRAD_V, slice)};
    compare_shared_keys(job, part, slice, &inputs);
    const double begun = seconds_now();
    demand(shoal_forward(plan, &inputs, output_part(job, OUTPUT_OUT, slice)),
           EXIT_BAD_INPUT);
    if (job->input_paths[INPUT_GRAD_OUT])
        demand(shoal_backward(plan, &inputs, &gradients), EXIT_BAD_INPUT);
    job->seconds += seconds_now() - begun;
    keep(job, OUTPUT_GROUPS, slice, shoal_plan_clusters(plan, NULL));
    keep(job, OUTPUT_TOP, slice, shoal_plan_top_keys(plan, NULL));
    shoal_plan_picked(plan, NULL, &job->picked);
    if (job->check_samples > 0)
        check_slice(job, plan, slice, &inputs);
    if (job->slices > 1)
        give_back_inputs(job, slice);
}

static void run_attention(attend_job *job) {
    shoal_problem part = job->problem;
    shoal_plan *plan;
    size_t bytes = array_bytes(&job->outputs[OUTPUT_OUT]);
    for (int i = INPUT_Q; i <= INPUT_V; i++)
        bytes += job->inputs[i].data ? array_bytes(&job->inputs[i]) : 0;
    job->slices = 1;
    if (bytes > job->largest_whole) {
        job->slices = part.batch * part.kv_heads;
        part.heads /= part.kv_heads;
        part.batch = part.kv_heads = 1;
    }
    unsigned flags = job->input_paths[INPUT_GRAD_OUT] ? SHOAL_WITH_BACKWARD : 0;
    demand(shoal_plan_create(job->context, &part, &job->attention, flags, &plan),
           EXIT_BAD_INPUT);
    job->workspace = shoal_plan_workspace(plan);
    for (int64_t slice = 0; slice < job->slices; slice++) {
        if (job->slices > 1)
            progress_say("%s: slice %" PRId64 " of %" PRId64, job->kind, slice + 1,
                         job->slices);
        else
            progress_say("%s", job->kind);
        run_slice(job, &part, plan, slice);
    }
    shoal_plan_destroy(plan);
}

/* ---- Writing ---------------------------------------------------------------------- */

/* The output is always computed; the others only if requested. */
static void reserve_outputs(attend_job *job) {
    const shoal_problem *p = &job->problem;
    const int64_t B = p->batch, H = p->heads, G = p->kv_heads;
    const int64_t shapes[OUTPUTS][4] = {
        [OUTPUT_OUT] = {B, H, p->queries, p->value_dim},
        [OUTPUT_GROUPS] = {B, H, p->queries, 1},
        [OUTPUT_TOP] = {B, H, job->attention.clusters, job->attention.topk},
        [OUTPUT_GRAD_Q] = {B, H, p->queries, p->dim},
        [OUTPUT_GRAD_K] = {B, G, p->keys, p->dim},
        [OUTPUT_GRAD_V] = {B, G, p->keys, p->value_dim},
    };
    for (int i = 0; i < OUTPUTS; i++) {
        shoal_array *array = &job->outputs[i];
        if (i != OUTPUT_OUT && !job->output_paths[i])
            continue;
        array->dtype = i == OUTPUT_GROUPS || i == OUTPUT_TOP ? SHOAL_DTYPE_INT32
                                                             : p->dtype;
        array->dimensions = i == OUTPUT_GROUPS ? 3 : 4;
        memcpy(array->shape, shapes[i], sizeof shapes[i]);
        int64_t bytes = (int64_t)element_bytes(array->dtype);
        bool overflow = false;
        for (int k = 0; k < 4; k++)
            overflow |= __builtin_mul_overflow(bytes, shapes[i][k], &bytes);
        array->data = overflow ? NULL : malloc(bytes ? (size_t)bytes : 1);
        if (!array->data)
            die(EXIT_RESOURCES, "out of memory for the outputs");
    }
}

static void write_outputs(attend_job *job) {
    const char *written = NULL;
    for (int i = 0; i < OUTPUTS; i++) {
        struct stat information;
        const char *path = job->output_paths[i];
        if (!path)
            continue;
        progress_say("writing %s", path);
        /* Pipes and devices are written directly: there is no file to protect, and an
           interrupt must work even if no reader ever comes. */
        const char *place = written_path(path);
        const bool is_file = stat(place, &information) != 0 ||
                             S_ISREG(information.st_mode);
        if (is_file)
            writing_begin();
        const shoal_status status =
            shoal_array_write(job->context, place, &job->outputs[i]);
        if (is_file)
            writing_end();
        if (status != SHOAL_OK && written)
            complain(
                EXIT_RESOURCES, "attend",
                "the outputs up to %s were written, but %s and those after it were not",
                written, path);
        demand(status, EXIT_RESOURCES);
        written = path;
    }
}

/* ---- The report ------------------------------------------------------------------- */

/* The spelling of a kind; for the paper's kinds with all options. */
static void spell_in_full(const shoal_attention *attention, char *text, size_t size) {
    shoal_attention_print(attention, text, size);
    /* Kinds and options beyond the paper keep the short spelling. */
    if (attention->kind == SHOAL_KIND_SHOAL || attention->kind == SHOAL_KIND_AUTO ||
        attention->clustering || attention->normaliser)
        return;
    size_t used = strcspn(text, ":");
    text[used] = 0;
    if (attention->kind == SHOAL_KIND_I_CLUSTERED)
        used +=
            (size_t)snprintf(text + used, size - used, ":topk=%" PRId32, attention->topk);
    if (attention->kind == SHOAL_KIND_CLUSTERED ||
        attention->kind == SHOAL_KIND_I_CLUSTERED)
        used += (size_t)snprintf(text + used, size - used,
                                 "%cbits=%" PRId32 ",iterations=%" PRId32,
                                 strchr(text, ':') ? ',' : ':', attention->bits,
                                 attention->iterations);
    if (strchr(text, ':') || attention->kind == SHOAL_KIND_LSH)
        snprintf(text + used, size - used, "%cseed=%" PRIu64,
                 strchr(text, ':') ? ',' : ':', attention->seed);
}

static double scale_used(const attend_job *job) {
    const shoal_problem *problem = &job->problem;
    return problem->scale != 0 ? (double)problem->scale
                               : 1 / sqrt((double)(problem->dim > 0 ? problem->dim : 1));
}

static int report_json(const attend_job *job, const char *spelling, const char *picked) {
    const shoal_problem *p = &job->problem;
    const bool ranks = job->ranks != NULL, checked = job->check_samples > 0;
    json_t *outputs = json_array();
    for (int i = 0; i < OUTPUTS; i++)
        if (job->output_paths[i])
            json_array_append_new(outputs, json_text(job->output_paths[i]));
    return print_json(json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:i, s:I, s:f, s:I, s:o, "
        "s:o*, s:o*, s:s*, s:o*, s:o*, s:o*}",
        "kind", spelling, "batch", (json_int_t)p->batch, "heads", (json_int_t)p->heads,
        "kv_heads", (json_int_t)p->kv_heads, "queries", (json_int_t)p->queries, "keys",
        (json_int_t)p->keys, "dim", (json_int_t)p->dim, "value_dim",
        (json_int_t)p->value_dim, "scale", json_number(scale_used(job)), "isa",
        shoal_context_isa(job->context), "threads", shoal_context_threads(job->context),
        "slices", (json_int_t)job->slices, "seconds", job->seconds, "workspace_bytes",
        (json_int_t)job->workspace, "outputs", outputs, "ranks",
        ranks ? json_integer(job->ranks->ranks) : NULL, "sent_bytes",
        ranks ? json_integer(job->sent) : NULL, "picked", picked, "samples",
        checked ? json_integer(job->error.samples) : NULL, "relative_error",
        checked ? json_number(job->error.relative_error) : NULL, "largest_error",
        checked ? json_number(job->error.largest_error) : NULL));
}

static int report(const attend_job *job) {
    const shoal_problem *p = &job->problem;
    const int threads = shoal_context_threads(job->context);
    const bool picks = job->attention.kind == SHOAL_KIND_AUTO;
    char spelling[128], picked[128];
    spell_in_full(&job->attention, spelling, sizeof spelling);
    spell_in_full(&job->picked, picked, sizeof picked);
    if (job->json)
        return report_json(job, spelling, picks ? picked : NULL);
    printf("%s\n", spelling);
    if (picks)
        printf("  picked %s%s\n", picked, job->slices > 1 ? " for the last slice" : "");
    printf("  batch %" PRId64 ", heads %" PRId64 " (keys and values: %" PRId64
           "), queries %" PRId64 ", keys %" PRId64 ", dim %" PRId64 ", value dim %" PRId64
           ", scale %.6g\n",
           p->batch, p->heads, p->kv_heads, p->queries, p->keys, p->dim, p->value_dim,
           scale_used(job));
    printf("  %s, %d thread%s, %s, workspace %s", shoal_context_isa(job->context),
           threads, plural(threads), seconds_text(job->seconds),
           bytes_text((double)job->workspace));
    if (job->slices > 1)
        printf(", %" PRId64 " slices", job->slices);
    if (job->ranks)
        printf(", %d ranks, %s sent by rank 0", (int)job->ranks->ranks,
               bytes_text((double)job->sent));
    putchar('\n');
    if (job->check_samples > 0)
        printf("  relative error %.3g on %" PRId64 " sampled queries (largest difference "
               "%.3g)\n",
               job->error.relative_error, job->error.samples, job->error.largest_error);
    for (int i = 0; i < OUTPUTS; i++)
        if (job->output_paths[i])
            printf("  wrote %s\n", job->output_paths[i]);
    return EXIT_OK;
}

/* ---- The command ------------------------------------------------------------------ */

int attend_command(int count, char **arguments) {
    static attend_job job;
    begin_command(&attend_help, count, arguments, &job);
    take_words(&job, count - optind, arguments + optind);
    read_environment(&job);
    job.ranks = begin_ranks("Nothing was written: start the job again");
    if (job.ranks && job.threads == 0)
        job.threads = ranks_threads(job.ranks);
    job.context = begin_context(job.threads, job.isa);
    const bool first = ranks_first(job.ranks);
    /* Rank 0 reports problems of the files. */
    if (job.ranks)
        first_alone_begin(job.ranks);
    if (first) {
        progress_begin(2);
        parse_kind(&job);
        for (int i = 0; i < INPUTS; i++)
            if (job.input_paths[i])
                plan_input(job.input_paths[i]);
        for (int i = 0; i < OUTPUTS; i++)
            plan_output(job.output_paths[i]);
        load_inputs(&job);
        reserve_outputs(&job);
    }
    if (job.ranks)
        first_alone_end(job.ranks);
    if (!first) {
        parse_kind(&job);
        load_inputs(&job);
    }
    if (job.ranks)
        attend_over_ranks(&job);
    else
        run_attention(&job);
    if (!first)
        return EXIT_OK;
    write_outputs(&job);
    progress_end();
    return report(&job);
}
