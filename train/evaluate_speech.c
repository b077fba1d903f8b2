/* Evaluation of a recogniser on a data folder: error rates of units and words with each
   kind of attention, and controls that show how much the model uses its attention. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "models/files/files.h"
#include "train/evaluate.h"
#include "train/tasks/speech.h"

/* A line of the file `text` of a data folder, "ID WORD WORD ...". */
typedef struct {
    const char *id, *rest;
} said_row;

/* Outputs of all sequences of a set, for tuning, and the settings tried. */
typedef struct {
    float *outputs;             /* [rows][classes] */
    int64_t *offsets, *members; /* [count + 1], [count] */
    shoal_edits *each;          /* [count] */
    int64_t count, rows, output_room;
    struct {
        double weight, insertion, wrong;
    } tried[256];
    int tried_count;
} tuning;

typedef struct {
    speech_result result;
    shoal_edits *each[2]; /* [sequences], of units and of words */
} speech_row;

typedef struct {
    shoal_evaluation *e;
    pool memory;
    shoal_recogniser *recogniser;
    shoal_recogniser_info info;
    shoal_recogniser_parts parts; /* its settings are those of the word search */
    const char **units;           /* [info.units] */
    shoal_speech_train_config config;
    speech_set set, tuning;
    speech_batch batch;
    speech_scorer scorer;
    shoal_lexicon *lexicon; /* LF-MMI: labels are its words; NULL if labels are phones */
    shoal_lfmmi *lfmmi;
    speech_row rows[MOST_ROWS];
    /* Words: */
    bool has_words;
    char *text;     /* storage of the rows */
    said_row *said; /* [said_count], sorted by id */
    int64_t said_count;
    int64_t words, missing; /* words of the data; words that cannot be recognised */
    shoal_spoken *spoken;   /* transcripts of a batch */
    const char **texts;
    int64_t spoken_room, text_room;
    tuning t;
} speech_evaluation;

static double wrong_of(const shoal_edits *edits) {
    return (double)(edits->substitutions + edits->insertions + edits->deletions);
}

/* ---- Reference transcripts -------------------------------------------------------- */

static const char blanks[] = " \t\r";

static int compare_said(const void *a, const void *b) {
    return strcmp(((const said_row *)a)->id, ((const said_row *)b)->id);
}

static const char *find_said(const speech_evaluation *s, const char *id) {
    const said_row key = {id, NULL};
    const said_row *row =
        s->said_count == 0
            ? NULL
            : bsearch(&key, s->said, (size_t)s->said_count, sizeof key, compare_said);
    return row ? row->rest : NULL;
}

/* Moves *at to the next word and returns its length, or 0 at the end. */
static size_t find_word(const char **at) {
    *at += strspn(*at, blanks);
    return strcspn(*at, blanks);
}

