/* Language models in the binary format of CMU Sphinx, a "trie" of trigrams with 16-bit
   quantisation (Debian's pocketsphinx-en-us has one of English):

   "Trie Language Model", a byte: 3; counts of 1-, 2- and 3-grams; a 32-bit word: 1
   tables [3][65536] of floats: probabilities of 2-grams, their back-offs,
                                  probabilities of 3-grams
   1-grams [counts[0] + 1]: probability, back-off, index of its first 2-gram
   2-grams [counts[1] + 1] in bits: word, back-off and probability (16 bits each, into
                                  the tables), index of its first 3-gram
   3-grams [counts[2] + 1] in bits: word, probability
   letters: number of bytes, then the words, NUL-terminated

   All little-endian; logs to base 1.0001. N-grams are stored last word first: the
   2-grams of a 1-gram w are those that end in w, with the word before it, and likewise
   the 3-grams of a 2-gram. The header may count more 2- or 3-grams than there are. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/files/files.h"
#include "speech/words/ngram.h"

enum { HEAD = 36, TABLE = 65536, UNIGRAM = 12 };
static const char magic[] = "Trie Language Model";

typedef struct {
    shoal_context *context;
    const char *label;
    const unsigned char *bytes, *unigrams, *middle, *last, *words;
    size_t size;
    int64_t counts[3];
    int word_bits, next_bits; /* of fields */
    shoal_ngram *model;
} sphinx;

static shoal_status bad(const sphinx *s, const char *what) {
    return sh_fail(s->context, SHOAL_BAD_FILE, "%s: %s", sh_shown(s->label).text, what);
}

bool sh_sphinx_is(const unsigned char *bytes, size_t size) {
    return size >= sizeof magic && memcmp(bytes, magic, sizeof magic - 1) == 0;
}

/* ---- Numbers ----------------------------------------------------------------------- */

