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
#include "base/memory.h"
#include "models/files/files.h"
#include "train/train.h"

/* ---- The folder -------------------------------------------------------------------- */

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

/* ---- The log ----------------------------------------------------------------------- */

/* One JSON object per line: {"config": ...} first, then a line per step and per
   validation. A log that starts after step 0 has "after_step" in its first line. */
typedef struct {
    FILE *file;
    char path[SH_PATH];
} train_log;

const char *sh_real_text(char text[32], double value, bool is_float) {
    if (!isfinite(value))
        return "null";
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (is_float ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value)
            break;
    }
    return text;
}

/* Members that only some lines have: utterances that could not be aligned or gave a
   NaN; the metric of a text task. */
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
                 sh_real_text(value, score->second_value, false));
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
               state->step, sh_real_text(loss, step->score.loss, false),
               sh_real_text(accuracy, step->score.accuracy, false),
               sh_real_text(norm, step->gradient_norm, false),
               sh_real_text(rate, step->learning_rate, true),
               more_text(more, &step->score), share, state->seconds) > 0 &&
           fflush(log->file) == 0;
}

static bool log_validation(train_log *log, const shoal_train_state *state,
                           const shoal_train_score *score) {
    char loss[32], accuracy[32], more[MORE];
    return fprintf(log->file,
                   "{\"step\": %" PRId64 ", \"validation_loss\": %s, "
                   "\"validation_accuracy\": %s, \"correct\": %" PRId64
                   ", \"counted\": %" PRId64 ", %s\"seconds\": %.3f}\n",
                   state->step, sh_real_text(loss, score->loss, false),
                   sh_real_text(accuracy, score->accuracy, false), score->correct,
                   score->counted, more_text(more, score), state->seconds) > 0 &&
           fflush(log->file) == 0;
}

/* The part of a log that is kept when the trainer resumes from its checkpoint: all
   lines up to the checkpoint's step, which were on disk before it. Later lines are
   removed, and may be damaged. A missing, duplicate or unreadable line before that
   means that the log was changed by something else, and nothing is removed. */
typedef struct {
    const shoal_trainer *at;
    off_t bytes;        /* length of the kept lines */
    int64_t step;       /* of the last line */
    bool validated;     /* there is a line for the validation of this step */
    bool must_validate; /* and one is needed before the next step */
    bool later;         /* lines to be removed have begun */
    int64_t number;     /* of the current line, from 1 */
    char wrong[96];     /* what is wrong with it, or "" */
    bool lost;          /* there was no memory to read it */
} kept_lines;

static bool is_later(const kept_lines *kept, int64_t step, bool of_validation) {
    const int64_t done = kept->at->state.step;
    return step > done ||
           (step == done && of_validation && shoal_trainer_must_validate(kept->at));
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
                 "is of step %" PRId64
                 ": lines before it are missing, or it is a duplicate",
                 step);
    else if (!of_validation && kept->must_validate)
        snprintf(kept->wrong, sizeof kept->wrong,
                 "comes without the validation of step %" PRId64, kept->step);
    kept->step = step;
    kept->validated = of_validation;
    kept->must_validate = !of_validation && step % kept->at->config->validate_every == 0;
}

static void take_log_line(kept_lines *kept, const char *text, size_t size) {
    json_t *line = text[size - 1] == '\n' ? json_loadb(text, size, 0, NULL) : NULL;
    const json_t *step = json_object_get(line, "step");
    const bool of_validation = json_object_get(line, "validation_loss") != NULL;
    if (kept->later) { /* everything after this is removed, unless it contradicts */
        if (step && !is_later(kept, json_integer_value(step), of_validation))
            snprintf(kept->wrong, sizeof kept->wrong,
                     "is of step %" PRId64 " but comes after later steps",
                     (int64_t)json_integer_value(step));
    } else if (json_object_get(line, "config")) {
        if (kept->number > 1)
            snprintf(kept->wrong, sizeof kept->wrong, "begins another log");
        kept->step = json_integer_value(json_object_get(line, "after_step"));
    } else if (json_is_integer(step))
        take_step_line(kept, json_integer_value(step), of_validation);
    else if (kept->step == kept->at->state.step)
        kept->later = true; /* incomplete line */
    else
        snprintf(kept->wrong, sizeof kept->wrong, "is damaged");
    json_decref(line);
}

