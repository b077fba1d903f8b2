/* shoal _manual DIR DATE writes manual pages and shell completions from the option
   tables. Only the build calls it (cmake/Program.cmake), which appends completion.bash
   to the tables for bash; it is not in the help. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "command.h"

/* ---- Manual pages: man(7) ---------------------------------------------------------- */

/* Escapes text for troff. */
static void put_text(FILE *to, const char *text, size_t length) {
    if (length > 0 && (text[0] == '.' || text[0] == '\''))
        fputs("\\&", to);
    for (const char *end = text + length; text < end; text++)
        switch (*text) {
        case '\\': fputs("\\e", to); break;
        case '-': fputs("\\-", to); break;
        case '\'': fputs("\\(aq", to); break;
        case '^': fputs("\\(ha", to); break;
        case '~': fputs("\\(ti", to); break;
        case '\n': fputc(' ', to); break;
        case ',':
            fputs(text[1] == ' ' ? "," : ",\\:", to);
            break; /* allow a line
                                                                      break */
        default: fputc(*text, to);
        }
}

static void put_word(FILE *to, const char *text) {
    put_text(to, text, strlen(text));
}

/* "  TERM    description", or an example if there is no description. */
static void put_item(FILE *to, const char *line, size_t length) {
    const char *gap = memmem(line, length, "  ", 2);
    const size_t term = gap ? (size_t)(gap - line) : length;
    fputs(gap ? ".TP\n.B " : ".PP\n.RS 4\n", to);
    put_text(to, line, term);
    fputs(gap ? "\n" : "\n.RE", to);
    const size_t skipped = gap ? strspn(gap, " ") : 0;
    put_text(to, line + term + skipped, length - term - skipped);
    fputc('\n', to);
}

/* Converts help text: paragraphs; "title:" alone on a line becomes a section; lines
   indented by two columns become a list. */
static void put_prose(FILE *to, const char *text) {
    bool paragraph = false;
    while (*text) {
        const size_t length = strcspn(text, "\n"), indent = strspn(text, " ");
        const size_t title = strspn(text, "abcdefghijklmnopqrstuvwxyz ");
        if (length == 0) {
            paragraph = true;
        } else if (indent == 2) {
            put_item(to, text + 2, length - 2);
        } else if (title + 1 == length && text[title] == ':') {
            fputs(".SH ", to);
            for (size_t i = 0; i < title; i++)
                fputc(toupper((unsigned char)text[i]), to);
            fputc('\n', to);
            paragraph = false;
        } else {
            fputs(paragraph && indent == 0 ? ".PP\n" : "", to);
            put_text(to, text + indent, length - indent);
            fputc('\n', to);
            paragraph = false;
        }
        text += length + (text[length] == '\n');
    }
}

static void put_title(FILE *to, const char *name, const char *date) {
    fprintf(to, ".TH \"%s\" 1 \"%s\" \"shoal %s\" \"Shoal\"\n.ad l\n.SH NAME\n", name,
            date, shoal_version());
}

static void put_command_page(FILE *to, const command_row *command, const char *date) {
    char name[64];
    const command_help *help = command->help;
    snprintf(name, sizeof name, "shoal-%s", command->name);
    put_title(to, name, date);
    fprintf(to, "shoal\\-%s \\- ", command->name);
    put_word(to, command->summary);
    fprintf(to, "\n.SH SYNOPSIS\n\\fBshoal %s\\fR", command->name);
    put_word(to, help->usage + strlen(command->name));
    fputs("\n.SH DESCRIPTION\n", to);
    put_prose(to, help->about);
    fputs(".SH OPTIONS\n", to);
    for (const option_row *row = help->options; row->name && row->help; row++) {
        fputs(".TP\n", to);
        if (row->letter)
            fprintf(to, "\\fB\\-%c\\fR, ", row->letter);
        fputs("\\fB\\-\\-", to);
        put_word(to, row->name);
        fputs("\\fR", to);
        if (row->value) {
            fputs(row->value[0] == '[' ? "\\fI" : " \\fI", to);
            put_word(to, row->value);
            fputs("\\fR", to);
        }
        fputc('\n', to);
        put_word(to, row->help);
        fputc('\n', to);
    }
    if (help->notes) {
        fputs(strncmp(help->notes, "environment:", 12) == 0 ? "" : ".SH NOTES\n", to);
        put_prose(to, help->notes);
    }
    fputs(".SH SEE ALSO\n.BR shoal (1),\n.BR shoal\\-kinds (1)\n", to);
}

