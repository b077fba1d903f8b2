/* A fine-tuned text model: opened from its run, used, and evaluated on its dev set with
   other kinds of attention and with controls. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "models/files/files.h"
#include "train/evaluate.h"
#include "train/tasks/text.h"

struct shoal_finetuned {
    shoal_context *context;
    char folder[SH_PATH]; /* with config.json and the tokenizer */
    char path[SH_PATH];   /* file of the weights */
    const char *given;    /* the path that the caller gave */
    shoal_finetuned_info info;
    const glue_task *glue; /* NULL for squad */
    union {
        shoal_train_config train;
        shoal_glue_config glue;
        shoal_squad_config squad;
    } config;
    int64_t stride, max_answer; /* squad */
    json_t *paths;              /* of its data */
    shoal_tokenizer *tokenizer;
    shoal_model *model; /* not for computing */
    shoal_model *view;  /* for one sequence; created on first use */
    shoal_attention attention;
    /* State of one call. */
    text_set windows;
    text_batch batch;
    char *answer;
};

/* ---- Opening ----------------------------------------------------------------------- */

/* The folder's best weights, else its checkpoint; or a file. */
static shoal_status find_paths(shoal_finetuned *m, const char *path) {
    struct stat information;
    if (strlen(path) >= SH_PATH)
        return sh_fail(m->context, SHOAL_INVALID, "%.80s...: the path is too long", path);
    strcpy(m->folder, path);
    if (stat(path, &information) != 0 || !S_ISDIR(information.st_mode)) {
        char *slash = strrchr(m->folder, '/');
        strcpy(slash ? slash : m->folder, slash ? "" : ".");
        strcpy(m->path, path);
        m->given = m->path;
        return SHOAL_OK;
    }
    m->given = m->folder;
    TRY(sh_find_weights(m->context, path, m->path));
    m->info.not_best = strcmp(m->path + strlen(path) + 1, SHOAL_RUN_BEST) != 0;
    return SHOAL_OK;
}

static shoal_status read_config(shoal_finetuned *m) {
    char name[SHOAL_TEXT_SIZE];
    TRY(shoal_run_task(m->context, m->path, name));
    const shoal_train_task *task = shoal_task_find(name);
    if (task != &sh_glue_task && task != &sh_squad_task)
        return sh_fail(m->context, SHOAL_BAD_FILE,
                       "%s: its task is %s; a run of shoal train glue or squad is needed",
                       m->path, name);
    TRY(shoal_config_init(m->context, task, NULL, &m->config, task->config_size));
    TRY(shoal_run_config(m->context, task, m->path, &m->config));
    m->info.task = task->name;
    m->info.path = m->path;
    m->info.attention = m->config.train.model.attention;
    if (task == &sh_squad_task) {
        m->info.dataset = "SQuAD";
        m->info.max_length = m->config.squad.max_length;
        m->stride = m->config.squad.stride;
        m->max_answer = m->config.squad.max_answer;
        return SHOAL_OK;
    }
    m->glue = sh_glue_find(m->config.glue.dataset);
    if (!m->glue)
        return sh_fail(m->context, SHOAL_BAD_FILE, "%s: GLUE has no task \"%s\"", m->path,
                       m->config.glue.dataset);
    m->info.dataset = m->glue->name;
    m->info.max_length = m->config.glue.max_length;
    m->info.classes = m->glue->classes;
    return SHOAL_OK;
}

static shoal_status read_weights(shoal_finetuned *m) {
    shoal_checkpoint *file;
    shoal_model_config config;
    uint64_t seed;
    TRY(shoal_checkpoint_open(m->context, m->path, &file));
    const char *paths = shoal_checkpoint_note(file, TEXT_PATHS_NOTE);
    const char *step = shoal_checkpoint_note(file, "state.step");
    m->paths = json_loads(paths ? paths : "{}", 0, NULL);
    m->info.step = step ? strtoll(step, NULL, 10) : 0;
    shoal_status status = shoal_checkpoint_config(file, &config, &seed);
    if (status == SHOAL_OK)
        status = shoal_model_create(m->context, &config, seed, 0, 0, 0, &m->model);
    if (status == SHOAL_OK)
        status = shoal_checkpoint_load_average(file, m->model);
    shoal_checkpoint_destroy(file);
    return status;
}

