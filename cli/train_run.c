/* One run in its folder: from its checkpoint, if there is one, to its end or to an
   interrupt, with a log of JSON lines. */
#define _GNU_SOURCE
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
#include "train.h"

int train_complain(shoal_status status, int otherwise, const char *command,
                   const train_reason *reason) {
    return complain(status == SHOAL_NO_MEMORY ? EXIT_RESOURCES : otherwise, command, "%s",
                    reason->text);
}

/* ---- Paths ----------------------------------------------------------------------- */

bool train_path(const char *command, char path[TRAIN_PATH], const char *folder,
                const char *name) {
    const int length = snprintf(path, TRAIN_PATH, "%s/%s", folder, name);
    if (length >= 0 && length < TRAIN_PATH)
        return true;
    complain(EXIT_USAGE, command, "%.80s...: the path is too long", folder);
    return false;
}

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

bool train_find_weights(const char *command, const char *path, char found[TRAIN_PATH]) {
    struct stat information;
    if (stat(path, &information) != 0 || !S_ISDIR(information.st_mode))
        return snprintf(found, TRAIN_PATH, "%s", path) < TRAIN_PATH;
    if (!train_path(command, found, path, TRAIN_BEST))
        return false;
    return exists(found) || train_path(command, found, path, TRAIN_CHECKPOINT);
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

/* ---- The log ---------------------------------------------------------------------- */

/* One JSON object per line: {"config": ...} first, then a line per step and one per
   validation, each flushed as it is written. A log that is begun late has "after_step" in
   its first line. */
typedef struct {
    FILE *file;
    char path[TRAIN_PATH];
} train_log;

/* The shortest decimal that reads back to the same number; NaN has none. */
static const char *real_text(char text[32], double value, bool is_float) {
    if (!isfinite(value))
        return "null";
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (is_float ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value)
            break;
    }
    return text;
}

static bool log_config(train_log *log, const trainer *at) {
    json_t *line = json_pack("{s:s, s:o}", "shoal", shoal_version(), "config",
                             train_config_json(&at->config));
    if (at->state.step > 0)
        json_object_set_new(line, "after_step", json_integer(at->state.step));
    const bool written = line &&
                         json_dumpf(line, log->file, JSON_REAL_PRECISION(9)) == 0 &&
                         fputc('\n', log->file) != EOF && fflush(log->file) == 0;
    json_decref(line);
    return written;
}

/* What is kept of a log when the trainer goes on from its checkpoint: all lines up to the
   checkpoint's step, which were on disk before it. Later ones are cut off, and may be
   damaged. A hole before, a line twice or one that cannot be read: somebody else did
   that, and nothing is cut. */
typedef struct {
    const trainer *at;
    off_t bytes;        /* of the lines that stay */
    int64_t step;       /* of the last line */
    bool validated;     /* there is a line of this step's validation, */
    bool must_validate; /* and one is needed before the next step */
    bool later;         /* lines that are cut off have begun */
    int64_t number;     /* of the line at hand, from 1 */
    char wrong[96];     /* with it; "": nothing */
} kept_lines;

static void take_config_line(kept_lines *kept, const json_t *line) {
    if (kept->number > 1)
        snprintf(kept->wrong, sizeof kept->wrong, "begins another log");
    kept->step = json_integer_value(json_object_get(line, "after_step"));
}

static bool is_later(const kept_lines *kept, int64_t step, bool of_validation) {
    const int64_t done = kept->at->state.step;
    return step > done ||
           (step == done && of_validation && trainer_must_validate(kept->at));
}

