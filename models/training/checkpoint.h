/* Checkpoints: one safetensors file.

   Tensors, float32, each in its parameter's shape:
       NAME                    weights
       optimizer.first.NAME    mean of the gradient
       optimizer.second.NAME   mean of its square
       average.NAME            averaged weights, where the configuration asks for them
   Notes (the file's metadata):
       format                  CHECKPOINT_FORMAT
       config.FIELD            every field of the configuration, as text
       state.FIELD             counts in decimal, real numbers in hexadecimal: exact    */
#ifndef SHOAL_MODELS_TRAINING_CHECKPOINT_H
#define SHOAL_MODELS_TRAINING_CHECKPOINT_H

#include "models/training/train.h"

#define CHECKPOINT_FORMAT "shoal-checkpoint-1"

#endif
