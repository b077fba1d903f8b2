/* Prints every speed bar of the attention core with the figure measured on this
   machine: build/bars. Rates are the operations in a kind's formula divided by time,
   relative to OpenBLAS sgemm (1024 x 1024 x 1024) with the same number of threads.
   Compared calls alternate in one run, and the best of several repetitions counts.
   Outputs are verified before they are timed. Exits with 1 if a bar is missed. */
#define _GNU_SOURCE /* for madvise */
#include <cblas.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "shoal.h"

void openblas_set_num_threads(int threads);

enum { D = 64, HEADS = 6, GEMM = 1024 };

static int missed;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void stop(const char *what, const char *why) {
    fprintf(stderr, "bars: %s: %s\n", what, why);
    exit(1);
}

static void bar(const char *name, double value, int at_least, double bound) {
    int met = at_least ? value >= bound : value <= bound;
    missed += !met;
    printf("%-62s %8.3f  (bar: %s %.3g)  %s\n", name, value,
           at_least ? "at least" : "at most", bound, met ? "met" : "MISSED");
    fflush(stdout);
}

/* ---- Data ------------------------------------------------------------------------- */

/* Large arrays on huge pages if the system provides them, as in numpy. */
static float *floats(int64_t count) {
    size_t page = (size_t)1 << 21;
    size_t bytes = ((size_t)count * sizeof(float) + page - 1) / page * page;
    float *block = aligned_alloc(page, bytes);
    if (!block)
        stop("memory", "not enough memory for the arrays");
    madvise(block, bytes, MADV_HUGEPAGE);
    return block;
}

/* Sums of four uniform numbers: close enough to normal, and fast. */
static float *normals(int64_t count, uint64_t seed) {
    float *x = floats(count);
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int64_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        int64_t sum = -131070;
        for (int part = 0; part < 4; part++)
            sum += (int64_t)(state >> 16 * part & 0xffff);
        x[i] = (float)sum / 37837.0f;
    }
    return x;
}

typedef struct {
    int64_t n, heads;
    float *q, *k, *v, *out, *dout, *dq, *dk, *dv;
} arrays;

static arrays make_arrays(int64_t n, int64_t heads, int backward) {
    int64_t count = n * heads * D;
    arrays made = {.n = n,
                   .heads = heads,
                   .q = normals(count, 1),
                   .k = normals(count, 2)};
    made.v = normals(count, 3);
    made.out = normals(count, 4);
    if (backward) {
        made.dout = normals(count, 5);
        made.dq = normals(count, 6);
        made.dk = normals(count, 7);
        made.dv = normals(count, 8);
    }
    return made;
}

static void free_arrays(arrays *data) {
    float *all[] = {data->q,    data->k,  data->v,  data->out,
                    data->dout, data->dq, data->dk, data->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---- Comparisons ------------------------------------------------------------------ */

/* One call to time: a kind on arrays, or sgemm if kind is NULL. */
typedef struct {
    const char *kind;
    int threads, backward, bring_groups;
    const arrays *data;
    double best;       /* seconds */
    double operations; /* in the kind's formula */
    size_t workspace;
    shoal_context *context;
    shoal_plan *plan;
    int32_t *groups;
} side;

static void open_side(side *s) {
    if (!s->kind)
        return;
    shoal_options options = {.size = sizeof(shoal_options), .threads = s->threads};
    shoal_attention attention;
    shoal_problem problem = {.size = sizeof(shoal_problem),
                             .batch = 1,
                             .heads = s->data->heads,
                             .queries = s->data->n,
                             .keys = s->data->n,
                             .dim = D,
                             .value_dim = D};
    if (shoal_context_create(&options, &s->context) != SHOAL_OK ||
        shoal_attention_parse(s->context, s->kind, &attention) != SHOAL_OK ||
        shoal_plan_create(s->context, &problem, &attention,
                          s->backward ? SHOAL_WITH_BACKWARD : 0, &s->plan) != SHOAL_OK)
        stop(s->kind, shoal_context_message(s->context));
    s->workspace = shoal_plan_workspace(s->plan);
    s->operations = shoal_attention_operations(&attention, &problem, 0);
}

static void run_side(side *s) {
    if (!s->kind) {
        static float *a, *b, *c;
        if (!a) {
            a = normals(GEMM * GEMM, 1);
            b = normals(GEMM * GEMM, 2);
            c = normals(GEMM * GEMM, 3);
        }
        openblas_set_num_threads(s->threads);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, GEMM, GEMM, GEMM, 1, a,
                    GEMM, b, GEMM, 0, c, GEMM);
        return;
    }
    const arrays *x = s->data;
    shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                           .q = x->q,
                           .k = x->k,
                           .v = x->v,
                           .clusters = s->groups};
    if (shoal_forward(s->plan, &inputs, x->out) != SHOAL_OK)
        stop(s->kind, shoal_context_message(s->context));
    if (!s->backward)
        return;
    shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                 .out = x->out,
                                 .dout = x->dout,
                                 .dq = x->dq,
                                 .dk = x->dk,
                                 .dv = x->dv};
    if (shoal_backward(s->plan, &inputs, &gradients) != SHOAL_OK)
        stop(s->kind, shoal_context_message(s->context));
}

