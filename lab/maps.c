/* shoal maps: attention weights from the tokens of a question to a text, in a layer of
   a BERT or RoBERTa, for each kind of attention. */
#define _GNU_SOURCE
#include "maps.h"

#include "attention_maps.h"
#include "plot.h"

enum { USUAL_WINDOW = 384, WINDOW_MOST = 4096, LAYERS_MOST = 4096, LIST_TEXT = 200 };
#define USUAL_KINDS "full,clustered-25,i-clustered-25,shoal-25"
#define USUAL_THRESHOLD 0.05

typedef struct {
    const char *question, *context_path, *picture, *isa;
    int64_t threads, layer, head, window; /* layer and head from 1; 0 selects the last
                                             layer and the mean over heads */
    bool json;
    shoal_context *context;
    shoal_tokenizer *tokenizer;
    shoal_model *model;
    map_tokens tokens;
    int32_t *ids; /* [2][tokens]: ids and types */
    int64_t left_out;
    attention_maps maps;
} maps_job;

static const option_row rows[] =
    {{"question", 'q', "TEXT", "question whose tokens attend to the text",
      SETS_TEXT(maps_job, question)},
     {"context", 'c', "FILE", "text that they attend to; - is standard input",
      SETS_TEXT(maps_job, context_path)},
     {"attention", 'a', "KIND,...",
      "kinds of attention, up to 8; the others are compared with the\n"
      "first (default: " USUAL_KINDS ")",
      SETS_KINDS(maps_job, maps.kinds, MAPS_KINDS)},
     {"layer", 'l', "L", "layer, from 1 (default: 0, the last)",
      SETS_INTEGER(maps_job, layer, 0, LAYERS_MOST)},
     {"head", 0, "H", "head, from 1 (default: 0, the mean over all)",
      SETS_INTEGER(maps_job, head, 0, 65536)},
     {"threshold", 't', "X",
      "minimum weight of tokens that are printed, 0 to 1\n"
      "(default: 0.05)",
      SETS_NUMBER(maps_job, maps.threshold, 0, 1)},
     {"window", 0, "W",
      "maximum number of tokens of question and text; the end of the text\n"
      "is truncated (default: 384, or the maximum of the model)",
      SETS_INTEGER(maps_job, window, 0, WINDOW_MOST)},
     {"output", 'o', "FILE", "write a picture (.svg or .png)",
      SETS_TEXT(maps_job, picture)},
     THREADS_ROW(maps_job),
     ISA_ROW(maps_job),
     {"json", 0, NULL, "print one JSON object with every weight",
      SETS_FLAG(maps_job, json)},
     HELP_ROW,
     {0}};

const command_help maps_help =
    {"maps",
     "maps MODEL --question TEXT --context FILE [-o FILE] [options]",
     "Prints and draws the attention weights of each token of a question on a text, for\n"
     "each kind of attention. MODEL is a Hugging Face folder of a BERT or RoBERTa, or a "
     "run\n"
     "of shoal train glue or squad. Layers below the selected one use the same kind.\n",
     rows,
     "Weights are measured, not computed from scores: the kind is run on values that are "
     "1\n"
     "at one token and 0 at all others.\n",
     "DIR"};

/* ---- Tokens ----------------------------------------------------------------------- */

static bool continues(const char *text, int64_t at) {
    return ((unsigned char)text[at] & 0xc0) == 0x80;
}

/* Copies bytes begin .. end - 1 of the text, extended to whole characters, without
   surrounding white space. */
static void write_word(const char *text, int64_t begin, int64_t end,
                       char word[MAPS_WORD]) {
    while (begin > 0 && continues(text, begin))
        begin--;
    while (continues(text, end))
        end++;
    while (begin < end && strchr(" \t\n\r", text[begin]))
        begin++;
    while (end > begin && strchr(" \t\n\r", text[end - 1]))
        end--;
    if (end - begin >= MAPS_WORD)
        for (end = begin + MAPS_WORD - 1; continues(text, end);)
            end--;
    snprintf(word, MAPS_WORD, "%.*s", (int)(end - begin), text + begin);
    mask_controls(word);
}

