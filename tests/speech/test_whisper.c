/* Whisper in C compared with its definition in double precision, on small models with
   random weights; the cache, beams and searches compared with the plain network. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "exact/exact.h"
#include "small_whisper.h"
#include "speech/whisper/speech.h"
#include "support.h"

#include "shoal_speech.h"
enum { POSITIONS = 1500, VOCABULARY = 51865, SECOND = 16000 };

static const small_whisper plain_model = {VOCABULARY, false, 1, false, 0};
static const small_whisper half_model = {VOCABULARY, true, 2, false, 0};

static float *features_of(const opened *o, uint64_t seed, int64_t samples) {
    float *sound = floats(samples), *features = floats(80 * 3000);
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = sound,
                                       .sample_count = samples};
    double seconds;
    make_samples(seed, samples, sound);
    assert_int_equal(shoal_speech_features(o->speech, &recording, 0, features, &seconds),
                     SHOAL_OK);
    assert_true(seconds == (double)samples / SECOND);
    free(sound);
    return features;
}

static float *encode(const opened *o, const float *features) {
    float *encoded = floats(POSITIONS * shoal_speech_describe(o->speech)->width);
    assert_int_equal(shoal_speech_encode(o->speech, features, encoded), SHOAL_OK);
    return encoded;
}

/* ---- Numbers -------------------------------------------------------------------- */

static double *doubles_of(const float *values, int64_t count) {
    double *made = malloc((size_t)count * sizeof *made);
    assert_non_null(made);
    for (int64_t i = 0; i < count; i++)
        made[i] = (double)values[i];
    return made;
}

/* The file's weights in double precision; exact_drop frees them. */
static exact_whisper exact_of(const whisper_file *file) {
    const whisper_sizes *s = &file->sizes;
    exact_weight *weights = malloc((size_t)file->tensor_count * sizeof *weights);
    assert_non_null(weights);
    for (int64_t i = 0; i < file->tensor_count; i++) {
        const file_tensor *from = &file->tensors[i];
        const int64_t count = sh_file_tensor_elements(from);
        float *values = floats(count);
        assert_int_equal(sh_file_tensor_to_f32(NULL, from, values), SHOAL_OK);
        weights[i] = (exact_weight){from->name, doubles_of(values, count)};
        free(values);
    }
    return (exact_whisper){.mels = s->mels,
                           .positions = s->audio_positions,
                           .vocabulary = s->vocabulary,
                           .width = s->audio_width,
                           .heads = s->audio_heads,
                           .layers = s->audio_layers,
                           .text_heads = s->text_heads,
                           .text_layers = s->text_layers,
                           .weights = weights,
                           .weight_count = file->tensor_count};
}

static void exact_drop(exact_whisper *model) {
    for (int64_t i = 0; i < model->weight_count; i++)
        free((void *)(uintptr_t)model->weights[i].values);
    free((void *)(uintptr_t)model->weights);
}

