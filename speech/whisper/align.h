/* When each word was said: by what the decoder looks at in the sound while it writes a
   word. Some heads of its attention over the audio follow the speech; dynamic time
   warping makes one path of what they look at. */
#ifndef SHOAL_SPEECH_WHISPER_ALIGN_H
#define SHOAL_SPEECH_WHISPER_ALIGN_H

#include "shoal_speech.h"
#include "speech/audio/vad.h"
#include "speech/whisper/decoder.h"

/* ---- Words ---------------------------------------------------------------------- */

/* Tokens first .. end - 1 of a text that are one word, with its leading space. */
typedef struct {
    int first, end;
    double begins, ends; /* seconds in the window */
    double probability;  /* mean of its tokens' */
} aligned_word;

/* Words of a text's tokens ids [count], text tokens only: each begins with a space or is
   punctuation; in languages without spaces (`spaces` false) a word is a character. words:
   room for count. Returns how many there are. */
int sh_words_split(const tokens *t, const int32_t *ids, int count, bool spaces,
                   aligned_word *words);
bool sh_language_has_spaces(const char *code);

/* Opening quotes and brackets join the word after them, marks behind a word the word
   before. Returns how many words are left. */
int sh_words_merge(const tokens *t, const int32_t *ids, aligned_word *words, int count);

/* ---- Times ---------------------------------------------------------------------- */

/* The path through scores [rows][columns] from one corner to the other whose sum is
   largest, as rows are passed one by one: first [rows], the column at which the path
   enters each row. steps: memory of rows * columns bytes, sums: of 2 * (columns + 1). */
void sh_warp(const float *scores, int64_t rows, int64_t columns, unsigned char *steps,
             double *sums, int32_t *first);

/* The heads of a decoder that follow the speech, where its model's file does not name
   them: those published for Whisper's sizes; else all heads of the upper half of its
   layers. heads: room for text layers * text heads. */
int sh_alignment_heads(const whisper_sizes *sizes, decoder_head *heads);

typedef struct aligner aligner;

/* The decoder must outlive it; file: its model's. */
shoal_status sh_aligner_create(shoal_context *context, decoder *network,
                               const whisper_file *file, aligner **made);
void sh_aligner_destroy(aligner *a); /* NULL is legal */
size_t sh_aligner_memory(const aligner *a);

typedef struct {
    int window;            /* of the decoder: what is heard */
    const tokens *tokens;  /* of the model */
    int32_t language;      /* token, or -1 for models that know English only */
    bool translate;        /* the task's token */
    bool spaces;           /* between the language's words */
    const int32_t *ids;    /* [count]: the window's text, timestamps included */
    const float *logprobs; /* [count] */
    int count;
    int64_t frames; /* of the window that are sound, 100 in a second */
} align_task;

/* The window's words, in memory that is valid until the next call; first and end count in
   task->ids. */
int sh_align(aligner *a, const align_task *task, const aligned_word **words);

/* Those of the last call whose tokens are first .. end - 1, with their texts and the
   recording's times; valid until the next of either call. */
int sh_aligned_words(aligner *a, const align_task *task, const packed_window *sound,
                     int first, int end, const shoal_word **words);

#endif
