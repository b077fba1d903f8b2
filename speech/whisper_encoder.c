/* Features to encoded audio: two convolutions, fixed positions, and the encoder that
   training uses. E width, P positions, F = 2 P frames. */
#include "base/memory.h"
#include "speech/mel.h"
#include "speech/whisper.h"

struct whisper_encoder {
    const whisper_model *model;
    crew crew;
    encoder *stack;
    size_t bytes;
    int64_t offsets[2]; /* one sequence of P rows */
    float *frames;      /* [F][mels] */
    float *narrow;      /* [F][E], after the first convolution */
    float *rows;        /* [P][E], what the stack begins with */
};

static void place(void *argument, block_layout *block) {
    whisper_encoder *e = argument;
    const speech_sizes *sizes = whisper_sizes(e->model);
    const int64_t frames = MEL_FRAMES, width = sizes->audio_width;
    sh_reserve(block, 1, sizeof *e);
    e->frames = sh_reserve(block, sh_mul_checked(frames, sizes->mels), sizeof *e->frames);
    e->narrow = sh_reserve(block, sh_mul_checked(frames, width), sizeof *e->narrow);
    e->rows =
        sh_reserve(block, sh_mul_checked(sizes->audio_positions, width), sizeof *e->rows);
}

static shoal_status create_stack(whisper_encoder *e, const shoal_attention *attention) {
    const speech_sizes *sizes = whisper_sizes(e->model);
    const encoder_shape shape = {.layers = sizes->audio_layers,
                                 .heads = sizes->audio_heads,
                                 .head_dim = sizes->audio_width / sizes->audio_heads,
                                 .feed_forward = 4 * (int64_t)sizes->audio_width,
                                 .attention = *attention,
                                 .activation = ACTIVATION_GELU,
                                 .epsilon = 1e-5f};
    const encoder_limits limits = {.batch = 1,
                                   .rows = sizes->audio_positions,
                                   .length = sizes->audio_positions,
                                   .half_weights = e->model->half_encoder};
    return sh_encoder_create(e->model->context, &shape, &limits, &e->stack);
}

shoal_status sh_whisper_encoder_create(const whisper_model *model,
                                       const shoal_attention *attention,
                                       whisper_encoder **made) {
    whisper_encoder sized = {.model = model,
                             .crew = sh_crew_of(model->context),
                             .offsets = {0, whisper_sizes(model)->audio_positions}};
    *made = NULL;
    whisper_encoder *e = sh_allocate_parts(model->context, place, &sized, &sized.bytes);
    if (!e)
        return SHOAL_NO_MEMORY;
    *e = sized;
    const shoal_status status = create_stack(e, attention);
    if (status != SHOAL_OK) {
        sh_release(model->context, e);
        return status;
    }
    *made = e;
    return SHOAL_OK;
}

void sh_whisper_encoder_destroy(whisper_encoder *e) {
    if (!e)
        return;
    sh_encoder_destroy(e->stack);
    sh_release(e->model->context, e);
}

size_t sh_whisper_encoder_memory(const whisper_encoder *e) {
    return e->bytes + sh_encoder_memory(e->stack);
}

enum { FRAME_BLOCK = 64 };

typedef struct {
    const float *features; /* [mels][F] */
    float *frames;         /* [F][mels] */
    int64_t mels;
} turning;

static void turn_block(void *shared, int64_t task, int thread) {
    const turning *turn = shared;
    const int64_t first = task * FRAME_BLOCK;
    const int64_t end = min(first + FRAME_BLOCK, MEL_FRAMES);
    (void)thread;
    for (int64_t band = 0; band < turn->mels; band++)
        for (int64_t frame = first; frame < end; frame++)
            turn->frames[frame * turn->mels + band] =
                turn->features[band * MEL_FRAMES + frame];
}

shoal_status sh_whisper_encode(whisper_encoder *e, const float *features,
                               const float **encoded) {
    const speech_sizes *sizes = whisper_sizes(e->model);
    const packing sequence = {.batch = 1, .offsets = e->offsets};
    turning turn = {features, e->frames, sizes->mels};
    sh_team_run(e->crew.workers, ceil_divide(MEL_FRAMES, FRAME_BLOCK), turn_block, &turn);
    sh_conv_forward(&e->crew, &e->model->first_conv, MEL_FRAMES, e->frames, NULL,
                    e->narrow);
    sh_conv_forward(&e->crew, &e->model->second_conv, MEL_FRAMES, e->narrow, NULL,
                    e->rows);
    sh_positions_forward(&e->crew, &sequence, sizes->audio_width,
                         e->model->audio_positions, e->rows);
    return sh_encoder_forward(e->stack, &e->model->encoder, &sequence,
                              (encoder_moment){0}, e->rows, encoded);
}
