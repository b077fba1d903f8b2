/* A small lexicon, texts of its words, and LF-MMI losses made from them. */
#ifndef SHOAL_TESTS_SMALL_LFMMI_H
#define SHOAL_TESTS_SMALL_LFMMI_H

#include "cases.h"
#include "folders.h"
#include "speech/recogniser/lfmmi.h"
#include "support.h"

enum { PHONES = 4, SILENCE = 3, TEXTS = 8, MOST_STEPS = 12, MOST_OUTPUTS = 8 };

/* Created by small_lfmmi_set_up and removed by small_lfmmi_tear_down. */
extern shoal_context *context;
extern shoal_lexicon *lexicon;
extern const char *folder;
int small_lfmmi_set_up(void **state);
int small_lfmmi_tear_down(void **state);

/* Text i has the words from offsets[i] to offsets[i + 1]. */
extern const int32_t words[];
extern const int64_t offsets[TEXTS + 1];

/* The n-gram of all texts; sh_phone_lm_free frees it. */
phone_lm make_model(int32_t order, int64_t extra);
/* The loss of all texts; shoal_lfmmi_destroy frees it. */
/* Fields that are 0 become the defaults; an `extra` below 0 becomes all histories. */
shoal_lfmmi_options complete_options(const shoal_lfmmi_options *given);
shoal_lfmmi *make_loss(shoal_context *own, const shoal_lfmmi_options *given);

/* Normal numbers times `spread`. */
void fill_random(float *y, int64_t count, double spread, uint64_t seed);
/* Within the tolerance, times 1 + |wanted|. */
void check_near(double found, double wanted, double tolerance, const char *what);

#endif
