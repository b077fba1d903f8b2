/* shoal demo: compares full attention with approximate kinds at growing lengths. */
#include "lab.h"

enum { HEADS = 6, DIM = 64, SHORTEST = 256, LONGEST = 16384, LENGTHS = 16, SAMPLES = 64 };

/* Total seconds, and the share of the remaining seconds that one measurement may
   take. */
static const double budget = 40, largest_share = 0.3;

static const struct {
    const char *name;
    int growth; /* factor of the time per doubling of the length */
} kinds[] = {{"full", 4}, {"shoal", 2}, {"i-clustered-100", 2}, {"clustered-100", 2}};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct {
    bool measured; /* otherwise seconds is an estimate */
    double seconds, error;
    size_t workspace;
} measurement;

typedef struct {
    int64_t longest, threads;
    bool json;
    shoal_context *context;
    float *q, *k, *v, *out; /* [HEADS][longest][DIM] */
    double begun;
    int lengths;
    int64_t length[LENGTHS];
    measurement rows[LENGTHS][KINDS];
} demonstration;

static const option_row options[] =
    {{"max-length", 0, "N", "longest sequence (default: 16384)",
      SETS_INTEGER(demonstration, longest, SHORTEST, (int64_t)SHORTEST << (LENGTHS - 1))},
     THREADS_ROW(demonstration),
     {"json", 0, NULL, "print one JSON object instead of a table",
      SETS_FLAG(demonstration, json)},
     HELP_ROW,
     {0}};

const command_help demo_help = {
    "demo",
    "demo [--max-length N] [--threads T] [--json]",
    "Compares full attention with shoal, i-clustered-100 and clustered-100 on generated\n"
    "data: 6 heads of dimension 64, lengths 256, 512, ... Prints the time of a call "
    "(best\n"
    "of a few), the error relative to exact attention on 64 sampled queries, the "
    "speedup\n"
    "over full, and the memory of the plans. Takes less than a minute: if full "
    "attention\n"
    "would take too long, its time is an estimate, marked ~.\n",
    options,
    "Results of full attention are compared with exact ones before times are printed; "
    "if\n"
    "one is wrong, the exit code is 1.\n",
    NULL};

/* ---- Data: the same on every machine ----------------------------------------------- */

/* Attention can be approximated if queries resemble each other and keys differ in
   importance, as in real data; white noise has neither property. Therefore every
   position has a topic, and a few topics are frequent. */
enum { TOPICS = 60 };

static const char description[] = "generated data: every position has one of 60 topics "
                                  "with a skewed distribution; query,\n"
                                  "key and value are the topic's random vector plus "
                                  "noise of half its size, and some keys\n"
                                  "are larger than others";

static const float noise = 0.5f, loudness_spread = 0.5f;

static uint64_t mix(uint64_t x) {
    return mix_bits(x + 0x9e3779b97f4a7c15u);
}

/* In (0, 1); a pure function of its arguments. */
static double uniform(uint64_t stream, uint64_t a, uint64_t b) {
    return ((double)(mix(mix(mix(stream) + a) + b) >> 11) + 0.5) / 9007199254740992.0;
}

/* Close enough to a normal distribution, without a logarithm. */
static float normal(uint64_t stream, uint64_t a, uint64_t b) {
    uint64_t bits = mix(mix(mix(stream) + a) + b);
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(bits >> 16 * i & 0xffff);
    return (float)((sum / 65536 - 2) * 1.7320508);
}

enum {
    STREAM_TOPIC,
    STREAM_LOUDNESS,
    STREAM_KEY_VECTOR,
    STREAM_VALUE_VECTOR,
    STREAM_NOISE
};

/* Fills [HEADS][longest][DIM] arrays; the values at a position do not depend on the
   length. */
static void fill_data(demonstration *demo) {
    float *const arrays[] = {demo->q, demo->k, demo->v};
    for (int64_t i = 0; i < HEADS * demo->longest; i++) {
        const uint64_t head = (uint64_t)(i / demo->longest);
        const uint64_t position = (uint64_t)(i % demo->longest);
        /* TOPICS^u with uniform u: topic t has a probability of about 1/(t+1). */
        const uint64_t topic =
            (uint64_t)(pow(TOPICS, uniform(STREAM_TOPIC, head, position)) - 1);
        const float loudness =
            expf(loudness_spread * normal(STREAM_LOUDNESS, head, position));
        for (uint64_t a = 0; a < 3; a++)
            for (uint64_t d = 0; d < DIM; d++) {
                /* Queries and keys of a topic share a vector, so that topics attend to
                   themselves. */
                const uint64_t vector = a < 2 ? STREAM_KEY_VECTOR : STREAM_VALUE_VECTOR;
                const float value =
                    normal(vector, head * TOPICS + topic, d) +
                    noise * normal(STREAM_NOISE + a, head * 4096 + d, position);
                arrays[a][(uint64_t)i * DIM + d] = a == 1 ? value * loudness : value;
            }
    }
}

