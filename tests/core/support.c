#include "support.h"
#include "cases.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t GUARD = UINT32_C(0x7fc0beef);

void *test_memory(int64_t count, size_t size) {
    void *block = calloc(count > 0 ? (size_t)count : 1, size);
    if (!block) {
        fprintf(stderr, "the test itself ran out of memory\n");
        exit(1);
    }
    return block;
}

/* ---- Random numbers ------------------------------------------------------------ */

uint64_t test_hash(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint64_t x = seed;
    const uint64_t parts[] = {stream, counter};
    for (int i = 0; i < 2; i++) {
        x = (x ^ parts[i]) * UINT64_C(0xd6e8feb86659fd93);
        x ^= x >> 32;
        x = (x + UINT64_C(0x632be59bd9b4e019)) * UINT64_C(0xd6e8feb86659fd93);
        x ^= x >> 29;
    }
    return x * UINT64_C(0xd6e8feb86659fd93) ^ (x >> 31);
}

/* The sum of four uniform numbers, scaled to variance 1. */
double test_normal(uint64_t bits) {
    double sum = 0;
    for (int part = 0; part < 4; part++)
        sum += (double)((bits >> (16 * part)) & 0xffff) / 65536.0 - 0.5;
    return sum * 1.7320508075688772;
}

int64_t test_pick(uint64_t seed, uint64_t stream, int64_t low, int64_t high) {
    return low + (int64_t)(test_hash(seed, stream, 99) % (uint64_t)(high - low + 1));
}

/* ---- Tensors ------------------------------------------------------------------- */

int64_t tensor_positions(const tensor *t, int64_t b) {
    return t->offsets ? t->offsets[b + 1] - t->offsets[b] : t->positions;
}

float *tensor_row(const tensor *t, int64_t b, int64_t h, int64_t position) {
    int64_t sequence = t->offsets ? t->offsets[b] * t->strides.position
                                  : b * t->strides.batch;
    return t->data + sequence + h * t->strides.head + position * t->strides.position;
}

void tensor_guard(const tensor *t) {
    for (int64_t i = 0; i < t->elements; i++)
        memcpy(t->data + i, &GUARD, sizeof GUARD);
}

/* Number of elements up to the last one addressed by shape and strides. */
static int64_t tensor_extent(const tensor *t) {
    int64_t batch = t->offsets ? 1 : t->batch;
    int64_t positions = t->offsets ? t->offsets[t->batch] : t->positions;
    if (batch == 0 || t->heads == 0 || positions == 0)
        return 0;
    return (batch - 1) * t->strides.batch + (t->heads - 1) * t->strides.head +
           (positions - 1) * t->strides.position + t->features;
}

static shoal_strides strides_of(const tensor *t, memory_layout layout) {
    int64_t gap = layout == LAYOUT_GAPS || layout == LAYOUT_PACKED_GAPS ? 3 : 0;
    int64_t row = t->features + gap;
    if (layout == LAYOUT_CONTIGUOUS || layout == LAYOUT_GAPS)
        return (shoal_strides){.position = row,
                               .head = t->positions * row + gap,
                               .batch = t->heads * (t->positions * row + gap) + 2 * gap};
    int64_t position = t->heads * row + 2 * gap;
    bool packed = layout == LAYOUT_PACKED || layout == LAYOUT_PACKED_GAPS;
    return (shoal_strides){.position = position,
                           .head = row,
                           .batch = packed ? 0 : t->positions * position};
}

static tensor tensor_create(const case_spec *spec, int64_t heads, int64_t positions,
                            int64_t features, const int64_t *offsets) {
    tensor t = {.batch = spec->batch,
                .heads = heads,
                .positions = positions,
                .features = features,
                .offsets = offsets};
    t.strides = strides_of(&t, spec->layout);
    t.elements = tensor_extent(&t);
    t.data = test_memory(t.elements, sizeof(float));
    tensor_guard(&t);
    return t;
}

void tensor_destroy(tensor *t) {
    free(t->data);
    t->data = NULL;
}

