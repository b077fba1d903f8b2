#define _GNU_SOURCE
#include "speech/whisper/whisper_file.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "speech/audio/mel.h"

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
        wrong = "its vocabulary does not have 51864, 51865 or 51866 tokens";
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
        wrong = "its number of mel bands is not 80 or 128";
    return wrong ? sh_fail(context, SHOAL_BAD_FILE, "%s: %s", label, wrong) : SHOAL_OK;
}

/* ---- The weights that must be there ----------------------------------------------- */

/* Names and dimensions, these by letter: E width, F four widths, M mel bands, A and P
   positions of encoder and decoder, V vocabulary, 3 the convolutions' taps. */
static const char *const once[] = {"encoder.conv1.weight EM3",
                                   "encoder.conv1.bias E",
                                   "encoder.conv2.weight EE3",
                                   "encoder.conv2.bias E",
                                   "encoder.positional_embedding AE",
                                   "encoder.ln_post.weight E",
                                   "encoder.ln_post.bias E",
                                   "decoder.token_embedding.weight VE",
                                   "decoder.positional_embedding PE",
                                   "decoder.ln.weight E",
                                   "decoder.ln.bias E"};

static const char *const in_block[] = {
    "attn_ln.weight E",  "attn_ln.bias E",     "attn.query.weight EE",
    "attn.query.bias E", "attn.key.weight EE", "attn.value.weight EE",
    "attn.value.bias E", "attn.out.weight EE", "attn.out.bias E",
    "mlp_ln.weight E",   "mlp_ln.bias E",      "mlp.0.weight FE",
    "mlp.0.bias F",      "mlp.2.weight EF",    "mlp.2.bias E",
};

/* Besides in blocks of the decoder. */
static const char *const across[] = {
    "cross_attn_ln.weight E",  "cross_attn_ln.bias E",     "cross_attn.query.weight EE",
    "cross_attn.query.bias E", "cross_attn.key.weight EE", "cross_attn.value.weight EE",
    "cross_attn.value.bias E", "cross_attn.out.weight EE", "cross_attn.out.bias E",
};

enum {
    ONCE = sizeof once / sizeof *once,
    ENCODER_BLOCK = sizeof in_block / sizeof *in_block,
    DECODER_BLOCK = ENCODER_BLOCK + sizeof across / sizeof *across
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

shoal_status sh_whisper_tensors_check(shoal_context *context, const char *label,
                                      const whisper_sizes *sizes,
                                      const file_tensor *sorted, int64_t count) {
    const int64_t expected = sh_whisper_tensor_count(sizes);
    const int64_t decoder = ONCE + (int64_t)sizes->audio_layers * ENCODER_BLOCK;
    for (int64_t i = 1; i < count; i++)
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0)
            return sh_fail(context, SHOAL_BAD_FILE, "%s: duplicate tensor '%s'", label,
                           sh_shown(sorted[i].name).text);
    for (int64_t i = 0; i < expected; i++) {
        const bool decodes = i >= decoder;
        const int64_t at = i - (decodes ? decoder : ONCE);
        const int64_t rows = decodes ? DECODER_BLOCK : ENCODER_BLOCK;
        const char *wanted = i < ONCE ? once[i]
                             : at % rows < ENCODER_BLOCK
                                 ? in_block[at % rows]
                                 : across[at % rows - ENCODER_BLOCK];
        const char *letters = strchr(wanted, ' ') + 1;
        const int length = (int)(letters - 1 - wanted);
        char name[WEIGHT_NAME];
        int64_t shape[FILE_TENSOR_RANK];
        int rank = 0;
        if (i < ONCE)
            snprintf(name, sizeof name, "%.*s", length, wanted);
        else
            snprintf(name, sizeof name, "%s.blocks.%d.%.*s",
                     decodes ? "decoder" : "encoder", (int)(at / rows), length, wanted);
        const file_tensor *tensor = sh_file_tensor_find(sorted, count, name);
        if (!tensor)
            return sh_fail(context, SHOAL_BAD_FILE, "%s: has no tensor '%s'", label,
                           name);
        for (; letters[rank]; rank++)
            shape[rank] = dimension(sizes, letters[rank]);
        if (!sh_file_tensor_has_shape(tensor, rank, shape))
            return sh_fail(
                context, SHOAL_BAD_FILE,
                "%s: tensor '%s' does not have the shape given by the model's sizes",
                label, name);
        if (tensor->dtype != DTYPE_F32 && tensor->dtype != DTYPE_F16 &&
            tensor->dtype != DTYPE_BF16 &&
            !(dtype_is_quantised(tensor->dtype) && rank == 2))
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: tensor '%s' is %s; F32, F16 and BF16 are supported",
                           label, name, sh_dtype_name(tensor->dtype));
    }
    if (count != expected)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: has %lld tensors; a model of its size has %lld", label,
                       (long long)count, (long long)expected);
    return SHOAL_OK;
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

