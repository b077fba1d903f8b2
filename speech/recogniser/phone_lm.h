/* The phone language model of lattice-free MMI: an n-gram automaton without smoothing and
   without back-off, from expected counts over optional silences and pronunciations. A
   state is a history; unseen n-grams have no arc. */
#ifndef SHOAL_SPEECH_RECOGNISER_PHONE_LM_H
#define SHOAL_SPEECH_RECOGNISER_PHONE_LM_H

#include <stdbool.h>

#include "base/context.h"
#include "base/memory.h"
#include "shoal_speech.h"

enum { PHONE_LM_LEAST_ORDER = 2, PHONE_LM_MOST_ORDER = 5, PHONE_LM_PHONES = 4000 };

typedef struct {
    int32_t phones; /* how many there are; the last is the silence */
    int32_t order;
    int32_t states, arcs;
    int32_t *last;  /* [states]: its history's last phone; -1: state 0, the start */
    int32_t *first; /* [states + 1]: of its arcs */
    int32_t *phone; /* [arcs], rising within a state */
    int32_t *next;  /* [arcs] */
    double *weight; /* [arcs]: probability, */
    double *end;    /* [states]: and that of ending there: 1 together */
    void *block;    /* what these lie in */
} phone_lm;

/* Where the words of transcripts get their phones. */
typedef struct {
    const shoal_lexicon *lexicon;
    int64_t count;          /* of utterances */
    const int64_t *offsets; /* [count + 1] */
    const int32_t *words;   /* [offsets[count]], of the lexicon */
} phone_texts;

/* Of texts whose offsets rise and whose words the lexicon has. order 2 to 5; extra: how
   many histories of order - 1 phones are kept beside all the shorter ones, -1: all. */
shoal_status sh_phone_lm_make(shoal_context *context, const phone_texts *texts,
                              int32_t order, int64_t extra, phone_lm *lm);
/* As sh_allocate_parts, and zeroed. */
void *sh_allocate_zeroed_parts(shoal_context *context, place_function *place,
                               void *argument);
/* The arrays for the numbers of states and arcs that it has; false: no memory. */
bool sh_phone_lm_allocate(shoal_context *context, phone_lm *lm);
void sh_phone_lm_free(phone_lm *lm); /* legal on zeroed ones */

/* The arc of a state with that phone; -1: there is none. */
int32_t sh_phone_lm_arc(const phone_lm *lm, int32_t state, int32_t phone);

/* What the model depends on, in one number. */
uint64_t sh_phone_lm_key(const phone_texts *texts, int32_t order, int64_t extra);
/* A file of it, whole or not at all. Reading refuses what is damaged or, unless key is 0,
   of another key. */
shoal_status sh_phone_lm_write(shoal_context *context, const phone_lm *lm, uint64_t key,
                               const char *path);
shoal_status sh_phone_lm_read(shoal_context *context, const char *path, uint64_t key,
                              phone_lm *lm);
/* The same of a file's bytes, and the sum that such bytes must have at SUM_PLACE. */
enum { PHONE_LM_SUM_PLACE = 16 };
shoal_status sh_phone_lm_parse(shoal_context *context, const char *name,
                               const void *bytes, size_t size, uint64_t key,
                               phone_lm *lm);
uint64_t sh_phone_lm_sum(const void *bytes, size_t size);

#endif
