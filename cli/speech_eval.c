/* shoal eval for recognisers: error rates on a data folder with each kind of attention,
   and the controls that say how much the model uses its attention at all. */
#include "speech_eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "common.h"
#include "speech_model.h"
#include "speech_score.h"

enum { MOST_ROWS = EVAL_MOST_KINDS + 3 };

/* What is done to the weights before a row is evaluated. */
typedef enum { AS_TRAINED, UNIFORM, NO_ATTENTION } row_weights;

typedef struct {
    char name[EVAL_NAME];
    shoal_attention kind;
    row_weights weights;
    bool control;
    speech_result result;
    shoal_edits *each; /* [sequences] */
    double seconds;
    double difference;           /* from the first row's error rate */
    bootstrap_interval interval; /* of the rate, and of the difference */
} eval_row;

typedef struct {
    const speech_eval_job *job;
    shoal_context *context;
    speech_model recogniser;
    speech_set set;
    speech_batch batch;
    speech_scorer scorer;
    eval_row rows[MOST_ROWS];
    int count;
} evaluation;

/* ---- Rows -------------------------------------------------------------------------- */

static int add_row(evaluation *e, const char *spelling, const char *name,
                   row_weights weights, bool control) {
    eval_row *row = &e->rows[e->count++];
    const shoal_status status = shoal_attention_parse(e->context, spelling, &row->kind);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_USAGE, "eval", e->context);
    row->weights = weights;
    row->control = control;
    if (name)
        snprintf(row->name, sizeof row->name, "%s", name);
    else
        shoal_attention_print(&row->kind, row->name, sizeof row->name);
    row->each = calloc((size_t)e->set.info.utterances + 1, sizeof *row->each);
    return row->each ? EXIT_OK : complain(EXIT_RESOURCES, "eval", "out of memory");
}

static int make_rows(evaluation *e) {
    char trained[EVAL_NAME];
    int code = EXIT_OK;
    shoal_attention_print(&e->recogniser.config.model.attention, trained, sizeof trained);
    if (e->job->kinds == 0)
        code = add_row(e, trained, NULL, AS_TRAINED, false);
    for (int i = 0; i < e->job->kinds && code == EXIT_OK; i++)
        code = add_row(e, e->job->names[i], NULL, AS_TRAINED, false);
    if (!e->job->controls || code != EXIT_OK)
        return code;
    code = add_row(e, "full", "uniform attention", UNIFORM, true);
    if (code == EXIT_OK)
        code = add_row(e, "full", "no attention", NO_ATTENTION, true);
    if (code == EXIT_OK)
        code = add_row(e, "clustered-1", NULL, AS_TRAINED, true);
    return code;
}

/* ---- Weights of the controls ------------------------------------------------------- */

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

/* Queries that are 0 score all keys alike; an output of 0 adds nothing. */
static bool is_cleared(const char *name, row_weights weights) {
    const char *const ends[][2] = {{"attention.query.weight", "attention.query.bias"},
                                   {"attention.output.weight", "attention.output.bias"}};
    const int which = weights == UNIFORM ? 0 : 1;
    return ends_with(name, ends[which][0]) || ends_with(name, ends[which][1]);
}

static void clear_weights(shoal_model *model, row_weights weights) {
    shoal_parameter one;
    for (int i = 0; shoal_model_parameter(model, i, &one); i++) {
        size_t count = 1;
        for (int r = 0; r < one.rank; r++)
            count *= (size_t)one.shape[r];
        if (is_cleared(one.name, weights))
            memset(one.values, 0, count * sizeof *one.values);
    }
}

/* ---- One row ----------------------------------------------------------------------- */

static shoal_status run_row(evaluation *e, shoal_model *view, eval_row *row) {
    const int64_t classes = e->recogniser.unit_count + 1;
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
            status = speech_score(&e->scorer, &e->batch, classes, out, NULL, &row->result,
                                  row->each + done);
        done += e->batch.count;
        progress_say("%s, %" PRId64 " of %" PRId64, row->name, done, e->set.item_count);
    }
    return status;
}

