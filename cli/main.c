/* The program: finds the subcommand and hands over. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "options.h"

static const struct {
    const char *name;
    int (*run)(int count, char **arguments);
    const char *summary;
    bool measures; /* a command of the laboratory (lab/) */
} commands[] = {
    {"attend", attend_command, "attention on arrays in .npy files", false},
    {"train", train_command, "train a transformer with any kind of attention", false},
    {"eval", eval_command, "a trained model with other kinds of attention", false},
    {"transcribe", transcribe_command, "text of recordings, by a Whisper model", false},
    {"kinds", kinds_command, "the kinds of attention, their defaults and cost", false},
    {"info", info_command, "version, instruction set, threads", false},
    {"demo", demo_command, "full against clustered attention at growing lengths", true},
    {"bench", bench_command, "what each kind costs here, verified, with pictures", true},
    {"quality", quality_command, "error of each kind beside its time, on real q, k, v",
     true},
    {"wer", wer_command, "word error rate of each kind in a Whisper model", true},
    {"repro", repro_command, "an experiment of the paper, whole and resumable", true},
    {"plot", plot_command, "loss and accuracy of trainings as a picture", true},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

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
    printf("  shoal COMMAND --help    what a command does, with every option\n"
           "  shoal --version         the version\n\n"
           "example:\n  shoal attend i-clustered-100 q.npy k.npy v.npy -o out.npy\n\n%s",
           exit_codes_help);
}

static int unknown_command(const char *word) {
    const char *near =
        closest_name(word, &commands[0].name, COMMANDS, sizeof commands[0]);
    if (near)
        return complain(EXIT_USAGE, "", "unknown command %s; did you mean %s?", word,
                        near);
    return complain(EXIT_USAGE, "", "unknown command %s; see shoal --help", word);
}

static int run(int count, char **arguments) {
    if (count < 2)
        return complain(EXIT_USAGE, "", "no command; see shoal --help");
    const char *word = arguments[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 ||
        strcmp(word, "help") == 0) {
        print_general_help();
        return EXIT_OK;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("shoal %s\n", shoal_version());
        return EXIT_OK;
    }
    handle_signals();
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return commands[i].run(count - 1, arguments + 1);
    return unknown_command(word);
}

int main(int count, char **arguments) {
    open_standard_files();
    const int code = run(count, arguments);
    if (code == EXIT_OK && (fflush(stdout) != 0 || ferror(stdout)))
        return complain(EXIT_RESOURCES, "", "the output could not be written");
    return code;
}