static void take_step_line(kept_lines *kept, int64_t step, bool of_validation) {
    const int64_t expected = kept->step + !of_validation;
    kept->later = kept->step == kept->at->state.step &&
                  is_later(kept, step, of_validation);
    if (kept->later)
        return;
    if (kept->number == 1)
        snprintf(kept->wrong, sizeof kept->wrong, "is not the configuration");
    else if (step != expected || (of_validation && kept->validated))
        snprintf(kept->wrong, sizeof kept->wrong,
                 "is of step %" PRId64 ": lines before it are missing, or it is there "
                 "twice",
                 step);
    else if (!of_validation && kept->must_validate)
        snprintf(kept->wrong, sizeof kept->wrong,
                 "comes without the validation of step %" PRId64, kept->step);
    kept->step = step;
    kept->validated = of_validation;
    kept->must_validate = !of_validation && step % kept->at->config.validate_every == 0;
}

static void take_log_line(kept_lines *kept, const char *text, size_t size) {
    json_t *line = text[size - 1] == '\n' ? json_loadb(text, size, 0, NULL) : NULL;
    const json_t *step = json_object_get(line, "step");
    const bool of_validation = json_object_get(line, "validation_loss") != NULL;
    if (kept->later) { /* the rest is cut off, unless it is no rest */
        if (step && !is_later(kept, json_integer_value(step), of_validation))
            snprintf(kept->wrong, sizeof kept->wrong,
                     "is of step %" PRId64 " and comes after later ones",
                     (int64_t)json_integer_value(step));
    } else if (json_object_get(line, "config"))
        take_config_line(kept, line);
    else if (json_is_integer(step))
        take_step_line(kept, json_integer_value(step), of_validation);
    else if (kept->step == kept->at->state.step)
        kept->later = true; /* half a line */
    else
        snprintf(kept->wrong, sizeof kept->wrong, "is damaged");
    json_decref(line);
}

static kept_lines read_kept(FILE *file, const trainer *at) {
    char *line = NULL;
    size_t capacity = 0;
    kept_lines kept = {.at = at};
    ssize_t size;
    rewind(file);
    while (!kept.wrong[0] && (size = getline(&line, &capacity, file)) > 0) {
        kept.number++;
        take_log_line(&kept, line, (size_t)size);
        kept.bytes += kept.later ? 0 : size;
    }
    free(line);
    /* An empty log is no damaged one; somebody has made a new one. */
    const bool short_of = kept.step < at->state.step ||
                          (kept.must_validate && !trainer_must_validate(at));
    if (!kept.wrong[0] && kept.number > 0 && short_of) {
        kept.number++;
        snprintf(kept.wrong, sizeof kept.wrong, "is missing");
    }
    return kept;
}

/* Whether a log has more than its first line, or part of that. A checkpoint is saved
   before the first step, so that one is there beside every such log. */
static bool has_steps(FILE *file) {
    static const char beginning[] = "{\"shoal\"";
    char *line = NULL;
    size_t capacity = 0;
    rewind(file);
    const ssize_t size = getline(&line, &capacity, file);
    const size_t compared = size > 0 ? (size_t)size : 0;
    const bool own =
        strncmp(line ? line : "", beginning,
                compared < strlen(beginning) ? compared : strlen(beginning)) == 0;
    const bool more = compared > 0 && (!own || getline(&line, &capacity, file) > 0);
    free(line);
    return more;
}

/* Cuts off what the run will write again; a new log begins with the configuration. All
   writes go to the end, wherever reading has left the position. */
static bool cut_log(train_log *log, off_t kept, const trainer *at) {
    return ftruncate(fileno(log->file), kept) == 0 &&
           fseeko(log->file, 0, SEEK_END) == 0 && (kept > 0 || log_config(log, at));
}

static void log_close(train_log *log) {
    if (log->file)
        fclose(log->file);
    log->file = NULL;
}

static int cannot_write(const char *command, const char *path) {
    return complain(EXIT_RESOURCES, command, "%s cannot be written: %s", path,
                    strerror(errno));
}

/* Whether the log goes with the checkpoint that is there, or with none; *kept bytes of it
   stay. */
