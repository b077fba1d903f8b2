/* Lattice-free MMI: the model of the graphs, and parallel processing of a batch. */
#define _GNU_SOURCE
#include "speech/recogniser/lfmmi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/parallel.h"
#include "speech/words/grow.h"

/* Outputs beyond this are penalised. */
static const float range_limit = 30;
/* Objective per step of an utterance whose result is not finite. */
static const double broken_step = -10;

struct shoal_lfmmi {
    shoal_context *context;
    shoal_lfmmi_options options;
    shoal_lfmmi_info info; /* of the last shoal_lfmmi_describe */
    const shoal_lexicon *lexicon;
    phone_lm lm;
    den_graph den;
    int64_t outputs;
    bool cached;
    lfmmi_scratch *scratch; /* [threads] */
};

static shoal_status no_memory(shoal_context *context) {
    return sh_fail(context, SHOAL_NO_MEMORY, "out of memory for LF-MMI");
}

/* ---- Creation --------------------------------------------------------------------- */

void shoal_lfmmi_options_init(shoal_lfmmi_options *options, size_t size) {
    const shoal_lfmmi_options known = {.size = sizeof known,
                                       .topology = SHOAL_TOPOLOGY_CHAIN,
                                       .order = 4,
                                       .extra = 2000,
                                       .leak = 0.1f,
                                       .l2 = 5e-5f,
                                       .range = 0.01f};
    sh_write_struct(options, size, &known, sizeof known);
}

static shoal_status begin(shoal_context *context, const shoal_lfmmi_options *options,
                          const shoal_lexicon *lexicon, shoal_lfmmi **made) {
    shoal_lfmmi_options o = shoal_lfmmi_options_defaults();
    TRY(READ_STRUCT(context, shoal_lfmmi_options, options, &o));
    if (o.topology > SHOAL_TOPOLOGY_BLANK || !(o.leak >= 1e-8f && o.leak <= 1) ||
        o.extra < 0 || !(o.l2 >= 0 && isfinite(o.l2)) ||
        !(o.range >= 0 && isfinite(o.range)))
        return sh_fail(context, SHOAL_INVALID,
                       "LF-MMI: invalid value for topology, leak is not 1e-8 to 1, or "
                       "extra, l2 or range is negative or not finite");
    *made = sh_allocate_zeros(context, 1, sizeof **made);
    lfmmi_scratch *scratch =
        sh_allocate_zeros(context, (size_t)context->threads, sizeof *scratch);
    if (!*made || !scratch) {
        sh_free(scratch);
        sh_free(*made);
        *made = NULL;
        return no_memory(context);
    }
    for (int i = 0; i < context->threads; i++)
        scratch[i].context = context;
    **made = (shoal_lfmmi){.context = context,
                           .options = o,
                           .lexicon = lexicon,
                           .scratch = scratch};
    return SHOAL_OK;
}

/* Reads the phone language model from the cache, or estimates and stores it. */
static shoal_status find_model(shoal_lfmmi *made, const phone_texts *texts) {
    char path[4096];
    const shoal_lfmmi_options *o = &made->options;
    shoal_context *context = made->context;
    const int64_t extra = o->extra > 0 ? o->extra : -1; /* -1: all histories */
    if (!o->cache)
        return sh_phone_lm_make(context, texts, o->order, extra, &made->lm);
    const uint64_t key = sh_phone_lm_key(texts, o->order, extra);
    const int length = snprintf(path, sizeof path, "%s/phones%d-%016llx.ngrams", o->cache,
                                (int)o->order, (unsigned long long)key);
    if (length < 0 || length >= (int)sizeof path)
        return sh_fail(context, SHOAL_INVALID, "the path of the cache is too long");
    made->cached = access(path, F_OK) == 0 &&
                   sh_phone_lm_read(context, path, key, &made->lm) == SHOAL_OK;
    if (made->cached)
        return SHOAL_OK;
    TRY(sh_phone_lm_make(context, texts, o->order, extra, &made->lm));
    return sh_phone_lm_write(context, &made->lm, key, path);
}

/* Builds the graphs and returns the object, or frees it on failure. */
static shoal_status finish(shoal_lfmmi *made, shoal_status status, shoal_lfmmi **lfmmi) {
    if (status == SHOAL_OK) {
        made->outputs =
            sh_topology_outputs((int32_t)made->options.topology, made->lm.phones);
        if (!sh_den_make(made->context, &made->lm, (int32_t)made->options.topology,
                         made->options.whole != 0, &made->den))
            status = no_memory(made->context);
    }
    if (status == SHOAL_OK)
        *lfmmi = made;
    else
        shoal_lfmmi_destroy(made);
    return status;
}