/* Fills valid elements only; values depend on the index, not on the layout. */
static void tensor_fill(const tensor *t, const int64_t *lengths, uint64_t seed,
                        uint64_t stream) {
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < lengths[b]; i++) {
                uint64_t place = (uint64_t)((b * t->heads + h) << 32 | i);
                uint64_t row_seed = test_hash(seed, stream, place);
                for (int64_t f = 0; f < t->features; f++)
                    tensor_row(t, b, h, i)[f] =
                        (float)test_normal(test_hash(row_seed, 1, (uint64_t)f));
            }
}

static bool is_guard(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits == GUARD;
}

static void check_padding(const tensor *t, int64_t b, int64_t h, int64_t i,
                          const char *name, unsigned char *named, bool padded) {
    const float *row = tensor_row(t, b, h, i);
    for (int64_t f = 0; f < t->features; f++) {
        named[row - t->data + f] = 1;
        if (padded && row[f] != 0)
            fail_msg("%s[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64
                     "] is padding and holds %g",
                     name, b, h, i, f, (double)row[f]);
        if (!padded && is_guard(row[f]))
            fail_msg("%s[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64
                     "] is live and was not written",
                     name, b, h, i, f);
    }
}

void check_surroundings(const tensor *t, const int64_t *lengths, const char *name) {
    unsigned char *named = test_memory(t->elements, 1);
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < tensor_positions(t, b); i++)
                check_padding(t, b, h, i, name, named, i >= lengths[b]);
    for (int64_t i = 0; i < t->elements; i++)
        if (!named[i] && !is_guard(t->data[i]))
            fail_msg("%s: element %" PRId64 " lies in a gap and was written", name, i);
    free(named);
}

void check_identical(const tensor *a, const tensor *b, const int64_t *lengths,
                     const char *name) {
    for (int64_t s = 0; s < a->batch; s++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t i = 0; i < lengths[s]; i++) {
                const float *x = tensor_row(a, s, h, i), *y = tensor_row(b, s, h, i);
                for (int64_t f = 0; f < a->features; f++)
                    if (memcmp(x + f, y + f, sizeof *x) != 0)
                        fail_msg("%s[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64
                                 "]: %.9g and %.9g are not the same bits",
                                 name, s, h, i, f, (double)x[f], (double)y[f]);
            }
}

/* ---- Cases --------------------------------------------------------------------- */

/* [batch]: all valid, or lengths from 0 to the longest, which occurs at least once. */
static int64_t *lengths_of(const case_spec *spec, int64_t longest, uint64_t stream) {
    int64_t *lengths = test_memory(spec->batch, sizeof *lengths);
    for (int64_t b = 0; b < spec->batch; b++) {
        bool whole = !spec->ragged || b == (int64_t)(spec->seed % (uint64_t)spec->batch);
        uint64_t bits = test_hash(spec->seed, stream, (uint64_t)b);
        lengths[b] = whole ? longest : (int64_t)(bits % (uint64_t)(longest + 1));
    }
    return lengths;
}

/* Offsets of packed sequences; with gaps, the first one starts late. */
static int64_t *offsets_of(const case_spec *spec, const int64_t *lengths) {
    int64_t *offsets = test_memory(spec->batch + 1, sizeof *offsets);
    offsets[0] = spec->layout == LAYOUT_PACKED_GAPS ? 2 : 0;
    for (int64_t b = 0; b < spec->batch; b++)
        offsets[b + 1] = offsets[b] + lengths[b];
    return offsets;
}

static int32_t *groups_of(const attention_case *c) {
    const case_spec *spec = &c->spec;
    int64_t count = spec->batch * spec->heads * spec->queries;
    int32_t *groups = test_memory(count, sizeof *groups);
    for (int64_t i = 0; i < count; i++) {
        int64_t b = i / (spec->heads * spec->queries), position = i % spec->queries;
        uint64_t bits = test_hash(spec->seed, 40, (uint64_t)i);
        bool live = position < c->query_lengths[b];
        groups[i] = live ? (int32_t)(bits % (uint64_t)spec->attention.clusters)
                         : INT32_MAX;
    }
    return groups;
}

