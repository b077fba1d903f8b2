/* A recogniser on a data folder: error rates with each kind of attention, and the
   controls that say how much the model uses its attention at all. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "train/evaluate_words.h"

typedef struct {
    speech_result result;
    shoal_edits *each[2]; /* [sequences] of units, and of words */
} speech_row;

typedef struct {
    shoal_evaluation *e;
    shoal_recogniser *recogniser;
    shoal_recogniser_info info;
    shoal_recogniser_parts parts;
    const char **units; /* [info.units] */
    shoal_speech_train_config config;
    char cache[SH_PATH]; /* of features */
    speech_set set, tuning;
    speech_batch batch;
    speech_scorer scorer;
    bool has_words;
    eval_words words;
    shoal_lexicon *lexicon; /* LF-MMI: labels are its words; NULL: they are phones */
    shoal_lfmmi *lfmmi;
    speech_row rows[MOST_ROWS];
} speech_evaluation;

static shoal_status no_memory(const speech_evaluation *s) {
    return sh_fail(s->e->context, SHOAL_NO_MEMORY, "out of memory");
}

/* ---- One row ----------------------------------------------------------------------- */

static shoal_status run_row(void *user, shoal_model *view, eval_row *row) {
    speech_evaluation *s = user;
    speech_row *own = &s->rows[row - s->e->rows];
    const int64_t classes = s->info.outputs;
    int64_t done = 0;
    shoal_status status = SHOAL_OK;
    for (int64_t i = 0; i < s->set.batch_count && status == SHOAL_OK; i++) {
        float *out;
        status = sh_speech_fill(&s->set, s->e->context, i, false, (shoal_share){0, 1},
                                &s->batch);
        if (status != SHOAL_OK)
            break;
        const shoal_model_inputs inputs = sh_speech_inputs(&s->batch);
        const double begun = sh_seconds();
        status = shoal_model_forward(view, &inputs, &out);
        row->scores[0].seconds += sh_seconds() - begun;
        if (status != SHOAL_OK)
            break;
        sh_speech_thin(&s->set, &s->batch, classes, out);
        status = sh_speech_score(&s->scorer, &s->batch, classes, out, NULL, &own->result,
                                 own->each[0] + done);
        const double heard = sh_seconds();
        if (status == SHOAL_OK && s->has_words)
            status = sh_eval_words_count(&s->words, &s->set, &s->batch, out,
                                         own->each[1] + done);
        row->scores[1].seconds += sh_seconds() - heard;
        done += s->batch.count;
        if (status == SHOAL_OK)
            status = sh_eval_progress(s->e, row->name, done, s->set.item_count);
    }
    return status;
}

/* ---- Rates ------------------------------------------------------------------------- */

static double wrong(const shoal_edits *edits) {
    return (double)(edits->substitutions + edits->insertions + edits->deletions);
}

/* Sums, rate and interval of row i's errors of units (0) or words (1), beside those of
   the first row. */
static shoal_status find_rate(speech_evaluation *s, int i, int which) {
    static const char *const names[] = {"error_rate", "word_error_rate"};
    const int64_t count = s->set.item_count;
    const shoal_edits *each = s->rows[i].each[which], *first = s->rows[0].each[which];
    shoal_evaluation_score *score = &s->e->rows[i].scores[which];
    shoal_edits *sum = &score->edits;
    shoal_sequence_errors *drawn = calloc((size_t)count + 1, sizeof *drawn);
    if (!drawn)
        return no_memory(s);
    for (int64_t k = 0; k < count; k++) {
        drawn[k] = (shoal_sequence_errors){(double)each[k].length, wrong(&each[k]),
                                           wrong(&first[k])};
        sh_add_edits(&each[k], sum);
    }
    const shoal_rate_interval found = shoal_bootstrap_rates(drawn, count, 1);
    free(drawn);
    score->name = names[which];
    score->value = sum->length ? 100 * wrong(sum) / (double)sum->length : 0;
    score->low = found.rate_low;
    score->high = found.rate_high;
    score->difference = score->value - s->e->rows[0].scores[which].value;
    score->difference_low = found.difference_low;
    score->difference_high = found.difference_high;
    return SHOAL_OK;
}

