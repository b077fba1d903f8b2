/* The phone language model of lattice-free MMI: an n-gram automaton without smoothing
   and back-off, estimated from expected counts over optional silences and
   pronunciations. A state is a history; unseen n-grams have no arc. */
#ifndef SHOAL_SPEECH_RECOGNISER_PHONE_LM_H
#define SHOAL_SPEECH_RECOGNISER_PHONE_LM_H

#include <stdbool.h>

#include "base/context.h"
#include "base/memory.h"
#include "shoal_speech.h"

enum { PHONE_LM_LEAST_ORDER = 2, PHONE_LM_MOST_ORDER = 5, PHONE_LM_PHONES = 4000 };

typedef struct {
    int32_t phones; /* number of phones; the last is the silence */
    int32_t order;
    int32_t states, arcs;
    int32_t *last;  /* [states]: last phone of the history; -1 for state 0, the start */
    int32_t *first; /* [states + 1]: first arc */
    int32_t *phone; /* [arcs], increasing within a state */
    int32_t *next;  /* [arcs] */
    double *weight; /* [arcs]: probability */
    double *end;    /* [states]: probability of ending; all sum to 1 */
    void *block;    /* storage of the arrays */
} phone_lm;

/* Transcripts as words, and the lexicon with their phones. */
typedef struct {
    const shoal_lexicon *lexicon;
    int64_t count;          /* number of utterances */
    const int64_t *offsets; /* [count + 1] */
    const int32_t *words;   /* [offsets[count]], indices in the lexicon */
} phone_texts;

/* Estimates a model from texts with valid offsets and words. order 2 to 5; extra:
   number of histories of order - 1 phones to keep besides all shorter ones, -1 for
   all. */
shoal_status sh_phone_lm_make(shoal_context *context, const phone_texts *texts,
                              int32_t order, int64_t extra, phone_lm *lm);
/* As sh_allocate_parts, zeroed. */
void *sh_allocate_zeroed_parts(shoal_context *context, place_function *place,
                               void *argument);
/* Allocates the arrays for its numbers of states and arcs; false if out of memory. */
bool sh_phone_lm_allocate(shoal_context *context, phone_lm *lm);
void sh_phone_lm_free(phone_lm *lm); /* zeroed models are allowed */

/* The arc of a state for a phone, or -1. */
int32_t sh_phone_lm_arc(const phone_lm *lm, int32_t state, int32_t phone);

/* A digest of everything that the model depends on. */
uint64_t sh_phone_lm_key(const phone_texts *texts, int32_t order, int64_t extra);
/* Writes a file atomically. Reading rejects damaged files and, unless key is 0, another
   key. */
shoal_status sh_phone_lm_write(shoal_context *context, const phone_lm *lm, uint64_t key,
                               const char *path);
shoal_status sh_phone_lm_read(shoal_context *context, const char *path, uint64_t key,
                              phone_lm *lm);
/* The same for the bytes of a file, and the checksum of such bytes, stored at
   SUM_PLACE. */
enum { PHONE_LM_SUM_PLACE = 16 };
shoal_status sh_phone_lm_parse(shoal_context *context, const char *name,
                               const void *bytes, size_t size, uint64_t key,
                               phone_lm *lm);
uint64_t sh_phone_lm_sum(const void *bytes, size_t size);

#endif
