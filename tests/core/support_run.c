/* Running cases: contexts, plans and the counting allocator. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support.h"

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
             ", scale %g, %s%s%s, data seed %" PRIu64,
             kind, s->batch, s->heads, case_kv_heads(c), s->queries, s->keys, s->dim,
             s->value_dim, (double)s->scale, layouts[s->layout],
             s->ragged ? ", ragged" : "", s->own_groups ? ", own groups" : "", s->seed);
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
    shoal_gradients gradients = {.out = c->out.data,
                                 .dout = c->dout.data,
                                 .dq = c->dq.data,
                                 .dk = c->dk.data,
                                 .dv = c->dv.data};
    if (shoal_backward(plan, &c->inputs, &gradients) != SHOAL_OK)
        fail_msg("backward refused (%s)", case_text(c));
}

shoal_plan *case_run(shoal_context *context, attention_case *c) {
    shoal_plan *plan = case_plan(context, c, SHOAL_WITH_BACKWARD);
    case_forward(plan, c);
    case_backward(plan, c);
    return plan;
}

/* dk belongs to nobody where the keys are the queries: it is 0 from end to end. */
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
}

/* ---- Contexts ------------------------------------------------------------------ */

static bool isa_runs(const char *isa) {
    shoal_context *context = NULL;
    bool runs = shoal_context_create(&(shoal_options){.isa = isa}, &context) == SHOAL_OK;
    shoal_context_destroy(context);
    return runs;
}

const char *test_isa(int index) {
    static const char *const all[] = {"scalar", "avx2", "avx512", "neon"};
    for (int64_t i = 0; i < COUNT_OF(all); i++)
        if (isa_runs(all[i]) && index-- == 0)
            return all[i];
    return NULL;
}

shoal_context *test_context(const char *isa, int threads) {
    shoal_context *context = NULL;
    shoal_options options = {.isa = isa, .threads = threads};
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
    if (*field > 0 && number > 0)
        *field = number;
}

/* The spelling with an option behind it; false where the kind has no such option, or has
   it anyway. */
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
        set_number(&kind.window, numbers.window);
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

/* ---- An allocator that counts, and fails when told to -------------------------- */

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
    return (shoal_options){.allocate = counting_allocate,
                           .release = counting_release,
                           .user = allocator};
}
