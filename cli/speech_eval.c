/* shoal eval for recognisers: error rates on a data folder with each kind of attention,
   and the controls that say how much the model uses its attention at all. */
#include "speech_eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "controls.h"
#include "speech_eval_words.h"
#include "speech_lfmmi.h"
#include "speech_model.h"
#include "speech_score.h"

typedef struct {
    shoal_edits *each; /* [sequences] */
    shoal_edits sum;
    double rate, difference;      /* the latter from the first row's */
    shoal_rate_interval interval; /* of both */
} error_rate;

typedef struct {
    eval_kind as;
    speech_result result;
    double seconds;
    error_rate units, words;
    double word_seconds; /* of the search */
} eval_row;

typedef struct {
    const speech_eval_job *job;
    shoal_context *context;
    speech_model recogniser;
    speech_set set;
    speech_batch batch;
    speech_scorer scorer;
    bool has_words;
    eval_words words;
    shoal_lexicon *lexicon;
    shoal_lfmmi *lfmmi;
    eval_row rows[EVAL_MOST_ROWS];
    int count;
} evaluation;

/* ---- Rows -------------------------------------------------------------------------- */

static int make_rows(evaluation *e) {
    eval_kind kinds[EVAL_MOST_ROWS];
    const eval_choice choice = {e->job->kinds, e->job->names, e->job->controls,
                                &e->recogniser.config.model.attention};
    const int count = eval_kinds(e->context, &choice, kinds);
    const size_t size = (size_t)e->set.info.utterances + 1;
    for (; e->count < count; e->count++) {
        eval_row *row = &e->rows[e->count];
        row->as = kinds[e->count];
        row->units.each = calloc(size, sizeof *row->units.each);
        row->words.each = calloc(size, sizeof *row->words.each);
        if (!row->units.each || !row->words.each) {
            e->count++; /* what there is of it is given back with the others */
            return complain(EXIT_RESOURCES, "eval", "out of memory");
        }
    }
    return count < 0 ? EXIT_USAGE : EXIT_OK;
}

/* ---- One row ----------------------------------------------------------------------- */

static shoal_status run_row(evaluation *e, shoal_model *view, eval_row *row) {
    const int64_t classes = speech_model_classes(&e->recogniser);
    int64_t done = 0;
    shoal_status status = SHOAL_OK;
    for (int64_t i = 0; i < e->set.batch_count && status == SHOAL_OK; i++) {
        float *out;
        if (!speech_fill(&e->set, i, false, &e->batch))
            return SHOAL_NO_MEMORY;
        const shoal_model_inputs inputs = {.batch = e->batch.count,
                                           .offsets = e->batch.offsets,
                                           .features = e->batch.features};
        const double begun = seconds_now();
        status = shoal_model_forward(view, &inputs, &out);
        row->seconds += seconds_now() - begun;
        if (status == SHOAL_OK)
            speech_thin(&e->set, &e->batch, classes, out);
        if (status == SHOAL_OK)
            status = speech_score(&e->scorer, &e->batch, classes, out, NULL, &row->result,
                                  row->units.each + done);
        const double heard = seconds_now();
        if (status == SHOAL_OK && e->has_words)
            status = eval_words_count(&e->words, &e->set, &e->batch, out,
                                      row->words.each + done);
        row->word_seconds += seconds_now() - heard;
        done += e->batch.count;
        progress_say("%s, %" PRId64 " of %" PRId64, row->as.name, done,
                     e->set.item_count);
    }
    return status;
}

static int evaluate_row(evaluation *e, eval_row *row) {
    shoal_model *view = NULL;
    control_state control;
    if (!control_begin(e->recogniser.model, row->as.weights, &control))
        return complain(EXIT_RESOURCES, "eval", "out of memory");
    shoal_status status = shoal_model_view(e->recogniser.model, &row->as.kind,
                                           e->recogniser.config.batch,
                                           speech_most_rows(&e->set), &view);
    if (status == SHOAL_OK)
        status = run_row(e, view, row);
    shoal_model_destroy(view);
    control_end(&control);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "eval", e->context);
}

/* ---- Intervals --------------------------------------------------------------------- */

static double wrong(const shoal_edits *edits) {
    return (double)(edits->substitutions + edits->insertions + edits->deletions);
}

