/* One run in its folder: from its checkpoint, if there is one, to its end or to a
   cancellation, with a log of JSON lines. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "models/files/files.h"
#include "train/train.h"

/* ---- The folder -------------------------------------------------------------------- */

shoal_status sh_path(shoal_context *context, char path[SH_PATH], const char *folder,
                     const char *name) {
    const int length = snprintf(path, SH_PATH, "%s/%s", folder, name);
    return length >= 0 && length < SH_PATH
               ? SHOAL_OK
               : sh_fail(context, SHOAL_INVALID, "%.80s...: the path is too long",
                         folder);
}

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

shoal_status sh_make_folder(shoal_context *context, const char *path) {
    char part[SH_PATH];
    struct stat information;
    if (!*path || strlen(path) >= sizeof part)
        return sh_fail(context, SHOAL_INVALID, "\"%.80s\" cannot be a folder", path);
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i])
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return sh_fail(context, SHOAL_IO, "%s cannot be made: %s", part,
                           strerror(errno));
    }
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode))
        return SHOAL_OK;
    return sh_fail(context, SHOAL_IO, "%s is not a folder", path);
}

/* ---- Lines of the log -------------------------------------------------------------- */

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

/* What only some lines have: utterances that could not be aligned or came out as no
   number; what the accuracy is of a text. */
enum { MORE = 160 };

