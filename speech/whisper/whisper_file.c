#define _GNU_SOURCE
#include "speech/whisper/whisper_file.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "speech/audio/mel.h"
#include "speech/whisper/whisper_readers.h"

/* ---- Sizes ------------------------------------------------------------------------ */

static bool within(int32_t value, int32_t low, int32_t high) {
    return value >= low && value <= high;
}

static bool heads_fit(int32_t width, int32_t heads) {
    return within(heads, 1, 256) && width % heads == 0;
}

shoal_status sh_whisper_sizes_check(shoal_context *context, const char *label,
                                    const whisper_sizes *sizes) {
    enum { POSITIONS = MEL_FRAMES / 2, WIDEST = 8192, DEEPEST = 256, LONGEST = 4096 };
    const char *wrong = NULL;
    tokens ignored;
    if (!sh_tokens_layout(sizes->vocabulary, &ignored))
        wrong = "its vocabulary is not 51864, 51865 or 51866 tokens";
    else if (sizes->audio_positions != POSITIONS)
        wrong = "its encoder does not have 1500 positions";
    else if (!within(sizes->audio_width, 1, WIDEST) ||
             sizes->text_width != sizes->audio_width)
        wrong = "its widths are not equal and between 1 and 8192";
    else if (!heads_fit(sizes->audio_width, sizes->audio_heads) ||
             !heads_fit(sizes->text_width, sizes->text_heads))
        wrong = "its numbers of heads do not divide its widths";
    else if (!within(sizes->audio_layers, 1, DEEPEST) ||
             !within(sizes->text_layers, 1, DEEPEST))
        wrong = "its numbers of layers are not between 1 and 256";
    else if (!within(sizes->text_positions, 8, LONGEST))
        wrong = "its decoder's positions are not between 8 and 4096";
    else if (sizes->mels != 80 && sizes->mels != 128)
        wrong = "it does not take 80 or 128 mel bands";
    return wrong ? sh_fail(context, SHOAL_BAD_FILE, "%s: %s", label, wrong) : SHOAL_OK;
}

/* ---- The weights that must be there ----------------------------------------------- */

/* Dimensions by letter: E width, F four widths, M mel bands, A and P positions of encoder
   and decoder, V vocabulary, 3 the convolutions' taps. */
typedef struct {
    const char *name, *shape;
} weight;

static const weight once[] = {
    {"encoder.conv1.weight", "EM3"},
    {"encoder.conv1.bias", "E"},
    {"encoder.conv2.weight", "EE3"},
    {"encoder.conv2.bias", "E"},
    {"encoder.positional_embedding", "AE"},
    {"encoder.ln_post.weight", "E"},
    {"encoder.ln_post.bias", "E"},
    {"decoder.token_embedding.weight", "VE"},
    {"decoder.positional_embedding", "PE"},
    {"decoder.ln.weight", "E"},
    {"decoder.ln.bias", "E"},
};

static const weight in_block[] = {
    {"attn_ln.weight", "E"},
    {"attn_ln.bias", "E"},
    {"attn.query.weight", "EE"},
    {"attn.query.bias", "E"},
    {"attn.key.weight", "EE"},
    {"attn.value.weight", "EE"},
    {"attn.value.bias", "E"},
    {"attn.out.weight", "EE"},
    {"attn.out.bias", "E"},
    {"mlp_ln.weight", "E"},
    {"mlp_ln.bias", "E"},
    {"mlp.0.weight", "FE"},
    {"mlp.0.bias", "F"},
    {"mlp.2.weight", "EF"},
    {"mlp.2.bias", "E"},
    /* from here on in the decoder only */
    {"cross_attn_ln.weight", "E"},
    {"cross_attn_ln.bias", "E"},
    {"cross_attn.query.weight", "EE"},
    {"cross_attn.query.bias", "E"},
    {"cross_attn.key.weight", "EE"},
    {"cross_attn.value.weight", "EE"},
    {"cross_attn.value.bias", "E"},
    {"cross_attn.out.weight", "EE"},
    {"cross_attn.out.bias", "E"},
};

