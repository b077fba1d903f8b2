/* One run: from its checkpoint, if there is one, to its end or to an interrupt. */
#define _GNU_SOURCE
#include "train.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"
#include <shoal_models.h>

/* ---- Paths ----------------------------------------------------------------------- */

bool train_path(const char *command, char path[TRAIN_PATH], const char *folder,
                const char *name) {
    const int length = snprintf(path, TRAIN_PATH, "%s/%s", folder, name);
    if (length >= 0 && length < TRAIN_PATH)
        return true;
    complain(EXIT_USAGE, command, "%.80s...: the path is too long", folder);
    return false;
}

int train_make_folder(const char *command, const char *path) {
    char part[TRAIN_PATH];
    struct stat information;
    if (!*path || strlen(path) >= sizeof part)
        return complain(EXIT_USAGE, command, "\"%.80s\" cannot be a folder", path);
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i])
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return complain(EXIT_RESOURCES, command, "%s cannot be made: %s", part,
                            strerror(errno));
    }
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, command, "%s is not a folder", path);
}

/* Without locks (some network folders have none) nobody is kept out. */
int train_lock_folder(const char *path, bool wait) {
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || flock(folder, wait ? LOCK_EX : LOCK_EX | LOCK_NB) == 0 ||
        errno != EWOULDBLOCK)
        return folder;
    close(folder);
    errno = EWOULDBLOCK;
    return -1;
}

/* The library writes to .shoal-PID-N.tmp and renames: a process that was killed leaves
   such a file, as large as a checkpoint. */
static void remove_leftovers(const char *path) {
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        long process;
        int number, length = 0;
        if (sscanf(entry->d_name, ".shoal-%ld-%d.tmp%n", &process, &number, &length) ==
                2 &&
            length > 0 && !entry->d_name[length] && kill((pid_t)process, 0) != 0 &&
            errno == ESRCH)
            unlinkat(dirfd(folder), entry->d_name, 0);
    }
    if (folder)
        closedir(folder);
}

/* ---- Where to begin -------------------------------------------------------------- */

typedef struct {
    train_run *run;
    shoal_context *context;
    shoal_trainer *trainer;
    train_log log;
    char checkpoint[TRAIN_PATH];
    double begun, saved_at;
    int64_t first_step; /* of this run */
} session;

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

/* A training that is there is neither overwritten nor continued without being asked. */
static int check_folder(const session *at, const char *log_path) {
    const train_run *run = at->run;
    if (run->resume || (!exists(at->checkpoint) && !exists(log_path)))
        return EXIT_OK;
    return complain(EXIT_USAGE, run->command,
                    "%s already holds a training; add --resume to go on with it, or "
                    "choose another folder",
                    run->folder);
}

/* The checkpoint's configuration with what was said, which must be the same but for the
   number of steps. */
static int begin_training(session *at) {
    train_run *run = at->run;
    const bool there = run->resume && exists(at->checkpoint);
    shoal_status status =
        there ? shoal_train_read(at->context, at->checkpoint, &run->config) : SHOAL_OK;
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, run->command, at->context);
    const int code = train_apply(run->settings, at->context, &run->config);
    if (code != EXIT_OK)
        return code;
    status = shoal_trainer_create(at->context, &run->config, &at->trainer);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_USAGE, run->command, at->context);
    if (there)
        status = shoal_trainer_resume(at->trainer, at->checkpoint);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, run->command, at->context);
    run->config = *shoal_trainer_config(at->trainer);
    return EXIT_OK;
}

/* ---- The loop -------------------------------------------------------------------- */

static int save(session *at) {
    if (!train_log_sync(&at->log)) /* the log reaches as far as the checkpoint, always */
        return complain(EXIT_RESOURCES, at->run->command, "%s cannot be written: %s",
                        at->log.path, strerror(errno));
    const shoal_status status = shoal_trainer_save(at->trainer, at->checkpoint);
    at->saved_at = seconds_now();
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_RESOURCES, at->run->command, at->context);
}

static void show(const session *at, const shoal_train_progress *progress) {
    const train_run *run = at->run;
    const double elapsed = seconds_now() - at->begun;
    const int64_t done = progress->step - at->first_step;
    const double per_step = done > 0 ? elapsed / (double)done : NAN;
    const double left = per_step * (double)(run->config.steps - progress->step);
    char time_left[32] = "?";
    if (isfinite(left))
        snprintf(time_left, sizeof time_left,
                 left < 120    ? "%.0f s"
                 : left < 7200 ? "%.1f min"
                               : "%.1f h",
                 left < 120    ? left
                 : left < 7200 ? left / 60
                               : left / 3600);
    progress_say("%sstep %" PRId64 "/%" PRId64
                 "  loss %.4f  right %.1f %%  %.0f seq/s  at most %s left",
                 run->label, progress->step, run->config.steps, run->last_step.score.loss,
                 100 * run->last_step.score.accuracy,
                 (double)run->config.batch / per_step, time_left);
}