static int check_log(const train_log *log, const char *command, const char *checkpoint,
                     const trainer *at, off_t *kept) {
    *kept = 0;
    if (access(checkpoint, F_OK) != 0 && has_steps(log->file))
        return complain(EXIT_BAD_INPUT, command,
                        "%s is there, but its checkpoint %s is missing; put that back, "
                        "or move the log away to begin again",
                        log->path, checkpoint);
    if (at->state.step == 0)
        return EXIT_OK;
    const kept_lines found = read_kept(log->file, at);
    *kept = found.bytes;
    if (!found.wrong[0])
        return EXIT_OK;
    return complain(EXIT_BAD_INPUT, command,
                    "%s: line %" PRId64 " %s, and the checkpoint is of step %" PRId64
                    "; mend the log, or move it away to begin another one there",
                    log->path, found.number, found.wrong, at->state.step);
}

/* Opens the log for appending, after cutting off what is later than the trainer. */
static int log_open(train_log *log, const char *command, const char *checkpoint,
                    const trainer *at) {
    off_t kept;
    log->file = fopen(log->path, "a+");
    if (!log->file)
        return cannot_write(command, log->path);
    int code = check_log(log, command, checkpoint, at, &kept);
    if (code == EXIT_OK && !cut_log(log, kept, at)) {
        code = cannot_write(command, log->path);
        if (kept == 0)
            unlink(log->path); /* an empty one would pass for a training */
    }
    if (code != EXIT_OK)
        log_close(log);
    return code;
}

/* What only some lines have: utterances that could not be aligned or came out as no
   number; what the accuracy is of a text. */
enum { MORE = 160 };

static const char *more_text(char text[MORE], const train_score *score) {
    char value[32];
    text[0] = 0;
    if (score->impossible)
        snprintf(text, MORE, "\"impossible\": %" PRId64 ", ", score->impossible);
    if (score->broken)
        snprintf(text + strlen(text), MORE - strlen(text), "\"broken\": %" PRId64 ", ",
                 score->broken);
    if (score->metric)
        snprintf(text, MORE, "\"metric\": \"%s\", ", score->metric);
    if (score->second)
        snprintf(text + strlen(text), MORE - strlen(text), "\"%s\": %s, ", score->second,
                 real_text(value, score->second_value, false));
    return text;
}

static bool log_step(train_log *log, const train_state *state, const train_step *step) {
    char loss[32], accuracy[32], norm[32], rate[32], more[MORE], share[48] = "";
    if (step->loss_seconds > 0)
        snprintf(share, sizeof share, "\"loss_seconds\": %.4f, ", step->loss_seconds);
    return fprintf(
               log->file,
               "{\"step\": %" PRId64 ", \"loss\": %s, \"accuracy\": %s, "
               "\"gradient_norm\": %s, \"learning_rate\": %s, %s%s\"seconds\": %.3f}\n",
               state->step, real_text(loss, step->score.loss, false),
               real_text(accuracy, step->score.accuracy, false),
               real_text(norm, step->gradient_norm, false),
               real_text(rate, step->learning_rate, true), more_text(more, &step->score),
               share, state->seconds) > 0 &&
           fflush(log->file) == 0;
}

static bool log_validation(train_log *log, const train_state *state,
                           const train_score *score) {
    char loss[32], accuracy[32], more[MORE];
    return fprintf(log->file,
                   "{\"step\": %" PRId64 ", \"validation_loss\": %s, "
                   "\"validation_accuracy\": %s, \"correct\": %" PRId64
                   ", \"counted\": %" PRId64 ", %s\"seconds\": %.3f}\n",
                   state->step, real_text(loss, score->loss, false),
                   real_text(accuracy, score->accuracy, false), score->correct,
                   score->counted, more_text(more, score), state->seconds) > 0 &&
           fflush(log->file) == 0;
}

/* On disk when it returns, as far as the file system has one. */
static bool log_sync(train_log *log) {
    return fflush(log->file) == 0 &&
           (fsync(fileno(log->file)) == 0 || errno == EINVAL || errno == EROFS);
}

json_t *train_log_last_validation(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;
    json_t *last = NULL;
    while (file && getline(&text, &capacity, file) > 0) {
        json_t *line = strstr(text, "validation_loss") ? json_loads(text, 0, NULL) : NULL;
        if (!line)
            continue;
        json_decref(last);
        last = line;
    }
    free(text);
    if (file)
        fclose(file);
    return last;
}

