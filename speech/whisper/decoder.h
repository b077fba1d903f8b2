/* The text decoder's network: exact causal attention with a cache of keys and values,
   attention over the encoder's output, whose keys and values are made once per window,
   and logits by the token embedding.

   Windows of sound, 0 .. windows - 1, and texts, 0 .. texts - 1, stand side by side. A
   text hears one window and has a length of its own. One run of the network takes the
   rows that were queued, and a row is a token of some text at some position: the tokens
   of a prompt, or one token more. Every row's numbers depend on its own text and window
   alone, to the bit: not on what runs beside it, nor on the number of threads.

   Cache. A row of keys and values is written once, at (text, position), and stays until
   its text begins anew. Which rows a text's past consists of stands in a table of its
   own, so that a text which continues another one copies a few numbers and no keys. */
#ifndef SHOAL_SPEECH_WHISPER_DECODER_H
#define SHOAL_SPEECH_WHISPER_DECODER_H

#include "speech/whisper/whisper.h"

typedef struct decoder decoder;

typedef struct {
    int windows, texts; /* side by side, at most */
    bool exact;         /* keys and values of the sound are floats, not halves */
} decoder_limits;

/* The model must outlive the decoder. */
shoal_status sh_decoder_create(shoal_context *context, const whisper_model *model,
                               const decoder_limits *limits, decoder **made);
void sh_decoder_destroy(decoder *d); /* NULL is legal */

const decoder_limits *sh_decoder_limits(const decoder *d);
size_t sh_decoder_memory(const decoder *d); /* bytes, all told */
const whisper_sizes *sh_decoder_sizes(const decoder *d);

/* Bytes of the keys and values of a window's sound. */
int64_t sh_decoder_window_bytes(const whisper_sizes *sizes, bool exact);

/* Keys and values of a window; encoded: [audio positions][audio width]. */
void sh_decoder_hear(decoder *d, int window, const float *encoded);

/* The text has no past from now on, and hears this window. Others that shared its past
   must not be used any more, unless they begin anew too. */
void sh_decoder_begin(decoder *d, int text, int window);

/* One token more for a text, which must have room. Returns the row's number. */
int sh_decoder_queue(decoder *d, int text, int32_t token);
int sh_decoder_room(const decoder *d, int text); /* positions that are left */
int sh_decoder_free_rows(const decoder *d);      /* that can still be queued */

/* Runs the rows that were queued since the last run; or forgets them, whose texts must
   begin anew. */
void sh_decoder_run(decoder *d);
void sh_decoder_forget(decoder *d);

/* From now on text texts[i] has the past of text parents[i], for i < count: a past that
   is no longer than all of it that has run. Both hear the same window. */
void sh_decoder_reorder(decoder *d, const int32_t *texts, const int32_t *parents,
                        int count);

/* Logits that follow rows [count] of the last run, in order; logits: [count][vocabulary].
   */
void sh_decoder_logits(decoder *d, const int32_t *rows, int count, float *logits);

/* What those heads look at in the window's audio while they read a text, its prompt
   included: ids [count], all at once. weights [head_count][count][audio positions], each
   row a softmax. 1 <= count <= text positions. Texts and rows that are queued stay as
   they are; those of the last run are lost. */
void sh_decoder_weights(decoder *d, int window, const int32_t *ids, int count,
                        const decoder_head *heads, int head_count, float *weights);

#endif