static bool has_masks(const case_spec *s) {
    return s->causal || s->bias || s->mask || s->dropout > 0;
}

static int64_t case_pairs(const case_spec *s) {
    return s->batch * s->heads * s->queries * s->keys;
}

static shoal_pair_strides pair_strides(const case_spec *s, pair_layout layout) {
    const int64_t gap = layout == PAIRS_GAPS ? 3 : 0;
    const int64_t row = s->keys + gap, head = s->queries * row + gap;
    shoal_pair_strides strides = {s->heads * head + gap, head, row, 1};
    switch (layout) {
    case PAIRS_TURNED:
        strides.query = 1;
        strides.key = s->queries;
        break;
    case PAIRS_OF_HEADS: strides.batch = 0; break;
    case PAIRS_SHARED: strides.batch = strides.head = 0; break;
    case PAIRS_OF_KEYS: strides.head = strides.query = 0; break;
    case PAIRS_OF_QUERIES: strides.key = 0; break;
    default: break;
    }
    return strides;
}

/* Number of elements up to the last one addressed by shape and strides. */
static int64_t pair_extent(const case_spec *s, const shoal_pair_strides *strides) {
    if (case_pairs(s) == 0)
        return 0;
    return (s->batch - 1) * strides->batch + (s->heads - 1) * strides->head +
           (s->queries - 1) * strides->query + (s->keys - 1) * strides->key + 1;
}

/* One query in eleven sees no key, if rows depend on queries. */
static bool pair_is_hidden(const case_spec *s, const shoal_pair_strides *strides,
                           int64_t at, uint64_t stream) {
    const int64_t row = strides->query > 1 ? at / strides->query : at;
    return test_hash(s->seed, stream, (uint64_t)at) % 8 == 0 ||
           test_hash(s->seed, stream + 1, (uint64_t)row) % 11 == 0;
}

static shoal_strides key_bias_strides(const case_spec *s) {
    const int64_t gap = s->key_bias == PAIRS_GAPS ? 3 : 0;
    const int64_t head = s->keys * (gap + 1) + gap;
    shoal_strides strides = {s->heads * head, head, gap + 1};
    if (s->key_bias >= PAIRS_OF_HEADS)
        strides.batch = 0;
    if (s->key_bias >= PAIRS_SHARED)
        strides.head = 0;
    return strides;
}

/* A case is copied, so that its strides lie elsewhere. */
static const shoal_strides *keep_strides(attention_case *c, int at,
                                         shoal_strides strides) {
    c->strides[at] = strides;
    return &c->strides[at];
}

static void create_key_bias(attention_case *c) {
    const case_spec *s = &c->spec;
    const shoal_strides strides = key_bias_strides(s);
    const int64_t count = s->batch * s->heads * s->keys * 8 + 8;
    c->key_bias = test_memory(count, sizeof *c->key_bias);
    for (int64_t at = 0; at < count; at++) {
        const uint64_t bits = test_hash(s->seed, 60, (uint64_t)at);
        c->key_bias[at] = bits % 6 == 0 ? -INFINITY : (float)test_normal(bits);
    }
    c->inputs.key_bias = c->key_bias;
    if (s->key_bias != PAIRS_WHOLE)
        c->inputs.key_bias_strides = keep_strides(c, 4, strides);
    const int64_t gradients = s->batch * s->heads * s->keys;
    c->dkey_bias = test_memory(gradients, sizeof *c->dkey_bias);
    for (int64_t i = 0; i < gradients; i++)
        memcpy(c->dkey_bias + i, &GUARD, sizeof GUARD);
}

