#include "speech/whisper/speech.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "shoal_speech.h"

const char *shoal_speech_language(const char *text) {
    return text ? sh_language_code(sh_language_find(text)) : NULL;
}

static void place(void *argument, block_layout *block) {
    shoal_speech *s = argument;
    const whisper_sizes *sizes = &s->model->file->sizes;
    const int64_t positions = sizes->text_positions;
    sh_reserve(block, 1, sizeof *s);
    s->features = reserve_floats(block, sizes->mels, MEL_FRAMES);
    s->prompt = sh_reserve(block, positions + 4, sizeof *s->prompt);
    s->past = sh_reserve(block, 2 * positions, sizeof *s->past);
    s->cuts = sh_reserve(block, positions + 1, sizeof *s->cuts);
    s->text = sh_reserve(block, SPEECH_TEXT, sizeof *s->text);
    s->packed = sh_reserve(block, (int64_t)sh_compression_room(SPEECH_TEXT), 1);
}

/* Whisper was trained with keys of its own. */
static shoal_status parse_attention(shoal_context *context, const char *text, bool force,
                                    shoal_attention *parsed) {
    char kind[64];
    const shoal_status status = shoal_attention_parse(context, text, parsed);
    if (status != SHOAL_OK || force ||
        !shoal_kind_describe((int)parsed->kind)->keys_are_queries)
        return status;
    shoal_attention_print(parsed, kind, sizeof kind);
    return sh_fail(context, SHOAL_INVALID,
                   "%s uses the queries as keys, but this model has separate keys, so "
                   "the text would be meaningless; use shoal or auto, which keep the "
                   "words, or full, which is exact; the option force allows it",
                   kind);
}

static const char *attention_of(const shoal_speech_options *options) {
    return options->attention ? options->attention : "full";
}

shoal_status shoal_speech_open(shoal_context *context, const char *path,
                               const shoal_speech_options *options,
                               shoal_speech **speech) {
    shoal_speech_options wanted = shoal_speech_options_defaults();
    whisper_model *model;
    if (speech)
        *speech = NULL;
    TRY(READ_STRUCT(context, shoal_speech_options, options, &wanted));
    if (!context || !context->kernels || !path || !speech)
        return sh_fail(
            context, SHOAL_INVALID,
            "shoal_speech_open: an argument is NULL or the context is invalid");
    if (wanted.beams < 0 || wanted.beams > SPEECH_MOST_BEAMS)
        return sh_fail(context, SHOAL_INVALID, "beams is %d: it must be from 1 to %d",
                       wanted.beams, SPEECH_MOST_BEAMS);
    if (wanted.batch < 0 || wanted.batch > SPEECH_MOST_BATCH)
        return sh_fail(context, SHOAL_INVALID, "batch is %d: it must be from 1 to %d",
                       wanted.batch, SPEECH_MOST_BATCH);
    if (wanted.precision < SHOAL_PRECISION_AUTO ||
        wanted.precision > SHOAL_PRECISION_INT8)
        return sh_fail(context, SHOAL_INVALID, "invalid value for precision: %d",
                       wanted.precision);
    shoal_attention parsed;
    shoal_status status =
        parse_attention(context, attention_of(&wanted), wanted.force != 0, &parsed);
    if (status == SHOAL_OK)
        status =
            sh_whisper_open(context, path, (shoal_precision)wanted.precision, &model);
    if (status != SHOAL_OK)
        return status;
    shoal_speech sized = {.context = context, .model = model};
    shoal_speech *made = sh_allocate_parts(context, place, &sized, &sized.bytes);
    if (!made) {
        sh_whisper_close(model);
        return SHOAL_NO_MEMORY;
    }
    *made = sized;
    const whisper_file *file = made->model->file;
    made->beams = wanted.beams ? wanted.beams : SPEECH_SAMPLES;
    made->force = wanted.force != 0;
    /* Twice as many texts as windows: samples of some beside the single texts of others.
       */
    const bool exact = wanted.precision == SHOAL_PRECISION_FLOAT32;
    const int64_t fit = SPEECH_BATCH_BYTES /
                        sh_decoder_window_bytes(&made->model->file->sizes, exact);
    const int64_t chosen = fit < 1 ? 1 : fit < SPEECH_BATCH ? fit : SPEECH_BATCH;
    const int windows = wanted.batch ? wanted.batch : (int)chosen;
    const decoder_limits limits =
        (decoder_limits){.windows = windows,
                         .texts = (int)max(made->beams, windows > 1 ? 2 * windows : 1),
                         .exact = exact};
    status = shoal_speech_set_attention(made, attention_of(&wanted));
    if (status == SHOAL_OK)
        status =
            sh_mel_create(made->context, file->sizes.mels, file->mel_filters, &made->mel);
    if (status == SHOAL_OK)
        status = sh_decoder_create(made->context, made->model, &limits, &made->decoder);
    if (status == SHOAL_OK)
        status = sh_search_create(made->context, made->decoder, &made->search);
    if (status != SHOAL_OK) {
        shoal_speech_destroy(made);
        return status;
    }
    *speech = made;
    return SHOAL_OK;
}

