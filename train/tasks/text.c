/* Token sequences and their batches; losses with gradients, and metrics of a dev
   set. */
#include "train/tasks/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* ---- Sets ------------------------------------------------------------------------- */

void sh_text_set_free(text_set *set) {
    sh_pool_free(&set->memory);
    *set = (text_set){0};
}

#define RESIZE(of, array, kept, wanted)                                                  \
    TRY(sh_pool_resize(&(of)->memory, &(of)->array, kept, wanted, sizeof *(of)->array))

shoal_status sh_text_set_add(shoal_context *context, text_set *set, int64_t count,
                             const int32_t *ids, const int32_t *types,
                             const int32_t (*bytes)[2], float label,
                             const int32_t wanted[2], int64_t question) {
    set->memory.context = context;
    if (set->count + 1 > set->room) {
        const int64_t room = 2 * set->room + 64;
        RESIZE(set, offsets, set->room ? set->count + 1 : 0, room + 1);
        RESIZE(set, labels, set->count, room);
        RESIZE(set, wanted, set->count, room);
        RESIZE(set, questions, set->count, room);
        set->room = room;
    }
    if (set->token_count + count > set->token_room) {
        const int64_t room = 2 * (set->token_room + count) + 1024;
        RESIZE(set, ids, set->token_count, room);
        RESIZE(set, types, set->token_count, room);
        RESIZE(set, bytes, set->token_count, room);
        set->token_room = room;
    }
    const int64_t at = set->token_count;
    memcpy(set->ids + at, ids, sizeof *ids * (size_t)count);
    memcpy(set->types + at, types, sizeof *types * (size_t)count);
    if (bytes)
        memcpy(set->bytes + at, bytes, sizeof *bytes * (size_t)count);
    else
        memset(set->bytes + at, 0xff, sizeof *bytes * (size_t)count);
    set->labels[set->count] = label;
    set->wanted[set->count][0] = wanted ? wanted[0] : 0;
    set->wanted[set->count][1] = wanted ? wanted[1] : 0;
    set->questions[set->count] = question;
    set->token_count += count;
    set->offsets[++set->count] = set->token_count;
    return SHOAL_OK;
}

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

uint64_t sh_text_set_fingerprint(const text_set *set) {
    uint64_t hash = UINT64_C(14695981039346656037);
    const size_t count = (size_t)set->count;
    hash = hash_bytes(hash, set->offsets, count * sizeof *set->offsets);
    hash = hash_bytes(hash, set->ids, (size_t)set->token_count * sizeof *set->ids);
    hash = hash_bytes(hash, set->types, (size_t)set->token_count * sizeof *set->types);
    hash = hash_bytes(hash, set->labels, count * sizeof *set->labels);
    return hash_bytes(hash, set->wanted, count * sizeof *set->wanted);
}

static int64_t longest_of(const text_set *set) {
    int64_t longest = 0;
    for (int64_t i = 0; i < set->count; i++)
        if (set->offsets[i + 1] - set->offsets[i] > longest)
            longest = set->offsets[i + 1] - set->offsets[i];
    return longest;
}

static int compare_lengths(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (y > x) - (y < x); /* longest first */
}

int64_t sh_text_set_most_rows(const text_set *set, int64_t batch) {
    int64_t *lengths =
        sh_allocate(set->memory.context, ((size_t)set->count + 1) * sizeof *lengths);
    int64_t rows = 0;
    if (!lengths) /* over-allocate */
        return batch * longest_of(set);
    for (int64_t i = 0; i < set->count; i++)
        lengths[i] = set->offsets[i + 1] - set->offsets[i];
    qsort(lengths, (size_t)set->count, sizeof *lengths, compare_lengths);
    for (int64_t i = 0; i < batch && i < set->count; i++)
        rows += lengths[i];
    sh_release(set->memory.context, lengths);
    return rows;
}

/* ---- Batches ---------------------------------------------------------------------- */