/* Sums, rate and interval of a row's errors, beside those of the first row. */
static int find_rate(int64_t count, const error_rate *first, error_rate *own) {
    shoal_sequence_errors *drawn = calloc((size_t)count + 1, sizeof *drawn);
    if (!drawn)
        return complain(EXIT_RESOURCES, "eval", "out of memory");
    for (int64_t i = 0; i < count; i++) {
        const shoal_edits *one = &own->each[i];
        drawn[i] = (shoal_sequence_errors){(double)one->length, wrong(one),
                                           wrong(&first->each[i])};
        own->sum.length += one->length;
        own->sum.substitutions += one->substitutions;
        own->sum.insertions += one->insertions;
        own->sum.deletions += one->deletions;
    }
    own->interval = shoal_bootstrap_rates(drawn, count, 1);
    own->rate = own->sum.length ? 100 * wrong(&own->sum) / (double)own->sum.length : 0;
    own->difference = own->rate - first->rate;
    free(drawn);
    return EXIT_OK;
}

static int find_rates(evaluation *e, eval_row *row) {
    const int code = find_rate(e->set.item_count, &e->rows[0].units, &row->units);
    if (code != EXIT_OK || !e->has_words)
        return code;
    return find_rate(e->set.item_count, &e->rows[0].words, &row->words);
}

/* ---- Reports ----------------------------------------------------------------------- */

static double seconds_of(const evaluation *e) {
    return (double)e->set.info.frames / 100;
}

/* "error %" and the rest of a line's numbers; seconds NAN: none. */
static void print_rate(const error_rate *rate, double seconds, bool first) {
    printf(" %8.2f %8.2f %8.2f %7.2f %6" PRId64 " %6" PRId64 " %6" PRId64, rate->rate,
           rate->interval.rate_low, rate->interval.rate_high, seconds,
           rate->sum.substitutions, rate->sum.insertions, rate->sum.deletions);
    if (!first)
        printf("  %+.2f (%+.2f to %+.2f)", rate->difference,
               rate->interval.difference_low, rate->interval.difference_high);
    putchar('\n');
}

static void print_rows(const evaluation *e, const char *trained, bool words) {
    int width = 4;
    for (int i = 0; i < e->count; i++) {
        const int length = (int)strlen(e->rows[i].as.name);
        width = length > width ? length : width;
    }
    printf("  %-*s %8s %17s %7s %6s %6s %6s  %s\n", width, "kind",
           words ? "words %" : "error %", "95 %", "seconds", "sub", "ins", "del",
           "beyond the first, 95 %");
    for (int i = 0; i < e->count; i++) {
        const eval_row *row = &e->rows[i];
        const bool same = strcmp(row->as.name, trained) == 0;
        printf("%c %-*s", row->as.control ? '-' : same ? '*' : ' ', width, row->as.name);
        print_rate(words ? &row->words : &row->units,
                   words ? row->word_seconds : row->seconds, i == 0);
    }
}

static void print_words(const evaluation *e) {
    const shoal_word_settings *settings = &e->words.search.settings;
    const double all = (double)e->words.spoken_words;
    printf("\nwords by %s\nand %s\nlanguage weight %g, insertion %g, %s%s; beam %g, "
           "tokens %" PRId64 "; search %.4f times real time\n%" PRId64
           " words, %.2f %% of them in no lexicon or language model\nThe text that a "
           "language model was made from may have some of these words: that of\n"
           "pocketsphinx-en-us is not documented. The error of units does not depend on "
           "it.\n",
           e->job->words.lexicon, e->job->words.lm, settings->lm_weight,
           settings->insertion, e->job->tune ? "tuned on " : "not tuned",
           e->job->tune ? e->job->tune : "", settings->beam, settings->tokens,
           e->rows[0].word_seconds / seconds_of(e), e->words.spoken_words,
           100 * (double)e->words.missing_words / (all > 0 ? all : 1));
}

static void print_table(const evaluation *e) {
    char trained[EVAL_NAME];
    shoal_attention_print(&e->recogniser.config.model.attention, trained, sizeof trained);
    printf("%s, trained with %s, step %" PRId64 "; %s: %" PRId64 " sequences, %" PRId64
           " labels\n\n",
           e->recogniser.path, trained, e->recogniser.step, e->job->data,
           e->set.item_count, e->set.info.labels);
    print_rows(e, trained, false);
    if (e->has_words) {
        putchar('\n');
        print_rows(e, trained, true);
        print_words(e);
    }
    if (e->rows[0].result.impossible)
        printf("\n%" PRId64 " sequences have more labels than positions\n",
               e->rows[0].result.impossible);
    printf("\n* the kind it was trained with%s\n",
           e->job->controls ? "\n- controls: where they are not far worse, the model "
                              "hardly uses its attention,\n  and every kind looks free"
                            : "");
}

