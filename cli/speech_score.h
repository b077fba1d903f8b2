/* Logits of a batch of speech: the loss, its gradient, and the errors of what they spell.
 */
#ifndef SHOAL_CLI_SPEECH_SCORE_H
#define SHOAL_CLI_SPEECH_SCORE_H

#include "speech_data.h"

/* Memory that grows to the largest batch so far. */
typedef struct {
    shoal_context *context;
    shoal_ctc *ctc;
    int64_t classes, batch, rows, labels; /* that it was made for */
    int32_t *spelled;                     /* [rows] */
    size_t spelled_room;
    int64_t beams; /* 0: the likeliest class of each position; else a search */
} speech_scorer;

void speech_scorer_free(speech_scorer *scorer);

/* Sums over batches. */
typedef struct {
    double loss;
    int64_t labels, impossible;
    shoal_edits edits;
} speech_result;

/* gradient: of the loss per label of the batch; it may be the logits, or NULL: no
   gradient. each: [sequences], their edits alone; may be NULL. */
shoal_status speech_score(speech_scorer *scorer, const speech_batch *batch,
                          int64_t classes, const float *logits, float *gradient,
                          speech_result *result, shoal_edits *each);

#endif
