/* Logits of a batch of speech: the loss, its gradient, and the errors of what they spell.
 */
#include <stdlib.h>

#include "train/tasks/speech.h"

void sh_add_edits(const shoal_edits *edits, shoal_edits *sum) {
    sum->length += edits->length;
    sum->substitutions += edits->substitutions;
    sum->insertions += edits->insertions;
    sum->deletions += edits->deletions;
}

void sh_speech_scorer_free(speech_scorer *scorer) {
    shoal_ctc_destroy(scorer->ctc);
    sh_lfmmi_scorer_free(scorer);
    free(scorer->spelled);
    *scorer = (speech_scorer){0};
}

static int64_t grown(int64_t have, int64_t want) {
    return want <= have ? have : want + want / 4;
}

static shoal_status make_room(speech_scorer *s, const speech_batch *batch,
                              int64_t classes) {
    if (!sh_grow(&s->spelled, &s->spelled_room, (size_t)batch->longest,
                 sizeof *s->spelled))
        return sh_fail(s->context, SHOAL_NO_MEMORY, "out of memory");
    if (s->ctc && classes == s->classes && batch->count <= s->batch &&
        batch->longest <= s->rows && batch->most_labels <= s->labels)
        return SHOAL_OK;
    shoal_ctc_destroy(s->ctc);
    s->ctc = NULL;
    s->classes = classes;
    s->batch = grown(s->batch, batch->count);
    s->rows = grown(s->rows, batch->longest);
    s->labels = grown(s->labels, batch->most_labels);
    return shoal_ctc_create(s->context, classes, s->batch, s->rows, s->labels, &s->ctc);
}

/* The edits of sequence b. */
static shoal_status count_edits(speech_scorer *s, const speech_batch *batch,
                                int64_t classes, const float *logits, int64_t b,
                                shoal_edits *edits) {
    const int64_t first = batch->offsets[b], rows = batch->offsets[b + 1] - first;
    const int64_t label = batch->label_offsets[b];
    int64_t count = 0;
    const float *own = logits + first * classes;
    const shoal_status status =
        s->beams
            ? shoal_ctc_search(s->context, rows, classes, own, s->beams, s->spelled, NULL,
                               &count, NULL)
            : shoal_ctc_greedy(s->context, rows, classes, own, s->spelled, NULL, &count);
    if (status != SHOAL_OK)
        return status;
    return shoal_count_edits(s->context, batch->labels + label,
                             batch->label_offsets[b + 1] - label, s->spelled, count,
                             edits);
}

shoal_status sh_speech_score(speech_scorer *scorer, const speech_batch *batch,
                             int64_t classes, const float *logits, float *gradient,
                             speech_result *result, shoal_edits *each) {
    const shoal_ctc_batch labels = {batch->count, batch->offsets, batch->labels,
                                    batch->label_offsets};
    const int64_t count = batch->label_offsets[batch->count];
    shoal_ctc_result loss;
    if (scorer->lfmmi)
        return sh_lfmmi_score(scorer, batch, classes, logits, gradient, result, each);
    shoal_status status = make_room(scorer, batch, classes);
    for (int64_t b = 0; b < batch->count && status == SHOAL_OK; b++) {
        shoal_edits edits = {0};
        status = count_edits(scorer, batch, classes, logits, b, &edits);
        sh_add_edits(&edits, &result->edits);
        if (each)
            each[b] = edits;
    }
    if (status == SHOAL_OK)
        status = shoal_ctc_loss(scorer->ctc, &labels, logits,
                                count ? 1 / (double)count : 0, gradient, NULL, &loss);
    if (status != SHOAL_OK)
        return status;
    result->divisor = (double)count;
    result->loss += loss.sum;
    result->labels += loss.labels;
    result->impossible += loss.impossible;
    return SHOAL_OK;
}