/* Of each sequence. */
static json_t *list_wrong(const evaluation *e, const error_rate *rate) {
    json_t *list = json_array();
    for (int64_t i = 0; i < e->set.item_count; i++)
        json_array_append_new(list, json_integer((json_int_t)wrong(&rate->each[i])));
    return list;
}

static json_t *list_lengths(const evaluation *e, bool words) {
    json_t *list = json_array();
    for (int64_t i = 0; i < e->set.item_count && e->count > 0; i++) {
        const error_rate *rate = words ? &e->rows[0].words : &e->rows[0].units;
        json_array_append_new(list, json_integer(rate->each[i].length));
    }
    return list;
}

static json_t *rate_json(const evaluation *e, const error_rate *rate) {
    const shoal_edits *edits = &rate->sum;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o}", "error_rate",
                     json_number(rate->rate), "low", json_number(rate->interval.rate_low),
                     "high", json_number(rate->interval.rate_high), "difference",
                     json_number(rate->difference), "difference_low",
                     json_number(rate->interval.difference_low), "difference_high",
                     json_number(rate->interval.difference_high), "substitutions",
                     (json_int_t)edits->substitutions, "insertions",
                     (json_int_t)edits->insertions, "deletions",
                     (json_int_t)edits->deletions, "wrong", list_wrong(e, rate));
}

static json_t *row_json(const evaluation *e, const eval_row *row) {
    json_t *object = rate_json(e, &row->units);
    const double labels = (double)row->result.labels;
    json_object_set_new(object, "kind", json_string(row->as.name));
    json_object_set_new(object, "control", json_boolean(row->as.control));
    json_object_set_new(object, "labels", json_integer(row->units.sum.length));
    json_object_set_new(object, "loss",
                        json_number(labels > 0 ? row->result.loss / labels : 0));
    json_object_set_new(object, "seconds", json_number(row->seconds));
    json_object_set_new(object, "impossible", json_integer(row->result.impossible));
    if (!e->has_words)
        return object;
    json_t *words = rate_json(e, &row->words);
    json_object_set_new(words, "words", json_integer(row->words.sum.length));
    json_object_set_new(words, "seconds", json_number(row->word_seconds));
    json_object_set_new(object, "words", words);
    return object;
}

static json_t *words_json(const evaluation *e) {
    const shoal_word_settings *settings = &e->words.search.settings;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:s}", "lexicon",
                     json_text(e->job->words.lexicon), "lm", json_text(e->job->words.lm),
                     "lm_weight", json_number(settings->lm_weight), "insertion",
                     json_number(settings->insertion), "tuned_on",
                     json_text(e->job->tune), "beam", json_number(settings->beam),
                     "tokens", (json_int_t)settings->tokens, "words",
                     (json_int_t)e->words.spoken_words, "missing",
                     (json_int_t)e->words.missing_words, "lengths", list_lengths(e, true),
                     "note",
                     "what text the language model was made from is not known here; that "
                     "of pocketsphinx-en-us is not documented");
}

static json_t *make_object(const evaluation *e) {
    char trained[EVAL_NAME];
    json_t *rows = json_array();
    shoal_attention_print(&e->recogniser.config.model.attention, trained, sizeof trained);
    for (int i = 0; i < e->count; i++)
        json_array_append_new(rows, row_json(e, &e->rows[i]));
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:o, s:o, s:I, s:o, s:I, s:o, s:o}", "task", "speech",
                  "trained", trained, "steps", (json_int_t)e->recogniser.step, "data",
                  json_text(e->job->data), "join",
                  json_number((double)e->recogniser.config.speech.join), "sequences",
                  (json_int_t)e->set.item_count, "labels", list_lengths(e, false),
                  "beams", (json_int_t)e->job->beams, "config",
                  train_config_json(&e->recogniser.config), "kinds", rows);
    if (object && e->set.info.bad > 0)
        json_object_set_new(object, "left_out", json_integer(e->set.info.bad));
    if (object && e->has_words)
        json_object_set_new(object, "words", words_json(e));
    return object;
}

/* ---- The command ------------------------------------------------------------------- */

/* By LF-MMI: a file of phones, which have all but the silence; or that of words, whose
   phones the lexicon has. */
