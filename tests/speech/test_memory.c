/* The memory of words and of LF-MMI comes from the context's allocator: each allocation
   fails in turn, the calls say so, and nothing is left behind. Data folders are tested so
   in test_corpus.c, audio in test_audio.c, Whisper in test_transcribe.c. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "small_lfmmi.h"

enum { STEPS = 6, LONG_STEPS = 400 };

static const char arpa[] = "\\data\\\nngram 1=6\nngram 2=3\n\\1-grams:\n"
                           "-1 <s> -0.3\n-1 </s>\n-0.7 v -0.2\n-0.7 x -0.2\n-0.7 y\n"
                           "-0.7 z\n\\2-grams:\n-0.3 <s> v\n-0.4 v x\n-0.5 x </s>\n"
                           "\\end\\\n";

static char lexicon_path[512], arpa_path[512], graph_path[512];

/* Words of random outputs, the n best with confidences. */
static shoal_status search_words(shoal_context *own, const shoal_lexicon *list,
                                 shoal_topology topology) {
    shoal_ngram *ngram = NULL;
    shoal_word_decoder *decoder = NULL;
    static float outputs[2 * LONG_STEPS * MOST_OUTPUTS];
    const int64_t rows[] = {0, STEPS, STEPS + LONG_STEPS};
    shoal_spoken spoken[2];
    shoal_word_settings settings = shoal_word_settings_defaults(topology);
    settings.nbest = 5;
    settings.confidence = 1;
    fill_random(outputs, COUNT_OF(outputs), 2, 1);
    shoal_status status = shoal_ngram_open(own, arpa_path, &ngram);
    if (status == SHOAL_OK)
        status = shoal_word_decoder_create(own, list, ngram, topology, 0.01, &decoder);
    for (int twice = 0; twice < 2 && status == SHOAL_OK; twice++)
        status = shoal_word_decoder_run(decoder, &settings, 2, rows, outputs, spoken);
    shoal_word_decoder_destroy(decoder);
    shoal_ngram_destroy(ngram);
    return status;
}

static shoal_status use_words(shoal_context *own) {
    const char *list[] = {lexicon_path};
    shoal_lexicon *read = NULL, *again = NULL;
    shoal_status status = shoal_lexicon_open(own, list, 1, NULL, &read);
    if (status == SHOAL_OK)
        status = shoal_lexicon_open_list(own, lexicon_path, NULL, &again);
    if (status == SHOAL_OK)
        status = search_words(own, read, SHOAL_TOPOLOGY_CHAIN);
    shoal_lexicon_destroy(again);
    shoal_lexicon_destroy(read);
    return status;
}

static shoal_status use_lfmmi(shoal_context *own) {
    shoal_lfmmi_options options = shoal_lfmmi_options_defaults();
    shoal_lfmmi *made = NULL, *opened = NULL;
    const int64_t rows[] = {0, 12, 24}, texts[] = {0, 2, 3};
    const shoal_lfmmi_batch batch = {.size = sizeof(shoal_lfmmi_batch),
                                     .batch = 2,
                                     .offsets = rows,
                                     .word_offsets = texts,
                                     .words = words};
    float y[24 * MOST_OUTPUTS], gradient[24 * MOST_OUTPUTS];
    int32_t phones[24], begins[24];
    int64_t counts[2];
    shoal_lfmmi_result result;
    options.order = 3;
    options.extra = 2;
    fill_random(y, COUNT_OF(y), 1, 2);
    shoal_status status =
        shoal_lfmmi_create(own, &options, lexicon, TEXTS, offsets, words, &made);
    if (status == SHOAL_OK)
        status = shoal_lfmmi_loss(made, &batch, y, 1, gradient, NULL, &result);
    if (status == SHOAL_OK)
        status = shoal_lfmmi_decode(made, 2, rows, y, phones, begins, counts);
    if (status == SHOAL_OK)
        status = shoal_lfmmi_save(made, graph_path);
    if (status == SHOAL_OK)
        status = shoal_lfmmi_open(own, &options, lexicon, graph_path, &opened);
    shoal_lfmmi_destroy(opened);
    shoal_lfmmi_destroy(made);
    return status;
}

/* Returns after how many allocations it went well. */
static int64_t fail_in_turn(shoal_status (*use)(shoal_context *own)) {
    for (int64_t failures = 1;; failures++) {
        counting_allocator memory = {0};
        shoal_options counted = counting_options(&memory);
        shoal_context *own;
        counted.threads = 1;
        assert_int_equal(shoal_context_create(&counted, &own), SHOAL_OK);
        memory.fail_at = memory.calls + failures; /* the context has its own */
        const shoal_status status = use(own);
        if (status != SHOAL_OK && status != SHOAL_NO_MEMORY)
            fail_msg("allocation %lld: %s", (long long)failures,
                     shoal_context_message(own));
        if (status == SHOAL_NO_MEMORY)
            assert_non_null(strstr(shoal_context_message(own), "memory"));
        shoal_context_destroy(own);
        assert_int_equal(memory.live, 0);
        if (status == SHOAL_OK)
            return failures;
    }
}

static void words_survive_every_failure(void **state) {
    assert_true(fail_in_turn(use_words) > 60);
}

static void lfmmi_survives_every_failure(void **state) {
    assert_true(fail_in_turn(use_lfmmi) > 40);
}

static int set_up(void **state) {
    if (small_lfmmi_set_up(state) != 0)
        return -1;
    snprintf(lexicon_path, sizeof lexicon_path, "%s/lexicon.txt", folder);
    snprintf(arpa_path, sizeof arpa_path, "%s/words.arpa", folder);
    snprintf(graph_path, sizeof graph_path, "%s/phones.ngrams", folder);
    write_bytes_to(arpa_path, arpa, strlen(arpa));
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_survive_every_failure),
        cmocka_unit_test(lfmmi_survives_every_failure),
    };
    return cmocka_run_group_tests(tests, set_up, small_lfmmi_tear_down);
}
