/* The arrays, and what is measured in which order. Lengths go upwards. At each length
   every kind is made, called once and verified; then the kinds take turns, so that
   whatever else the machine does falls on all of them. A kind that would not fit into the
   time left is estimated from the length before.

   An interrupt may come in the middle of a long call: a thread of its own then reports
   what there is, while the results are locked. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"
#include "common.h"
#include "lab.h"

/* A call this long needs no warming up: the verified one counts as a repetition. */
static const double long_call = 1.0;
/* Shorter calls are repeated until this is over, and their mean is one repetition. */
static const double shortest_turn = 5e-3;

static pthread_mutex_t results = PTHREAD_MUTEX_INITIALIZER;

/* ---- Interrupts -------------------------------------------------------------------- */

static sem_t asked_to_stop;
static volatile sig_atomic_t which_signal;

static void on_stop(int number) {
    which_signal = number;
    sem_post(&asked_to_stop);
}

static void *wait_for_stop(void *shared) {
    bench_job *job = shared;
    while (sem_wait(&asked_to_stop) != 0)
        continue;
    pthread_mutex_lock(&results);
    handle_signals(); /* another signal ends it, should the report have to wait */
    job->interrupted = true;
    progress_end();
    bench_report(job);
    fflush(stdout);
    _exit(128 + (int)which_signal);
}

static void watch_signals(bench_job *job) {
    pthread_t watcher;
    if (sem_init(&asked_to_stop, 0, 0) != 0 ||
        pthread_create(&watcher, NULL, wait_for_stop, job) != 0)
        return; /* then an interrupt ends the program as it does elsewhere */
    catch_signals(on_stop);
}

/* ---- Arrays: page-aligned, as an ordinary program has them, no huge pages ---------- */

enum { PAGE = 4096 };

uint64_t bench_random(uint64_t seed, uint64_t counter) {
    return mix_bits(counter + seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u);
}

/* Four uniform numbers make one that is normal enough. */
float bench_noise(uint64_t seed, uint64_t stream, int64_t at) {
    const uint64_t bits = bench_random(seed, stream << 56 | (uint64_t)at);
    const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                         (bits >> 48);
    return ((float)sum / 65536 - 2) * 1.7320508f;
}

/* array [units][N][features]; its rows are some of the whole sequences'. */
static void fill_noise(float *array, const bench_data *data, int64_t units,
                       int64_t features, uint64_t seed, uint64_t stream) {
    for (int64_t u = 0; u < units; u++)
        for (int64_t i = 0; i < data->length * features; i++)
            array[u * data->length * features + i] =
                bench_noise(seed, stream,
                            (u * data->whole_length + data->first) * features + i);
}

/* Written to once, so that no timed call is the first to touch a page. */
static void *touched(int64_t count, size_t size, bool *fine) {
    const size_t bytes = ((size_t)count * size + PAGE - 1) / PAGE * PAGE;
    void *block = NULL;
    if (posix_memalign(&block, PAGE, bytes ? bytes : PAGE) != 0) {
        *fine = false;
        return NULL;
    }
    memset(block, 0, bytes);
    return block;
}

/* ---- What the layer is given ------------------------------------------------------- */

static int64_t model_size(const bench_data *data) {
    return data->heads * data->dim;
}

/* Every projection has an order of its own, and its own half of the signs turned. */
static void shuffle_features(bench_data *data, uint64_t seed) {
    const int64_t model = model_size(data);
    for (int p = 0; p < BENCH_PROJECTIONS; p++) {
        int32_t *sources = data->sources + p * model;
        for (int64_t a = 0; a < model; a++) {
            const uint64_t draw =
                bench_random(seed, (uint64_t)(16 + p) << 56 | (uint64_t)a);
            const int64_t other = (int64_t)(draw % (uint64_t)(a + 1));
            sources[a] = sources[other];
            sources[other] = (int32_t)(draw >> 63 ? ~a : a);
        }
    }
}

