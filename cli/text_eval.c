/* A model of text on its dev part, with other kinds of attention and with controls. */
#define _GNU_SOURCE
#include "text_eval.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "controls.h"
#include "text_run.h"

typedef struct {
    eval_kind as;
    text_result result;
} eval_row;

typedef struct {
    const text_eval_job *job;
    shoal_context *context;
    text_run run;
    text_dev dev;
    eval_row rows[EVAL_MOST_ROWS];
    int count;
} evaluation;

/* ---- Rows -------------------------------------------------------------------------- */

static void trained_kind(const evaluation *e, char name[EVAL_NAME]) {
    shoal_attention_print(&e->run.config.model.attention, name, EVAL_NAME);
}

static int make_rows(evaluation *e) {
    eval_kind kinds[EVAL_MOST_ROWS];
    const eval_choice choice = {e->job->kinds, e->job->names, e->job->controls,
                                &e->run.config.model.attention};
    const int count = eval_kinds(e->context, &choice, kinds);
    for (; e->count < count; e->count++)
        e->rows[e->count].as = kinds[e->count];
    return count < 0 ? EXIT_USAGE : EXIT_OK;
}

static int open_view(evaluation *e, const eval_row *row, shoal_model **view) {
    const int64_t batch = e->run.config.batch;
    const shoal_status status =
        shoal_model_view(e->run.model, &row->as.kind, batch,
                         sh_text_set_most_rows(sh_text_dev_set(&e->dev), batch), view);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "eval", e->context);
}

static int show(void *user, int64_t done, int64_t all) {
    progress_say("%s, %" PRId64 " of %" PRId64, ((const eval_row *)user)->as.name, done,
                 all);
    return 0;
}

static int evaluate_row(evaluation *e, eval_row *row) {
    shoal_model *view;
    control_state control;
    int code = open_view(e, row, &view);
    if (code != EXIT_OK)
        return code;
    if (!control_begin(e->run.model, row->as.weights, &control)) {
        shoal_model_destroy(view);
        return complain(EXIT_RESOURCES, "eval", "out of memory");
    }
    const shoal_status status = sh_text_dev_run(&e->dev, e->context, view,
                                                e->run.config.batch, show, (void *)row,
                                                &row->result);
    shoal_model_destroy(view);
    control_end(&control);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "eval", e->context);
}

/* ---- Predictions ------------------------------------------------------------------- */

static bool write_squad(const text_dev *dev, FILE *file) {
    json_t *object = json_object();
    for (int64_t i = 0; i < dev->squad.count; i++) {
        char *text = sh_squad_text(&dev->squad.questions[i], &dev->answers[i]);
        json_object_set_new(object, dev->squad.questions[i].id, json_text(text));
        free(text);
    }
    const bool good = json_dumpf(object, file, JSON_INDENT(1)) == 0 &&
                      fputc('\n', file) != EOF;
    json_decref(object);
    return good;
}

static bool write_glue(const text_dev *dev, FILE *file) {
    bool good = fprintf(file, "index\tprediction\tlabel\n") > 0;
    for (int64_t i = 0; i < dev->set.count && good; i++)
        good = fprintf(file, "%" PRId64 "\t%.9g\t%.9g\n", i, (double)dev->predicted[i],
                       (double)dev->set.labels[i]) > 0;
    return good;
}

static int write_predictions(const evaluation *e) {
    const char *path = e->job->predictions;
    replacement to;
    FILE *file = replace_begin(&to, path);
    bool good = file && (e->run.glue ? write_glue : write_squad)(&e->dev, file);
    if (file)
        good = replace_end(&to, good);
    return good ? EXIT_OK
                : complain(EXIT_RESOURCES, "eval", "%s cannot be written: %s", path,
                           strerror(errno));
}

/* ---- Reports ----------------------------------------------------------------------- */

static const char *task_name(const evaluation *e) {
    return e->run.glue ? e->run.glue->name : "SQuAD";
}

static int64_t texts_of(const evaluation *e) {
    return e->run.glue ? e->dev.set.count : e->dev.squad.count;
}

static void print_row(const evaluation *e, const eval_row *row, int width) {
    char trained[EVAL_NAME];
    trained_kind(e, trained);
    printf("%c %-*s %12.4f",
           row->as.control                      ? '-'
           : strcmp(row->as.name, trained) == 0 ? '*'
                                                : ' ',
           width, row->as.name, row->result.first);
    if (sh_text_dev_second(&e->dev))
        printf(" %12.4f", row->result.second);
    printf(" %9.2f\n", row->result.seconds);
}