enum {
    ONCE = sizeof once / sizeof *once,
    DECODER_BLOCK = sizeof in_block / sizeof *in_block,
    ENCODER_BLOCK = DECODER_BLOCK - 9
};

int64_t sh_whisper_tensor_count(const whisper_sizes *sizes) {
    return ONCE + (int64_t)sizes->audio_layers * ENCODER_BLOCK +
           (int64_t)sizes->text_layers * DECODER_BLOCK;
}

static int64_t dimension(const whisper_sizes *sizes, char letter) {
    switch (letter) {
    case 'E': return sizes->audio_width;
    case 'F': return 4 * (int64_t)sizes->audio_width;
    case 'M': return sizes->mels;
    case 'A': return sizes->audio_positions;
    case 'P': return sizes->text_positions;
    case 'V': return sizes->vocabulary;
    default: return letter - '0';
    }
}

typedef struct {
    shoal_context *context;
    const char *label;
    const whisper_sizes *sizes;
    const file_tensor *sorted;
    int64_t count;
} weight_check;

static shoal_status check_weight(const weight_check *check, const char *name,
                                 const char *letters) {
    const file_tensor *tensor = sh_file_tensor_find(check->sorted, check->count, name);
    int64_t shape[FILE_TENSOR_RANK];
    int rank = 0;
    if (!tensor)
        return sh_fail(check->context, SHOAL_BAD_FILE, "%s: has no tensor '%s'",
                       check->label, name);
    for (; letters[rank]; rank++)
        shape[rank] = dimension(check->sizes, letters[rank]);
    if (!sh_file_tensor_has_shape(tensor, rank, shape))
        return sh_fail(check->context, SHOAL_BAD_FILE,
                       "%s: tensor '%s' does not have the shape that the sizes ask for",
                       check->label, name);
    if (tensor->dtype != DTYPE_F32 && tensor->dtype != DTYPE_F16 &&
        tensor->dtype != DTYPE_BF16 && !(dtype_is_quantised(tensor->dtype) && rank == 2))
        return sh_fail(check->context, SHOAL_BAD_FILE,
                       "%s: tensor '%s' is %s; it should be F32, F16 or BF16",
                       check->label, name, sh_dtype_name(tensor->dtype));
    return SHOAL_OK;
}

static shoal_status check_blocks(const weight_check *check, const char *side, int layers,
                                 int rows) {
    shoal_status status = SHOAL_OK;
    for (int layer = 0; layer < layers; layer++) {
        for (int i = 0; i < rows && status == SHOAL_OK; i++) {
            char name[WEIGHT_NAME];
            snprintf(name, sizeof name, "%s.blocks.%d.%s", side, layer, in_block[i].name);
            status = check_weight(check, name, in_block[i].shape);
        }
    }
    return status;
}

shoal_status sh_whisper_tensors_check(shoal_context *context, const char *label,
                                      const whisper_sizes *sizes,
                                      const file_tensor *sorted, int64_t count) {
    weight_check check = {context, label, sizes, sorted, count};
    shoal_status status = SHOAL_OK;
    for (int64_t i = 1; i < count; i++)
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0)
            return sh_fail(context, SHOAL_BAD_FILE, "%s: tensor '%s' is there twice",
                           label, sh_shown(sorted[i].name).text);
    for (int i = 0; i < ONCE && status == SHOAL_OK; i++)
        status = check_weight(&check, once[i].name, once[i].shape);
    if (status == SHOAL_OK)
        status = check_blocks(&check, "encoder", sizes->audio_layers, ENCODER_BLOCK);
    if (status == SHOAL_OK)
        status = check_blocks(&check, "decoder", sizes->text_layers, DECODER_BLOCK);
    if (status == SHOAL_OK && count != sh_whisper_tensor_count(sizes))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: has %lld tensors; a model of its sizes has %lld", label,
                       (long long)count, (long long)sh_whisper_tensor_count(sizes));
    return status;
}

