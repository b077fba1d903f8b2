/* Logits of a batch of speech: the loss, its gradient, and the errors of what they spell.
 */
#ifndef SHOAL_CLI_SPEECH_SCORE_H
#define SHOAL_CLI_SPEECH_SCORE_H

#include "speech_data.h"

/* What LF-MMI needs of a batch: the rows that have an output, one after another. */
typedef struct {
    int64_t *offsets;   /* [utterances + 1] of steps */
    int64_t *sequences; /* [sequences + 1] of steps */
    int64_t *counts;    /* [sequences]: phones that were heard */
    int64_t *rows;      /* [steps] */
    float *outputs;     /* [steps][classes] */
    int32_t *phones, *begins, *wanted;
    size_t offset_room, sequence_room, count_room, row_room, output_room; /* bytes */
    size_t phone_room, begin_room, wanted_room;
} speech_steps;

/* Memory that grows to the largest batch so far. */
typedef struct {
    shoal_context *context;
    /* Of LF-MMI: */
    shoal_lfmmi *lfmmi;           /* NULL: CTC */
    const shoal_lexicon *lexicon; /* labels are its words; NULL: labels are 1 + phone */
    int64_t every;
    speech_steps steps;
    /* Of CTC: */
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
    int64_t labels; /* that it is of; of LF-MMI, steps */
    double divisor; /* what it was divided by for the gradient, of one batch */
    int64_t impossible, broken;
    shoal_edits edits;
} speech_result;

/* gradient: of the loss per label (or step) of the batch; it may be the logits, or NULL:
   no gradient. each: [sequences], their edits alone; may be NULL. */
shoal_status speech_score(speech_scorer *scorer, const speech_batch *batch,
                          int64_t classes, const float *logits, float *gradient,
                          speech_result *result, shoal_edits *each);

#endif