/* ---- JSON -------------------------------------------------------------------------- */

static json_t *list_lengths(const speech_evaluation *s, int which) {
    json_t *list = json_array();
    for (int64_t i = 0; i < s->set.item_count; i++)
        json_array_append_new(list, json_integer(s->rows[0].each[which][i].length));
    return list;
}

static json_t *rate_json(const speech_evaluation *s, int i, int which) {
    const shoal_evaluation_score *score = &s->e->rows[i].scores[which];
    json_t *list = json_array(); /* of each sequence */
    for (int64_t k = 0; k < s->set.item_count; k++)
        json_array_append_new(list, json_integer(
                                        (json_int_t)wrong(&s->rows[i].each[which][k])));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o}", "error_rate",
                     sh_json_number(score->value), "low", sh_json_number(score->low),
                     "high", sh_json_number(score->high), "difference",
                     sh_json_number(score->difference), "difference_low",
                     sh_json_number(score->difference_low), "difference_high",
                     sh_json_number(score->difference_high), "substitutions",
                     (json_int_t)score->edits.substitutions, "insertions",
                     (json_int_t)score->edits.insertions, "deletions",
                     (json_int_t)score->edits.deletions, "wrong", list);
}

static json_t *row_json(const speech_evaluation *s, int i) {
    const eval_row *row = &s->e->rows[i];
    json_t *object = rate_json(s, i, 0);
    json_object_set_new(object, "kind", json_string(row->name));
    json_object_set_new(object, "control", json_boolean(row->row.control));
    json_object_set_new(object, "labels", json_integer(row->scores[0].edits.length));
    json_object_set_new(object, "loss", sh_json_number(row->row.loss));
    json_object_set_new(object, "seconds", sh_json_number(row->scores[0].seconds));
    json_object_set_new(object, "impossible", json_integer(s->rows[i].result.impossible));
    if (!s->has_words)
        return object;
    json_t *words = rate_json(s, i, 1);
    json_object_set_new(words, "words", json_integer(row->scores[1].edits.length));
    json_object_set_new(words, "seconds", sh_json_number(row->scores[1].seconds));
    json_object_set_new(object, "words", words);
    return object;
}

static json_t *words_json(const speech_evaluation *s) {
    const shoal_word_settings *settings = &s->words.search.words;
    const shoal_evaluation_options *options = &s->e->options;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:s}", "lexicon",
                     sh_json_text(options->recogniser->lexicon), "lm",
                     sh_json_text(options->recogniser->lm), "lm_weight",
                     sh_json_number(settings->lm_weight), "insertion",
                     sh_json_number(settings->insertion), "tuned_on",
                     sh_json_text(options->tune), "beam", sh_json_number(settings->beam),
                     "tokens", (json_int_t)settings->tokens, "words",
                     (json_int_t)s->words.words, "missing", (json_int_t)s->words.missing,
                     "lengths", list_lengths(s, 1), "note",
                     "what text the language model was made from is not known here; that "
                     "of pocketsphinx-en-us is not documented");
}

static json_t *make_json(const speech_evaluation *s) {
    const shoal_evaluation *e = s->e;
    json_t *rows = json_array();
    for (int i = 0; i < e->count; i++)
        json_array_append_new(rows, row_json(s, i));
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:o, s:o, s:I, s:o, s:I, s:o, s:o}", "task", "speech",
                  "trained", e->trained, "steps", (json_int_t)e->info.step, "data",
                  sh_json_text(e->options.data), "join",
                  sh_json_number((double)s->config.join), "sequences",
                  (json_int_t)s->set.item_count, "labels", list_lengths(s, 0), "beams",
                  (json_int_t)s->scorer.beams, "config",
                  sh_eval_config(&sh_speech_task, &s->config), "kinds", rows);
    if (object && s->set.info.bad > 0)
        json_object_set_new(object, "left_out", json_integer(s->set.info.bad));
    if (object && s->has_words)
        json_object_set_new(object, "words", words_json(s));
    return object;
}