/* Checks the words before they are used as indices. */
static shoal_status check_words(shoal_context *context, const phone_texts *texts) {
    const int64_t words = shoal_lexicon_describe(texts->lexicon)->words;
    if (texts->count < 0 || !texts->offsets || texts->offsets[0] != 0 ||
        (texts->offsets[texts->count] > 0 && !texts->words))
        return sh_fail(context, SHOAL_INVALID,
                       "words or offsets is NULL, or offsets do not begin with 0");
    for (int64_t u = 0; u < texts->count; u++)
        if (texts->offsets[u + 1] < texts->offsets[u])
            return sh_fail(context, SHOAL_INVALID,
                           "offsets of words must be non-decreasing");
    for (int64_t i = 0; i < texts->offsets[texts->count]; i++)
        if (texts->words[i] < 0 || texts->words[i] >= words)
            return sh_fail(context, SHOAL_INVALID,
                           "word %lld is %d; it must be from 0 to %lld", (long long)i,
                           (int)texts->words[i], (long long)words - 1);
    return SHOAL_OK;
}

shoal_status shoal_lfmmi_create(shoal_context *context,
                                const shoal_lfmmi_options *options,
                                const shoal_lexicon *lexicon, int64_t count,
                                const int64_t *offsets, const int32_t *words,
                                shoal_lfmmi **lfmmi) {
    const phone_texts texts = {lexicon, count, offsets, words};
    shoal_lfmmi *made = NULL;
    if (lfmmi)
        *lfmmi = NULL;
    if (!context || !context->kernels || !lexicon || !lfmmi)
        return sh_fail(context, SHOAL_INVALID, "context, lexicon or lfmmi is NULL");
    TRY(check_words(context, &texts));
    TRY(begin(context, options, lexicon, &made));
    return finish(made, find_model(made, &texts), lfmmi);
}

shoal_status shoal_lfmmi_open(shoal_context *context, const shoal_lfmmi_options *options,
                              const shoal_lexicon *lexicon, const char *path,
                              shoal_lfmmi **lfmmi) {
    shoal_lfmmi *made = NULL;
    if (lfmmi)
        *lfmmi = NULL;
    if (!context || !context->kernels || !path || !lfmmi)
        return sh_fail(context, SHOAL_INVALID, "context, path or lfmmi is NULL");
    TRY(begin(context, options, lexicon, &made));
    shoal_status status = sh_phone_lm_read(context, path, 0, &made->lm);
    if (status == SHOAL_OK && lexicon &&
        shoal_lexicon_describe(lexicon)->phones != made->lm.phones)
        status = sh_fail(context, SHOAL_INVALID,
                         "%s: has %d phones, but the lexicon %lld", path,
                         (int)made->lm.phones,
                         (long long)shoal_lexicon_describe(lexicon)->phones);
    return finish(made, status, lfmmi);
}

shoal_status shoal_lfmmi_save(const shoal_lfmmi *lfmmi, const char *path) {
    if (!lfmmi || !path)
        return sh_fail(lfmmi ? lfmmi->context : NULL, SHOAL_INVALID,
                       "lfmmi or path is NULL");
    return sh_phone_lm_write(lfmmi->context, &lfmmi->lm, 0, path);
}

void shoal_lfmmi_destroy(shoal_lfmmi *lfmmi) {
    if (!lfmmi)
        return;
    for (int i = 0; i < lfmmi->context->threads; i++)
        FREE_ALL(lfmmi->scratch[i].rows, lfmmi->scratch[i].gradient,
                 lfmmi->scratch[i].small);
    sh_den_free(&lfmmi->den);
    sh_phone_lm_free(&lfmmi->lm);
    FREE_ALL(lfmmi->scratch, lfmmi);
}

const shoal_lfmmi_info *shoal_lfmmi_describe(const shoal_lfmmi *lfmmi) {
    if (!lfmmi)
        return NULL;
    shoal_lfmmi_info *info = &((shoal_lfmmi *)(uintptr_t)lfmmi)->info;
    size_t bytes = 0;
    for (int i = 0; i < lfmmi->context->threads; i++)
        bytes += lfmmi->scratch[i].row_room + lfmmi->scratch[i].gradient_room +
                 lfmmi->scratch[i].small_room;
    *info = (shoal_lfmmi_info){.outputs = lfmmi->outputs,
                               .phones = lfmmi->lm.phones,
                               .states = lfmmi->lm.states,
                               .arcs = lfmmi->lm.arcs + lfmmi->lm.states - 1,
                               .cached = lfmmi->cached,
                               .workspace = bytes};
    return info;
}

