/* The last step of normalisation: words in, number words to digits, text out. */
#ifndef SHOAL_SPEECH_WER_PARTS_H
#define SHOAL_SPEECH_WER_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WER_WORD = 256 }; /* bytes of a word with its 0, at most */

/* What the last number word was; it decides what may follow in the same number. */
typedef enum {
    NUMBER_NONE,
    NUMBER_UNIT, /* 0 to 9 */
    NUMBER_TEEN, /* 10 to 19 */
    NUMBER_TENS,
    NUMBER_HUNDRED,
    NUMBER_SCALE,  /* thousand, million ... */
    NUMBER_LITERAL /* digits */
} number_kind;

typedef struct {
    char *text;
    size_t size, length; /* length counts on where the room has ended */
    /* The number that is being put together: total + group. */
    number_kind last;
    uint64_t total, group, scale; /* scale: the last one used, 0 before any */
    bool year;                    /* group is two pairs of digits: "nineteen eighty" */
    bool held_and;                /* "two hundred and": may belong to the number */
    const char *currency;         /* "dollars", to follow the number */
    char literal[WER_WORD];       /* digits as they were written */
} word_writer;

void sh_word_put(word_writer *out, const char *word);
void sh_word_put_currency(word_writer *out, const char *name);
void sh_word_finish(word_writer *out); /* writes what is held */

#endif