/* ---- Opening ----------------------------------------------------------------------- */

static shoal_status open_recogniser(speech_evaluation *s, const char *path) {
    shoal_evaluation *e = s->e;
    shoal_recogniser_options options =
        e->options.recogniser ? *e->options.recogniser : shoal_recogniser_defaults();
    const bool lexicon = options.lexicon != NULL;
    s->has_words = lexicon && options.lm;
    s->scorer = (speech_scorer){.context = e->context, .beams = options.beams};
    options.attention = NULL;
    if (!s->has_words)
        options.lexicon = options.lm = NULL;
    shoal_status status =
        shoal_recogniser_open(e->context, path, &options, &s->recogniser);
    if (status != SHOAL_OK)
        return status;
    s->info = shoal_recogniser_describe(s->recogniser);
    s->parts = shoal_recogniser_parts_of(s->recogniser);
    s->words.search = s->parts;
    if (lexicon && !s->has_words && s->info.loss == SHOAL_RECOGNISER_CTC)
        return sh_fail(e->context, SHOAL_INVALID,
                       "words need both --lexicon and --lm; Debian's package "
                       "pocketsphinx-en-us has English ones");
    strcpy(e->path, s->info.path);
    s->units = calloc((size_t)s->info.units + 1, sizeof *s->units);
    if (!s->units)
        return no_memory(s);
    for (int64_t i = 0; i < s->info.units; i++)
        s->units[i] = shoal_recogniser_unit(s->recogniser, i);
    s->config = shoal_speech_defaults(NULL);
    status = shoal_run_config(e->context, &sh_speech_task, e->path, &s->config);
    s->config.skip_bad = e->options.skip_bad;
    s->config.cache = s->cache;
    if (e->options.join >= 0)
        s->config.join = (float)e->options.join;
    if (e->options.labels)
        snprintf(s->config.labels, sizeof s->config.labels, "%s", e->options.labels);
    return status == SHOAL_OK ? sh_speech_cache(e->context, e->options.cache, s->cache)
                              : status;
}

/* By LF-MMI: a file of phones, which have all but the silence; or that of words, whose
   phones the lexicon has. */
static shoal_status open_phones(speech_evaluation *s) {
    char path[SH_PATH];
    const shoal_evaluation_options *options = &s->e->options;
    const char *lexicon = options->recogniser ? options->recogniser->lexicon : NULL;
    shoal_status status = sh_path(s->e->context, path, options->data, "phones");
    if (status != SHOAL_OK)
        return status;
    if (!options->labels && lexicon && access(path, F_OK) != 0)
        status =
            sh_lexicon_open(s->e->context, lexicon, s->units, s->info.units, &s->lexicon);
    else if (!options->labels)
        strcpy(s->config.labels, "phones");
    if (status == SHOAL_OK)
        status = shoal_recogniser_graphs(s->recogniser, s->lexicon, &s->lfmmi);
    s->scorer.lfmmi = s->lfmmi;
    s->scorer.lexicon = s->lexicon;
    s->scorer.every = 1; /* batches are thinned */
    return status;
}

/* A data folder, in the folder's order. */
static shoal_status open_set(speech_evaluation *s, const char *folder, speech_set *set) {
    const bool silence = s->info.loss == SHOAL_RECOGNISER_LFMMI; /* is a unit */
    const shoal_task_opening opening = {.context = s->e->context,
                                        .share = {0, 1},
                                        .callbacks = &s->e->options.callbacks};
    const shoal_status status =
        s->lexicon
            ? sh_lfmmi_open_set(&opening, folder, &s->config, false, s->lexicon, set)
            : sh_speech_open(&opening, folder, &s->config, false, s->units,
                             s->info.units - silence, set);
    return status == SHOAL_OK && !sh_speech_plan(set, 0, false) ? no_memory(s) : status;
}