static const char *more_text(char text[MORE], const shoal_train_score *score) {
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

static bool log_step(train_log *log, const shoal_train_state *state,
                     const shoal_train_step *step) {
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

static bool log_validation(train_log *log, const shoal_train_state *state,
                           const shoal_train_score *score) {
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

/* On disk, as far as the file system has one. */
static bool log_sync(train_log *log) {
    return fflush(log->file) == 0 &&
           (fsync(fileno(log->file)) == 0 || errno == EINVAL || errno == EROFS);
}

/* ---- A run under way --------------------------------------------------------------- */

typedef struct {
    shoal_context *context;
    const shoal_train_task *task;
    shoal_train_config *config; /* the caller's */
    const shoal_run_options *options;
    shoal_transport *transport;
    shoal_run_result *result;
    shoal_trainer *trainer;
    train_log log;
    char checkpoint[SH_PATH], best[SH_PATH];
    double begun, saved_at;
    int64_t first_step, sequences;     /* of this call */
    double step_seconds, loss_seconds; /* of its steps */
} running;

/* Files and lines are the first process's. */
static bool writes(const running *at) {
    return sh_is_first(at->transport);
}

static shoal_status blame(running *at, shoal_run_cause cause, shoal_status status) {
    if (status != SHOAL_OK)
        at->result->cause = status == SHOAL_NO_MEMORY ? SHOAL_CAUSE_OUTPUT : cause;
    return status;
}

/* What became of work that the first process alone does, everywhere. */
static shoal_status follow(running *at, shoal_status status) {
    int32_t both[2] = {status, at->result->cause};
    if (sh_tell_others(at->context, at->transport, sizeof both, both) != SHOAL_OK)
        return blame(at, SHOAL_CAUSE_OUTPUT, SHOAL_IO);
    at->result->cause = (shoal_run_cause)both[1];
    at->result->agreed = at->transport && both[0] != SHOAL_OK;
    return (shoal_status)both[0];
}

static void report(const running *at, shoal_progress_event event) {
    const shoal_train_callbacks *callbacks = &at->options->callbacks;
    const shoal_run_result *result = at->result;
    const shoal_trainer *trainer = at->trainer;
    if (!callbacks->progress || !writes(at))
        return;
    const shoal_train_progress progress = {.event = event,
                                           .done = trainer->state.step,
                                           .all = trainer->config->steps,
                                           .elapsed = sh_seconds() - at->begun,
                                           .steps = trainer->state.step - at->first_step,
                                           .sequences = at->sequences,
                                           .state = &trainer->state,
                                           .step = &result->last_step,
                                           .validation = event == SHOAL_AT_VALIDATION
                                                             ? &result->validation
                                                             : NULL};
    callbacks->progress(callbacks->user, &progress);
}

/* ---- Where to begin ---------------------------------------------------------------- */

/* A training that is there is neither overwritten nor continued without being asked. */
static shoal_status check_folder(running *at) {
    if (at->options->resume || (!exists(at->checkpoint) && !exists(at->log.path)))
        return SHOAL_OK;
    return blame(at, SHOAL_CAUSE_SETTINGS,
                 sh_fail(at->context, SHOAL_INVALID,
                         "%s already holds a training; add --resume to go on with it, or "
                         "choose another folder",
                         at->options->folder));
}

/* The checkpoint's configuration, with what is said again: it must be the same but for
   the number of steps, which the trainer looks at. */
static shoal_status take_config(running *at) {
    const shoal_run_options *options = at->options;
    char name[SHOAL_TEXT_SIZE];
    shoal_status status = shoal_run_task(at->context, at->checkpoint, name);
    if (status == SHOAL_OK && strcmp(name, at->task->name) != 0 && shoal_task_find(name))
        return blame(at, SHOAL_CAUSE_SETTINGS,
                     sh_fail(at->context, SHOAL_INVALID, "task is %s, not %s", name,
                             at->task->name));
    if (status == SHOAL_OK)
        status = shoal_run_config(at->context, at->task, at->checkpoint, at->config);
    if (status != SHOAL_OK)
        return blame(at, SHOAL_CAUSE_INPUT, status);
    for (int64_t i = 0; i < options->setting_count && status == SHOAL_OK; i++)
        status = shoal_config_set(at->context, at->task, at->config,
                                  options->settings[i].name, options->settings[i].value);
    return blame(at, SHOAL_CAUSE_SETTINGS, status);
}

static shoal_status begin_training(running *at) {
    const shoal_run_options *options = at->options;
    const bool there = options->resume && exists(at->checkpoint);
    if (there)
        TRY(take_config(at));
    shoal_status status = sh_trainer_create(at->context, at->task, at->config,
                                            &options->callbacks, at->transport,
                                            there ? options->folder : NULL, &at->trainer);
    if (status != SHOAL_OK)
        return blame(at,
                     status == SHOAL_BAD_FILE ? SHOAL_CAUSE_INPUT
                     : status == SHOAL_IO     ? SHOAL_CAUSE_OUTPUT /* the features' */
                                              : SHOAL_CAUSE_SETTINGS,
                     status);
    status = there ? shoal_trainer_resume(at->trainer, at->checkpoint)
                   : shoal_trainer_start(at->trainer, options->from);
    if (status == SHOAL_OK) {
        status = sh_trainer_compare(at->trainer);
        at->result->agreed = at->transport && status == SHOAL_BAD_FILE;
    }
    if (status != SHOAL_OK)
        return blame(at, SHOAL_CAUSE_INPUT, status);
    const size_t size = at->config->size, own = at->task->config_size;
    memcpy(at->config, at->trainer->config, size < own ? size : own); /* completed */
    at->config->size = size;
    if (!there && writes(at) && at->task->prepare)
        status = at->task->prepare(at->trainer->data, options->folder);
    return blame(at, status == SHOAL_IO ? SHOAL_CAUSE_OUTPUT : SHOAL_CAUSE_INPUT, status);
}

/* ---- The loop ---------------------------------------------------------------------- */

/* The weights of the best validation so far, if that was the last. */
static shoal_status save_best(running *at) {
    shoal_trainer *self = at->trainer;
    if (!writes(at) || !(self->task->flags & SHOAL_TASK_BEST) ||
        self->state.best_step != self->state.step)
        return SHOAL_OK;
    shoal_status status = shoal_trainer_save(self, at->best);
    if (status == SHOAL_OK && self->task->publish) {
        shoal_optimizer_use_average(self->optimizer, 1);
        status = self->task->publish(self->data, self->model, at->options->folder);
        shoal_optimizer_use_average(self->optimizer, 0);
    }
    return blame(at, SHOAL_CAUSE_OUTPUT, status);
}

static shoal_status save(running *at) {
    if (!writes(at))
        return SHOAL_OK;
    if (!log_sync(&at->log)) /* the log reaches as far as the checkpoint, always */
        return blame(at, SHOAL_CAUSE_OUTPUT, sh_log_fail(&at->log, at->context));
    report(at, SHOAL_AT_SAVING);
    const shoal_status status = shoal_trainer_save(at->trainer, at->checkpoint);
    report(at, SHOAL_AT_SAVED);
    at->saved_at = sh_seconds();
    return blame(at, SHOAL_CAUSE_OUTPUT, status);
}

/* One step or one validation, and its line in the log. */
static shoal_status advance(running *at) {
    shoal_run_result *result = at->result;
    const bool validate = shoal_trainer_must_validate(at->trainer);
    const shoal_status status =
        validate ? shoal_trainer_validate(at->trainer, &result->validation)
                 : shoal_trainer_step(at->trainer, &result->last_step);
    if (status != SHOAL_OK)
        return blame(at, SHOAL_CAUSE_INPUT, status);
    const shoal_train_state *state = &at->trainer->state;
    const bool logged = !writes(at) ||
                        (validate ? log_validation(&at->log, state, &result->validation)
                                  : log_step(&at->log, state, &result->last_step));
    result->validated |= validate;
    result->stepped |= !validate;
    if (!validate) {
        at->sequences += result->last_step.sequences;
        at->step_seconds += result->last_step.seconds;
        at->loss_seconds += result->last_step.loss_seconds;
    }
    if (!logged)
        return blame(at, SHOAL_CAUSE_OUTPUT, sh_log_fail(&at->log, at->context));
    report(at, validate ? SHOAL_AT_VALIDATION : SHOAL_AT_STEP);
    return validate ? save_best(at) : SHOAL_OK;
}

static bool time_is_up(const running *at) {
    const double most = at->options->stop_seconds;
    return most > 0 && at->trainer->state.seconds >= most;
}

/* Several processes end after the same step: what one of them wants is known to all when
   a step is done. */
static bool must_stop(running *at) {
    const bool wanted = (writes(at) && time_is_up(at)) ||
                        sh_cancelled(&at->options->callbacks);
    at->trainer->wants_stop = wanted;
    return at->transport ? at->trainer->stopped : wanted;
}

static shoal_status loop(running *at) {
    shoal_run_result *result = at->result;
    shoal_trainer *self = at->trainer;
    shoal_status status = SHOAL_OK;
    bool stop = false;
    at->begun = at->saved_at = sh_seconds();
    at->first_step = self->state.step;
    report(at, SHOAL_AT_BEGINNING);
    while (status == SHOAL_OK && !shoal_trainer_finished(self) &&
           !(stop = must_stop(at))) {
        status = advance(at);
        result->saved = 0;
        if (status == SHOAL_OK && (!at->transport || sh_trainer_may_save(self)) &&
            sh_seconds() - at->saved_at >= at->options->save_seconds) {
            status = save(at);
            result->saved = status == SHOAL_OK;
        }
    }
    result->state = self->state;
    result->finished = shoal_trainer_finished(self);
    result->timed = !result->finished && time_is_up(at);
    result->sequences_per_second = self->state.step > at->first_step
                                       ? (double)at->sequences /
                                             (sh_seconds() - at->begun)
                                       : (double)NAN;
    result->loss_share = at->loss_seconds > 0 ? at->loss_seconds / at->step_seconds
                                              : (double)NAN;
    if (status == SHOAL_OK && !result->saved) {
        status = save(at);
        result->saved = status == SHOAL_OK;
    }
    report(at, SHOAL_AT_END);
    return status == SHOAL_OK && stop && !result->timed
               ? sh_fail(at->context, SHOAL_CANCELLED, "cancelled after step %" PRId64,
                         self->state.step)
               : status;
}

/* The test's batches are the same for every kind and every run of a seed. */
static shoal_status test(running *at) {
    shoal_run_result *result = at->result;
    if (at->options->test_batches == 0 || !result->finished ||
        !(at->task->flags & SHOAL_TASK_ENDLESS))
        return SHOAL_OK;
    report(at, SHOAL_AT_TEST);
    const shoal_status status = shoal_trainer_evaluate(at->trainer, NULL, SHOAL_PART_TEST,
                                                       at->options->test_batches,
                                                       &result->test);
    report(at, SHOAL_AT_END);
    result->tested = status == SHOAL_OK;
    return blame(at, SHOAL_CAUSE_INPUT, status);
}

/* The log, and a checkpoint from before the first step. */
static shoal_status begin_files(running *at) {
    if (!writes(at))
        return SHOAL_OK;
    shoal_status status = sh_log_open(&at->log, at->checkpoint, at->trainer);
    blame(at, status == SHOAL_IO ? SHOAL_CAUSE_OUTPUT : SHOAL_CAUSE_INPUT, status);
    if (status == SHOAL_OK && !exists(at->checkpoint)) {
        status = save(at);
        if (status != SHOAL_OK)
            unlink(at->log.path); /* alone it would pass for a training */
    }
    return status;
}

static shoal_status run_locked(running *at) {
    const char *folder = at->options->folder;
    TRY(blame(at, SHOAL_CAUSE_SETTINGS,
              sh_path(at->context, at->checkpoint, folder, SHOAL_RUN_CHECKPOINT)));
    sh_path(at->context, at->best, folder, SHOAL_RUN_BEST); /* shorter names */
    sh_path(at->context, at->log.path, folder, SHOAL_RUN_LOG);
    TRY(follow(at, writes(at) ? check_folder(at) : SHOAL_OK));
    TRY(begin_training(at));
    TRY(follow(at, begin_files(at)));
    TRY(loop(at));
    return test(at);
}

/* *lock: what keeps others out of the folder. Without locks (some network folders have
   none) nobody is kept out. */
static shoal_status take_folder(running *at, int *lock) {
    const char *path = at->options->folder;
    const shoal_status status = sh_make_folder(at->context, path);
    if (status != SHOAL_OK)
        return blame(at, status == SHOAL_IO ? SHOAL_CAUSE_OUTPUT : SHOAL_CAUSE_SETTINGS,
                     status);
    *lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0)
        return blame(at, SHOAL_CAUSE_OUTPUT,
                     sh_fail(at->context, SHOAL_IO, "%s cannot be opened: %s", path,
                             strerror(errno)));
    if (flock(*lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        at->result->busy = 1;
        return blame(at, SHOAL_CAUSE_OUTPUT,
                     sh_fail(at->context, SHOAL_IO, "another process is training in %s",
                             path));
    }
    sh_remove_leftovers(path);
    return SHOAL_OK;
}

shoal_status shoal_run_options_defaults(shoal_run_options *options, size_t size) {
    const shoal_run_options own = {.size = size < sizeof own ? size : sizeof own,
                                   .save_seconds = 60,
                                   .test_batches = 20};
    memset(options, 0, size);
    memcpy(options, &own, own.size);
    return SHOAL_OK;
}

shoal_status shoal_train_run(shoal_context *context, const shoal_train_task *task,
                             void *config, const shoal_run_options *given,
                             shoal_run_result *result) {
    shoal_run_options options = shoal_run_defaults();
    shoal_run_result own;
    running *at = calloc(1, sizeof *at);
    if (!result)
        result = &own;
    *result = (shoal_run_result){.sequences_per_second = NAN, .loss_share = NAN};
    if (!at) {
        result->cause = SHOAL_CAUSE_OUTPUT;
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    }
    const bool there = context && task && config && given && given->folder;
    if (there)
        memcpy(&options, given,
               given->size < sizeof options ? given->size : sizeof options);
    *at = (running){.context = context,
                    .task = task,
                    .config = config,
                    .options = &options,
                    .transport = options.transport,
                    .result = result};
    int lock = -1;
    shoal_status status =
        there ? SHOAL_OK
              : blame(at, SHOAL_CAUSE_SETTINGS,
                      sh_fail(context, SHOAL_INVALID,
                              "task, config, options or the folder is NULL"));
    const bool was_there = there && exists(options.folder);
    if (status == SHOAL_OK)
        status = follow(at, writes(at) ? take_folder(at, &lock) : SHOAL_OK);
    if (status == SHOAL_OK) {
        status = run_locked(at);
        sh_log_close(&at->log);
        shoal_trainer_destroy(at->trainer);
    }
    if (status != SHOAL_OK && !was_there && lock >= 0)
        rmdir(options.folder); /* succeeds only where nothing was put into it */
    if (lock >= 0)
        close(lock);
    free(at);
    return status;
}