/* ---- Where to begin -------------------------------------------------------------- */

typedef struct {
    train_run *run;
    shoal_context *context;
    trainer trainer;
    train_log log;
    char checkpoint[TRAIN_PATH], best[TRAIN_PATH];
    double begun, saved_at;
    int64_t first_step, sequences;     /* of this run */
    double step_seconds, loss_seconds; /* of its steps */
} running;

/* Files and lines are the first rank's. */
static bool writes(const running *at) {
    return ranks_first(at->run->config.ranks);
}

/* A training that is there is neither overwritten nor continued without being asked. */
static int check_folder(const running *at) {
    const train_run *run = at->run;
    if (run->resume || (!exists(at->checkpoint) && !exists(at->log.path)))
        return EXIT_OK;
    return complain(EXIT_USAGE, run->command,
                    "%s already holds a training; add --resume to go on with it, or "
                    "choose another folder",
                    run->folder);
}

/* The weights of the checkpoint, of another run, or the task's own. */
static int begin_weights(running *at, bool there) {
    const train_run *run = at->run;
    char from[TRAIN_PATH];
    shoal_status status = SHOAL_OK;
    if (!there && run->from && !train_find_weights(run->command, run->from, from))
        return EXIT_USAGE;
    if (there)
        status = trainer_resume(&at->trainer, at->checkpoint);
    else if (run->from)
        status = trainer_take_weights(&at->trainer, from);
    else if (at->trainer.task->start)
        status = at->trainer.task->start(&at->trainer);
    return status == SHOAL_OK ? EXIT_OK
                              : train_complain(status, EXIT_BAD_INPUT, run->command,
                                               &at->trainer.reason);
}

/* The checkpoint's configuration with what was said, which must be the same but for the
   number of steps. */
static int begin_training(running *at) {
    train_run *run = at->run;
    train_reason reason;
    const bool there = run->resume && exists(at->checkpoint);
    const train_config given = run->config;
    shoal_status status =
        there ? train_read(at->context, at->checkpoint, &run->config, &reason) : SHOAL_OK;
    if (status != SHOAL_OK)
        return train_complain(status, EXIT_BAD_INPUT, run->command, &reason);
    run->config.folder = given.folder;
    run->config.cache = given.cache;
    run->config.dev = given.dev;
    run->config.model_folder = there ? run->folder : given.model_folder;
    run->config.skip_bad = given.skip_bad;
    run->config.ranks = given.ranks;
    run->config.lexicon = given.lexicon;
    int code = settings_apply(run->settings, at->context, &run->config);
    if (code != EXIT_OK)
        return code;
    status = trainer_begin(&at->trainer, at->context, &run->config);
    if (status != SHOAL_OK && stop_signal())
        return 128 + stop_signal();
    if (status != SHOAL_OK)
        return train_complain(status,
                              status == SHOAL_BAD_FILE ? EXIT_BAD_INPUT : EXIT_USAGE,
                              run->command, &at->trainer.reason);
    code = begin_weights(at, there);
    if (code != EXIT_OK)
        return code;
    run->config = at->trainer.config; /* with what the data said */
    code = trainer_compare(&at->trainer, run->command);
    if (code == EXIT_OK && !there && writes(at) && at->trainer.task->prepare)
        code = at->trainer.task->prepare(&at->trainer, run->command, run->folder);
    return code;
}

/* ---- The loop -------------------------------------------------------------------- */

/* The weights of the best validation so far, if that was the last. */
static int save_best(running *at) {
    const trainer *self = &at->trainer;
    if (!writes(at) || !self->task->keeps_best ||
        self->state.best_step != self->state.step)
        return EXIT_OK;
    shoal_status status = trainer_save(&at->trainer, at->best);
    if (status == SHOAL_OK && self->task->publish)
        status = self->task->publish(&at->trainer, at->run->folder);
    return status == SHOAL_OK ? EXIT_OK
                              : train_complain(status, EXIT_RESOURCES, at->run->command,
                                               &at->trainer.reason);
}

