/* Texts from files, block by block, and the model that turns them into vectors. */
#define _GNU_SOURCE
#include "texts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

enum {
    LARGEST_TEXT = 1 << 24, /* bytes, the limit of shoal_text */
    BLOCK_BYTES = 1 << 22,
    INPUT_BYTES = 1 << 16,
    LOOK_MS = 200 /* polling interval for signals while waiting for input */
};

const char *const long_names[] = {"windows", "cut", "stretch", NULL};
const char *const pooling_names[] = {"own", "mean", "first", "max", NULL};

/* ---- One text --------------------------------------------------------------------- */

static const char *path_of(const text_source *s, int file) {
    return strcmp(s->paths[file], "-") == 0 ? "standard input" : s->paths[file];
}

static _Noreturn void refuse(const text_source *s, text_place at, const char *what) {
    if (s->whole)
        die(EXIT_BAD_INPUT, "%s: %s", path_of(s, at.file), what);
    die(EXIT_BAD_INPUT, "%s: line %" PRId64 ": %s", path_of(s, at.file), at.line, what);
}

static _Noreturn void refuse_line(const text_source *s, const char *what) {
    refuse(s, (text_place){s->next - 1, s->line}, what);
}

static void make_room(text_source *s, size_t more) {
    if (s->used + more <= s->room)
        return;
    s->room = 2 * (s->used + more);
    s->bytes = realloc(s->bytes, s->room);
    if (!s->bytes)
        die_of_memory();
}

static void append(text_source *s, const char *text, size_t size) {
    make_room(s, size + 1);
    memcpy(s->bytes + s->used, text, size);
    s->used += size;
    s->bytes[s->used] = 0;
}

/* Reads more input; leaves none at the end of the file. A recorded signal ends the
   wait, because nothing may ever be written to a pipe. */
static void refill(text_source *s) {
    struct pollfd wait = {.fd = s->file, .events = POLLIN};
    ssize_t count = -1;
    while (count < 0) {
        if (stop_signal())
            leave(128 + stop_signal());
        if (poll(&wait, 1, LOOK_MS) <= 0)
            continue;
        count = read(s->file, s->input, INPUT_BYTES);
        if (count < 0 && errno != EINTR && errno != EAGAIN)
            die(EXIT_BAD_INPUT, "%s: cannot read it: %s", path_of(s, s->next - 1),
                strerror(errno));
    }
    s->input_at = 0;
    s->input_count = (size_t)count;
}

/* Appends a line, or a whole file with `whole`, to the block. Returns false at the end
   of the file. */
static bool read_text(text_source *s) {
    const size_t begin = s->used;
    bool got = false;
    for (;;) {
        if (s->input_at == s->input_count)
            refill(s);
        if (s->input_count == 0)
            break;
        const unsigned char c = s->input[s->input_at++];
        got = true;
        if (c == '\n' && !s->whole)
            break;
        make_room(s, 2);
        s->bytes[s->used++] = (char)c;
        if (s->used - begin > LARGEST_TEXT)
            refuse_line(s, "is longer than 16 MiB; split it");
    }
    if (got && !s->whole && s->used > begin && s->bytes[s->used - 1] == '\r')
        s->used--;
    make_room(s, 1);
    return got;
}

static void check_letters(const text_source *s, size_t begin) {
    char what[64];
    utf8proc_int32_t letter;
    for (size_t at = begin; at < s->used;) {
        const ptrdiff_t bytes = utf8proc_iterate((const unsigned char *)s->bytes + at,
                                                 (utf8proc_ssize_t)(s->used - at),
                                                 &letter);
        snprintf(what, sizeof what, "is not UTF-8: byte %zu is invalid", at - begin + 1);
        if (bytes <= 0)
            refuse_line(s, what);
        at += (size_t)bytes;
    }
}

/* Replaces the JSON from `begin` on by the text of the field. */
static void take_field(text_source *s, size_t begin) {
    json_error_t error;
    json_t *root = json_loadb(s->bytes + begin, s->used - begin, 0, &error);
    const json_t *value = json_object_get(root, s->field);
    char what[JSON_ERROR_TEXT_LENGTH + 64] = "is not a JSON object";
    if (!root)
        snprintf(what, sizeof what, "is not a JSON object: %s", error.text);
    else if (json_is_object(root))
        snprintf(what, sizeof what, "has no string in the field %.64s", s->field);
    if (!json_is_string(value))
        refuse_line(s, what);
    s->used = begin;
    append(s, json_string_value(value), json_string_length(value));
    json_decref(root);
}

/* ---- Blocks ----------------------------------------------------------------------- */

static void close_file(text_source *s) {
    if (s->open && s->file != STDIN_FILENO)
        close(s->file);
    s->open = false;
}

