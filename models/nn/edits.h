/* Edits between sequences of numbers whose reference has parts. */
#ifndef SHOAL_MODELS_NN_EDITS_H
#define SHOAL_MODELS_NN_EDITS_H

#include "base/context.h"
#include "base/export.h"
#include "shoal_models.h"

typedef struct {
    const int32_t *values;
    int64_t count;
} edit_sequence;

/* As shoal_count_edits, but adds what falls on each part of the reference to edits:
   [parts]; ends: [parts], not falling, how much of the reference there is up to the end
   of each, all at last. An insertion falls on the part of what stands before it. */
SHOAL_PRIVATE shoal_status sh_edits_count(shoal_context *context, edit_sequence reference,
                                          edit_sequence other, const int64_t *ends,
                                          int parts, shoal_edits *edits);

#endif
