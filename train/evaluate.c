/* Evaluations: options, rows with controls, results; and the task copy. */
#define _GNU_SOURCE
#include "train/evaluate.h"
#include "base/memory.h"
#include "models/files/files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Rows -------------------------------------------------------------------------- */

/* Kinds are followed by the controls: the same model without its attention, which shows
   whether the task needs attention at all. */
shoal_status sh_eval_rows(shoal_evaluation *e, const shoal_attention *trained) {
    static const struct {
        const char *spelling, *name;
        row_weights weights;
    } controls[] = {{"full", "uniform attention", UNIFORM},
                    {"full", "no attention", NO_ATTENTION},
                    {"clustered-1", NULL, AS_TRAINED}};
    const int kinds = e->options.kinds > 0 ? (int)e->options.kinds : 1;
    const int all = kinds + (e->options.controls ? 3 : 0);
    shoal_attention_print(trained, e->trained, sizeof e->trained);
    e->info.trained = e->trained;
    for (; e->count < all; e->count++) {
        eval_row *row = &e->rows[e->count];
        const int control = e->count - kinds;
        row->kind = e->options.kinds > 0 && control < 0 ? e->options.attention[e->count]
                                                        : *trained;
        if (control >= 0) {
            TRY(shoal_attention_parse(e->context, controls[control].spelling,
                                      &row->kind));
            row->weights = controls[control].weights;
        }
        if (control >= 0 && controls[control].name)
            strcpy(row->name, controls[control].name);
        else
            shoal_attention_print(&row->kind, row->name, sizeof row->name);
        row->row = (shoal_evaluation_row){.kind = row->name,
                                          .control = control >= 0,
                                          .trained = control < 0 &&
                                                     strcmp(row->name, e->trained) == 0};
    }
    return SHOAL_OK;
}

static void clear_weights(shoal_model *model, row_weights weights) {
    const char *const own = weights == UNIFORM ? "attention.query." : "attention.output.";
    shoal_parameter one;
    for (int i = 0; shoal_model_parameter(model, i, &one); i++) {
        const char *found = strstr(one.name, own);
        size_t count = 1;
        for (int r = 0; r < one.dimensions; r++)
            count *= (size_t)one.shape[r];
        if (found && (strcmp(found + strlen(own), "weight") == 0 ||
                      strcmp(found + strlen(own), "bias") == 0))
            memset(one.values, 0, count * sizeof *one.values);
    }
}

shoal_status sh_eval_row(shoal_evaluation *e, shoal_model *model, int64_t batch,
                         int64_t rows, eval_row *row, eval_run *run, void *user) {
    shoal_model *view = NULL;
    float *values, *kept = NULL;
    int64_t size = 0;
    shoal_status status = shoal_model_create_view(model, &row->kind, batch, rows, &view);
    if (status == SHOAL_INVALID) /* a valid kind, but not usable with these weights */
        status = SHOAL_BAD_FILE;
    if (status == SHOAL_OK && run && row->weights != AS_TRAINED) {
        size = shoal_model_vectors(model, &values, NULL);
        kept = sh_allocate(e->context, sizeof *kept * (size_t)size);
        if (!kept)
            status = sh_fail(e->context, SHOAL_NO_MEMORY, "out of memory");
    }
    if (kept) {
        memcpy(kept, values, sizeof *kept * (size_t)size);
        clear_weights(model, row->weights);
    }
    if (status == SHOAL_OK && run)
        status = run(user, view, row);
    if (kept)
        memcpy(values, kept, sizeof *kept * (size_t)size);
    sh_free(kept);
    shoal_model_destroy(view);
    return status;
}

shoal_status sh_eval_progress(shoal_evaluation *e, const char *what, int64_t done,
                              int64_t all) {
    const shoal_train_callbacks *callbacks = &e->options.callbacks;
    const shoal_train_progress progress = {.event = SHOAL_TRAIN_EVENT_EVALUATION,
                                           .what = what,
                                           .done = done,
                                           .all = all};
    if (callbacks->progress)
        callbacks->progress(callbacks->user, &progress);
    return sh_cancelled(callbacks)
               ? sh_fail(e->context, SHOAL_CANCELLED, "the evaluation was cancelled")
               : SHOAL_OK;
}

