/* The text decoder's network: exact causal attention with a cache of keys and values,
   attention over the encoder's output whose keys and values are made once per window, and
   logits by the token embedding. Several texts (beams) grow side by side.

   Cache. A row of keys and values is written once, at (position, beam), and stays. Which
   rows a beam's past consists of stands in a table of its own, so that a beam which
   continues another one copies a few numbers and no keys. */
#ifndef SHOAL_SPEECH_DECODE_NETWORK_H
#define SHOAL_SPEECH_DECODE_NETWORK_H

#include "speech/whisper.h"

typedef struct decoder decoder;

/* The model must outlive the decoder. */
shoal_status sh_decoder_create(shoal_context *context, const whisper_model *model,
                               int beams, decoder **made);
void sh_decoder_destroy(decoder *d); /* NULL is legal */

int sh_decoder_beams(const decoder *d);
size_t sh_decoder_memory(const decoder *d); /* bytes, all told */
const speech_sizes *sh_decoder_sizes(const decoder *d);

/* Keys and values of the window; encoded: [audio positions][audio width]. */
void sh_decoder_hear(decoder *d, const float *encoded);

/* Begins anew with a text of count tokens, 1 <= count <= text positions; every beam has
   this past. */
void sh_decoder_begin(decoder *d, const int32_t *text, int count);

/* One token more for each of the beams 0 .. beams - 1: next [beams]. There must be a free
   position: sh_decoder_room() > 0. */
void sh_decoder_step(decoder *d, const int32_t *next, int beams);
int sh_decoder_room(const decoder *d);

/* From now on beam b has the past of beam parents[b], for b < beams. */
void sh_decoder_reorder(decoder *d, const int32_t *parents, int beams);

/* Logits that follow rows first .. first + count - 1 of the last begin or step, in order;
   logits: [count][vocabulary]. */
void sh_decoder_logits(decoder *d, int first, int count, float *logits);

#endif