/* ---- whisper.cpp's files: bytes, never beyond the end ------------------------------ */

typedef struct {
    shoal_context *context;
    const char *label;
    const unsigned char *at, *end;
} cursor;

static size_t left(const cursor *file) {
    return (size_t)(file->end - file->at);
}

/* The next `size` bytes, or NULL when the file does not have them. */
static const unsigned char *take(cursor *file, size_t size) {
    if (size > left(file))
        return NULL;
    const unsigned char *bytes = file->at;
    file->at += size;
    return bytes;
}

static uint32_t word_at(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static bool take_int(cursor *file, int32_t *value) {
    const unsigned char *bytes = take(file, 4);
    if (bytes) {
        uint32_t word = word_at(bytes);
        memcpy(value, &word, sizeof *value);
    }
    return bytes != NULL;
}

static shoal_status cut_short(const cursor *file, const char *where) {
    return sh_fail(file->context, SHOAL_BAD_FILE,
                   "%s: is truncated in its %s; copy it again", file->label, where);
}

/* ---- Types ------------------------------------------------------------------------ */

/* Names of the types of tensors, by number, and of files; NULL: there is none. */
static const char *const tensor_types[] = {"F32",  "F16",  "Q4_0", "Q4_1", NULL,   NULL,
                                           "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K",
                                           "Q4_K", "Q5_K", "Q6_K", "Q8_K"};
static const char *const file_types[] =
    {"F32",  "F16",  "Q4_0", "Q4_1", "Q4_1 (some F16)",
     NULL,   NULL,   "Q8_0", "Q5_0", "Q5_1",
     "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"};
enum { TENSOR_TYPES = 16, FILE_TYPES = 15 };
/* By the number of a tensor's type; -1: not one that is read. */
static const int read_types[9] = {DTYPE_F32, DTYPE_F16,  DTYPE_Q4_0, DTYPE_Q4_1, -1,
                                  -1,        DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0};

static shoal_status refuse_type(const cursor *file, const char *what, const char *name,
                                int32_t number) {
    if (!name)
        return sh_fail(file->context, SHOAL_BAD_FILE, "%s: %s has the unknown type %d",
                       file->label, what, (int)number);
    return sh_fail(file->context, SHOAL_BAD_FILE,
                   "%s: %s is quantised as %s; supported are F32, F16, Q4_0, Q4_1, Q5_0, "
                   "Q5_1 and Q8_0",
                   file->label, what, name);
}

/* ---- Header ----------------------------------------------------------------------- */

/* *filters: [mels][MEL_BINS] floats, not aligned. */
static shoal_status read_header(cursor *file, whisper_sizes *sizes,
                                const unsigned char **filters) {
    enum { QUANTISATION_VERSIONS = 1000 }; /* the type's number carries a version */
    const uint32_t ggml_magic = 0x67676d6c;
    int32_t type, mels, bins;
    int32_t *const fields[] = {&sizes->vocabulary,
                               &sizes->audio_positions,
                               &sizes->audio_width,
                               &sizes->audio_heads,
                               &sizes->audio_layers,
                               &sizes->text_positions,
                               &sizes->text_width,
                               &sizes->text_heads,
                               &sizes->text_layers,
                               &sizes->mels,
                               &type};
    if (left(file) < 4 || word_at(file->at) != ggml_magic)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: is not a whisper.cpp (ggml) model; give such a file or a "
                       "Hugging Face folder",
                       file->label);
    take(file, 4);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!take_int(file, fields[i]))
            return cut_short(file, "sizes");
    /* The file's type only says what most of its matrices are. */
    const int32_t kind = type < 0 ? type : type % QUANTISATION_VERSIONS;
    if (kind < 0 || kind > 9 || kind == 5 || kind == 6)
        return refuse_type(file, "the model",
                           kind >= 0 && kind < FILE_TYPES ? file_types[kind] : NULL,
                           type);
    TRY(sh_whisper_sizes_check(file->context, file->label, sizes));
    if (!take_int(file, &mels) || !take_int(file, &bins))
        return cut_short(file, "mel filters");
    if (mels != sizes->mels || bins != MEL_BINS)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: its mel filters are %d x %d instead of %d x %d", file->label,
                       (int)mels, (int)bins, (int)sizes->mels, (int)MEL_BINS);
    const size_t count = (size_t)mels * MEL_BINS;
    *filters = take(file, count * sizeof(float));
    if (!*filters)
        return cut_short(file, "mel filters");
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, *filters + i * sizeof value, sizeof value);
        if (!(fabsf(value) <= 1.0f))
            return sh_fail(file->context, SHOAL_BAD_FILE,
                           "%s: a mel filter has a weight above 1", file->label);
    }
    return SHOAL_OK;
}