/* ---- JSON -------------------------------------------------------------------------- */

json_t *sh_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *sh_eval_config(const shoal_train_task *task, const void *config) {
    char text[8192];
    shoal_config_json(task, config, text, sizeof text);
    return json_loads(text, 0, NULL);
}

shoal_status sh_eval_keep_json(shoal_evaluation *e, json_t *object) {
    e->json =
        object ? sh_json_dump(e->context, object, JSON_INDENT(2) | JSON_REAL_PRECISION(9))
               : NULL;
    json_decref(object);
    return e->json ? SHOAL_OK : sh_fail(e->context, SHOAL_NO_MEMORY, "out of memory");
}

/* ---- The task copy ----------------------------------------------------------------- */

static json_t *copy_json(const shoal_evaluation *e, const void *config) {
    json_t *kinds = json_array();
    for (int i = 0; i < e->count; i++) {
        const shoal_evaluation_row *row = &e->rows[i].row;
        json_array_append_new(kinds,
                              json_pack("{s:s, s:o, s:o, s:I, s:I}", "kind", row->kind,
                                        "loss", sh_json_number(row->loss), "accuracy",
                                        sh_json_number(e->rows[i].scores[0].value),
                                        "correct", (json_int_t)row->correct, "counted",
                                        (json_int_t)row->counted));
    }
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o}", "task", e->info.task, "trained",
                     e->trained, "steps", (json_int_t)e->info.step, "batches",
                     (json_int_t)e->info.sequences, "config",
                     sh_eval_config(&sh_copy_task, config), "kinds", kinds);
}

static shoal_status run_copy(shoal_evaluation *e, const char *path,
                             shoal_trainer **place) {
    shoal_copy_config config = shoal_copy_config_defaults();
    shoal_train_score score;
    TRY(sh_find_weights(e->context, path, e->path));
    TRY(shoal_run_config(e->context, &sh_copy_task, e->path, &config));
    TRY(shoal_trainer_create(e->context, &sh_copy_task, &config, &e->options.callbacks,
                             NULL, place));
    shoal_trainer *trainer = *place;
    TRY(shoal_trainer_resume(trainer, e->path));
    e->options.controls = 0; /* the task copy has none */
    TRY(sh_eval_rows(e, &config.train.model.attention));
    e->info.step = shoal_trainer_state(trainer)->step;
    e->info.batch = config.train.batch;
    e->info.sequences = e->options.batches;
    for (int i = 0; i < e->count; i++) { /* fails if the weights cannot be used with
                                            the kind */
        const shoal_status status =
            shoal_trainer_evaluate(trainer, &e->rows[i].kind, SHOAL_PART_TEST, 0, &score);
        TRY(status == SHOAL_INVALID ? SHOAL_BAD_FILE : status);
    }
    for (int i = 0; i < e->count; i++) {
        eval_row *row = &e->rows[i];
        TRY(sh_eval_progress(e, row->name, i + 1, e->count));
        TRY(shoal_trainer_evaluate(trainer, &row->kind, SHOAL_PART_TEST,
                                   e->options.batches, &score));
        row->row.loss = score.loss;
        row->row.correct = score.correct;
        row->row.counted = score.counted;
        row->row.scores = 1;
        row->scores[0] =
            (shoal_evaluation_score){.name = "accuracy", .value = score.accuracy};
    }
    return sh_eval_keep_json(e, copy_json(e, shoal_trainer_config(trainer)));
}

static shoal_status evaluate_copy(shoal_evaluation *e, const char *path) {
    shoal_trainer *trainer = NULL;
    const shoal_status status = run_copy(e, path, &trainer);
    shoal_trainer_destroy(trainer);
    return status;
}