static shoal_status tune(void *user, shoal_model *view, eval_row *row) {
    speech_evaluation *s = user;
    (void)row;
    return sh_eval_words_tune(&s->words, s->e->options.tune, &s->tuning, view);
}

static shoal_status run_rows(speech_evaluation *s) {
    shoal_evaluation *e = s->e;
    const int64_t batch = s->config.train.batch, rows = sh_speech_most_rows(&s->set);
    const size_t size = (size_t)s->set.info.utterances + 1;
    shoal_status status = sh_eval_rows(e, &s->info.attention);
    for (int i = 0; i < 2 * e->count && status == SHOAL_OK; i++) {
        s->rows[i / 2].each[i % 2] = calloc(size, sizeof(shoal_edits));
        if (!s->rows[i / 2].each[i % 2])
            status = no_memory(s);
    }
    if (status == SHOAL_OK && e->options.tune)
        status = open_set(s, e->options.tune, &s->tuning);
    if (status == SHOAL_OK && e->options.tune)
        status = sh_eval_row(e, s->parts.model, batch, sh_speech_most_rows(&s->tuning),
                             &e->rows[0], tune, s);
    sh_speech_close(&s->tuning);
    if (status == SHOAL_OK && s->has_words)
        status = sh_eval_words_open(&s->words, e->options.data, &s->set);
    for (int i = 0; i < e->count && status == SHOAL_OK; i++)
        status = sh_eval_row(e, s->parts.model, batch, rows, &e->rows[i], run_row, s);
    for (int i = 0; i < e->count && status == SHOAL_OK; i++) {
        const double labels = (double)s->rows[i].result.labels;
        e->rows[i].row.scores = 1 + s->has_words;
        e->rows[i].row.loss = labels > 0 ? s->rows[i].result.loss / labels : 0;
        for (int which = 0; which <= (int)s->has_words && status == SHOAL_OK; which++)
            status = find_rate(s, i, which);
    }
    return status;
}

static void describe(speech_evaluation *s) {
    shoal_evaluation_info *info = &s->e->info;
    info->step = s->info.step;
    info->batch = s->config.train.batch;
    info->sequences = s->set.item_count;
    info->labels = s->set.info.labels;
    info->seconds = (double)s->set.info.frames / 100;
    info->impossible = s->rows[0].result.impossible;
    info->words = s->words.words;
    info->missing_words = s->words.missing;
    info->word_settings = s->words.search.words;
}

shoal_status sh_evaluate_speech(shoal_evaluation *e, const char *path) {
    speech_evaluation *s = calloc(1, sizeof *s);
    if (!s)
        return sh_fail(e->context, SHOAL_NO_MEMORY, "out of memory");
    s->e = s->words.e = e;
    shoal_status status = SHOAL_OK;
    if (!e->options.data)
        status = sh_fail(e->context, SHOAL_INVALID,
                         "a recogniser needs --data, a data folder such as DATA/test");
    if (status == SHOAL_OK)
        status = open_recogniser(s, path);
    if (status == SHOAL_OK && e->options.tune && !s->has_words)
        status =
            sh_fail(e->context, SHOAL_INVALID, "--tune is for words: --lexicon and --lm");
    if (status == SHOAL_OK && s->info.loss == SHOAL_RECOGNISER_LFMMI)
        status = open_phones(s);
    if (status == SHOAL_OK)
        status = open_set(s, e->options.data, &s->set);
    if (status == SHOAL_OK)
        status = run_rows(s);
    if (status == SHOAL_OK) {
        describe(s);
        status = sh_eval_keep_json(e, make_json(s));
    }
    for (int i = 0; i < MOST_ROWS; i++)
        for (int which = 0; which < 2; which++)
            free(s->rows[i].each[which]);
    sh_eval_words_close(&s->words);
    sh_speech_batch_free(&s->batch);
    sh_speech_scorer_free(&s->scorer);
    shoal_lfmmi_destroy(s->lfmmi);
    shoal_lexicon_close(s->lexicon);
    sh_speech_close(&s->set);
    free(s->units);
    shoal_recogniser_destroy(s->recogniser);
    free(s);
    return status;
}