int64_t bench_place(const bench_data *data, int64_t row, int64_t feature) {
    const int64_t b = row / data->length, n = row % data->length;
    const int64_t head = b * data->heads + feature / data->dim;
    return (head * data->length + n) * data->dim + feature % data->dim;
}

/* array [B][H][N][D] = projection p of the features. */
static void project(const bench_data *data, int p, float *array) {
    const int64_t model = model_size(data), rows = data->batch * data->length;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t a = 0; a < model; a++) {
            const int32_t source = data->sources[p * model + a];
            array[bench_place(data, row, a)] =
                source >= 0 ? data->features[row * model + source]
                            : -data->features[row * model + ~source];
        }
    }
}

static bool create_features(bench_data *data, const bench_job *job) {
    bool fine = true;
    const int64_t count = data->query_count, model = model_size(data);
    data->offsets = touched(data->batch + 1, sizeof(int64_t), &fine);
    data->sources = touched(BENCH_PROJECTIONS * model, sizeof(int32_t), &fine);
    data->features = touched(count, sizeof(float), &fine);
    float **const for_training[] = {&data->noise, &data->slope, &data->dfeatures};
    for (int i = 0; i < (job->train ? 3 : 0); i++)
        *for_training[i] = touched(count, sizeof(float), &fine);
    if (!fine)
        return false;
    for (int64_t b = 0; b <= data->batch; b++)
        data->offsets[b] = b * data->length;
    fill_noise(data->features, data, data->batch, model, job->seed, 1);
    if (job->train)
        fill_noise(data->noise, data, data->batch, model, job->seed, 4);
    shuffle_features(data, job->seed);
    return true;
}

/* ---- All arrays -------------------------------------------------------------------- */

bool bench_data_create(bench_data *data, const bench_job *job, int64_t length) {
    return bench_data_create_part(data, job, length, 0, length);
}

bool bench_data_create_part(bench_data *data, const bench_job *job, int64_t whole_length,
                            int64_t first, int64_t length) {
    const int64_t units = job->batch * job->heads;
    bool fine = true;
    *data =
        (bench_data){.batch = job->batch,
                     .heads = job->heads,
                     .length = length,
                     .whole_length = whole_length,
                     .first = first,
                     .dim = job->dim,
                     .value_dim = job->value_dim,
                     .train = job->train,
                     .query_count = job->batch * job->heads * length * job->dim,
                     .value_count = job->batch * job->heads * length * job->value_dim};
    float **const as_query[] = {&data->q, &data->k, &data->dq, &data->dk, &data->moved_q};
    float **const as_value[] = {&data->v, &data->out, &data->spare, &data->dout,
                                &data->dv};
    for (int i = 0; i < (job->train ? 5 : 2); i++)
        *as_query[i] = touched(data->query_count, sizeof(float), &fine);
    for (int i = 0; i < (job->train ? 5 : 3); i++)
        *as_value[i] = touched(data->value_count, sizeof(float), &fine);
    if (!fine || (job->layer && !create_features(data, job))) {
        bench_data_destroy(data);
        return false;
    }
    if (job->layer) {
        project(data, 0, data->q);
        project(data, 1, data->k);
        project(data, 2, data->v);
        return true;
    }
    fill_noise(data->q, data, units, job->dim, job->seed, 1);
    fill_noise(data->k, data, units, job->dim, job->seed, 2);
    fill_noise(data->v, data, units, job->value_dim, job->seed, 3);
    return true;
}

void bench_data_destroy(bench_data *data) {
    float *const arrays[] = {data->q,     data->k,        data->v,        data->out,
                             data->spare, data->dout,     data->dv,       data->dq,
                             data->dk,    data->moved_q,  data->features, data->noise,
                             data->slope, data->dfeatures};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(data->offsets);
    free(data->sources);
    *data = (bench_data){0};
}

shoal_problem bench_problem(const bench_data *data) {
    return (shoal_problem){.batch = data->batch,
                           .heads = data->heads,
                           .queries = data->length,
                           .keys = data->length,
                           .dim = data->dim,
                           .value_dim = data->value_dim};
}

