/* whisper.cpp's model files. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "speech/audio/mel.h"
#include "speech/whisper/whisper_readers.h"

static const uint32_t ggml_magic = 0x67676d6c;

/* ---- Bytes, never beyond the end -------------------------------------------------- */

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
                   "%s: ends within its %s; the file was cut short", file->label, where);
}

static bool looks_like_ggml(const unsigned char *bytes, size_t size) {
    return size >= 4 && word_at(bytes) == ggml_magic;
}

/* ---- Types ------------------------------------------------------------------------ */

/* Names of the types of tensors, by number, and of files. */
static const char *tensor_type_name(int32_t type) {
    static const char *const names[] = {"F32",  "F16",  "Q4_0", "Q4_1", NULL,   NULL,
                                        "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K",
                                        "Q4_K", "Q5_K", "Q6_K", "Q8_K"};
    bool known = type >= 0 && type < (int32_t)(sizeof names / sizeof *names);
    return known ? names[type] : NULL;
}

static const char *file_type_name(int32_t type) {
    static const char *const names[] = {"F32",  "F16",  "Q4_0", "Q4_1", "Q4_1 (some F16)",
                                        NULL,   NULL,   "Q8_0", "Q5_0", "Q5_1",
                                        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"};
    bool known = type >= 0 && type < (int32_t)(sizeof names / sizeof *names);
    return known ? names[type] : NULL;
}

/* By the number of a tensor's type; false: not one that is read. */
static bool type_of(int32_t type, tensor_dtype *dtype) {
    static const struct {
        int32_t type;
        tensor_dtype dtype;
    } known[] = {{0, DTYPE_F32},  {1, DTYPE_F16},  {2, DTYPE_Q4_0}, {3, DTYPE_Q4_1},
                 {6, DTYPE_Q5_0}, {7, DTYPE_Q5_1}, {8, DTYPE_Q8_0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].type == type) {
            *dtype = known[i].dtype;
            return true;
        }
    return false;
}

/* The file's type only says what most of its matrices are. */
static bool file_type_is_read(int32_t type) {
    return (type >= 0 && type <= 4) || (type >= 7 && type <= 9);
}

static shoal_status refuse_type(const cursor *file, const char *what, const char *name,
                                int32_t number) {
    if (!name)
        return sh_fail(file->context, SHOAL_BAD_FILE, "%s: %s has the unknown type %d",
                       file->label, what, (int)number);
    return sh_fail(
        file->context, SHOAL_BAD_FILE,
        "%s: %s is quantised as %s; Shoal reads F32, F16, Q4_0, Q4_1, Q5_0, Q5_1 "
        "and Q8_0",
        file->label, what, name);
}

/* ---- Header ----------------------------------------------------------------------- */

static shoal_status read_sizes(cursor *file, whisper_sizes *sizes) {
    enum { QUANTISATION_VERSIONS = 1000 }; /* the type's number carries a version */
    int32_t type;
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
    if (!looks_like_ggml(file->at, left(file)))
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: is not a whisper.cpp (ggml) model; give such a file or a "
                       "Hugging Face folder",
                       file->label);
    take(file, 4);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!take_int(file, fields[i]))
            return cut_short(file, "sizes");
    if (!file_type_is_read(type < 0 ? type : type % QUANTISATION_VERSIONS))
        return refuse_type(file, "the model",
                           type > 1 ? file_type_name(type % QUANTISATION_VERSIONS) : NULL,
                           type);
    return sh_whisper_sizes_check(file->context, file->label, sizes);
}

/* *filters: [mels][MEL_BINS] floats, not aligned. */
static shoal_status read_filters(cursor *file, const whisper_sizes *sizes,
                                 const unsigned char **filters) {
    int32_t mels, bins;
    if (!take_int(file, &mels) || !take_int(file, &bins))
        return cut_short(file, "mel filters");
    if (mels != sizes->mels || bins != MEL_BINS)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: its mel filters are %d x %d and should be %d x %d",
                       file->label, (int)mels, (int)bins, (int)sizes->mels,
                       (int)MEL_BINS);
    size_t count = (size_t)mels * MEL_BINS;
    *filters = take(file, count * sizeof(float));
    if (!*filters)
        return cut_short(file, "mel filters");
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, *filters + i * sizeof value, sizeof value);
        if (!(fabsf(value) <= 1.0f))
            return sh_fail(file->context, SHOAL_BAD_FILE,
                           "%s: a mel filter has a weight beyond 1", file->label);
    }
    return SHOAL_OK;
}

