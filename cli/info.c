/* The commands shoal kinds and shoal info. */
#include "command.h"

static const option_row rows[] = {{"json", 0, NULL, "print a JSON object",
                                   .type = OPTION_FLAG},
                                  HELP_ROW,
                                  {0}};

/* ---- kinds ------------------------------------------------------------------------- */

const command_help kinds_help = {
    "kinds",
    "kinds [--json]",
    "Lists the kinds of attention, the full spelling of each with its defaults, and its\n"
    "cost in operations for N queries and S keys of dimension D and values of dimension\n"
    "Dv.\n",
    rows,
    "Options follow the name after a colon: shoal-64:near=0,seed=7\n",
    NULL};

int kinds_command(int count, char **arguments) {
    bool json = false;
    begin_command(&kinds_help, count, arguments, &json);
    json_t *kinds = json ? json_array() : NULL;
    for (int i = 0; shoal_kind_describe(i); i++) {
        const shoal_kind_info *kind = shoal_kind_describe(i);
        char defaults[240];
        shoal_attention_print_all(&kind->defaults, defaults, sizeof defaults);
        if (json)
            json_array_append_new(kinds,
                                  json_pack("{s:s, s:s, s:s, s:s}", "name", kind->name,
                                            "defaults", defaults, "cost", kind->cost,
                                            "summary", kind->summary));
        else
            printf("%s%-14s %s\n%-14s as in  %s\n%-14s cost   %s\n", i ? "\n" : "",
                   kind->name, kind->summary, "", defaults, "", kind->cost);
    }
    return kinds ? print_json(json_pack("{s:o}", "kinds", kinds)) : EXIT_OK;
}

/* ---- info -------------------------------------------------------------------------- */

const command_help info_help =
    {"info",
     "info [--json]",
     "Prints the version, the instruction set and number of threads that a call would\n"
     "use on this machine, and how the program was built.\n",
     rows,
     "environment:\n"
     "  SHOAL_ISA          forces an instruction set: scalar, avx2, avx512, neon\n"
     "  OMP_NUM_THREADS    default number of threads for commands without --threads\n"
     "  SHOAL_PROGRESS     seconds between progress lines of a long command if standard "
     "error\n"
     "                     is not a terminal (default: 30; 0: none)\n",
     NULL};

static const char blas[] = "none; shoal bench loads OpenBLAS where it is installed";

#if defined(__clang__)
static const char compiler[] = __VERSION__;
#else
static const char compiler[] = "GCC " __VERSION__;
#endif

static json_t *runnable(void) {
    json_t *list = json_array();
    for (int i = 0; isa_names[i]; i++) {
        shoal_context *context;
        const shoal_options options = {.size = sizeof(shoal_options),
                                       .threads = 1,
                                       .isa = isa_names[i]};
        if (shoal_context_create(&options, &context) == SHOAL_OK)
            json_array_append_new(list, json_string(isa_names[i]));
        shoal_context_destroy(context);
    }
    return list;
}

int info_command(int count, char **arguments) {
    bool json = false;
    begin_command(&info_help, count, arguments, &json);
    shoal_context *context = begin_context(0, NULL);
    demand(shoal_measure_crossover(context), EXIT_RESOURCES);
    const char *isa = shoal_context_isa(context);
    const int threads = shoal_context_threads(context);
    const int crossover = shoal_context_crossover(context);
    json_t *list = runnable(), *name;
    size_t index;
    if (json)
        return print_json(json_pack("{s:s, s:s, s:o, s:i, s:i, s:s, s:s}", "version",
                                    shoal_version(), "isa", isa, "isa_runnable", list,
                                    "threads", threads, "crossover", crossover, "blas",
                                    blas, "compiler", compiler));
    printf("version          %s\ninstruction set  %s (of", shoal_version(), isa);
    json_array_foreach(list, index, name)
        printf("%s %s", index ? "," : "", json_string_value(name));
    printf(" that run here)\nthreads          %d\n", threads);
    printf("crossover        %d positions, measured now (SHOAL_CROSSOVER=%d keeps it)\n",
           crossover, crossover);
    printf("BLAS             %s\ncompiler         %s\n", blas, compiler);
    json_decref(list);
    return EXIT_OK;
}
