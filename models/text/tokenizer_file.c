/* The files of a tokenizer. Unsupported settings are rejected by name, because even one
   wrong token would make a model's results meaningless. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/files/files.h"
#include "models/text/tokenizer_reading.h"

enum {
    LARGEST_TOKENIZER = 1 << 27, /* maximum bytes of a file */
    LARGEST_SETTINGS = 1 << 22,
    LARGEST_LINE = 1 << 16, /* maximum bytes, of vocab.txt and merges.txt */
    WORD_LETTERS = 1024     /* maximum letters of a word for WordPiece */
};

static shoal_status begin(shoal_context *context, const char *label, reading *r) {
    *r = (reading){context, label, sh_allocate(context, sizeof *r->to)};
    if (!r->to)
        return SHOAL_NO_MEMORY;
    *r->to = (shoal_tokenizer){.context = context, .unknown = -1, .split_words = true};
    return SHOAL_OK;
}

/* ---- Words and merges ------------------------------------------------------------- */

static shoal_status add_word(const reading *r, const char *word, size_t size,
                             int32_t id) {
    shoal_tokenizer *t = r->to;
    if (!sh_vocabulary_add(&t->words, word, size, id))
        return refuse(r, "duplicate word", word);
    t->largest_id = id > t->largest_id ? id : t->largest_id;
    return SHOAL_OK;
}

static shoal_status read_words(const reading *r, json_t *vocab) {
    size_t bytes = 0;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return refuse(r, "words and their ids are required in", "vocab");
    void *i = json_object_iter(vocab);
    for (; i; i = json_object_iter_next(vocab, i))
        bytes += strlen(json_object_iter_key(i));
    TRY(sh_vocabulary_create(r->context, (int64_t)json_object_size(vocab), bytes,
                             &r->to->words));
    i = json_object_iter(vocab);
    for (; i; i = json_object_iter_next(vocab, i)) {
        int32_t id;
        const char *word = json_object_iter_key(i);
        TRY(read_id(json_object_iter_value(i), &id)
                ? add_word(r, word, strlen(word), id)
                : refuse(r, "an integer id is required for", word));
    }
    return SHOAL_OK;
}

static shoal_status find_word(const reading *r, const char *word, int32_t *id) {
    *id = sh_vocabulary_find(&r->to->words, word, strlen(word));
    return *id >= 0 ? SHOAL_OK : refuse(r, "the vocabulary does not contain", word);
}

/* A merge of two words; the vocabulary must contain both and the result. A merge of an
   empty word would never end. */
static shoal_status add_merge(const reading *r, const char *left, size_t left_size,
                              const char *right, size_t right_size) {
    shoal_tokenizer *t = r->to;
    char both[2 * LARGEST_LINE];
    if (left_size == 0 || right_size == 0 || left_size + right_size >= sizeof both)
        return sh_fail(r->context, SHOAL_BAD_FILE,
                       "%s: merge %lld must be two words separated by a space", r->label,
                       (long long)t->merges.count + 1);
    memcpy(both, left, left_size);
    memcpy(both + left_size, right, right_size);
    both[left_size + right_size] = 0;
    const int32_t first = sh_vocabulary_find(&t->words, both, left_size),
                  second = sh_vocabulary_find(&t->words, both + left_size, right_size),
                  made = sh_vocabulary_find(&t->words, both, left_size + right_size);
    if (first < 0 || second < 0 || made < 0)
        return sh_fail(r->context, SHOAL_BAD_FILE,
                       "%s: merge %lld gives '%s', but the result or one of its parts is "
                       "not in the vocabulary",
                       r->label, (long long)t->merges.count + 1, sh_shown(both).text);
    if (!sh_merges_add(&t->merges, first, second, made))
        return sh_fail(r->context, SHOAL_BAD_FILE,
                       "%s: merge %lld, which gives '%s', is a duplicate", r->label,
                       (long long)t->merges.count + 1, sh_shown(both).text);
    return SHOAL_OK;
}

/* "left right", or a list of both. */
static shoal_status read_merge(const reading *r, const json_t *value) {
    const char *left = json_string_value(value), *right;
    if (left) {
        const char *space = strchr(left, ' ');
        right = space && !strchr(space + 1, ' ') ? space + 1 : "";
        return add_merge(r, left, space ? (size_t)(space - left) : 0, right,
                         strlen(right));
    }
    left = json_string_value(json_array_get(value, 0));
    right = json_string_value(json_array_get(value, 1));
    if (json_array_size(value) != 2 || !left || !right)
        left = right = "";
    return add_merge(r, left, strlen(left), right, strlen(right));
}

