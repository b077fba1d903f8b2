/* A trained recogniser: its file, the training's configuration and units. */
#ifndef SHOAL_CLI_SPEECH_MODEL_H
#define SHOAL_CLI_SPEECH_MODEL_H

#include <shoal_speech.h>

#include "train.h"

typedef struct {
    shoal_recogniser *recogniser;
    shoal_recogniser_info info;
    const char *path;
    train_config config;
    int64_t step;
    const char **units; /* [unit_count]; of CTC class 0 is the blank, class i is units[i -
                           1]; of LF-MMI they are the phones, the silence the last */
    int64_t unit_count;
    shoal_model *model;
} speech_model;

/* An exit code, after a complaint. */
int speech_model_open(const char *command, shoal_context *context, const char *path,
                      speech_model *made);
void speech_model_close(speech_model *made);

/* Outputs of a position. */
int64_t speech_model_classes(const speech_model *made);
/* Of LF-MMI: the run's graphs; lexicon may be NULL. */
int speech_model_graphs(const char *command, shoal_context *context,
                        const speech_model *made, const shoal_lexicon *lexicon,
                        shoal_lfmmi **lfmmi);

#endif
