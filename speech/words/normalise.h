/* Word errors, shoal_count_word_errors: normalisation of text, edits between words.

   Normalisation of English text, applied to both sides before they are compared:
   1. letters become lower case and lose accents, curly quotes become straight;
   2. text in [brackets], (parentheses) or <angle brackets> is removed;
   3. "." is kept and "," removed between digits; & becomes "and"; every other character
      except letters, digits and apostrophes separates words;
   4. the hesitations hmm, mm, mhm, mmm, uh, um are removed;
   5. contractions are spelled out: won't, can't, let's, gonna and others, and the
      endings n't not, 're are, 've have, 'll will, 'd would, 'm am, 's is (possessives
      too, as in the published normaliser, because they cannot be told apart);
   6. titles are spelled out: mr mister, dr doctor, st saint ...;
   7. British spellings of common words become American: colour, centre, realise ...;
   8. number words become digits: "one hundred and two" 102, "twenty first" 21st,
      "nineteen eighty four" 1984, "2.5 million" 2500000; "$20" is "20 dollars", "5%"
      "5 percent";
   9. words are separated by one space; words of more than 255 bytes are split.
   Letters of other scripts are unchanged. */
#ifndef SHOAL_SPEECH_WORDS_NORMALISE_H
#define SHOAL_SPEECH_WORDS_NORMALISE_H

#include "base/context.h"
#include "shoal_speech.h"

/* Writes the normalised text, NUL-terminated if size > 0; returns its full length. */
size_t sh_normalise_words(const char *text, char *normal, size_t size);

/* Minimum number of edits from the hypothesis to the reference, words separated by
   spaces; on ties the alignment with the most substitutions. Adds those of each part of
   the reference to errors: [parts]; ends: [parts], number of words up to the end of
   each. An insertion counts for the part of the word before it. */
shoal_status sh_count_edits(shoal_context *context, const char *reference,
                            const int64_t *ends, int parts, const char *hypothesis,
                            shoal_word_errors *errors);

#endif