shoal_inputs bench_inputs(const bench_data *data, const shoal_attention *attention) {
    return (shoal_inputs){.q = data->q,
                          .k = kind_facts(attention)->keys_are_queries ? NULL : data->k,
                          .v = data->v};
}

shoal_gradients bench_gradients(const bench_data *data) {
    return (shoal_gradients){.out = data->out,
                             .dout = data->dout,
                             .dq = data->dq,
                             .dk = data->dk,
                             .dv = data->dv};
}

/* ---- Operations and estimates ------------------------------------------------------ */

/* Products of all rows of a layer with its weights. Backward does each twice: for the
   gradient of what goes in, and for that of the weights. */
static double layer_operations(const bench_job *job, int kind, double rows) {
    const double model = (double)(job->heads * job->dim);
    const double matrices = kind_facts(&job->attention[kind])->keys_are_queries ? 3 : 4;
    const double forward = 2 * rows * model *
                           (matrices * model + 2 * (double)job->feed_forward);
    return (job->train ? 3 : 1) * forward;
}

double bench_operations(const bench_job *job, int kind, int64_t length) {
    const shoal_problem problem = {.batch = job->batch,
                                   .heads = job->heads,
                                   .queries = length,
                                   .keys = length,
                                   .dim = job->dim,
                                   .value_dim = job->value_dim};
    return shoal_attention_operations(&job->attention[kind], &problem,
                                      job->train ? SHOAL_WITH_BACKWARD : 0) +
           (job->layer ? layer_operations(job, kind, (double)(job->batch * length)) : 0);
}

static double estimate(const bench_job *job, int kind, int at) {
    const double operations = bench_operations(job, kind, job->length[at]);
    for (int before = at - 1; before >= 0; before--)
        if (job->rows[before][kind].repeats > 0)
            return bench_best(&job->rows[before][kind]) * operations /
                   bench_operations(job, kind, job->length[before]);
    const double rate = job->machine.before.sgemm > 0
                            ? 0.2 * job->machine.before.sgemm
                            : 3e9 * shoal_context_threads(job->context);
    return operations / rate;
}

/* Making, calling and checking a kind once. */
static double verifying_seconds(const bench_job *job, int kind, int at) {
    const double samples = 8e-8 * (double)(job->length[at] * (job->dim + job->value_dim));
    const bool lsh = job->attention[kind].rounds > 0; /* is verified once more, small */
    const double again = job->layer ? (job->train ? 4 : 1) : (job->train ? 1 : 0);
    return estimate(job, kind, at) * (1 + again + 0.5 * lsh) + samples;
}

static double seconds_left(const bench_job *job) {
    return (double)job->budget - (seconds_now() - job->begun);
}

/* Of everything from length `at` on, as far as it will be measured. */
static double remaining_work(const bench_job *job, int at) {
    double sum = 0;
    for (; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds; kind++) {
            const double check = verifying_seconds(job, kind, at);
            if (sum + check < seconds_left(job))
                sum += check + fmin((double)job->repeats * estimate(job, kind, at),
                                    seconds_left(job) / 4);
        }
    return fmin(sum, fmax(0, seconds_left(job)));
}

/* ---- One length -------------------------------------------------------------------- */

typedef struct {
    bench_job *job;
    int at; /* which length */
    bool chosen[BENCH_KINDS];
    double deadline;
    bench_data data;
    shoal_plan *plans[BENCH_KINDS];  /* --scope attention */
    bench_layer layers[BENCH_KINDS]; /* --scope layer */
} length_run;

