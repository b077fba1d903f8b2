/* The arrays, and the order of measurements. Lengths increase. At each length every
   kind is created, called once and verified; then repetitions of the kinds alternate,
   so that other load on the machine affects all of them. A kind that would exceed the
   remaining time is estimated from the previous length.

   An interrupt may come in the middle of a long call: a separate thread then prints the
   report while the results are locked. */
#define _GNU_SOURCE
#include "bench.h"

#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

/* A call of this length needs no warm-up: the verified call counts as a repetition. */
static const double long_call = 1.0;
/* Shorter calls are repeated for this time, and their mean is one repetition. */
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
    handle_signals(); /* a second signal ends the program if the report has to wait */
    job->interrupted = true;
    progress_end();
    bench_report(job);
    fflush(stdout);
    _exit(128 + (int)which_signal);
}

/* ---- Arrays: page-aligned, without huge pages ------------------------------------- */

enum { PAGE = 4096 };

uint64_t bench_random(uint64_t seed, uint64_t counter) {
    return mix_bits(counter + seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u);
}

/* The sum of four uniform numbers is close enough to a normal distribution. */
float bench_noise(uint64_t seed, uint64_t stream, int64_t at) {
    const uint64_t bits = bench_random(seed, stream << 56 | (uint64_t)at);
    const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                         (bits >> 48);
    return ((float)sum / 65536 - 2) * 1.7320508f;
}

/* array [units][N][features]; its rows are a range of those of the whole sequences. */
static void fill_noise(float *array, const bench_data *data, int64_t units,
                       int64_t features, uint64_t seed, uint64_t stream) {
    for (int64_t u = 0; u < units; u++)
        for (int64_t i = 0; i < data->length * features; i++)
            array[u * data->length * features + i] =
                bench_noise(seed, stream,
                            (u * data->whole_length + data->first) * features + i);
}

/* Writes every page, so that no timed call is the first to touch one. */
static void *touched(int64_t count, size_t size) {
    const size_t bytes = ((size_t)count * size + PAGE - 1) / PAGE * PAGE;
    void *block = NULL;
    if (posix_memalign(&block, PAGE, bytes ? bytes : PAGE) != 0)
        demand(SHOAL_NO_MEMORY, EXIT_RESOURCES);
    memset(block, 0, bytes);
    return block;
}

/* ---- Inputs of the layer ---------------------------------------------------------- */

static int64_t model_size(const bench_data *data) {
    return data->heads * data->dim;
}

int64_t bench_place(const bench_data *data, int64_t row, int64_t feature) {
    const int64_t b = row / data->length, n = row % data->length;
    const int64_t head = b * data->heads + feature / data->dim;
    return (head * data->length + n) * data->dim + feature % data->dim;
}

static void create_features(bench_data *data, const bench_job *job) {
    const int64_t count = data->query_count, model = model_size(data);
    data->offsets = touched(data->batch + 1, sizeof(int64_t));
    data->sources = touched(BENCH_PROJECTIONS * model, sizeof(int32_t));
    data->features = touched(count, sizeof(float));
    float **const for_training[] = {&data->noise, &data->slope, &data->dfeatures};
    for (int i = 0; i < (job->train ? 3 : 0); i++)
        *for_training[i] = touched(count, sizeof(float));
    for (int64_t b = 0; b <= data->batch; b++)
        data->offsets[b] = b * data->length;
    fill_noise(data->features, data, data->batch, model, job->seed, 1);
    if (job->train)
        fill_noise(data->noise, data, data->batch, model, job->seed, 4);
    /* Each projection has its own permutation and negates its own half of the
       features. */
    for (int p = 0; p < BENCH_PROJECTIONS; p++) {
        int32_t *sources = data->sources + p * model;
        for (int64_t a = 0; a < model; a++) {
            const uint64_t draw =
                bench_random(job->seed, (uint64_t)(16 + p) << 56 | (uint64_t)a);
            const int64_t other = (int64_t)(draw % (uint64_t)(a + 1));
            sources[a] = sources[other];
            sources[other] = (int32_t)(draw >> 63 ? ~a : a);
        }
    }
}