/* |a - b| / |b| as vectors. */
static double relative_difference(const float *a, const double *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* The decoder keeps keys and values of the audio in half precision unless it is
   exact. */
static void check_logits(const opened *o, const exact_whisper *definition,
                         const float *encoded, const double *exact, bool exactly) {
    static const int32_t text[] = {50258, 50259, 50359, 300, 17, 51000, 300};
    enum { COUNT = sizeof text / sizeof *text };
    const shoal_speech_options options = {.size = sizeof options,
                                          .precision = exactly ? SHOAL_PRECISION_FLOAT32
                                                               : SHOAL_PRECISION_AUTO};
    shoal_speech *speech;
    float *logits = floats(COUNT * VOCABULARY);
    double *exact_logits = malloc((size_t)COUNT * VOCABULARY * sizeof *exact_logits);
    assert_int_equal(shoal_speech_open(o->context, o->path, &options, &speech), SHOAL_OK);
    assert_int_equal(shoal_speech_logits(speech, encoded, text, COUNT, logits), SHOAL_OK);
    assert_true(exact_whisper_logits(definition, exact, text, COUNT, exact_logits));
    for (int row = 0; row < COUNT; row++)
        assert_true(relative_difference(logits + row * VOCABULARY,
                                        exact_logits + row * VOCABULARY,
                                        VOCABULARY) < (exactly ? 1e-5 : 1e-3));
    shoal_speech_destroy(speech);
    free(logits);
    free(exact_logits);
}

/* The encoder's matrices may be bfloat16 unless it is exact. */
static void reopen_exactly(opened *o) {
    const shoal_speech_options options = {.size = sizeof options,
                                          .precision = SHOAL_PRECISION_FLOAT32};
    shoal_speech_destroy(o->speech);
    assert_int_equal(shoal_speech_open(o->context, o->path, &options, &o->speech),
                     SHOAL_OK);
}

static void check_numbers(const small_whisper *model) {
    opened o = open_small(model, NULL, 2);
    whisper_file *file;
    reopen_exactly(&o);
    assert_int_equal(sh_whisper_file_open(o.context, o.path, &file), SHOAL_OK);
    exact_whisper definition = exact_of(file);
    float *features = features_of(&o, 3, 20 * SECOND), *encoded = encode(&o, features);
    double *inputs = doubles_of(features, 80 * 3000);
    const int64_t count = POSITIONS * (int64_t)shoal_speech_describe(o.speech)->width;
    double *exact = malloc((size_t)count * sizeof *exact);
    assert_true(exact_whisper_encode(&definition, inputs, exact));
    assert_true(relative_difference(encoded, exact, count) < 1e-5);
    check_logits(&o, &definition, encoded, exact, true);
    check_logits(&o, &definition, encoded, exact, false);
    void *const all[] = {features, encoded, inputs, exact};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    exact_drop(&definition);
    sh_whisper_file_close(file);
    close_small(&o);
}

static void test_numbers_of_float_weights(void **state) {
    check_numbers(&plain_model);
}

static void test_numbers_of_half_weights(void **state) {
    check_numbers(&half_model);
}

/* As stored in the file: blocks of bytes with scales. */
static void test_numbers_of_quantised_weights(void **state) {
    static const int32_t types[] = {2, 3, 6, 7, 8};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        check_numbers(&(small_whisper){VOCABULARY, true, 4, false, types[i]});
}

/* With bfloat16 products the encoder has that error, otherwise almost none; the same
   bits on any number of threads. */
static void test_numbers_of_bf16(void **state) {
    const small_whisper model = {VOCABULARY, true, 4, false, 8};
    float *made[3];
    for (int threads = 1; threads <= 3; threads++) {
        opened o = open_small(&model, NULL, threads);
        float *features = features_of(&o, 3, 20 * SECOND);
        if (threads == 3)
            reopen_exactly(&o);
        made[threads - 1] = encode(&o, features);
        free(features);
        close_small(&o);
    }
    double *exact = doubles_of(made[2], POSITIONS * 32);
    assert_memory_equal(made[0], made[1], POSITIONS * 32 * sizeof **made);
    assert_true(relative_difference(made[0], exact, POSITIONS * 32) < 0.02);
    for (int i = 0; i < 3; i++)
        free(made[i]);
    free(exact);
}

/* Bytes: near the float numbers, encoder and decoder, by the same bits on any number of
   threads and in any company. */
static void test_numbers_of_int8(void **state) {
    static const int32_t text[] = {50258, 50259, 50359, 300, 17, 51000, 300};
    enum { COUNT = sizeof text / sizeof *text, ENCODED = POSITIONS * 32 };
    const small_whisper model = {VOCABULARY, true, 4, false, 8};
    float *encoded[3], *logits[3], *features = NULL;
    for (int i = 0; i < 3; i++) {
        opened o = open_small(&model, NULL, 1 + i);
        const shoal_speech_options options = {
            .size = sizeof options,
            .precision = i < 2 ? SHOAL_PRECISION_INT8 : SHOAL_PRECISION_FLOAT32};
        shoal_speech_destroy(o.speech);
        assert_int_equal(shoal_speech_open(o.context, o.path, &options, &o.speech),
                         SHOAL_OK);
        assert_int_equal(shoal_speech_describe(o.speech)->precision, options.precision);
        if (!features)
            features = features_of(&o, 3, 20 * SECOND);
        encoded[i] = encode(&o, features);
        logits[i] = floats(COUNT * VOCABULARY);
        assert_int_equal(shoal_speech_logits(o.speech, encoded[2 * (i == 2)], text, COUNT,
                                             logits[i]),
                         SHOAL_OK);
        close_small(&o);
    }
    double *exact = doubles_of(encoded[2], ENCODED);
    double *exact_logits = doubles_of(logits[2], COUNT * VOCABULARY);
    const double off = relative_difference(encoded[0], exact, ENCODED);
    const double logits_off =
        relative_difference(logits[0], exact_logits, COUNT * VOCABULARY);
    assert_memory_equal(encoded[0], encoded[1], ENCODED * sizeof **encoded);
    assert_memory_equal(logits[0], logits[1], COUNT * VOCABULARY * sizeof **logits);
    if (!(off > 1e-4 && off < 0.03 && logits_off > 1e-4 && logits_off < 0.03))
        fail_msg("int8 is off by %g, its logits by %g", off, logits_off);
    for (int i = 0; i < 3; i++)
        free(encoded[i]), free(logits[i]);
    free(features), free(exact), free(exact_logits);
}

/* One cluster per query: all kinds but oracle and lsh equal full. */
static void test_kinds_that_are_exact(void **state) {
    static const char *const kinds[] = {"clustered-1500", "i-clustered-7:topk=1500",
                                        "q-clustered-1500", "oracle-top-1500"};
    opened o = open_small(&half_model, NULL, 2);
    float *features = features_of(&o, 4, 30 * SECOND), *exact = encode(&o, features);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        assert_int_equal(shoal_speech_set_attention(o.speech, kinds[i]), SHOAL_OK);
        float *encoded = encode(&o, features);
        assert_true(shoal_speech_attention_error(o.speech) < 1e-4);
        double worst = 0;
        for (int j = 0; j < POSITIONS * SMALL_WIDTH; j++)
            worst = fmax(worst, fabs((double)encoded[j] - (double)exact[j]));
        assert_true(worst < 1e-4);
        free(encoded);
    }
    free(features);
    free(exact);
    close_small(&o);
}