shoal_status sh_text_batch_fill(const text_set *set, const int64_t *order, int64_t first,
                                int64_t count, text_batch *batch) {
    int64_t rows = 0;
    batch->memory.context = set->memory.context;
    if (first + count > set->count)
        count = set->count - first;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = order ? order[first + i] : first + i;
        rows += set->offsets[at + 1] - set->offsets[at];
    }
    if (count > batch->room) {
        RESIZE(batch, offsets, 0, count + 1);
        RESIZE(batch, at, 0, count);
        batch->room = count;
    }
    if (rows > batch->row_room) {
        RESIZE(batch, ids, 0, rows);
        RESIZE(batch, types, 0, rows);
        batch->row_room = rows;
    }
    batch->count = count;
    batch->offsets[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = order ? order[first + i] : first + i;
        const int64_t begin = set->offsets[at], length = set->offsets[at + 1] - begin;
        batch->at[i] = at;
        memcpy(batch->ids + batch->offsets[i], set->ids + begin,
               sizeof *set->ids * (size_t)length);
        memcpy(batch->types + batch->offsets[i], set->types + begin,
               sizeof *set->types * (size_t)length);
        batch->offsets[i + 1] = batch->offsets[i] + length;
    }
    return SHOAL_OK;
}

void sh_text_batch_free(text_batch *batch) {
    sh_pool_free(&batch->memory);
    *batch = (text_batch){0};
}

shoal_model_inputs sh_text_batch_inputs(const text_batch *batch) {
    return (shoal_model_inputs){.size = sizeof(shoal_model_inputs),
                                .batch = batch->count,
                                .offsets = batch->offsets,
                                .tokens = batch->ids,
                                .types = batch->types};
}

/* ---- Losses ------------------------------------------------------------------------ */

static shoal_status score_classes(const text_set *set, int64_t classes,
                                  const text_batch *batch, const float *logits,
                                  float *gradient, text_loss *loss) {
    pool memory = {.context = set->memory.context};
    int32_t *targets = sh_pool_take(&memory, batch->count, sizeof *targets);
    shoal_loss found = {0};
    if (!targets)
        return SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < batch->count; i++)
        targets[i] = (int32_t)set->labels[batch->at[i]];
    const shoal_status status = shoal_cross_entropy(memory.context, batch->count, classes,
                                                    logits, targets, gradient, &found);
    *loss = (text_loss){found.mean, found.correct, found.counted};
    sh_pool_free(&memory);
    return status;
}

/* Each column of a window's rows [rows][2] is a softmax over the rows. */
static shoal_status score_spans(const text_set *set, const text_batch *batch,
                                const float *logits, float *gradient, text_loss *loss) {
    const float factor = 0.5f / (float)batch->count;
    pool memory = {.context = set->memory.context};
    float *column = sh_pool_take(&memory, longest_of(set) + 1, sizeof *column);
    shoal_status status = column ? SHOAL_OK : SHOAL_NO_MEMORY;
    int64_t both = 0; /* windows with both ends correct */
    *loss = (text_loss){.counted = batch->count};
    for (int64_t i = 0; i < 2 * batch->count && status == SHOAL_OK; i++) {
        const int64_t first = batch->offsets[i / 2],
                      rows = batch->offsets[i / 2 + 1] - first, at = 2 * first + i % 2;
        shoal_loss one;
        for (int64_t r = 0; r < rows; r++)
            column[r] = logits[at + 2 * r];
        status = shoal_cross_entropy(memory.context, 1, rows, column,
                                     &set->wanted[batch->at[i / 2]][i % 2],
                                     gradient ? column : NULL, &one);
        for (int64_t r = 0; gradient && r < rows; r++)
            gradient[at + 2 * r] = factor * column[r];
        both = i % 2 ? both + one.correct : one.correct;
        loss->mean += one.mean * (double)factor;
        loss->correct += i % 2 && both == 2;
    }
    sh_pool_free(&memory);
    return status;
}