static void take_tokens(maps_job *job, const char *context) {
    const int64_t positions = shoal_model_settings(job->model)->max_length;
    const int64_t window = job->window ? job->window : USUAL_WINDOW;
    const shoal_text text = {.size = sizeof(shoal_text),
                             .text = job->question,
                             .bytes = SHOAL_TERMINATED,
                             .pair = context,
                             .pair_bytes = SHOAL_TERMINATED,
                             .most = window < positions ? window : positions,
                             .cut = SHOAL_CUT_SECOND};
    shoal_tokens tokens;
    demand(shoal_tokenizer_encode(job->tokenizer, &text, &tokens), EXIT_BAD_INPUT);
    const size_t count = (size_t)tokens.count;
    job->maps.words = reserve_zeros(count + 1, sizeof *job->maps.words);
    job->ids = reserve(2 * count + 1, sizeof *job->ids);
    memcpy(job->ids, tokens.ids, count * sizeof *job->ids);
    memcpy(job->ids + count, tokens.types, count * sizeof *job->ids);
    job->tokens = (map_tokens){tokens.count, job->ids, job->ids + count};
    job->maps.tokens = tokens.count;
    job->left_out = tokens.left_out;
    /* Special tokens have no text and are named by their position. */
    attention_maps *maps = &job->maps;
    for (int64_t i = 0; i < tokens.count; i++) {
        const char *const special = i == 0                 ? "[begin]"
                                    : i < tokens.count - 1 ? "[between]"
                                                           : "[end]";
        const int64_t *span = tokens.spans + 2 * i;
        if (tokens.texts[i] < 0)
            snprintf(maps->words[i], MAPS_WORD, "%s", special);
        else
            write_word(tokens.texts[i] ? context : job->question, span[0], span[1],
                       maps->words[i]);
        if (tokens.texts[i] == 0 && maps->rows++ == 0)
            maps->first = i;
        if (tokens.texts[i] == 1 && maps->context == 0)
            maps->context = i;
    }
    if (job->maps.rows == 0 || job->maps.context == 0)
        die(EXIT_BAD_INPUT, "the %s has no tokens",
            job->maps.rows ? "context" : "question");
}

/* ---- Weights ---------------------------------------------------------------------- */

static void weigh(maps_job *job) {
    const shoal_model_config *config = shoal_model_settings(job->model);
    attention_maps *maps = &job->maps;
    const int64_t width = config->heads * config->head_dim;
    const int64_t count = maps->rows * maps->tokens;
    const map_shape shape = {config->heads, config->head_dim, maps->tokens, maps->first,
                             maps->rows};
    float *projected = reserve((size_t)(maps->tokens * 3 * width), sizeof *projected);
    float *all = reserve((size_t)(count * config->heads), sizeof *all);
    for (int k = 0; k < maps->kinds.count; k++) {
        const shoal_attention *attention = &maps->kinds.attention[k];
        maps_kind *kind = &maps->measured[k];
        kind->weights = reserve((size_t)count, sizeof *kind->weights);
        map_project(job->context, job->model, attention, job->layer - 1, &job->tokens,
                    projected);
        kind->error = map_weigh(job->context, attention, &shape, projected, all);
        /* [rows][heads][tokens] becomes [rows][tokens]: one head, or the mean. */
        for (int64_t row = 0; row < maps->rows; row++)
            for (int64_t i = 0; i < maps->tokens; i++) {
                double sum = 0;
                for (int64_t head = 0; head < config->heads; head++)
                    if (job->head == 0 || head == job->head - 1)
                        sum +=
                            (double)all[(row * config->heads + head) * maps->tokens + i];
                kind->weights[row * maps->tokens + i] =
                    (float)(job->head ? sum : sum / (double)config->heads);
            }
        for (int64_t i = 0; i < count; i++)
            kind->away +=
                fabs((double)kind->weights[i] - (double)maps->measured[0].weights[i]) /
                (2 * (double)maps->rows);
    }
    free(projected);
    free(all);
}

/* ---- Output ----------------------------------------------------------------------- */

void maps_list(const attention_maps *maps, const maps_kind *kind, int64_t row, char *text,
               size_t size) {
    const float *weights = kind->weights + row * maps->tokens;
    float last = INFINITY;
    int64_t at = -1;
    size_t used = 0;
    text[0] = 0;
    for (;;) { /* next in decreasing order of weight */
        int64_t next = -1;
        for (int64_t i = 0; i < maps->tokens; i++)
            if ((weights[i] < last || (weights[i] == last && i > at)) &&
                (next < 0 || weights[i] > weights[next]))
                next = i;
        if (next < 0 || (double)weights[next] < maps->threshold)
            return;
        at = next;
        last = weights[next];
        char one[MAPS_WORD + 16];
        const int length = snprintf(one, sizeof one, "%s%s %.2f", used ? ", " : "",
                                    maps->words[next], (double)last);
        if (used + (size_t)length + 5 > size) {
            snprintf(text + used, size - used, " ...");
            return;
        }
        memcpy(text + used, one, (size_t)length + 1);
        used += (size_t)length;
    }
}

static json_t *kind_json(const attention_maps *maps, int k) {
    const maps_kind *kind = &maps->measured[k];
    json_t *table = json_array(), *line;
    for (int64_t row = 0; row < maps->rows; row++) {
        json_array_append_new(table, line = json_array());
        for (int64_t i = 0; i < maps->tokens; i++) {
            const float weight = kind->weights[row * maps->tokens + i];
            json_array_append_new(line, json_number((double)weight));
        }
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "kind", maps->kinds.names[k], "elsewhere",
                     json_number(kind->away), "error", json_number(kind->error),
                     "weights", table);
}