/* Adds up the text tokens' bytes; the cursor ends after the tokens. */
static shoal_status measure_tokens(cursor *file, const tokens *t, size_t *bytes) {
    int32_t count, length;
    *bytes = 0;
    if (!take_int(file, &count))
        return cut_short(file, "tokens");
    if (count < t->end_of_text || count > t->count)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: has %d tokens instead of %d to %d", file->label, (int)count,
                       (int)t->end_of_text, (int)t->count);
    for (int32_t id = 0; id < count; id++) {
        if (!take_int(file, &length))
            return cut_short(file, "tokens");
        if (length < 0 || !take(file, (size_t)length))
            return sh_fail(file->context, SHOAL_BAD_FILE,
                           "%s: token %d has a length of %d, beyond the end of the file",
                           file->label, (int)id, (int)length);
        *bytes += id < t->end_of_text ? (size_t)length : 0;
    }
    if (*bytes > UINT32_MAX)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: its tokens have more than 4 GB", file->label);
    return SHOAL_OK;
}

/* ---- Tensors ---------------------------------------------------------------------- */

/* Until the name is read, `name` is the tensor's number, for messages. */
static shoal_status read_tensor(cursor *file, char name[WEIGHT_NAME],
                                file_tensor *tensor) {
    enum { LARGEST_RANK = 4 };
    int32_t rank, length, type, size;
    int64_t elements;
    char what[sizeof(shown_name) + 16];
    *tensor = (file_tensor){.name = name};
    if (!take_int(file, &rank) || !take_int(file, &length) || !take_int(file, &type))
        return cut_short(file, "tensors");
    if (rank < 1 || rank > LARGEST_RANK)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: tensor %s has %d dimensions; 1 to 4 are supported",
                       file->label, name, (int)rank);
    for (int32_t i = rank - 1; i >= 0; i--) { /* the innermost comes first */
        if (!take_int(file, &size))
            return cut_short(file, "tensors");
        if (size < 1)
            return sh_fail(file->context, SHOAL_BAD_FILE,
                           "%s: tensor %s has a dimension of %d", file->label, name,
                           (int)size);
        tensor->shape[i] = size;
    }
    /* A convolution's bias has a dimension of 1 inside. */
    tensor->rank = rank == 2 && tensor->shape[1] == 1 ? 1 : rank;
    if (length < 1 || length >= WEIGHT_NAME)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: tensor %s has a name of %d bytes", file->label, name,
                       (int)length);
    const unsigned char *bytes = take(file, (size_t)length);
    if (!bytes)
        return cut_short(file, "tensors");
    if (memchr(bytes, 0, (size_t)length))
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: tensor %s has a NUL byte in its name", file->label, name);
    memcpy(name, bytes, (size_t)length);
    name[length] = 0;
    snprintf(what, sizeof what, "tensor '%s'", sh_shown(name).text);
    if (type < 0 || type > 8 || read_types[type] < 0)
        return refuse_type(file, what,
                           type >= 0 && type < TENSOR_TYPES ? tensor_types[type] : NULL,
                           type);
    tensor->dtype = (tensor_dtype)read_types[type];
    if (dtype_is_quantised(tensor->dtype) && tensor->shape[rank - 1] % DTYPE_BLOCK)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: %s is %s, but its rows of %lld are not whole blocks of %d",
                       file->label, what, sh_dtype_name(tensor->dtype),
                       (long long)tensor->shape[rank - 1], DTYPE_BLOCK);
    if (!sh_dtype_bytes(tensor->dtype, rank, tensor->shape, &elements, &tensor->bytes) ||
        tensor->bytes > left(file))
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: %s is larger than the rest of the file; is it truncated?",
                       file->label, what);
    tensor->data = take(file, tensor->bytes);
    return SHOAL_OK;
}