/* Times all sides in turn, repeatedly for about `seconds`, at least three times. */
static void race(side *sides, int count, double seconds) {
    for (int i = 0; i < count; i++) {
        open_side(&sides[i]);
        run_side(&sides[i]);
        sides[i].best = INFINITY;
        if (sides[i].bring_groups) {
            size_t bytes = (size_t)(sides[i].data->n * sides[i].data->heads) * 4;
            sides[i].groups = malloc(bytes);
            if (!sides[i].groups)
                stop("memory", "not enough memory for the clusters");
            memcpy(sides[i].groups, shoal_plan_clusters(sides[i].plan, NULL), bytes);
        }
    }
    double start = now();
    for (int round = 0; round < 3 || (now() - start < seconds && round < 100); round++)
        for (int i = 0; i < count; i++) {
            /* Threads of the previous side may still be spinning. */
            if (sides[i].threads > 1)
                nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            double from = now();
            run_side(&sides[i]);
            double took = now() - from;
            sides[i].best = took < sides[i].best ? took : sides[i].best;
        }
    for (int i = 0; i < count; i++) {
        shoal_plan_destroy(sides[i].plan);
        shoal_context_destroy(sides[i].context);
        free(sides[i].groups);
    }
}

/* ---- Verification ----------------------------------------------------------------- */

/* The fast kernels compared with the scalar specification, on one thread and on two. */
static void verify(const char *kind) {
    arrays data = make_arrays(1531, 2, 0);
    int64_t count = data.n * data.heads * D;
    float *expected = floats(count);
    const char *isas[] = {"scalar", NULL, NULL};
    double largest = 0, worst = 0;
    for (int i = 0; i < 3; i++) {
        shoal_options options = {.size = sizeof(shoal_options),
                                 .threads = i == 2 ? 2 : 1,
                                 .isa = isas[i]};
        shoal_context *context;
        shoal_problem problem = {.size = sizeof(shoal_problem),
                                 .batch = 1,
                                 .heads = 2,
                                 .queries = data.n,
                                 .keys = data.n,
                                 .dim = D,
                                 .value_dim = D};
        shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                               .q = data.q,
                               .k = data.k,
                               .v = data.v};
        if (shoal_context_create(&options, &context) != SHOAL_OK ||
            shoal_attend(context, kind, &problem, &inputs, i ? data.out : expected) !=
                SHOAL_OK)
            stop(kind, shoal_context_message(context));
        shoal_context_destroy(context);
        for (int64_t at = 0; i && at < count; at++) {
            largest = fmax(largest, fabs((double)expected[at]));
            worst = fmax(worst, fabs((double)expected[at] - (double)data.out[at]));
        }
    }
    printf("verified %-20s error %.1e of the largest entry\n", kind, worst / largest);
    if (!(worst <= 1e-5 * largest))
        stop(kind, "differs from the scalar kernels");
    free(expected);
    free_arrays(&data);
}

/* ---- The bars --------------------------------------------------------------------- */

/* Returns the time per element in microseconds. */
static double rate(const char *kind, int64_t n, int threads, double bound,
                   double seconds) {
    arrays data = make_arrays(n, HEADS, 0);
    side sides[] = {{.threads = threads},
                    {.kind = kind, .threads = threads, .data = &data}};
    race(sides, 2, seconds);
    double gemm = 2.0 * GEMM * GEMM * GEMM / sides[0].best;
    char name[96];
    snprintf(name, sizeof name, "%s forward, N = %lld, %d thread%s: share of sgemm", kind,
             (long long)n, threads, threads > 1 ? "s" : "");
    bar(name, sides[1].operations / sides[1].best / gemm, 1, bound);
    free_arrays(&data);
    return sides[1].best / (double)n * 1e6;
}

static void backward_ratio(const char *kind, int64_t n, double bound) {
    arrays data = make_arrays(n, HEADS, 1);
    side sides[] = {{.kind = kind, .threads = 1, .data = &data},
                    {.kind = kind, .threads = 1, .data = &data, .backward = 1}};
    race(sides, 2, 6);
    char name[96];
    snprintf(name, sizeof name, "%s (forward + backward) / forward, N = %lld", kind,
             (long long)n);
    bar(name, sides[1].best / sides[0].best, 0, bound);
    free_arrays(&data);
}