static shoal_status open_model(shoal_finetuned *m, const char *path,
                               const shoal_attention *attention) {
    TRY(find_paths(m, path));
    TRY(read_config(m));
    TRY(shoal_tokenizer_open(m->context, m->folder, &m->tokenizer));
    TRY(read_weights(m));
    m->attention = attention ? *attention : m->info.attention;
    if (shoal_tokenizer_size(m->tokenizer) > shoal_model_settings(m->model)->vocabulary)
        return sh_fail(m->context, SHOAL_BAD_FILE,
                       "%s: the tokenizer has more tokens than the model; they belong to "
                       "different models",
                       m->folder);
    return attention /* fails if the weights cannot be used with the kind */
               ? shoal_model_create_view(m->model, attention, 1, m->info.max_length,
                                         &m->view)
               : SHOAL_OK;
}

shoal_status shoal_finetuned_open(shoal_context *context, const char *path,
                                  const shoal_attention *attention,
                                  shoal_finetuned **model) {
    *model = NULL;
    if (!context || !path)
        return sh_fail(context, SHOAL_INVALID, "a text model needs a context and a path");
    shoal_finetuned *m = sh_allocate(context, sizeof *m);
    if (!m)
        return SHOAL_NO_MEMORY;
    *m = (shoal_finetuned){.context = context};
    const shoal_status status = open_model(m, path, attention);
    if (status == SHOAL_OK)
        *model = m;
    else
        shoal_finetuned_destroy(m);
    return status;
}

void shoal_finetuned_destroy(shoal_finetuned *model) {
    if (!model)
        return;
    shoal_model_destroy(model->view);
    shoal_model_destroy(model->model);
    shoal_tokenizer_destroy(model->tokenizer);
    json_decref(model->paths);
    sh_text_set_free(&model->windows);
    sh_text_batch_free(&model->batch);
    sh_free(model->answer);
    sh_release(model->context, model);
}

const shoal_finetuned_info *shoal_finetuned_describe(const shoal_finetuned *model) {
    return model ? &model->info : NULL;
}

const char *shoal_finetuned_class(const shoal_finetuned *model, int64_t index) {
    static const char *const numbers[] = {"0", "1", "2"};
    if (!model->glue || index < 0 || index >= model->info.classes)
        return NULL;
    return model->glue->words[0] ? model->glue->words[index] : numbers[index];
}

/* ---- Use --------------------------------------------------------------------------- */

static text_reader reader_of(const shoal_finetuned *model) {
    return (text_reader){.context = model->context,
                         .tokenizer = model->tokenizer,
                         .max_length = model->info.max_length};
}

/* Outputs for sequence `at` of the windows. */
static shoal_status read_window(shoal_finetuned *m, int64_t at, float **out) {
    TRY(sh_text_batch_fill(&m->windows, NULL, at, 1, &m->batch));
    if (!m->view)
        TRY(shoal_model_create_view(m->model, &m->attention, 1, m->info.max_length,
                                    &m->view));
    const shoal_model_inputs inputs = sh_text_batch_inputs(&m->batch);
    return shoal_model_forward(m->view, &inputs, out);
}

