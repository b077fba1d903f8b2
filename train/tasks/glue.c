/* The tasks of GLUE and their files: tab-separated, one row per line, without
   quoting. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "models/files/files.h"
#include "train/tasks/text.h"

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

const glue_task *sh_glue_find(const char *name) {
    for (int i = 0; i < TASKS; i++)
        if (strcasecmp(tasks[i].name, name) == 0)
            return &tasks[i];
    return NULL;
}

const shoal_glue_info *shoal_glue_describe(int index) {
    /* In the order of `tasks`. */
    static const shoal_glue_info infos[TASKS] = {{"CoLA", "matthews", "accuracy", 2},
                                                 {"SST-2", "accuracy", NULL, 2},
                                                 {"MRPC", "accuracy", "f1", 2},
                                                 {"STS-B", "pearson", "spearman", 1},
                                                 {"QQP", "accuracy", "f1", 2},
                                                 {"MNLI", "accuracy", NULL, 3},
                                                 {"QNLI", "accuracy", NULL, 2},
                                                 {"RTE", "accuracy", NULL, 2},
                                                 {"WNLI", "accuracy", NULL, 2}};
    return index >= 0 && index < TASKS ? &infos[index] : NULL;
}

/* ---- Rows ------------------------------------------------------------------------- */

enum { FIELDS_MOST = 64, SHARED_DEV = 10 /* every tenth row of a shared file is dev */ };

typedef struct {
    const text_reader *reader;
    const glue_task *task;
    const char *path;
    bool shared, dev; /* the file has both sets; this is the dev set */
    int64_t line;
    char *fields[FIELDS_MOST];
    int count;
    int places[3], wanted; /* columns of the texts and the label; columns per row, 0
                              for any */
    int64_t rows, left_out;
    char wrong[160]; /* what is wrong with the row, or "" */
} tsv_file;

/* Returns whether the first line is a header, which then gives the columns. */
static bool take_header(tsv_file *f) {
    const glue_task *task = f->task;
    int places[3] = {-1, -1, -1};
    for (int c = 0; c < 3; c++)
        for (int i = f->count - 1; task->columns[c] && i >= 0; i--)
            if (strcasecmp(f->fields[i], task->columns[c]) == 0)
                places[c] = i;
    const bool there = places[0] >= 0 && places[2] >= 0 &&
                       (!task->columns[1] || places[1] >= 0);
    memcpy(f->places, there ? places : task->places, sizeof places);
    f->wanted = there ? f->count : 0;
    return there;
}

static bool take_label(tsv_file *f, const char *text, float *label) {
    char *rest, words[80] = "";
    const double value = strtod(text, &rest);
    const int classes = f->task->classes;
    for (int i = 0; i < 3 && f->task->words[i]; i++) {
        if (strcmp(f->task->words[i], text) == 0) {
            *label = (float)i;
            return true;
        }
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s",
                 i ? ", " : "", f->task->words[i]);
    }
    *label = (float)value;
    if (rest != text && !*rest && isfinite(value) &&
        (classes == 1 ? value >= 0 && value <= 5
                      : value >= 0 && value < classes && value == floor(value)))
        return true;
    if (classes == 1)
        snprintf(f->wrong, sizeof f->wrong,
                 "the score is \"%.40s\"; it must be a number from 0 to 5", text);
    else
        snprintf(f->wrong, sizeof f->wrong,
                 "the label is \"%.40s\"; it must be %s%sa class from 0 to %d", text,
                 words, words[0] ? " or " : "", classes - 1);
    return false;
}

/* f->wrong is set if a row cannot be used. */
static shoal_status take_line(tsv_file *f, char *line, text_set *set) {
    const glue_task *task = f->task;
    const text_reader *reader = f->reader;
    float label;
    shoal_tokens tokens;
    f->count = 0;
    for (char *at = line; at && f->count < FIELDS_MOST;)
        f->fields[f->count++] = strsep(&at, "\t");
    if (f->line == 1 && take_header(f))
        return SHOAL_OK;
    if (!f->wanted && !task->fields)
        return sh_fail(reader->context, SHOAL_BAD_FILE,
                       "%s: line 1: %s needs a header with the columns %s%s%s and %s",
                       f->path, task->name, task->columns[0],
                       task->columns[1] ? ", " : "",
                       task->columns[1] ? task->columns[1] : "", task->columns[2]);
    /* In a file with both sets every tenth row belongs to dev. */
    const bool last = f->rows++ % SHARED_DEV == SHARED_DEV - 1;
    if (f->shared && last != f->dev)
        return SHOAL_OK;
    if (f->wanted ? f->count != f->wanted : f->count < task->fields) {
        snprintf(f->wrong, sizeof f->wrong, "it has %d columns instead of %d", f->count,
                 f->wanted ? f->wanted : task->fields);
        return SHOAL_OK;
    }
    if (!take_label(f, f->fields[f->places[2]], &label))
        return SHOAL_OK;
    const shoal_text text = {.size = sizeof(shoal_text),
                             .text = f->fields[f->places[0]],
                             .bytes = SHOAL_TERMINATED,
                             .pair = task->columns[1] ? f->fields[f->places[1]] : NULL,
                             .pair_bytes = SHOAL_TERMINATED,
                             .most = reader->max_length};
    const shoal_status status = shoal_tokenizer_encode(reader->tokenizer, &text, &tokens);
    if (status == SHOAL_OK)
        return sh_text_set_add(reader->context, set, tokens.count, tokens.ids,
                               tokens.types, NULL, label, NULL, 0);
    snprintf(f->wrong, sizeof f->wrong, "%s", shoal_context_message(reader->context));
    return status == SHOAL_NO_MEMORY ? status : SHOAL_OK;
}