static json_t *make_object(const maps_job *job) {
    const attention_maps *maps = &job->maps;
    json_t *words = json_array(), *kinds = json_array();
    for (int64_t i = 0; i < maps->tokens; i++)
        json_array_append_new(words, json_text(maps->words[i]));
    for (int i = 0; i < maps->kinds.count; i++)
        json_array_append_new(kinds, kind_json(maps, i));
    return json_pack("{s:I, s:I, s:o, s:[I, I], s:I, s:I, s:o}", "layer",
                     (json_int_t)job->layer, "head", (json_int_t)job->head, "tokens",
                     words, "question", (json_int_t)maps->first,
                     (json_int_t)(maps->first + maps->rows), "context",
                     (json_int_t)maps->context, "left_out", (json_int_t)job->left_out,
                     "kinds", kinds);
}

static int report(maps_job *job) {
    static char caption[160];
    char head[32] = "mean over heads";
    if (job->head)
        snprintf(head, sizeof head, "head %" PRId64, job->head);
    snprintf(caption, sizeof caption,
             "layer %" PRId64 ", %s; box colours show the square root of the weight; on "
             "the right the tokens with %g or more",
             job->layer, head, job->maps.threshold);
    job->maps.caption = caption;
    if (job->picture)
        maps_draw(job->picture, &job->maps);
    if (job->left_out)
        tell("shoal maps: the last %" PRId64 " tokens of the context are truncated",
             job->left_out);
    if (job->json)
        return print_json(make_object(job));
    for (int k = 0; k < job->maps.kinds.count; k++) {
        const maps_kind *kind = &job->maps.measured[k];
        printf("%s%s", k ? "\n" : "", job->maps.kinds.names[k]);
        if (k)
            printf(", %.1f %% of the weight on other tokens than with %s",
                   100 * kind->away, job->maps.kinds.names[0]);
        putchar('\n');
        for (int64_t row = 0; row < job->maps.rows; row++) {
            char list[LIST_TEXT];
            maps_list(&job->maps, kind, row, list, sizeof list);
            printf("  %-14s %s\n", job->maps.words[job->maps.first + row], list);
        }
    }
    return EXIT_OK;
}

/* ---- The command ------------------------------------------------------------------ */

int maps_command(int count, char **arguments) {
    static maps_job job = {.maps = {.threshold = USUAL_THRESHOLD}};
    begin_command(&maps_help, count, arguments, &job);
    default_kinds(&job.maps.kinds, USUAL_KINDS);
    if (count - optind != 1 || !job.question || !job.context_path)
        die_of_usage(count - optind != 1 ? "give the folder of one model"
                     : !job.question     ? "--question is missing"
                                         : "--context is missing");
    if (job.picture && plot_obstacle(job.picture))
        die(EXIT_USAGE, "%s", plot_obstacle(job.picture));
    plan_output(job.picture);
    char *path = (char *)(uintptr_t)job.context_path;
    text_source source = {.paths = &path, .files = 1, .whole = true};
    job.context = begin_context(job.threads, job.isa);
    kind_list *kinds = &job.maps.kinds;
    for (int i = 0; i < kinds->count; i++) {
        demand(shoal_attention_parse(job.context, kinds->names[i], &kinds->attention[i]),
               EXIT_USAGE);
        if (kind_facts(&kinds->attention[i])->keys_are_queries)
            die(EXIT_USAGE,
                "%s uses the queries as keys, but these models have separate keys; "
                "choose another kind",
                kinds->names[i]);
    }
    texts_next(&source);
    shoal_model_config config = {.size = sizeof(shoal_model_config),
                                 .outputs = 1,
                                 .pooling = SHOAL_POOLING_NONE};
    demand(shoal_text_model_config(job.context, arguments[optind], &config),
           EXIT_BAD_INPUT);
    demand(shoal_model_create(job.context, &config, 1, 0, 0, 0, &job.model),
           EXIT_BAD_INPUT);
    demand(shoal_text_model_load(job.context, arguments[optind], job.model),
           EXIT_BAD_INPUT);
    demand(shoal_tokenizer_open(job.context, arguments[optind], &job.tokenizer),
           EXIT_BAD_INPUT);
    if (shoal_tokenizer_size(job.tokenizer) > config.vocabulary)
        die(EXIT_BAD_INPUT,
            "%s: the tokenizer has more tokens than the model; they belong to different "
            "models",
            arguments[optind]);
    if (job.layer > config.layers)
        die(EXIT_USAGE, "--layer is %" PRId64 "; the model has %" PRId64 " layers",
            job.layer, config.layers);
    if (job.head > config.heads)
        die(EXIT_USAGE, "--head is %" PRId64 "; the model has %" PRId64 " heads",
            job.head, config.heads);
    if (job.layer == 0)
        job.layer = config.layers;
    take_tokens(&job, source.count ? source.texts[0] : "");
    weigh(&job);
    texts_close(&source);
    return report(&job);
}