static kept_lines read_kept(shoal_context *context, FILE *file, const shoal_trainer *at) {
    char *line = NULL;
    size_t capacity = 0;
    kept_lines kept = {.at = at};
    int64_t size = 0;
    rewind(file);
    while (!kept.wrong[0] && (size = sh_read_line(context, file, &line, &capacity)) > 0) {
        kept.number++;
        take_log_line(&kept, line, (size_t)size);
        kept.bytes += kept.later ? 0 : size;
    }
    sh_free(line);
    kept.lost = size < 0;
    /* An empty log is not damaged: the user has created a new one. */
    const bool short_of = kept.step < at->state.step ||
                          (kept.must_validate && !shoal_trainer_must_validate(at));
    if (!kept.wrong[0] && kept.number > 0 && short_of) {
        kept.number++;
        snprintf(kept.wrong, sizeof kept.wrong, "is missing");
    }
    return kept;
}

/* Whether a log has more than its first line, or part of that. A checkpoint is saved
   before the first step, so every such log has one. */
static shoal_status has_steps(shoal_context *context, FILE *file, bool *steps) {
    static const char beginning[] = "{\"shoal\"";
    char *line = NULL;
    size_t capacity = 0;
    rewind(file);
    int64_t size = sh_read_line(context, file, &line, &capacity);
    const size_t compared = size > 0 ? (size_t)size : 0;
    const bool own =
        strncmp(line ? line : "", beginning,
                compared < strlen(beginning) ? compared : strlen(beginning)) == 0;
    if (own && compared > 0)
        size = sh_read_line(context, file, &line, &capacity);
    *steps = size > 0;
    sh_free(line);
    return size < 0 ? SHOAL_NO_MEMORY : SHOAL_OK;
}

static shoal_status log_fail(const train_log *log, shoal_context *context) {
    return sh_fail(context, SHOAL_IO, "%s cannot be written: %s", log->path,
                   strerror(errno));
}

static void log_close(train_log *log) {
    if (log->file)
        fclose(log->file);
    log->file = NULL;
}

/* Checks that the log matches the existing checkpoint, or that there is neither; *kept
   is the number of bytes to keep. */
static shoal_status check_log(const train_log *log, const char *checkpoint,
                              const shoal_trainer *at, off_t *kept) {
    bool steps = false;
    *kept = 0;
    if (!exists(checkpoint))
        TRY(has_steps(at->context, log->file, &steps));
    if (steps)
        return sh_fail(at->context, SHOAL_BAD_FILE,
                       "%s exists, but its checkpoint %s is missing; restore the "
                       "checkpoint, or move the log away to start again",
                       log->path, checkpoint);
    if (at->state.step == 0)
        return SHOAL_OK;
    const kept_lines found = read_kept(at->context, log->file, at);
    if (found.lost)
        return SHOAL_NO_MEMORY;
    *kept = found.bytes;
    if (!found.wrong[0])
        return SHOAL_OK;
    return sh_fail(at->context, SHOAL_BAD_FILE,
                   "%s: line %" PRId64 " %s, but the checkpoint is at step %" PRId64
                   "; repair the log, or move it away to begin a new one",
                   log->path, found.number, found.wrong, at->state.step);
}

/* Opens the log for appending, after removing lines beyond the trainer's step. Returns
   SHOAL_BAD_FILE if the log does not match the checkpoint, SHOAL_IO if it cannot be
   written. A new log begins with the configuration. The file is opened in append mode,
   so writes ignore the read position. */
static shoal_status log_open(train_log *log, const char *checkpoint,
                             const shoal_trainer *at) {
    char config[8192], after[48] = "";
    off_t kept;
    log->file = fopen(log->path, "a+");
    if (!log->file)
        return log_fail(log, at->context);
    if (at->state.step > 0)
        snprintf(after, sizeof after, ", \"after_step\": %" PRId64, at->state.step);
    shoal_config_json(at->task, at->config, config, sizeof config);
    shoal_status status = check_log(log, checkpoint, at, &kept);
    if (status == SHOAL_OK &&
        (ftruncate(fileno(log->file), kept) != 0 || fseeko(log->file, 0, SEEK_END) != 0 ||
         (kept == 0 && fprintf(log->file, "{\"shoal\": \"%s\", \"config\": %s%s}\n",
                               shoal_version(), config, after) < 0) ||
         fflush(log->file) != 0)) {
        status = log_fail(log, at->context);
        if (kept == 0)
            unlink(log->path); /* an empty log would look like a training */
    }
    if (status != SHOAL_OK)
        log_close(log);
    return status;
}