/* Adds up the text tokens' bytes; the cursor ends after the tokens. */
static shoal_status measure_tokens(cursor *file, const tokens *t, int32_t *count,
                                   size_t *bytes) {
    *bytes = 0;
    if (!take_int(file, count))
        return cut_short(file, "tokens");
    if (*count < t->end_of_text || *count > t->count)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: has %d tokens and should have %d to %d", file->label,
                       (int)*count, (int)t->end_of_text, (int)t->count);
    for (int32_t id = 0; id < *count; id++) {
        int32_t length;
        if (!take_int(file, &length))
            return cut_short(file, "tokens");
        if (length < 0 || !take(file, (size_t)length))
            return sh_fail(file->context, SHOAL_BAD_FILE,
                           "%s: token %d has a length of %d, beyond the end of the file",
                           file->label, (int)id, (int)length);
        *bytes += id < t->end_of_text ? (size_t)length : 0;
    }
    if (*bytes > UINT32_MAX)
        return sh_fail(file->context, SHOAL_BAD_FILE, "%s: its tokens have over 4 GB",
                       file->label);
    return SHOAL_OK;
}

/* The same tokens again, which are known to be sound. */
static void copy_tokens(cursor file, const tokens *t, struct whisper_source *source) {
    uint32_t filled = 0;
    int32_t count, length = 0;
    take_int(&file, &count);
    for (int32_t id = 0; id < t->end_of_text; id++) {
        take_int(&file, &length);
        source->begin[id] = filled;
        if (length > 0)
            memcpy(source->bytes + filled, take(&file, (size_t)length), (size_t)length);
        filled += (uint32_t)length;
    }
    for (int32_t id = t->end_of_text; id <= t->count; id++)
        source->begin[id] = filled;
}

/* ---- Tensors ---------------------------------------------------------------------- */

/* Dimensions come innermost first. A convolution's bias has a dimension of 1 inside. */
static shoal_status read_dimensions(cursor *file, int32_t rank, file_tensor *tensor) {
    enum { LARGEST_RANK = 4 };
    if (rank < 1 || rank > LARGEST_RANK)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: tensor %s has %d dimensions; 1 to 4 are possible",
                       file->label, sh_shown(tensor->name).text, (int)rank);
    for (int32_t i = rank - 1; i >= 0; i--) {
        int32_t size;
        if (!take_int(file, &size))
            return cut_short(file, "tensors");
        if (size < 1)
            return sh_fail(file->context, SHOAL_BAD_FILE,
                           "%s: tensor %s has a dimension of %d", file->label,
                           sh_shown(tensor->name).text, (int)size);
        tensor->shape[i] = size;
    }
    tensor->rank = rank == 2 && tensor->shape[1] == 1 ? 1 : rank;
    return SHOAL_OK;
}

static shoal_status read_name(cursor *file, int32_t length, char name[WEIGHT_NAME]) {
    if (length < 1 || length >= WEIGHT_NAME)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: tensor %s has a name of %d bytes", file->label, name,
                       (int)length);
    const unsigned char *bytes = take(file, (size_t)length);
    if (!bytes)
        return cut_short(file, "tensors");
    if (memchr(bytes, 0, (size_t)length))
        return sh_fail(file->context, SHOAL_BAD_FILE, "%s: tensor %s has a 0 in its name",
                       file->label, name);
    memcpy(name, bytes, (size_t)length);
    name[length] = 0;
    return SHOAL_OK;
}

static shoal_status read_type(const cursor *file, int32_t type, file_tensor *tensor) {
    char what[sizeof(shown_name) + 16];
    snprintf(what, sizeof what, "tensor '%s'", sh_shown(tensor->name).text);
    return type_of(type, &tensor->dtype)
               ? SHOAL_OK
               : refuse_type(file, what, tensor_type_name(type), type);
}