static void test_another_kind_is_another_result(void **state) {
    opened o = open_small(&half_model, NULL, 2);
    float *features = features_of(&o, 4, 30 * SECOND), *exact = encode(&o, features);
    assert_true(isnan(shoal_speech_attention_error(o.speech)));
    assert_int_equal(shoal_speech_set_attention(o.speech, "clustered-3"), SHOAL_OK);
    assert_true(isnan(shoal_speech_attention_error(o.speech)));
    float *encoded = encode(&o, features);
    assert_true(shoal_speech_attention_error(o.speech) > 1e-3);
    assert_memory_not_equal(encoded, exact, POSITIONS * SMALL_WIDTH * sizeof *exact);
    /* A rejected kind leaves the previous one. */
    assert_int_equal(shoal_speech_set_attention(o.speech, "clusterd-3"), SHOAL_INVALID);
    float *again = encode(&o, features);
    assert_memory_equal(encoded, again, POSITIONS * SMALL_WIDTH * sizeof *exact);
    free(features);
    free(exact);
    free(encoded);
    free(again);
    close_small(&o);
}

/* ---- Cache and beams ------------------------------------------------------------ */

static void check_near(const float *a, const float *b, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        assert_true(fabsf(a[i] - b[i]) <= 1e-4f * (1 + fabsf(b[i])));
}