/* ---- One utterance ----------------------------------------------------------------- */

typedef struct {
    shoal_lfmmi *lfmmi;
    const shoal_lfmmi_batch *batch;
    const float *outputs;
    double factor;
    float *gradient;
    double *objectives; /* [batch]; -infinity if there is no path, NaN if not finite;
                           see `lost` */
    bool *lost;         /* [batch]: out of memory */
    int32_t *phones, *begins;
    int64_t *counts;
} lfmmi_call;

/* The objective, and its gradient if gradient is not NULL. *failed is set if out of
   memory. */
static double measure(const lfmmi_call *c, int64_t task, lfmmi_scratch *scratch,
                      float *gradient, bool *failed) {
    shoal_lfmmi *lfmmi = c->lfmmi;
    const shoal_lfmmi_batch *batch = c->batch;
    const model_kernels *kernels = sh_model_kernels(lfmmi->context);
    const int64_t first = batch->offsets[task], steps = batch->offsets[task + 1] - first;
    const int64_t word = batch->word_offsets[task];
    const float *y = c->outputs + first * lfmmi->outputs;
    double num_log = -INFINITY, den_log = NAN;
    num_graph num;
    bool good = sh_num_make(lfmmi->context, &lfmmi->lm, &lfmmi->den,
                            (int32_t)lfmmi->options.topology, lfmmi->lexicon,
                            batch->words + word, batch->word_offsets[task + 1] - word,
                            &num) &&
                sh_num_pass(kernels, &num, y, steps, lfmmi->outputs, scratch, &num_log,
                            gradient, 1);
    sh_num_free(&num);
    if (good && isfinite(num_log))
        good = sh_den_pass(&lfmmi->den, lfmmi->options.leak, y, steps, lfmmi->outputs,
                           scratch, &den_log, gradient, -1);
    *failed = !good;
    if (!good || isinf(num_log))
        return -INFINITY;
    if (!isfinite(den_log))
        return NAN;
    /* Regularisation. */
    const float l2 = lfmmi->options.l2, range = lfmmi->options.range;
    double squares = 0, beyond = 0;
    for (int64_t i = 0; i < steps * lfmmi->outputs; i++) {
        const float over = y[i] > range_limit    ? y[i] - range_limit
                           : y[i] < -range_limit ? y[i] + range_limit
                                                 : 0;
        squares += (double)y[i] * (double)y[i];
        beyond += (double)over * (double)over;
        if (gradient)
            gradient[i] -= l2 * y[i] + range * over;
    }
    return num_log - den_log - 0.5 * ((double)l2 * squares + (double)range * beyond);
}

static void loss_task(void *shared, int64_t task, int thread) {
    const lfmmi_call *c = shared;
    lfmmi_scratch *scratch = &c->lfmmi->scratch[thread];
    const int64_t first = c->batch->offsets[task] * c->lfmmi->outputs;
    const int64_t count = c->batch->offsets[task + 1] * c->lfmmi->outputs - first;
    const size_t bytes = sizeof(float) * (size_t)count;
    float *own = NULL;
    if (c->gradient) {
        if (!sh_lfmmi_room(scratch->context, &scratch->gradient, &scratch->gradient_room,
                           bytes + 1)) {
            c->lost[task] = true;
            return;
        }
        own = scratch->gradient;
        memset(own, 0, bytes);
    }
    const double objective = measure(c, task, scratch, own, &c->lost[task]);
    c->objectives[task] = objective;
    for (int64_t i = 0; own && i < count; i++)
        c->gradient[first + i] = isfinite(objective) ? (float)-c->factor * own[i] : 0;
}

/* ---- Batches ----------------------------------------------------------------------- */

static shoal_status check_rows(const shoal_lfmmi *lfmmi, int64_t count,
                               const int64_t *offsets, const float *outputs) {
    if (count < 0 || !offsets || offsets[0] != 0 || (offsets[count] > 0 && !outputs))
        return sh_fail(lfmmi->context, SHOAL_INVALID,
                       "offsets or outputs is NULL, or offsets do not begin with 0");
    for (int64_t b = 0; b < count; b++)
        if (offsets[b + 1] < offsets[b] || offsets[b + 1] - offsets[b] > INT32_MAX / 4)
            return sh_fail(lfmmi->context, SHOAL_INVALID, "utterance %lld has %lld steps",
                           (long long)b, (long long)(offsets[b + 1] - offsets[b]));
    return SHOAL_OK;
}

