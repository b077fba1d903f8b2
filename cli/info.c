/* shoal info: what this build is and what it would use here. */
#include <getopt.h>

#include "commands.h"
#include "common.h"
#include "options.h"

enum { OPTION_JSON, OPTION_HELP };

static const option_row rows[] = {{"json", 0, NULL, "print a JSON object"},
                                  {"help", 'h', NULL, "print this"},
                                  {0}};

static const command_help help =
    {"info", "info [--json]",
     "The version, the instruction set and threads that a call would use here, and what "
     "was\n"
     "used to build the program.\n",
     rows,
     "environment:\n"
     "  SHOAL_ISA          forces an instruction set: scalar, avx2, avx512, neon\n"
     "  OMP_NUM_THREADS    the number of threads unless --threads says another\n"};

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
    static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (isa_runs(names[i]))
            json_array_append_new(list, json_string(names[i]));
    return list;
}

static int print_text(const shoal_context *context) {
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

static int print_object(const shoal_context *context) {
    return print_json(
        json_pack("{s:s, s:s, s:o, s:i, s:i, s:s, s:s}", "version", shoal_version(),
                  "isa", shoal_context_isa(context), "isa_runnable", runnable(),
                  "threads", shoal_context_threads(context), "crossover",
                  shoal_context_crossover(context), "blas", blas, "compiler", compiler));
}

int info_command(int count, char **arguments) {
    bool json = false;
    const char *value;
    shoal_context *context;
    for (int option;
         (option = next_option(&help, count, arguments, &value)) != OPTIONS_END;) {
        if (option == OPTIONS_WRONG)
            return EXIT_USAGE;
        if (option == OPTION_HELP) {
            print_help(&help);
            return EXIT_OK;
        }
        json = true;
    }
    if (optind < count)
        return complain(EXIT_USAGE, "info", "%s is one word too many", arguments[optind]);
    int code = open_context("info", 0, NULL, &context);
    if (code != EXIT_OK)
        return code;
    const shoal_status status = shoal_measure_crossover(context);
    if (status != SHOAL_OK)
        code = complain_status(status, EXIT_RESOURCES, "info", context);
    else
        code = json ? print_object(context) : print_text(context);
    shoal_context_destroy(context);
    return code;
}