shoal_status shoal_finetuned_classify(shoal_finetuned *model, int64_t count,
                                      const shoal_text *texts, float *logits) {
    const int64_t classes = model->info.classes, most = model->info.max_length;
    if (!model->glue)
        return sh_fail(model->context, SHOAL_INVALID,
                       "%s: trained on SQuAD; use a run of the task glue to classify",
                       model->given);
    for (int64_t i = 0; i < count; i++) {
        shoal_text text = shoal_text_defaults();
        shoal_tokens tokens;
        float *out;
        /* The caller's structs may have another size than this library's. */
        TRY(READ_STRUCT(model->context, shoal_text,
                        (const char *)texts + (size_t)i * texts->size, &text));
        if (text.most <= 0 || text.most > most)
            text.most = most;
        TRY(shoal_tokenizer_encode(model->tokenizer, &text, &tokens));
        model->windows.count = model->windows.token_count = 0;
        TRY(sh_text_set_add(model->context, &model->windows, tokens.count, tokens.ids,
                            tokens.types, NULL, 0, NULL, 0));
        TRY(read_window(model, 0, &out));
        memcpy(logits + i * classes, out, sizeof *out * (size_t)classes);
    }
    return SHOAL_OK;
}

shoal_status shoal_finetuned_answer(shoal_finetuned *model, const char *question,
                                    const char *text, shoal_answer *answer) {
    const text_reader reader = reader_of(model);
    const squad_question asked = {"asked", question, text, NULL};
    squad_answer best = {.score = -INFINITY};
    float *out;
    if (model->glue)
        return sh_fail(
            model->context, SHOAL_INVALID,
            "%s: trained on %s; use a run of shoal train squad to answer questions",
            model->given, model->glue->name);
    model->windows.count = model->windows.token_count = 0;
    TRY(sh_squad_windows(&reader, &asked, 0, model->stride, NULL, &model->windows));
    for (int64_t i = 0; i < model->windows.count; i++) {
        TRY(read_window(model, i, &out));
        sh_squad_look(&model->windows, i, out, model->max_answer, &best);
    }
    sh_squad_trim(&asked, &best);
    sh_free(model->answer);
    model->answer = sh_squad_text(model->context, &asked, &best);
    if (!model->answer)
        return sh_fail(model->context, SHOAL_NO_MEMORY, "out of memory");
    *answer = (shoal_answer){model->answer, best.score, best.begin, best.end,
                             model->windows.count};
    return SHOAL_OK;
}

/* ---- Evaluation -------------------------------------------------------------------- */

typedef struct {
    shoal_evaluation *e;
    shoal_finetuned *model;
    text_dev dev;
} text_evaluation;

static shoal_status run_row(void *user, shoal_model *view, eval_row *row) {
    text_evaluation *t = user;
    text_batch *texts = &t->model->batch;
    const text_set *set = sh_text_dev_set(&t->dev);
    const int64_t batch = t->model->config.train.batch;
    text_result result;
    double seconds = 0;
    TRY(sh_text_dev_begin(&t->dev, &result));
    for (int64_t i = 0; i < set->count; i += batch) {
        float *out;
        TRY(sh_text_batch_fill(set, NULL, i, batch, texts));
        const shoal_model_inputs inputs = sh_text_batch_inputs(texts);
        const double begun = sh_seconds();
        TRY(shoal_model_forward(view, &inputs, &out));
        seconds += sh_seconds() - begun;
        TRY(sh_text_dev_take(&t->dev, texts, out, &result));
        TRY(sh_eval_progress(t->e, row->name, i, set->count));
    }
    TRY(sh_text_dev_end(&t->dev, &result));
    row->row.loss = result.loss;
    row->row.correct = result.correct;
    row->row.counted = result.counted;
    row->row.scores = sh_text_dev_second(&t->dev) ? 2 : 1;
    row->scores[0] = (shoal_evaluation_score){.name = sh_text_dev_first(&t->dev),
                                              .value = result.first,
                                              .seconds = seconds};
    row->scores[1] = (shoal_evaluation_score){.name = sh_text_dev_second(&t->dev),
                                              .value = result.second,
                                              .seconds = seconds};
    return SHOAL_OK;
}

/* The rows of a dev part of GLUE as text: how many bytes they are, and the bytes, unless
   text is NULL. */