static void create_masks(attention_case *c) {
    const case_spec *s = &c->spec;
    if (s->key_bias)
        create_key_bias(c);
    if (s->bias) {
        const shoal_pair_strides strides = pair_strides(s, s->bias);
        const int64_t count = pair_extent(s, &strides);
        c->bias = test_memory(count, sizeof *c->bias);
        for (int64_t at = 0; at < count; at++)
            c->bias[at] = pair_is_hidden(s, &strides, at, 50)
                              ? -INFINITY
                              : (float)test_normal(test_hash(s->seed, 52, (uint64_t)at));
        c->inputs.bias = c->bias;
        c->pair_strides[0] = strides;
        c->inputs.bias_strides = s->bias == PAIRS_WHOLE ? NULL : &c->pair_strides[0];
    }
    if (s->mask) {
        const shoal_pair_strides strides = pair_strides(s, s->mask);
        const int64_t count = pair_extent(s, &strides);
        c->mask = test_memory(count, sizeof *c->mask);
        for (int64_t at = 0; at < count; at++)
            c->mask[at] = !pair_is_hidden(s, &strides, at, 53);
        c->inputs.mask = c->mask;
        c->pair_strides[1] = strides;
        c->inputs.mask_strides = s->mask == PAIRS_WHOLE ? NULL : &c->pair_strides[1];
    }
    c->inputs.dropout_seed = s->seed;
    if (has_masks(s))
        c->dbias = test_memory(case_pairs(s), sizeof *c->dbias);
    for (int64_t i = 0; has_masks(s) && i < case_pairs(s); i++)
        memcpy(c->dbias + i, &GUARD, sizeof GUARD);
}

static void create_tensors(attention_case *c) {
    const case_spec *s = &c->spec;
    const int64_t *starts = c->query_offsets, *key_starts = c->key_offsets;
    int64_t kv_heads = case_kv_heads(c);
    tensor *queries[] = {&c->q, &c->dq}, *keys[] = {&c->k, &c->dk};
    tensor *values[] = {&c->v, &c->dv}, *outs[] = {&c->out, &c->dout};
    for (int i = 0; i < 2; i++) {
        *queries[i] = tensor_create(s, s->heads, s->queries, s->dim, starts);
        *keys[i] = tensor_create(s, kv_heads, s->keys, s->dim, key_starts);
        *values[i] = tensor_create(s, kv_heads, s->keys, s->value_dim, key_starts);
        *outs[i] = tensor_create(s, s->heads, s->queries, s->value_dim, starts);
    }
    tensor_fill(&c->q, c->query_lengths, s->seed, 1);
    tensor_fill(&c->k, c->key_lengths, s->seed, 2);
    tensor_fill(&c->v, c->key_lengths, s->seed, 3);
    tensor_fill(&c->dout, c->query_lengths, s->seed, 4);
}

static void describe_problem(attention_case *c) {
    const case_spec *s = &c->spec;
    bool packed = s->layout == LAYOUT_PACKED || s->layout == LAYOUT_PACKED_GAPS;
    bool defaults = s->layout == LAYOUT_CONTIGUOUS || s->layout == LAYOUT_PACKED;
    c->problem = (shoal_problem){.size = sizeof(shoal_problem),
                                 .batch = s->batch,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .queries = s->queries,
                                 .keys = s->keys,
                                 .dim = s->dim,
                                 .value_dim = s->value_dim,
                                 .scale = s->scale,
                                 .packed = packed,
                                 .causal = s->causal,
                                 .dropout = s->dropout};
    if (!defaults) {
        c->problem.q_strides = keep_strides(c, 0, c->q.strides);
        c->problem.k_strides = keep_strides(c, 1, c->k.strides);
        c->problem.v_strides = keep_strides(c, 2, c->v.strides);
        c->problem.out_strides = keep_strides(c, 3, c->out.strides);
    }
    bool lengths = s->ragged && !packed;
    bool shared = facts_of(s->attention.kind)->keys_are_queries;
    c->inputs = (shoal_inputs){.size = sizeof(shoal_inputs),
                               .q = c->q.data,
                               .k = shared ? NULL : c->k.data,
                               .v = c->v.data,
                               .query_lengths = lengths ? c->query_lengths : NULL,
                               .key_lengths = lengths ? c->key_lengths : NULL,
                               .query_offsets = c->query_offsets,
                               .key_offsets = c->key_offsets,
                               .clusters = c->groups};
}