/* Finds the id of each byte. A vocabulary spells a byte as one character: those that
   print in Latin-1 as themselves, the other 68 as U+0100 and up, in order. */
static void find_bytes(shoal_tokenizer *t) {
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; byte++) {
        const bool prints = (byte >= '!' && byte <= '~') ||
                            (byte >= 0xa1 && byte != 0xad);
        char spelling[UTF8_MOST];
        const int size = sh_utf8_put(prints ? byte : next++, spelling);
        t->byte_ids[byte] = sh_vocabulary_find(&t->words, spelling, (size_t)size);
    }
}

/* ---- Added tokens ----------------------------------------------------------------- */

static shoal_status add_added(const reading *r, const char *content, added_token added) {
    shoal_tokenizer *t = r->to;
    const int32_t known = sh_vocabulary_find(&t->words, content, strlen(content));
    if (known >= 0 && known != added.id)
        return refuse(r, "the vocabulary has another id for the added token", content);
    if (t->added_count == ADDED_MOST)
        return refuse(r, "there are too many added tokens, starting with", content);
    /* Appends the content's letters; pointers to them are set when all are read. */
    const size_t size = strlen(content);
    letter_list raw = {0};
    if (size == 0 || size > LARGEST_LINE)
        return refuse(r, "an added token is empty or too long:", content);
    const int64_t before = t->added_letters.count;
    normalizer none = {0};
    const bool good = sh_letters_of(r->context, content, &raw) &&
                      sh_normalize(r->context, added.normalized ? &t->normal_form : &none,
                                   raw.at, raw.count, &t->added_letters);
    sh_release(r->context, raw.at);
    added.length = t->added_letters.count - before;
    TRY(good ? SHOAL_OK : normalizer_status(&t->normal_form));
    t->added[t->added_count++] = added;
    t->largest_id = added.id > t->largest_id ? added.id : t->largest_id;
    return SHOAL_OK;
}

static int longer_first(const void *a, const void *b) {
    const added_token *left = a, *right = b;
    if (left->length != right->length)
        return left->length > right->length ? -1 : 1;
    return left->id < right->id ? -1 : left->id > right->id;
}

/* After the letters of all tokens are in place. A token whose normalisation is empty
   never matches. */
static void finish_added(shoal_tokenizer *t) {
    int64_t kept = 0;
    const letter *at = t->added_letters.at;
    for (int64_t i = 0; i < t->added_count; i++) {
        t->added[i].content = at;
        at += t->added[i].length;
        if (t->added[i].length > 0)
            t->added[kept++] = t->added[i];
    }
    t->added_count = kept;
    for (int64_t i = 0; i < kept; i++)
        t->added_first[t->added[i].content[0].code % sizeof t->added_first] = true;
    if (kept > 0)
        qsort(t->added, (size_t)kept, sizeof *t->added, longer_first);
}

static shoal_status make_added(const reading *r, size_t count) {
    const size_t room = count < ADDED_MOST ? count : ADDED_MOST;
    r->to->added = sh_allocate(r->context, room * sizeof *r->to->added);
    return r->to->added ? SHOAL_OK : SHOAL_NO_MEMORY;
}

/* ---- Special tokens around texts -------------------------------------------------- */

static bool add_part(token_template *around, int32_t text, int32_t id, int32_t type) {
    if (around->count == TEMPLATE_MOST)
        return false;
    around->parts[around->count].text = text;
    around->parts[around->count].id = id;
    around->parts[around->count++].type = type;
    return true;
}

/* BERT: [CLS] A [SEP] B [SEP], B of type 1. RoBERTa: <s> A </s></s> B </s>. */
static void classic_template(shoal_tokenizer *t, int32_t first, int32_t last,
                             bool roberta) {
    t->single.count = t->pair.count = 0;
    token_template *const both[] = {&t->single, &t->pair};
    for (int i = 0; i < 2; i++) {
        add_part(both[i], -1, first, 0);
        add_part(both[i], 0, 0, 0);
        add_part(both[i], -1, last, 0);
    }
    if (roberta)
        add_part(&t->pair, -1, last, 0);
    add_part(&t->pair, 1, 0, !roberta);
    add_part(&t->pair, -1, last, !roberta);
}

/* ["</s>", 2] */
static bool read_named_id(const json_t *pair, int32_t *id) {
    return json_array_size(pair) == 2 && read_id(json_array_get(pair, 1), id);
}