shoal_status shoal_lfmmi_loss(shoal_lfmmi *lfmmi, const shoal_lfmmi_batch *batch,
                              const float *outputs, double factor, float *gradient,
                              double *losses, shoal_lfmmi_result *result) {
    if (!lfmmi || !batch || !result)
        return sh_fail(lfmmi ? lfmmi->context : NULL, SHOAL_INVALID,
                       "lfmmi, batch or result is NULL");
    shoal_lfmmi_batch own = shoal_lfmmi_batch_defaults();
    TRY(READ_STRUCT(lfmmi->context, shoal_lfmmi_batch, batch, &own));
    batch = &own;
    TRY(check_rows(lfmmi, batch->batch, batch->offsets, outputs));
    if (!lfmmi->lexicon)
        return sh_fail(lfmmi->context, SHOAL_INVALID,
                       "it was opened without a lexicon, which the loss needs");
    const phone_texts texts = {lfmmi->lexicon, batch->batch, batch->word_offsets,
                               batch->words};
    TRY(check_words(lfmmi->context, &texts));
    const size_t count = (size_t)batch->batch;
    lfmmi_call c = {.lfmmi = lfmmi,
                    .batch = batch,
                    .outputs = outputs,
                    .factor = factor,
                    .gradient = gradient,
                    .objectives = sh_allocate_zeros(lfmmi->context, count + 1,
                                                    sizeof *c.objectives),
                    .lost = sh_allocate_zeros(lfmmi->context, count + 1, sizeof *c.lost)};
    *result = (shoal_lfmmi_result){0};
    bool good = c.objectives && c.lost;
    if (good)
        sh_team_run(sh_team_of(lfmmi->context), batch->batch, loss_task, &c);
    for (size_t b = 0; b < count && good; b++)
        good = !c.lost[b];
    /* An utterance without a path is skipped; one that is not finite counts with a bad
       objective. */
    for (int64_t b = 0; b < batch->batch && good; b++) {
        const int64_t steps = batch->offsets[b + 1] - batch->offsets[b];
        const bool impossible = isinf(c.objectives[b]), broken = isnan(c.objectives[b]);
        const double loss = impossible ? 0
                            : broken   ? -broken_step * (double)steps
                                       : -c.objectives[b];
        result->sum += loss;
        result->steps += impossible ? 0 : steps;
        result->utterances += !impossible;
        result->impossible += impossible;
        result->broken += broken;
        if (losses)
            losses[b] = loss;
    }
    sh_free(c.objectives);
    sh_free(c.lost);
    return good ? SHOAL_OK : no_memory(lfmmi->context);
}

/* ---- Phones ------------------------------------------------------------------------ */

static void decode_task(void *shared, int64_t task, int thread) {
    const lfmmi_call *c = shared;
    const shoal_lfmmi *lfmmi = c->lfmmi;
    const int64_t first = c->batch->offsets[task];
    const int64_t steps = c->batch->offsets[task + 1] - first;
    int32_t *phones = c->phones + first, *begins = c->begins + first;
    const int64_t found = sh_den_decode(&lfmmi->den, c->outputs + first * lfmmi->outputs,
                                        steps, lfmmi->outputs, &c->lfmmi->scratch[thread],
                                        phones, begins);
    int64_t kept = 0;
    for (int64_t i = 0; i < found; i++)
        if (phones[i] != lfmmi->lm.phones - 1) {
            begins[kept] = begins[i];
            phones[kept++] = phones[i];
        }
    c->counts[task] = found < 0 ? -1 : kept;
}

shoal_status shoal_lfmmi_decode(shoal_lfmmi *lfmmi, int64_t count, const int64_t *offsets,
                                const float *outputs, int32_t *phones, int32_t *begins,
                                int64_t *counts) {
    if (!lfmmi || !phones || !begins || !counts)
        return sh_fail(lfmmi ? lfmmi->context : NULL, SHOAL_INVALID,
                       "lfmmi, phones, begins or counts is NULL");
    TRY(check_rows(lfmmi, count, offsets, outputs));
    const shoal_lfmmi_batch batch = {.size = sizeof(shoal_lfmmi_batch),
                                     .batch = count,
                                     .offsets = offsets};
    lfmmi_call c = {.lfmmi = lfmmi,
                    .batch = &batch,
                    .outputs = outputs,
                    .phones = phones,
                    .begins = begins,
                    .counts = counts};
    sh_team_run(sh_team_of(lfmmi->context), count, decode_task, &c);
    for (int64_t b = 0; b < count; b++)
        if (counts[b] < 0)
            return no_memory(lfmmi->context);
    return SHOAL_OK;
}
