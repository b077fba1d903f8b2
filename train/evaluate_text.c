/* A text model on its dev part, with other kinds of attention and with controls. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "train/evaluate.h"
#include "train/finetuned.h"

typedef struct {
    shoal_evaluation *e;
    shoal_finetuned *model;
    text_dev dev;
} text_evaluation;

/* ---- Rows -------------------------------------------------------------------------- */

static shoal_status run_row(void *user, shoal_model *view, eval_row *row) {
    text_evaluation *t = user;
    shoal_context *context = t->e->context;
    const text_set *set = sh_text_dev_set(&t->dev);
    const int64_t batch = t->model->config.train.batch;
    text_result result;
    double seconds = 0;
    shoal_status status = sh_text_dev_begin(&t->dev, context, &result);
    for (int64_t i = 0; i < set->count && status == SHOAL_OK; i += batch) {
        float *out;
        if (!sh_text_batch_fill(set, NULL, i, batch, &t->model->batch))
            return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
        const shoal_model_inputs inputs = sh_text_batch_inputs(&t->model->batch);
        const double begun = sh_seconds();
        status = shoal_model_forward(view, &inputs, &out);
        seconds += sh_seconds() - begun;
        if (status == SHOAL_OK)
            status = sh_text_dev_take(&t->dev, context, &t->model->batch, out, &result);
        if (status == SHOAL_OK)
            status = sh_eval_progress(t->e, row->name, i, set->count);
    }
    if (status == SHOAL_OK)
        status = sh_text_dev_end(&t->dev, context, &result);
    row->row.loss = result.loss;
    row->row.correct = result.correct;
    row->row.counted = result.counted;
    row->row.scores = sh_text_dev_second(&t->dev) ? 2 : 1;
    row->scores[0] = (shoal_evaluation_score){.name = sh_text_dev_first(&t->dev),
                                              .value = result.first};
    row->scores[1] = (shoal_evaluation_score){.name = sh_text_dev_second(&t->dev),
                                              .value = result.second};
    row->scores[0].seconds = row->scores[1].seconds = seconds;
    return status;
}

/* ---- Predictions ------------------------------------------------------------------- */

static char *squad_predictions(const text_dev *dev) {
    json_t *object = json_object();
    for (int64_t i = 0; i < dev->squad.count; i++) {
        char *text = sh_squad_text(&dev->squad.questions[i], &dev->answers[i]);
        json_object_set_new(object, dev->squad.questions[i].id, sh_json_text(text));
        free(text);
    }
    char *text = json_dumps(object, JSON_INDENT(1)), *line = NULL;
    if (text && asprintf(&line, "%s\n", text) < 0)
        line = NULL;
    free(text);
    json_decref(object);
    return line;
}

static char *glue_predictions(const text_dev *dev) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return NULL;
    fputs("index\tprediction\tlabel\n", file);
    for (int64_t i = 0; i < dev->set.count; i++)
        fprintf(file, "%" PRId64 "\t%.9g\t%.9g\n", i, (double)dev->predicted[i],
                (double)dev->set.labels[i]);
    const bool good = !ferror(file);
    if (fclose(file) == 0 && good)
        return text;
    free(text);
    return NULL;
}

/* ---- The evaluation ---------------------------------------------------------------- */

static json_t *make_json(const text_evaluation *t) {
    const shoal_evaluation *e = t->e;
    json_t *rows = json_array();
    for (int i = 0; i < e->count; i++) {
        const eval_row *row = &e->rows[i];
        json_t *object = json_pack("{s:s, s:b, s:o, s:o, s:o}", "kind", row->name,
                                   "control", row->row.control, row->scores[0].name,
                                   sh_json_number(row->scores[0].value), "loss",
                                   sh_json_number(row->row.loss), "seconds",
                                   sh_json_number(row->scores[0].seconds));
        if (row->row.scores > 1)
            json_object_set_new(object, row->scores[1].name,
                                sh_json_number(row->scores[1].value));
        json_array_append_new(rows, object);
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:o}", "task", e->info.dataset,
                     "metric", sh_text_dev_first(&t->dev), "trained", e->trained, "steps",
                     (json_int_t)e->info.step, "texts", (json_int_t)e->info.sequences,
                     "config",
                     sh_eval_config(t->model->glue ? &sh_glue_task : &sh_squad_task,
                                    &t->model->config),
                     "kinds", rows);
}

static shoal_status read_dev(text_evaluation *t) {
    const shoal_evaluation_options *options = &t->e->options;
    const glue_task *glue = t->model->glue;
    text_reader reader = sh_finetuned_reader(t->model);
    const char *path = options->data;
    reader.skip_bad = options->skip_bad != 0;
    reader.message = options->callbacks.message;
    reader.user = options->callbacks.user;
    if (!path)
        path = json_string_value(json_object_get(t->model->paths, glue ? "data" : "dev"));
    if (!path)
        return sh_fail(t->e->context, SHOAL_INVALID,
                       "%s: it does not say where its data is; --data does", t->e->path);
    t->dev.glue = glue;
    t->dev.max_answer = t->model->max_answer;
    return glue ? sh_glue_read(&reader, glue, path, NULL, &t->dev.set)
                : sh_squad_read(&reader, path, t->model->stride, false, &t->dev.squad);
}

static shoal_status run_rows(text_evaluation *t) {
    shoal_evaluation *e = t->e;
    const int64_t batch = t->model->config.train.batch;
    const int64_t rows = sh_text_set_most_rows(sh_text_dev_set(&t->dev), batch);
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < e->count && status == SHOAL_OK; i++) /* can the weights do it? */
        status = sh_eval_row(e, t->model->model, batch, rows, &e->rows[i], NULL, NULL);
    for (int i = 0; i < e->count && status == SHOAL_OK; i++) {
        status = sh_eval_row(e, t->model->model, batch, rows, &e->rows[i], run_row, t);
        if (status != SHOAL_OK || i > 0)
            continue;
        e->predictions = t->model->glue ? glue_predictions(&t->dev)
                                        : squad_predictions(&t->dev);
        if (!e->predictions)
            status = sh_fail(e->context, SHOAL_NO_MEMORY, "out of memory");
    }
    return status;
}

shoal_status sh_evaluate_text(shoal_evaluation *e, const char *path) {
    text_evaluation t = {.e = e};
    shoal_status status = shoal_finetuned_open(e->context, path, NULL, &t.model);
    if (status == SHOAL_OK) {
        const shoal_finetuned_info *info = &t.model->info;
        strcpy(e->path, info->path);
        e->info.dataset = info->dataset;
        e->info.step = info->step;
        e->info.batch = t.model->config.train.batch;
        status = read_dev(&t);
        e->info.sequences = t.dev.glue ? t.dev.set.count : t.dev.squad.count;
        if (status == SHOAL_OK)
            status = sh_eval_rows(e, &info->attention);
    }
    if (status == SHOAL_OK)
        status = run_rows(&t);
    if (status == SHOAL_OK)
        status = sh_eval_keep_json(e, make_json(&t));
    sh_text_dev_free(&t.dev);
    shoal_finetuned_close(t.model);
    return status;
}