static shoal_status read_part(const reading *r, const json_t *specials,
                              const json_t *part, token_template *around) {
    const json_t *text = json_object_get(part, "Sequence"),
                 *special = json_object_get(part, "SpecialToken"),
                 *inner = text ? text : special;
    const char *name = json_string_value(json_object_get(inner, "id"));
    int32_t type;
    if (!name || !read_id(json_object_get(inner, "type_id"), &type) || type > 1)
        return refuse(r, "post_processor: unsupported entry", name);
    if (special) {
        const char *word = json_string_value(json_object_get(special, "id"));
        const json_t *ids =
            json_object_get(word ? json_object_get(specials, word) : NULL, "ids");
        bool good = word && json_array_size(ids) > 0;
        for (size_t i = 0; i < json_array_size(ids) && good; i++) {
            int32_t id;
            good = read_id(json_array_get(ids, i), &id) && add_part(around, -1, id, type);
            if (good && id > r->to->largest_id)
                r->to->largest_id = id;
        }
        return good ? SHOAL_OK : refuse(r, "post_processor: no ids for", word);
    }
    const bool second = strcmp(name, "B") == 0;
    if ((!second && strcmp(name, "A") != 0) || !add_part(around, second, 0, type))
        return refuse(r, "post_processor: unsupported entry", name);
    return SHOAL_OK;
}

/* Each text occurs once, in order, so that the tokens fit the allocated room. */
static bool has_texts(const token_template *around, int texts) {
    int seen = 0;
    for (int i = 0; i < around->count; i++)
        if (around->parts[i].text >= 0 && around->parts[i].text != seen++)
            return false;
    return seen == texts;
}

static shoal_status read_post(const reading *r, const json_t *post) {
    int32_t first, last;
    if (!post || json_is_null(post) || is_type(post, "ByteLevel"))
        return SHOAL_OK; /* ByteLevel only changes offsets */
    if (is_type(post, "TemplateProcessing")) {
        const json_t *specials = json_object_get(post, "special_tokens");
        token_template *const both[] = {&r->to->single, &r->to->pair};
        const char *const keys[] = {"single", "pair"};
        for (int i = 0; i < 2; i++) {
            const json_t *parts = json_object_get(post, keys[i]);
            both[i]->count = 0;
            for (size_t j = 0; j < json_array_size(parts); j++)
                TRY(read_part(r, specials, json_array_get(parts, j), both[i]));
            if (!has_texts(both[i], i + 1))
                return refuse(r, "post_processor: each text must occur once in", keys[i]);
        }
        return SHOAL_OK;
    }
    const bool roberta = is_type(post, "RobertaProcessing");
    if (!roberta && !is_type(post, "BertProcessing"))
        return refuse(r,
                      "supported are TemplateProcessing, BertProcessing and "
                      "RobertaProcessing, but not the post_processor",
                      type_of(post));
    if (!read_named_id(json_object_get(post, "cls"), &first) ||
        !read_named_id(json_object_get(post, "sep"), &last))
        return refuse(r, "post_processor: a name and an id are required in",
                      "cls and sep");
    const int32_t larger = first > last ? first : last;
    if (larger > r->to->largest_id)
        r->to->largest_id = larger;
    classic_template(r->to, first, last, roberta);
    return SHOAL_OK;
}

/* ---- tokenizer.json --------------------------------------------------------------- */

static shoal_status make_word(const reading *r) {
    shoal_tokenizer *t = r->to;
    t->word_room = (int64_t)t->prefix_size + UTF8_MOST * t->longest_word;
    t->word = sh_allocate(r->context, (size_t)t->word_room);
    return t->word ? SHOAL_OK : SHOAL_NO_MEMORY;
}

static shoal_status read_wordpiece(const reading *r, const json_t *model) {
    shoal_tokenizer *t = r->to;
    const json_t *prefix = json_object_get(model, "continuing_subword_prefix"),
                 *longest = json_object_get(model, "max_input_chars_per_word");
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    t->prefix_size = json_is_string(prefix) ? strlen(json_string_value(prefix)) : 2;
    if (t->prefix_size >= sizeof t->prefix)
        return refuse(r, "too long:", "continuing_subword_prefix");
    strcpy(t->prefix, json_is_string(prefix) ? json_string_value(prefix) : "##");
    t->longest_word = longest ? json_integer_value(longest) : 100;
    if (t->longest_word < 1 || t->longest_word > WORD_LETTERS)
        return refuse(r, "a number from 1 to 1024 is required for",
                      "max_input_chars_per_word");
    TRY(find_word(r, unknown ? unknown : "[UNK]", &t->unknown));
    return make_word(r);
}