static shoal_status read_said(speech_evaluation *s, const char *folder) {
    char path[SH_PATH];
    file_map map;
    int64_t lines = 1;
    TRY(sh_path(s->e->context, path, folder, "text"));
    if (access(path, R_OK) != 0)
        return sh_fail(
            s->e->context, SHOAL_BAD_FILE,
            "%s: cannot read it (%s); word errors are counted against this file", path,
            strerror(errno));
    TRY(sh_file_map_open(s->e->context, path, &map));
    for (size_t i = 0; i < map.size; i++)
        lines += map.bytes[i] == '\n';
    s->said_count = 0;
    s->text = sh_pool_take(&s->memory, (int64_t)map.size + 1, 1);
    s->said = sh_pool_take(&s->memory, lines, sizeof *s->said);
    if (s->text && map.size)
        memcpy(s->text, map.bytes, map.size);
    sh_file_map_close(&map);
    if (!s->text || !s->said)
        return SHOAL_NO_MEMORY;
    const size_t mark = strncmp(s->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (char *at = s->text + mark, *next; at; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        at += strspn(at, blanks);
        char *rest = at + strcspn(at, blanks);
        if (rest == at)
            continue;
        if (*rest)
            *rest++ = 0;
        s->said[s->said_count++] = (said_row){at, rest};
    }
    qsort(s->said, (size_t)s->said_count, sizeof *s->said, compare_said);
    return SHOAL_OK;
}

/* Reads the reference transcripts of a data folder, which must have a line for every
   utterance; counts the words, and those missing in the lexicon or language model. */
static shoal_status open_said(speech_evaluation *s, const char *folder,
                              const speech_set *set) {
    shoal_utterance one;
    s->words = s->missing = 0;
    TRY(read_said(s, folder));
    for (int64_t i = 0; shoal_corpus_utterance(set->corpora[set->plain], i, &one); i++) {
        const char *at = find_said(s, one.id);
        if (!at)
            return sh_fail(s->e->context, SHOAL_BAD_FILE,
                           "%s/text: there is no line for %s", folder, one.id);
        for (size_t length; (length = find_word(&at)) > 0; at += length) {
            char word[256];
            int64_t number = -1;
            if (length < sizeof word) {
                snprintf(word, sizeof word, "%.*s", (int)length, at);
                number = shoal_lexicon_find(s->parts.lexicon, word);
            }
            s->words++;
            s->missing += number < 0 ||
                          !shoal_word_decoder_hears(s->parts.decoder, number);
        }
    }
    return SHOAL_OK;
}

/* ---- Word errors ------------------------------------------------------------------ */

typedef struct {
    const char *text;
    size_t length;
    int32_t at;
} spelled;

/* Comparison ignores case. */
static int compare_spelled(const void *a, const void *b) {
    const spelled *x = a, *y = b;
    const size_t both = x->length < y->length ? x->length : y->length;
    const int order = strncasecmp(x->text, y->text, both);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* Adds the minimum number of edits between the concatenated words of the texts and
   those of a result, after mapping equal words to equal numbers. */
static shoal_status add_edits(shoal_context *context, const char *const *said,
                              int64_t count, const shoal_word_string *heard,
                              shoal_edits *edits) {
    pool memory = {.context = context};
    int64_t right = 0, most = heard->count + 1;
    for (int64_t i = 0; i < count; i++)
        most += (int64_t)strlen(said[i]) / 2 + 1;
    spelled *list = sh_pool_take(&memory, most, sizeof *list);
    int32_t *numbers = sh_pool_take(&memory, most, sizeof *numbers);
    shoal_status status = SHOAL_NO_MEMORY;
    if (list && numbers) {
        for (int64_t i = 0; i < count; i++) {
            const char *at = said[i];
            for (size_t length; (length = find_word(&at)) > 0; at += length, right++)
                list[right] = (spelled){at, length, (int32_t)right};
        }
        int64_t all = right;
        for (int64_t i = 0; i < heard->count; i++, all++)
            list[all] = (spelled){heard->words[i].text, strlen(heard->words[i].text),
                                  (int32_t)all};
        qsort(list, (size_t)all, sizeof *list, compare_spelled);
        for (int64_t i = 0, number = 0; i < all; i++) {
            number += i > 0 && compare_spelled(&list[i], &list[i - 1]) != 0;
            numbers[list[i].at] = (int32_t)number;
        }
        status = shoal_count_edits(context, numbers, right, numbers + right, heard->count,
                                   edits);
    }
    sh_pool_free(&memory);
    return status;
}

/* Collects the reference texts of a batch's utterances in order, from texts[at] on. */
static shoal_status find_texts(speech_evaluation *s, const speech_set *set,
                               const speech_batch *batch, int64_t at) {
    for (int64_t b = 0; b < batch->count; b++)
        for (int64_t i = 0; i < batch->members[b]; i++) {
            shoal_utterance one;
            if (at == s->text_room)
                TRY(sh_pool_grow(&s->memory, &s->texts, &s->text_room, 2 * at + 64,
                                 sizeof *s->texts));
            shoal_corpus_utterance(set->corpora[set->plain],
                                   set->members[batch->first[b] + i], &one);
            s->texts[at++] = find_said(s, one.id);
        }
    return SHOAL_OK;
}

/* Counts the edits of each sequence from its outputs. members [count]: number of texts
   per sequence. */
static shoal_status count_edits(speech_evaluation *s, int64_t count,
                                const int64_t *offsets, const float *outputs,
                                const int64_t *members, shoal_edits *each) {
    TRY(sh_pool_grow(&s->memory, &s->spoken, &s->spoken_room, count, sizeof *s->spoken));
    TRY(shoal_word_decoder_run(s->parts.decoder, &s->parts.words, count, offsets, outputs,
                               s->spoken));
    const char **texts = s->texts;
    for (int64_t b = 0; b < count; texts += members[b++]) {
        each[b] = (shoal_edits){0};
        TRY(add_edits(s->e->context, texts, members[b], &s->spoken[b].strings[0],
                      &each[b]));
    }
    return SHOAL_OK;
}

/* ---- Tuning ------------------------------------------------------------------------ */

/* Outputs of batch i of a set, only at positions that have one. */
static shoal_status hear(speech_evaluation *s, const speech_set *set, int64_t i,
                         shoal_model *view, double *seconds, float **out) {
    TRY(sh_speech_fill(set, s->e->context, i, false, (shoal_share){0, 1}, &s->batch));
    const shoal_model_inputs inputs = sh_speech_inputs(&s->batch);
    const double begun = sh_seconds();
    TRY(shoal_model_forward(view, &inputs, out));
    *seconds += sh_seconds() - begun;
    sh_speech_thin(set, &s->batch, s->info.outputs, *out);
    return SHOAL_OK;
}

static shoal_status hear_set(speech_evaluation *s, shoal_model *view) {
    const int64_t classes = s->info.outputs, size = s->tuning.item_count + 1;
    const speech_batch *batch = &s->batch;
    tuning *t = &s->t;
    int64_t texts = 0;
    double seconds = 0;
    t->offsets = sh_pool_take(&s->memory, size, sizeof *t->offsets);
    t->members = sh_pool_take(&s->memory, size, sizeof *t->members);
    t->each = sh_pool_take(&s->memory, size, sizeof *t->each);
    if (!t->offsets || !t->members || !t->each)
        return SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < s->tuning.batch_count; i++) {
        float *out;
        TRY(hear(s, &s->tuning, i, view, &seconds, &out));
        TRY(find_texts(s, &s->tuning, batch, texts));
        const int64_t rows = batch->offsets[batch->count];
        TRY(sh_pool_grow(&s->memory, &t->outputs, &t->output_room,
                         (t->rows + rows) * classes, sizeof *t->outputs));
        memcpy(t->outputs + t->rows * classes, out,
               sizeof *out * (size_t)(rows * classes));
        for (int64_t b = 0; b < batch->count; b++) {
            texts += t->members[t->count] = batch->members[b];
            t->offsets[++t->count] = t->rows + batch->offsets[b + 1];
        }
        t->rows += rows;
    }
    return SHOAL_OK;
}

/* Counts the wrong words with these weights. */
static shoal_status try_weights(speech_evaluation *s, double weight, double insertion,
                                double *wrong) {
    tuning *t = &s->t;
    char text[128];
    int64_t all = 0;
    for (int i = 0; i < t->tried_count; i++)
        if (t->tried[i].weight == weight && t->tried[i].insertion == insertion) {
            *wrong = t->tried[i].wrong;
            return SHOAL_OK;
        }
    s->parts.words.lm_weight = weight;
    s->parts.words.insertion = insertion;
    TRY(count_edits(s, t->count, t->offsets, t->outputs, t->members, t->each));
    *wrong = 0;
    for (int64_t i = 0; i < t->count; i++) {
        *wrong += wrong_of(&t->each[i]);
        all += t->each[i].length;
    }
    t->tried[t->tried_count].weight = weight;
    t->tried[t->tried_count].insertion = insertion;
    t->tried[t->tried_count++].wrong = *wrong;
    snprintf(text, sizeof text, "tuning, try %d: weight %g, insertion %g, %.2f %% wrong",
             t->tried_count, weight, insertion, 100 * *wrong / (double)(all ? all : 1));
    return sh_eval_progress(s->e, text, 0, 0);
}

/* Finds the weight and insertion with the fewest errors on the development set by local
   search: moves to the best neighbour while one is better, then halves the steps,
   twice. */
static shoal_status tune(void *user, shoal_model *view, eval_row *row) {
    speech_evaluation *s = user;
    shoal_word_settings *settings = &s->parts.words;
    (void)row;
    TRY(open_said(s, s->e->options.tune, &s->tuning));
    TRY(hear_set(s, view));
    double weight = settings->lm_weight, insertion = settings->insertion, best, wrong;
    TRY(try_weights(s, weight, insertion, &best));
    for (double step = 0.4; step > 0.09 && s->t.tried_count < 250; step /= 2)
        for (bool moved = true; moved && s->t.tried_count < 250;) {
            const double at[4][2] = {{weight + step, insertion},
                                     {weight - step, insertion},
                                     {weight, insertion + 2.5 * step},
                                     {weight, insertion - 2.5 * step}};
            moved = false;
            for (int i = 0; i < 4 && !moved; i++) {
                if (at[i][0] < 0)
                    continue;
                TRY(try_weights(s, at[i][0], at[i][1], &wrong));
                if (wrong < best) {
                    best = wrong;
                    weight = at[i][0];
                    insertion = at[i][1];
                    moved = true;
                }
            }
        }
    settings->lm_weight = weight;
    settings->insertion = insertion;
    return SHOAL_OK;
}

/* ---- One row ----------------------------------------------------------------------- */

static shoal_status run_row(void *user, shoal_model *view, eval_row *row) {
    speech_evaluation *s = user;
    speech_row *own = &s->rows[row - s->e->rows];
    const speech_batch *batch = &s->batch;
    for (int64_t i = 0, done = 0; i < s->set.batch_count; i++) {
        float *out;
        TRY(hear(s, &s->set, i, view, &row->scores[0].seconds, &out));
        TRY(sh_speech_score(&s->scorer, batch, s->info.outputs, out, NULL, &own->result,
                            own->each[0] + done));
        const double heard = sh_seconds();
        if (s->has_words) {
            TRY(find_texts(s, &s->set, batch, 0));
            TRY(count_edits(s, batch->count, batch->offsets, out, batch->members,
                            own->each[1] + done));
        }
        row->scores[1].seconds += sh_seconds() - heard;
        done += batch->count;
        TRY(sh_eval_progress(s->e, row->name, done, s->set.item_count));
    }
    return SHOAL_OK;
}

/* ---- Rates ------------------------------------------------------------------------- */

/* Sums, rate and confidence interval of row i's errors of units (0) or words (1), and
   of the difference from the first row. */
static shoal_status find_rate(speech_evaluation *s, int i, int which) {
    static const char *const names[] = {"error_rate", "word_error_rate"};
    const int64_t count = s->set.item_count;
    const shoal_edits *each = s->rows[i].each[which], *first = s->rows[0].each[which];
    shoal_evaluation_score *score = &s->e->rows[i].scores[which];
    shoal_edits *sum = &score->edits;
    pool memory = {.context = s->e->context};
    shoal_sequence_errors *drawn = sh_pool_take(&memory, count + 1, sizeof *drawn);
    if (!drawn)
        return SHOAL_NO_MEMORY;
    for (int64_t k = 0; k < count; k++) {
        drawn[k] = (shoal_sequence_errors){(double)each[k].length, wrong_of(&each[k]),
                                           wrong_of(&first[k])};
        sh_add_edits(&each[k], sum);
    }
    const shoal_rate_interval found = shoal_bootstrap_rates(drawn, count, 1);
    sh_pool_free(&memory);
    score->name = names[which];
    score->value = sum->length ? 100 * wrong_of(sum) / (double)sum->length : 0;
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
    json_t *list = json_array(); /* per sequence */
    for (int64_t k = 0; k < s->set.item_count; k++)
        json_array_append_new(list, json_integer((json_int_t)wrong_of(
                                        &s->rows[i].each[which][k])));
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
    const shoal_word_settings *settings = &s->parts.words;
    const shoal_evaluation_options *options = &s->e->options;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:s}", "lexicon",
                     sh_json_text(s->e->context, options->recogniser->lexicon), "lm",
                     sh_json_text(s->e->context, options->recogniser->lm), "lm_weight",
                     sh_json_number(settings->lm_weight), "insertion",
                     sh_json_number(settings->insertion), "tuned_on",
                     sh_json_text(s->e->context, options->tune), "beam",
                     sh_json_number(settings->beam), "tokens",
                     (json_int_t)settings->tokens, "words", (json_int_t)s->words,
                     "missing", (json_int_t)s->missing, "lengths", list_lengths(s, 1),
                     "note",
                     "the training text of the language model is not known; that of "
                     "pocketsphinx-en-us is not documented");
}

