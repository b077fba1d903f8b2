/* The subcommands and the one list of them. */
#ifndef SHOAL_CLI_COMMANDS_H
#define SHOAL_CLI_COMMANDS_H

#include "options.h"

typedef struct {
    const char *name;
    int (*run)(int count, char **arguments);
    const command_help *help;
    const char *summary;
    bool measures; /* a command of the laboratory (lab/) */
} command_row;

extern const command_row commands[]; /* ends with a row of zeros */

/* Each parses its own arguments (arguments[0] is its name) and returns the program's exit
   code. */
int attend_command(int count, char **arguments);
int kinds_command(int count, char **arguments);
int info_command(int count, char **arguments);
int demo_command(int count, char **arguments);
int bench_command(int count, char **arguments);
int quality_command(int count, char **arguments);
int train_command(int count, char **arguments);
int eval_command(int count, char **arguments);
int plot_command(int count, char **arguments);
int repro_command(int count, char **arguments);
int transcribe_command(int count, char **arguments);
int recognise_command(int count, char **arguments);
int embed_command(int count, char **arguments);
int answer_command(int count, char **arguments);
int maps_command(int count, char **arguments);
int similar_command(int count, char **arguments);
int wer_command(int count, char **arguments);
int manual_command(int count, char **arguments); /* for the build: in no list */

extern const command_help attend_help, kinds_help, info_help, demo_help, bench_help,
    quality_help, train_help, eval_help, plot_help, repro_help, transcribe_help, wer_help,
    recognise_help, embed_help, similar_help, answer_help, maps_help;

#endif
