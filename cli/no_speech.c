/* Replaces the commands that need libshoal-speech if it is not built. */
#include "command.h"

#define WITHOUT                                                                          \
    "this program was built without speech; install its libraries (tools/install-deps "  \
    "speech) and build again"

static const option_row rows[] = {HELP_ROW, {0}};

const command_help transcribe_help = {"transcribe", "transcribe", WITHOUT "\n",
                                      rows,         NULL,         NULL};
const command_help wer_help = {"wer", "wer", WITHOUT "\n", rows, NULL, NULL};
const command_help recognise_help = {"recognise", "recognise", WITHOUT "\n",
                                     rows,        NULL,        NULL};

int transcribe_command(int count, char **arguments) {
    (void)count;
    return complain(EXIT_USAGE, arguments[0], WITHOUT);
}

int wer_command(int count, char **arguments) {
    (void)count;
    return complain(EXIT_USAGE, arguments[0], WITHOUT);
}

int recognise_command(int count, char **arguments) {
    (void)count;
    return complain(EXIT_USAGE, arguments[0], WITHOUT);
}

bool words_wanted(const char *command, const words_options *options, int *code) {
    *code = options->lexicon || options->lm ? complain(EXIT_USAGE, command, WITHOUT)
                                            : EXIT_OK;
    return false;
}

bool words_take(const char *command, const words_options *options,
                shoal_recogniser_options *taken) {
    (void)command;
    (void)options;
    *taken = (shoal_recogniser_options){.size = sizeof *taken};
    return true;
}