static shoal_status read_bpe(const reading *r, const json_t *model) {
    shoal_tokenizer *t = r->to;
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    /* Settings that would change the ids. */
    static const char *const flags[] = {"byte_fallback", "ignore_merges"};
    static const char *const texts[] = {"continuing_subword_prefix",
                                        "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    for (int i = 0; i < 2; i++) {
        const char *text = json_string_value(json_object_get(model, texts[i]));
        if (json_is_true(json_object_get(model, flags[i])))
            return refuse(r, "BPE is not supported with", flags[i]);
        if (text && text[0])
            return refuse(r, "BPE is not supported with", texts[i]);
    }
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return refuse(r, "BPE is not supported with", "dropout");
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_array(merges))
        return refuse(r, "a list is required for", "merges");
    const size_t count = json_array_size(merges);
    TRY(sh_merges_create(r->context, (int64_t)count, &r->to->merges));
    for (size_t i = 0; i < count; i++)
        TRY(read_merge(r, json_array_get(merges, i)));
    TRY(read_flag(r, model, "fuse_unk", false, &t->join_unknown));
    if (unknown)
        TRY(find_word(r, unknown, &t->unknown));
    find_bytes(t);
    return SHOAL_OK;
}

static shoal_status read_model(const reading *r, const json_t *model) {
    const bool pieces = is_type(model, "WordPiece");
    if (is_type(model, "Unigram"))
        return sh_read_unigram(r, model);
    if (!pieces && !is_type(model, "BPE"))
        return refuse(
            r, "supported are WordPiece, byte-level BPE and Unigram, but not the model",
            type_of(model));
    r->to->model = pieces ? MODEL_WORDPIECE : MODEL_BYTE_PAIRS;
    TRY(read_words(r, json_object_get(model, "vocab")));
    return (pieces ? read_wordpiece : read_bpe)(r, model);
}

static shoal_status read_root(const reading *r, const json_t *root) {
    r->to->single.count = r->to->pair.count = 0;
    add_part(&r->to->single, 0, 0, 0);
    add_part(&r->to->pair, 0, 0, 0);
    add_part(&r->to->pair, 1, 0, 1);
    TRY(read_model(r, json_object_get(root, "model")));
    TRY(sh_read_normalizer(r, json_object_get(root, "normalizer")));
    TRY(sh_read_pre(r, json_object_get(root, "pre_tokenizer")));
    TRY(read_post(r, json_object_get(root, "post_processor")));
    const json_t *list = json_object_get(root, "added_tokens");
    const size_t count = json_array_size(list);
    if (list && !json_is_array(list) && !json_is_null(list))
        return refuse(r, "a list is required for", "added_tokens");
    TRY(make_added(r, count));
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        const char *content = json_string_value(json_object_get(value, "content"));
        added_token added = {0};
        bool single_word;
        if (!content || !read_id(json_object_get(value, "id"), &added.id))
            return refuse(r, "content and an id are required in", "added_tokens");
        TRY(read_flag(r, value, "lstrip", false, &added.lstrip));
        TRY(read_flag(r, value, "rstrip", false, &added.rstrip));
        TRY(read_flag(r, value, "normalized", false, &added.normalized));
        TRY(read_flag(r, value, "single_word", false, &single_word));
        if (single_word)
            return refuse(r, "single_word is not supported, but set for", content);
        TRY(add_added(r, content, added));
    }
    finish_added(r->to);
    return SHOAL_OK;
}

/* Returns the tokenizer, or releases it on error. */
static shoal_status finish(const reading *r, shoal_status status,
                           shoal_tokenizer **made) {
    if (status == SHOAL_OK)
        *made = r->to;
    else
        shoal_tokenizer_destroy(r->to);
    return status;
}

shoal_status sh_tokenizer_parse(shoal_context *context, const char *label,
                                const char *text, size_t size, shoal_tokenizer **made) {
    json_t *root;
    reading r;
    *made = NULL;
    TRY(sh_json_object_parse(context, label, text, size, &root));
    shoal_status status = begin(context, label, &r);
    if (status == SHOAL_OK)
        status = finish(&r, read_root(&r, root), made);
    json_decref(root);
    return status;
}

/* ---- vocab.txt; vocab.json and merges.txt ----------------------------------------- */