/* ---- The object ------------------------------------------------------------------- */

typedef struct {
    whisper_file file; /* first, so that whoever frees it frees the block */
    struct whisper_source source;
    size_t token_bytes;
} file_block;

static void place(void *argument, block_layout *block) {
    file_block *made = argument;
    struct whisper_source *source = &made->source;
    const whisper_sizes *sizes = &made->file.sizes;
    const int64_t tensors = sh_whisper_tensor_count(sizes);
    sh_reserve(block, 1, sizeof *made);
    source->mel_filters =
        sh_reserve(block, (int64_t)sizes->mels * MEL_BINS, sizeof(float));
    source->bytes = sh_reserve(block, (int64_t)made->token_bytes, 1);
    source->begin = sh_reserve(block, (int64_t)sizes->vocabulary + 1, sizeof(uint32_t));
    source->by_bytes = sh_reserve(block, made->file.tokens.end_of_text, sizeof(int32_t));
    source->tensors = sh_reserve(block, tensors, sizeof(file_tensor));
    source->names = sh_reserve(block, tensors, WEIGHT_NAME);
    made->file.mel_filters = source->mel_filters;
    made->file.tensors = source->tensors;
}

shoal_status sh_whisper_file_allocate(shoal_context *context, const whisper_sizes *sizes,
                                      size_t token_bytes, whisper_file **file) {
    file_block sized = {.file.sizes = *sizes,
                        .source.context = context,
                        .token_bytes = token_bytes};
    sh_tokens_layout(sizes->vocabulary, &sized.file.tokens);
    file_block *made = sh_allocate_parts(context, place, &sized, NULL);
    *file = NULL;
    if (!made)
        return SHOAL_NO_MEMORY;
    *made = sized;
    made->file.source = &made->source;
    *file = &made->file;
    return SHOAL_OK;
}

void sh_whisper_file_finish_tokens(whisper_file *file) {
    struct whisper_source *source = file->source;
    file->tokens.bytes = source->bytes;
    file->tokens.begin = source->begin;
    sh_tokens_index(&file->tokens, source->by_bytes);
    file->tokens.by_bytes = source->by_bytes;
    sh_tokens_find_suppressed(&file->tokens);
}

static shoal_status open_beside_config(shoal_context *context, const char *path,
                                       size_t folder_length, whisper_file **file) {
    char folder[PATH_MAX];
    int length = snprintf(folder, sizeof folder, "%.*s.", (int)folder_length, path);
    if (length < 0 || (size_t)length >= sizeof folder)
        return sh_fail(context, SHOAL_IO, "%s: the name is too long", path);
    return sh_hf_open(context, folder, file);
}

shoal_status sh_whisper_file_open(shoal_context *context, const char *path,
                                  whisper_file **file) {
    struct stat information;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    *file = NULL;
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode))
        return sh_hf_open(context, path, file);
    if (strcmp(name, "config.json") == 0)
        return open_beside_config(context, path, (size_t)(name - path), file);
    return sh_ggml_open(context, path, file);
}

void sh_whisper_file_unmap(whisper_file *file) {
    struct whisper_source *source = file->source;
    sh_file_map_close(&source->map);
    sh_safetensors_close(source->weights);
    source->weights = NULL;
    file->tensors = NULL;
    file->tensor_count = 0;
}

void sh_whisper_file_close(whisper_file *file) {
    if (!file)
        return;
    sh_whisper_file_unmap(file);
    sh_release(file->source->context, file);
}

const file_tensor *sh_whisper_file_tensor(const whisper_file *file, const char *format,
                                          ...) {
    char name[WEIGHT_NAME];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof name)
        return NULL;
    return sh_file_tensor_find(file->tensors, file->tensor_count, name);
}
