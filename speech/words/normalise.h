/* Word errors, shoal_count_word_errors: the normal form of text, edits between words.

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
#ifndef SHOAL_SPEECH_WORDS_NORMALISE_H
#define SHOAL_SPEECH_WORDS_NORMALISE_H

#include "base/context.h"
#include "shoal_speech.h"

/* Writes the normal form; always ends in 0 when size > 0, returns the length in full. */
size_t sh_normalise_words(const char *text, char *normal, size_t size);

/* Fewest edits that make the reference of the hypothesis, words separated by spaces; of
   equally short ways the one with the most substitutions. Adds those of each part of the
   reference to errors: [parts]; ends: [parts], the words up to the end of each. An
   insertion falls on the part of the word before it. */
shoal_status sh_count_edits(shoal_context *context, const char *reference,
                            const int64_t *ends, int parts, const char *hypothesis,
                            shoal_word_errors *errors);

#endif