/* Until the name is read, `name` is the tensor's number, for messages. */
static shoal_status read_tensor(cursor *file, char name[WEIGHT_NAME],
                                file_tensor *tensor) {
    int32_t rank, length, type;
    int64_t elements;
    *tensor = (file_tensor){.name = name};
    if (!take_int(file, &rank) || !take_int(file, &length) || !take_int(file, &type))
        return cut_short(file, "tensors");
    shoal_status status = read_dimensions(file, rank, tensor);
    if (status == SHOAL_OK)
        status = read_name(file, length, name);
    if (status == SHOAL_OK)
        status = read_type(file, type, tensor);
    if (status != SHOAL_OK)
        return status;
    if (dtype_is_quantised(tensor->dtype) && tensor->shape[rank - 1] % DTYPE_BLOCK)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: tensor '%s' is %s, but its rows of %lld are not whole blocks "
                       "of %d",
                       file->label, sh_shown(name).text, sh_dtype_name(tensor->dtype),
                       (long long)tensor->shape[rank - 1], DTYPE_BLOCK);
    if (!sh_dtype_bytes(tensor->dtype, rank, tensor->shape, &elements, &tensor->bytes) ||
        tensor->bytes > left(file))
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: tensor '%s' is larger than the rest of the file; is it cut "
                       "short?",
                       file->label, sh_shown(name).text);
    tensor->data = take(file, tensor->bytes);
    return SHOAL_OK;
}

static shoal_status read_tensors(cursor *file, whisper_file *model) {
    int64_t most = sh_whisper_tensor_count(&model->sizes);
    struct whisper_source *source = model->source;
    shoal_status status = SHOAL_OK;
    while (left(file) > 0 && status == SHOAL_OK) {
        int64_t index = model->tensor_count;
        if (index == most)
            return sh_fail(file->context, SHOAL_BAD_FILE,
                           "%s: has more than the %lld tensors of a model of its sizes",
                           file->label, (long long)most);
        snprintf(source->names[index], WEIGHT_NAME, "number %lld", (long long)index);
        status = read_tensor(file, source->names[index], &source->tensors[index]);
        model->tensor_count++;
    }
    if (status != SHOAL_OK)
        return status;
    sh_file_tensors_sort(source->tensors, model->tensor_count);
    return sh_whisper_tensors_check(file->context, file->label, &model->sizes,
                                    source->tensors, model->tensor_count);
}

/* ---- The whole file --------------------------------------------------------------- */

shoal_status sh_ggml_parse(shoal_context *context, const char *label,
                           const unsigned char *bytes, size_t size, whisper_file **file) {
    static const unsigned char nothing[1];
    const unsigned char *first = size ? bytes : nothing;
    cursor at = {context, label, first, first + size};
    const unsigned char *filters = NULL;
    whisper_sizes sizes;
    tokens layout_of_ids;
    int32_t token_count;
    size_t token_bytes;
    *file = NULL;
    shoal_status status = read_sizes(&at, &sizes);
    if (status == SHOAL_OK)
        status = read_filters(&at, &sizes, &filters);
    if (status != SHOAL_OK)
        return status;
    cursor tokens_begin = at;
    sh_tokens_layout(sizes.vocabulary, &layout_of_ids);
    status = measure_tokens(&at, &layout_of_ids, &token_count, &token_bytes);
    if (status == SHOAL_OK)
        status = sh_whisper_file_allocate(context, &sizes, token_bytes, file);
    if (status != SHOAL_OK)
        return status;
    memcpy((*file)->source->mel_filters, filters,
           (size_t)sizes.mels * MEL_BINS * sizeof(float));
    status = read_tensors(&at, *file);
    if (status != SHOAL_OK) {
        sh_whisper_file_close(*file);
        *file = NULL;
        return status;
    }
    copy_tokens(tokens_begin, &layout_of_ids, (*file)->source);
    sh_whisper_file_finish_tokens(*file);
    return SHOAL_OK;
}

shoal_status sh_ggml_open(shoal_context *context, const char *path, whisper_file **file) {
    file_map map;
    *file = NULL;
    shoal_status status = sh_file_map_open(context, path, &map);
    if (status == SHOAL_OK)
        status = sh_ggml_parse(context, path, map.bytes, map.size, file);
    if (status == SHOAL_OK)
        (*file)->source->map = map;
    else
        sh_file_map_close(&map);
    return status;
}
