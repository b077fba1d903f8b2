/* The configuration of a training, one table of fields: flags, files, checkpoints and
   tables all read and write it through the names there. */
#ifndef SHOAL_MODELS_TRAINING_TRAIN_CONFIG_H
#define SHOAL_MODELS_TRAINING_TRAIN_CONFIG_H

#include "base/context.h"
#include "shoal_models.h"

enum { TRAIN_TEXT = 160 }; /* room for any field as text */

/* Whether a checkpoint's field may differ from the trainer's: where a run ends is no part
   of what it computed until then. */
int sh_train_field_may_differ(int index);

/* The ranges of every field. */
shoal_status sh_train_config_check(shoal_context *context,
                                   const shoal_train_config *config);

#endif