static shoal_status read_part(tsv_file *f, text_set *set) {
    shoal_context *context = f->reader->context;
    FILE *file = fopen(f->path, "r");
    char *line = NULL;
    size_t room = 0;
    int64_t size = 0;
    shoal_status status = SHOAL_OK;
    while (file && status == SHOAL_OK &&
           (size = sh_read_line(context, file, &line, &room)) > 0) {
        f->line++;
        f->wrong[0] = 0;
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r'))
            line[--size] = 0;
        char *text = f->line == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0 ? line + 3
                                                                           : line;
        if (strlen(line) != (size_t)size)
            snprintf(f->wrong, sizeof f->wrong, "it contains a NUL byte");
        else if (*text)
            status = take_line(f, text, set);
        if (status == SHOAL_OK && f->wrong[0] && !f->reader->skip_bad)
            status = sh_fail(context, SHOAL_BAD_FILE,
                             "%s: line %" PRId64 ": %s; --skip-bad skips such rows",
                             f->path, f->line, f->wrong);
        f->left_out += f->wrong[0] != 0;
    }
    sh_free(line);
    if (size < 0)
        status = SHOAL_NO_MEMORY;
    if (!file || (status == SHOAL_OK && ferror(file)))
        status = sh_fail(context, SHOAL_BAD_FILE, "%s cannot be read: %s", f->path,
                         strerror(errno));
    if (file)
        fclose(file);
    TRY(status);
    if (set->count == 0)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: it has no rows", f->path);
    if (f->left_out)
        sh_warn(f->reader->callbacks, "%s: %" PRId64 " rows were skipped", f->path,
                f->left_out);
    return SHOAL_OK;
}

/* ---- Files ------------------------------------------------------------------------ */

/* The first of the names that exists in FOLDER/TASK or in FOLDER. */
static bool find_file(const glue_task *task, const char *folder,
                      const char *const names[2], char path[PATH_MAX]) {
    for (int i = 0; i < 4; i++) {
        const char *name = names[i % 2];
        if (!name)
            continue;
        const int length =
            i < 2 ? snprintf(path, PATH_MAX, "%s/%s/%s", folder, task->name, name)
                  : snprintf(path, PATH_MAX, "%s/%s", folder, name);
        FILE *file = length > 0 && length < PATH_MAX ? fopen(path, "r") : NULL;
        if (file) {
            fclose(file);
            return true;
        }
    }
    return false;
}

int shoal_glue_is_there(const char *dataset, const char *folder) {
    const glue_task *task = sh_glue_find(dataset);
    char path[PATH_MAX];
    return task && find_file(task, folder, task->train, path) &&
           find_file(task, folder, task->dev, path);
}

shoal_status sh_glue_read(const text_reader *reader, const glue_task *task,
                          const char *folder, text_set *train, text_set *dev) {
    text_set *const sets[] = {train, dev};
    char paths[2][PATH_MAX];
    for (int i = 0; i < 2; i++)
        if (!find_file(task, folder, i ? task->dev : task->train, paths[i])) {
            if (sets[i])
                return sh_fail(reader->context, SHOAL_BAD_FILE,
                               "%s has no %s/%s for the task %s", folder, task->name,
                               i ? task->dev[0] : task->train[0], task->name);
            paths[i][0] = 0;
        }
    for (int i = 0; i < 2; i++) {
        tsv_file f = {.reader = reader,
                      .task = task,
                      .path = paths[i],
                      .shared = strcmp(paths[0], paths[1]) == 0,
                      .dev = i == 1};
        if (sets[i])
            TRY(read_part(&f, sets[i]));
    }
    return SHOAL_OK;
}
