/* A small training for the tests of the trainer. */
#ifndef SHOAL_TRAIN_SUPPORT_H
#define SHOAL_TRAIN_SUPPORT_H

#include "support.h"
#include "train/train.h"

static inline void say(shoal_context *context, shoal_copy_config *config,
                       const char *name, const char *text) {
    assert_int_equal(shoal_config_set(context, &sh_copy_task, config, name, text),
                     SHOAL_OK);
}

/* Small, with all features: dropout, averages, warm-up, plateau. */
static inline shoal_copy_config small_config(shoal_context *context, const char *kind) {
    static const char *const settings[][2] =
        {{"length", "7"},           {"layers", "2"},         {"heads", "2"},
         {"head_dim", "8"},         {"feed_forward", "24"},  {"batch", "3"},
         {"steps", "12"},           {"validate_every", "3"}, {"validate_batches", "2"},
         {"dropout", "0.1"},        {"average", "0.9"},      {"warmup", "4"},
         {"plateau_patience", "1"}, {"seed", "5"},           {"learning_rate", "0.01"}};
    shoal_copy_config config = shoal_copy_config_defaults();
    for (int64_t i = 0; i < COUNT_OF(settings); i++)
        say(context, &config, settings[i][0], settings[i][1]);
    say(context, &config, "attention", kind);
    return config;
}

static inline shoal_trainer *trainer_of(shoal_context *context,
                                        const shoal_copy_config *config) {
    shoal_trainer *at;
    assert_int_equal(shoal_trainer_create(context, &sh_copy_task, config, NULL, NULL,
                                          &at),
                     SHOAL_OK);
    return at;
}

static inline shoal_trainer *trainer_with(shoal_context *context, int64_t count,
                                          const char *const settings[][2]) {
    shoal_copy_config config = small_config(context, "full");
    for (int64_t i = 0; i < count; i++)
        say(context, &config, settings[i][0], settings[i][1]);
    return trainer_of(context, &config);
}

#endif