/* ---- Measuring --------------------------------------------------------------------- */

/* One warm-up call; short calls are repeated, and the best one counts. Every length is
   a prefix of the same arrays, selected by strides. */
static void measure(const demonstration *demo, const char *kind, int64_t length,
                    measurement *result) {
    const double enough = 0.5;
    const shoal_strides strides = {HEADS * demo->longest * DIM, demo->longest * DIM, DIM};
    const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                 .q = demo->q,
                                 .k = demo->k,
                                 .v = demo->v};
    shoal_problem problem = square_problem(1, HEADS, length, DIM, DIM);
    shoal_attention attention;
    shoal_error error = {0};
    shoal_plan *plan = NULL;
    problem.q_strides = problem.k_strides = problem.v_strides = problem.out_strides =
        &strides;
    demand(shoal_attention_parse(demo->context, kind, &attention), EXIT_BAD_INPUT);
    demand(shoal_plan_create(demo->context, &problem, &attention, 0, &plan),
           EXIT_BAD_INPUT);
    double total = 0, seconds = 0;
    for (int call = 0; (call < 2 || (call < 10 && total < enough)) && seconds <= enough;
         call++) {
        const double begun = seconds_now();
        demand(shoal_forward(plan, &inputs, demo->out), EXIT_BAD_INPUT);
        seconds = seconds_now() - begun;
        result->seconds = call == 0 ? seconds : fmin(seconds, result->seconds);
        total += seconds;
    }
    demand(shoal_error_estimate(plan, &inputs, demo->out, SAMPLES, 1, &error),
           EXIT_BAD_INPUT);
    result->measured = true;
    result->workspace = shoal_plan_workspace(plan);
    result->error = error.relative_error;
    shoal_plan_destroy(plan);
}

/* A kind that would take too long is extrapolated from the previous length. */
static void measure_or_estimate(demonstration *demo, int row, int kind) {
    measurement *result = &demo->rows[row][kind];
    const double left = budget - (seconds_now() - demo->begun);
    if (row > 0) {
        result->seconds = demo->rows[row - 1][kind].seconds * kinds[kind].growth;
        if (!demo->rows[row - 1][kind].measured || result->seconds > left * largest_share)
            return;
    }
    progress_say("length %" PRId64 ": %s", demo->length[row], kinds[kind].name);
    measure(demo, kinds[kind].name, demo->length[row], result);
    if (kind == 0 && !(result->error < 1e-4))
        die(EXIT_FAILURE,
            "full attention is wrong on this machine: relative error %g; please report "
            "it",
            result->error);
}

/* ---- Printing ---------------------------------------------------------------------- */

static void print_heading(const demonstration *demo) {
    printf("%d heads of %d, batch 1, float32, forward; %s, %d threads\n%s\n", HEADS, DIM,
           shoal_context_isa(demo->context), shoal_context_threads(demo->context),
           description);
    printf("ms: best of a few calls; error: relative to exact attention on %d sampled "
           "queries;\n"
           "times: speedup over full; ~: estimated; MiB: memory of the plans at the "
           "longest\n"
           "measured length\n"
           "\n"
           "%6s %7s",
           SAMPLES, "", kinds[0].name);
    for (int kind = 1; kind < KINDS; kind++)
        printf("  %18s", kinds[kind].name);
    printf("\n%6s %7s", "length", "ms");
    for (int kind = 1; kind < KINDS; kind++)
        printf("  %6s %5s %5s", "ms", "error", "times");
    putchar('\n');
    fflush(stdout);
}

static void print_row(const demonstration *demo, int row) {
    const measurement *full = &demo->rows[row][0];
    printf("%6" PRId64, demo->length[row]);
    for (int kind = 0; kind < KINDS; kind++) {
        const measurement *cell = &demo->rows[row][kind];
        print_digits(7, cell->seconds * 1e3, cell->measured ? "" : "~", 2);
        if (kind == 0)
            continue;
        if (cell->measured)
            printf(" %5.3f", cell->error);
        else
            printf(" %5s", "-");
        print_digits(5, full->seconds / cell->seconds,
                     full->measured && cell->measured ? "" : "~", 2);
    }
    putchar('\n');
    fflush(stdout);
}