/* ---- All arrays -------------------------------------------------------------------- */

void bench_data_create(bench_data *data, const bench_job *job, int64_t whole_length,
                       int64_t first, int64_t length) {
    const int64_t units = job->batch * job->heads;
    *data = (bench_data){.batch = job->batch,
                         .heads = job->heads,
                         .length = length,
                         .whole_length = whole_length,
                         .first = first,
                         .dim = job->dim,
                         .value_dim = job->value_dim,
                         .train = job->train,
                         .query_count = units * length * job->dim,
                         .value_count = units * length * job->value_dim};
    float **const as_query[] = {&data->q, &data->k, &data->dq, &data->dk, &data->moved_q};
    float **const as_value[] = {&data->v, &data->out, &data->spare, &data->dout,
                                &data->dv};
    float **const inputs[] = {&data->q, &data->k, &data->v};
    for (int i = 0; i < (job->train ? 5 : 2); i++)
        *as_query[i] = touched(data->query_count, sizeof(float));
    for (int i = 0; i < (job->train ? 5 : 3); i++)
        *as_value[i] = touched(data->value_count, sizeof(float));
    if (job->layer)
        create_features(data, job);
    for (int i = 0; i < 3; i++)
        if (job->layer) {
            /* [B][H][N][D] = projection i of the features. */
            const int64_t model = model_size(data), rows = data->batch * data->length;
            for (int64_t row = 0; row < rows; row++)
                for (int64_t a = 0; a < model; a++) {
                    const int32_t source = data->sources[i * model + a];
                    (*inputs[i])[bench_place(data, row, a)] =
                        source >= 0 ? data->features[row * model + source]
                                    : -data->features[row * model + ~source];
                }
        } else
            fill_noise(*inputs[i], data, units, i < 2 ? job->dim : job->value_dim,
                       job->seed, (uint64_t)i + 1);
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
    return square_problem(data->batch, data->heads, data->length, data->dim,
                          data->value_dim);
}

shoal_inputs bench_inputs(const bench_data *data, const shoal_attention *attention) {
    return (shoal_inputs){.size = sizeof(shoal_inputs),
                          .q = data->q,
                          .k = kind_facts(attention)->keys_are_queries ? NULL : data->k,
                          .v = data->v};
}

shoal_gradients bench_gradients(const bench_data *data) {
    return (shoal_gradients){.size = sizeof(shoal_gradients),
                             .out = data->out,
                             .dout = data->dout,
                             .dq = data->dq,
                             .dk = data->dk,
                             .dv = data->dv};
}

/* ---- The measured call ------------------------------------------------------------ */

shoal_plan *bench_plan(const bench_job *job, const bench_data *data,
                       const shoal_attention *attention, unsigned flags) {
    const shoal_problem problem = bench_problem(data);
    shoal_plan *plan;
    demand(shoal_plan_create(job->context, &problem, attention, flags, &plan),
           EXIT_USAGE);
    return plan;
}