/* ---- The interface ----------------------------------------------------------------- */

void shoal_evaluation_options_init(shoal_evaluation_options *options, size_t size) {
    const shoal_evaluation_options known = {.size = sizeof known,
                                            .batches = 20,
                                            .join = -1};
    sh_write_struct(options, size, &known, sizeof known);
}

static shoal_status evaluate(shoal_evaluation *e, const char *path) {
    char task[SHOAL_TEXT_SIZE];
    const shoal_evaluation_options *options = &e->options;
    if (options->kinds < 0 || options->kinds > MOST_KINDS || options->batches < 1 ||
        (options->kinds && !options->attention))
        return sh_fail(
            e->context, SHOAL_INVALID,
            "an evaluation needs up to %d kinds of attention and at least 1 batch",
            MOST_KINDS);
    TRY(shoal_run_task(e->context, path, task));
    const shoal_train_task *known = shoal_task_find(task);
    e->info.task = known ? known->name : NULL;
    e->info.path = e->path;
    if (known == &sh_copy_task)
        return evaluate_copy(e, path);
    if (known == &sh_glue_task || known == &sh_squad_task)
        return sh_evaluate_text(e, path);
#ifdef SHOAL_HAVE_SPEECH
    if (known == &sh_speech_task)
        return sh_evaluate_speech(e, path);
#endif
    char names[128] = "";
    for (int i = 0; shoal_task_name(i); i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                 i ? ", " : "", shoal_task_name(i));
    return sh_fail(e->context, SHOAL_BAD_FILE, "%s: there is no task \"%s\"; tasks: %s",
                   path, task, names);
}

shoal_status shoal_evaluation_create(shoal_context *context, const char *path,
                                     const shoal_evaluation_options *options,
                                     shoal_evaluation **evaluation) {
    *evaluation = NULL;
    if (!path)
        return sh_fail(context, SHOAL_INVALID,
                       "an evaluation needs a path, and options by "
                       "shoal_evaluation_options_defaults");
    shoal_evaluation *e = sh_allocate_zeros(context, 1, sizeof *e);
    if (!e)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    e->context = context;
    shoal_evaluation_options_init(&e->options, sizeof e->options);
    shoal_status status =
        READ_STRUCT(context, shoal_evaluation_options, options, &e->options);
    if (status == SHOAL_OK)
        status = evaluate(e, path);
    if (status == SHOAL_IO && !e->output_failed)
        status = SHOAL_BAD_FILE;
    if (status == SHOAL_OK)
        *evaluation = e;
    else
        shoal_evaluation_destroy(e);
    return status;
}

void shoal_evaluation_destroy(shoal_evaluation *evaluation) {
    if (!evaluation)
        return;
    sh_free(evaluation->json);
    sh_free(evaluation->predictions);
    sh_free(evaluation);
}

const shoal_evaluation_info *
shoal_evaluation_describe(const shoal_evaluation *evaluation) {
    return &evaluation->info;
}

shoal_status shoal_evaluation_row_get(const shoal_evaluation *evaluation, int64_t index,
                                      shoal_evaluation_row *row) {
    if (index < 0 || index >= evaluation->count)
        return SHOAL_INVALID;
    *row = evaluation->rows[index].row;
    return SHOAL_OK;
}

shoal_status shoal_evaluation_score_get(const shoal_evaluation *evaluation, int64_t row,
                                        int64_t index, shoal_evaluation_score *score) {
    if (row < 0 || row >= evaluation->count || index < 0 ||
        index >= evaluation->rows[row].row.scores)
        return SHOAL_INVALID;
    *score = evaluation->rows[row].scores[index];
    return SHOAL_OK;
}

const char *shoal_evaluation_json(const shoal_evaluation *evaluation) {
    return evaluation->json;
}

const char *shoal_evaluation_predictions(const shoal_evaluation *evaluation) {
    return evaluation->predictions;
}
