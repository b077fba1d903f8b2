/* shoal kinds and shoal info: what there is. */
#include <getopt.h>

#include "commands.h"
#include "common.h"
#include "options.h"

static const option_row rows[] = {{"json", 0, NULL, "print a JSON object",
                                   .type = OPTION_FLAG},
                                  HELP_ROW,
                                  {0}};

/* The exit code when that is the end, or -1. */
static int read_line(const command_help *help, int count, char **arguments, bool *json) {
    *json = false;
    const int ended = take_options(help, count, arguments, json);
    if (ended < 0 && optind < count)
        return complain(EXIT_USAGE, help->command, "%s is one word too many",
                        arguments[optind]);
    return ended;
}

/* ---- kinds, from the library's own table ------------------------------------------ */

const command_help kinds_help =
    {"kinds",
     "kinds [--json]",
     "The kinds of attention, how each is spelled with every default shown, and its\n"
     "cost in operations for N queries and S keys of size D and values of size Dv.\n",
     rows,
     "Options follow the name after a colon: shoal-64:near=0,seed=7\n",
     NULL};

static int print_kinds_json(void) {
    json_t *kinds = json_array();
    for (int i = 0; shoal_kind_describe(i); i++) {
        const shoal_kind_info *kind = shoal_kind_describe(i);
        char defaults[240];
        shoal_attention_print_all(&kind->defaults, defaults, sizeof defaults);
        json_array_append_new(kinds, json_pack("{s:s, s:s, s:s, s:s}", "name", kind->name,
                                               "defaults", defaults, "cost", kind->cost,
                                               "summary", kind->summary));
    }
    return print_json(json_pack("{s:o}", "kinds", kinds));
}

static int print_kinds(void) {
    for (int i = 0; shoal_kind_describe(i); i++) {
        const shoal_kind_info *kind = shoal_kind_describe(i);
        char defaults[240];
        shoal_attention_print_all(&kind->defaults, defaults, sizeof defaults);
        printf("%s%-14s %s\n", i ? "\n" : "", kind->name, kind->summary);
        printf("%-14s as in  %s\n", "", defaults);
        printf("%-14s cost   %s\n", "", kind->cost);
    }
    return EXIT_OK;
}

int kinds_command(int count, char **arguments) {
    bool json;
    const int ended = read_line(&kinds_help, count, arguments, &json);
    if (ended >= 0)
        return ended;
    return json ? print_kinds_json() : print_kinds();
}

/* ---- info: what this build is and what it would use here -------------------------- */

const command_help info_help =
    {"info",
     "info [--json]",
     "The version, the instruction set and threads that a call would use here, and\n"
     "what was used to build the program.\n",
     rows,
     "environment:\n"
     "  SHOAL_ISA          forces an instruction set: scalar, avx2, avx512, neon\n"
     "  OMP_NUM_THREADS    the number of threads unless --threads says another\n",
     NULL};

static const char blas[] = "OpenBLAS for the layers of models; attention needs none";

#if defined(__clang__)
static const char compiler[] = __VERSION__;
#else
static const char compiler[] = "GCC " __VERSION__;
#endif

static bool isa_runs(const char *name) {
    shoal_context *context;
    shoal_options options = {.threads = 1, .isa = name};
    bool runs = shoal_context_create(&options, &context) == SHOAL_OK;
    shoal_context_destroy(context);
    return runs;
}

static json_t *runnable(void) {
    json_t *list = json_array();
    for (int i = 0; isa_names[i]; i++)
        if (isa_runs(isa_names[i]))
            json_array_append_new(list, json_string(isa_names[i]));
    return list;
}

static int print_info(const shoal_context *context) {
    json_t *list = runnable(), *name;
    size_t index;
    printf("version          %s\n", shoal_version());
    printf("instruction set  %s (of", shoal_context_isa(context));
    json_array_foreach(list, index, name)
        printf("%s %s", index ? "," : "", json_string_value(name));
    printf(" that run here)\n");
    printf("threads          %d\n", shoal_context_threads(context));
    printf("crossover        %d positions, measured now (SHOAL_CROSSOVER=%d keeps it)\n",
           shoal_context_crossover(context), shoal_context_crossover(context));
    printf("BLAS             %s\n", blas);
    printf("compiler         %s\n", compiler);
    json_decref(list);
    return EXIT_OK;
}

static int print_info_json(const shoal_context *context) {
    return print_json(
        json_pack("{s:s, s:s, s:o, s:i, s:i, s:s, s:s}", "version", shoal_version(),
                  "isa", shoal_context_isa(context), "isa_runnable", runnable(),
                  "threads", shoal_context_threads(context), "crossover",
                  shoal_context_crossover(context), "blas", blas, "compiler", compiler));
}

int info_command(int count, char **arguments) {
    bool json;
    shoal_context *context;
    const int ended = read_line(&info_help, count, arguments, &json);
    if (ended >= 0)
        return ended;
    int code = open_context("info", 0, NULL, &context);
    if (code != EXIT_OK)
        return code;
    const shoal_status status = shoal_measure_crossover(context);
    if (status != SHOAL_OK)
        code = complain_status(status, EXIT_RESOURCES, "info", context);
    else
        code = json ? print_info_json(context) : print_info(context);
    shoal_context_destroy(context);
    return code;
}