/* First measured row from which on the kind is faster than full, or -1. */
static int crossing(const demonstration *demo, int kind) {
    int first = -1;
    for (int row = 0; row < demo->lengths; row++) {
        const measurement *full = &demo->rows[row][0], *other = &demo->rows[row][kind];
        if (!full->measured || !other->measured)
            break;
        if (other->seconds >= full->seconds)
            first = -1;
        else if (first < 0)
            first = row;
    }
    return first;
}

static int print_object(const demonstration *demo) {
    json_t *list = json_array(), *crossings = json_object();
    for (int row = 0; row < demo->lengths; row++) {
        json_t *object = json_pack("{s:I}", "length", (json_int_t)demo->length[row]);
        for (int kind = 0; kind < KINDS; kind++) {
            const measurement *cell = &demo->rows[row][kind];
            json_object_set_new(object, kinds[kind].name,
                                json_pack("{s:b, s:f, s:o*, s:o*}", "measured",
                                          cell->measured, "seconds", cell->seconds,
                                          "workspace_bytes",
                                          cell->measured
                                              ? json_integer((json_int_t)cell->workspace)
                                              : NULL,
                                          "relative_error",
                                          cell->measured ? json_number(cell->error)
                                                         : NULL));
        }
        json_array_append_new(list, object);
    }
    for (int kind = 1; kind < KINDS; kind++) {
        const int row = crossing(demo, kind);
        json_object_set_new(crossings, kinds[kind].name,
                            row < 0 ? json_null()
                                    : json_integer((json_int_t)demo->length[row]));
    }
    return print_json(json_pack("{s:i, s:i, s:s, s:i, s:s, s:o, s:o}", "heads", HEADS,
                                "dim", DIM, "isa", shoal_context_isa(demo->context),
                                "threads", shoal_context_threads(demo->context), "data",
                                description, "lengths", list, "faster_than_full_from",
                                crossings));
}

/* ---- The command ------------------------------------------------------------------- */

int demo_command(int count, char **arguments) {
    static demonstration demo = {.longest = LONGEST};
    demo.begun = seconds_now();
    begin_command(&demo_help, count, arguments, &demo);
    demo.context = begin_context(demo.threads, NULL);
    const size_t floats = (size_t)(HEADS * demo.longest * DIM);
    demo.q = malloc(4 * floats * sizeof *demo.q); /* one block for all four arrays */
    if (!demo.q)
        die(EXIT_RESOURCES, "out of memory; try a smaller --max-length");
    demo.k = demo.q + floats;
    demo.v = demo.k + floats;
    demo.out = demo.v + floats;
    progress_begin(0);
    progress_say("generating data");
    fill_data(&demo);
    progress_end();
    if (!demo.json)
        print_heading(&demo);
    for (int64_t length = SHORTEST; length <= demo.longest; length *= 2) {
        const int row = demo.lengths;
        demo.length[row] = length;
        progress_begin(0);
        for (int kind = 0; kind < KINDS; kind++)
            measure_or_estimate(&demo, row, kind);
        progress_end();
        demo.lengths++;
        if (!demo.json)
            print_row(&demo, row);
    }
    if (demo.json)
        return print_object(&demo);
    /* Memory of the plans at the longest measured length of each kind. */
    printf("%6s", "MiB");
    for (int kind = 0; kind < KINDS; kind++) {
        int row = demo.lengths - 1;
        while (row > 0 && !demo.rows[row][kind].measured)
            row--;
        print_digits(7, (double)demo.rows[row][kind].workspace / (1 << 20), "", 2);
        printf("%*s", kind == 0 || kind == KINDS - 1 ? 0 : 12, "");
    }
    puts("\n");
    for (int kind = 1; kind < KINDS; kind++) {
        int row = crossing(&demo, kind);
        if (row < 0)
            printf("%s is not faster than full at the measured lengths.\n",
                   kinds[kind].name);
        else
            printf("%s is faster than full from length %" PRId64
                   "%s: %.2f times there.\n",
                   kinds[kind].name, demo.length[row], row == 0 ? " (or before)" : "",
                   demo.rows[row][0].seconds / demo.rows[row][kind].seconds);
    }
    return EXIT_OK;
}
