/* Word error rate: what normalisation makes of a text, and the edit distance of words.

   The normal form of English text, applied to both sides before they are compared:
   1. letters are lower case and without accents, curly quotes are straight;
   2. what stands in [brackets], (parentheses) or <angles> is removed;
   3. "." stays and "," goes between digits; & is "and"; every other character that is no
      letter, digit or apostrophe separates words;
   4. the hesitations hmm, mm, mhm, mmm, uh, um are removed;
   5. contractions are spelled out: won't, can't, let's, gonna and the like, and the
      endings n't not, 're are, 've have, 'll will, 'd would, 'm am, 's is (possessives
      too, as in the published normaliser: what is meant cannot be seen);
   6. titles are spelled out: mr mister, dr doctor, st saint ...;
   7. British spellings of common words are American: colour, centre, realise ...;
   8. number words are digits: "one hundred and two" 102, "twenty first" 21st, "nineteen
      eighty four" 1984, "2.5 million" 2500000; "$20" is "20 dollars", "5%" "5 percent";
   9. one space between words; words of over 255 bytes are cut in pieces.
   Letters of other scripts pass through unchanged. */
#ifndef SHOAL_SPEECH_WER_H
#define SHOAL_SPEECH_WER_H

#include "base/context.h"

/* Writes the normal form; always ends in 0 when size > 0, returns the length in full. */
size_t sh_wer_normalise(const char *text, char *normal, size_t size);

typedef struct {
    int64_t words; /* of the reference */
    int64_t substitutions, insertions, deletions;
} word_errors;

/* Fewest edits that make the reference of the hypothesis, words separated by spaces; of
   equally short ways the one with the most substitutions. Adds to *errors. */
shoal_status sh_wer_count(shoal_context *context, const char *reference,
                          const char *hypothesis, word_errors *errors);

/* Both steps on raw text. */
shoal_status sh_wer_add(shoal_context *context, const char *reference,
                        const char *hypothesis, word_errors *errors);

/* Errors per reference word; 0 when there is neither, infinity when only errors. */
double sh_wer_rate(const word_errors *errors);

#endif