static json_t *make_json(const speech_evaluation *s) {
    const shoal_evaluation *e = s->e;
    json_t *rows = json_array();
    for (int i = 0; i < e->count; i++)
        json_array_append_new(rows, row_json(s, i));
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:o, s:o, s:I, s:o, s:I, s:o, s:o}", "task", "speech",
                  "trained", e->trained, "steps", (json_int_t)e->info.step, "data",
                  sh_json_text(e->context, e->options.data), "join",
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
    shoal_recogniser_options options = shoal_recogniser_options_defaults();
    TRY(READ_STRUCT(e->context, shoal_recogniser_options, e->options.recogniser,
                    &options));
    const bool lexicon = options.lexicon != NULL;
    s->has_words = lexicon && options.lm;
    s->scorer =
        (speech_scorer){.memory = {.context = e->context}, .beams = options.beams};
    options.attention = NULL;
    if (!s->has_words)
        options.lexicon = options.lm = NULL;
    TRY(shoal_recogniser_open(e->context, path, &options, &s->recogniser));
    s->info = *shoal_recogniser_describe(s->recogniser);
    s->parts = *shoal_recogniser_describe_parts(s->recogniser);
    if (lexicon && !s->has_words && s->info.loss == SHOAL_RECOGNISER_LOSS_CTC)
        return sh_fail(e->context, SHOAL_INVALID,
                       "words need both --lexicon and --lm; Debian's package "
                       "pocketsphinx-en-us has both for English");
    strcpy(e->path, s->info.path);
    s->units = sh_pool_take(&s->memory, s->info.units + 1, sizeof *s->units);
    if (!s->units)
        return SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < s->info.units; i++)
        s->units[i] = shoal_recogniser_unit(s->recogniser, i);
    s->config = shoal_speech_train_config_defaults(NULL);
    TRY(shoal_run_config(e->context, &sh_speech_task, e->path, &s->config));
    s->config.skip_bad = e->options.skip_bad;
    s->config.cache = e->options.cache;
    if (e->options.join >= 0)
        s->config.join = (float)e->options.join;
    if (e->options.labels)
        snprintf(s->config.labels, sizeof s->config.labels, "%s", e->options.labels);
    return SHOAL_OK;
}

