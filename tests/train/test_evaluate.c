/* A text model trained, opened and used by the library: classes and answers equal the
   predictions of its evaluation, controls remove the attention, and errors. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "folders.h"
#include "shoal_train.h"
#include "support.h"

static shoal_context *context;
static const char *folder; /* of data and runs */
static char glue_run[256], squad_run[256];

static const char rte[] = "sentence1\tsentence2\tlabel\n"
                          "queries huddle\tclusters\t1\n"
                          "linear time\tonce\t0\n"
                          "each cluster\tattends\t1\n"
                          "queries in time\tlinear\t0\n";
static const char squad[] =
    "{\"data\": [{\"paragraphs\": [{\"context\": \"each cluster attends once\", \"qas\": "
    "[{\"id\": \"q\", \"question\": \"which?\", \"answers\": [{\"text\": \"cluster\", "
    "\"answer_start\": 5}]}]}]}]}";

static void put(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_bytes_to(path, text, strlen(text));
}

static void train(const char *task, void *config, const char *run) {
    shoal_run_options options = shoal_run_options_defaults();
    options.folder = run;
    if (shoal_train_run(context, shoal_task_find(task), config, &options, NULL) !=
        SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
}

static int train_both(void **state) {
    static char bert[512], json[300];
    shoal_glue_config glue = shoal_glue_config_defaults();
    shoal_squad_config answers = shoal_squad_config_defaults();
    context = test_context(NULL, 1);
    folder = make_folder();
    put("train.tsv", rte);
    put("dev.tsv", rte);
    put("s.json", squad);
    snprintf(bert, sizeof bert, "%s", recorded_text("bert"));
    snprintf(json, sizeof json, "%s/s.json", folder);
    snprintf(glue_run, sizeof glue_run, "%s/glue", folder);
    snprintf(squad_run, sizeof squad_run, "%s/squad", folder);
    strcpy(glue.dataset, "RTE");
    glue.folder = folder;
    glue.model_folder = answers.model_folder = bert;
    answers.folder = answers.dev = json;
    glue.max_length = answers.max_length = 32;
    answers.stride = 8;
    glue.train.epochs = answers.train.epochs = 1;
    train("glue", &glue, glue_run);
    train("squad", &answers, squad_run);
    return 0;
}

static int end_all(void **state) {
    remove_folder(folder);
    shoal_context_destroy(context);
    return 0;
}

/* ---- Use --------------------------------------------------------------------------- */

static void classes_are_predictions(void **state) {
    static const char *const pairs[][2] = {{"queries huddle", "clusters"},
                                           {"linear time", "once"},
                                           {"each cluster", "attends"},
                                           {"queries in time", "linear"}};
    shoal_finetuned *model;
    shoal_evaluation *evaluation;
    shoal_text texts[4];
    float logits[4][2];
    assert_int_equal(shoal_finetuned_open(context, glue_run, NULL, &model), SHOAL_OK);
    const shoal_finetuned_info info = *shoal_finetuned_describe(model);
    assert_string_equal(info.dataset, "RTE");
    assert_true(info.classes == 2 && info.step == 1 && !info.not_best);
    assert_string_equal(shoal_finetuned_class(model, 1), "not_entailment");
    assert_null(shoal_finetuned_class(model, 2));
    for (int i = 0; i < 4; i++)
        texts[i] = (shoal_text){.size = sizeof(shoal_text),
                                .text = pairs[i][0],
                                .bytes = SHOAL_TERMINATED,
                                .pair = pairs[i][1],
                                .pair_bytes = SHOAL_TERMINATED};
    assert_int_equal(shoal_finetuned_classify(model, 4, texts, logits[0]), SHOAL_OK);
    assert_int_equal(shoal_evaluation_create(context, glue_run, NULL, &evaluation),
                     SHOAL_OK);
    const char *at = shoal_evaluation_predictions(evaluation);
    for (int i = 0; i < 4; i++) {
        double predicted;
        at = strchr(at, '\n') + 1;
        assert_int_equal(sscanf(at, "%*d %lf", &predicted), 1);
        assert_int_equal((int)predicted, logits[i][1] > logits[i][0]);
    }
    shoal_evaluation_destroy(evaluation);
    shoal_answer answer;
    assert_int_equal(shoal_finetuned_answer(model, "a", "b", &answer), SHOAL_INVALID);
    shoal_finetuned_destroy(model);
}

static void answers_are_predictions(void **state) {
    shoal_finetuned *model;
    shoal_evaluation *evaluation;
    shoal_answer answer;
    char wanted[128];
    assert_int_equal(shoal_finetuned_open(context, squad_run, NULL, &model), SHOAL_OK);
    assert_int_equal(shoal_finetuned_answer(model, "which?", "each cluster attends once",
                                            &answer),
                     SHOAL_OK);
    assert_true(answer.windows == 1 && isfinite(answer.score) && answer.text[0] &&
                answer.end - answer.begin == (int64_t)strlen(answer.text));
    assert_int_equal(shoal_evaluation_create(context, squad_run, NULL, &evaluation),
                     SHOAL_OK);
    snprintf(wanted, sizeof wanted, "\"q\": \"%s\"", answer.text);
    assert_non_null(strstr(shoal_evaluation_predictions(evaluation), wanted));
    shoal_evaluation_destroy(evaluation);
    float logits[2];
    assert_int_equal(shoal_finetuned_classify(model, 0, NULL, logits), SHOAL_INVALID);
    shoal_finetuned_destroy(model);
}

/* ---- Evaluation -------------------------------------------------------------------- */

static void rows_and_controls(void **state) {
    shoal_attention kinds[2];
    shoal_evaluation_options options = shoal_evaluation_options_defaults();
    shoal_evaluation *evaluation;
    shoal_evaluation_row row;
    shoal_evaluation_score score;
    double losses[5];
    assert_int_equal(shoal_attention_parse(context, "full", &kinds[0]), SHOAL_OK);
    assert_int_equal(shoal_attention_parse(context, "clustered-1", &kinds[1]), SHOAL_OK);
    options.attention = kinds;
    options.kinds = 2;
    options.controls = 1;
    assert_int_equal(shoal_evaluation_create(context, glue_run, &options, &evaluation),
                     SHOAL_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(shoal_evaluation_row_get(evaluation, i, &row), SHOAL_OK);
        assert_true(row.control == (i >= 2) && row.trained == (i == 0));
        assert_true(row.counted == 4 && row.scores == 1);
        losses[i] = row.loss;
        assert_int_equal(shoal_evaluation_score_get(evaluation, i, 0, &score), SHOAL_OK);
        assert_string_equal(score.name, "accuracy");
        assert_true(score.value == (double)row.correct / 4);
    }
    assert_true(losses[1] == losses[4] && losses[2] != losses[0] &&
                losses[3] != losses[0]);
    assert_int_equal(shoal_evaluation_row_get(evaluation, 5, &row), SHOAL_INVALID);
    assert_int_equal(shoal_evaluation_score_get(evaluation, 0, 1, &score), SHOAL_INVALID);
    assert_non_null(strstr(shoal_evaluation_json(evaluation), "\"no attention\""));
    shoal_evaluation_destroy(evaluation);

    /* The weights are restored. */
    assert_int_equal(shoal_evaluation_create(context, glue_run, NULL, &evaluation),
                     SHOAL_OK);
    assert_int_equal(shoal_evaluation_row_get(evaluation, 0, &row), SHOAL_OK);
    assert_true(row.loss == losses[0]);
    shoal_evaluation_destroy(evaluation);
}

static int no(void *user) {
    return 1;
}

static void refusals(void **state) {
    shoal_attention kind;
    shoal_evaluation_options options = shoal_evaluation_options_defaults();
    shoal_evaluation *evaluation;
    shoal_finetuned *model;
    assert_int_equal(shoal_attention_parse(context, "lsh-1", &kind), SHOAL_OK);
    options.attention = &kind;
    options.kinds = 1;
    assert_int_equal(shoal_evaluation_create(context, glue_run, &options, &evaluation),
                     SHOAL_BAD_FILE);
    assert_null(evaluation);
    options.kinds = 33;
    assert_int_equal(shoal_evaluation_create(context, glue_run, &options, &evaluation),
                     SHOAL_INVALID);
    options = shoal_evaluation_options_defaults();
    options.callbacks.cancelled = no;
    assert_int_equal(shoal_evaluation_create(context, glue_run, &options, &evaluation),
                     SHOAL_CANCELLED);
    options = shoal_evaluation_options_defaults();
    options.data = "/nowhere";
    assert_int_equal(shoal_evaluation_create(context, glue_run, &options, &evaluation),
                     SHOAL_BAD_FILE);
    assert_true(shoal_finetuned_open(context, "/nowhere", NULL, &model) != SHOAL_OK);
    assert_null(model);
}

/* ---- Memory ------------------------------------------------------------------------ */

static shoal_status use_run(shoal_context *own, const char *run) {
    char path[512];
    shoal_finetuned *model = NULL;
    shoal_evaluation *evaluation = NULL;
    shoal_answer answer;
    const shoal_text text = {.size = sizeof text,
                             .text = "queries",
                             .bytes = SHOAL_TERMINATED,
                             .pair = "time",
                             .pair_bytes = SHOAL_TERMINATED};
    float logits[2];
    snprintf(path, sizeof path, "%s/log.csv", folder);
    shoal_status status = shoal_finetuned_open(own, run, NULL, &model);
    if (status == SHOAL_OK)
        status = run == glue_run
                     ? shoal_finetuned_classify(model, 1, &text, logits)
                     : shoal_finetuned_answer(model, "which?",
                                              "each cluster attends once", &answer);
    if (status == SHOAL_OK)
        status = shoal_evaluation_create(own, run, NULL, &evaluation);
    if (status == SHOAL_OK)
        status = shoal_run_export(own, run, path);
    shoal_evaluation_destroy(evaluation);
    shoal_finetuned_destroy(model);
    return status;
}

/* Each allocation fails in turn: a call says so, or does without, and nothing is left
   behind. */
static void allocations_may_fail(void **state) {
    const char *const runs[] = {glue_run, squad_run};
    for (int64_t i = 0; i < COUNT_OF(runs); i++) {
        int64_t failures = 0;
        bool failed = true;
        while (failed) {
            counting_allocator memory = {0};
            shoal_options options = counting_options(&memory);
            shoal_context *own;
            options.threads = 1;
            assert_int_equal(shoal_context_create(&options, &own), SHOAL_OK);
            memory.fail_at = memory.calls + ++failures;
            const shoal_status status = use_run(own, runs[i]);
            failed = memory.calls >= memory.fail_at;
            if (status != SHOAL_OK && status != SHOAL_NO_MEMORY)
                fail_msg("allocation %lld of %s: %s", (long long)failures, runs[i],
                         shoal_context_message(own));
            shoal_context_destroy(own);
            assert_int_equal(memory.live, 0);
        }
        assert_true(failures > 100);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_predictions),
        cmocka_unit_test(answers_are_predictions),
        cmocka_unit_test(rows_and_controls),
        cmocka_unit_test(refusals),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, train_both, end_all);
}