/* Cheapest first, as long as the time allows; the rest is estimated. Returns how many. */
static int choose_kinds(length_run *run) {
    bench_job *job = run->job;
    const bool last = run->at + 1 == job->lengths;
    const double allowed = seconds_left(job) * (last ? 1 : 0.5);
    double used = 0;
    int count = 0;
    run->deadline = seconds_now() + allowed;
    for (int turn = 0; turn < job->kinds; turn++) {
        int cheapest = -1;
        for (int kind = 0; kind < job->kinds; kind++)
            if (!run->chosen[kind] && job->rows[run->at][kind].estimate == 0 &&
                (cheapest < 0 ||
                 estimate(job, kind, run->at) < estimate(job, cheapest, run->at)))
                cheapest = kind;
        const double call = estimate(job, cheapest, run->at);
        used += verifying_seconds(job, cheapest, run->at) + (call < long_call ? call : 0);
        run->chosen[cheapest] = used <= allowed;
        count += run->chosen[cheapest];
        if (!run->chosen[cheapest])
            job->rows[run->at][cheapest].estimate = call;
    }
    return count;
}

shoal_status bench_call(shoal_plan *plan, const bench_data *data,
                        const shoal_attention *attention, double *seconds) {
    const shoal_inputs inputs = bench_inputs(data, attention);
    const shoal_gradients gradients = bench_gradients(data);
    double begun = seconds_now();
    shoal_status status = shoal_forward(plan, &inputs, data->out);
    *seconds = seconds_now() - begun;
    if (status != SHOAL_OK || !data->train)
        return status;
    memcpy(data->dout, data->out, (size_t)data->value_count * sizeof(float));
    begun = seconds_now();
    status = shoal_backward(plan, &inputs, &gradients);
    *seconds += seconds_now() - begun;
    return status;
}

/* ---- Either scope ------------------------------------------------------------------ */

static shoal_status make_subject(length_run *run, int kind) {
    const bench_job *job = run->job;
    const shoal_problem problem = bench_problem(&run->data);
    if (job->layer)
        return bench_layer_create(job, &run->data, kind, NULL, &run->layers[kind]);
    return shoal_plan_create(job->context, &problem, &job->attention[kind],
                             job->train ? SHOAL_WITH_BACKWARD : 0, &run->plans[kind]);
}

static shoal_status call_subject(length_run *run, int kind, double *seconds) {
    const shoal_attention *attention = &run->job->attention[kind];
    return run->job->layer ? bench_layer_call(&run->layers[kind], &run->data, seconds)
                           : bench_call(run->plans[kind], &run->data, attention, seconds);
}

uint64_t bench_digest(const bench_data *data) {
    const float *arrays[] = {data->out, data->dv, data->dq, data->dk};
    const int64_t counts[] = {data->value_count, data->value_count, data->query_count,
                              data->query_count};
    uint64_t digest = 1;
    for (int a = 0; a < (data->train ? 4 : 1); a++)
        digest = fold_floats(digest, arrays[a], counts[a]);
    return digest;
}

static uint64_t digest_of(const length_run *run, int kind) {
    return run->job->layer ? bench_layer_digest(&run->layers[kind], &run->data)
                           : bench_digest(&run->data);
}

static shoal_status verify_kind(length_run *run, int kind) {
    bench_job *job = run->job;
    bench_layer *layer = &run->layers[kind];
    shoal_plan **plan = &run->plans[kind];
    bench_row row = {0};
    double seconds;
    const double before = bench_peak_begin(&job->machine.peak_resets);
    shoal_status status = make_subject(run, kind);
    if (status == SHOAL_OK)
        status = call_subject(run, kind, &seconds);
    if (status != SHOAL_OK)
        return status;
    row.growth = fmax(0, bench_peak_now() - before);
    row.workspace = job->layer ? bench_layer_workspace(layer)
                               : shoal_plan_workspace(*plan);
    row.digest = digest_of(run, kind);
    row.estimate = seconds;
    status = job->layer ? bench_verify_layer(job, layer, &run->data, kind, &row)
                        : bench_verify(job, *plan, &run->data, kind, &row);
    if (row.verified && seconds >= long_call)
        row.seconds[row.repeats++] = seconds;
    pthread_mutex_lock(&results);
    job->rows[run->at][kind] = row;
    job->any_wrong |= row.wrong;
    pthread_mutex_unlock(&results);
    return status;
}

