/* Words of what a recogniser hears: the lexicon and the language model that the user
   names, the search over a model's outputs, and the words that were said. */
#ifndef SHOAL_CLI_SPEECH_WORDS_H
#define SHOAL_CLI_SPEECH_WORDS_H

#include <shoal_speech.h>

#include "options.h"
#include "speech_data.h"
#include "speech_model.h"

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

/* Puts them into a recogniser's options; false after a complaint (EXIT_USAGE). */
bool words_take(const char *command, const words_options *options,
                shoal_recogniser_options *taken);

typedef struct {
    shoal_lexicon *lexicon;
    shoal_ngram *ngram;
    shoal_word_decoder *decoder;
    shoal_word_settings settings;
} words_search;

/* For the outputs of a model. An exit code, after a complaint. */
int words_open(const char *command, shoal_context *context, const words_options *options,
               const speech_model *model, words_search *search);
void words_close(words_search *search);

/* ---- What was said ----------------------------------------------------------------- */

typedef struct {
    const char *id, *rest;
} said_row;

/* The transcripts of a data folder, "ID WORD WORD ...", by utterance. */
typedef struct {
    char *text;     /* what the rows point into */
    said_row *rows; /* [count], by id */
    int64_t count;
} words_said;

int words_said_open(const char *command, const char *folder, const char *name,
                    words_said *said);
void words_said_close(words_said *said);
/* What an utterance says; NULL: the file does not have it. */
const char *words_said_find(const words_said *said, const char *id);

/* Adds the fewest edits between the words of the texts, one after another, and those of a
   result; the case of letters does not matter. */
shoal_status words_count_edits(shoal_context *context, const char *const *said,
                               int64_t count, const shoal_word_string *heard,
                               shoal_edits *edits);

#endif
