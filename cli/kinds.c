/* shoal kinds: what exists, from the library's own table. */
#include <getopt.h>

#include "commands.h"
#include "common.h"
#include "options.h"

enum { OPTION_JSON, OPTION_HELP };

static const option_row rows[] = {{"json", 0, NULL, "print a JSON object"},
                                  {"help", 'h', NULL, "print this"},
                                  {0}};

static const command_help help =
    {"kinds", "kinds [--json]",
     "The kinds of attention, how each is spelled with every default shown, and its cost "
     "in\n"
     "operations for N queries and S keys of size D and values of size Dv.\n",
     rows, "Options follow the name after a colon: i-clustered-100:topk=64,seed=7\n"};

static int print_object(void) {
    json_t *kinds = json_array();
    for (int i = 0; shoal_kind_describe(i); i++) {
        const shoal_kind_info *kind = shoal_kind_describe(i);
        json_array_append_new(kinds, json_pack("{s:s, s:s, s:s, s:s}", "name", kind->name,
                                               "defaults", kind->defaults, "cost",
                                               kind->cost, "summary", kind->summary));
    }
    return print_json(json_pack("{s:o}", "kinds", kinds));
}

static int print_table(void) {
    for (int i = 0; shoal_kind_describe(i); i++) {
        const shoal_kind_info *kind = shoal_kind_describe(i);
        printf("%s%-14s %s\n", i ? "\n" : "", kind->name, kind->summary);
        printf("%-14s as in  %s\n", "", kind->defaults);
        printf("%-14s cost   %s\n", "", kind->cost);
    }
    return EXIT_OK;
}

int kinds_command(int count, char **arguments) {
    bool json = false;
    const char *value;
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
        return complain(EXIT_USAGE, "kinds", "%s is one word too many",
                        arguments[optind]);
    return json ? print_object() : print_table();
}
