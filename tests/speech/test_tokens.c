/* Tokens: their layout, languages, text, and those that decoding suppresses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "models/text/unicode.h"
#include "speech/whisper/tokens.h"
#include "speech/whisper/whisper_file.h"
#include "support.h"

static void layouts_are_the_published_ones(void **state) {
    tokens t;
    assert_true(sh_tokens_layout(51864, &t));
    assert_true(!t.multilingual && t.end_of_text == 50256 && t.start == 50257 &&
                t.transcribe == 50358 && t.first_timestamp == 50363 && t.languages == 99);
    assert_true(sh_tokens_layout(51865, &t));
    assert_true(t.multilingual && t.end_of_text == 50257 && t.start == 50258 &&
                t.first_language == 50259 && t.translate == 50358 &&
                t.transcribe == 50359 && t.start_lm == 50360 && t.previous == 50361 &&
                t.no_speech == 50362 && t.no_timestamps == 50363 &&
                t.first_timestamp == 50364);
    assert_true(sh_tokens_layout(51866, &t));
    assert_true(t.languages == 100 && t.translate == 50359 && t.transcribe == 50360 &&
                t.no_timestamps == 50364 && t.first_timestamp == 50365);
    assert_false(sh_tokens_layout(51863, &t) || sh_tokens_layout(51867, &t) ||
                 sh_tokens_layout(-1, &t));
}

static void languages_are_found(void **state) {
    assert_int_equal(sh_language_find("en"), 0);
    assert_int_equal(sh_language_find("German"), 2);
    assert_int_equal(sh_language_find("YUE"), 99);
    assert_int_equal(sh_language_find("haitian creole"), sh_language_find("ht"));
    assert_int_equal(sh_language_find("klingon"), -1);
    assert_int_equal(sh_language_find(""), -1);
    assert_null(sh_language_code(LANGUAGE_COUNT));
    assert_null(sh_language_name(-1));
    for (int32_t i = 0; i < LANGUAGE_COUNT; i++) {
        assert_int_equal(sh_language_find(sh_language_code(i)), i);
        assert_int_equal(sh_language_find(sh_language_name(i)), i);
    }
}

static void utf8_is_judged(void **state) {
    static const char *const good[] = {"",
                                       "a",
                                       "\xc3\xa9",
                                       "\xe2\x99\xaa",
                                       "\xf0\x9f\x98\x80",
                                       "\xed\x9f\xbf",
                                       "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xc3",
                                      "\xe2\x99",
                                      "a\xff"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(sh_utf8_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(sh_utf8_valid(bad[i], strlen(bad[i])));
    assert_int_equal(sh_utf8_unfinished("a\xe2\x99", 3), 2);
    assert_int_equal(sh_utf8_unfinished("\xf0\x9f\x98", 3), 3);
    assert_int_equal(sh_utf8_unfinished("\xe2\x99\xaa", 3), 0);
    assert_int_equal(sh_utf8_unfinished("\xff", 1), 0);
    assert_int_equal(sh_utf8_unfinished("", 0), 0);
}

/* A vocabulary of the 256 bytes and a few merges. */
static unsigned char bytes[600];
static uint32_t starts[51866];
static int32_t order[50257];

static tokens small_vocabulary(void) {
    static const char *const merges[] = {"he", "ll", "hell", "lo", " he", "\xe2\x99"};
    uint32_t filled = 0;
    int32_t id = 0;
    tokens t;
    sh_tokens_layout(51865, &t);
    for (; id < 256; id++) {
        starts[id] = filled;
        bytes[filled++] = (unsigned char)id;
    }
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++, id++) {
        starts[id] = filled;
        memcpy(bytes + filled, merges[i], strlen(merges[i]));
        filled += (uint32_t)strlen(merges[i]);
    }
    for (; id <= t.count; id++)
        starts[id] = filled;
    t.bytes = bytes;
    t.begin = starts;
    sh_tokens_index(&t, order);
    t.by_bytes = order;
    return t;
}

