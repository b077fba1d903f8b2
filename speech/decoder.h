/* The text decoder's network: exact causal attention with a cache of keys and values,
   attention over the encoder's output, whose keys and values are made once per window,
   and logits by the token embedding.

   Texts grow side by side, numbered 0 .. texts - 1, each with a length of its own. One
   run of the network takes rows, and a row is a token of some text at some position: the
   tokens of a prompt, or one token more for each text.

   Cache. A row of keys and values is written once, at (position, text), and stays. Which
   rows a text's past consists of stands in a table of its own, so that a text which
   continues another one copies a few numbers and no keys. */
#ifndef SHOAL_SPEECH_DECODER_H
#define SHOAL_SPEECH_DECODER_H

#include "speech/whisper.h"

typedef struct decoder decoder;

/* The model must outlive the decoder. */
shoal_status sh_decoder_create(shoal_context *context, const whisper_model *model,
                               int texts, decoder **made);
void sh_decoder_destroy(decoder *d); /* NULL is legal */

int sh_decoder_texts(const decoder *d);     /* side by side, at most */
size_t sh_decoder_memory(const decoder *d); /* bytes, all told */
const whisper_sizes *sh_decoder_sizes(const decoder *d);

/* Keys and values of the window; encoded: [audio positions][audio width]. */
void sh_decoder_set_audio(decoder *d, const float *encoded);

/* Begins anew with a prompt of count tokens, 1 <= count <= text positions; every text has
   this past. */
void sh_decoder_begin(decoder *d, const int32_t *prompt, int count);

/* One token more for each of the texts 0 .. texts - 1: next [texts]. Each must have
   room. */
void sh_decoder_step(decoder *d, const int32_t *next, int texts);
int sh_decoder_room(const decoder *d, int text); /* positions that are left */

/* From now on text t has the past of text parents[t], for t < texts; the others have
   none. */
void sh_decoder_reorder(decoder *d, const int32_t *parents, int texts);

/* Logits that follow rows first .. first + count - 1 of the last begin or step, in order;
   logits: [count][vocabulary]. */
void sh_decoder_logits(decoder *d, int first, int count, float *logits);

/* One head of the decoder's attention over the audio. */
typedef struct {
    int32_t layer, head;
} decoder_head;

/* What those heads look at in the window's audio while they read the tokens [count] of a
   text, its prompt included, all at once: weights [head_count][count][audio positions],
   each row a softmax. 1 <= count <= text positions. The texts' pasts are lost. */
void sh_decoder_weights(decoder *d, int window, const int32_t *tokens, int count,
                        const decoder_head *heads, int head_count, float *weights);

#endif