/* Beams that diverge, swap and multiply give the results of each text alone. */
static void test_beams_remember_their_past(void **state) {
    opened o = open_small(&half_model, NULL, 2);
    float *features = features_of(&o, 5, 10 * SECOND), *encoded = encode(&o, features);
    decoder *d = o.speech->decoder;
    static const int32_t all[] = {0, 1, 2, 3, 4};
    int32_t texts[5][12] = {{50258, 9, 400},
                            {50258, 9, 400},
                            {50258, 9, 400},
                            {50258, 9, 400},
                            {50258, 9, 400}};
    float *logits = floats(5 * VOCABULARY), *alone = floats(12 * VOCABULARY);
    sh_decoder_hear(d, 0, encoded);
    sh_decoder_begin(d, 0, 0);
    for (int i = 0; i < 3; i++)
        sh_decoder_queue(d, 0, texts[0][i]);
    sh_decoder_run(d);
    sh_decoder_reorder(d, all, (int32_t[]){0, 0, 0, 0, 0}, 5);
    for (int step = 3; step < 10; step++) {
        int32_t next[5], parents[5], before[5][12];
        const int live = step % 2 ? 5 : 4;
        memcpy(before, texts, sizeof before);
        for (int beam = 0; beam < live; beam++) {
            parents[beam] = (int32_t)test_pick(1, (uint64_t)step, 0, step % 2 ? 3 : 4);
            if (beam % 2)
                parents[beam] = (int32_t)(beam + step) % 4;
            memcpy(texts[beam], before[parents[beam]], sizeof texts[beam]);
            next[beam] = texts[beam][step] =
                (int32_t)test_pick(2, (uint64_t)step, 0, 50000) + beam;
        }
        sh_decoder_reorder(d, all, parents, live);
        for (int beam = 0; beam < live; beam++)
            assert_int_equal(sh_decoder_queue(d, beam, next[beam]), beam);
        sh_decoder_run(d);
        assert_int_equal(sh_decoder_room(d, 0), SMALL_TEXT - step - 1);
    }
    sh_decoder_logits(d, all, 5, logits);
    for (int beam = 0; beam < 5; beam++) {
        assert_int_equal(shoal_speech_logits(o.speech, encoded, texts[beam], 10, alone),
                         SHOAL_OK);
        check_near(logits + beam * VOCABULARY, alone + 9 * VOCABULARY, VOCABULARY);
    }
    free(features);
    free(encoded);
    free(logits);
    free(alone);
    close_small(&o);
}

/* ---- Searches ------------------------------------------------------------------- */

static search_task task_for(const opened *o, const int32_t *prompt, int count,
                            bool timestamps) {
    const tokens *t = &o->speech->model->file->tokens;
    return (search_task){.prompt = prompt,
                         .prompt_count = count,
                         .no_speech = t->no_speech,
                         .rules = {.vocabulary = t->count,
                                   .end = t->end_of_text,
                                   .no_timestamps = t->no_timestamps,
                                   .first_timestamp = t->first_timestamp,
                                   .latest_beginning = t->first_timestamp + 50,
                                   .timestamps = timestamps,
                                   .never = t->suppress,
                                   .not_first = t->suppress_first,
                                   .never_count = t->suppress_count,
                                   .not_first_count = t->suppress_first_count},
                         .longest = 12,
                         .beams = 1};
}

/* Log-probability of a text by the plain network with the rules, including the end if
   there is room for it. */
static double score_of(const opened *o, const float *encoded, const search_task *task,
                       const int32_t *sampled, int count) {
    int32_t text[SMALL_TEXT];
    float *logits = floats((int64_t)SMALL_TEXT * VOCABULARY);
    double sum = 0;
    memcpy(text, task->prompt, (size_t)task->prompt_count * sizeof *text);
    memcpy(text + task->prompt_count, sampled, (size_t)count * sizeof *text);
    assert_int_equal(shoal_speech_logits(o->speech, encoded, text,
                                         task->prompt_count + count, logits),
                     SHOAL_OK);
    const int scored = count < task->longest ? count + 1 : count;
    for (int i = 0; i < scored; i++) {
        float *row = logits + (int64_t)(task->prompt_count - 1 + i) * VOCABULARY;
        sh_rules_apply(&task->rules, sampled, i, row);
        const int32_t token = i < count ? sampled[i] : task->rules.end;
        assert_true(row[token] > -INFINITY);
        sum += (double)row[token] - sh_log_sum_exp(row, VOCABULARY);
    }
    free(logits);
    return sum;
}

/* One search alone; the result is valid until the next one begins. */
static shoal_status run_search(search *s, const search_task *task,
                               search_result *result) {
    const int number = sh_search_begin(s, task);
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && !sh_search_ended(s, number, result))
        status = sh_search_step(s);
    sh_search_drop(s, number);
    return status;
}

