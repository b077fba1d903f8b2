/* Words of what a recogniser hears, on the command line. */
#ifndef SHOAL_CLI_SPEECH_WORDS_H
#define SHOAL_CLI_SPEECH_WORDS_H

#include <shoal_speech.h>

#include "command.h"

/* What the command line says; numbers as it spells them, NULL: by default. */
typedef struct {
    const char *lexicon, *lm;
    const char *beam, *lm_weight, *insertion, *unknown;
    int64_t tokens; /* 0: by default */
} words_options;

/* Rows of a command whose job has words_options as `member`. */
#define WORDS_ROWS(job, member, who)                                                     \
    {"lexicon", 0, "FILE",                                                               \
     who "words: their phones, as Kaldi or CMUdict keep them; several files\n"           \
         "with commas between",                                                          \
     SETS_TEXT(job, member.lexicon)},                                                    \
        {"lm", 0, "FILE",                                                                \
         who "words: a language model, ARPA, ARPA in .gz, or the binary\n"               \
             "trigrams of CMU Sphinx (Debian's pocketsphinx-en-us has both files)",      \
         SETS_TEXT(job, member.lm)},                                                     \
        {"lm-weight", 0, "X",                                                            \
         who "words: of the language model (default: 1, of CTC 0.6)",                    \
         SETS_TEXT(job, member.lm_weight)},                                              \
        {"insertion", 0, "X", who "words: added for each (default: -1, of CTC 0)",       \
         SETS_TEXT(job, member.insertion)},                                              \
        {"unknown", 0, "P",                                                              \
         who "words: probability of those that the language model lacks\n"               \
             "(default: 0, they are left out)",                                          \
         SETS_TEXT(job, member.unknown)},                                                \
        {"beam", 0, "X",                                                                 \
         who "words: how far behind the best paths may be (default: 12)",                \
         SETS_TEXT(job, member.beam)},                                                   \
    {                                                                                    \
        "tokens", 0, "N", who "words: paths of a step at most (default: 3000)",          \
            SETS_INTEGER(job, member.tokens, 1, 100000000)                               \
    }

/* Whether words are wanted; options that make sense only then are a mistake otherwise
   (an exit code in *code). */
bool words_wanted(const char *command, const words_options *options, int *code);

/* A recogniser's options, by default but for these; false after a complaint
   (EXIT_USAGE). */
bool words_take(const char *command, const words_options *options,
                shoal_recogniser_options *taken);

#endif
