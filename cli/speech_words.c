#define _GNU_SOURCE
#include "speech_words.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common.h"

/* ---- Options ----------------------------------------------------------------------- */

bool words_wanted(const char *command, const words_options *options, int *code) {
    const bool more = options->beam || options->lm_weight || options->insertion ||
                      options->unknown || options->tokens > 0;
    *code = EXIT_OK;
    if (options->lexicon && options->lm)
        return true;
    if (options->lexicon || options->lm || more)
        *code = complain(EXIT_USAGE, command,
                         "words need both --lexicon and --lm; Debian's package "
                         "pocketsphinx-en-us has English ones");
    return false;
}

/* Into *value where the text is there. */
static bool take_number(const char *command, const char *name, const char *text,
                        double min, double max, double *value) {
    return !text || parse_number(command, name, text, min, max, value);
}

bool words_take(const char *command, const words_options *options,
                shoal_recogniser_options *taken) {
    taken->lexicon = options->lexicon;
    taken->lm = options->lm;
    if (options->tokens > 0)
        taken->words.tokens = options->tokens;
    return take_number(command, "beam", options->beam, 0.001, 1e6, &taken->words.beam) &&
           take_number(command, "lm-weight", options->lm_weight, 0, 1000,
                       &taken->words.lm_weight) &&
           take_number(command, "insertion", options->insertion, -1000, 1000,
                       &taken->words.insertion) &&
           take_number(command, "unknown", options->unknown, 0, 1, &taken->unknown);
}

/* ---- The search -------------------------------------------------------------------- */

int words_open(const char *command, shoal_context *context, const words_options *options,
               const speech_model *model, words_search *search) {
    shoal_recogniser_options taken = shoal_recogniser_defaults();
    *search = (words_search){0};
    if (!words_take(command, options, &taken))
        return EXIT_USAGE;
    const shoal_status status = shoal_recogniser_set_words(model->recogniser, &taken);
    if (status != SHOAL_OK)
        return complain_status(status,
                               status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT,
                               command, context);
    const shoal_recogniser_parts parts = shoal_recogniser_parts_of(model->recogniser);
    *search = (words_search){parts.lexicon, parts.ngram, parts.decoder, parts.words};
    return EXIT_OK;
}

/* They are the recogniser's. */
void words_close(words_search *search) {
    *search = (words_search){0};
}

/* ---- What was said ----------------------------------------------------------------- */

static int compare_rows(const void *a, const void *b) {
    return strcmp(((const said_row *)a)->id, ((const said_row *)b)->id);
}

static char *read_whole(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0, got = 1;
    while (file && got > 0) {
        char *more = realloc(text, size + (1 << 16) + 1);
        if (!more)
            break;
        text = more;
        got = fread(text + size, 1, 1 << 16, file);
        size += got;
        text[size] = 0;
    }
    const bool good = file && got == 0 && !ferror(file);
    if (file)
        fclose(file);
    if (good)
        return text;
    free(text);
    return NULL;
}

static bool cut_rows(words_said *said) {
    size_t lines = 1;
    for (const char *c = said->text; *c; c++)
        lines += *c == '\n';
    said->rows = malloc(sizeof *said->rows * lines);
    if (!said->rows)
        return false;
    const size_t mark = strncmp(said->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (char *at = said->text + mark, *next; at; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        at += strspn(at, " \t\r");
        char *rest = at + strcspn(at, " \t\r");
        if (rest == at)
            continue;
        if (*rest)
            *rest++ = 0;
        said->rows[said->count++] = (said_row){at, rest};
    }
    qsort(said->rows, (size_t)said->count, sizeof *said->rows, compare_rows);
    return true;
}

int words_said_open(const char *command, const char *folder, const char *name,
                    words_said *said) {
    char path[TRAIN_PATH];
    *said = (words_said){0};
    if (!speech_path(path, folder, name))
        return complain(EXIT_USAGE, command, "the path of %s is too long", name);
    said->text = read_whole(path);
    if (!said->text)
        return complain(EXIT_BAD_INPUT, command,
                        "%s: cannot be read (%s); errors of words are counted against it",
                        path, strerror(errno));
    return cut_rows(said) ? EXIT_OK : complain(EXIT_RESOURCES, command, "out of memory");
}

void words_said_close(words_said *said) {
    free(said->text);
    free(said->rows);
    *said = (words_said){0};
}

const char *words_said_find(const words_said *said, const char *id) {
    const said_row key = {id, NULL};
    if (said->count == 0)
        return NULL;
    const said_row *row =
        bsearch(&key, said->rows, (size_t)said->count, sizeof key, compare_rows);
    return row ? row->rest : NULL;
}

/* ---- Edits ------------------------------------------------------------------------- */

typedef struct {
    const char *text;
    size_t length;
    int32_t at;
} spelled;

static int compare_letters(const spelled *a, const spelled *b) {
    const size_t both = a->length < b->length ? a->length : b->length;
    const int order = strncasecmp(a->text, b->text, both);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

static int compare_spelled(const void *a, const void *b) {
    return compare_letters(a, b);
}

/* The words of a text go to list[count] on; returns how many there are then. list NULL:
   counts. */
static int64_t split_words(const char *text, spelled *list, int64_t count) {
    for (const char *at = text;;) {
        at += strspn(at, " \t\r");
        const size_t length = strcspn(at, " \t\r");
        if (length == 0)
            return count;
        if (list)
            list[count] = (spelled){at, length, (int32_t)count};
        count++;
        at += length;
    }
}

shoal_status words_count_edits(shoal_context *context, const char *const *said,
                               int64_t count, const shoal_word_string *heard,
                               shoal_edits *edits) {
    int64_t right = 0, all = 0;
    for (int64_t i = 0; i < count; i++)
        right = split_words(said[i], NULL, right);
    const size_t size = (size_t)(right + heard->count) + 1;
    spelled *list = malloc(sizeof *list * size);
    int32_t *numbers = malloc(sizeof *numbers * size);
    shoal_status status = SHOAL_NO_MEMORY;
    if (list && numbers) {
        for (int64_t i = 0; i < count; i++)
            all = split_words(said[i], list, all);
        for (int64_t i = 0; i < heard->count; i++, all++)
            list[all] = (spelled){heard->words[i].text, strlen(heard->words[i].text),
                                  (int32_t)all};
        qsort(list, (size_t)all, sizeof *list, compare_spelled);
        for (int64_t i = 0, number = 0; i < all; i++) {
            number += i > 0 && compare_letters(&list[i], &list[i - 1]) != 0;
            numbers[list[i].at] = (int32_t)number;
        }
        status = shoal_count_edits(context, numbers, right, numbers + right, heard->count,
                                   edits);
    }
    free(list);
    free(numbers);
    return status;
}
