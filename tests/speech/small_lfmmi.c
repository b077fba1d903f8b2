#define _GNU_SOURCE
#include "small_lfmmi.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

shoal_context *context;
shoal_lexicon *lexicon;
const char *folder;

/* v, x, y and z are words 0 to 3; y and z have two pronunciations. */
static const char lexicon_text[] = "v A\nx B A\ny C B\ny A C\nz B\nz B B\n";
const int32_t words[] = {0, 1, 2, 3, 3, 1, 1, 2, 0, 0, 2, 3, 1, 3, 0, 2, 1};
const int64_t offsets[TEXTS + 1] = {0, 2, 3, 6, 9, 10, 12, 13, 17};

int small_lfmmi_set_up(void **state) {
    char path[512];
    const char *list[1] = {path};
    folder = make_folder();
    snprintf(path, sizeof path, "%s/lexicon.txt", folder);
    write_bytes_to(path, lexicon_text, strlen(lexicon_text));
    return shoal_context_create(NULL, &context) != SHOAL_OK ||
           shoal_lexicon_open(context, list, 1, NULL, &lexicon) != SHOAL_OK;
}

int small_lfmmi_tear_down(void **state) {
    shoal_lexicon_destroy(lexicon);
    shoal_context_destroy(context);
    remove_folder(folder);
    return 0;
}

phone_lm make_model(int32_t order, int64_t extra) {
    phone_lm lm;
    const phone_texts texts = {lexicon, TEXTS, offsets, words};
    assert_int_equal(sh_phone_lm_make(context, &texts, order, extra, &lm), SHOAL_OK);
    return lm;
}

shoal_lfmmi_options complete_options(const shoal_lfmmi_options *given) {
    shoal_lfmmi_options all = shoal_lfmmi_options_defaults();
    if (!given)
        return all;
    all.topology = given->topology;
    all.order = given->order ? given->order : all.order;
    all.extra = given->extra < 0 ? 0 : given->extra ? given->extra : all.extra;
    all.whole = given->whole;
    all.leak = given->leak > 0 ? given->leak : all.leak;
    all.l2 = given->l2 > 0 ? given->l2 : all.l2;
    all.range = given->range > 0 ? given->range : all.range;
    all.cache = given->cache;
    return all;
}

shoal_lfmmi *make_loss(shoal_context *own, const shoal_lfmmi_options *given) {
    const shoal_lfmmi_options options = complete_options(given);
    shoal_lfmmi *lfmmi;
    assert_int_equal(shoal_lfmmi_create(own, &options, lexicon, TEXTS, offsets, words,
                                        &lfmmi),
                     SHOAL_OK);
    return lfmmi;
}

void fill_random(float *y, int64_t count, double spread, uint64_t seed) {
    for (int64_t i = 0; i < count; i++)
        y[i] = (float)(spread * test_normal(test_hash(seed, 7, (uint64_t)i)));
}

void check_near(double found, double wanted, double tolerance, const char *what) {
    if (!(fabs(found - wanted) <= tolerance * (1 + fabs(wanted))))
        fail_msg("%s is %.9g, not %.9g", what, found, wanted);
}