/* Returns the next line from *at on without its end; false at the end of the file. */
static bool next_line(const text_file *file, size_t *at, const char **line,
                      size_t *size) {
    if (*at >= file->size)
        return false;
    *line = file->bytes + *at;
    const char *end = memchr(*line, '\n', file->size - *at);
    *size = end ? (size_t)(end - *line) : file->size - *at;
    *at += *size + 1;
    if (*size > 0 && (*line)[*size - 1] == '\r')
        (*size)--;
    return true;
}

static shoal_status check_line(const reading *r, int64_t number, const char *line,
                               size_t size) {
    if (size > LARGEST_LINE)
        return sh_fail(r->context, SHOAL_BAD_FILE,
                       "%s: line %lld has %zu bytes, more than the maximum for a token",
                       r->label, (long long)number, size);
    if (!sh_utf8_valid(line, size))
        return sh_fail(r->context, SHOAL_BAD_FILE, "%s: line %lld is not UTF-8", r->label,
                       (long long)number);
    return SHOAL_OK;
}

static int64_t count_lines(const text_file *file) {
    int64_t count = 0;
    const char *line;
    size_t size;
    for (size_t at = 0; next_line(file, &at, &line, &size);)
        count++;
    return count;
}

/* The five special tokens of such models; those that the vocabulary contains are
   matched in texts. */
static shoal_status add_usual(const reading *r, const char *const names[5],
                              int32_t ids[5]) {
    TRY(make_added(r, 5));
    for (int i = 0; i < 5; i++) {
        ids[i] = sh_vocabulary_find(&r->to->words, names[i], strlen(names[i]));
        const bool mask = strcmp(names[i], "<mask>") == 0;
        if (ids[i] >= 0)
            TRY(add_added(r, names[i], (added_token){.id = ids[i], .lstrip = mask}));
        else if (i < 3)
            return refuse(r, "the vocabulary does not contain", names[i]);
    }
    finish_added(r->to);
    return SHOAL_OK;
}

static shoal_status read_word_file(reading *r, const text_file *words,
                                   const json_t *settings) {
    static const char *const names[5] = {"[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"};
    int32_t ids[5];
    shoal_tokenizer *t = r->to;
    character_rules *rules = &t->normal_form.steps[0].rules;
    t->normal_form.count = 1;
    rules->clean = true;
    t->longest_word = 100;
    t->prefix_size = 2;
    strcpy(t->prefix, "##");
    /* One word per line; its id is the line number, from 0. */
    const char *line;
    size_t size;
    int32_t id = 0;
    const int64_t lines = count_lines(words);
    if (lines == 0 || lines >= INT32_MAX)
        return refuse(r, "one word per line is required in", "vocab.txt");
    TRY(sh_vocabulary_create(r->context, lines, words->size, &r->to->words));
    for (size_t at = 0; next_line(words, &at, &line, &size); id++) {
        TRY(check_line(r, id + 1, line, size));
        if (!sh_vocabulary_add(&r->to->words, line, size, id))
            return sh_fail(r->context, SHOAL_BAD_FILE, "%s: line %d has a duplicate word",
                           r->label, (int)id + 1);
        r->to->largest_id = id;
    }
    TRY(read_flag(r, settings, "do_lower_case", true, &rules->lower));
    TRY(read_flag(r, settings, "strip_accents", rules->lower, &rules->strip_accents));
    TRY(read_flag(r, settings, "tokenize_chinese_chars", true, &rules->ideographs));
    TRY(add_usual(r, names, ids));
    t->unknown = ids[2];
    classic_template(t, ids[0], ids[1], false);
    return make_word(r);
}

shoal_status sh_tokenizer_parse_words(shoal_context *context, const text_file *words,
                                      const json_t *settings, shoal_tokenizer **made) {
    reading r;
    *made = NULL;
    TRY(begin(context, words->label, &r));
    return finish(&r, read_word_file(&r, words, settings), made);
}