/* LF-MMI: the labels are a file of phones without silence, or words whose phones are in
   the lexicon. */
static shoal_status open_phones(speech_evaluation *s) {
    char path[SH_PATH];
    const shoal_evaluation_options *options = &s->e->options;
    const char *lexicon = options->recogniser ? options->recogniser->lexicon : NULL;
    TRY(sh_path(s->e->context, path, options->data, "phones"));
    if (!options->labels && lexicon && access(path, F_OK) != 0)
        TRY(sh_lexicon_open(s->e->context, lexicon, s->units, s->info.units,
                            &s->lexicon));
    else if (!options->labels)
        strcpy(s->config.labels, "phones");
    TRY(shoal_recogniser_open_graphs(s->recogniser, s->lexicon, &s->lfmmi));
    s->scorer.lfmmi = s->lfmmi;
    s->scorer.lexicon = s->lexicon;
    s->scorer.every = 1; /* batches contain only positions with an output */
    return SHOAL_OK;
}

/* Opens a data folder, in its order. */
static shoal_status open_set(speech_evaluation *s, const char *folder, speech_set *set) {
    const bool silence = s->info.loss ==
                         SHOAL_RECOGNISER_LOSS_LFMMI; /* silence is a unit */
    const shoal_task_opening opening = {.context = s->e->context,
                                        .share = {0, 1},
                                        .callbacks = &s->e->options.callbacks};
    if (s->lexicon)
        TRY(sh_lfmmi_check_words(&opening, folder, &s->config, s->lexicon));
    const shoal_status status =
        s->lexicon
            ? sh_lfmmi_open_set(&opening, folder, &s->config, false, s->lexicon, set)
            : sh_speech_open(&opening, folder, &s->config, false, s->units,
                             s->info.units - silence, set);
    s->e->output_failed = status == SHOAL_IO; /* that of the features */
    TRY(status);
    sh_speech_plan(set, 0, false);
    return SHOAL_OK;
}

