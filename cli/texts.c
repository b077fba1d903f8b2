/* Texts out of files, block by block, and the model that turns them into vectors. */
#define _GNU_SOURCE
#include "texts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

enum {
    LARGEST_TEXT = 1 << 24, /* bytes, as shoal_text allows */
    BLOCK_BYTES = 1 << 22,
    INPUT_BYTES = 1 << 16,
    LOOK_MS = 200 /* how often a signal is looked for while waiting for input */
};

const char *const long_names[] = {"windows", "cut", "stretch", NULL};
const char *const pooling_names[] = {"own", "mean", "first", "max", NULL};

/* ---- One text --------------------------------------------------------------------- */

static int out_of_memory(const text_source *s) {
    return complain(EXIT_RESOURCES, s->command, "out of memory");
}

static const char *path_of(const text_source *s, int file) {
    return strcmp(s->paths[file], "-") == 0 ? "standard input" : s->paths[file];
}

static const char *path_now(const text_source *s) {
    return path_of(s, s->next - 1);
}

static int bad_text(const text_source *s, text_place at, const char *what) {
    if (s->whole)
        return complain(EXIT_BAD_INPUT, s->command, "%s: %s", path_of(s, at.file), what);
    return complain(EXIT_BAD_INPUT, s->command, "%s: line %" PRId64 ": %s",
                    path_of(s, at.file), at.line, what);
}

static int bad_line(const text_source *s, const char *what) {
    return bad_text(s, (text_place){s->next - 1, s->line}, what);
}

static bool make_room(text_source *s, size_t more) {
    if (s->used + more <= s->room)
        return true;
    size_t room = 2 * (s->used + more);
    char *grown = realloc(s->bytes, room);
    if (!grown)
        return false;
    s->bytes = grown;
    s->room = room;
    return true;
}

static bool append(text_source *s, const char *text, size_t size) {
    if (!make_room(s, size + 1))
        return false;
    memcpy(s->bytes + s->used, text, size);
    s->used += size;
    s->bytes[s->used] = 0;
    return true;
}

/* More input, or none at the file's end. A signal that was noted ends the waiting: nobody
   may ever write into a pipe. */
static int refill(text_source *s) {
    struct pollfd wait = {.fd = s->file, .events = POLLIN};
    ssize_t count = -1;
    while (count < 0) {
        if (stop_signal())
            return 128 + stop_signal();
        if (poll(&wait, 1, LOOK_MS) <= 0)
            continue;
        count = read(s->file, s->input, INPUT_BYTES);
        if (count < 0 && errno != EINTR && errno != EAGAIN)
            return complain(EXIT_BAD_INPUT, s->command, "%s cannot be read: %s",
                            path_now(s), strerror(errno));
    }
    s->input_at = 0;
    s->input_count = (size_t)count;
    return EXIT_OK;
}

/* Reads up to the end of a line, or of the file where it is one text, behind what is in
   the block. *got: whether there was anything. */
static int read_text(text_source *s, bool *got) {
    const size_t begin = s->used;
    *got = false;
    for (;;) {
        const int code = s->input_at == s->input_count ? refill(s) : EXIT_OK;
        if (code != EXIT_OK)
            return code;
        if (s->input_count == 0)
            break;
        const unsigned char c = s->input[s->input_at++];
        *got = true;
        if (c == '\n' && !s->whole)
            break;
        if (!make_room(s, 2))
            return out_of_memory(s);
        s->bytes[s->used++] = (char)c;
        if (s->used - begin > LARGEST_TEXT)
            return bad_line(s, "is longer than 16 MiB; cut it into several");
    }
    if (*got && !s->whole && s->used > begin && s->bytes[s->used - 1] == '\r')
        s->used--;
    return make_room(s, 1) ? EXIT_OK : out_of_memory(s);
}

/* Bytes of the character at `text`; 0: it is not UTF-8. */
static size_t letter_bytes(const unsigned char *text, size_t size) {
    const unsigned char first = text[0];
    const size_t bytes = first < 0x80                    ? 1
                         : first >= 0xc2 && first < 0xe0 ? 2
                         : first >= 0xe0 && first < 0xf0 ? 3
                         : first >= 0xf0 && first < 0xf5 ? 4
                                                         : 0;
    if (bytes < 2 || bytes > size)
        return bytes > size ? 0 : bytes;
    /* Nothing overlong, no surrogates, nothing behind U+10FFFF. */
    const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    bool good = text[1] >= least && text[1] <= most;
    for (size_t i = 2; i < bytes; i++)
        good = good && (text[i] & 0xc0) == 0x80;
    return good ? bytes : 0;
}

static int check_letters(const text_source *s, size_t begin) {
    char what[64];
    for (size_t at = begin; at < s->used;) {
        const size_t bytes =
            letter_bytes((const unsigned char *)s->bytes + at, s->used - at);
        snprintf(what, sizeof what, "is not UTF-8: byte %zu cannot be read",
                 at - begin + 1);
        if (bytes == 0)
            return bad_line(s, what);
        at += bytes;
    }
    return EXIT_OK;
}

/* A byte order mark says how a file is written, and is no part of its text. */
static void drop_mark(text_source *s, size_t begin) {
    static const char mark[] = "\xef\xbb\xbf";
    const size_t size = sizeof mark - 1;
    if (s->line != 1 || s->used - begin < size ||
        memcmp(s->bytes + begin, mark, size) != 0)
        return;
    memmove(s->bytes + begin, s->bytes + begin + size, s->used - begin - size);
    s->used -= size;
}

static bool is_blank(const text_source *s, size_t begin) {
    while (begin < s->used && strchr(" \t\r", s->bytes[begin]) && s->bytes[begin])
        begin++;
    return begin == s->used;
}