static void print_table(const evaluation *e) {
    char trained[EVAL_NAME];
    int width = 4;
    trained_kind(e, trained);
    for (int i = 0; i < e->count; i++) {
        const int length = (int)strlen(e->rows[i].as.name);
        width = length > width ? length : width;
    }
    printf("%s, %s, trained with %s, step %" PRId64 "; dev: %" PRId64
           " %s\n\n  %-*s %12s",
           e->run.path, task_name(e), trained, e->run.step, texts_of(e),
           e->run.glue ? "texts" : "questions", width, "kind",
           sh_text_dev_first(&e->dev));
    if (sh_text_dev_second(&e->dev))
        printf(" %12s", sh_text_dev_second(&e->dev));
    printf(" %9s\n", "seconds");
    for (int i = 0; i < e->count; i++)
        print_row(e, &e->rows[i], width);
    printf("\n* the kind it was trained with%s\n",
           e->job->controls ? "\n- controls: where they are not far worse, the model "
                              "hardly uses its attention,\n  and every kind looks free"
                            : "");
}

static json_t *row_json(const evaluation *e, const eval_row *row) {
    json_t *object = json_pack("{s:s, s:b, s:o, s:o, s:o}", "kind", row->as.name,
                               "control", row->as.control, sh_text_dev_first(&e->dev),
                               json_number(row->result.first), "loss",
                               json_number(row->result.loss), "seconds",
                               json_number(row->result.seconds));
    if (sh_text_dev_second(&e->dev))
        json_object_set_new(object, sh_text_dev_second(&e->dev),
                            json_number(row->result.second));
    return object;
}

static json_t *make_object(const evaluation *e) {
    char trained[EVAL_NAME];
    json_t *rows = json_array();
    trained_kind(e, trained);
    for (int i = 0; i < e->count; i++)
        json_array_append_new(rows, row_json(e, &e->rows[i]));
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:o}", "task", task_name(e),
                     "metric", sh_text_dev_first(&e->dev), "trained", trained, "steps",
                     (json_int_t)e->run.step, "texts", (json_int_t)texts_of(e), "config",
                     train_config_json(&e->run.config), "kinds", rows);
}

/* ---- The command ------------------------------------------------------------------- */

/* What was left out, as the program says it. */
static void say(void *user, const char *text) {
    tell("shoal %s: %s", (const char *)user, text);
}

static int read_dev(evaluation *e) {
    const train_config *config = &e->run.config;
    const text_reader reader = {e->context,
                                e->run.tokenizer,
                                config->text.max_length,
                                e->job->skip_bad,
                                say,
                                (char[]){"eval"}};
    const char *path = e->job->data;
    if (!path)
        path = json_string_value(
            json_object_get(e->run.paths, e->run.glue ? "data" : "dev"));
    if (!path)
        return complain(EXIT_USAGE, "eval",
                        "%s: it does not say where its data is; "
                        "--data does",
                        e->run.path);
    e->dev.glue = e->run.glue;
    e->dev.max_answer = config->text.max_answer;
    const shoal_status status =
        e->run.glue
            ? sh_glue_read(&reader, e->run.glue, path, NULL, &e->dev.set)
            : sh_squad_read(&reader, path, config->text.stride, false, &e->dev.squad);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "eval", e->context);
}

static int evaluate(evaluation *e) {
    int code = read_dev(e);
    if (code == EXIT_OK)
        code = make_rows(e);
    for (int i = 0; i < e->count && code == EXIT_OK; i++) { /* can the weights do it? */
        shoal_model *view;
        code = open_view(e, &e->rows[i], &view);
        shoal_model_destroy(view);
    }
    progress_begin(2);
    for (int i = 0; i < e->count && code == EXIT_OK; i++) {
        code = evaluate_row(e, &e->rows[i]);
        if (code == EXIT_OK && i == 0 && e->job->predictions)
            code = write_predictions(e);
    }
    progress_end();
    if (code != EXIT_OK)
        return code;
    if (e->job->object)
        *e->job->object = make_object(e);
    else if (e->job->json)
        return print_json(make_object(e));
    else
        print_table(e);
    return EXIT_OK;
}

int text_eval(const text_eval_job *job, shoal_context *context) {
    static evaluation e;
    e = (evaluation){.job = job, .context = context};
    int code = job->predictions ? will_write("eval", job->predictions) : EXIT_OK;
    if (code == EXIT_OK)
        code = text_run_open("eval", context, job->path, &e.run);
    if (code == EXIT_OK)
        code = evaluate(&e);
    sh_text_dev_free(&e.dev);
    text_run_close(&e.run);
    return code;
}