/* Adds one text to the block, or closes the file at its end. */
static void read_one(text_source *s) {
    const size_t start = s->used;
    append(s, s->prefix ? s->prefix : "", s->prefix ? strlen(s->prefix) : 0);
    const size_t begin = s->used;
    bool blank = false;
    s->line++;
    const bool got = read_text(s);
    if (got) {
        /* A byte order mark is not part of the text. */
        if (s->line == 1 && s->used - begin >= 3 &&
            memcmp(s->bytes + begin, "\xef\xbb\xbf", 3) == 0) {
            s->used -= 3;
            memmove(s->bytes + begin, s->bytes + begin + 3, s->used - begin);
        }
        s->bytes[s->used] = 0;
        blank = s->field && !s->whole &&
                begin + strspn(s->bytes + begin, " \t\r") == s->used;
        if (!blank && s->field)
            take_field(s, begin);
        else if (!blank)
            check_letters(s, begin);
    }
    if (!got || s->whole)
        close_file(s);
    if (!s->whole && (!got || blank)) {
        s->used = start;
        return;
    }
    s->begins[s->count] = start;
    s->places[s->count] = (text_place){s->next - 1, s->line};
    s->sizes[s->count++] = (int64_t)(s->used - start);
    s->bytes[s->used++] = 0;
}

void texts_next(text_source *s) {
    if (!s->begins) {
        s->begins = reserve(TEXT_BLOCK, sizeof *s->begins);
        s->sizes = reserve(TEXT_BLOCK, sizeof *s->sizes);
        s->places = reserve(TEXT_BLOCK, sizeof *s->places);
        s->texts = reserve(TEXT_BLOCK, sizeof *s->texts);
        s->input = reserve(INPUT_BYTES, 1);
    }
    s->first += s->count;
    s->count = 0;
    s->used = 0;
    while (s->count < TEXT_BLOCK && s->used < BLOCK_BYTES &&
           (s->open || s->next < s->files)) {
        if (!s->open) {
            const char *path = s->paths[s->next++];
            s->line = 0;
            s->input_at = s->input_count = 0;
            s->file = strcmp(path, "-") == 0 ? STDIN_FILENO
                                             : open(path, O_RDONLY | O_CLOEXEC);
            s->open = s->file >= 0;
            if (!s->open)
                die(EXIT_BAD_INPUT, "%s: cannot read it: %s", path, strerror(errno));
        }
        read_one(s);
    }
    for (int64_t i = 0; i < s->count; i++)
        s->texts[i] = s->bytes + s->begins[i];
}

void texts_close(text_source *s) {
    close_file(s);
    free(s->bytes);
    free(s->input);
    free(s->begins);
    free(s->sizes);
    free(s->places);
    free(s->texts);
}

/* ---- The model -------------------------------------------------------------------- */

void open_text_model(text_model *model) {
    if (!model->folder || !*model->folder)
        die(EXIT_USAGE,
            "no model; give --model DIR or set SHOAL_TEXT_MODEL. DIR is a Hugging Face "
            "folder, such as sentence-transformers/all-MiniLM-L6-v2 (91 MB), with "
            "config.json, tokenizer.json, modules.json, 1_Pooling and model.safetensors");
    const shoal_text_encoder_options options = {.size =
                                                    sizeof(shoal_text_encoder_options),
                                                .attention = model->attention,
                                                .rows = model->rows,
                                                .window = model->window,
                                                .stride = model->stride,
                                                .long_texts = model->long_texts,
                                                .pooling = model->pooling,
                                                .normalize = model->normalize,
                                        .precision = model->exact
                                                         ? SHOAL_PRECISION_FLOAT32
                                                         : model->precision};
    model->context = begin_context(model->threads, model->isa);
    progress_begin(1);
    progress_say("opening %s", model->folder);
    const shoal_status status =
        shoal_text_encoder_open(model->context, model->folder, &options, &model->encoder);
    progress_end();
    demand(status, status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT);
    model->size = shoal_text_encoder_describe(model->encoder)->width;
}

void embed_block(text_model *model, const text_source *source, float *vectors) {
    const shoal_status status = shoal_text_encoder_embed(model->encoder, source->count,
                                                         source->texts, source->sizes,
                                                         vectors);
    int64_t number; /* index of the text that the message is about */
    int length = 0;
    const char *message = shoal_context_message(model->context);
    if (status == SHOAL_INVALID &&
        sscanf(message, "text %" SCNd64 ": %n", &number, &length) == 1 && length > 0 &&
        number >= 1 && number <= source->count)
        refuse(source, source->places[number - 1], message + length);
    demand(status, EXIT_BAD_INPUT);
}
