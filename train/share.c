/* Training in several processes. Each processes its share of every batch. Either
   gradients are summed layer by layer during backward, so that all processes take the
   same step; or each process trains separately, and weights and optimizer moments are
   averaged from time to time. Scores are summed in every step, so that all decide
   alike. */
#define _GNU_SOURCE
#include <link.h>
#include <string.h>

#include "base/memory.h"
#include "models/files/checksum.h"
#include "train/train.h"

static bool sums_gradients(const shoal_trainer *self) {
    return self->transport && self->config->average_every == 0;
}

/* Copies the transport's message to the context. */
static shoal_status keep_message(shoal_context *context, const shoal_transport *transport,
                                 shoal_status status) {
    return status == SHOAL_OK ? status
                              : sh_fail(context, status, "%s", transport->message);
}

/* Barrier. */
static shoal_status wait_for_all(shoal_trainer *self) {
    shoal_transport *transport = self->transport;
    int32_t all = 1;
    return keep_message(self->context, transport,
                        transport->sum(transport, SHOAL_SUM_TYPE_INT32, 1, &all));
}

shoal_status sh_trainer_open(shoal_trainer *self) {
    const shoal_transport *transport = self->transport;
    const bool first = !transport || transport->local_rank == 0;
    const shoal_task_opening opening = {self->context, sh_share(transport),
                                        &self->callbacks, self->resumed};
    if (!first)
        TRY(wait_for_all(self));
    TRY(self->task->open(self->task->user, &opening, self->config, &self->data,
                         &self->sizes));
    return transport && first ? wait_for_all(self) : SHOAL_OK;
}

/* ---- Shares and scores ------------------------------------------------------------- */

/* Counts are exact in double precision. */
shoal_status sh_trainer_sum(shoal_trainer *self, shoal_train_counts *counts,
                            int64_t *sequences) {
    shoal_transport *transport = self->transport;
    double all[] = {counts->weight > 0 ? counts->loss * counts->weight : 0,
                    counts->weight,
                    counts->divisor,
                    (double)counts->correct,
                    (double)counts->counted,
                    (double)counts->impossible,
                    (double)*sequences,
                    (double)self->wants_stop,
                    (double)counts->broken};
    const shoal_status status =
        transport->sum(transport, SHOAL_SUM_TYPE_DOUBLE, sizeof all / sizeof *all, all);
    *counts = (shoal_train_counts){.loss = all[1] > 0 ? all[0] / all[1] : 0,
                                   .weight = all[1],
                                   .divisor = all[2],
                                   .correct = (int64_t)all[3],
                                   .counted = (int64_t)all[4],
                                   .impossible = (int64_t)all[5],
                                   .broken = (int64_t)all[8]};
    *sequences = (int64_t)all[6];
    self->stopped = all[7] > 0;
    return keep_message(self->context, transport, status);
}

shoal_status sh_tell_others(shoal_context *context, shoal_transport *transport,
                            int64_t bytes, void *values) {
    return transport ? keep_message(context, transport,
                                    transport->broadcast(transport, 0, bytes, values))
                     : SHOAL_OK;
}

/* ---- Gradients --------------------------------------------------------------------- */

/* A shoal_gradient_callback. */
static void begin_sum(void *shared, int64_t first, int64_t count) {
    shoal_trainer *self = shared;
    shoal_transport *transport = self->transport;
    float *gradients;
    shoal_model_vectors(self->model, NULL, &gradients);
    if (self->summed == SHOAL_OK)
        self->summed = transport->sum_begin(transport, SHOAL_SUM_TYPE_FLOAT, count,
                                            gradients + first);
}

shoal_status sh_trainer_watch(shoal_trainer *self) {
    return sums_gradients(self) ? shoal_model_watch(self->model, begin_sum, self)
                                : SHOAL_OK;
}

shoal_status sh_trainer_backward(shoal_trainer *self, const shoal_model_inputs *inputs,
                                 float *dout, int64_t count, shoal_train_counts *counts,
                                 int64_t *sequences) {
    shoal_transport *transport = self->transport;
    counts->divisor = counts->divisor > 0 ? counts->divisor : counts->weight;
    const double own = counts->divisor;
    TRY(sh_trainer_sum(self, counts, sequences));
    if (sums_gradients(self)) {
        const float share = (float)(counts->divisor > 0 ? own / counts->divisor : 0);
        for (int64_t i = 0; i < count; i++)
            dout[i] *= share;
    }
    self->summed = SHOAL_OK;
    TRY(shoal_model_backward(self->model, inputs, dout, NULL));
    if (!sums_gradients(self))
        return SHOAL_OK;
    return keep_message(self->context, transport,
                        self->summed == SHOAL_OK ? transport->sum_end(transport)
                                                 : self->summed);
}

/* ---- Averaging -------------------------------------------------------------------- */

