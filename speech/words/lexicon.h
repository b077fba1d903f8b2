/* The inside of a lexicon: words in the order of strcmp, each with its pronunciations in
   the order of the files. */
#ifndef SHOAL_SPEECH_WORDS_LEXICON_H
#define SHOAL_SPEECH_WORDS_LEXICON_H

#include <stddef.h>

#include "base/context.h"
#include "shoal_speech.h"

enum {
    LEXICON_LINE = 1 << 16,  /* bytes of a line at most */
    LEXICON_PHONE = 64,      /* of a phone's name, its end included */
    LEXICON_VARIANTS = 1024, /* pronunciations of a word at most */
    LEXICON_PHONES = 1 << 12 /* phones at most */
};

struct shoal_lexicon {
    shoal_context *context;
    int64_t word_count, pronunciation_count;
    int32_t phone_count;          /* the silence included, which is the last */
    char *text;                   /* what words point into */
    const char **words;           /* [word_count] */
    int32_t *folded;              /* [word_count], words by their letters in lower case */
    int64_t *first;               /* [word_count + 1]: of its pronunciations */
    int64_t *begin;               /* [pronunciation_count + 1]: of its phones */
    int32_t *phones;              /* [begin[pronunciation_count]] */
    char (*names)[LEXICON_PHONE]; /* [phone_count] */
};

/* What is being read: made of any number of files, then finished. */
typedef struct lexicon_draft lexicon_draft;
shoal_status sh_lexicon_begin(shoal_context *context,
                              const shoal_lexicon_options *options, lexicon_draft **made);
/* Adds the lines of a file; `name` is for messages. */
shoal_status sh_lexicon_add(lexicon_draft *draft, const char *name, const char *bytes,
                            size_t size);
/* Releases the draft, which may be NULL, and makes a lexicon of it where `status`, which
   it returns, is SHOAL_OK. */
shoal_status sh_lexicon_end(lexicon_draft *draft, shoal_status status,
                            shoal_lexicon **lexicon);

#endif
