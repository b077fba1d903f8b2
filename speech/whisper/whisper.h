/* Whisper's weights as the layers of nn use them, and its encoder.

   Sizes: E encoder width, T decoder width, P audio positions (1500), F frames (2 P). */
#ifndef SHOAL_SPEECH_WHISPER_WHISPER_H
#define SHOAL_SPEECH_WHISPER_WHISPER_H

#include "models/nn/encoder.h"
#include "models/nn/layers.h"
#include "models/nn/packed.h"
#include "shoal_models.h"
#include "speech/whisper/whisper_file.h"

/* One block of the decoder. Projections of the same input are one matrix; the keys, which
   have no bias, have zeros there. */
typedef struct {
    layer_norm self_norm, cross_norm, forward_norm; /* [T] */
    packed_linear self_in;                          /* [3 T][T]: query, key, value */
    packed_linear self_out;                         /* [T][T] */
    packed_linear cross_query;                      /* [T][T] */
    packed_linear cross_in;                         /* [2 T][E]: key, value */
    packed_linear cross_out;                        /* [T][T] */
    packed_linear widen, narrow;                    /* [4 T][T], [T][4 T] */
} decoder_layer;

typedef struct {
    shoal_context *context;
    whisper_file *file; /* owned; sizes, tokens and mel filters stand there */
    conv1d first_conv, second_conv;
    const float *audio_positions; /* [P][E] */
    encoder_weights encoder;
    shoal_precision precision;   /* what was asked for, or auto has chosen */
    bool half_encoder;           /* the encoder's matrices are halves in memory, */
    bool bf16_encoder;           /* or bfloat16, */
    bool int8_encoder;           /* or bytes, those apart that these cannot represent, */
    bool outliers;               /* which there are */
    packed_linear embedding;     /* [vocabulary][T]; also the output layer */
    const float *text_positions; /* [text positions][T] */
    decoder_layer *decoder;      /* [text layers] */
    layer_norm last_norm;        /* [T] */
    size_t bytes;
} whisper_model;

/* Reads the file and copies its weights into one aligned block. SHOAL_PRECISION_INT8:
   all matrices but the table of tokens are bytes. Else those of the decoder keep the
   file's precision and are packed; those of the encoder are bfloat16 if the precision
   is, or by auto if the machine multiplies that quicker; else halves become floats as
   long as they are few (WIDENED_MOST bytes), since it runs over them with many rows. */
enum { WIDENED_MOST = 256 << 20 };
shoal_status sh_whisper_open(shoal_context *context, const char *path,
                             shoal_precision precision, whisper_model **made);
void sh_whisper_close(whisper_model *model); /* NULL is legal */

/* ---- The encoder ---------------------------------------------------------------- */

typedef struct whisper_encoder whisper_encoder;

/* Any kind of attention. The model must outlive it. */
shoal_status sh_whisper_encoder_create(const whisper_model *model,
                                       const shoal_attention *attention,
                                       whisper_encoder **made);
void sh_whisper_encoder_destroy(whisper_encoder *encoder); /* NULL is legal */
size_t sh_whisper_encoder_memory(const whisper_encoder *encoder);

/* The largest of the layers' relative errors of attention, estimated in the first window;
   NaN before it, and for full, shoal and auto, which are not measured. */
double sh_whisper_attention_error(const whisper_encoder *encoder);

/* features: [mels][F]. *encoded: [P][E], inside the object, valid until the next run. */
shoal_status sh_whisper_encode(whisper_encoder *encoder, const float *features,
                               const float **encoded);

#endif
