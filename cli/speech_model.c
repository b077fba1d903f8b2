#include "speech_model.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"

int speech_model_open(const char *command, shoal_context *context, const char *path,
                      speech_model *made) {
    train_reason reason;
    *made = (speech_model){0};
    shoal_status status = shoal_recogniser_open(context, path, NULL, &made->recogniser);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, command, context);
    made->info = shoal_recogniser_describe(made->recogniser);
    made->path = made->info.path;
    made->step = made->info.step;
    made->unit_count = made->info.units;
    made->model = shoal_recogniser_parts_of(made->recogniser).model;
    made->units = calloc((size_t)made->unit_count + 1, sizeof *made->units);
    if (!made->units)
        return complain(EXIT_RESOURCES, command, "out of memory");
    for (int64_t i = 0; i < made->unit_count; i++)
        made->units[i] = shoal_recogniser_unit(made->recogniser, i);
    status = train_read(context, made->path, &made->config, &reason);
    return status == SHOAL_OK ? EXIT_OK
                              : train_complain(status, EXIT_BAD_INPUT, command, &reason);
}

int64_t speech_model_classes(const speech_model *made) {
    return made->info.outputs;
}

int speech_model_graphs(const char *command, shoal_context *context,
                        const speech_model *made, const shoal_lexicon *lexicon,
                        shoal_lfmmi **lfmmi) {
    const shoal_status status = shoal_recogniser_graphs(made->recogniser, lexicon, lfmmi);
    return status == SHOAL_OK ? EXIT_OK
                              : complain_status(status, EXIT_BAD_INPUT, command, context);
}

void speech_model_close(speech_model *made) {
    shoal_recogniser_destroy(made->recogniser);
    free(made->units);
    *made = (speech_model){0};
}
