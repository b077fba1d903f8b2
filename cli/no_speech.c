/* In place of the commands that need libshoal-speech, where it is not built. */
#include "commands.h"
#include "common.h"

#define WITHOUT                                                                          \
    "this program was built without speech, which needs more libraries "                 \
    "(tools/install-deps speech)"

static const option_row rows[] = {HELP_ROW, {0}};

const command_help transcribe_help = {"transcribe", "transcribe", WITHOUT "\n",
                                      rows,         NULL,         NULL};
const command_help wer_help = {"wer", "wer", WITHOUT "\n", rows, NULL, NULL};

int transcribe_command(int count, char **arguments) {
    (void)count;
    return complain(EXIT_USAGE, arguments[0], WITHOUT);
}

int wer_command(int count, char **arguments) {
    (void)count;
    return complain(EXIT_USAGE, arguments[0], WITHOUT);
}
