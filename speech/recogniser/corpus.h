/* Internals of a data folder: its lists (corpus.c) and the file of its features
   (corpus_cache.c). */
#ifndef SHOAL_SPEECH_RECOGNISER_CORPUS_H
#define SHOAL_SPEECH_RECOGNISER_CORPUS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "models/files/files.h"
#include "speech/audio/fbank.h"

enum { CORPUS_REASON = 400 };

typedef struct {
    const char *id;
    char *path;
    int64_t first, count; /* range of its utterances in corpus_lists.order */
} corpus_recording;

typedef struct {
    const char *id, *speaker;
    int64_t recording;
    double begin, end; /* seconds; end -1 for the end of the recording */
    char *reason;      /* why it cannot be used; NULL if it can */
    int64_t speaker_index, label_count, first_label;
    int64_t first_frame, frames;
} corpus_utterance;

struct shoal_corpus {
    shoal_context *context;
    shoal_corpus_options options;
    shoal_corpus_info info;
    atomic_bool lost; /* a reason was lost: out of memory */
    bool rate_found;  /* info.rate is that of most recordings, and all must have it */
    char *texts[4];   /* storage of the lists' strings */
    corpus_recording *recordings;
    int64_t recording_count;
    corpus_utterance *utterances; /* info.utterances of them at the end */
    int64_t utterance_count;
    int32_t *order; /* [utterance_count], sorted by recording */
    char **units;   /* [info.units] */
    int32_t *labels;
    int64_t label_count;
    file_map map;
    const float *features; /* [frames][bands], in the map */
    float *means, *scales; /* [groups][bands], per speaker or utterance */
};

/* Records why an utterance cannot be used; the first reason is kept. */
void sh_corpus_refuse(shoal_corpus *corpus, corpus_utterance *utterance,
                      const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Sample rate of the features: that of the options, or 8000 if most recordings have
   less than 16000. */
shoal_status sh_corpus_find_rate(shoal_corpus *corpus);

/* Maps the features, after computing them if necessary; utterances get their frames or
   a reason. */
shoal_status sh_corpus_features(shoal_corpus *corpus);

/* ---- Subwords (subwords.c) --------------------------------------------------------- */

enum {
    SUBWORDS_MOST = 64
}; /* maximum bytes of a word including "_", and maximum
                                number of its units */

typedef struct {
    char *text;
    int64_t count;
} counted_word;

typedef struct {
    shoal_context *context;
    counted_word *words;
    int64_t count, room, joined; /* joined: number of distinct words at the front */
    char **units;                /* [unit_count], in the order of learning */
    int64_t unit_count, unit_room;
} subwords;

/* Adds words one by one; then learns up to that many units, including all letters.
   Returns false if out of memory. */
bool sh_subwords_add(subwords *s, const char *word);
bool sh_subwords_learn(subwords *s, int64_t most);
void sh_subwords_free(subwords *s);
/* Spells a word with the fewest units, which are sorted by strcmp; returns their
   number, or 0 if it is impossible. */
int sh_subwords_spell(char *const *units, int64_t count, const char *word,
                      int32_t numbers[SUBWORDS_MOST]);

#endif
