/* Internals of a lexicon: words sorted by strcmp, each with its pronunciations in the
   order of the files. */
#ifndef SHOAL_SPEECH_WORDS_LEXICON_H
#define SHOAL_SPEECH_WORDS_LEXICON_H

#include <stddef.h>

#include "base/context.h"
#include "shoal_speech.h"

enum {
    LEXICON_LINE = 1 << 16,  /* maximum bytes of a line */
    LEXICON_PHONE = 64,      /* maximum bytes of a phone's name, including the NUL */
    LEXICON_VARIANTS = 1024, /* maximum pronunciations of a word */
    LEXICON_PHONES = 1 << 12 /* maximum number of phones */
};

struct shoal_lexicon {
    shoal_context *context;
    shoal_lexicon_info info;
    int64_t word_count, pronunciation_count;
    int32_t phone_count;          /* including the silence, which is last */
    char *text;                   /* storage of the words */
    const char **words;           /* [word_count] */
    int32_t *folded;              /* [word_count], words in case-insensitive order */
    int64_t *first;               /* [word_count + 1]: first pronunciation */
    int64_t *begin;               /* [pronunciation_count + 1]: first phone */
    int32_t *phones;              /* [begin[pronunciation_count]] */
    char (*names)[LEXICON_PHONE]; /* [phone_count] */
};

/* A lexicon being read from any number of files. */
typedef struct lexicon_draft lexicon_draft;
shoal_status sh_lexicon_begin(shoal_context *context,
                              const shoal_lexicon_options *options, lexicon_draft **made);
/* Adds the lines of a file; `name` is for messages. */
shoal_status sh_lexicon_add(lexicon_draft *draft, const char *name, const char *bytes,
                            size_t size);
/* Releases the draft, which may be NULL, and makes a lexicon of it if `status`, which
   is returned, is SHOAL_OK. */
shoal_status sh_lexicon_end(lexicon_draft *draft, shoal_status status,
                            shoal_lexicon **lexicon);

#endif