static int evaluate_row(evaluation *e, eval_row *row) {
    shoal_model *view = NULL;
    float *values, *kept = NULL;
    const int64_t size = shoal_model_vectors(e->recogniser.model, &values, NULL);
    if (row->weights != AS_TRAINED) {
        kept = malloc(sizeof *kept * (size_t)size);
        if (!kept)
            return complain(EXIT_RESOURCES, "eval", "out of memory");
        memcpy(kept, values, sizeof *kept * (size_t)size);
        clear_weights(e->recogniser.model, row->weights);
    }
    shoal_status status = shoal_model_view(e->recogniser.model, &row->kind,
                                           e->recogniser.config.batch,
                                           speech_most_rows(&e->set), &view);
    if (status == SHOAL_OK)
        status = run_row(e, view, row);
    shoal_model_destroy(view);
    if (kept)
        memcpy(values, kept, sizeof *kept * (size_t)size);
    free(kept);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "eval", e->context);
}

/* ---- Intervals --------------------------------------------------------------------- */

static double wrong(const shoal_edits *edits) {
    return (double)(edits->substitutions + edits->insertions + edits->deletions);
}

static double rate_of(const shoal_edits *edits) {
    return edits->length ? 100 * wrong(edits) / (double)edits->length : 0;
}

static int find_interval(const evaluation *e, eval_row *row) {
    const int64_t count = e->set.item_count;
    utterance_errors *drawn = calloc((size_t)count + 1, sizeof *drawn);
    if (!drawn)
        return complain(EXIT_RESOURCES, "eval", "out of memory");
    for (int64_t i = 0; i < count; i++)
        drawn[i] = (utterance_errors){(double)row->each[i].length, wrong(&row->each[i]),
                                      wrong(&e->rows[0].each[i])};
    row->interval = bootstrap_rates(drawn, count, 1);
    row->difference = rate_of(&row->result.edits) - rate_of(&e->rows[0].result.edits);
    free(drawn);
    return EXIT_OK;
}

/* ---- Reports ----------------------------------------------------------------------- */

static void print_table(const evaluation *e) {
    char trained[EVAL_NAME];
    int width = 4;
    shoal_attention_print(&e->recogniser.config.model.attention, trained, sizeof trained);
    for (int i = 0; i < e->count; i++) {
        const int length = (int)strlen(e->rows[i].name);
        width = length > width ? length : width;
    }
    printf("%s, trained with %s, step %" PRId64 "; %s: %" PRId64 " sequences, %" PRId64
           " labels\n\n  %-*s %8s %17s %7s %6s %6s %6s  %s\n",
           e->recogniser.path, trained, e->recogniser.step, e->job->data,
           e->set.item_count, e->set.info.labels, width, "kind", "error %", "95 %",
           "seconds", "sub", "ins", "del", "beyond the first, 95 %");
    for (int i = 0; i < e->count; i++) {
        const eval_row *row = &e->rows[i];
        const shoal_edits *edits = &row->result.edits;
        const bool same = strcmp(row->name, trained) == 0;
        printf("%c %-*s %8.2f %8.2f %8.2f %7.2f %6" PRId64 " %6" PRId64 " %6" PRId64,
               row->control ? '-'
               : same       ? '*'
                            : ' ',
               width, row->name, rate_of(edits), row->interval.rate_low,
               row->interval.rate_high, row->seconds, edits->substitutions,
               edits->insertions, edits->deletions);
        if (i > 0)
            printf("  %+.2f (%+.2f to %+.2f)", row->difference,
                   row->interval.difference_low, row->interval.difference_high);
        putchar('\n');
    }
    printf("\n* the kind it was trained with%s\n",
           e->job->controls ? "\n- controls: where they are not far worse, the model "
                              "hardly uses its attention,\n  and every kind looks free"
                            : "");
}