/* ---- A run in progress ------------------------------------------------------------ */

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

/* Only rank 0 writes files and log lines. */
static bool writes(const running *at) {
    return sh_is_first(at->transport);
}

static shoal_status blame(running *at, shoal_run_cause cause, shoal_status status) {
    if (status != SHOAL_OK)
        at->result->cause = status == SHOAL_NO_MEMORY ? SHOAL_RUN_CAUSE_OUTPUT : cause;
    return status;
}

/* Distributes the status of work that only rank 0 does. */
static shoal_status follow(running *at, shoal_status status) {
    int32_t both[2] = {(int32_t)status, (int32_t)at->result->cause};
    if (sh_tell_others(at->context, at->transport, sizeof both, both) != SHOAL_OK)
        return blame(at, SHOAL_RUN_CAUSE_OUTPUT, SHOAL_IO);
    at->result->cause = (shoal_run_cause)both[1];
    at->result->agreed = at->transport && both[0] != SHOAL_OK;
    return (shoal_status)both[0];
}

static void report(const running *at, shoal_train_event event) {
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
                                           .validation =
                                               event == SHOAL_TRAIN_EVENT_VALIDATION
                                                   ? &result->validation
                                                   : NULL};
    callbacks->progress(callbacks->user, &progress);
}

/* ---- Configuration ---------------------------------------------------------------- */

/* Takes the checkpoint's configuration. Fields that are given again must be equal,
   except for the number of steps, which the trainer checks. */
static shoal_status take_config(running *at) {
    const shoal_run_options *options = at->options;
    char name[SHOAL_TEXT_SIZE];
    TRY(blame(at, SHOAL_RUN_CAUSE_INPUT,
              shoal_run_task(at->context, at->checkpoint, name)));
    if (strcmp(name, at->task->name) != 0 && shoal_task_find(name))
        return blame(at, SHOAL_RUN_CAUSE_SETTINGS,
                     sh_fail(at->context, SHOAL_INVALID, "task is %s, not %s", name,
                             at->task->name));
    TRY(blame(at, SHOAL_RUN_CAUSE_INPUT,
              shoal_run_config(at->context, at->task, at->checkpoint, at->config)));
    for (int64_t i = 0; i < options->setting_count; i++)
        TRY(blame(at, SHOAL_RUN_CAUSE_SETTINGS,
                  shoal_config_set(at->context, at->task, at->config,
                                   options->settings[i].name,
                                   options->settings[i].value)));
    return SHOAL_OK;
}

static shoal_status begin_training(running *at) {
    const shoal_run_options *options = at->options;
    const bool there = options->resume && exists(at->checkpoint);
    if (there)
        TRY(take_config(at));
    shoal_status status = sh_trainer_create(at->context, at->task, at->config,
                                            &options->callbacks, at->transport,
                                            there ? options->folder : NULL, &at->trainer);
    TRY(blame(at,
              status == SHOAL_BAD_FILE ? SHOAL_RUN_CAUSE_INPUT
              : status == SHOAL_IO     ? SHOAL_RUN_CAUSE_OUTPUT /* of the features */
                                       : SHOAL_RUN_CAUSE_SETTINGS,
              status));
    status = there ? shoal_trainer_resume(at->trainer, at->checkpoint)
                   : shoal_trainer_start(at->trainer, options->from);
    if (status == SHOAL_OK) {
        status = sh_trainer_compare(at->trainer);
        at->result->agreed = at->transport && status == SHOAL_BAD_FILE;
    }
    TRY(blame(at, SHOAL_RUN_CAUSE_INPUT, status));
    const size_t size = at->config->size, own = at->task->config_size;
    memcpy(at->config, at->trainer->config, size < own ? size : own); /* with the task's
                                                                         additions */
    at->config->size = size;
    if (!there && writes(at) && at->task->prepare)
        status = at->task->prepare(at->trainer->data, options->folder);
    return blame(at, status == SHOAL_IO ? SHOAL_RUN_CAUSE_OUTPUT : SHOAL_RUN_CAUSE_INPUT,
                 status);
}

