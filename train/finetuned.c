/* A text model that was trained further, opened from its run and used. */
#define _GNU_SOURCE
#include "train/finetuned.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Opening ----------------------------------------------------------------------- */

/* The folder's best weights, or else its checkpoint's; or a file. */
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
    shoal_status status = sh_path(m->context, m->path, path, SHOAL_RUN_BEST);
    m->info.not_best = status == SHOAL_OK && access(m->path, F_OK) != 0;
    return m->info.not_best ? sh_path(m->context, m->path, path, SHOAL_RUN_CHECKPOINT)
                            : status;
}

static shoal_status read_config(shoal_finetuned *m) {
    char name[SHOAL_TEXT_SIZE];
    shoal_status status = shoal_run_task(m->context, m->path, name);
    if (status != SHOAL_OK)
        return status;
    const shoal_train_task *task = shoal_task_find(name);
    if (task != &sh_glue_task && task != &sh_squad_task)
        return sh_fail(m->context, SHOAL_BAD_FILE,
                       "%s: its task is %s; it should be of shoal train glue or squad",
                       m->path, name);
    status = shoal_config_defaults(m->context, task, NULL, &m->config, task->config_size);
    if (status == SHOAL_OK)
        status = shoal_run_config(m->context, task, m->path, &m->config);
    if (status != SHOAL_OK)
        return status;
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
        return sh_fail(m->context, SHOAL_BAD_FILE, "%s: there is no task \"%s\" of GLUE",
                       m->path, m->config.glue.dataset);
    m->info.dataset = m->glue->name;
    m->info.max_length = m->config.glue.max_length;
    m->info.classes = m->glue->classes;
    return SHOAL_OK;
}

static shoal_status read_weights(shoal_finetuned *m) {
    shoal_checkpoint *file;
    shoal_model_config config;
    uint64_t seed;
    shoal_status status = shoal_checkpoint_open(m->context, m->path, &file);
    if (status != SHOAL_OK)
        return status;
    const char *paths = shoal_checkpoint_note(file, TEXT_PATHS_NOTE);
    const char *step = shoal_checkpoint_note(file, "state.step");
    m->paths = json_loads(paths ? paths : "{}", 0, NULL);
    m->info.step = step ? strtoll(step, NULL, 10) : 0;
    status = shoal_checkpoint_config(file, &config, &seed);
    if (status == SHOAL_OK)
        status = shoal_model_create(m->context, &config, seed, 0, 0, 0, &m->model);
    if (status == SHOAL_OK)
        status = shoal_checkpoint_load_average(file, m->model);
    shoal_checkpoint_close(file);
    return status;
}

shoal_status shoal_finetuned_open(shoal_context *context, const char *path,
                                  const shoal_attention *attention,
                                  shoal_finetuned **model) {
    shoal_finetuned *m = *model = NULL;
    if (!context || !path)
        return sh_fail(context, SHOAL_INVALID, "a text model needs a context and a path");
    m = calloc(1, sizeof *m);
    if (!m)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    m->context = context;
    shoal_status status = find_paths(m, path);
    if (status == SHOAL_OK)
        status = read_config(m);
    if (status == SHOAL_OK)
        status = shoal_tokenizer_open(context, m->folder, &m->tokenizer);
    if (status == SHOAL_OK)
        status = read_weights(m);
    m->attention = attention ? *attention : m->info.attention;
    if (status == SHOAL_OK &&
        shoal_tokenizer_size(m->tokenizer) > shoal_model_settings(m->model)->vocabulary)
        status = sh_fail(context, SHOAL_BAD_FILE,
                         "%s: its tokenizer has more tokens than its model", m->folder);
    if (status == SHOAL_OK && attention) /* can the weights do it? */
        status = shoal_model_view(m->model, attention, 1, m->info.max_length, &m->view);
    if (status == SHOAL_OK)
        *model = m;
    else
        shoal_finetuned_close(m);
    return status;
}

void shoal_finetuned_close(shoal_finetuned *model) {
    if (!model)
        return;
    shoal_model_destroy(model->view);
    shoal_model_destroy(model->model);
    shoal_tokenizer_close(model->tokenizer);
    json_decref(model->paths);
    sh_text_set_free(&model->windows);
    sh_text_batch_free(&model->batch);
    free(model->answer);
    free(model);
}

