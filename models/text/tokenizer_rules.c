/* Normalizers, pre-tokenizers and the pieces of Unigram in a tokenizer.json. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/text/tokenizer_reading.h"

enum {
    LONGEST_PIECE = 1024, /* bytes */
    LARGEST_PIECES = 1 << 24
};

/* ---- Normalisers ------------------------------------------------------------------ */

static shoal_status read_bert(const reading *r, const json_t *part,
                              character_rules *rules) {
    TRY(read_flag(r, part, "clean_text", true, &rules->clean));
    TRY(read_flag(r, part, "handle_chinese_chars", true, &rules->ideographs));
    TRY(read_flag(r, part, "lowercase", true, &rules->lower));
    return read_flag(r, part, "strip_accents", rules->lower, &rules->strip_accents);
}

/* Unicode normalisation forms, and lower case. */
static bool is_form(const char *type, character_rules *rules) {
    static const struct {
        const char *type;
        character_rules rules;
    } forms[] = {
        {"NFC", {.decompose = true, .compose = true}},
        {"NFD", {.decompose = true}},
        {"NFKC", {.decompose = true, .compose = true, .compatible = true}},
        {"NFKD", {.decompose = true, .compatible = true}},
        {"Lowercase", {.lower = true}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i].type) == 0) {
            *rules = forms[i].rules;
            return true;
        }
    return false;
}

shoal_status sh_read_normalizer(const reading *r, const json_t *part) {
    if (!part || json_is_null(part))
        return SHOAL_OK;
    if (!is_type(part, "Sequence")) {
        normalizer *all = &r->to->normal_form;
        const char *type = type_of(part);
        if (all->count == STEPS_MOST)
            return refuse(r, "there are too many normalizers, starting with", type);
        normal_step *step = &all->steps[all->count++];
        *step = (normal_step){.kind = STEP_CHARACTERS};
        if (is_form(type, &step->rules))
            return SHOAL_OK;
        if (is_type(part, "BertNormalizer"))
            return read_bert(r, part, &step->rules);
        if (is_type(part, "Precompiled")) {
            const char *text =
                json_string_value(json_object_get(part, "precompiled_charsmap"));
            step->kind = STEP_CHARSMAP;
            return text ? sh_charsmap_read(r->context, r->label, text, &step->map)
                        : refuse(r, "Precompiled: a string is required for",
                                 "precompiled_charsmap");
        }
        if (is_type(part, "Strip")) {
            step->kind = STEP_STRIP;
            TRY(read_flag(r, part, "strip_left", true, &step->left));
            return read_flag(r, part, "strip_right", true, &step->right);
        }
        if (is_type(part, "Replace")) {
            /* A text, or the one regular expression that such files contain: two or
               more spaces. */
            static const char spaces[] = " {2,}";
            const json_t *pattern = json_object_get(part, "pattern");
            const char *text = json_string_value(json_object_get(pattern, "String")),
                       *regular = json_string_value(json_object_get(pattern, "Regex")),
                       *content = json_string_value(json_object_get(part, "content"));
            step->kind = STEP_REPLACE;
            if (regular && strcmp(regular, spaces) != 0)
                return refuse(r, "Replace is not supported with the regular expression",
                              regular);
            step->least = regular ? 2 : 0;
            text = regular ? " " : text;
            if (!text || !text[0] || !content)
                return refuse(r, "a pattern and its content are required in", "Replace");
            return sh_letters_of(r->context, text, &step->pattern) &&
                           sh_letters_of(r->context, content, &step->content)
                       ? SHOAL_OK
                       : SHOAL_NO_MEMORY;
        }
        return refuse(r,
                      "supported are BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase, "
                      "Precompiled, Replace, Strip and Sequence, but not the normalizer",
                      type);
    }
    const json_t *list = json_object_get(part, "normalizers");
    if (!json_is_array(list))
        return refuse(r, "a list is required for", "normalizers");
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(sh_read_normalizer(r, json_array_get(list, i)));
    return SHOAL_OK;
}

/* ---- Pre-tokenizers --------------------------------------------------------------- */

