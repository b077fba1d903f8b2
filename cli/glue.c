/* GLUE's tasks and their files: tab-separated, a row per line, no quotes. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common.h"
#include "text_data.h"
#include "text_metrics.h"
#include "train.h"

/* ---- Metrics ---------------------------------------------------------------------- */

const char *const metric_names[METRICS] = {"",           "accuracy", "f1",
                                           "matthews",   "pearson",  "spearman",
                                           "exact_match"};

double text_metric_of(text_metric metric, int64_t count, const float *predicted,
                      const float *wanted) {
    switch (metric) {
    case METRIC_ACCURACY: return metric_accuracy(count, predicted, wanted);
    case METRIC_F1: return metric_f1(count, predicted, wanted);
    case METRIC_MATTHEWS: return metric_matthews(count, predicted, wanted);
    case METRIC_PEARSON: return metric_pearson(count, predicted, wanted);
    case METRIC_SPEARMAN: return metric_spearman(count, predicted, wanted);
    default: return NAN;
    }
}

/* ---- Tasks ------------------------------------------------------------------------ */

#define USUAL_FILES .train = {"train.tsv"}, .dev = {"dev.tsv"}
#define ENTAILMENT .words = {"entailment", "not_entailment"}

static const glue_task tasks[] = {
    {"CoLA", 2, METRIC_MATTHEWS, METRIC_ACCURACY, USUAL_FILES,
     .columns = {"sentence", NULL, "label"}, .places = {3, -1, 1}, .fields = 4},
    {"SST-2", 2, METRIC_ACCURACY, METRIC_NONE, USUAL_FILES,
     .columns = {"sentence", NULL, "label"}},
    {"MRPC", 2, METRIC_ACCURACY, METRIC_F1, USUAL_FILES,
     .columns = {"#1 String", "#2 String", "Quality"}},
    {"STS-B", 1, METRIC_PEARSON, METRIC_SPEARMAN, .train = {"train.tsv", "sts-train.tsv"},
     .dev = {"dev.tsv", "sts-dev.tsv"}, .columns = {"sentence1", "sentence2", "score"},
     .places = {5, 6, 4}, .fields = 7},
    {"QQP", 2, METRIC_ACCURACY, METRIC_F1, .train = {"train.tsv", "labelled-23k.tsv"},
     .dev = {"dev.tsv", "labelled-23k.tsv"},
     .columns = {"question1", "question2", "is_duplicate"}, .places = {3, 4, 5},
     .fields = 6},
    {"MNLI", 3, METRIC_ACCURACY, METRIC_NONE, .train = {"train.tsv"},
     .dev = {"dev_matched.tsv"}, .columns = {"sentence1", "sentence2", "gold_label"},
     .words = {"entailment", "neutral", "contradiction"}},
    {"QNLI", 2, METRIC_ACCURACY, METRIC_NONE, .train = {"train.tsv", "train-subset.tsv"},
     .dev = {"dev.tsv"}, .columns = {"question", "sentence", "label"}, ENTAILMENT},
    {"RTE", 2, METRIC_ACCURACY, METRIC_NONE, USUAL_FILES,
     .columns = {"sentence1", "sentence2", "label"}, ENTAILMENT},
    {"WNLI", 2, METRIC_ACCURACY, METRIC_NONE, USUAL_FILES,
     .columns = {"sentence1", "sentence2", "label"}},
};
enum { TASKS = sizeof tasks / sizeof *tasks };

const glue_task *glue_find(const char *name) {
    for (int i = 0; i < TASKS; i++)
        if (strcasecmp(tasks[i].name, name) == 0)
            return &tasks[i];
    return NULL;
}

const char *glue_names(void) {
    static char text[128];
    text[0] = 0;
    for (int i = 0; i < TASKS; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? ", " : "",
                 tasks[i].name);
    return text;
}

/* ---- Rows ------------------------------------------------------------------------- */

enum { FIELDS_MOST = 64, SHARED_DEV = 10 /* every so-manieth row of a file for both */ };