static int save(running *at) {
    if (!writes(at))
        return EXIT_OK;
    if (!log_sync(&at->log)) /* the log reaches as far as the checkpoint, always */
        return cannot_write(at->run->command, at->log.path);
    writing_begin();
    const shoal_status status = trainer_save(&at->trainer, at->checkpoint);
    writing_end();
    at->saved_at = seconds_now();
    return status == SHOAL_OK ? EXIT_OK
                              : train_complain(status, EXIT_RESOURCES, at->run->command,
                                               &at->trainer.reason);
}

static void show(const running *at) {
    const train_run *run = at->run;
    const double elapsed = seconds_now() - at->begun;
    const int64_t step = at->trainer.state.step, done = step - at->first_step;
    const double per_step = done > 0 ? elapsed / (double)done : NAN;
    const double left = per_step * (double)(run->config.steps - step);
    char time_left[32] = "?";
    if (isfinite(left))
        snprintf(time_left, sizeof time_left,
                 left < 120    ? "%.0f s"
                 : left < 7200 ? "%.1f min"
                               : "%.1f h",
                 left < 120    ? left
                 : left < 7200 ? left / 60
                               : left / 3600);
    char right[32] = "";
    if (!isnan(run->last_step.score.accuracy))
        snprintf(right, sizeof right, "  right %.1f %%",
                 100 * run->last_step.score.accuracy);
    progress_say("%sstep %" PRId64 "/%" PRId64
                 "  loss %.4f%s  %.0f seq/s  at most %s left",
                 run->label, step, run->config.steps, run->last_step.score.loss, right,
                 (double)at->sequences / elapsed, time_left);
}

/* One step or one validation, and its line in the log. */
static int advance(running *at) {
    train_run *run = at->run;
    const bool validate = trainer_must_validate(&at->trainer);
    const shoal_status status = validate
                                    ? trainer_validate(&at->trainer, &run->validation)
                                    : trainer_step(&at->trainer, &run->last_step);
    if (status != SHOAL_OK)
        return train_complain(status, EXIT_BAD_INPUT, run->command, &at->trainer.reason);
    const train_state *state = &at->trainer.state;
    const bool logged = !writes(at) ||
                        (validate ? log_validation(&at->log, state, &run->validation)
                                  : log_step(&at->log, state, &run->last_step));
    run->validated = run->validated || validate;
    run->stepped = run->stepped || !validate;
    if (!validate) {
        at->sequences += run->last_step.sequences;
        at->step_seconds += run->last_step.seconds;
        at->loss_seconds += run->last_step.loss_seconds;
    }
    show(at);
    if (!logged)
        return cannot_write(run->command, at->log.path);
    return validate ? save_best(at) : EXIT_OK;
}

static bool time_is_up(const running *at) {
    const train_run *run = at->run;
    return run->stop_seconds > 0 && at->trainer.state.seconds >= run->stop_seconds;
}

/* Several ranks end after the same step: what one of them wants is known to all when a
   step is done. */
static bool must_stop(running *at) {
    const bool wanted = (writes(at) && time_is_up(at)) || stop_signal();
    at->trainer.wants_stop = wanted;
    return at->run->config.ranks ? at->trainer.stopped : wanted;
}