/* One repetition of one kind. */
static shoal_status take_turn(length_run *run, int kind) {
    bench_job *job = run->job;
    bench_row *row = &job->rows[run->at][kind];
    const int calls = (int)fmin(1000, ceil(shortest_turn / row->estimate));
    double total = 0;
    for (int call = 0; call < calls; call++) {
        double seconds;
        shoal_status status = call_subject(run, kind, &seconds);
        if (status != SHOAL_OK)
            return status;
        total += seconds;
    }
    pthread_mutex_lock(&results);
    row->seconds[row->repeats++] = total / calls;
    if (digest_of(run, kind) != row->digest) {
        bench_note(row, "a timed result has the bits of the verified one", 1, 0.5);
        job->any_wrong = true;
        row->verified = false;
    }
    pthread_mutex_unlock(&results);
    return SHOAL_OK;
}

static shoal_status repeat_all(length_run *run) {
    bench_job *job = run->job;
    for (int repeat = 0; repeat < job->repeats; repeat++)
        for (int kind = 0; kind < job->kinds; kind++) {
            const bench_row *row = &job->rows[run->at][kind];
            const bool late = seconds_now() + row->estimate > run->deadline;
            if (!row->verified || row->repeats >= job->repeats ||
                (late && row->repeats > 0))
                continue;
            progress_say("N = %" PRId64 ", repetition %d of %" PRId64
                         ": %s; about %.0f s left",
                         job->length[run->at], repeat + 1, job->repeats,
                         job->spelling[kind],
                         remaining_work(job, run->at + 1) +
                             fmin(run->deadline - seconds_now(),
                                  (double)(job->repeats - repeat) * row->estimate * 2));
            shoal_status status = take_turn(run, kind);
            if (status != SHOAL_OK)
                return status;
        }
    return SHOAL_OK;
}

static shoal_status measure_length(length_run *run) {
    bench_job *job = run->job;
    shoal_status status = SHOAL_OK;
    if (choose_kinds(run) == 0)
        return SHOAL_OK;
    if (!bench_data_create(&run->data, job, job->length[run->at]))
        return SHOAL_NO_MEMORY;
    for (int kind = 0; kind < job->kinds && status == SHOAL_OK; kind++) {
        if (!run->chosen[kind])
            continue;
        progress_say("N = %" PRId64 ", checking %s; about %.0f s left",
                     job->length[run->at], job->spelling[kind],
                     remaining_work(job, run->at));
        status = verify_kind(run, kind);
    }
    if (status == SHOAL_OK)
        status = repeat_all(run);
    return status;
}

static shoal_status run_length(bench_job *job, int at) {
    length_run run = {.job = job, .at = at};
    progress_begin(0);
    shoal_status status = measure_length(&run);
    progress_end();
    for (int kind = 0; kind < job->kinds; kind++) {
        shoal_plan_destroy(run.plans[kind]);
        bench_layer_destroy(&run.layers[kind]);
    }
    bench_data_destroy(&run.data);
#if defined(__GLIBC__)
    malloc_trim(0); /* so that the next length's growth is seen whole */
#endif
    pthread_mutex_lock(&results);
    if (!job->json)
        bench_print_rows(job, at + (status == SHOAL_OK));
    pthread_mutex_unlock(&results);
    return status;
}

/* ---- The run ----------------------------------------------------------------------- */

int bench_run(bench_job *job) {
    const int threads = shoal_context_threads(job->context);
    shoal_status status = SHOAL_OK;
    job->begun = seconds_now();
    watch_signals(job);
    progress_begin(0);
    progress_say("measuring sgemm and memory bandwidth");
    bench_machine_measure(&job->machine.before, threads);
    progress_end();
    for (int at = 0; at < job->lengths && status == SHOAL_OK; at++)
        status = run_length(job, at);
    bench_machine_measure(&job->machine.after, threads);
    pthread_mutex_lock(&results); /* for good: all is measured */
    handle_signals();
    int code = status == SHOAL_OK
                   ? EXIT_OK
                   : complain_status(status, EXIT_USAGE, "bench", job->context);
    const int reported = bench_report(job);
    return code != EXIT_OK ? code : reported;
}