shoal_status sh_text_loss(const glue_task *glue, const text_set *set,
                          const text_batch *batch, const float *logits, float *gradient,
                          text_loss *loss) {
    if (!glue)
        return score_spans(set, batch, logits, gradient, loss);
    if (glue->classes > 1)
        return score_classes(set, glue->classes, batch, logits, gradient, loss);
    *loss = (text_loss){.counted = batch->count}; /* regression */
    for (int64_t i = 0; i < batch->count; i++) {
        const float wanted = set->labels[batch->at[i]];
        const double error = (double)logits[i] - (double)wanted;
        loss->correct += lround((double)logits[i]) == lround((double)wanted);
        loss->mean += error * error / (double)batch->count;
        if (gradient)
            gradient[i] = (float)(2 * error / (double)batch->count);
    }
    return SHOAL_OK;
}

/* ---- Dev sets --------------------------------------------------------------------- */

void sh_text_dev_free(text_dev *dev) {
    sh_text_set_free(&dev->set);
    sh_squad_free(&dev->squad);
    *dev = (text_dev){0};
}

const text_set *sh_text_dev_set(const text_dev *dev) {
    return dev->glue ? &dev->set : &dev->squad.windows;
}

const char *sh_text_dev_first(const text_dev *dev) {
    return sh_text_metric_names[dev->glue ? dev->glue->first : METRIC_F1];
}

const char *sh_text_dev_second(const text_dev *dev) {
    const text_metric second = dev->glue ? dev->glue->second : METRIC_EXACT;
    return second == METRIC_NONE ? NULL : sh_text_metric_names[second];
}

shoal_status sh_text_dev_begin(text_dev *dev, text_result *result) {
    *result = (text_result){0};
    if (dev->glue && !dev->predicted)
        dev->predicted =
            sh_pool_take(&dev->set.memory, dev->set.count, sizeof *dev->predicted);
    if (!dev->glue && !dev->answers)
        dev->answers = sh_pool_take(&dev->squad.windows.memory, dev->squad.count,
                                    sizeof *dev->answers);
    for (int64_t i = 0; dev->answers && i < dev->squad.count; i++)
        dev->answers[i] = (squad_answer){.score = -INFINITY};
    return (dev->glue ? !dev->predicted : !dev->answers) ? SHOAL_NO_MEMORY : SHOAL_OK;
}

shoal_status sh_text_dev_take(text_dev *dev, const text_batch *batch, const float *logits,
                              text_result *result) {
    text_loss loss = {0};
    if (!dev->glue) {
        const text_set *windows = &dev->squad.windows;
        for (int64_t i = 0; i < batch->count; i++)
            sh_squad_look(windows, batch->at[i], logits + 2 * batch->offsets[i],
                          dev->max_answer,
                          &dev->answers[windows->questions[batch->at[i]]]);
        return SHOAL_OK;
    }
    const int classes = dev->glue->classes;
    for (int64_t i = 0; i < batch->count; i++) {
        const float *own = logits + i * classes;
        int best = 0; /* first of the largest logits */
        for (int c = 1; c < classes; c++)
            best = own[c] > own[best] ? c : best;
        dev->predicted[batch->at[i]] = classes == 1 ? own[0] : (float)best;
    }
    const shoal_status status =
        sh_text_loss(dev->glue, &dev->set, batch, logits, NULL, &loss);
    result->loss += loss.mean * (double)batch->count / (double)dev->set.count;
    result->correct += loss.correct;
    result->counted += loss.counted;
    return status;
}

shoal_status sh_text_dev_end(const text_dev *dev, text_result *result) {
    shoal_context *context = sh_text_dev_set(dev)->memory.context;
    const text_set *set = &dev->set;
    if (dev->glue) {
        result->first = sh_text_metric(context, dev->glue->first, set->count,
                                       dev->predicted, set->labels);
        result->second = sh_text_metric(context, dev->glue->second, set->count,
                                        dev->predicted, set->labels);
        if (!isnan(result->first))
            return SHOAL_OK;
    } else if (sh_squad_scores(context, &dev->squad, dev->answers, &result->second,
                               &result->first)) {
        result->loss = NAN; /* answers are compared, not spans */
        result->counted = dev->squad.count;
        result->correct = llround(result->second * (double)dev->squad.count);
        return SHOAL_OK;
    }
    return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
}
