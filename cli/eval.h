/* Evaluations, for shoal eval and shoal repro. */
#ifndef SHOAL_CLI_EVAL_H
#define SHOAL_CLI_EVAL_H

#include <jansson.h>

#include <shoal_train.h>

enum { EVAL_KINDS = 32, EVAL_NAME = 128 };

/* Parses names [kinds] into the options and evaluates, with progress and messages.
   *object, unless object is NULL, is what shoal eval --json prints. Returns an exit
   code, after a message if it is not EXIT_OK. */
int evaluate_run(const char *command, shoal_context *context, const char *path, int kinds,
                 char (*names)[EVAL_NAME], shoal_evaluation_options *options,
                 shoal_evaluation **evaluation, json_t **object);

#endif
