#define _GNU_SOURCE
#include "text_run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

static bool find_paths(const char *command, const char *path, text_run *run) {
    struct stat information;
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode)) {
        if (snprintf(run->folder, TRAIN_PATH, "%s", path) >= TRAIN_PATH ||
            !train_path(command, run->path, path, TRAIN_BEST))
            return false;
        run->not_best = access(run->path, F_OK) != 0;
        return !run->not_best || train_path(command, run->path, path, TRAIN_CHECKPOINT);
    }
    const char *slash = strrchr(path, '/');
    snprintf(run->folder, TRAIN_PATH, "%.*s", slash ? (int)(slash - path) : 1,
             slash ? path : ".");
    return snprintf(run->path, TRAIN_PATH, "%s", path) < TRAIN_PATH;
}

/* Averaged weights need a model with gradients, to be swapped in. */
static shoal_status load_model(shoal_context *context, const shoal_checkpoint *file,
                               text_run *run) {
    shoal_model_config config;
    uint64_t seed;
    shoal_status status = shoal_checkpoint_config(file, &config, &seed);
    if (status == SHOAL_OK)
        status = shoal_model_create(context, &config, seed, 0, 0,
                                    train_is_averaged(file) ? SHOAL_WITH_BACKWARD : 0,
                                    &run->model);
    return status == SHOAL_OK ? train_load_weights(file, run->model) : status;
}

static int read_file(const char *command, shoal_context *context, text_run *run) {
    shoal_checkpoint *file;
    shoal_status status = shoal_checkpoint_open(context, run->path, &file);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, command, context);
    const char *paths = shoal_checkpoint_note(file, TEXT_PATHS_NOTE);
    const char *step = shoal_checkpoint_note(file, "state.step");
    run->paths = json_loads(paths ? paths : "{}", 0, NULL);
    run->step = step ? strtoll(step, NULL, 10) : 0;
    status = load_model(context, file, run);
    shoal_checkpoint_close(file);
    return status == SHOAL_OK ? EXIT_OK
                              : complain_status(status, EXIT_BAD_INPUT, command, context);
}

int text_run_open(const char *command, shoal_context *context, const char *path,
                  text_run *run) {
    train_reason reason;
    *run = (text_run){0};
    if (!find_paths(command, path, run))
        return complain(EXIT_USAGE, command, "%.80s...: the path is too long", path);
    shoal_status status = train_read(context, run->path, &run->config, &reason);
    if (status != SHOAL_OK)
        return train_complain(status, EXIT_BAD_INPUT, command, &reason);
    if (!train_is_text(&run->config))
        return complain(EXIT_BAD_INPUT, command,
                        "%s: its task is %s; it should be of shoal train glue or squad",
                        run->path, run->config.task);
    run->glue = sh_glue_find(run->config.text.dataset);
    if (!run->glue && strcmp(run->config.task, "glue") == 0)
        return complain(EXIT_BAD_INPUT, command, "%s: there is no task \"%s\" of GLUE",
                        run->path, run->config.text.dataset);
    if (strcmp(run->config.task, "squad") == 0)
        run->glue = NULL;
    status = shoal_tokenizer_open(context, run->folder, &run->tokenizer);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, command, context);
    const int code = read_file(command, context, run);
    if (code == EXIT_OK && shoal_tokenizer_size(run->tokenizer) >
                               shoal_model_settings(run->model)->vocabulary)
        return complain(EXIT_BAD_INPUT, command,
                        "%s: its tokenizer has more tokens than its model", run->folder);
    return code;
}

void text_run_close(text_run *run) {
    shoal_model_destroy(run->model);
    shoal_tokenizer_close(run->tokenizer);
    json_decref(run->paths);
    *run = (text_run){0};
}