/* White space is split first; the remaining spaces become marks. */
static shoal_status read_cuts(const reading *r, const json_t *part) {
    if (!part || json_is_null(part))
        return SHOAL_OK;
    if (is_type(part, "Metaspace")) {
        shoal_tokenizer *t = r->to;
        const char *mark = json_string_value(json_object_get(part, "replacement"));
        if (t->mark)
            return refuse(r, "it is allowed only once:", "Metaspace");
        if (!mark || !mark[0] ||
            sh_utf8_next(mark, strlen(mark), &t->mark) != (int)strlen(mark))
            return refuse(r, "Metaspace: the replacement must be one character, not",
                          mark);
        TRY(read_flag(r, part, "split", true, &t->split_marks));
        static const char *const names[] = {"always", "first", "never"};
        const json_t *scheme = json_object_get(part, "prepend_scheme");
        bool wanted;
        TRY(read_flag(r, part, "add_prefix_space", true, &wanted));
        const char *name = scheme && !json_is_null(scheme) ? json_string_value(scheme)
                           : wanted                        ? "always"
                                                           : "never";
        int which = 0;
        while (name && which < 3 && strcmp(name, names[which]) != 0)
            which++;
        if (!name || which == 3)
            return refuse(
                r, "supported are always, first and never, but not the prepend_scheme",
                name);
        if (!wanted && which != PREPEND_NEVER)
            return refuse(r, "add_prefix_space is false, but prepend_scheme is", name);
        r->to->prepend = (prepend_scheme)which;
        return SHOAL_OK;
    }
    if (is_type(part, "WhitespaceSplit")) {
        r->to->split_white = true;
        return r->to->mark ? refuse(r, "it must come before Metaspace:", type_of(part))
                           : SHOAL_OK;
    }
    const json_t *list = json_object_get(part, "pretokenizers");
    if (!is_type(part, "Sequence") || !json_is_array(list))
        return refuse(r,
                      "Unigram is supported with Metaspace, WhitespaceSplit and a "
                      "Sequence of both, but not with",
                      type_of(part));
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(read_cuts(r, json_array_get(list, i)));
    return SHOAL_OK;
}

shoal_status sh_read_pre(const reading *r, const json_t *part) {
    const bool pieces = r->to->model == MODEL_WORDPIECE;
    if (r->to->model == MODEL_UNIGRAM)
        return read_cuts(r, part);
    if (!is_type(part, pieces ? "BertPreTokenizer" : "ByteLevel"))
        return refuse(r,
                      pieces
                          ? "WordPiece is supported with BertPreTokenizer, but not with"
                          : "BPE is supported with ByteLevel, but not with",
                      type_of(part));
    if (pieces)
        return SHOAL_OK;
    TRY(read_flag(r, part, "add_prefix_space", true, &r->to->prefix_space));
    return read_flag(r, part, "use_regex", true, &r->to->split_words);
}

/* ---- Unigram ---------------------------------------------------------------------- */

/* 10 to the power of a number from 0 to 308. */
static double ten_to(int power) {
    enum { EXACT = 22 }; /* products up to here are exact */
    char text[16];
    double product = 1;
    snprintf(text, sizeof text, "1e%d", power);
    if (power > EXACT)
        return strtod(text, NULL);
    for (int i = 0; i < power; i++)
        product *= 10;
    return product;
}

/* The shortest decimal digits that identify the double, as in files: the digits, and
   the power of ten of the last. */
static uint64_t digits_of(double number, int *power) {
    enum {
        SURE = 15,
        MOST = 17
    }; /* digits that are always kept; digits that are
                                      always enough */
    char text[40], *at = text;
    int digits = SURE;
    do
        snprintf(text, sizeof text, "%.*e", digits - 1, number);
    while (digits++ < MOST && strtod(text, NULL) != number);
    uint64_t whole = 0;
    int after = -1; /* digits after the decimal separator, which depends on the locale */
    for (; *at != 'e'; at++)
        if (*at >= '0' && *at <= '9') {
            whole = 10 * whole + (uint64_t)(*at - '0');
            after++;
        }
    *power = atoi(at + 1) - after;
    for (; whole > 0 && whole % 10 == 0; whole /= 10)
        ++*power;
    return whole;
}

