/* What a model makes of texts: losses with their gradients, and the scores of a dev part.
 */
#ifndef SHOAL_CLI_TEXT_SCORE_H
#define SHOAL_CLI_TEXT_SCORE_H

#include "text_data.h"

/* Where a checkpoint keeps the paths of its data. */
#define TEXT_PATHS_NOTE "text.paths"

typedef struct {
    double
        mean; /* over the sequences: cross-entropy; the square of a number's error; of a
                    span the mean of its two cross-entropies */
    int64_t correct,
        counted; /* sequences; of numbers those that round to the wanted one */
} text_loss;

/* logits: [sequences][classes], or [rows][2] of spans. gradient: of the mean, in the same
   shape; it may be the logits, or NULL. */
shoal_status text_score(shoal_context *context, const glue_task *glue,
                        const text_set *set, const text_batch *batch, const float *logits,
                        float *gradient, text_loss *loss);

/* A dev part: of GLUE, or of SQuAD where glue is NULL. */
typedef struct {
    const glue_task *glue;
    text_set set;
    squad_set squad;
    int64_t max_answer;
    text_batch batch;
    float *predicted;      /* [sequences] of the last run; glue */
    squad_answer *answers; /* [questions], likewise; squad */
} text_dev;

void text_dev_free(text_dev *dev);
const text_set *text_dev_set(const text_dev *dev);
text_metric text_dev_first(const text_dev *dev);
text_metric text_dev_second(const text_dev *dev); /* METRIC_NONE: there is one alone */

typedef struct {
    double loss;          /* mean over the sequences; of SQuAD 0 */
    double first, second; /* the metrics */
    int64_t correct, counted;
    double seconds; /* in the model */
} text_result;

/* All of it in batches of `batch`. label: at the beginning of the progress line; "": none
   is shown. */
shoal_status text_dev_run(text_dev *dev, shoal_context *context, shoal_model *model,
                          int64_t batch, const char *label, text_result *result);

#endif
