#include "command.h"

/* ---- Options ----------------------------------------------------------------------- */

bool words_wanted(const char *command, const words_options *options, int *code) {
    const bool more = options->beam || options->lm_weight || options->insertion ||
                      options->unknown || options->tokens > 0;
    *code = EXIT_OK;
    if (options->lexicon && options->lm)
        return true;
    if (options->lexicon || options->lm || more)
        *code = complain(EXIT_USAGE, command,
                         "words need both --lexicon and --lm; Debian's package "
                         "pocketsphinx-en-us has both for English");
    return false;
}

/* Sets *value if the text is not NULL. */
static bool take_number(const char *command, const char *name, const char *text,
                        double min, double max, double *value) {
    return !text || parse_number(command, name, text, min, max, value);
}

bool words_take(const char *command, const words_options *options,
                shoal_recogniser_options *taken) {
    *taken = shoal_recogniser_options_defaults();
    taken->lexicon = options->lexicon;
    taken->lm = options->lm;
    if (options->tokens > 0)
        taken->words.tokens = options->tokens;
    return take_number(command, "beam", options->beam, 0.001, 1e6, &taken->words.beam) &&
           take_number(command, "lm-weight", options->lm_weight, 0, 1000,
                       &taken->words.lm_weight) &&
           take_number(command, "insertion", options->insertion, -1000, 1000,
                       &taken->words.insertion) &&
           take_number(command, "unknown", options->unknown, 0, 1, &taken->unknown);
}
