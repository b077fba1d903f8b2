/* In place of the commands that need libshoal-speech, where it is not built. */
#include "commands.h"
#include "common.h"

static int say_so(const char *command) {
    return complain(EXIT_USAGE, command,
                    "this program was built without speech, which needs more libraries "
                    "(tools/install-deps speech)");
}

int transcribe_command(int count, char **arguments) {
    (void)count;
    return say_so(arguments[0]);
}

int wer_command(int count, char **arguments) {
    (void)count;
    return say_so(arguments[0]);
}