static void put_main_page(FILE *to, const char *date) {
    put_title(to, "shoal", date);
    fputs("shoal \\- attention in linear time\n"
          ".SH SYNOPSIS\n\\fBshoal\\fR \\fICOMMAND\\fR ...\n.br\n"
          "\\fBshoal help\\fR [\\fICOMMAND\\fR]\n.br\n\\fBshoal \\-\\-version\\fR\n"
          ".SH COMMANDS\n",
          to);
    for (const command_row *row = commands; row->name; row++) {
        fprintf(to, ".TP\n.BR shoal\\-%s (1)\n", row->name);
        put_word(to, row->summary);
        fputc('\n', to);
    }
    put_prose(to, info_help.notes);
    fputs(".SH EXIT STATUS\n", to);
    put_prose(to, strchr(exit_codes_help, '\n') + 1);
    fputs(".SH SEE ALSO\n.BR shoal\\-attend (1),\n.BR shoal\\-kinds (1)\n", to);
}

/* ---- Completion -------------------------------------------------------------------- */

static void put_choices(FILE *to, const char *const *choices) {
    for (int i = 0; choices[i]; i++)
        fprintf(to, "%s%s", i ? " " : "", choices[i]);
}

static void put_kinds(FILE *to) {
    for (int i = 0; shoal_kind_describe(i); i++) {
        char kind[64];
        shoal_attention_print(&shoal_kind_describe(i)->defaults, kind, sizeof kind);
        fprintf(to, "%s%s", i ? " " : "", kind);
    }
}

static void put_commands(FILE *to) {
    for (const command_row *row = commands; row->name; row++)
        fprintf(to, "%s%s", row == commands ? "" : " ", row->name);
}

/* Class of a value that can be completed: FILE, DIR, KIND, KINDS, or "". */
static const char *value_class(const char *value) {
    return strcmp(value, "KIND") == 0 || strcmp(value, "KINDS") == 0   ? value
           : strcmp(value, "DIR") == 0                                 ? "DIR"
           : strcmp(value, "FILE") == 0 || strcmp(value, "MODEL") == 0 ? "FILE"
                                                                       : "";
}

/* One-line description of an option or a command, up to its details, quoted for a shell
   that spells an apostrophe as `apostrophe`. */
static void put_brief(FILE *to, const char *help, const char *apostrophe) {
    static const char *const details[] = {" (", "\n(", ";", ", int32", ", ["};
    const char *end = help + strlen(help);
    for (size_t i = 0; i < sizeof details / sizeof *details; i++) {
        const char *found = strstr(help, details[i]);
        end = found && found < end ? found : end;
    }
    for (; help < end; help++)
        if (*help == '\'')
            fputs(apostrophe, to);
        else if (!strchr("\\[]", *help))
            fputc(*help == '\n' ? ' ' : *help, to);
}

/* ---- bash -------------------------------------------------------------------------- */

static void put_bash(FILE *to) {
    fputs("# Completion of shoal(1) for bash, made by the build.\n"
          "# Words and options of command $1; `values` maps options to their values.\n"
          "_shoal_tables() {\n"
          "    kinds='",
          to);
    put_kinds(to);
    fputs("'\n    commands='", to);
    put_commands(to);
    fputs("'\n    case $1 in\n", to);
    for (const command_row *command = commands; command->name; command++) {
        const char *words = command->help->words;
        fprintf(to, "    %s)\n        words='%s'\n        options='", command->name,
                words ? words : "NONE");
        for (const option_row *row = command->help->options; row->name && row->help;
             row++) {
            if (row->letter)
                fprintf(to, "-%c ", row->letter);
            fprintf(to, "--%s ", row->name);
        }
        fputs("'\n        values=(", to);
        for (const option_row *row = command->help->options; row->name && row->help;
             row++) {
            const char *class = row->value ? value_class(row->value) : "";
            for (int form = row->letter ? 0 : 1;
                 form < 2 && row->value && row->value[0] != '['; form++) {
                if (form == 0)
                    fprintf(to, " [-%c]='", row->letter);
                else
                    fprintf(to, " [--%s]='", row->name);
                if (row->choices)
                    put_choices(to, row->choices);
                else
                    fputs(*class ? class : "NONE", to);
                fputc('\'', to);
            }
        }
        fputs(" ) ;;\n", to);
    }
    fputs("    esac\n}\n\n", to);
}