void shoal_speech_destroy(shoal_speech *s) {
    if (!s)
        return;
    if (s->aligner)
        sh_aligner_destroy(s->aligner);
    sh_search_destroy(s->search);
    sh_decoder_destroy(s->decoder);
    sh_mel_destroy(s->mel);
    sh_whisper_encoder_destroy(s->encoder);
    sh_whisper_close(s->model);
    sh_release(s->context, s);
}

shoal_status shoal_speech_set_attention(shoal_speech *s, const char *attention) {
    shoal_attention parsed;
    whisper_encoder *made;
    if (!s || !attention)
        return sh_fail(s ? s->context : NULL, SHOAL_INVALID,
                       "shoal_speech_set_attention: an argument is NULL");
    shoal_status status = parse_attention(s->context, attention, s->force, &parsed);
    if (status == SHOAL_OK)
        status = sh_whisper_encoder_create(s->model, &parsed, &made);
    if (status != SHOAL_OK)
        return status;
    sh_whisper_encoder_destroy(s->encoder);
    s->encoder = made;
    return SHOAL_OK;
}

double shoal_speech_attention_error(const shoal_speech *s) {
    return s ? sh_whisper_attention_error(s->encoder) : NAN;
}

const shoal_speech_info *shoal_speech_describe(const shoal_speech *s) {
    if (!s)
        return NULL;
    shoal_speech_info *info = &((shoal_speech *)(uintptr_t)s)->info;
    const whisper_sizes *sizes = &s->model->file->sizes;
    *info = (shoal_speech_info){.mels = sizes->mels,
                                .frames = MEL_FRAMES,
                                .positions = sizes->audio_positions,
                                .width = sizes->audio_width,
                                .heads = sizes->audio_heads,
                                .layers = sizes->audio_layers,
                                .text_positions = sizes->text_positions,
                                .text_layers = sizes->text_layers,
                                .vocabulary = sizes->vocabulary,
                                .multilingual = s->model->file->tokens.multilingual,
                                .precision = (int32_t)s->model->precision,
                               .bytes = s->model->bytes + s->bytes +
                                         sh_whisper_encoder_memory(s->encoder) +
                                         sh_decoder_memory(s->decoder) +
                                         sh_aligner_memory(s->aligner)};
    return info;
}

/* ---- The steps one by one ------------------------------------------------------- */

shoal_status shoal_speech_features(shoal_speech *s, const shoal_recording *recording,
                                   double begin, float *features, double *seconds) {
    recording_stream *stream;
    const float *samples;
    int64_t got;
    if (!s || !features)
        return sh_fail(s ? s->context : NULL, SHOAL_INVALID,
                       "shoal_speech_features: an argument is NULL");
    shoal_recording own = shoal_recording_defaults();
    TRY(READ_STRUCT(s->context, shoal_recording, recording, &own));
    recording = recording ? &own : NULL;
    if (!(begin >= 0 && begin <= 1e9))
        return sh_fail(s->context, SHOAL_INVALID, "begin is %g: it must be 0 or more",
                       begin);
    shoal_status status = sh_recording_open(s->context, recording, &stream);
    if (status != SHOAL_OK)
        return status;
    status = sh_recording_window(stream, (int64_t)(begin * AUDIO_RATE), &samples, &got);
    if (status == SHOAL_OK) {
        sh_mel_compute(s->mel, samples, got, features);
        if (seconds)
            *seconds = (double)got / AUDIO_RATE;
    }
    sh_recording_close(stream);
    return status;
}

shoal_status shoal_speech_encode(shoal_speech *s, const float *features, float *encoded) {
    const float *made;
    if (!s || !features || !encoded)
        return sh_fail(s ? s->context : NULL, SHOAL_INVALID,
                       "shoal_speech_encode: an argument is NULL");
    const shoal_status status = sh_whisper_encode(s->encoder, features, &made);
    if (status != SHOAL_OK)
        return status;
    const whisper_sizes *sizes = &s->model->file->sizes;
    memcpy(encoded, made,
           (size_t)sizes->audio_positions * (size_t)sizes->audio_width * sizeof *encoded);
    return SHOAL_OK;
}

shoal_status shoal_speech_logits(shoal_speech *s, const float *encoded,
                                 const int32_t *text, int64_t count, float *logits) {
    if (!s || !encoded || !text || !logits)
        return sh_fail(s ? s->context : NULL, SHOAL_INVALID,
                       "shoal_speech_logits: an argument is NULL");
    const whisper_sizes *sizes = &s->model->file->sizes;
    if (count < 1 || count > sizes->text_positions)
        return sh_fail(s->context, SHOAL_INVALID,
                       "count is %lld: it must be from 1 to %d", (long long)count,
                       (int)sizes->text_positions);
    for (int64_t i = 0; i < count; i++)
        if (text[i] < 0 || text[i] >= sizes->vocabulary)
            return sh_fail(s->context, SHOAL_INVALID,
                           "tokens[%lld] is %d: the vocabulary has %d tokens",
                           (long long)i, (int)text[i], (int)sizes->vocabulary);
    sh_decoder_hear(s->decoder, 0, encoded);
    sh_decoder_begin(s->decoder, 0, 0);
    for (int64_t i = 0; i < count; i++)
        sh_decoder_queue(s->decoder, 0, text[i]);
    sh_decoder_run(s->decoder);
    for (int32_t i = 0; i < count; i++)
        sh_decoder_logits(s->decoder, &i, 1, logits + i * sizes->vocabulary);
    return SHOAL_OK;
}