/* One step or one validation, and its line in the log. */
static int advance(session *at, bool validate) {
    train_run *run = at->run;
    const shoal_status status =
        validate ? shoal_trainer_validate(at->trainer, &run->validation)
                 : shoal_trainer_step(at->trainer, &run->last_step);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, run->command, at->context);
    const shoal_train_progress progress = shoal_trainer_progress(at->trainer);
    const bool logged =
        validate
            ? train_log_validation(&at->log, progress.step, &run->validation,
                                   progress.seconds)
            : train_log_step(&at->log, progress.step, &run->last_step, progress.seconds);
    run->validated = run->validated || validate;
    run->stepped = run->stepped || !validate;
    show(at, &progress);
    return logged ? EXIT_OK
                  : complain(EXIT_RESOURCES, run->command, "%s cannot be written: %s",
                             at->log.path, strerror(errno));
}

static int loop(session *at) {
    train_run *run = at->run;
    int code = EXIT_OK;
    bool saved = false;
    at->begun = at->saved_at = seconds_now();
    at->first_step = shoal_trainer_progress(at->trainer).step;
    progress_begin(1);
    for (;;) {
        const shoal_train_progress progress = shoal_trainer_progress(at->trainer);
        if (code != EXIT_OK || progress.finished || stop_signal())
            break;
        code = advance(at, progress.validate != 0);
        saved = false;
        if (code == EXIT_OK && seconds_now() - at->saved_at >= run->save_seconds) {
            code = save(at);
            saved = true;
        }
    }
    run->progress = shoal_trainer_progress(at->trainer);
    const int64_t done = run->progress.step - at->first_step;
    run->sequences_per_second =
        done > 0 ? (double)(done * run->config.batch) / (seconds_now() - at->begun) : NAN;
    if (code == EXIT_OK && !saved)
        code = save(at);
    progress_end();
    return code;
}

/* The test's batches are the same for every kind and every run of a seed. */
static int test(session *at) {
    train_run *run = at->run;
    if (run->test_batches == 0 || !run->progress.finished)
        return EXIT_OK;
    const shoal_status status =
        shoal_trainer_evaluate(at->trainer, NULL, run->test_batches, &run->test);
    run->tested = status == SHOAL_OK;
    return run->tested
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, run->command, at->context);
}

static int go_locked(session *at) {
    train_run *run = at->run;
    char log_path[TRAIN_PATH];
    if (!train_path(run->command, at->checkpoint, run->folder, TRAIN_CHECKPOINT) ||
        !train_path(run->command, log_path, run->folder, TRAIN_LOG))
        return EXIT_USAGE;
    int code = check_folder(at, log_path);
    if (code == EXIT_OK)
        code = begin_training(at);
    const shoal_train_progress progress = shoal_trainer_progress(at->trainer);
    if (code == EXIT_OK)
        code = train_log_open(&at->log, run->command, log_path, &run->config, &progress);
    if (code == EXIT_OK)
        code = loop(at);
    if (code == EXIT_OK)
        code = test(at);
    train_log_close(&at->log);
    shoal_trainer_destroy(at->trainer);
    return code;
}

int train_go(train_run *run, shoal_context *context) {
    static session at;
    at = (session){.run = run, .context = context};
    const bool was_there = exists(run->folder);
    shoal_train_config tried = run->config;
    int code = train_apply(run->settings, context, &tried); /* before a folder is made */
    if (code == EXIT_OK)
        code = train_make_folder(run->command, run->folder);
    if (code != EXIT_OK)
        return code;
    const int lock = train_lock_folder(run->folder, false);
    run->busy = lock < 0 && errno == EWOULDBLOCK;
    if (run->busy)
        return complain(EXIT_RESOURCES, run->command, "another process is training in %s",
                        run->folder);
    if (lock < 0)
        return complain(EXIT_RESOURCES, run->command, "%s cannot be opened: %s",
                        run->folder, strerror(errno));
    remove_leftovers(run->folder);
    code = go_locked(&at);
    if (code != EXIT_OK && !was_there)
        rmdir(run->folder); /* succeeds only where nothing was put into it */
    close(lock);
    return code;
}
