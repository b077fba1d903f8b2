/* The inside of a data folder: its lists (corpus.c) and the file of its features
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
    int64_t first, count; /* its utterances, in corpus_lists.order */
} corpus_recording;

typedef struct {
    const char *id, *speaker;
    int64_t recording;
    double begin, end; /* seconds; end -1: to the end of the recording */
    char *reason;      /* why it cannot be used; NULL: it can */
    int64_t speaker_index, label_count, first_label;
    int64_t first_frame, frames;
} corpus_utterance;

struct shoal_corpus {
    shoal_context *context;
    shoal_corpus_options options;
    shoal_corpus_info info;
    bool rate_found;  /* info.rate is that of most recordings: all must have it */
    atomic_bool lost; /* there was no memory for a reason */
    char *texts[4];   /* what the lists' strings lie in */
    corpus_recording *recordings;
    int64_t recording_count;
    corpus_utterance *utterances; /* info.utterances of them in the end */
    int64_t utterance_count;
    int32_t *order; /* [utterance_count], by recording */
    char **units;   /* [info.units] */
    int32_t *labels;
    int64_t label_count;
    file_map map;
    const float *features; /* [frames][bands], in the map */
    float *means, *scales; /* [groups][bands], of speakers or utterances */
};

/* Notes why an utterance cannot be used; the first reason stays. */
void sh_corpus_refuse(shoal_corpus *corpus, corpus_utterance *utterance,
                      const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Samples per second of the features: as the options say, or 8000 where most recordings
   have less than 16000. */
shoal_status sh_corpus_find_rate(shoal_corpus *corpus);

/* Maps the features, after making them where there are none; utterances get their frames
   or a reason. */
shoal_status sh_corpus_features(shoal_corpus *corpus);

/* ---- Subwords (subwords.c) --------------------------------------------------------- */

enum { SUBWORDS_MOST = 64 }; /* bytes of a word that begins with "_", and its units */

typedef struct {
    char *text;
    int64_t count;
} counted_word;

typedef struct {
    shoal_context *context;
    counted_word *words;
    int64_t count, room, joined; /* joined: of these no two are equal */
    char **units; /* [unit_count], in the order in which they were learned */
    int64_t unit_count, unit_room;
} subwords;

/* Words, one by one; then at most so many units, letters included (all of which are
   there). False: out of memory. */
bool sh_subwords_add(subwords *s, const char *word);
bool sh_subwords_learn(subwords *s, int64_t most);
void sh_subwords_free(subwords *s);
/* The fewest units, in the order of strcmp, that spell a word; returns how many, 0: they
   cannot. */
int sh_subwords_spell(char *const *units, int64_t count, const char *word,
                      int32_t numbers[SUBWORDS_MOST]);

#endif
