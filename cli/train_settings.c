/* What the user says about a training, as names and texts. */
#define _GNU_SOURCE
#include "train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "options.h"
#include <shoal_models.h>

enum { MOST_FIELDS = 64 };

static int field_count(void) {
    int count = 0;
    while (shoal_train_describe(count))
        count++;
    return count;
}

static bool same_name(const char *name, const char *written) {
    for (; *name; name++, written++)
        if (*name != (*written == '-' ? '_' : *written))
            return false;
    return !*written;
}

static bool is_field(const char *name) {
    for (int i = 0; shoal_train_describe(i); i++)
        if (same_name(shoal_train_describe(i)->name, name))
            return true;
    return false;
}

static int refuse_field(const train_settings *settings, const char *name) {
    const char *names[MOST_FIELDS];
    int count = 0;
    for (; count < field_count() && count < MOST_FIELDS; count++)
        names[count] = shoal_train_describe(count)->name;
    const char *near = closest_name(name, names, count, sizeof *names);
    return complain(settings->file ? EXIT_BAD_INPUT : EXIT_USAGE, settings->command,
                    near ? "%s%sthere is no field \"%s\"; did you mean %s?"
                         : "%s%sthere is no field \"%s\"; %s --print-config shows all",
                    settings->file ? settings->file : "", settings->file ? ": " : "",
                    name, near ? near : "shoal train copy");
}

int train_say(train_settings *settings, const char *name, const char *text) {
    if (!is_field(name))
        return refuse_field(settings, name);
    if (settings->count == TRAIN_SETTINGS)
        return complain(EXIT_USAGE, settings->command, "more than %d settings",
                        TRAIN_SETTINGS);
    if (strlen(text) >= TRAIN_VALUE)
        return complain(EXIT_USAGE, settings->command, "%s: \"%.40s...\" is too long",
                        name, text);
    const int at = settings->count++;
    snprintf(settings->said[at].name, sizeof settings->said[at].name, "%s", name);
    snprintf(settings->said[at].text, sizeof settings->said[at].text, "%s", text);
    settings->said[at].file = settings->file;
    return EXIT_OK;
}

int train_say_all(train_settings *settings, const shoal_train_config *config) {
    char text[TRAIN_VALUE];
    int code = EXIT_OK;
    settings->count = 0;
    for (int i = 0; shoal_train_describe(i) && code == EXIT_OK; i++) {
        shoal_train_get(config, i, text, sizeof text);
        code = train_say(settings, shoal_train_describe(i)->name, text);
    }
    return code;
}

int train_say_pair(train_settings *settings, const char *pair) {
    char name[64];
    const size_t length = strcspn(pair, "=");
    if (!pair[length] || length == 0 || length >= sizeof name)
        return complain(EXIT_USAGE, settings->command,
                        "--set is \"%s\"; it must be KEY=VALUE", pair);
    snprintf(name, sizeof name, "%.*s", (int)length, pair);
    return train_say(settings, name, pair + length + 1);
}

/* A number, boolean or string as the text that a flag would have. */
static bool value_text(const json_t *value, char *text, size_t size) {
    if (json_is_string(value))
        return (size_t)snprintf(text, size, "%s", json_string_value(value)) < size;
    if (json_is_integer(value))
        snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, size, "%.17g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(text, size, "%s", json_is_true(value) ? "true" : "false");
    else
        return false;
    return true;
}

int train_say_file(train_settings *settings, const char *path) {
    json_t *object = load_json(settings->command, path);
    const char *key;
    json_t *value;
    int code = EXIT_OK;
    if (!object)
        return EXIT_BAD_INPUT;
    settings->file = path;
    if (!json_is_object(object))
        code = complain(EXIT_BAD_INPUT, settings->command,
                        "%s: it must be one object of fields", path);
    json_object_foreach(object, key, value) {
        char text[TRAIN_VALUE];
        if (!value_text(value, text, sizeof text))
            code = complain(EXIT_BAD_INPUT, settings->command,
                            "%s: %s must be a number, a truth or a short string", path,
                            key);
        else
            code = train_say(settings, key, text);
        if (code != EXIT_OK)
            break;
    }
    settings->file = NULL;
    json_decref(object);
    return code;
}

int train_apply(const train_settings *settings, shoal_context *context,
                shoal_train_config *config) {
    for (int i = 0; i < settings->count; i++) {
        const shoal_status status = shoal_train_set(context, config,
                                                    settings->said[i].name,
                                                    settings->said[i].text);
        if (status == SHOAL_OK)
            continue;
        const char *file = settings->said[i].file;
        return complain(file ? EXIT_BAD_INPUT : EXIT_USAGE, settings->command, "%s%s%s",
                        file ? file : "", file ? ": " : "",
                        shoal_context_message(context));
    }
    return EXIT_OK;
}

/* Texts that are numbers or booleans in JSON become those. */
static json_t *json_of_text(const char *text) {
    char *rest;
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        return json_boolean(text[0] == 't');
    const long long whole = strtoll(text, &rest, 10);
    if (rest != text && !*rest && (text[0] != '-' || whole < 0) && strlen(text) < 19)
        return json_integer(whole);
    const double real = strtod(text, &rest);
    if (rest != text && !*rest && strlen(text) < 19)
        return json_real(real);
    return json_string(text);
}

json_t *train_config_json(const shoal_train_config *config) {
    json_t *object = json_object();
    char text[TRAIN_VALUE];
    for (int i = 0; shoal_train_describe(i); i++) {
        shoal_train_get(config, i, text, sizeof text);
        json_object_set_new(object, shoal_train_describe(i)->name, json_of_text(text));
    }
    return object;
}
