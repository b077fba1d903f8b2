/* The subcommands: each parses its own arguments (arguments[0] is its name) and returns
   the program's exit code. */
#ifndef SHOAL_CLI_COMMANDS_H
#define SHOAL_CLI_COMMANDS_H

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
int wer_command(int count, char **arguments);

#endif