typedef struct {
    const text_reader *reader;
    const glue_task *task;
    const char *path;
    int64_t line;
    char *fields[FIELDS_MOST];
    int count;
    int places[3], wanted; /* of the texts and the label; fields of a row, 0: any */
    int64_t rows, left_out;
    char wrong[160];
} tsv_file;

static bool refuse(tsv_file *f, const char *what) {
    snprintf(f->wrong, sizeof f->wrong, "%s", what);
    return false;
}

static void split(tsv_file *f, char *line) {
    f->count = 0;
    for (char *at = line; at && f->count < FIELDS_MOST;)
        f->fields[f->count++] = strsep(&at, "\t");
}

static int find_field(const tsv_file *f, const char *name) {
    for (int i = 0; name && i < f->count; i++)
        if (strcasecmp(f->fields[i], name) == 0)
            return i;
    return -1;
}

/* Whether the first line is a header; if so, it says where the columns are. */
static bool take_header(tsv_file *f) {
    const glue_task *task = f->task;
    int places[3];
    for (int i = 0; i < 3; i++)
        places[i] = find_field(f, task->columns[i]);
    memcpy(f->places, task->places, sizeof places);
    f->wanted = 0;
    if (places[0] < 0 || places[2] < 0 || (task->columns[1] && places[1] < 0))
        return false;
    memcpy(f->places, places, sizeof places);
    f->wanted = f->count;
    return true;
}

static void name_classes(tsv_file *f, const char *label) {
    char words[80] = "";
    for (int i = 0; i < 3 && f->task->words[i]; i++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s",
                 i ? ", " : "", f->task->words[i]);
    snprintf(f->wrong, sizeof f->wrong,
             "its label is \"%.40s\"; it should be %s%sa class from 0 to %d", label,
             words, words[0] ? " or " : "", f->task->classes - 1);
}

static bool take_label(tsv_file *f, const char *text, float *label) {
    char *rest;
    const double value = strtod(text, &rest);
    const int classes = f->task->classes;
    for (int i = 0; i < 3 && f->task->words[i]; i++)
        if (strcmp(f->task->words[i], text) == 0) {
            *label = (float)i;
            return true;
        }
    *label = (float)value;
    if (rest != text && !*rest && isfinite(value) &&
        (classes == 1 ? value >= 0 && value <= 5
                      : value >= 0 && value < classes && value == floor(value)))
        return true;
    if (classes == 1)
        snprintf(f->wrong, sizeof f->wrong,
                 "its score is \"%.40s\"; it should be a number from 0 to 5", text);
    else
        name_classes(f, text);
    return false;
}

static bool take_row(tsv_file *f, text_set *set) {
    const text_reader *reader = f->reader;
    float label;
    shoal_tokens tokens;
    if (f->wanted ? f->count != f->wanted : f->count < f->task->fields) {
        snprintf(f->wrong, sizeof f->wrong, "it has %d columns; it should have %d",
                 f->count, f->wanted ? f->wanted : f->task->fields);
        return false;
    }
    if (!take_label(f, f->fields[f->places[2]], &label))
        return false;
    const shoal_text text = {.text = f->fields[f->places[0]],
                             .size = -1,
                             .pair = f->task->columns[1] ? f->fields[f->places[1]] : NULL,
                             .pair_size = -1,
                             .most = reader->max_length};
    if (shoal_tokenizer_encode(reader->tokenizer, &text, &tokens) != SHOAL_OK)
        return refuse(f, shoal_context_message(reader->context));
    return text_set_add(set, tokens.count, tokens.ids, tokens.types, NULL, label, NULL,
                        0) ||
           refuse(f, "out of memory");
}

static int bad_row(tsv_file *f) {
    if (f->reader->skip_bad) {
        f->left_out++;
        return EXIT_OK;
    }
    return complain(EXIT_BAD_INPUT, f->reader->command,
                    "%s: line %" PRId64 ": %s; --skip-bad leaves such rows out", f->path,
                    f->line, f->wrong);
}

/* Rows of a file that is both parts: every tenth one is dev's. */
static bool is_for(const tsv_file *f, bool shared, bool dev) {
    return !shared || (f->rows % SHARED_DEV == SHARED_DEV - 1) == dev;
}