/* Of each sequence. */
static json_t *list_wrong(const evaluation *e, const eval_row *row) {
    json_t *list = json_array();
    for (int64_t i = 0; i < e->set.item_count; i++)
        json_array_append_new(list, json_integer((json_int_t)wrong(&row->each[i])));
    return list;
}

static json_t *list_labels(const evaluation *e) {
    json_t *list = json_array();
    for (int64_t i = 0; i < e->set.item_count && e->count > 0; i++)
        json_array_append_new(list, json_integer(e->rows[0].each[i].length));
    return list;
}

static json_t *row_json(const evaluation *e, const eval_row *row) {
    const shoal_edits *edits = &row->result.edits;
    return json_pack("{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, "
                     "s:o, s:o}",
                     "kind", row->name, "control", row->control, "error_rate",
                     json_number(rate_of(edits)), "low",
                     json_number(row->interval.rate_low), "high",
                     json_number(row->interval.rate_high), "difference",
                     json_number(row->difference), "difference_low",
                     json_number(row->interval.difference_low), "difference_high",
                     json_number(row->interval.difference_high), "labels",
                     (json_int_t)edits->length, "substitutions",
                     (json_int_t)edits->substitutions, "insertions",
                     (json_int_t)edits->insertions, "deletions",
                     (json_int_t)edits->deletions, "loss",
                     json_number(row->result.labels
                                     ? row->result.loss / (double)row->result.labels
                                     : 0),
                     "seconds", json_number(row->seconds), "wrong", list_wrong(e, row));
}

static json_t *make_object(const evaluation *e) {
    char trained[EVAL_NAME];
    json_t *rows = json_array();
    shoal_attention_print(&e->recogniser.config.model.attention, trained, sizeof trained);
    for (int i = 0; i < e->count; i++)
        json_array_append_new(rows, row_json(e, &e->rows[i]));
    return json_pack("{s:s, s:s, s:I, s:o, s:o, s:I, s:o, s:I, s:o, s:o}", "task",
                     "speech", "trained", trained, "steps",
                     (json_int_t)e->recogniser.step, "data", json_text(e->job->data),
                     "join", json_number((double)e->recogniser.config.speech.join),
                     "sequences", (json_int_t)e->set.item_count, "labels", list_labels(e),
                     "beams", (json_int_t)e->job->beams, "config",
                     train_config_json(&e->recogniser.config), "kinds", rows);
}

/* ---- The command ------------------------------------------------------------------- */

static int evaluate(evaluation *e) {
    train_config *config = &e->recogniser.config;
    config->skip_bad = e->job->skip_bad;
    config->cache = speech_cache("eval", e->job->cache);
    if (!config->cache)
        return EXIT_RESOURCES;
    if (e->job->join >= 0)
        config->speech.join = (float)e->job->join;
    int code = speech_open("eval", e->context, e->job->data, config, false,
                           e->recogniser.units, e->recogniser.unit_count, &e->set);
    if (code != EXIT_OK)
        return code;
    speech_plan(&e->set, 0, false);
    code = speech_model_load("eval", e->context, 0, 0, &e->recogniser);
    if (code == EXIT_OK)
        code = make_rows(e);
    progress_begin(2);
    for (int i = 0; i < e->count && code == EXIT_OK; i++)
        code = evaluate_row(e, &e->rows[i]);
    progress_end();
    for (int i = 0; i < e->count && code == EXIT_OK; i++)
        code = find_interval(e, &e->rows[i]);
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
    int code = speech_model_open("eval", context, job->path, &e.recogniser);
    if (code == EXIT_OK)
        code = evaluate(&e);
    for (int i = 0; i < e.count; i++)
        free(e.rows[i].each);
    speech_batch_free(&e.batch);
    speech_scorer_free(&e.scorer);
    speech_close(&e.set);
    speech_model_close(&e.recogniser);
    return code;
}