double bench_call(shoal_plan *plan, const bench_data *data,
                  const shoal_attention *attention) {
    const shoal_inputs inputs = bench_inputs(data, attention);
    const shoal_gradients gradients = bench_gradients(data);
    double begun = seconds_now();
    demand(shoal_forward(plan, &inputs, data->out), EXIT_USAGE);
    const double seconds = seconds_now() - begun;
    if (!data->train)
        return seconds;
    memcpy(data->dout, data->out, (size_t)data->value_count * sizeof(float));
    begun = seconds_now();
    demand(shoal_backward(plan, &inputs, &gradients), EXIT_USAGE);
    return seconds + seconds_now() - begun;
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

void bench_subject_create(const bench_job *job, const bench_data *data, int kind,
                          shoal_transport *over, bench_subject *subject) {
    const shoal_problem problem = bench_problem(data);
    const unsigned flags = job->train ? SHOAL_WITH_BACKWARD : 0;
    const shoal_attention *attention = &job->kinds.attention[kind];
    if (job->layer)
        bench_layer_create(job, data, kind, over, &subject->layer);
    else if (over)
        demand(shoal_plan_create_over(over, job->context, &problem, attention, flags,
                                      &subject->plan),
               EXIT_USAGE);
    else
        subject->plan = bench_plan(job, data, attention, flags);
}

void bench_subject_destroy(bench_subject *subject) {
    shoal_plan_destroy(subject->plan);
    shoal_model_destroy(subject->layer.model);
    *subject = (bench_subject){0};
}

double bench_subject_call(const bench_job *job, bench_subject *subject,
                          const bench_data *data, int kind) {
    return job->layer ? bench_layer_call(&subject->layer, data)
                      : bench_call(subject->plan, data, &job->kinds.attention[kind]);
}

uint64_t bench_subject_digest(const bench_job *job, const bench_subject *subject,
                              const bench_data *data) {
    return job->layer ? bench_layer_digest(&subject->layer, data) : bench_digest(data);
}

size_t bench_subject_workspace(const bench_job *job, const bench_subject *subject) {
    return job->layer ? shoal_model_workspace(subject->layer.model)
                      : shoal_plan_workspace(subject->plan);
}

/* ---- Operations and estimates ------------------------------------------------------ */

double bench_operations(const bench_job *job, int kind, int64_t length) {
    const shoal_attention *attention = &job->kinds.attention[kind];
    const shoal_problem problem =
        square_problem(job->batch, job->heads, length, job->dim, job->value_dim);
    double sum = shoal_attention_operations(attention, &problem,
                                            job->train ? SHOAL_WITH_BACKWARD : 0);
    if (job->layer) {
        /* Products of all rows with the weights. Backward computes two per product: the
           gradients of the input and of the weights. */
        const double rows = (double)(job->batch * length);
        const double model = (double)(job->heads * job->dim);
        const double matrices = kind_facts(attention)->keys_are_queries ? 3 : 4;
        const double forward = 2 * rows * model *
                               (matrices * model + 2 * (double)job->feed_forward);
        sum += (job->train ? 3 : 1) * forward;
    }
    return sum;
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

/* Seconds to create, call and check a kind once. */
static double verifying_seconds(const bench_job *job, int kind, int at) {
    const double samples = 8e-8 * (double)(job->length[at] * (job->dim + job->value_dim));
    const bool lsh = job->kinds.attention[kind].rounds >
                     0; /* is also verified at a small length */
    const double again = job->layer ? (job->train ? 4 : 1) : (job->train ? 1 : 0);
    return estimate(job, kind, at) * (1 + again + 0.5 * lsh) + samples;
}

static double seconds_left(const bench_job *job) {
    return (double)job->budget - (seconds_now() - job->begun);
}

/* Seconds of all measurements from length `at` on. */
static double remaining_work(const bench_job *job, int at) {
    double sum = 0;
    for (; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds.count; kind++) {
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
    int at; /* index of the length */
    bool chosen[BENCH_KINDS];
    double deadline;
    bench_data data;
    bench_subject subjects[BENCH_KINDS];
} length_run;

/* Selects kinds, cheapest first, as long as time allows; the others are estimated.
   Returns their number. */
static int choose_kinds(length_run *run) {
    bench_job *job = run->job;
    const bool last = run->at + 1 == job->lengths;
    const double allowed = seconds_left(job) * (last ? 1 : 0.5);
    double used = 0;
    int count = 0;
    run->deadline = seconds_now() + allowed;
    for (int turn = 0; turn < job->kinds.count; turn++) {
        int cheapest = -1;
        for (int kind = 0; kind < job->kinds.count; kind++)
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

static void verify_kind(length_run *run, int kind) {
    bench_job *job = run->job;
    bench_subject *subject = &run->subjects[kind];
    bench_row row = {0};
    const double before = bench_peak_begin(&job->machine.peak_resets);
    bench_subject_create(job, &run->data, kind, NULL, subject);
    row.estimate = bench_subject_call(job, subject, &run->data, kind);
    row.growth = fmax(0, bench_peak_now() - before);
    row.workspace = bench_subject_workspace(job, subject);
    row.digest = bench_subject_digest(job, subject, &run->data);
    if (job->layer)
        bench_verify_layer(job, &subject->layer, &run->data, kind, &row);
    else
        bench_verify(job, subject->plan, &run->data, kind, &row);
    if (row.verified && row.estimate >= long_call)
        row.seconds[row.repeats++] = row.estimate;
    pthread_mutex_lock(&results);
    job->rows[run->at][kind] = row;
    job->any_wrong |= row.wrong;
    pthread_mutex_unlock(&results);
}

static void repeat_all(length_run *run) {
    bench_job *job = run->job;
    for (int repeat = 0; repeat < job->repeats; repeat++)
        for (int kind = 0; kind < job->kinds.count; kind++) {
            bench_row *row = &job->rows[run->at][kind];
            const bool late = seconds_now() + row->estimate > run->deadline;
            if (!row->verified || row->repeats >= job->repeats ||
                (late && row->repeats > 0))
                continue;
            progress_say("N = %" PRId64 ", repetition %d of %" PRId64
                         ": %s; about %.0f s left",
                         job->length[run->at], repeat + 1, job->repeats,
                         job->kinds.names[kind],
                         remaining_work(job, run->at + 1) +
                             fmin(run->deadline - seconds_now(),
                                  (double)(job->repeats - repeat) * row->estimate * 2));
            /* One repetition of one kind. */
            const int calls = (int)fmin(1000, ceil(shortest_turn / row->estimate));
            double total = 0;
            for (int call = 0; call < calls; call++)
                total += bench_subject_call(job, &run->subjects[kind], &run->data, kind);
            pthread_mutex_lock(&results);
            row->seconds[row->repeats++] = total / calls;
            if (bench_subject_digest(job, &run->subjects[kind], &run->data) !=
                row->digest) {
                bench_note(row, "a timed result has the bits of the verified one", 1,
                           0.5);
                job->any_wrong = true;
                row->verified = false;
            }
            pthread_mutex_unlock(&results);
        }
}

static void run_length(bench_job *job, int at) {
    length_run run = {.job = job, .at = at};
    progress_begin(0);
    if (choose_kinds(&run) > 0) {
        bench_data_create(&run.data, job, job->length[at], 0, job->length[at]);
        for (int kind = 0; kind < job->kinds.count; kind++) {
            if (!run.chosen[kind])
                continue;
            progress_say("N = %" PRId64 ", checking %s; about %.0f s left",
                         job->length[at], job->kinds.names[kind],
                         remaining_work(job, at));
            verify_kind(&run, kind);
        }
        repeat_all(&run);
    }
    progress_end();
    for (int kind = 0; kind < job->kinds.count; kind++)
        bench_subject_destroy(&run.subjects[kind]);
    bench_data_destroy(&run.data);
#if defined(__GLIBC__)
    malloc_trim(0); /* releases memory, so that the growth of the next length is
                       measured completely */
#endif
    pthread_mutex_lock(&results);
    if (!job->json)
        bench_print_rows(job, at + 1);
    pthread_mutex_unlock(&results);
}

/* ---- The run ----------------------------------------------------------------------- */

/* Reports what was measured if the program exits early. */
static void report_last(void *job) {
    pthread_mutex_lock(&results); /* held until the end, since all is measured */
    handle_signals();
    bench_report(job);
}

int bench_run(bench_job *job) {
    const int threads = shoal_context_threads(job->context);
    pthread_t watcher;
    job->begun = seconds_now();
    /* If this fails, an interrupt ends the program as in other commands. */
    if (sem_init(&asked_to_stop, 0, 0) == 0 &&
        pthread_create(&watcher, NULL, wait_for_stop, job) == 0)
        catch_signals(on_stop);
    before_leaving(report_last, job);
    progress_begin(0);
    progress_say("measuring sgemm and memory bandwidth");
    bench_machine_measure(&job->machine.before, threads);
    progress_end();
    for (int at = 0; at < job->lengths; at++)
        run_length(job, at);
    bench_machine_measure(&job->machine.after, threads);
    pthread_mutex_lock(&results);
    handle_signals();
    return bench_report(job);
}
