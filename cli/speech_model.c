#define _GNU_SOURCE
#include "speech_model.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "speech_lfmmi.h"

/* One unit per line. */
static bool split_units(speech_model *made, const char *note) {
    for (const char *c = note; *c; c++)
        made->unit_count += *c == '\n';
    made->text = strdup(note);
    made->units = calloc((size_t)made->unit_count + 1, sizeof *made->units);
    if (!made->text || !made->units)
        return false;
    char *at = made->text;
    for (int64_t i = 0; i < made->unit_count; i++) {
        char *unit = at;
        at += strcspn(at, "\n");
        *at++ = 0;
        made->units[i] = unit;
    }
    return true;
}

static int read_notes(const char *command, const shoal_checkpoint *file,
                      speech_model *made) {
    const char *units = shoal_checkpoint_note(file, speech_task.key);
    const char *step = shoal_checkpoint_note(file, "state.step");
    if (!units)
        return complain(EXIT_BAD_INPUT, command, "%s: is no recogniser: it has no %s",
                        made->path, speech_task.key);
    for (const char *c = units; *c; c++) /* units are printed */
        if (*c != '\n' && control_bytes(c))
            return complain(EXIT_BAD_INPUT, command,
                            "%s: its units have control characters", made->path);
    made->step = step ? strtoll(step, NULL, 10) : 0;
    return split_units(made, units) ? EXIT_OK
                                    : complain(EXIT_RESOURCES, command, "out of memory");
}

int speech_model_open(const char *command, shoal_context *context, const char *path,
                      speech_model *made) {
    shoal_checkpoint *file;
    train_reason reason;
    *made = (speech_model){0};
    if (!train_find_weights(command, path, made->path))
        return EXIT_USAGE;
    shoal_status status = train_read(context, made->path, &made->config, &reason);
    if (status != SHOAL_OK)
        return train_complain(status, EXIT_BAD_INPUT, command, &reason);
    if (strcmp(made->config.task, "speech") != 0)
        return complain(EXIT_BAD_INPUT, command,
                        "%s: is no recogniser, but a model of %s", made->path,
                        made->config.task);
    status = shoal_checkpoint_open(context, made->path, &file);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, command, context);
    const int code = read_notes(command, file, made);
    shoal_checkpoint_close(file);
    return code;
}

static shoal_status take_average(shoal_context *context, speech_model *made) {
    shoal_checkpoint *file;
    shoal_status status = shoal_checkpoint_open(context, made->path, &file);
    if (status == SHOAL_OK)
        status = train_load_weights(file, made->model);
    shoal_checkpoint_close(file);
    return status;
}

int speech_model_load(const char *command, shoal_context *context, int64_t max_batch,
                      int64_t max_rows, speech_model *made) {
    const bool averaged = made->config.optimizer.average > 0;
    shoal_status status = shoal_model_load(context, made->path, max_batch, max_rows,
                                           averaged ? SHOAL_WITH_BACKWARD : 0,
                                           &made->model);
    if (status == SHOAL_OK && averaged)
        status = take_average(context, made);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, command, context);
    if (shoal_model_settings(made->model)->outputs == speech_model_classes(made))
        return EXIT_OK;
    return complain(EXIT_BAD_INPUT, command, "%s: has other units than outputs",
                    made->path);
}

int64_t speech_model_classes(const speech_model *made) {
    if (made->config.speech.loss == SPEECH_CTC)
        return made->unit_count + 1;
    switch (SHOAL_TOPOLOGY_CHAIN + made->config.speech.topology) {
    case SHOAL_TOPOLOGY_ONE: return made->unit_count;
    case SHOAL_TOPOLOGY_BLANK: return made->unit_count + 1;
    default: return 2 * made->unit_count;
    }
}

/* Beside the model's file. */
int speech_model_graphs(const char *command, shoal_context *context,
                        const speech_model *made, const shoal_lexicon *lexicon,
                        shoal_lfmmi **lfmmi) {
    char path[TRAIN_PATH];
    const char *slash = strrchr(made->path, '/');
    const int folder = slash ? (int)(slash - made->path) : 1;
    const int length = snprintf(path, sizeof path, "%.*s/%s", folder,
                                slash ? made->path : ".", TRAIN_GRAPH);
    if (length < 0 || length >= (int)sizeof path)
        return complain(EXIT_USAGE, command, "%.80s...: the path is too long",
                        made->path);
    const shoal_status status = lfmmi_open(context, &made->config, lexicon, path, lfmmi);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, command, context);
    if (shoal_lfmmi_describe(*lfmmi).outputs == speech_model_classes(made))
        return EXIT_OK;
    return complain(EXIT_BAD_INPUT, command, "%s: is of another model than %s", path,
                    made->path);
}

void speech_model_close(speech_model *made) {
    shoal_model_destroy(made->model);
    free(made->text);
    free(made->units);
    *made = (speech_model){0};
}
