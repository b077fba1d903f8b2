/* shoal eval for recognisers. */
#ifndef SHOAL_CLI_SPEECH_EVAL_H
#define SHOAL_CLI_SPEECH_EVAL_H

#include "controls.h"
#include "speech_words.h"
#include "train.h"

typedef struct {
    const char *path; /* a run or a file */
    const char *data; /* a data folder */
    const char *cache;
    const char *labels; /* the file of transcripts; NULL: as in the training */
    bool skip_bad, controls, json;
    int64_t beams; /* 0: greedy */
    words_options words;
    const char *tune; /* the data folder that the weights of words are tuned on; or NULL
                       */
    double join;      /* seconds; negative: as in the training */
    int kinds;        /* 0: the one that was trained */
    char (*names)[EVAL_NAME];
    json_t **object; /* where the JSON object goes in place of being printed; or NULL */
} speech_eval_job;

/* An exit code; prints the table or the JSON object, or hands the latter over. */
int speech_eval(const speech_eval_job *job, shoal_context *context);

#endif