static void pieces_are_merged_in_order(void **state) {
    tokens t = small_vocabulary();
    int32_t ids[8];
    assert_int_equal(sh_tokens_find(&t, "hell", 4), 258);
    assert_int_equal(sh_tokens_find(&t, "help", 4), -1);
    assert_int_equal(sh_tokens_find(&t, "", 0), -1);
    /* he, ll, then hell: "lo" was learned later, when its l is already merged. */
    assert_int_equal(sh_tokens_encode_piece(&t, "hello", 5, ids, 8), 2);
    assert_true(ids[0] == 258 && ids[1] == 'o');
    assert_int_equal(sh_tokens_encode_piece(&t, " he", 3, ids, 8), 1);
    assert_int_equal(ids[0], 260);
    assert_int_equal(sh_tokens_encode_piece(&t, "xyz", 3, ids, 1), 3);
    assert_int_equal(ids[0], 'x');
    assert_int_equal(sh_tokens_encode_piece(&t, bytes, 65, ids, 8), -1);
}

static void text_is_put_together(void **state) {
    tokens t = small_vocabulary();
    const int32_t ids[] = {50258, 50364, 258, 'o', 50257, -1, 99999};
    const int32_t broken[] = {261, 'a', 0xaa, 0xe2, 0x99, 0xaa, 0xf0};
    char text[32];
    assert_int_equal(sh_tokens_decode(&t, ids, 7, text, sizeof text), 5);
    assert_string_equal(text, "hello");
    assert_int_equal(sh_tokens_decode(&t, ids, 7, text, 3), 5);
    assert_string_equal(text, "he");
    assert_int_equal(sh_tokens_decode(&t, ids, 7, NULL, 0), 5);
    assert_int_equal(sh_tokens_decode(&t, broken, 7, text, sizeof text), 16);
    assert_string_equal(text, "\xef\xbf\xbd\xef\xbf\xbd"
                              "a\xef\xbf\xbd\xe2\x99\xaa\xef\xbf\xbd");
}

/* The list of the published multilingual models. */
static const int32_t published[] =
    {1,     2,     7,     8,     9,     10,    14,    25,    26,    27,    28,
     29,    31,    58,    59,    60,    61,    62,    63,    90,    91,    92,
     93,    359,   503,   522,   542,   873,   893,   902,   918,   922,   931,
     1350,  1853,  1982,  2460,  2627,  3246,  3253,  3268,  3536,  3846,  3961,
     4183,  4667,  6585,  6647,  7273,  9061,  9383,  10428, 10929, 11938, 12033,
     12331, 12562, 13793, 14157, 14635, 15265, 15618, 16553, 16604, 18362, 18956,
     20075, 21675, 22520, 26130, 26161, 26435, 28279, 29464, 31650, 32302, 32470,
     36865, 42863, 47425, 49870, 50254, 50258, 50358, 50359, 50360, 50361, 50362};

static void the_real_vocabulary(void **state) {
    const char *path = test_data("models/ggml-tiny.bin");
    shoal_context *context;
    whisper_file *file;
    char text[64];
    if (!path) {
        print_message("models/ggml-tiny.bin is not there: skipped\n");
        skip();
    }
    assert_int_equal(shoal_context_create(NULL, &context), SHOAL_OK);
    assert_int_equal(sh_whisper_file_open(context, path, &file), SHOAL_OK);
    const tokens *t = &file->tokens;
    sh_tokens_decode(t, (int32_t[]){2425, 1002, 0}, 3, text, sizeof text);
    assert_string_equal(text, " Hello world!");
    assert_int_equal(sh_tokens_find(t, " world", 6), 1002);
    assert_int_equal(t->suppress_count, COUNT_OF(published));
    assert_memory_equal(t->suppress, published, sizeof published);
    assert_int_equal(t->suppress_first_count, 2);
    assert_true(t->suppress_first[0] == 220 && t->suppress_first[1] == 50257);
    for (int32_t id = 0; id < t->end_of_text; id++) {
        size_t size = t->begin[id + 1] - t->begin[id];
        assert_true(size == 0 || sh_tokens_find(t, t->bytes + t->begin[id], size) == id);
    }
    sh_whisper_file_close(file);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_the_published_ones),
        cmocka_unit_test(languages_are_found),
        cmocka_unit_test(utf8_is_judged),
        cmocka_unit_test(pieces_are_merged_in_order),
        cmocka_unit_test(text_is_put_together),
        cmocka_unit_test(the_real_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