/* ---- zsh --------------------------------------------------------------------------- */

/* How a shell completes a value: the text around choices, and the action for each
   value_class and for all other values. */
typedef struct {
    const char *before, *after, *file, *dir, *kind, *kinds, *other;
} actions;

static void put_action(FILE *to, const actions *shell, const char *value,
                       const char *const *choices) {
    const char *class = value_class(value);
    if (choices) {
        fputs(shell->before, to);
        put_choices(to, choices);
        fputs(shell->after, to);
    } else
        fputs(strcmp(class, "FILE") == 0    ? shell->file
              : strcmp(class, "DIR") == 0   ? shell->dir
              : strcmp(class, "KIND") == 0  ? shell->kind
              : strcmp(class, "KINDS") == 0 ? shell->kinds
                                            : shell->other,
              to);
}

/* The next positional argument, or NULL. *choices gets the list of alternatives such as
   "copy|speech", or NULL for files and kinds. */
static const char *next_word(const char **words, const char *const **choices) {
    static char word[16], pieces[16];
    static const char *list[8];
    const int length = (int)strcspn(*words, " ");
    int count = 0;
    if (!**words)
        return NULL;
    snprintf(word, sizeof word, "%.*s", length, *words);
    *words += length + ((*words)[length] == ' ');
    strcpy(pieces, word);
    for (char *rest = NULL, *at = strtok_r(pieces, "|", &rest); at && count < 7;
         at = strtok_r(NULL, "|", &rest))
        list[count++] = at;
    list[count] = NULL;
    *choices = *value_class(word) ? NULL : list;
    return word;
}

static const char zsh_apostrophe[] = "'\\''";
static const actions zsh =
    {"(", ")", "_files", "_files -/", "compadd -a kinds", "_sequence compadd -a kinds",
     " "};

static void put_zsh_option(FILE *to, const option_row *row) {
    const bool optional = row->value && row->value[0] == '[';
    const char *equals = !row->value ? "" : optional ? "=-" : "=";
    if (row->letter)
        fprintf(to, " \\\n        '(-%c --%s)'{-%c%s,--%s%s}'[", row->letter, row->name,
                row->letter, row->value ? "+" : "", row->name, equals);
    else
        fprintf(to, " \\\n        '--%s%s[", row->name, equals);
    put_brief(to, row->help, zsh_apostrophe);
    fputc(']', to);
    if (optional) {
        fprintf(to, "::%.*s: ", (int)strcspn(row->value + 2, "]"), row->value + 2);
    } else if (row->value) {
        fprintf(to, ":%s:", row->value);
        put_action(to, &zsh, row->value, row->choices);
    }
    fputc('\'', to);
}

static void put_zsh(FILE *to) {
    fputs("#compdef shoal\n# Completion of shoal(1) for zsh, made by the build.\n"
          "local -a kinds commands\nkinds=(",
          to);
    put_kinds(to);
    fputs(")\ncommands=(\n", to);
    for (const command_row *row = commands; row->name; row++) {
        fprintf(to, "    '%s:", row->name);
        put_brief(to, row->summary, zsh_apostrophe);
        fputs("'\n", to);
    }
    fputs("    'help:description of a command'\n"
          "    '--version:version'\n"
          ")\n"
          "if ((CURRENT == 2)); then\n"
          "    _describe command commands\n"
          "    return\n"
          "fi\n"
          "shift words\n"
          "((CURRENT--))\n"
          "case $words[1] in\n"
          "help) _describe command commands ;;\n",
          to);
    for (const command_row *row = commands; row->name; row++) {
        fprintf(to, "%s)\n    _arguments -s -S", row->name);
        for (const option_row *option = row->help->options; option->name && option->help;
             option++)
            put_zsh_option(to, option);
        const char *words = row->help->words ? row->help->words : "", *word;
        const char *const *choices;
        for (int position = 1; (word = next_word(&words, &choices)); position++) {
            fputs(" \\\n        '", to);
            if (*words)
                fprintf(to, "%d:%s:", position, word);
            else
                fprintf(to, "*:%s:", word);
            put_action(to, &zsh, word, choices);
            fputc('\'', to);
        }
        fputs(" ;;\n", to);
    }
    fputs("esac\n", to);
}