static uint32_t read_u32(const unsigned char *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Natural log of a log to base 1.0001. */
static float read_log(const unsigned char *at) {
    const uint32_t bits = read_u32(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return (float)((double)value * 9.9995000333308335e-05);
}

/* `count` bits, at most 32, from bit `at` on; the seven bytes after the field's first
   must exist. */
static uint32_t read_bits(const unsigned char *bytes, int64_t at, int count) {
    const unsigned char *from = bytes + at / 8;
    const uint64_t low = read_u32(from), high = read_u32(from + 4);
    return (uint32_t)(((low | high << 32) >> (at % 8)) & ((1ull << count) - 1));
}

static int bits_of(int64_t value) {
    int bits = 0;
    for (; value > 0; value >>= 1)
        bits++;
    return bits;
}

/* Table 0: probabilities of 2-grams, 1: their back-offs, 2: probabilities of 3-grams. */
static float from_table(const sphinx *s, int table, uint32_t number) {
    return read_log(s->bytes + HEAD + 4 * ((int64_t)table * TABLE + (int64_t)number));
}

static int64_t first_bigram(const sphinx *s, int64_t word) {
    return (int64_t)read_u32(s->unigrams + UNIGRAM * word + 8);
}

/* Bit offsets of a 2-gram and of a 3-gram. */
static int64_t middle_at(const sphinx *s, int64_t bigram) {
    return bigram * (s->word_bits + 32 + s->next_bits);
}

static int64_t last_at(const sphinx *s, int64_t trigram) {
    return trigram * (s->word_bits + 16);
}

static int64_t first_trigram(const sphinx *s, int64_t bigram) {
    return read_bits(s->middle, middle_at(s, bigram) + s->word_bits + 32, s->next_bits);
}

static int32_t word_of_bigram(const sphinx *s, int64_t bigram) {
    return (int32_t)read_bits(s->middle, middle_at(s, bigram), s->word_bits);
}

static int32_t word_of_trigram(const sphinx *s, int64_t trigram) {
    return (int32_t)read_bits(s->last, last_at(s, trigram), s->word_bits);
}

/* ---- Layout ----------------------------------------------------------------------- */

static size_t bytes_of(int64_t entries, int bits) {
    return ((size_t)(entries + 1) * (size_t)bits + 7) / 8 + 8;
}

static shoal_status find_parts(sphinx *s) {
    if (s->size < HEAD || !sh_sphinx_is(s->bytes, s->size))
        return bad(s, "is not a language model of CMU Sphinx");
    if (s->bytes[sizeof magic - 1] != 3)
        return bad(s, "only trigrams are supported in this binary format");
    if (read_u32(s->bytes + 32) != 1)
        return bad(s, "only 16-bit quantisation is supported in this binary format");
    for (int i = 0; i < 3; i++)
        s->counts[i] = (int64_t)read_u32(s->bytes + 20 + 4 * i);
    if (s->counts[0] < 1 || s->counts[0] > 1 << 28 || s->counts[1] > INT_MAX / 2 ||
        s->counts[2] > INT_MAX / 2)
        return bad(s, "invalid counts of n-grams");
    s->word_bits = bits_of(s->counts[0]);
    s->next_bits = bits_of(s->counts[2]);
    const size_t sizes[] = {HEAD + sizeof(float) * 3 * TABLE,
                            UNIGRAM * (size_t)(s->counts[0] + 1),
                            bytes_of(s->counts[1], s->word_bits + 32 + s->next_bits),
                            bytes_of(s->counts[2], s->word_bits + 16)};
    const unsigned char **const parts[] = {&s->unigrams, &s->middle, &s->last, &s->words};
    size_t at = 0;
    for (int i = 0; i < 4; i++) {
        at += sizes[i];
        if (at > s->size)
            return bad(s, "is truncated in its n-grams");
        *parts[i] = s->bytes + at;
    }
    /* First indices must increase and be in range. */
    for (int64_t i = 0; i <= s->counts[0]; i++)
        if (first_bigram(s, i) > s->counts[1] ||
            (i > 0 && first_bigram(s, i) < first_bigram(s, i - 1)))
            return bad(s, "1-grams have invalid indices of 2-grams");
    const int64_t bigrams = first_bigram(s, s->counts[0]);
    if (first_bigram(s, 0) != 0 || first_trigram(s, 0) != 0)
        return bad(s, "n-grams belong to no word");
    for (int64_t i = 0; i <= bigrams; i++)
        if (first_trigram(s, i) > s->counts[2] ||
            (i > 0 && first_trigram(s, i) < first_trigram(s, i - 1)))
            return bad(s, "2-grams have invalid indices of 3-grams");
    for (int64_t i = 0; i < bigrams; i++)
        if (word_of_bigram(s, i) >= s->counts[0])
            return bad(s, "2-grams have invalid words");
    for (int64_t i = 0; i < first_trigram(s, bigrams); i++)
        if (word_of_trigram(s, i) >= s->counts[0])
            return bad(s, "3-grams have invalid words");
    return SHOAL_OK;
}

static shoal_status take_words(sphinx *s) {
    const size_t left = s->size - (size_t)(s->words - s->bytes);
    const size_t letters = left >= 4 ? read_u32(s->words) : 0;
    if (left < 4 || letters > left - 4)
        return bad(s, "is truncated in its words");
    const char *at = (const char *)s->words + 4, *end = at + letters;
    for (int64_t i = 0; i < s->counts[0]; i++) {
        const char *next = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (!next || next == at || next - at > NGRAM_MOST_LETTERS)
            return bad(s, "words are missing, empty or too long");
        const int32_t word = sh_ngram_add_word(s->model, at, (size_t)(next - at));
        if (word == -1)
            return sh_fail(s->context, SHOAL_BAD_FILE, "%s: duplicate word '%s'",
                           sh_shown(s->label).text, sh_shown(at).text);
        if (word < 0)
            return sh_ngram_no_memory(s->context);
        at = next + 1;
    }
    return SHOAL_OK;
}

/* ---- Levels ------------------------------------------------------------------------ */

static bool are_logs(const ngram_level *level, int64_t at) {
    return isfinite(level->probs[at]) && level->probs[at] <= 0 &&
           (!level->backoffs ||
            (isfinite(level->backoffs[at]) && level->backoffs[at] <= 2303));
}

/* Prefix sums: from counts at i + 1 to first indices. */
static void add_up(ngram_level *below) {
    for (int64_t i = 0; i < below->count; i++)
        below->children[i + 1] += below->children[i];
}

/* After insertion children[i] is the end of entry i: shifts it by one place. Then words
   must increase. */
static shoal_status end_level(sphinx *s, int number, const char *twice) {
    const ngram_level *below = &s->model->levels[number - 1];
    const ngram_level *own = &s->model->levels[number];
    memmove(below->children + 1, below->children, sizeof(int32_t) * (size_t)below->count);
    below->children[0] = 0;
    for (int64_t i = 0; i < below->count; i++)
        for (int32_t k = below->children[i] + 1; k < below->children[i + 1]; k++)
            if (own->words[k] <= own->words[k - 1])
                return bad(s, twice);
    return sh_ngram_level_end(s->model, number);
}

/* contexts [count]: entry of the first two words of each 3-gram. */
static shoal_status take_trigrams(sphinx *s, int32_t *contexts) {
    ngram_level *below = &s->model->levels[2], *level = &s->model->levels[3];
    for (int64_t i = 0; i < first_bigram(s, s->counts[0]); i++) {
        const int32_t middle = word_of_bigram(s, i);
        for (int64_t k = first_trigram(s, i); k < first_trigram(s, i + 1); k++) {
            const int64_t entry =
                sh_ngram_child(s->model, 1, word_of_trigram(s, k), middle);
            if (entry < 0)
                return bad(s, "a 3-gram begins with words that are not a 2-gram");
            contexts[k] = (int32_t)entry;
        }
    }
    for (int64_t k = 0; k < level->count; k++)
        below->children[contexts[k] + 1]++;
    add_up(below);
    for (int64_t word = 0; word < s->counts[0]; word++) {
        const int64_t begin = first_trigram(s, first_bigram(s, word));
        const int64_t end = first_trigram(s, first_bigram(s, word + 1));
        for (int64_t k = begin; k < end; k++) {
            const int32_t to = below->children[contexts[k]]++;
            level->words[to] = (int32_t)word;
            level->probs[to] =
                from_table(s, 2, read_bits(s->last, last_at(s, k) + s->word_bits, 16));
            if (!are_logs(level, to))
                return bad(s, "3-grams have numbers that are not logs of probabilities");
        }
    }
    return end_level(s, 3, "duplicate 3-gram");
}

static shoal_status take_levels(sphinx *s) {
    TRY(sh_ngram_level_room(s->model, 1, s->counts[0]));
    ngram_level *below = &s->model->levels[1], *level = &s->model->levels[2];
    for (int64_t i = 0; i < s->counts[0]; i++) {
        below->probs[i] = read_log(s->unigrams + UNIGRAM * i);
        below->backoffs[i] = read_log(s->unigrams + UNIGRAM * i + 4);
        if (!are_logs(below, i))
            return bad(s, "1-grams have numbers that are not logs of probabilities");
    }
    TRY(sh_ngram_level_end(s->model, 1));
    /* The file is sorted by last word. Distributing 2-grams to their first words in
       this order sorts those of each first word by last word. */
    const int64_t bigrams = first_bigram(s, s->counts[0]);
    TRY(sh_ngram_level_room(s->model, 2, bigrams));
    for (int64_t i = 0; i < bigrams; i++)
        below->children[word_of_bigram(s, i) + 1]++;
    add_up(below);
    for (int64_t word = 0; word < s->counts[0]; word++)
        for (int64_t i = first_bigram(s, word); i < first_bigram(s, word + 1); i++) {
            const int64_t at = middle_at(s, i) + s->word_bits;
            const int32_t to = below->children[word_of_bigram(s, i)]++;
            level->words[to] = (int32_t)word;
            level->backoffs[to] = from_table(s, 1, read_bits(s->middle, at, 16));
            level->probs[to] = from_table(s, 0, read_bits(s->middle, at + 16, 16));
            if (!are_logs(level, to))
                return bad(s, "2-grams have numbers that are not logs of probabilities");
        }
    TRY(end_level(s, 2, "duplicate 2-gram"));
    const int64_t trigrams = first_trigram(s, bigrams);
    TRY(sh_ngram_level_room(s->model, 3, trigrams));
    int32_t *contexts =
        sh_allocate(s->context, sizeof *contexts * ((size_t)trigrams + 1));
    const shoal_status status = contexts ? take_trigrams(s, contexts)
                                         : sh_ngram_no_memory(s->context);
    sh_free(contexts);
    return status;
}

shoal_status sh_sphinx_parse(shoal_context *context, const char *label,
                             const unsigned char *bytes, size_t size,
                             shoal_ngram **made) {
    sphinx s = {.context = context, .label = label, .bytes = bytes, .size = size};
    *made = NULL;
    TRY(find_parts(&s));
    TRY(sh_ngram_create(context, 3, made));
    s.model = *made;
    TRY(take_words(&s));
    return take_levels(&s);
}
