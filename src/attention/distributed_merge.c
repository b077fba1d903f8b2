/* What the ranks have of every group, put together. Each rank is sent everybody's records
   of some of the groups, puts those together in the order of the ranks, and sends what
   came out to all. So what a rank sends and holds does not grow with their number, and
   the result does not depend on who came first.

   U units of C groups each make U C groups; P ranks. */
#include <string.h>

#include "attention/distributed.h"

/* Of all groups, the first that rank p puts together. */
static int64_t share_start(const distributed_call *run, int p) {
    return p * distributed_clusters(run->call->plan) / run->over->ranks;
}

static int64_t share_of(const distributed_call *run, int p) {
    return share_start(run, p + 1) - share_start(run, p);
}

int64_t sh_distributed_most_shared(const shoal_plan *plan) {
    return ceil_divide(distributed_clusters(plan), plan->over->ranks);
}

/* own->packet [U C][size]: this rank's records. own->packets gets them, put together. */
typedef void merge_function(const distributed_call *run, int64_t groups, int64_t size);

static void merge_records(distributed_call *run, int64_t size, merge_function *merge) {
    const int ranks = run->over->ranks;
    const distributed_work *own = run->own;
    const int64_t mine = share_of(run, run->over->rank);
    for (int p = 0; p < ranks; p++) {
        own->sizes[p] = share_of(run, p) * size;
        own->sizes[ranks + p] = mine * size;
    }
    if (!run->failed)
        run->failed = run->over->exchange(run->over, own->sizes, own->packet,
                                          own->sizes + ranks, own->packets) != SHOAL_OK;
    if (!run->failed)
        merge(run, mine, size);
    if (!run->failed)
        run->failed = run->over->gather_parts(run->over, own->sizes, own->packet,
                                              own->packets) != SHOAL_OK;
}

/* ---- Sums ------------------------------------------------------------------------- */

#define ADD_RECORDS(name, type)                                                          \
    static void name(const distributed_call *run, int64_t groups, int64_t size) {        \
        const int64_t count = groups * size / (int64_t)sizeof(type);                     \
        const type *theirs = run->own->packets;                                          \
        type *sums = run->own->packet;                                                   \
        memset(sums, 0, sizeof *sums *(size_t)count);                                    \
        for (int p = 0; p < run->over->ranks; p++)                                       \
            for (int64_t i = 0; i < count; i++)                                          \
                sums[i] += theirs[p * count + i];                                        \
    }
ADD_RECORDS(add_doubles, double)
ADD_RECORDS(add_floats, float)

void sh_distributed_sum_doubles(distributed_call *run, int64_t width) {
    merge_records(run, width * (int64_t)sizeof(double), add_doubles);
}

void sh_distributed_sum_floats(distributed_call *run, int64_t width) {
    merge_records(run, width * (int64_t)sizeof(float), add_floats);
}

/* ---- Parts of softmaxes ----------------------------------------------------------- */

/* What comes before the values in a group's record. Candidates come first of all. */
typedef struct {
    float largest, sum;
    int32_t count; /* of candidates */
} part_numbers;

static int64_t candidates_size(const shoal_plan *plan) {
    const clustered_work *work = plan->work;
    return work->has_top ? work->topk * (int64_t)sizeof(uint64_t) : 0;
}

int64_t sh_distributed_part_size(const shoal_plan *plan, int32_t topk) {
    const int64_t bytes = topk * (int64_t)sizeof(uint64_t) +
                          (int64_t)sizeof(part_numbers) +
                          plan->problem.value_dim * (int64_t)sizeof(float);
    return ceil_divide(bytes, 8) * 8; /* candidates of the next one are aligned */
}

static void write_part(const shoal_plan *plan, const softmax_parts *from, int64_t group,
                       char *record) {
    const clustered_work *work = plan->work;
    const int64_t Dv = plan->problem.value_dim;
    const part_numbers numbers = {from->largest[group], from->sum[group],
                                  work->has_top ? from->counts[group] : 0};
    if (numbers.count > 0)
        memcpy(record, from->keys + group * work->topk,
               sizeof(uint64_t) * (size_t)numbers.count);
    record += candidates_size(plan);
    memcpy(record, &numbers, sizeof numbers);
    memcpy(record + sizeof numbers, from->values + group * Dv,
           sizeof(float) * (size_t)Dv);
}

static void read_part(const shoal_plan *plan, const char *record, const softmax_parts *to,
                      int64_t group) {
    const clustered_work *work = plan->work;
    const int64_t Dv = plan->problem.value_dim;
    const char *rest = record + candidates_size(plan);
    part_numbers numbers;
    memcpy(&numbers, rest, sizeof numbers);
    to->largest[group] = numbers.largest;
    to->sum[group] = numbers.sum;
    memcpy(to->values + group * Dv, rest + sizeof numbers, sizeof(float) * (size_t)Dv);
    if (!work->has_top)
        return;
    to->counts[group] = numbers.count;
    memcpy(to->keys + group * work->topk, record,
           sizeof(uint64_t) * (size_t)numbers.count);
}

static void merge_task(void *shared, int64_t group, int thread) {
    const distributed_call *run = shared;
    const clustered_work *work = run->call->plan->work;
    sh_clustered_merge_cluster(run->call->plan, &run->own->parts, group,
                               &work->threads[thread]);
}

static void merge_parts(const distributed_call *run, int64_t groups, int64_t size) {
    const shoal_plan *plan = run->call->plan;
    distributed_work *own = run->own;
    own->parts.count = run->over->ranks;
    own->parts.clusters = groups;
    for (int64_t i = 0; i < run->over->ranks * groups; i++)
        read_part(plan, (const char *)own->packets + i * size, &own->parts, i);
    sh_team_run(run->workers, groups, merge_task, (void *)(uintptr_t)run);
    for (int64_t i = 0; i < groups; i++)
        write_part(plan, &own->parts, i, (char *)own->packet + i * size);
}

void sh_distributed_merge_parts(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const clustered_work *work = plan->work;
    const int64_t C = plan->attention.clusters,
                  size = sh_distributed_part_size(plan, work->has_top ? work->topk : 0);
    const distributed_work *own = run->own;
    for (int64_t i = 0; i < distributed_clusters(plan); i++)
        write_part(plan, &own->heads[i / C].slot->parts, i % C,
                   (char *)own->packet + i * size);
    merge_records(run, size, merge_parts);
    for (int64_t i = 0; i < distributed_clusters(plan) && !run->failed; i++)
        read_part(plan, (const char *)own->packets + i * size,
                  &own->heads[i / C].slot->parts, i % C);
}