/* ["piece", -1.5] */
static const char *piece_of(const json_t *pair, double *score) {
    const json_t *value = json_array_get(pair, 1);
    *score = json_number_value(value);
    return json_array_size(pair) == 2 && json_is_number(value) && isfinite(*score)
               ? json_string_value(json_array_get(pair, 0))
               : NULL;
}

/* Number of bytes of all pieces. */
static shoal_status measure_pieces(const reading *r, const json_t *vocab,
                                   int64_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < json_array_size(vocab); i++) {
        double score;
        const char *piece = piece_of(json_array_get(vocab, i), &score);
        const size_t size = piece ? strlen(piece) : 0;
        if (!piece || size > LONGEST_PIECE)
            return sh_fail(
                r->context, SHOAL_BAD_FILE,
                "%s: vocab: entry %zu must be a piece of at most %d bytes and its score",
                r->label, i, (int)LONGEST_PIECE);
        *bytes += (int64_t)size;
    }
    if (*bytes <= LARGEST_PIECES)
        return SHOAL_OK;
    return sh_fail(r->context, SHOAL_BAD_FILE,
                   "%s: vocab: its pieces have %lld bytes, more than the maximum of %d",
                   r->label, (long long)*bytes, (int)LARGEST_PIECES);
}

shoal_status sh_read_unigram(const reading *r, const json_t *model) {
    shoal_tokenizer *t = r->to;
    const json_t *vocab = json_object_get(model, "vocab");
    t->model = MODEL_UNIGRAM;
    if (json_array_size(vocab) == 0 || json_array_size(vocab) > LARGEST_PIECES)
        return refuse(r, "Unigram: a list of pieces and their scores is required for",
                      "vocab");
    if (!read_id(json_object_get(model, "unk_id"), &t->unknown) ||
        t->unknown >= (int64_t)json_array_size(vocab))
        return refuse(r, "Unigram: an index of vocab is required for", "unk_id");
    TRY(read_flag(r, model, "byte_fallback", false, &t->byte_fallback));
    const int64_t count = (int64_t)json_array_size(vocab);
    int64_t bytes;
    double least = INFINITY;
    TRY(measure_pieces(r, vocab, &bytes));
    TRY(sh_vocabulary_create(r->context, count, (size_t)bytes, &t->words));
    TRY(sh_trie_create(r->context, (size_t)bytes, &t->pieces));
    t->scores = sh_allocate(r->context, (size_t)count * sizeof *t->scores);
    if (!t->scores)
        return SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        const char *piece = piece_of(json_array_get(vocab, (size_t)i), &t->scores[i]);
        const size_t size = strlen(piece);
        /* Converts a score like the package `tokenizers`: the number of its digits
           divided by a power of ten, both rounded, which is not always the nearest
           double. The last bit decides between pieces in different orders (E EE and EE
           E), and thereby which ids a model was trained on. */
        enum { LARGEST_POWER = 308 };
        int power;
        double number = (double)digits_of(fabs(t->scores[i]), &power);
        for (; power < -LARGEST_POWER; power += LARGEST_POWER)
            number /= ten_to(LARGEST_POWER);
        number = power < 0 ? number / ten_to(-power) : number * ten_to(power);
        t->scores[i] = copysign(number, t->scores[i]);
        if (!sh_vocabulary_add(&t->words, piece, size, (int32_t)i))
            return refuse(r, "duplicate piece", piece);
        if (size > 0) /* an empty piece never matches */
            sh_trie_add(&t->pieces, piece, size, (int32_t)i);
        least = fmin(least, t->scores[i]);
    }
    t->largest_id = (int32_t)count - 1;
    t->unknown_score = least - 10; /* as in SentencePiece */
    for (int byte = 0; byte < 256; byte++) {
        char spelling[8]; /* spelling of a byte: <0x0A> */
        snprintf(spelling, sizeof spelling, "<0x%02X>", (unsigned)byte);
        t->byte_ids[byte] = sh_vocabulary_find(&t->words, spelling, strlen(spelling));
    }
    return SHOAL_OK;
}