static int loop(running *at) {
    train_run *run = at->run;
    int code = EXIT_OK;
    bool saved = false;
    at->begun = at->saved_at = seconds_now();
    at->first_step = at->trainer.state.step;
    if (writes(at))
        progress_begin(1);
    progress_say("%sthe first step", run->label);
    while (code == EXIT_OK && !trainer_finished(&at->trainer) && !must_stop(at)) {
        code = advance(at);
        saved = false;
        if (code == EXIT_OK && trainer_may_save(&at->trainer) &&
            seconds_now() - at->saved_at >= run->save_seconds) {
            code = save(at);
            saved = true;
        }
    }
    run->state = at->trainer.state;
    run->finished = trainer_finished(&at->trainer);
    run->timed = !run->finished && time_is_up(at);
    run->stopped = at->trainer.stopped && !run->timed;
    const int64_t done = run->state.step - at->first_step;
    run->sequences_per_second =
        done > 0 ? (double)at->sequences / (seconds_now() - at->begun) : NAN;
    run->loss_share = at->loss_seconds > 0 ? at->loss_seconds / at->step_seconds : NAN;
    if (code == EXIT_OK && !saved)
        code = save(at);
    progress_end();
    return code;
}

/* The test's batches are the same for every kind and every run of a seed. */
static int test(running *at) {
    train_run *run = at->run;
    if (run->test_batches == 0 || !run->finished || at->trainer.task != &copy_task)
        return EXIT_OK;
    if (writes(at))
        progress_begin(1);
    progress_say("%stesting", run->label);
    const shoal_status status =
        trainer_evaluate(&at->trainer, NULL, run->test_batches, &run->test);
    progress_end();
    run->tested = status == SHOAL_OK;
    return run->tested ? EXIT_OK
                       : train_complain(status, EXIT_BAD_INPUT, run->command,
                                        &at->trainer.reason);
}

/* The log, and a checkpoint from before the first step. */
static int begin_files(running *at) {
    if (!writes(at))
        return EXIT_OK;
    int code = log_open(&at->log, at->run->command, at->checkpoint, &at->trainer);
    if (code == EXIT_OK && !exists(at->checkpoint)) {
        code = save(at);
        if (code != EXIT_OK)
            unlink(at->log.path); /* alone it would pass for a training */
    }
    return code;
}

static int go_locked(running *at) {
    train_run *run = at->run;
    shoal_transport *ranks = run->config.ranks;
    if (!train_path(run->command, at->checkpoint, run->folder, TRAIN_CHECKPOINT) ||
        !train_path(run->command, at->best, run->folder, TRAIN_BEST) ||
        !train_path(run->command, at->log.path, run->folder, TRAIN_LOG))
        return EXIT_USAGE;
    int code = ranks_follow(ranks, writes(at) ? check_folder(at) : EXIT_OK);
    if (code == EXIT_OK)
        code = begin_training(at);
    if (code == EXIT_OK)
        code = ranks_follow(ranks, begin_files(at));
    if (code == EXIT_OK)
        code = loop(at);
    if (code == EXIT_OK)
        code = test(at);
    log_close(&at->log);
    trainer_end(&at->trainer);
    return code;
}

/* *lock: what keeps others out of the folder. */
static int take_folder(train_run *run, int *lock) {
    const int code = train_make_folder(run->command, run->folder);
    if (code != EXIT_OK)
        return code;
    *lock = train_lock_folder(run->folder, false);
    run->busy = *lock < 0 && errno == EWOULDBLOCK;
    if (run->busy)
        return complain(EXIT_RESOURCES, run->command, "another process is training in %s",
                        run->folder);
    if (*lock < 0)
        return complain(EXIT_RESOURCES, run->command, "%s cannot be opened: %s",
                        run->folder, strerror(errno));
    remove_leftovers(run->folder);
    return EXIT_OK;
}

int train_go(train_run *run, shoal_context *context) {
    static running at;
    at = (running){.run = run, .context = context};
    const bool was_there = exists(run->folder);
    train_config tried = run->config;
    int lock = -1;
    int code =
        settings_apply(run->settings, context, &tried); /* before a folder is made */
    if (code != EXIT_OK)
        return code;
    code =
        ranks_follow(run->config.ranks, writes(&at) ? take_folder(run, &lock) : EXIT_OK);
    if (code == EXIT_OK)
        code = go_locked(&at);
    if (code != EXIT_OK && !was_there && lock >= 0)
        rmdir(run->folder); /* succeeds only where nothing was put into it */
    if (lock >= 0)
        close(lock);
    return code;
}