static void check_search(const opened *o, const float *encoded, search_task task,
                         int beams, float temperature, double *mean) {
    search_result result;
    int32_t sampled[SMALL_TEXT];
    task.beams = beams;
    task.temperature = temperature;
    sh_decoder_hear(o->speech->decoder, 0, encoded);
    run_search(o->speech->search, &task, &result);
    assert_true(result.count <= task.longest);
    assert_true(result.no_speech > 0 && result.no_speech < 1);
    memcpy(sampled, result.tokens, (size_t)result.count * sizeof *sampled);
    const double sum = score_of(o, encoded, &task, sampled, result.count);
    assert_true(fabs(sum / (result.count + 1) - result.mean_logprob) < 1e-4);
    *mean = result.mean_logprob;
}

/* The score that any search reports is that of its text. */
static void test_scores_are_the_texts(void **state) {
    static const int32_t prompt[] = {50258, 50259, 50359};
    opened o = open_small(&half_model, NULL, 2);
    float *features = features_of(&o, 6, 25 * SECOND), *encoded = encode(&o, features);
    for (int timestamps = 0; timestamps < 2; timestamps++) {
        const search_task task = task_for(&o, prompt, 3, timestamps);
        double greedy, beams, sampled;
        check_search(&o, encoded, task, 1, 0, &greedy);
        check_search(&o, encoded, task, 5, 0, &beams);
        check_search(&o, encoded, task, 5, 0.8f, &sampled);
        check_search(&o, encoded, task, 1, 0.4f, &sampled);
    }
    free(features);
    free(encoded);
    close_small(&o);
}

/* With room for one token, beam search finds the best token, like greedy search. */
static void test_greedy_is_the_best_token(void **state) {
    static const int32_t prompt[] = {50258, 50259, 50359, 50363};
    opened o = open_small(&plain_model, NULL, 1);
    float *features = features_of(&o, 7, 5 * SECOND), *encoded = encode(&o, features);
    float *logits = floats(4 * VOCABULARY);
    search_task task = task_for(&o, prompt, 4, false);
    search_result result;
    assert_int_equal(shoal_speech_logits(o.speech, encoded, prompt, 4, logits), SHOAL_OK);
    sh_rules_apply(&task.rules, NULL, 0, logits + 3 * VOCABULARY);
    int32_t best = 0;
    for (int32_t i = 1; i < VOCABULARY; i++)
        if (logits[3 * VOCABULARY + i] > logits[3 * VOCABULARY + best])
            best = i;
    task.longest = 1;
    for (int beams = 1; beams <= 3; beams += 2) {
        task.beams = beams;
        run_search(o.speech->search, &task, &result);
        assert_int_equal(result.count, 1);
        assert_int_equal(result.tokens[0], best);
    }
    free(features);
    free(encoded);
    free(logits);
    close_small(&o);
}

/* ---- Parallel searches ------------------------------------------------------------ */

enum { SEARCHES = 7 };

typedef struct {
    int32_t ids[SMALL_TEXT];
    int count;
    double mean_logprob, no_speech;
} found_text;

static search_task odd_task(const opened *o, const int32_t *prompt, int index) {
    search_task task = task_for(o, prompt, 3 - index % 3, index % 2);
    task.window = index % 3;
    task.longest = 3 + 4 * (index % 4);
    task.beams = 1 + index * 2 % 5;
    task.temperature = index % 2 ? 0.7f : 0;
    task.seed = (uint64_t)index;
    return task;
}

static void keep_text(const search_result *result, found_text *found) {
    memcpy(found->ids, result->tokens, (size_t)result->count * sizeof *found->ids);
    found->count = result->count;
    found->mean_logprob = result->mean_logprob;
    found->no_speech = result->no_speech;
}

