/* Language models from ARPA text, plain or compressed by gzip: read line by line, so
   that memory does not depend on the file or its lines, and checked: counts, numbers,
   duplicate words and n-grams, n-grams whose prefix is missing. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/numbers.h"
#include "base/plain.h"
#include "models/files/files.h"
#include "speech/words/grow.h"
#include "speech/words/ngram.h"

enum {
    BUFFER = 1 << 18,
    LONGEST_LINE = 1 << 14,
    MOST_FIELDS = NGRAM_MOST_ORDER + 3,
    MOST_REASON = 300
};

/* ---- Lines ------------------------------------------------------------------------- */

typedef struct {
    shoal_context *context;
    const char *label;
    gzFile file; /* NULL for memory */
    const char *memory;
    size_t left;
    char *buffer; /* [BUFFER + 1] */
    size_t at, filled;
    bool ended;
    int32_t number; /* line number, from 1 */
    shoal_ngram *model;
    int64_t counts[NGRAM_MOST_ORDER + 1]; /* from the header */
    /* The current section: */
    int level;
    ngram_record *records; /* [room] */
    int64_t count, room;
    int32_t last[NGRAM_MOST_ORDER]; /* words of the previous n-gram */
    int64_t context_entry;          /* entry of its context; -1 if unknown */
} arpa;