static shoal_status read_pair_files(reading *r, const text_file *words,
                                    const text_file *merges, const json_t *settings) {
    static const char *const names[5] = {"<s>", "</s>", "<unk>", "<pad>", "<mask>"};
    int32_t ids[5];
    json_t *root;
    r->to->model = MODEL_BYTE_PAIRS;
    TRY(sh_json_object_parse(r->context, words->label, words->bytes, words->size, &root));
    const shoal_status status = read_words(r, root);
    json_decref(root);
    TRY(status);
    TRY(add_usual(r, names, ids));
    r->label = merges->label;
    /* One merge per line; the first line may be a comment with the version. */
    const char *line;
    size_t size;
    int64_t number = 0;
    TRY(sh_merges_create(r->context, count_lines(merges), &r->to->merges));
    for (size_t at = 0; next_line(merges, &at, &line, &size);) {
        number++;
        if (size == 0 || (number == 1 && size > 8 && memcmp(line, "#version", 8) == 0))
            continue;
        TRY(check_line(r, number, line, size));
        const char *space = memchr(line, ' ', size);
        const size_t left = space ? (size_t)(space - line) : 0;
        TRY(add_merge(r, line, left, line + left + 1, space ? size - left - 1 : 0));
    }
    TRY(read_flag(r, settings, "add_prefix_space", false, &r->to->prefix_space));
    r->to->unknown = ids[2];
    find_bytes(r->to);
    classic_template(r->to, ids[0], ids[1], true);
    return SHOAL_OK;
}

shoal_status sh_tokenizer_parse_pairs(shoal_context *context, const text_file *words,
                                      const text_file *merges, const json_t *settings,
                                      shoal_tokenizer **made) {
    reading r;
    *made = NULL;
    TRY(begin(context, words->label, &r));
    return finish(&r, read_pair_files(&r, words, merges, settings), made);
}

/* ---- The folder ------------------------------------------------------------------- */

typedef struct {
    shoal_context *context;
    const char *folder;
    char paths[2][PATH_MAX]; /* of the current files */
    file_map maps[2];
    json_t *settings; /* NULL if there are none */
} folder_files;

static bool there(folder_files *f, int which, const char *name) {
    char *path = f->paths[which];
    const int length = snprintf(path, PATH_MAX, "%s/%s", f->folder, name);
    return length > 0 && length < PATH_MAX && access(path, F_OK) == 0;
}

static shoal_status map_file(folder_files *f, int which, text_file *file) {
    TRY(sh_file_map_open(f->context, f->paths[which], &f->maps[which]));
    *file = (text_file){f->paths[which], (const char *)f->maps[which].bytes,
                        f->maps[which].size};
    if (file->size > LARGEST_TOKENIZER)
        return sh_fail(f->context, SHOAL_BAD_FILE,
                       "%s: has %zu bytes, more than the maximum of %d", file->label,
                       file->size, (int)LARGEST_TOKENIZER);
    return SHOAL_OK;
}

static shoal_status open_files(folder_files *f, shoal_tokenizer **made) {
    text_file files[2];
    if (there(f, 0, "tokenizer.json")) {
        TRY(map_file(f, 0, &files[0]));
        return sh_tokenizer_parse(f->context, files[0].label, files[0].bytes,
                                  files[0].size, made);
    }
    if (there(f, 0, "tokenizer_config.json"))
        TRY(sh_json_object_read(f->context, f->paths[0], LARGEST_SETTINGS, &f->settings));
    if (there(f, 0, "vocab.txt")) {
        TRY(map_file(f, 0, &files[0]));
        return sh_tokenizer_parse_words(f->context, &files[0], f->settings, made);
    }
    if (!there(f, 0, "vocab.json") || !there(f, 1, "merges.txt")) {
        static const char *const pieces[] = {"sentencepiece.bpe.model", "spiece.model",
                                             "tokenizer.model"};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
            if (there(f, 0, pieces[i]))
                return sh_fail(
                    f->context, SHOAL_BAD_FILE,
                    "%s: SentencePiece's own format is not supported; convert it to "
                    "tokenizer.json (transformers: "
                    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder))",
                    f->paths[0]);
        return sh_fail(f->context, SHOAL_BAD_FILE,
                       "%s: has no tokenizer: neither tokenizer.json, nor vocab.txt, nor "
                       "vocab.json and merges.txt",
                       f->folder);
    }
    TRY(map_file(f, 0, &files[0]));
    TRY(map_file(f, 1, &files[1]));
    return sh_tokenizer_parse_pairs(f->context, &files[0], &files[1], f->settings, made);
}

shoal_status shoal_tokenizer_open(shoal_context *context, const char *folder,
                                  shoal_tokenizer **tokenizer) {
    if (!context)
        return SHOAL_INVALID;
    if (!folder || !tokenizer)
        return sh_fail(context, SHOAL_INVALID,
                       "tokenizer_open: folder or tokenizer is NULL");
    *tokenizer = NULL;
    folder_files f = {.context = context, .folder = folder};
    shoal_status status = open_files(&f, tokenizer);
    json_decref(f.settings);
    sh_file_map_close(&f.maps[0]);
    sh_file_map_close(&f.maps[1]);
    return status;
}