/* Averaged weights are validated and saved. */
shoal_status sh_trainer_average(shoal_trainer *self) {
    const int64_t every = self->config->average_every;
    shoal_transport *transport = self->transport;
    float *vectors[4];
    shoal_status status = SHOAL_OK;
    if (every == 0 || (self->state.step % every != 0 &&
                       !shoal_trainer_must_validate(self) && !self->stopped))
        return SHOAL_OK;
    const int64_t count = shoal_model_vectors(self->model, &vectors[0], NULL);
    const float share = 1.0f / (float)transport->ranks;
    shoal_optimizer_vectors(self->optimizer, &vectors[1], &vectors[2], &vectors[3]);
    for (int i = 0; i < 4 && status == SHOAL_OK; i++)
        if (vectors[i])
            status =
                transport->sum_begin(transport, SHOAL_SUM_TYPE_FLOAT, count, vectors[i]);
    if (status == SHOAL_OK)
        status = transport->sum_end(transport);
    for (int v = 0; v < 4 && status == SHOAL_OK; v++)
        for (int64_t i = 0; vectors[v] && i < count; i++)
            vectors[v][i] *= share;
    self->averaged_at = self->state.step;
    return keep_message(self->context, transport, status);
}

bool sh_trainer_may_save(const shoal_trainer *self) {
    return self->config->average_every == 0 || self->averaged_at == self->state.step;
}

/* ---- Before the first step --------------------------------------------------------- */

/* Names and digests of everything that must be equal in all processes. */
enum { MOST_THINGS = 128 };
typedef struct {
    const char *name[MOST_THINGS];
    uint64_t digest[MOST_THINGS];
    int count;
} common_things;

static void add_thing(common_things *things, const char *name, uint64_t digest) {
    if (things->count == MOST_THINGS)
        return;
    things->name[things->count] = name;
    things->digest[things->count++] = digest;
}

static uint64_t digest_text(const char *text) {
    return sh_checksum(text, strlen(text), 0);
}

static uint64_t digest_file(uint64_t before, const char *path) {
    unsigned char block[1 << 14];
    FILE *file = fopen(path, "rb");
    size_t some;
    while (file && (some = fread(block, 1, sizeof block, file)) > 0)
        before = sh_checksum(block, some, before);
    if (file)
        fclose(file);
    return before;
}

static int add_library(struct dl_phdr_info *info, size_t size, void *digest) {
    const char *name = strrchr(info->dlpi_name, '/');
    (void)size;
    if (name && strncmp(name, "/libshoal", 9) == 0)
        *(uint64_t *)digest = digest_file(*(uint64_t *)digest, info->dlpi_name);
    return 0;
}

/* Names the first item that differs. */
static shoal_status compare_things(shoal_trainer *self, const common_things *things) {
    shoal_transport *transport = self->transport;
    const size_t bytes = sizeof things->digest;
    uint64_t *all = sh_allocate(self->context, bytes * (size_t)transport->ranks);
    int wrong = -1, which = 0;
    if (!all)
        return SHOAL_NO_MEMORY;
    const shoal_status status =
        transport->gather(transport, (int64_t)bytes, things->digest, all);
    for (int rank = transport->ranks - 1; rank > 0 && status == SHOAL_OK; rank--)
        for (int i = things->count - 1; i >= 0; i--)
            if (all[rank * MOST_THINGS + i] != all[i]) {
                wrong = rank;
                which = i;
            }
    sh_release(self->context, all);
    if (wrong < 0)
        return keep_message(self->context, transport, status);
    return sh_fail(self->context, SHOAL_BAD_FILE,
                   "rank %d and rank 0 differ in %s; it must be the same on all ranks",
                   wrong, things->name[which]);
}

shoal_status sh_trainer_compare(shoal_trainer *self) {
    common_things things = {.count = 0};
    char text[SHOAL_VALUE_SIZE];
    const shoal_field *field;
    self->averaged_at = self->state.step;
    if (!self->transport)
        return SHOAL_OK;
    uint64_t build = digest_file(0, "/proc/self/exe"); /* and the Shoal libraries it
                                                          uses */
    dl_iterate_phdr(add_library, &build);
    add_thing(&things, "the build of Shoal", build);
    add_thing(&things, "the instruction set (choose one with --isa)",
              digest_text(shoal_context_isa(self->context)));
    for (int i = 0; (field = shoal_task_field(self->task, i)); i++) {
        sh_field_print(self->task, self->config, field, text, sizeof text);
        add_thing(&things, field->name, digest_text(text));
    }
    float *values;
    const int64_t count = shoal_model_vectors(self->model, &values, NULL);
    add_thing(&things, "the step or the weights (do both read the same files?)",
              sh_checksum(values, sizeof *values * (size_t)count,
                          (uint64_t)self->state.step));
    return compare_things(self, &things);
}