attention_case case_create(const case_spec *spec) {
    attention_case c = {.spec = *spec};
    c.strides = test_memory(5, sizeof *c.strides);
    c.pair_strides = test_memory(2, sizeof *c.pair_strides);
    bool packed = spec->layout == LAYOUT_PACKED || spec->layout == LAYOUT_PACKED_GAPS;
    bool shared = facts_of(spec->attention.kind)->keys_are_queries;
    if (shared) {
        c.spec.keys = spec->queries;
        c.spec.kv_heads = 0;
    }
    c.query_lengths = lengths_of(&c.spec, c.spec.queries, 30);
    c.key_lengths = lengths_of(&c.spec, c.spec.keys, shared ? 30 : 31);
    if (packed) {
        c.query_offsets = offsets_of(&c.spec, c.query_lengths);
        c.key_offsets = offsets_of(&c.spec, c.key_lengths);
    }
    if (spec->own_groups)
        c.groups = groups_of(&c);
    create_tensors(&c);
    describe_problem(&c);
    create_masks(&c);
    return c;
}

static void forget_run(attention_case *c) {
    shoal_plan_destroy(c->plan);
    shoal_context_destroy(c->context);
    c->plan = NULL;
    c->context = NULL;
}

void case_destroy(attention_case *c) {
    forget_run(c);
    tensor *all[] = {&c->q, &c->k, &c->v, &c->out, &c->dout, &c->dq, &c->dk, &c->dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++)
        tensor_destroy(all[i]);
    free(c->query_lengths);
    free(c->key_lengths);
    free(c->query_offsets);
    free(c->key_offsets);
    free(c->groups);
    free(c->bias);
    free(c->mask);
    free(c->dbias);
    free(c->key_bias);
    free(c->dkey_bias);
    free(c->strides);
    free(c->pair_strides);
}

int64_t case_kv_heads(const attention_case *c) {
    return c->spec.kv_heads > 0 ? c->spec.kv_heads : c->spec.heads;
}

static void copy_rows(const tensor *to, const tensor *from, int64_t b, int64_t h) {
    for (int64_t i = 0; i < to->positions; i++)
        memcpy(tensor_row(to, 0, 0, i), tensor_row(from, b, h, i),
               sizeof(float) * (size_t)to->features);
}

attention_case case_extract(const attention_case *c, int64_t b, int64_t h) {
    int64_t kv_head = h / (c->spec.heads / case_kv_heads(c));
    case_spec spec = c->spec;
    spec.batch = spec.heads = 1;
    spec.kv_heads = 0;
    spec.queries = c->query_lengths[b];
    spec.keys = c->key_lengths[b];
    spec.layout = LAYOUT_CONTIGUOUS;
    spec.ragged = false;
    attention_case alone = case_create(&spec);
    copy_rows(&alone.q, &c->q, b, h);
    copy_rows(&alone.k, &c->k, b, kv_head);
    copy_rows(&alone.v, &c->v, b, kv_head);
    copy_rows(&alone.dout, &c->dout, b, h);
    for (int64_t i = 0; i < spec.queries && c->groups; i++)
        alone.groups[i] = c->groups[(b * c->spec.heads + h) * c->spec.queries + i];
    return alone;
}

/* ---- Running cases ------------------------------------------------------------- */

const char *case_text(const attention_case *c) {
    static const char *const layouts[] = {"contiguous", "position-major", "gaps",
                                          "packed", "packed with gaps"};
    static char text[400];
    const case_spec *s = &c->spec;
    char kind[128];
    shoal_attention_print(&s->attention, kind, sizeof kind);
    snprintf(text, sizeof text,
             "%s, batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", N %" PRId64
             ", S %" PRId64 ", D %" PRId64 ", Dv %" PRId64
             ", scale %g, %s%s%s%s, bias %d %d, mask %d, dropout %g, seed %" PRIu64,
             kind, s->batch, s->heads, case_kv_heads(c), s->queries, s->keys, s->dim,
             s->value_dim, (double)s->scale, layouts[s->layout],
             s->ragged ? ", ragged" : "", s->own_groups ? ", own groups" : "",
             s->causal ? ", causal" : "", (int)s->bias, (int)s->key_bias, (int)s->mask,
             (double)s->dropout, s->seed);
    return text;
}