/* Puts the field's text in the place of the JSON from `begin` on. */
static int take_field(text_source *s, size_t begin) {
    json_error_t error;
    json_t *root = json_loadb(s->bytes + begin, s->used - begin, 0, &error);
    const json_t *value = json_object_get(root, s->field);
    const char *text = json_string_value(value);
    char what[JSON_ERROR_TEXT_LENGTH + 64];
    int code = EXIT_OK;
    s->used = begin;
    if (!root)
        snprintf(what, sizeof what, "is not a JSON object: %s", error.text);
    else if (!json_is_object(root))
        strcpy(what, "is not a JSON object");
    else
        snprintf(what, sizeof what, "has no text in the field %.64s", s->field);
    if (!text)
        code = bad_line(s, what);
    else if (!append(s, text, json_string_length(value)))
        code = out_of_memory(s);
    json_decref(root);
    return code;
}

/* ---- Blocks ----------------------------------------------------------------------- */

static int open_next(text_source *s) {
    const char *path = s->paths[s->next++];
    s->line = 0;
    s->input_at = s->input_count = 0;
    s->file = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    s->open = s->file >= 0;
    if (s->open)
        return EXIT_OK;
    return complain(EXIT_BAD_INPUT, s->command, "%s cannot be read: %s", path,
                    strerror(errno));
}

static void close_file(text_source *s) {
    if (s->open && s->file != STDIN_FILENO)
        close(s->file);
    s->open = false;
}

static void keep_text(text_source *s, size_t start) {
    s->begins[s->count] = start;
    s->places[s->count] = (text_place){s->next - 1, s->line};
    s->sizes[s->count++] = (int64_t)(s->used - start);
    s->bytes[s->used++] = 0;
}

/* One more text in the block, or the end of the file. */
static int read_one(text_source *s) {
    const size_t start = s->used;
    if (s->prefix && !append(s, s->prefix, strlen(s->prefix)))
        return out_of_memory(s);
    const size_t begin = s->used;
    bool got, blank = false;
    s->line++;
    int code = read_text(s, &got);
    if (code == EXIT_OK && got) {
        drop_mark(s, begin);
        blank = s->field && !s->whole && is_blank(s, begin);
        if (!blank)
            code = s->field ? take_field(s, begin) : check_letters(s, begin);
    }
    if (code != EXIT_OK)
        return code;
    if (!got || s->whole)
        close_file(s);
    if (s->whole || (got && !blank))
        keep_text(s, start);
    else
        s->used = start;
    return EXIT_OK;
}

static bool make_arrays(text_source *s) {
    if (!s->begins)
        s->begins = malloc(TEXT_BLOCK * sizeof *s->begins);
    if (!s->sizes)
        s->sizes = malloc(TEXT_BLOCK * sizeof *s->sizes);
    if (!s->places)
        s->places = malloc(TEXT_BLOCK * sizeof *s->places);
    if (!s->texts)
        s->texts = malloc(TEXT_BLOCK * sizeof *s->texts);
    if (!s->input)
        s->input = malloc(INPUT_BYTES);
    return s->begins && s->sizes && s->places && s->texts && s->input;
}

int texts_next(text_source *s) {
    int code = make_arrays(s) ? EXIT_OK : out_of_memory(s);
    s->first += s->count;
    s->count = 0;
    s->used = 0;
    while (code == EXIT_OK && s->count < TEXT_BLOCK && s->used < BLOCK_BYTES) {
        if (!s->open && s->next == s->files)
            break;
        if (!s->open)
            code = open_next(s);
        if (code == EXIT_OK)
            code = read_one(s);
    }
    for (int64_t i = 0; i < s->count; i++)
        s->texts[i] = s->bytes + s->begins[i];
    return code;
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

int open_text_model(const char *command, text_model *model) {
    if (!model->folder || !*model->folder)
        return complain(EXIT_USAGE, command,
                        "no model; give --model DIR or set SHOAL_MODEL");
    const shoal_text_options options = {.attention = model->attention,
                                        .rows = model->rows,
                                        .window = model->window,
                                        .stride = model->stride,
                                        .long_texts = model->long_texts,
                                        .pooling = model->pooling,
                                        .normalize = model->normalize};
    int code = open_context(command, (int)model->threads, model->isa, &model->context);
    if (code != EXIT_OK)
        return code;
    progress_begin(1);
    progress_say("opening %s", model->folder);
    const shoal_status status =
        shoal_text_encoder_open(model->context, model->folder, &options, &model->encoder);
    progress_end();
    if (status != SHOAL_OK)
        return complain_status(status,
                               status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT,
                               command, model->context);
    model->size = shoal_text_encoder_info(model->encoder)->size;
    return EXIT_OK;
}

void close_text_model(text_model *model) {
    shoal_text_encoder_close(model->encoder);
    shoal_context_destroy(model->context);
}

int embed_block(const char *command, text_model *model, const text_source *source,
                float *vectors) {
    const shoal_status status = shoal_text_encoder_embed(model->encoder, source->count,
                                                         source->texts, source->sizes,
                                                         vectors);
    int64_t number; /* of the text that the message is about */
    int length = 0;
    const char *message = shoal_context_message(model->context);
    if (status == SHOAL_OK)
        return EXIT_OK;
    if (status == SHOAL_INVALID &&
        sscanf(message, "text %" SCNd64 ": %n", &number, &length) == 1 && length > 0 &&
        number >= 1 && number <= source->count)
        return bad_text(source, source->places[number - 1], message + length);
    return complain_status(status, EXIT_BAD_INPUT, command, model->context);
}
