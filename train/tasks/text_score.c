/* What a model makes of texts: losses with their gradients, and the scores of a dev part.
 */
#include <math.h>
#include <stdlib.h>

#include "base/context.h"
#include "train/tasks/text.h"

/* ---- Losses ------------------------------------------------------------------------ */

static shoal_status score_classes(shoal_context *context, int64_t classes,
                                  const text_set *set, const text_batch *batch,
                                  const float *logits, float *gradient, text_loss *loss) {
    int32_t *targets = calloc((size_t)batch->count, sizeof *targets);
    shoal_loss found = {0};
    if (!targets)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    for (int64_t i = 0; i < batch->count; i++)
        targets[i] = (int32_t)set->labels[batch->at[i]];
    const shoal_status status = shoal_cross_entropy(context, batch->count, classes,
                                                    logits, targets, gradient, &found);
    *loss = (text_loss){found.mean, found.correct, found.counted};
    free(targets);
    return status;
}

static void score_numbers(const text_set *set, const text_batch *batch,
                          const float *logits, float *gradient, text_loss *loss) {
    const double count = (double)batch->count;
    *loss = (text_loss){.counted = batch->count};
    for (int64_t i = 0; i < batch->count; i++) {
        const float wanted = set->labels[batch->at[i]];
        const double error = (double)logits[i] - (double)wanted;
        loss->correct += lround((double)logits[i]) == lround((double)wanted);
        loss->mean += error * error / count;
        if (gradient)
            gradient[i] = (float)(2 * error / count);
    }
}

/* Each of the two columns of a window's rows [rows][2] is a choice of one row. */
static shoal_status score_spans(shoal_context *context, const text_set *set,
                                const text_batch *batch, const float *logits,
                                float *gradient, text_loss *loss) {
    const float factor = 0.5f / (float)batch->count;
    float *column = calloc((size_t)sh_text_set_longest(set) + 1, sizeof *column);
    shoal_status status = column ? SHOAL_OK
                                 : sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    int64_t both = 0; /* of a window's two that are right */
    *loss = (text_loss){.counted = batch->count};
    for (int64_t i = 0; i < 2 * batch->count && status == SHOAL_OK; i++) {
        const int64_t first = batch->offsets[i / 2],
                      rows = batch->offsets[i / 2 + 1] - first, at = 2 * first + i % 2;
        shoal_loss one;
        for (int64_t r = 0; r < rows; r++)
            column[r] = logits[at + 2 * r];
        status = shoal_cross_entropy(context, 1, rows, column,
                                     &set->wanted[batch->at[i / 2]][i % 2],
                                     gradient ? column : NULL, &one);
        for (int64_t r = 0; gradient && r < rows; r++)
            gradient[at + 2 * r] = factor * column[r];
        both = i % 2 ? both + one.correct : one.correct;
        loss->mean += one.mean * (double)factor;
        loss->correct += i % 2 && both == 2;
    }
    free(column);
    return status;
}

shoal_status sh_text_loss(shoal_context *context, const glue_task *glue,
                          const text_set *set, const text_batch *batch,
                          const float *logits, float *gradient, text_loss *loss) {
    if (!glue)
        return score_spans(context, set, batch, logits, gradient, loss);
    if (glue->classes > 1)
        return score_classes(context, glue->classes, set, batch, logits, gradient, loss);
    score_numbers(set, batch, logits, gradient, loss);
    return SHOAL_OK;
}

/* ---- A dev part -------------------------------------------------------------------- */

void sh_text_dev_free(text_dev *dev) {
    sh_text_set_free(&dev->set);
    sh_squad_free(&dev->squad);
    free(dev->predicted);
    free(dev->answers);
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

shoal_status sh_text_dev_begin(text_dev *dev, shoal_context *context,
                               text_result *result) {
    *result = (text_result){0};
    if (dev->glue && !dev->predicted)
        dev->predicted = calloc((size_t)dev->set.count, sizeof *dev->predicted);
    if (!dev->glue && !dev->answers)
        dev->answers = calloc((size_t)dev->squad.count, sizeof *dev->answers);
    if (dev->glue ? !dev->predicted : !dev->answers)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    for (int64_t i = 0; dev->answers && i < dev->squad.count; i++)
        dev->answers[i] = (squad_answer){.score = -INFINITY};
    return SHOAL_OK;
}

shoal_status sh_text_dev_take(text_dev *dev, shoal_context *context,
                              const text_batch *batch, const float *logits,
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
        int best = 0; /* the class of the largest logit, the first of equals */
        for (int c = 1; c < classes; c++)
            best = own[c] > own[best] ? c : best;
        dev->predicted[batch->at[i]] = classes == 1 ? own[0] : (float)best;
    }
    const shoal_status status =
        sh_text_loss(context, dev->glue, &dev->set, batch, logits, NULL, &loss);
    result->loss += loss.mean * (double)batch->count / (double)dev->set.count;
    result->correct += loss.correct;
    result->counted += loss.counted;
    return status;
}

shoal_status sh_text_dev_end(const text_dev *dev, shoal_context *context,
                             text_result *result) {
    const text_set *set = &dev->set;
    if (dev->glue) {
        result->first =
            sh_text_metric(dev->glue->first, set->count, dev->predicted, set->labels);
        result->second =
            sh_text_metric(dev->glue->second, set->count, dev->predicted, set->labels);
        if (!isnan(result->first))
            return SHOAL_OK;
    } else if (sh_squad_scores(&dev->squad, dev->answers, &result->second,
                               &result->first)) {
        result->loss = NAN; /* answers are compared, not spans */
        result->counted = dev->squad.count;
        result->correct = llround(result->second * (double)dev->squad.count);
        return SHOAL_OK;
    }
    return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
}