static shoal_status bad(const arpa *a, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static shoal_status bad(const arpa *a, const char *format, ...) {
    char reason[MOST_REASON];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return sh_fail(a->context, SHOAL_BAD_FILE, "%s: line %d: %s", sh_shown(a->label).text,
                   (int)a->number, reason);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* Returns the next nonempty line without surrounding blanks, valid until the next call;
   NULL after the last. */
static shoal_status next_line(arpa *a, char **line) {
    for (;;) {
        char *start = a->buffer + a->at;
        char *end = memchr(start, '\n', a->filled - a->at);
        const size_t length = end ? (size_t)(end - start) : a->filled - a->at;
        if (length > LONGEST_LINE || a->number == INT32_MAX - 1) {
            a->number++;
            return bad(a, "is longer than %d bytes", LONGEST_LINE);
        }
        if (!end && !a->ended) {
            /* Refills the buffer. */
            memmove(a->buffer, a->buffer + a->at, a->filled - a->at);
            a->filled -= a->at;
            a->at = 0;
            const size_t room = BUFFER - a->filled;
            size_t got;
            if (a->file) {
                const int read = gzread(a->file, a->buffer + a->filled, (unsigned)room);
                int error = 0;
                const char *message = gzerror(a->file, &error);
                if (read < 0 || (read == 0 && error != Z_OK && error != Z_STREAM_END))
                    return bad(a, "cannot read further: %s",
                               error == Z_ERRNO ? "input error" : message);
                got = (size_t)read;
            } else {
                got = a->left < room ? a->left : room;
                if (got)
                    memcpy(a->buffer + a->filled, a->memory, got);
                a->memory += got;
                a->left -= got;
            }
            a->filled += got;
            a->ended = got == 0;
            continue;
        }
        *line = NULL;
        if (!end && length == 0)
            return SHOAL_OK;
        a->number++;
        a->at += length + (end != NULL);
        if (memchr(start, 0, length))
            return bad(a, "contains control characters");
        end = start + length;
        while (end > start && is_blank(end[-1]))
            end--;
        while (start < end && is_blank(*start))
            start++;
        *end = 0; /* the buffer has one more byte */
        *line = start;
        if (start < end)
            return SHOAL_OK;
    }
}

static shoal_status no_end(arpa *a, const char *what) {
    a->number++;
    return bad(a, "the file ends before %s", what);
}

/* ---- Numbers ----------------------------------------------------------------------- */

/* Converts log10 to natural; -inf, which some files use for impossible events, is -99.
   Plain decimals are parsed directly, others by the C library. */
static bool read_log(const char *text, double highest, float *value) {
    static const double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
    const char *at = text + (*text == '-');
    int64_t digits = 0;
    int count = 0, after = 0;
    double number;
    for (; *at >= '0' && *at <= '9' && count < 15; at++, count++)
        digits = 10 * digits + (*at - '0');
    if (*at == '.')
        for (at++; *at >= '0' && *at <= '9' && count < 15 && after < 9; at++, count++) {
            digits = 10 * digits + (*at - '0');
            after++;
        }
    if (!*at && count > 0)
        number = (double)(*text == '-' ? -digits : digits) / powers[after];
    else if (!sh_read_c(text, &number))
        return false;
    if (isnan(number) || number > highest)
        return false;
    *value = (float)((number < -99 ? -99 : number) * 2.302585092994045684);
    return true;
}

/* ---- The header -------------------------------------------------------------------- */

/* Reads up to the first section, whose line is returned in *line. */
static shoal_status read_header(arpa *a, int *order, char **line) {
    do {
        TRY(next_line(a, line));
        if (!*line)
            return no_end(a,
                          "a line \\data\\: it is not a language model in ARPA format");
    } while (strcmp(*line, "\\data\\") != 0);
    for (*order = 0;; ++*order) {
        int64_t level = 0, count = 0;
        int end = 0;
        TRY(next_line(a, line));
        if (!*line)
            return no_end(a, "\\1-grams:");
        if ((*line)[0] == '\\')
            return *order > 0 ? SHOAL_OK : bad(a, "counts must come before this");
        /* "ngram 2=31"; *order is the number of counts so far. */
        if (strlen(*line) > 40 ||
            sscanf(*line, "ngram %9" SCNd64 " = %12" SCNd64 "%n", &level, &count, &end) <
                2 ||
            (*line)[end])
            return bad(a, "'%s' does not have the form ngram 1=5", sh_shown(*line).text);
        if (level != *order + 1)
            return bad(a, "the count of %d-grams is expected here", *order + 1);
        if (level > NGRAM_MOST_ORDER)
            return bad(a, "n-grams of more than %d words are not supported",
                       NGRAM_MOST_ORDER);
        if (count < 0 || count > INT32_MAX - 2 || (level == 1 && count == 0))
            return bad(a, "%lld is not a valid number of n-grams", (long long)count);
        a->counts[level] = count;
    }
}

/* ---- Sections ---------------------------------------------------------------------- */

/* Finds the indices of the record's words, which 1-grams define. */
static shoal_status find_words(arpa *a, char **texts, ngram_record *record) {
    int32_t words[NGRAM_MOST_ORDER];
    if (a->level == 1) {
        const size_t length = strlen(texts[0]);
        if (length > NGRAM_MOST_LETTERS)
            return bad(a, "a word has more than %d bytes", NGRAM_MOST_LETTERS);
        record->word = sh_ngram_add_word(a->model, texts[0], length);
        if (record->word == -1)
            return bad(a, "duplicate word '%s'", sh_shown(texts[0]).text);
        return record->word >= 0 ? SHOAL_OK : sh_ngram_no_memory(a->context);
    }
    for (int i = 0; i < a->level; i++) {
        words[i] = sh_ngram_find(a->model, texts[i], strlen(texts[i]));
        if (words[i] < 0)
            return bad(a, "the word '%s' is not among the 1-grams",
                       sh_shown(texts[i]).text);
    }
    /* In sorted files consecutive n-grams have the same prefix. */
    const int known = a->level - 1;
    const size_t bytes = sizeof *words * (size_t)known;
    if (a->context_entry < 0 || memcmp(words, a->last, bytes) != 0) {
        a->context_entry = words[0];
        for (int i = 1; i < known && a->context_entry >= 0; i++)
            a->context_entry = sh_ngram_child(a->model, i, a->context_entry, words[i]);
        memcpy(a->last, words, bytes);
    }
    if (a->context_entry < 0)
        return bad(a, "the %d-gram begins with words that are not a %d-gram", a->level,
                   known);
    record->context = (int32_t)a->context_entry;
    record->word = words[known];
    return SHOAL_OK;
}

static shoal_status take_line(arpa *a, char *line) {
    char *fields[MOST_FIELDS];
    ngram_record record = {.line = a->number};
    const int level = a->level;
    int count = 0;
    for (char *at = line; *at && count < MOST_FIELDS;) {
        fields[count++] = at;
        while (*at && !is_blank(*at))
            at++;
        if (*at)
            *at++ = 0;
        while (is_blank(*at))
            at++;
    }
    const bool backoff = count == level + 2;
    if (count != level + 1 && !(backoff && level < a->model->order))
        return bad(a, "a %d-gram has %s, but here are %d fields", level,
                   level < a->model->order
                       ? "a number, its words and optionally another number"
                       : "a number and its words",
                   count);
    if (!read_log(fields[0], 0, &record.prob))
        return bad(a, "'%s' is not the logarithm of a probability",
                   sh_shown(fields[0]).text);
    if (backoff && !read_log(fields[level + 1], 1000, &record.backoff))
        return bad(a, "'%s' is not a back-off weight", sh_shown(fields[level + 1]).text);
    if (a->count == a->counts[level])
        return bad(a, "there are more %d-grams than the %lld in the header", level,
                   (long long)a->counts[level]);
    TRY(find_words(a, fields + 1, &record));
    if (!grow(a->context, &a->records, &a->room, a->count + 1, sizeof record))
        return sh_ngram_no_memory(a->context);
    a->records[a->count++] = record;
    return SHOAL_OK;
}

static shoal_status read_sections(arpa *a, shoal_ngram **made) {
    int order = 0;
    char *line, wanted[24];
    TRY(read_header(a, &order, &line));
    TRY(sh_ngram_create(a->context, order, made));
    a->model = *made;
    for (a->level = 1; a->level <= order; a->level++) {
        int64_t again = -1;
        a->count = 0;
        a->context_entry = -1;
        snprintf(wanted, sizeof wanted, "\\%d-grams:", a->level);
        if (strcmp(line, wanted) != 0)
            return bad(a, "'%s' instead of %s", sh_shown(line).text, wanted);
        for (;;) {
            TRY(next_line(a, &line));
            if (!line)
                return no_end(a, "\\end\\");
            if (line[0] == '\\')
                break;
            TRY(take_line(a, line));
        }
        if (a->count < a->counts[a->level])
            return bad(a, "the %d-grams end after %lld, but the header has %lld",
                       a->level, (long long)a->count, (long long)a->counts[a->level]);
        const shoal_status status =
            sh_ngram_level_take(a->model, a->level, a->records, a->count, &again);
        if (again >= 0) {
            a->number = a->records[again].line;
            return bad(a, "duplicate %d-gram", a->level);
        }
        TRY(status);
    }
    return strcmp(line, "\\end\\") == 0
               ? SHOAL_OK
               : bad(a, "'%s' instead of \\end\\", sh_shown(line).text);
}

static shoal_status read_all(arpa *a, shoal_ngram **made) {
    a->buffer = sh_allocate(a->context, BUFFER + 1);
    const shoal_status status = a->buffer ? read_sections(a, made)
                                          : sh_ngram_no_memory(a->context);
    sh_free(a->buffer);
    sh_free(a->records);
    return status;
}

shoal_status sh_arpa_parse(shoal_context *context, const char *label, const void *bytes,
                           size_t size, shoal_ngram **made) {
    arpa a = {.context = context, .label = label, .memory = bytes, .left = size};
    *made = NULL;
    return read_all(&a, made);
}

shoal_status sh_arpa_read(shoal_context *context, const char *path, shoal_ngram **made) {
    arpa a = {.context = context, .label = path};
    int file;
    int64_t size;
    TRY(sh_file_open(context, path, &file, &size));
    a.file = gzdopen(file, "rb");
    if (!a.file) {
        close(file);
        return sh_ngram_no_memory(context);
    }
    gzbuffer(a.file, BUFFER);
    const shoal_status status = read_all(&a, made);
    gzclose(a.file);
    return status;
}