static shoal_status run_rows(speech_evaluation *s) {
    shoal_evaluation *e = s->e;
    const int64_t batch = s->config.train.batch, rows = sh_speech_most_rows(&s->set);
    TRY(sh_eval_rows(e, &s->info.attention));
    for (int i = 0; i < 2 * e->count; i++) {
        s->rows[i / 2].each[i % 2] =
            sh_pool_take(&s->memory, s->set.info.utterances + 1, sizeof(shoal_edits));
        if (!s->rows[i / 2].each[i % 2])
            return SHOAL_NO_MEMORY;
    }
    if (e->options.tune) {
        TRY(open_set(s, e->options.tune, &s->tuning));
        TRY(sh_eval_row(e, s->parts.model, batch, sh_speech_most_rows(&s->tuning),
                        &e->rows[0], tune, s));
        sh_speech_close(&s->tuning);
    }
    if (s->has_words)
        TRY(open_said(s, e->options.data, &s->set));
    for (int i = 0; i < e->count; i++)
        TRY(sh_eval_row(e, s->parts.model, batch, rows, &e->rows[i], run_row, s));
    for (int i = 0; i < e->count; i++) {
        const double labels = (double)s->rows[i].result.labels;
        e->rows[i].row.scores = 1 + s->has_words;
        e->rows[i].row.loss = labels > 0 ? s->rows[i].result.loss / labels : 0;
        for (int which = 0; which <= (int)s->has_words; which++)
            TRY(find_rate(s, i, which));
    }
    return SHOAL_OK;
}