static int open_phones(evaluation *e) {
    char path[TRAIN_PATH];
    speech_model *model = &e->recogniser;
    const char *lexicon = e->job->words.lexicon;
    int code = EXIT_OK;
    const bool there = speech_path(path, e->job->data, "phones") &&
                       access(path, F_OK) == 0;
    if (!e->job->labels && !there && lexicon)
        code = lfmmi_open_lexicon("eval", e->context, lexicon, model->units,
                                  model->unit_count, &e->lexicon);
    else if (!e->job->labels)
        snprintf(model->config.speech.labels, sizeof model->config.speech.labels,
                 "phones");
    if (code == EXIT_OK)
        code = speech_model_graphs("eval", e->context, model, e->lexicon, &e->lfmmi);
    e->scorer.lfmmi = e->lfmmi;
    e->scorer.lexicon = e->lexicon;
    e->scorer.every = 1; /* batches are thinned */
    return code;
}

/* A data folder, in the folder's order. */
static int open_set(evaluation *e, const char *folder, speech_set *set) {
    const speech_model *model = &e->recogniser;
    const bool silence = model->config.speech.loss == SPEECH_LFMMI; /* is a unit */
    const int code = e->lexicon
                         ? lfmmi_open_set("eval", e->context, folder, &model->config,
                                          false, e->lexicon, set)
                         : speech_open("eval", e->context, folder, &model->config, false,
                                       model->units, model->unit_count - silence, set);
    if (code == EXIT_OK && !speech_plan(set, 0, false))
        return complain(EXIT_RESOURCES, "eval", "out of memory");
    return code;
}

/* Of the first row's kind. */
static int tune_words(evaluation *e) {
    speech_set set = {0};
    int code = open_set(e, e->job->tune, &set);
    if (code == EXIT_OK)
        code = eval_words_tune(&e->words, e->job->tune, &set, &e->recogniser,
                               &e->rows[0].as.kind);
    speech_close(&set);
    return code;
}

static int prepare_words(evaluation *e) {
    int code = eval_words_open(e->context, &e->job->words, &e->recogniser, &e->words);
    if (code == EXIT_OK && e->job->tune)
        code = tune_words(e);
    return code == EXIT_OK ? eval_words_data(&e->words, e->job->data, &e->set) : code;
}

static int evaluate(evaluation *e) {
    train_config *config = &e->recogniser.config;
    config->skip_bad = e->job->skip_bad;
    config->cache = speech_cache("eval", e->job->cache);
    if (!config->cache)
        return EXIT_RESOURCES;
    if (e->job->join >= 0)
        config->speech.join = (float)e->job->join;
    if (e->job->labels)
        snprintf(config->speech.labels, sizeof config->speech.labels, "%s",
                 e->job->labels);
    int code = config->speech.loss == SPEECH_LFMMI ? open_phones(e) : EXIT_OK;
    if (code == EXIT_OK)
        code = open_set(e, e->job->data, &e->set);
    if (code != EXIT_OK)
        return code;
    code = make_rows(e);
    progress_begin(2);
    if (code == EXIT_OK && e->has_words)
        code = prepare_words(e);
    for (int i = 0; i < e->count && code == EXIT_OK; i++)
        code = evaluate_row(e, &e->rows[i]);
    progress_end();
    for (int i = 0; i < e->count && code == EXIT_OK; i++)
        code = find_rates(e, &e->rows[i]);
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

int speech_eval(const speech_eval_job *job, shoal_context *context) {
    static evaluation e;
    e = (evaluation){.job = job,
                     .context = context,
                     .scorer = {.context = context, .beams = job->beams}};
    if (!job->data)
        return complain(EXIT_USAGE, "eval",
                        "a recogniser needs --data, a data folder such as DATA/test");
    int code = EXIT_OK;
    const bool phones = job->words.lexicon && !job->words.lm; /* of LF-MMI */
    e.has_words = !phones && words_wanted("eval", &job->words, &code);
    if (code == EXIT_OK && job->tune && !e.has_words)
        code = complain(EXIT_USAGE, "eval", "--tune is for words: --lexicon and --lm");
    if (code == EXIT_OK)
        code = speech_model_open("eval", context, job->path, &e.recogniser);
    if (code == EXIT_OK && phones && e.recogniser.config.speech.loss == SPEECH_CTC)
        words_wanted("eval", &job->words, &code);
    if (code == EXIT_OK)
        code = evaluate(&e);
    for (int i = 0; i < e.count; i++) {
        free(e.rows[i].units.each);
        free(e.rows[i].words.each);
    }
    eval_words_close(&e.words);
    speech_batch_free(&e.batch);
    speech_scorer_free(&e.scorer);
    shoal_lfmmi_destroy(e.lfmmi);
    shoal_lexicon_close(e.lexicon);
    speech_close(&e.set);
    speech_model_close(&e.recogniser);
    return code;
}