shoal_finetuned_info shoal_finetuned_describe(const shoal_finetuned *model) {
    return model->info;
}

const char *shoal_finetuned_class(const shoal_finetuned *model, int64_t index) {
    static const char *const numbers[] = {"0", "1", "2"};
    if (!model->glue || index < 0 || index >= model->info.classes)
        return NULL;
    return model->glue->words[0] ? model->glue->words[index] : numbers[index];
}

text_reader sh_finetuned_reader(const shoal_finetuned *model) {
    return (text_reader){.context = model->context,
                         .tokenizer = model->tokenizer,
                         .max_length = model->info.max_length};
}

/* ---- Use --------------------------------------------------------------------------- */

/* The outputs of sequence `at` of the windows. */
static shoal_status read_window(shoal_finetuned *m, int64_t at, float **out) {
    shoal_status status = SHOAL_OK;
    if (!sh_text_batch_fill(&m->windows, NULL, at, 1, &m->batch))
        return sh_fail(m->context, SHOAL_NO_MEMORY, "out of memory");
    if (!m->view)
        status =
            shoal_model_view(m->model, &m->attention, 1, m->info.max_length, &m->view);
    const shoal_model_inputs inputs = sh_text_batch_inputs(&m->batch);
    return status == SHOAL_OK ? shoal_model_forward(m->view, &inputs, out) : status;
}

shoal_status shoal_finetuned_classify(shoal_finetuned *model, int64_t count,
                                      const shoal_text *texts, float *logits) {
    shoal_status status = SHOAL_OK;
    if (!model->glue)
        return sh_fail(model->context, SHOAL_INVALID,
                       "%s: was trained on SQuAD; the task glue makes models that "
                       "classify",
                       model->given);
    for (int64_t i = 0; i < count && status == SHOAL_OK; i++) {
        shoal_text text = texts[i];
        shoal_tokens tokens;
        float *out;
        if (text.most <= 0 || text.most > model->info.max_length)
            text.most = model->info.max_length;
        status = shoal_tokenizer_encode(model->tokenizer, &text, &tokens);
        model->windows.count = model->windows.token_count = 0;
        if (status == SHOAL_OK &&
            !sh_text_set_add(&model->windows, tokens.count, tokens.ids, tokens.types,
                             NULL, 0, NULL, 0))
            status = sh_fail(model->context, SHOAL_NO_MEMORY, "out of memory");
        if (status == SHOAL_OK)
            status = read_window(model, 0, &out);
        if (status == SHOAL_OK)
            memcpy(logits + i * model->info.classes, out,
                   sizeof *out * (size_t)model->info.classes);
    }
    return status;
}

shoal_status shoal_finetuned_answer(shoal_finetuned *model, const char *question,
                                    const char *text, shoal_answer *answer) {
    const text_reader reader = sh_finetuned_reader(model);
    const squad_question asked = {"asked", question, text, NULL};
    squad_answer best = {.score = -INFINITY};
    if (model->glue)
        return sh_fail(model->context, SHOAL_INVALID,
                       "%s: was trained on %s; shoal train squad makes models that "
                       "answer",
                       model->given, model->glue->name);
    model->windows.count = model->windows.token_count = 0;
    shoal_status status =
        sh_squad_windows(&reader, &asked, 0, model->stride, NULL, &model->windows);
    for (int64_t i = 0; i < model->windows.count && status == SHOAL_OK; i++) {
        float *out;
        status = read_window(model, i, &out);
        if (status == SHOAL_OK)
            sh_squad_look(&model->windows, i, out, model->max_answer, &best);
    }
    if (status != SHOAL_OK)
        return status;
    sh_squad_trim(&asked, &best);
    free(model->answer);
    model->answer = sh_squad_text(&asked, &best);
    if (!model->answer)
        return sh_fail(model->context, SHOAL_NO_MEMORY, "out of memory");
    *answer = (shoal_answer){model->answer, best.score, best.begin, best.end,
                             model->windows.count};
    return SHOAL_OK;
}