shoal_plan *case_plan(shoal_context *context, const attention_case *c, unsigned flags) {
    shoal_plan *plan = NULL;
    if (shoal_plan_create(context, &c->problem, &c->spec.attention, flags, &plan) !=
        SHOAL_OK)
        fail_msg("plan refused: %s (%s)", shoal_context_message(context), case_text(c));
    assert_non_null(plan);
    return plan;
}

void case_forward(shoal_plan *plan, attention_case *c) {
    if (shoal_forward(plan, &c->inputs, c->out.data) != SHOAL_OK)
        fail_msg("forward refused (%s)", case_text(c));
}

void case_backward(shoal_plan *plan, attention_case *c) {
    shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                 .out = c->out.data,
                                 .dout = c->dout.data,
                                 .dq = c->dq.data,
                                 .dk = c->dk.data,
                                 .dv = c->dv.data,
                                 .dbias = c->dbias,
                                 .dkey_bias = c->dkey_bias};
    if (shoal_backward(plan, &c->inputs, &gradients) != SHOAL_OK)
        fail_msg("backward refused (%s)", case_text(c));
}

shoal_plan *case_run(shoal_context *context, attention_case *c) {
    shoal_plan *plan = case_plan(context, c, SHOAL_WITH_BACKWARD);
    case_forward(plan, c);
    case_backward(plan, c);
    return plan;
}

void case_run_on(const char *isa, int threads, attention_case *c) {
    forget_run(c);
    c->context = test_context(isa, threads);
    c->plan = case_run(c->context, c);
}

/* dk is 0 everywhere if the kind uses the queries as keys. */
void case_check_surroundings(const attention_case *c) {
    int64_t *none = test_memory(c->spec.batch, sizeof *none);
    bool shared = facts_of(c->spec.attention.kind)->keys_are_queries;
    check_surroundings(&c->out, c->query_lengths, "out");
    check_surroundings(&c->dq, c->query_lengths, "dq");
    check_surroundings(&c->dk, shared ? none : c->key_lengths, "dk");
    check_surroundings(&c->dv, c->key_lengths, "dv");
    free(none);
}

void case_check_identical(const attention_case *a, const attention_case *b) {
    check_identical(&a->out, &b->out, a->query_lengths, "out");
    check_identical(&a->dq, &b->dq, a->query_lengths, "dq");
    check_identical(&a->dk, &b->dk, a->key_lengths, "dk");
    check_identical(&a->dv, &b->dv, a->key_lengths, "dv");
    if (a->dbias && b->dbias)
        assert_memory_equal(a->dbias, b->dbias,
                            (size_t)case_pairs(&a->spec) * sizeof *a->dbias);
    if (a->dkey_bias && b->dkey_bias)
        assert_memory_equal(a->dkey_bias, b->dkey_bias,
                            (size_t)(a->spec.batch * a->spec.heads * a->spec.keys) *
                                sizeof *a->dkey_bias);
}

/* ---- Contexts ------------------------------------------------------------------ */

static bool isa_runs(const char *isa) {
    shoal_context *context = NULL;
    bool runs =
        shoal_context_create(&(shoal_options){.size = sizeof(shoal_options), .isa = isa},
                             &context) == SHOAL_OK;
    shoal_context_destroy(context);
    return runs;
}

