/* shoal repro speech: a recogniser for every kind of attention. */
#ifndef SHOAL_LAB_REPRO_SPEECH_H
#define SHOAL_LAB_REPRO_SPEECH_H

#include "train.h"

enum { SPEECH_KINDS = 32, SPEECH_NAME = 128 };

typedef struct {
    const char *data, *folder, *cache;
    bool skip_bad, show, json, markdown;
    double save_seconds;
    int kind_count;
    char (*kinds)[SPEECH_NAME]; /* in their shortest spelling */
    const train_settings *settings;
    shoal_context *context;
} repro_speech_job;

#define SPEECH_DEFAULT_KINDS                                                             \
    "full,shared-full,clustered-100,i-clustered-100,shoal-100,lsh-1,lsh-4"

int repro_speech(const repro_speech_job *job);

#endif
