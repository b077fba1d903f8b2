/* The log of a run when it is opened: one JSON object per line, {"config": ...} first,
   then a line per step and one per validation (run.c). A log that is begun late has
   "after_step" in its first line. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/train.h"

static bool log_config(train_log *log, const shoal_trainer *at) {
    char config[8192];
    shoal_config_json(at->task, at->config, config, sizeof config);
    fprintf(log->file, "{\"shoal\": \"%s\", \"config\": %s", shoal_version(), config);
    if (at->state.step > 0)
        fprintf(log->file, ", \"after_step\": %" PRId64, at->state.step);
    return fputs("}\n", log->file) != EOF && fflush(log->file) == 0;
}

/* What is kept of a log when the trainer goes on from its checkpoint: all lines up to the
   checkpoint's step, which were on disk before it. Later ones are cut off, and may be
   damaged. A hole before, a line twice or one that cannot be read: somebody else did
   that, and nothing is cut. */
typedef struct {
    const shoal_trainer *at;
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
                 "is of step %" PRId64 ": lines before it are missing, or it is there "
                 "twice",
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

static kept_lines read_kept(FILE *file, const shoal_trainer *at) {
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
                          (kept.must_validate && !shoal_trainer_must_validate(at));
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
static bool cut_log(train_log *log, off_t kept, const shoal_trainer *at) {
    return ftruncate(fileno(log->file), kept) == 0 &&
           fseeko(log->file, 0, SEEK_END) == 0 && (kept > 0 || log_config(log, at));
}

void sh_log_close(train_log *log) {
    if (log->file)
        fclose(log->file);
    log->file = NULL;
}

/* Whether the log goes with the checkpoint that is there, or with none; *kept bytes of it
   stay. */
static shoal_status check_log(const train_log *log, const char *checkpoint,
                              const shoal_trainer *at, off_t *kept) {
    *kept = 0;
    if (access(checkpoint, F_OK) != 0 && has_steps(log->file))
        return sh_fail(at->context, SHOAL_BAD_FILE,
                       "%s is there, but its checkpoint %s is missing; put that back, or "
                       "move the log away to begin again",
                       log->path, checkpoint);
    if (at->state.step == 0)
        return SHOAL_OK;
    const kept_lines found = read_kept(log->file, at);
    *kept = found.bytes;
    if (!found.wrong[0])
        return SHOAL_OK;
    return sh_fail(at->context, SHOAL_BAD_FILE,
                   "%s: line %" PRId64 " %s, and the checkpoint is of step %" PRId64
                   "; mend the log, or move it away to begin another one there",
                   log->path, found.number, found.wrong, at->state.step);
}

shoal_status sh_log_fail(const train_log *log, shoal_context *context) {
    return sh_fail(context, SHOAL_IO, "%s cannot be written: %s", log->path,
                   strerror(errno));
}

shoal_status sh_log_open(train_log *log, const char *checkpoint,
                         const shoal_trainer *at) {
    off_t kept;
    log->file = fopen(log->path, "a+");
    if (!log->file)
        return sh_log_fail(log, at->context);
    shoal_status status = check_log(log, checkpoint, at, &kept);
    if (status == SHOAL_OK && !cut_log(log, kept, at)) {
        status = sh_log_fail(log, at->context);
        if (kept == 0)
            unlink(log->path); /* an empty one would pass for a training */
    }
    if (status != SHOAL_OK)
        sh_log_close(log);
    return status;
}