/* ---- The loop ---------------------------------------------------------------------- */

static shoal_status save(running *at) {
    if (!writes(at))
        return SHOAL_OK;
    /* The log is on disk before the checkpoint, if the file system supports it. */
    if (fflush(at->log.file) != 0 ||
        (fsync(fileno(at->log.file)) != 0 && errno != EINVAL && errno != EROFS))
        return blame(at, SHOAL_RUN_CAUSE_OUTPUT, log_fail(&at->log, at->context));
    report(at, SHOAL_TRAIN_EVENT_SAVING);
    const shoal_status status = shoal_trainer_save(at->trainer, at->checkpoint);
    report(at, SHOAL_TRAIN_EVENT_SAVED);
    at->saved_at = sh_seconds();
    return blame(at, SHOAL_RUN_CAUSE_OUTPUT, status);
}

/* One step or one validation, and its line in the log. */
static shoal_status advance(running *at) {
    shoal_run_result *result = at->result;
    const bool validate = shoal_trainer_must_validate(at->trainer);
    TRY(blame(at, SHOAL_RUN_CAUSE_INPUT,
              validate ? shoal_trainer_validate(at->trainer, &result->validation)
                       : shoal_trainer_step(at->trainer, &result->last_step)));
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
        return blame(at, SHOAL_RUN_CAUSE_OUTPUT, log_fail(&at->log, at->context));
    report(at, validate ? SHOAL_TRAIN_EVENT_VALIDATION : SHOAL_TRAIN_EVENT_STEP);
    shoal_trainer *self = at->trainer;
    if (!validate || !writes(at) || !(self->task->flags & SHOAL_TASK_BEST) ||
        self->state.best_step != self->state.step)
        return SHOAL_OK;
    shoal_status status = shoal_trainer_save(self, at->best); /* best weights so far */
    if (status == SHOAL_OK && self->task->publish) {
        shoal_optimizer_use_average(self->optimizer, 1);
        status = self->task->publish(self->data, self->model, at->options->folder);
        shoal_optimizer_use_average(self->optimizer, 0);
    }
    return blame(at, SHOAL_RUN_CAUSE_OUTPUT, status);
}

static bool time_is_up(const running *at) {
    const double most = at->options->stop_seconds;
    return most > 0 && at->trainer->state.seconds >= most;
}

/* All processes stop after the same step, because a request of one is known to all when
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
    report(at, SHOAL_TRAIN_EVENT_BEGINNING);
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
    report(at, SHOAL_TRAIN_EVENT_END);
    return status == SHOAL_OK && stop && !result->timed
               ? sh_fail(at->context, SHOAL_CANCELLED, "cancelled after step %" PRId64,
                         self->state.step)
               : status;
}

/* The test batches are the same for every kind and every run of a seed. */
static shoal_status test(running *at) {
    shoal_run_result *result = at->result;
    if (at->options->test_batches == 0 || !result->finished ||
        !(at->task->flags & SHOAL_TASK_ENDLESS))
        return SHOAL_OK;
    report(at, SHOAL_TRAIN_EVENT_TEST);
    const shoal_status status = shoal_trainer_evaluate(at->trainer, NULL, SHOAL_PART_TEST,
                                                       at->options->test_batches,
                                                       &result->test);
    report(at, SHOAL_TRAIN_EVENT_END);
    result->tested = status == SHOAL_OK;
    return blame(at, SHOAL_RUN_CAUSE_INPUT, status);
}

/* Creates the log, and a checkpoint before the first step. */
static shoal_status begin_files(running *at) {
    if (!writes(at))
        return SHOAL_OK;
    shoal_status status = log_open(&at->log, at->checkpoint, at->trainer);
    blame(at, status == SHOAL_IO ? SHOAL_RUN_CAUSE_OUTPUT : SHOAL_RUN_CAUSE_INPUT,
          status);
    if (status == SHOAL_OK && !exists(at->checkpoint)) {
        status = save(at);
        if (status != SHOAL_OK)
            unlink(at->log.path); /* alone it would look like a training */
    }
    return status;
}

