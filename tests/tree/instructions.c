/* Small fixed problems whose instructions tests/tree/instructions.sh counts. Each
   measured_* function is one problem; its preparation is not counted. One thread;
   SHOAL_ISA selects the instruction set. */
#include <stdio.h>
#include <stdlib.h>

#include "shoal.h"
#include "shoal_models.h"

enum { HEADS = 1, LENGTH = 256, DIM = 64, COUNT = HEADS * LENGTH * DIM };

static float q[COUNT], k[COUNT], v[COUNT], out[COUNT], dout[COUNT];
static float dq[COUNT], dk[COUNT], dv[COUNT];

static void fill(float *array, uint32_t state) {
    for (int i = 0; i < COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        array[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

static void stop(const char *what, const shoal_context *context) {
    fprintf(stderr, "instructions: %s: %s\n", what,
            context ? shoal_context_message(context) : "no context");
    exit(1);
}

static void run(shoal_context *context, shoal_plan *plan, int shared, int backward) {
    const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                 .q = q,
                                 .k = shared ? NULL : k,
                                 .v = v};
    const shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                       .out = out,
                                       .dout = dout,
                                       .dq = dq,
                                       .dk = dk,
                                       .dv = dv};
    if (shoal_forward(plan, &inputs, out) != SHOAL_OK ||
        (backward && shoal_backward(plan, &inputs, &gradients) != SHOAL_OK))
        stop("a call was refused", context);
}

/* Separate functions, so that callgrind can distinguish them; the last statement
   prevents a tail call. */
static volatile int finished;
#define MEASURED(name)                                                                   \
    __attribute__((noinline)) void measured_##name(shoal_context *, shoal_plan *, int,   \
                                                   int);                                 \
    void measured_##name(shoal_context *context, shoal_plan *plan, int shared,           \
                         int backward) {                                                 \
        run(context, plan, shared, backward);                                            \
        finished = 1;                                                                    \
    }
MEASURED(full)
MEASURED(full_train)
MEASURED(clustered)
MEASURED(i_clustered)
MEASURED(i_clustered_train)
MEASURED(shoal)
MEASURED(shoal_train)
MEASURED(lsh)
MEASURED(lsh_train)
MEASURED(lsh_counted)
MEASURED(lsh_counted_train)

static const struct {
    const char *kind;
    void (*measured)(shoal_context *, shoal_plan *, int, int);
    int shared, backward;
} problems[] = {
    {"full", measured_full, 0, 0},
    {"full", measured_full_train, 0, 1},
    {"clustered-25", measured_clustered, 0, 0},
    {"i-clustered-25", measured_i_clustered, 0, 0},
    {"i-clustered-25", measured_i_clustered_train, 0, 1},
    {"q-clustered-25", measured_shoal, 0, 0},
    {"q-clustered-25", measured_shoal_train, 0, 1},
    {"lsh-2", measured_lsh, 1, 0},
    {"lsh-2", measured_lsh_train, 1, 1},
    {"lsh-16", measured_lsh_counted, 1, 0},
    {"lsh-16", measured_lsh_counted_train, 1, 1},
};

int main(void) {
    const shoal_options options = {.size = sizeof(shoal_options), .threads = 1};
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = 1,
                                   .heads = HEADS,
                                   .queries = LENGTH,
                                   .keys = LENGTH,
                                   .dim = DIM,
                                   .value_dim = DIM};
    shoal_context *context;
    if (shoal_context_create(&options, &context) != SHOAL_OK)
        stop("context", context);
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
    fill(dout, 4);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        shoal_attention attention;
        shoal_plan *plan = NULL;
        if (shoal_attention_parse(context, problems[i].kind, &attention) != SHOAL_OK ||
            shoal_plan_create(context, &problem, &attention,
                              problems[i].backward ? SHOAL_WITH_BACKWARD : 0,
                              &plan) != SHOAL_OK)
            stop(problems[i].kind, context);
        problems[i].measured(context, plan, problems[i].shared, problems[i].backward);
        shoal_plan_destroy(plan);
    }
    shoal_context_destroy(context);
    return 0;
}