static int take_line(tsv_file *f, char *line, bool shared, bool dev, text_set *set) {
    split(f, line);
    if (f->line == 1 && take_header(f))
        return EXIT_OK;
    if (!f->wanted && !f->task->fields)
        return complain(EXIT_BAD_INPUT, f->reader->command,
                        "%s: line 1: %s needs a header with the columns %s%s%s and %s",
                        f->path, f->task->name, f->task->columns[0],
                        f->task->columns[1] ? ", " : "",
                        f->task->columns[1] ? f->task->columns[1] : "",
                        f->task->columns[2]);
    const bool taken = !is_for(f, shared, dev) || take_row(f, set);
    f->rows++;
    return taken ? EXIT_OK : bad_row(f);
}

static int read_lines(tsv_file *f, FILE *file, bool shared, bool dev, text_set *set) {
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    int code = EXIT_OK;
    while (code == EXIT_OK && (size = getline(&line, &room, file)) >= 0) {
        f->line++;
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r'))
            line[--size] = 0;
        char *text = f->line == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0 ? line + 3
                                                                           : line;
        if (strlen(line) != (size_t)size) {
            refuse(f, "it has a byte 0");
            code = bad_row(f);
        } else if (*text) {
            code = take_line(f, text, shared, dev, set);
        }
    }
    free(line);
    return code;
}

static int read_part(const text_reader *reader, const glue_task *task, const char *path,
                     bool shared, bool dev, text_set *set) {
    FILE *file = fopen(path, "r");
    tsv_file f = {.reader = reader, .task = task, .path = path};
    if (!file)
        return complain(EXIT_BAD_INPUT, reader->command, "%s cannot be read: %s", path,
                        strerror(errno));
    int code = read_lines(&f, file, shared, dev, set);
    if (code == EXIT_OK && ferror(file))
        code = complain(EXIT_BAD_INPUT, reader->command, "%s cannot be read: %s", path,
                        strerror(errno));
    fclose(file);
    if (code == EXIT_OK && set->count == 0)
        code = complain(EXIT_BAD_INPUT, reader->command, "%s: has no rows", path);
    if (code == EXIT_OK && f.left_out)
        tell("shoal %s: %s: %" PRId64 " rows were left out", reader->command, path,
             f.left_out);
    return code;
}

/* ---- Files ------------------------------------------------------------------------ */

/* The first of the names that is there, in FOLDER/TASK or in FOLDER. */
static bool find_file(const glue_task *task, const char *folder,
                      const char *const names[2], char path[TRAIN_PATH]) {
    for (int i = 0; i < 4; i++) {
        const char *name = names[i % 2];
        if (!name)
            continue;
        const int length =
            i < 2 ? snprintf(path, TRAIN_PATH, "%s/%s/%s", folder, task->name, name)
                  : snprintf(path, TRAIN_PATH, "%s/%s", folder, name);
        FILE *file = length > 0 && length < TRAIN_PATH ? fopen(path, "r") : NULL;
        if (file)
            fclose(file);
        if (file)
            return true;
    }
    return false;
}

bool glue_is_there(const glue_task *task, const char *folder) {
    char path[TRAIN_PATH];
    return find_file(task, folder, task->train, path) &&
           find_file(task, folder, task->dev, path);
}

int glue_read(const text_reader *reader, const glue_task *task, const char *folder,
              text_set *train, text_set *dev) {
    text_set *const sets[] = {train, dev};
    char paths[2][TRAIN_PATH];
    for (int i = 0; i < 2; i++)
        if (!find_file(task, folder, i ? task->dev : task->train, paths[i])) {
            if (sets[i])
                return complain(EXIT_BAD_INPUT, reader->command,
                                "%s has no %s/%s of the task %s", folder, task->name,
                                i ? task->dev[0] : task->train[0], task->name);
            paths[i][0] = 0;
        }
    const bool shared = strcmp(paths[0], paths[1]) == 0;
    int code = EXIT_OK;
    if (train)
        code = read_part(reader, task, paths[0], shared, false, train);
    if (code == EXIT_OK && dev)
        code = read_part(reader, task, paths[1], shared, true, dev);
    return code;
}