static size_t print_rows(const text_dev *dev, char *text, size_t size) {
    static const char heading[] = "index\tprediction\tlabel\n";
    size_t at = 0;
    for (int64_t i = -1; i < dev->set.count; i++) {
        char *to = text ? text + at : NULL;
        const size_t left = text ? size - at : 0;
        const int length = i < 0 ? snprintf(to, left, "%s", heading)
                                 : snprintf(to, left, "%" PRId64 "\t%.9g\t%.9g\n", i,
                                            (double)dev->predicted[i],
                                            (double)dev->set.labels[i]);
        at += (size_t)length;
    }
    return at;
}

/* What the last row predicted; NULL: out of memory. */
static char *predictions_of(shoal_context *context, const text_dev *dev) {
    if (dev->glue) {
        const size_t size = print_rows(dev, NULL, 0) + 1;
        char *text = sh_allocate(context, size);
        if (text)
            print_rows(dev, text, size);
        return text;
    }
    json_t *object = json_object();
    bool good = object != NULL;
    for (int64_t i = 0; i < dev->squad.count && good; i++) {
        char *found = sh_squad_text(context, &dev->squad.questions[i], &dev->answers[i]);
        good = found && json_object_set_new(object, dev->squad.questions[i].id,
                                            sh_json_text(context, found)) == 0;
        sh_free(found);
    }
    char *dumped = good ? sh_json_dump(context, object, JSON_INDENT(1)) : NULL;
    char *text = dumped ? sh_print_text(context, "%s\n", dumped) : NULL;
    sh_free(dumped);
    json_decref(object);
    return text;
}

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

static shoal_status run_text(text_evaluation *t, const char *path) {
    shoal_evaluation *e = t->e;
    TRY(shoal_finetuned_open(e->context, path, NULL, &t->model));
    shoal_finetuned *m = t->model;
    const int64_t batch = m->config.train.batch;
    text_reader reader = reader_of(m);
    reader.skip_bad = e->options.skip_bad != 0;
    reader.callbacks = &e->options.callbacks;
    strcpy(e->path, m->info.path);
    e->info.dataset = m->info.dataset;
    e->info.step = m->info.step;
    e->info.batch = batch;
    const char *data = e->options.data;
    if (!data)
        data = json_string_value(json_object_get(m->paths, m->glue ? "data" : "dev"));
    if (!data)
        return sh_fail(e->context, SHOAL_INVALID,
                       "%s: the run does not record where its data is; give --data",
                       e->path);
    t->dev.glue = m->glue;
    t->dev.max_answer = m->max_answer;
    TRY(m->glue ? sh_glue_read(&reader, m->glue, data, NULL, &t->dev.set)
                : sh_squad_read(&reader, data, m->stride, false, &t->dev.squad));
    e->info.sequences = m->glue ? t->dev.set.count : t->dev.squad.count;
    TRY(sh_eval_rows(e, &m->info.attention));
    const int64_t rows = sh_text_set_most_rows(sh_text_dev_set(&t->dev), batch);
    for (int i = 0; i < e->count; i++) /* fails if the weights cannot be used with the
                                          kind */
        TRY(sh_eval_row(e, m->model, batch, rows, &e->rows[i], NULL, NULL));
    for (int i = 0; i < e->count; i++) {
        TRY(sh_eval_row(e, m->model, batch, rows, &e->rows[i], run_row, t));
        if (i == 0 && !(e->predictions = predictions_of(e->context, &t->dev)))
            return sh_fail(e->context, SHOAL_NO_MEMORY, "out of memory");
    }
    return sh_eval_keep_json(e, make_json(t));
}

shoal_status sh_evaluate_text(shoal_evaluation *e, const char *path) {
    text_evaluation t = {.e = e};
    const shoal_status status = run_text(&t, path);
    sh_text_dev_free(&t.dev);
    shoal_finetuned_destroy(t.model);
    return status;
}