/* Searches that start at different steps, as there is room, and end at others. */
static void run_together(const opened *o, const int32_t *prompt, found_text *found) {
    search *s = o->speech->search;
    int numbers[SEARCHES], begun = 0, ended = 0;
    while (ended < SEARCHES) {
        search_result result;
        for (int number = 0; begun < SEARCHES && number >= 0;) {
            const search_task task = odd_task(o, prompt, begun);
            number = sh_search_begin(s, &task);
            if (number >= 0)
                numbers[begun++] = number;
        }
        assert_true(begun > ended);
        assert_int_equal(sh_search_step(s), SHOAL_OK);
        for (int i = 0; i < begun; i++)
            if (numbers[i] >= 0 && sh_search_ended(s, numbers[i], &result)) {
                keep_text(&result, &found[i]);
                sh_search_drop(s, numbers[i]);
                numbers[i] = -1;
                ended++;
            }
    }
}

/* Greedy, beam search and sampling of several windows in parallel: each has the same
   text and probabilities, bit for bit, as alone, on any number of threads. */
static void test_searches_side_by_side(void **state) {
    static const int32_t prompt[] = {50258, 50259, 50359};
    static found_text alone[SEARCHES], together[SEARCHES];
    for (int threads = 1; threads <= 3; threads++) {
        opened o = open_small(&half_model, NULL, threads);
        for (int window = 0; window < 3; window++) {
            float *features = features_of(&o, (uint64_t)window, 9 * SECOND);
            float *encoded = encode(&o, features);
            sh_decoder_hear(o.speech->decoder, window, encoded);
            free(features);
            free(encoded);
        }
        for (int i = 0; i < SEARCHES && threads == 1; i++) {
            const search_task task = odd_task(&o, prompt, i);
            search_result result;
            assert_int_equal(run_search(o.speech->search, &task, &result), SHOAL_OK);
            keep_text(&result, &alone[i]);
        }
        memset(together, 0, sizeof together);
        run_together(&o, prompt, together);
        assert_memory_equal(alone, together, sizeof alone);
        /* A search that is abandoned has no effect on others. */
        const search_task task = odd_task(&o, prompt, 3);
        assert_true(sh_search_begin(o.speech->search, &task) >= 0);
        assert_int_equal(sh_search_step(o.speech->search), SHOAL_OK);
        sh_search_drop_all(o.speech->search);
        run_together(&o, prompt, together);
        assert_memory_equal(alone, together, sizeof alone);
        close_small(&o);
    }
}

/* Every row is a softmax, and does not depend on later tokens. */
static void test_weights_of_heads(void **state) {
    static const int32_t text[] = {50258, 50259, 50359, 300, 17, 51000};
    static const decoder_head heads[] = {{1, 2}, {0, 0}, {1, 0}};
    opened o = open_small(&half_model, NULL, 2);
    float *features = features_of(&o, 8, 9 * SECOND), *encoded = encode(&o, features);
    float *weights = floats(3 * 6 * POSITIONS), *shorter = floats(1 * 4 * POSITIONS);
    sh_decoder_hear(o.speech->decoder, 1, encoded);
    sh_decoder_weights(o.speech->decoder, 1, text, 6, heads, 3, weights);
    sh_decoder_weights(o.speech->decoder, 1, text, 4, heads + 2, 1, shorter);
    for (int row = 0; row < 18; row++) {
        double sum = 0;
        for (int i = 0; i < POSITIONS; i++)
            sum += (double)weights[row * POSITIONS + i];
        assert_true(fabs(sum - 1) < 1e-4);
    }
    assert_memory_equal(weights + 12 * POSITIONS, shorter,
                        4 * POSITIONS * sizeof *shorter);
    assert_memory_not_equal(weights, weights + 12 * POSITIONS,
                            POSITIONS * sizeof *weights);
    free(features);
    free(encoded);
    free(weights);
    free(shorter);
    close_small(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_of_float_weights),
        cmocka_unit_test(test_numbers_of_half_weights),
        cmocka_unit_test(test_numbers_of_quantised_weights),
        cmocka_unit_test(test_numbers_of_bf16),
        cmocka_unit_test(test_numbers_of_int8),
        cmocka_unit_test(test_kinds_that_are_exact),
        cmocka_unit_test(test_another_kind_is_another_result),
        cmocka_unit_test(test_beams_remember_their_past),
        cmocka_unit_test(test_scores_are_the_texts),
        cmocka_unit_test(test_greedy_is_the_best_token),
        cmocka_unit_test(test_searches_side_by_side),
        cmocka_unit_test(test_weights_of_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
