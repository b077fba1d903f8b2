#include "text_score.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common.h"

/* ---- Losses ------------------------------------------------------------------------ */

static shoal_status score_classes(shoal_context *context, int64_t classes,
                                  const text_set *set, const text_batch *batch,
                                  const float *logits, float *gradient, text_loss *loss) {
    int32_t *targets = calloc((size_t)batch->count, sizeof *targets);
    shoal_loss found = {0};
    if (!targets)
        return SHOAL_NO_MEMORY;
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

/* One of the two columns of a window's rows [rows][2], of which `wanted` is the row. */
static shoal_status score_column(shoal_context *context, int64_t rows, int32_t wanted,
                                 const float *logits, float factor, float *gradient,
                                 float *column, shoal_loss *loss) {
    for (int64_t r = 0; r < rows; r++)
        column[r] = logits[2 * r];
    const shoal_status status = shoal_cross_entropy(context, 1, rows, column, &wanted,
                                                    gradient ? column : NULL, loss);
    for (int64_t r = 0; gradient && r < rows; r++)
        gradient[2 * r] = factor * column[r];
    return status;
}

static shoal_status score_spans(shoal_context *context, const text_set *set,
                                const text_batch *batch, const float *logits,
                                float *gradient, text_loss *loss) {
    const float factor = 0.5f / (float)batch->count;
    float *column = calloc((size_t)text_set_longest(set) + 1, sizeof *column);
    shoal_status status = column ? SHOAL_OK : SHOAL_NO_MEMORY;
    *loss = (text_loss){.counted = batch->count};
    for (int64_t i = 0; i < batch->count && status == SHOAL_OK; i++) {
        const int64_t first = batch->offsets[i], rows = batch->offsets[i + 1] - first;
        int64_t right = 0;
        for (int which = 0; which < 2 && status == SHOAL_OK; which++) {
            shoal_loss one;
            const int64_t at = 2 * first + which;
            status = score_column(context, rows, set->wanted[batch->at[i]][which],
                                  logits + at, factor, gradient ? gradient + at : NULL,
                                  column, &one);
            right += one.correct;
            loss->mean += one.mean * (double)factor;
        }
        loss->correct += right == 2;
    }
    free(column);
    return status;
}

shoal_status text_score(shoal_context *context, const glue_task *glue,
                        const text_set *set, const text_batch *batch, const float *logits,
                        float *gradient, text_loss *loss) {
    if (!glue)
        return score_spans(context, set, batch, logits, gradient, loss);
    if (glue->classes > 1)
        return score_classes(context, glue->classes, set, batch, logits, gradient, loss);
    score_numbers(set, batch, logits, gradient, loss);
    return SHOAL_OK;
}

/* ---- A dev part -------------------------------------------------------------------- */

void text_dev_free(text_dev *dev) {
    text_set_free(&dev->set);
    squad_free(&dev->squad);
    text_batch_free(&dev->batch);
    free(dev->predicted);
    free(dev->answers);
    dev->predicted = NULL;
    dev->answers = NULL;
}

const text_set *text_dev_set(const text_dev *dev) {
    return dev->glue ? &dev->set : &dev->squad.windows;
}

text_metric text_dev_first(const text_dev *dev) {
    return dev->glue ? dev->glue->first : METRIC_F1;
}

text_metric text_dev_second(const text_dev *dev) {
    return dev->glue ? dev->glue->second : METRIC_EXACT;
}

/* The class of the largest logit (the first of equals), or the number. */
static float prediction(int classes, const float *logits) {
    int best = 0;
    for (int i = 1; i < classes; i++)
        if (logits[i] > logits[best])
            best = i;
    return classes == 1 ? logits[0] : (float)best;
}

static shoal_status take_batch(text_dev *dev, shoal_context *context, const float *logits,
                               text_result *result) {
    const text_batch *batch = &dev->batch;
    text_loss loss = {0};
    if (!dev->glue) {
        for (int64_t i = 0; i < batch->count; i++)
            squad_look(&dev->squad.windows, batch->at[i], logits + 2 * batch->offsets[i],
                       dev->max_answer,
                       &dev->answers[dev->squad.windows.questions[batch->at[i]]]);
        return SHOAL_OK;
    }
    const int classes = dev->glue->classes;
    for (int64_t i = 0; i < batch->count; i++)
        dev->predicted[batch->at[i]] = prediction(classes, logits + i * classes);
    const shoal_status status =
        text_score(context, dev->glue, &dev->set, batch, logits, NULL, &loss);
    result->loss += loss.mean * (double)batch->count / (double)dev->set.count;
    result->correct += loss.correct;
    result->counted += loss.counted;
    return status;
}

static bool make_room(text_dev *dev) {
    if (dev->glue && !dev->predicted)
        dev->predicted = calloc((size_t)dev->set.count, sizeof *dev->predicted);
    if (!dev->glue && !dev->answers)
        dev->answers = calloc((size_t)dev->squad.count, sizeof *dev->answers);
    for (int64_t i = 0; dev->answers && i < dev->squad.count; i++)
        dev->answers[i] = (squad_answer){.score = -INFINITY};
    return dev->glue ? dev->predicted != NULL : dev->answers != NULL;
}

static bool finish(const text_dev *dev, text_result *result) {
    if (dev->glue) {
        const text_set *set = &dev->set;
        result->first =
            text_metric_of(dev->glue->first, set->count, dev->predicted, set->labels);
        result->second =
            text_metric_of(dev->glue->second, set->count, dev->predicted, set->labels);
        return !isnan(result->first);
    }
    squad_score score;
    if (!squad_scores(&dev->squad, dev->answers, &score))
        return false;
    result->loss = NAN; /* answers are compared, not spans */
    result->first = score.f1;
    result->second = score.exact;
    result->counted = dev->squad.count;
    result->correct = llround(score.exact * (double)dev->squad.count);
    return true;
}

shoal_status text_dev_run(text_dev *dev, shoal_context *context, shoal_model *model,
                          int64_t batch, const char *label, text_result *result) {
    const text_set *set = text_dev_set(dev);
    shoal_status status = make_room(dev) ? SHOAL_OK : SHOAL_NO_MEMORY;
    *result = (text_result){0};
    for (int64_t i = 0; i < set->count && status == SHOAL_OK; i += batch) {
        float *out;
        if (!text_batch_fill(set, NULL, i, batch, &dev->batch))
            return SHOAL_NO_MEMORY;
        const shoal_model_inputs inputs = text_batch_inputs(&dev->batch);
        const double begun = seconds_now();
        status = shoal_model_forward(model, &inputs, &out);
        result->seconds += seconds_now() - begun;
        if (status == SHOAL_OK)
            status = take_batch(dev, context, out, result);
        if (*label)
            progress_say("%s, %" PRId64 " of %" PRId64, label, i, set->count);
    }
    if (status == SHOAL_OK && !finish(dev, result))
        status = SHOAL_NO_MEMORY;
    return status;
}
