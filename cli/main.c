/* main: finds the command and runs it. */
#include <stdio.h>
#include <string.h>

#include "command.h"

const command_row commands[] =
    {{"attend", attend_command, &attend_help, "attention on arrays in .npy files", false},
     {"train", train_command, &train_help,
      "train a transformer with any kind of attention", false},
     {"eval", eval_command, &eval_help,
      "evaluate a trained model with other kinds of attention", false},
     {"recognise", recognise_command, &recognise_help,
      "transcripts of recordings by a model of shoal train speech", false},
     {"transcribe", transcribe_command, &transcribe_help,
      "transcripts of recordings by a Whisper model", false},
     {"embed", embed_command, &embed_help,
      "vectors of texts by a BERT, RoBERTa or ModernBERT model", false},
     {"answer", answer_command, &answer_help,
      "answer a question from a text with a model of shoal train squad", false},
     {"similar", similar_command, &similar_help, "find the texts most similar to one",
      false},
     {"model", model_command, &model_help, "where a model can be had, and its SHA-256",
      false},
     {"kinds", kinds_command, &kinds_help,
      "kinds of attention with their defaults and costs", false},
     {"info", info_command, &info_help, "version, instruction set, threads", false},
     {"demo", demo_command, &demo_help,
      "compare full and approximate attention at growing lengths", true},
     {"bench", bench_command, &bench_help,
      "time and memory of each kind, verified, with plots", true},
     {"quality", quality_command, &quality_help,
      "error and time of each kind on real queries, keys and values", true},
     {"wer", wer_command, &wer_help, "word error rate of each kind in a Whisper model",
      true},
     {"maps", maps_command, &maps_help,
      "attention weights of a question's tokens on a text, as pictures", true},
     {"repro", repro_command, &repro_help, "run or resume an experiment of the paper",
      true},
     {"plot", plot_command, &plot_help, "plot loss and accuracy of training runs", true},
     {0}};
enum { COMMANDS = sizeof commands / sizeof *commands - 1 };

static void print_commands(const char *title, bool measures) {
    printf("%s:\n", title);
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].measures == measures)
            printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    putchar('\n');
}

static void print_general_help(void) {
    printf("usage: shoal COMMAND ...\n\nAttention in linear time.\n\n");
    print_commands("commands", false);
    print_commands("commands that measure", true);
    printf("  shoal help COMMAND      description and options of a command\n"
           "  shoal --version         version\n"
           "\n"
           "example:\n"
           "  shoal attend shoal q.npy k.npy v.npy -o out.npy\n"
           "\n"
           "%s",
           exit_codes_help);
}

static int unknown_command(const char *word) {
    const char *near =
        closest_name(word, &commands[0].name, COMMANDS, sizeof commands[0]);
    char list[200] = "";
    for (int i = 0; i < COMMANDS; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                 commands[i].name);
    if (near)
        return complain(EXIT_USAGE, "",
                        "unknown command %.60s; did you mean %s? Commands: %s", word,
                        near, list);
    return complain(EXIT_USAGE, "", "unknown command %.60s; commands: %s", word, list);
}

static const command_row *find_command(const char *word) {
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

static int run_help(int count, char **arguments) {
    const command_row *command = count > 1 ? find_command(arguments[1]) : NULL;
    if (count > 2)
        return complain(EXIT_USAGE, "help", "unexpected argument %s", arguments[2]);
    if (count > 1 && !command)
        return unknown_command(arguments[1]);
    if (command)
        print_help(command->help);
    else
        print_general_help();
    return EXIT_OK;
}

static int run(int count, char **arguments) {
    if (count < 2 || !*arguments[1])
        return complain(EXIT_USAGE, "", "no command; see shoal --help");
    const char *word = arguments[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        print_general_help();
        return EXIT_OK;
    }
    if (strcmp(word, "help") == 0)
        return run_help(count - 1, arguments + 1);
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("shoal %s\n", shoal_version());
        return EXIT_OK;
    }
    if (strcmp(word, "_manual") == 0)
        return manual_command(count - 1, arguments + 1);
    handle_signals();
    const command_row *command = find_command(word);
    return command ? command->run(count - 1, arguments + 1) : unknown_command(word);
}

int main(int count, char **arguments) {
    open_standard_files();
    return finish_program(run(count, arguments));
}