/* ---- fish -------------------------------------------------------------------------- */

static const char fish_apostrophe[] = "\\'";

static const actions fish = {" -a '",
                             "'",
                             " -F",
                             " -a '(__fish_complete_directories)'",
                             " -a '$__shoal_kinds'",
                             " -a '(__fish_append , $__shoal_kinds)'",
                             ""};

static void put_fish_command(FILE *to, const command_row *command) {
    char condition[80];
    const char *const *choices;
    const char *words = command->help->words ? command->help->words : "", *word;
    snprintf(condition, sizeof condition,
             "complete -c shoal -n '__fish_seen_subcommand_from %s", command->name);
    for (const option_row *row = command->help->options; row->name && row->help; row++) {
        fprintf(to, "%s' -l %s", condition, row->name);
        if (row->letter)
            fprintf(to, " -s %c", row->letter);
        if (row->value && row->value[0] != '[') {
            fputs(strcmp(value_class(row->value), "FILE") == 0 ? " -r" : " -x", to);
            put_action(to, &fish, row->value, row->choices);
        }
        fputs(" -d '", to);
        put_brief(to, row->help, fish_apostrophe);
        fputs("'\n", to);
    }
    for (int at = 2; (word = next_word(&words, &choices)); at++) {
        fputs(condition, to);
        if (at > 2 || *words)
            fprintf(to, "; and test (count (commandline -opc)) %s %d",
                    *words ? "-eq" : "-ge", at);
        fputc('\'', to);
        put_action(to, &fish, word, choices);
        fputc('\n', to);
    }
}

static void put_fish(FILE *to) {
    fputs("# Completion of shoal(1) for fish, made by the build.\nset -g __shoal_kinds ",
          to);
    put_kinds(to);
    fputs("\ncomplete -c shoal -f\n", to);
    for (const command_row *row = commands; row->name; row++) {
        fprintf(to, "complete -c shoal -n __fish_use_subcommand -a %s -d '", row->name);
        put_brief(to, row->summary, fish_apostrophe);
        fputs("'\n", to);
    }
    fputs("complete -c shoal -n __fish_use_subcommand -a help -d 'description of a "
          "command'\n"
          "complete -c shoal -n __fish_use_subcommand -l version -d 'version'\n"
          "complete -c shoal -n '__fish_seen_subcommand_from help' -a '",
          to);
    put_commands(to);
    fputs("'\n", to);
    for (const command_row *row = commands; row->name; row++)
        put_fish_command(to, row);
}

/* ---- The command ------------------------------------------------------------------- */

static FILE *begin_file(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (!file)
        leave(complain(EXIT_RESOURCES, "_manual", "%s cannot be written: %s", path,
                       strerror(errno)));
    return file;
}

static void end_file(FILE *file) {
    const bool good = !ferror(file);
    if (fclose(file) != 0 || !good)
        leave(EXIT_RESOURCES);
}

int manual_command(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*put)(FILE *to);
    } shells[] = {{"tables.bash", put_bash},
                  {"_shoal", put_zsh},
                  {"shoal.fish", put_fish}};
    if (count != 3)
        return complain(EXIT_USAGE, "_manual", "usage: shoal _manual DIR DATE");
    FILE *file = begin_file(arguments[1], "shoal.1");
    put_main_page(file, arguments[2]);
    end_file(file);
    for (const command_row *row = commands; row->name; row++) {
        char name[64];
        snprintf(name, sizeof name, "shoal-%s.1", row->name);
        file = begin_file(arguments[1], name);
        put_command_page(file, row, arguments[2]);
        end_file(file);
    }
    for (int i = 0; i < 3; i++) {
        file = begin_file(arguments[1], shells[i].name);
        shells[i].put(file);
        end_file(file);
    }
    return EXIT_OK;
}