const char *test_isa(int index) {
    static const char *const all[] = {"scalar", "avx2", "avx512", "neon"};
#if defined(__SANITIZE_THREAD__)
    /* Races are the same on every instruction set; the fastest takes seconds. */
    for (int64_t i = COUNT_OF(all) - 1; i >= 0; i--)
        if (isa_runs(all[i]))
            return index == 0 ? all[i] : NULL;
#endif
    for (int64_t i = 0; i < COUNT_OF(all); i++)
        if (isa_runs(all[i]) && index-- == 0)
            return all[i];
    return NULL;
}

shoal_context *test_context(const char *isa, int threads) {
    shoal_context *context = NULL;
    shoal_options options = {.size = sizeof(shoal_options),
                             .isa = isa,
                             .threads = threads};
    if (shoal_context_create(&options, &context) != SHOAL_OK)
        fail_msg("no context for %s: %s", isa ? isa : "the default instruction set",
                 context ? shoal_context_message(context) : "out of memory");
    return context;
}

shoal_attention spelled(const char *text) {
    shoal_context *context = test_context("scalar", 1);
    shoal_attention attention;
    if (shoal_attention_parse(context, text, &attention) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    shoal_context_destroy(context);
    return attention;
}

static void set_number(int32_t *field, int32_t number) {
    if (*field != 0 && number > 0)
        *field = number;
}

/* The spelling with an added option; false if the kind does not have it, or has it
   already. */
static bool spell_kind(const shoal_attention *kind, const char *option, char text[160]) {
    shoal_context *context = test_context("scalar", 1);
    shoal_attention parsed;
    char plain[96], printed[160];
    shoal_attention_print(kind, plain, sizeof plain);
    snprintf(text, 160, "%s%s%s", plain,
             !*option             ? ""
             : strchr(plain, ':') ? ","
                                  : ":",
             option);
    bool taken = shoal_attention_parse(context, text, &parsed) == SHOAL_OK;
    if (taken)
        shoal_attention_print(&parsed, printed, sizeof printed);
    shoal_context_destroy(context);
    return taken && (!*option || strcmp(printed, plain) != 0);
}

void test_kinds(shoal_attention numbers, const char *list[TEST_KINDS + 1]) {
    static const char *const options[] = {"", "groups=keys", "normaliser=query"};
    static char texts[TEST_KINDS][160];
    int count = 0;
    for (int k = 0; shoal_kind_describe(k); k++) {
        shoal_attention kind = shoal_kind_describe(k)->defaults;
        set_number(&kind.clusters, numbers.clusters);
        set_number(&kind.topk, numbers.topk);
        set_number(&kind.rounds, numbers.rounds);
        set_number(&kind.window, numbers.topk);
        set_number(&kind.near, numbers.near);
        if (kind.seed > 0 && numbers.seed > 0)
            kind.seed = numbers.seed;
        for (int64_t i = 0; i < COUNT_OF(options) && count < TEST_KINDS; i++)
            if (spell_kind(&kind, options[i], texts[count])) {
                list[count] = texts[count];
                count++;
            }
    }
    assert_true(count < TEST_KINDS);
    list[count] = NULL;
}

const char *test_data(const char *name) {
    static char path[4096];
    const char *folder = getenv("SHOAL_DATA");
    if (folder && *folder)
        snprintf(path, sizeof path, "%s/%s", folder, name);
    else
        snprintf(path, sizeof path, "%s/../shared/data/%s", SHOAL_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fclose(file);
    return path;
}

/* ---- An allocator that counts and can fail ---------------------------------------- */

static void *counting_allocate(void *user, size_t bytes) {
    counting_allocator *allocator = user;
    allocator->calls++;
    if (allocator->calls == allocator->fail_at)
        return NULL;
    void *block = malloc(bytes ? bytes : 1);
    allocator->live += block != NULL;
    if (block)
        memset(block, 0xa5, bytes);
    return block;
}

static void counting_release(void *user, void *block) {
    counting_allocator *allocator = user;
    allocator->live -= block != NULL;
    free(block);
}

shoal_options counting_options(counting_allocator *allocator) {
    return (shoal_options){.size = sizeof(shoal_options),
                           .allocate = counting_allocate,
                           .release = counting_release,
                           .user = allocator};
}