static void crossover(const char *kind, int64_t n) {
    arrays data = make_arrays(n, HEADS, 0);
    for (int threads = 1; threads <= 2; threads++) {
        side sides[] = {{.kind = kind, .threads = threads, .data = &data},
                        {.kind = "full", .threads = threads, .data = &data}};
        race(sides, 2, 2);
        char name[96];
        snprintf(name, sizeof name, "%s / full, N = %lld, %d thread%s", kind,
                 (long long)n, threads, threads > 1 ? "s" : "");
        bar(name, sides[0].best / sides[1].best, 0, 1);
    }
    free_arrays(&data);
}

static void scaling(const char *kind, int64_t heads, double bound) {
    arrays data = make_arrays(8192, heads, 0);
    side sides[] = {{.kind = kind, .threads = 1, .data = &data},
                    {.kind = kind, .threads = 2, .data = &data}};
    race(sides, 2, 6);
    char name[96];
    snprintf(name, sizeof name, "%s, N = 8192, %lld head%s: two threads' speed-up", kind,
             (long long)heads, heads > 1 ? "s" : "");
    bar(name, sides[0].best / sides[1].best, 1, bound);
    free_arrays(&data);
}

static void clustering_share(void) {
    arrays data = make_arrays(32768, HEADS, 0);
    side sides[] =
        {{.kind = "i-clustered-100", .threads = 1, .data = &data},
         {.kind = "i-clustered-100", .threads = 1, .data = &data, .bring_groups = 1}};
    race(sides, 2, 6);
    bar("i-clustered-100, N = 32768: share of the time spent on clustering",
        1 - sides[1].best / sides[0].best, 0, 0.35);
    free_arrays(&data);
}

static void workspace(void) {
    size_t bytes[2];
    const int64_t lengths[2] = {8192, 1048576};
    for (int i = 0; i < 2; i++) {
        arrays none = {.n = lengths[i], .heads = HEADS};
        side s = {.kind = "i-clustered-100", .threads = 2, .data = &none};
        open_side(&s);
        bytes[i] = s.workspace;
        shoal_plan_destroy(s.plan);
        shoal_context_destroy(s.context);
    }
    bar("i-clustered-100 forward: workspace, bytes per query per head",
        (double)(bytes[1] - bytes[0]) / (double)((lengths[1] - lengths[0]) * HEADS), 0,
        64);
}

/* Six heads of a million queries, one head at a time: heads are independent. */
static void million(void) {
    const int64_t n = 1048576;
    arrays data = make_arrays(n, 1, 0);
    double start = now();
    for (int head = 0; head < HEADS; head++) {
        side s = {.kind = "i-clustered-100", .threads = 2, .data = &data};
        open_side(&s);
        run_side(&s);
        shoal_plan_destroy(s.plan);
        shoal_context_destroy(s.context);
    }
    double seconds = now() - start;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("i-clustered-100, N = 1048576, 6 heads, 2 threads: %.1f s\n", seconds);
    bar("the same: peak memory of the process, GiB", (double)usage.ru_maxrss / 1048576, 0,
        4);
    free_arrays(&data);
}

int main(void) {
    const char *kinds[] = {"full", "clustered-100", "i-clustered-100"};
    for (int i = 0; i < 3; i++)
        verify(kinds[i]);
    for (int threads = 1; threads <= 2; threads++) {
        rate("full", 2048, threads, 0.75, 3);
        rate("full", 8192, threads, 0.75, 8);
    }
    for (int threads = 1; threads <= 2; threads++)
        for (int i = 1; i < 3; i++) {
            const double bound = i == 1 ? 0.65 : 0.6;
            double near = rate(kinds[i], 8192, threads, bound, 5);
            rate(kinds[i], 32768, threads, bound, 5);
            double far = rate(kinds[i], 131072, threads, bound, 6);
            char name[96];
            snprintf(name, sizeof name,
                     "%s, %d thread%s: time per element, N = 131072 / 8192", kinds[i],
                     threads, threads > 1 ? "s" : "");
            bar(name, far / near, 0, 1.15);
        }
    backward_ratio("full", 2048, 4);
    backward_ratio("clustered-100", 8192, 3.5);
    backward_ratio("i-clustered-100", 8192, 3.5);
    crossover("clustered-100", 256);
    crossover("i-clustered-100", 512);
    for (int i = 0; i < 3; i++) {
        scaling(kinds[i], HEADS, 1.8);
        scaling(kinds[i], 1, 1.7);
    }
    clustering_share();
    workspace();
    million();
    printf("%s\n", missed ? "some bars were missed" : "every bar was met");
    return missed != 0;
}