static shoal_status run(speech_evaluation *s, const char *path) {
    shoal_evaluation *e = s->e;
    shoal_evaluation_info *info = &e->info;
    if (!e->options.data)
        return sh_fail(e->context, SHOAL_INVALID,
                       "a recogniser needs --data, a data folder such as DATA/test");
    TRY(open_recogniser(s, path));
    if (e->options.tune && !s->has_words)
        return sh_fail(e->context, SHOAL_INVALID,
                       "--tune needs words: give --lexicon and --lm");
    if (s->info.loss == SHOAL_RECOGNISER_LOSS_LFMMI)
        TRY(open_phones(s));
    TRY(open_set(s, e->options.data, &s->set));
    TRY(run_rows(s));
    info->step = s->info.step;
    info->batch = s->config.train.batch;
    info->sequences = s->set.item_count;
    info->labels = s->set.info.labels;
    info->seconds = (double)s->set.info.frames / 100;
    info->impossible = s->rows[0].result.impossible;
    info->words = s->words;
    info->missing_words = s->missing;
    info->word_settings = s->parts.words;
    return sh_eval_keep_json(e, make_json(s));
}

shoal_status sh_evaluate_speech(shoal_evaluation *e, const char *path) {
    pool memory = {.context = e->context};
    speech_evaluation *s = sh_pool_take(&memory, 1, sizeof *s);
    if (!s)
        return SHOAL_NO_MEMORY;
    s->e = e;
    s->memory.context = e->context;
    const shoal_status status = run(s, path);
    sh_speech_batch_free(&s->batch);
    sh_speech_scorer_free(&s->scorer);
    shoal_lfmmi_destroy(s->lfmmi);
    shoal_lexicon_destroy(s->lexicon);
    sh_speech_close(&s->tuning);
    sh_speech_close(&s->set);
    shoal_recogniser_destroy(s->recogniser);
    sh_pool_free(&s->memory);
    sh_pool_free(&memory);
    return status;
}