static shoal_status read_tensors(cursor *file, whisper_file *model) {
    const int64_t most = sh_whisper_tensor_count(&model->sizes);
    struct whisper_source *source = model->source;
    while (left(file) > 0) {
        const int64_t index = model->tensor_count;
        if (index == most)
            return sh_fail(file->context, SHOAL_BAD_FILE,
                           "%s: has more than the %lld tensors of a model of its size",
                           file->label, (long long)most);
        snprintf(source->names[index], WEIGHT_NAME, "number %lld", (long long)index);
        TRY(read_tensor(file, source->names[index], &source->tensors[index]));
        model->tensor_count++;
    }
    sh_file_tensors_sort(source->tensors, model->tensor_count);
    return sh_whisper_tensors_check(file->context, file->label, &model->sizes,
                                    source->tensors, model->tensor_count);
}

/* ---- The whole file --------------------------------------------------------------- */

shoal_status sh_ggml_parse(shoal_context *context, const char *label,
                           const unsigned char *bytes, size_t size, whisper_file **file) {
    static const unsigned char nothing[1];
    const unsigned char *first = size ? bytes : nothing, *filters = NULL;
    cursor at = {context, label, first, first + size};
    whisper_sizes sizes;
    tokens ids;
    size_t token_bytes;
    *file = NULL;
    TRY(read_header(&at, &sizes, &filters));
    cursor again = at;
    sh_tokens_layout(sizes.vocabulary, &ids);
    TRY(measure_tokens(&at, &ids, &token_bytes));
    TRY(sh_whisper_file_allocate(context, &sizes, token_bytes, file));
    struct whisper_source *source = (*file)->source;
    memcpy(source->mel_filters, filters, (size_t)sizes.mels * MEL_BINS * sizeof(float));
    const shoal_status status = read_tensors(&at, *file);
    if (status != SHOAL_OK) {
        sh_whisper_file_close(*file);
        *file = NULL;
        return status;
    }
    /* The same tokens again, behind their number, which are known to be sound. */
    uint32_t filled = 0;
    int32_t length = 0;
    take(&again, 4);
    for (int32_t id = 0; id < ids.end_of_text; id++) {
        take_int(&again, &length);
        source->begin[id] = filled;
        if (length > 0)
            memcpy(source->bytes + filled, take(&again, (size_t)length), (size_t)length);
        filled += (uint32_t)length;
    }
    for (int32_t id = ids.end_of_text; id <= ids.count; id++)
        source->begin[id] = filled;
    sh_whisper_file_finish_tokens(*file);
    return SHOAL_OK;
}

/* ---- Either kind ------------------------------------------------------------------- */

shoal_status sh_whisper_file_open(shoal_context *context, const char *path,
                                  whisper_file **file) {
    struct stat information;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    *file = NULL;
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode))
        return sh_hf_open(context, path, file);
    if (strcmp(name, "config.json") == 0) {
        const size_t folder_length = (size_t)(name - path);
        char folder[PATH_MAX];
        int length = snprintf(folder, sizeof folder, "%.*s.", (int)folder_length, path);
        if (length < 0 || (size_t)length >= sizeof folder)
            return sh_fail(context, SHOAL_IO, "%s: the path is too long", path);
        return sh_hf_open(context, folder, file);
    }
    file_map map;
    TRY(sh_file_map_open(context, path, &map));
    const shoal_status status = sh_ggml_parse(context, path, map.bytes, map.size, file);
    if (status == SHOAL_OK)
        (*file)->source->map = map;
    else
        sh_file_map_close(&map);
    return status;
}

void sh_whisper_file_unmap(whisper_file *file) {
    struct whisper_source *source = file->source;
    sh_file_map_close(&source->map);
    if (source->weights)
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
