/* Fuzz target of training data for text models: a SQuAD file after an 'S', else one of
   GLUE, whose first byte selects the task. Accepted data has valid tokens, labels of
   the task, and answers inside their windows. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_text_data"
#include "fuzz.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/text/tokenizer.h"
#include "train/tasks/text.h"

static const char *const tasks[] = {"CoLA", "SST-2", "MRPC", "STS-B", "QQP",
                                    "MNLI", "QNLI",  "RTE",  "WNLI"};
enum { TASKS = sizeof tasks / sizeof *tasks, LONGEST = 24 };

static shoal_tokenizer *a_tokenizer(void) {
    static const char words[] =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##b\nonce\n1\n";
    static shoal_tokenizer *made;
    if (!made)
        require(sh_tokenizer_parse_words(fuzz_context(),
                                         &(text_file){"words", words, sizeof words - 1},
                                         NULL, &made) == SHOAL_OK,
                "there is a tokenizer");
    return made;
}

static char folder[] = "/tmp/shoal-fuzz-XXXXXX";

static void remove_folder(void) {
    char path[256];
    for (int i = -1; i < 2 * TASKS; i++) {
        const glue_task *task = i < 0 ? NULL : sh_glue_find(tasks[i / 2]);
        snprintf(path, sizeof path, "%s/%s", folder,
                 !task   ? "squad.json"
                 : i % 2 ? task->dev[0]
                         : task->train[0]);
        unlink(path);
    }
    rmdir(folder);
}

static const char *a_folder(void) {
    static bool made;
    if (!made) {
        made = mkdtemp(folder) != NULL && atexit(remove_folder) == 0;
        require(made, "there is a folder");
    }
    return folder;
}

static const char *write_as(const char *name, const void *data, size_t size) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", a_folder(), name);
    FILE *file = fopen(path, "wb");
    require(file && fwrite(data, 1, size, file) == size && fclose(file) == 0,
            "a file is written");
    return path;
}

static void check_set(const text_set *set) {
    for (int64_t i = 0; i < set->count; i++) {
        const int64_t rows = set->offsets[i + 1] - set->offsets[i];
        require(rows > 0 && rows <= LONGEST, "a sequence has the length that was asked");
    }
    for (int64_t i = 0; i < set->token_count; i++)
        require(set->ids[i] >= 0 && set->ids[i] < shoal_tokenizer_size(a_tokenizer()) &&
                    (set->types[i] == 0 || set->types[i] == 1),
                "an id is below the size");
}

static void check_glue(const glue_task *task, const text_set *set) {
    check_set(set);
    for (int64_t i = 0; i < set->count; i++) {
        const float label = set->labels[i];
        require(task->classes == 1 ? label >= 0 && label <= 5
                                   : label >= 0 && label < (float)task->classes &&
                                         label == floorf(label),
                "a label is one of the task's");
    }
}

static void try_glue(const glue_task *task, const text_reader *reader, const void *data,
                     size_t size) {
    text_set train = {0}, dev = {0};
    write_as(task->train[0], data, size);
    write_as(task->dev[0], data, size);
    const shoal_status status = sh_glue_read(reader, task, a_folder(), &train, &dev);
    if (status == SHOAL_OK) {
        check_glue(task, &train);
        check_glue(task, &dev);
    }
    sh_text_set_free(&train);
    sh_text_set_free(&dev);
}

static void try_squad(const text_reader *reader, bool training, const void *data,
                      size_t size) {
    squad_set set;
    const char *path = write_as("squad.json", data, size);
    const shoal_status status = sh_squad_read(reader, path, 4, training, &set);
    if (status == SHOAL_OK) {
        check_set(&set.windows);
        for (int64_t i = 0; i < set.windows.count; i++) {
            const int64_t rows = set.windows.offsets[i + 1] - set.windows.offsets[i];
            const int32_t *wanted = set.windows.wanted[i];
            require(set.windows.questions[i] < set.count, "a window has its question");
            require(wanted[0] >= 0 && wanted[0] <= wanted[1] && wanted[1] < rows,
                    "an answer lies in its window");
        }
    }
    sh_squad_free(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    text_reader reader = {fuzz_context(), a_tokenizer(), LONGEST, false, NULL};
    if (size == 0)
        return 0;
    if (data[0] == 'S') {
        try_squad(&reader, true, data + 1, size - 1);
        try_squad(&reader, false, data + 1, size - 1);
        return 0;
    }
    for (int skip = 0; skip < 2; skip++) {
        reader.skip_bad = skip != 0;
        try_glue(sh_glue_find(tasks[data[0] % TASKS]), &reader, data + 1, size - 1);
    }
    return 0;
}