static shoal_status run_locked(running *at) {
    const char *folder = at->options->folder;
    TRY(blame(at, SHOAL_RUN_CAUSE_SETTINGS,
              sh_path(at->context, at->checkpoint, folder, SHOAL_RUN_CHECKPOINT)));
    sh_path(at->context, at->best, folder, SHOAL_RUN_BEST); /* a shorter name, so it
                                                               cannot fail */
    sh_path(at->context, at->log.path, folder, SHOAL_RUN_LOG);
    /* An existing training is not overwritten, and continued only on request. */
    const bool there = writes(at) && !at->options->resume &&
                       (exists(at->checkpoint) || exists(at->log.path));
    TRY(follow(at, !there ? SHOAL_OK
                          : blame(at, SHOAL_RUN_CAUSE_SETTINGS,
                                  sh_fail(at->context, SHOAL_INVALID,
                                          "%s already contains a training; add --resume "
                                          "to continue it, or choose another folder",
                                          folder))));
    TRY(begin_training(at));
    TRY(follow(at, begin_files(at)));
    TRY(loop(at));
    return test(at);
}

/* Locks the folder. Some network file systems have no locks; then there is no
   protection. */
static shoal_status take_folder(running *at, int *lock) {
    const char *path = at->options->folder;
    const shoal_status status = sh_make_folder(at->context, path);
    TRY(blame(at, status == SHOAL_IO ? SHOAL_RUN_CAUSE_OUTPUT : SHOAL_RUN_CAUSE_SETTINGS,
              status));
    *lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0)
        return blame(at, SHOAL_RUN_CAUSE_OUTPUT,
                     sh_fail(at->context, SHOAL_IO, "%s cannot be opened: %s", path,
                             strerror(errno)));
    if (flock(*lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(*lock); /* the folder belongs to the other process */
        *lock = -1;
        at->result->busy = 1;
        return blame(at, SHOAL_RUN_CAUSE_OUTPUT,
                     sh_fail(at->context, SHOAL_IO, "another process is training in %s",
                             path));
    }
    sh_remove_leftovers(path);
    return SHOAL_OK;
}

void shoal_run_options_init(shoal_run_options *options, size_t size) {
    const shoal_run_options known = {.size = sizeof known,
                                     .save_seconds = 60,
                                     .test_batches = 20};
    sh_write_struct(options, size, &known, sizeof known);
}

shoal_status shoal_train_run(shoal_context *context, const shoal_train_task *task,
                             void *config, const shoal_run_options *given,
                             shoal_run_result *result) {
    shoal_run_options options = shoal_run_options_defaults();
    shoal_run_result own;
    int lock = -1;
    if (!result)
        result = &own;
    *result = (shoal_run_result){.sequences_per_second = NAN,
                                 .loss_share = NAN,
                                 .cause = SHOAL_RUN_CAUSE_SETTINGS};
    if (!context || !task || !config || !given || !given->folder)
        return sh_fail(context, SHOAL_INVALID,
                       "task, config, options or the folder is NULL");
    TRY(READ_STRUCT(context, shoal_run_options, given, &options));
    running *at = sh_allocate(context, sizeof *at);
    result->cause = at ? SHOAL_RUN_CAUSE_NONE : SHOAL_RUN_CAUSE_OUTPUT;
    if (!at)
        return SHOAL_NO_MEMORY;
    *at = (running){.context = context,
                    .task = task,
                    .config = config,
                    .options = &options,
                    .transport = options.transport,
                    .result = result};
    const bool was_there = exists(options.folder);
    shoal_status status = follow(at, writes(at) ? take_folder(at, &lock) : SHOAL_OK);
    if (status == SHOAL_OK) {
        status = run_locked(at);
        log_close(&at->log);
        shoal_trainer_destroy(at->trainer);
    }
    if (status != SHOAL_OK && !was_there && lock >= 0)
        rmdir(options.folder); /* succeeds only if the folder is empty */
    if (lock >= 0)
        close(lock);
    sh_release(context, at);
    return status;
}
