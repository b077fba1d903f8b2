/* The table of an experiment, and the cells that it and the user ask for. */
#define _GNU_SOURCE
#include <strings.h>
#include <unistd.h>

#include "repro.h"

const char *repro_text(const json_t *object, const char *member) {
    const char *text = json_string_value(json_object_get(object, member));
    return text ? text : "";
}

const char *repro_item(const json_t *list, size_t index) {
    const char *text = json_string_value(json_array_get(list, index));
    return text ? text : "";
}

const char *repro_path(char path[REPRO_PATH], const char *folder, const char *name) {
    const int length = snprintf(path, REPRO_PATH, "%s/%s", folder, name);
    if (length < 0 || length >= REPRO_PATH)
        die(EXIT_USAGE, "%.80s...: the path is too long", folder);
    return path;
}

json_t *repro_config_json(const shoal_train_task *task, const repro_config *config) {
    char text[8192];
    shoal_config_json(task, config, text, sizeof text);
    return json_loads(text, 0, NULL);
}

/* ---- The table --------------------------------------------------------------------- */

static void say_names(char *text, size_t size) {
    *text = 0;
    for (const repro_builtin *one = repro_builtins; one->name; one++)
        snprintf(text + strlen(text), size - strlen(text), "%s%s",
                 one == repro_builtins ? ""
                 : one[1].name         ? ", "
                                       : " and ",
                 one->name);
}

void repro_load(repro_job *job, const char *word) {
    char names[256];
    const char *slash = strrchr(word, '/'), *base = slash ? slash + 1 : word;
    for (const repro_builtin *one = repro_builtins; one->name && !job->table; one++)
        if (strcmp(one->name, word) == 0)
            job->table = json_loads(one->json, 0, NULL);
    say_names(names, sizeof names);
    if (!job->table && access(word, F_OK) != 0)
        die(EXIT_USAGE,
            "\"%s\" is not an experiment: the experiments are %s, or the file of a table",
            word, names);
    if (!job->table && !(job->table = load_json("repro", job->table_path = word)))
        leave(EXIT_BAD_INPUT);
    snprintf(job->name, sizeof job->name, "%.*s", (int)strcspn(base, "."), base);
    const char *form = repro_text(job->table, "result");
    job->form = strcmp(form, "test") == 0         ? OF_TEST
                : strcmp(form, "evaluation") == 0 ? OF_EVALUATION
                                                  : OF_MILESTONES;
    if (!json_array_size(json_object_get(job->table, "axes")) ||
        !shoal_task_find(repro_text(job->table, "task")))
        die(EXIT_BAD_INPUT,
            "%s: a table needs \"task\" and \"axes\"; see docs/experiments.md", word);
    if (job->minutes < 0)
        job->minutes = json_number_value(json_object_get(job->table, "minutes"));
}

/* ---- Axes -------------------------------------------------------------------------- */

/* Splits the list of an option. */
static json_t *split(const char *option, const char *text) {
    static char names[REPRO_VALUES][REPRO_NAME];
    const int count =
        read_kinds("repro", option, text, names[0], REPRO_NAME, REPRO_VALUES);
    json_t *list = json_array();
    if (count == 0)
        leave(EXIT_USAGE);
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_text(names[i]));
    return list;
}

static void spell(const repro_job *job, const char *kind, char spelled[REPRO_NAME]) {
    shoal_attention attention;
    demand(shoal_attention_parse(job->context, kind, &attention), EXIT_USAGE);
    shoal_attention_print(&attention, spelled, REPRO_NAME);
}

/* An entry of an axis: {"name": ...} and further members of the table; integers are
   named by their value. Names of an axis of datasets must be in the table. */
static json_t *entry_of(const json_t *axis, const json_t *asked, bool whole) {
    const json_t *entry = NULL, *known = json_object_get(axis, "values");
    char name[REPRO_NAME], all[REPRO_TEXT] = "";
    snprintf(name, sizeof name, "%s",
             json_is_object(asked)   ? repro_text(asked, "name")
             : json_is_string(asked) ? json_string_value(asked)
                                     : "");
    for (size_t i = 0; i < json_array_size(known) && !entry; i++) {
        const json_t *one = json_array_get(known, i);
        if (json_is_object(one) && strcasecmp(repro_text(one, "name"), name) == 0)
            entry = one;
        if (json_is_object(one))
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "",
                     repro_text(one, "name"));
    }
    if (entry)
        return json_deep_copy(entry);
    if (strcmp(repro_text(axis, "field"), "dataset") == 0)
        die(EXIT_USAGE, "there is no task %s; tasks: %s", name, all);
    json_t *made = json_object();
    int64_t number;
    if (whole && !parse_integer("repro", repro_text(axis, "field"), name, 0,
                                INT64_MAX / 2, &number))
        leave(EXIT_USAGE);
    json_object_set_new(made, "name", whole ? json_integer(number) : json_text(name));
    return made;
}

/* Entries of an axis: the user's or the table's; numbers must increase. */
static json_t *entries_of(const repro_job *job, const json_t *axis) {
    const char *field = repro_text(axis, "field"), *option = "kinds", *asked = NULL;
    const shoal_train_task *task = shoal_task_find(repro_text(job->table, "task"));
    const shoal_field *known = shoal_task_field_find(task, field);
    const bool whole = known && known->type == SHOAL_FIELD_TYPE_INTEGER;
    if (strcmp(field, "attention") == 0)
        asked = job->kinds;
    else if (strcmp(field, "dataset") == 0)
        option = "tasks", asked = job->tasks;
    else if (strcmp(field, "length") == 0)
        option = "lengths", asked = job->lengths;
    json_t *values = asked ? split(option, asked)
                           : json_incref(json_object_get(axis, "values"));
    json_t *entries = json_array();
    for (size_t i = 0; i < json_array_size(values); i++) {
        json_t *value = json_array_get(values, i);
        char digits[32];
        snprintf(digits, sizeof digits, "%" JSON_INTEGER_FORMAT,
                 json_integer_value(value));
        json_t *text = json_is_integer(value) ? json_string(digits) : json_incref(value);
        json_t *entry = entry_of(axis, text, whole);
        size_t at = json_array_size(entries);
        while (
            whole && at > 0 &&
            json_integer_value(json_object_get(json_array_get(entries, at - 1), "name")) >
                json_integer_value(json_object_get(entry, "name")))
            at--;
        json_array_insert_new(entries, at, entry);
        json_decref(text);
    }
    json_decref(values);
    if (json_array_size(entries) == 0)
        die(EXIT_BAD_INPUT, "the axis \"%s\" has no values", field);
    return entries;
}

/* ---- A cell ------------------------------------------------------------------------ */

repro_cell *repro_find(const repro_job *job, const char *name) {
    for (int i = 0; i < job->count; i++)
        if (*name && strcmp(job->cells[i].name, name) == 0)
            return &job->cells[i];
    return NULL;
}

/* "KIND", "KIND@LAYERS" or "CELL+KIND"; CELL has the same values on the other axes. */
static void place_kind(repro_job *job, repro_cell *cell, const char *text) {
    char kind[REPRO_NAME], spelled[2 * REPRO_NAME];
    const char *plus = strrchr(text, '+');
    snprintf(kind, sizeof kind, "%s", plus ? plus + 1 : text);
    char *at = strchr(kind, '@'), *rest = NULL;
    const long layers = at ? strtol(at + 1, &rest, 10) : 0;
    if (at && (plus || layers < 1 || layers > 1024 || *rest))
        die(EXIT_USAGE, "--kinds has \"%s\"; a cell is KIND, KIND@LAYERS or CELL+KIND",
            text);
    if (at)
        *at = 0;
    spell(job, kind, cell->kind);
    if (plus)
        snprintf(spelled, sizeof spelled, "%.*s+%s", (int)(plus - text), text,
                 cell->kind);
    else
        snprintf(spelled, sizeof spelled, at ? "%s@%ld" : "%s", cell->kind, layers);
    json_object_set_new(cell->facts, "attention", json_text(cell->kind));
    json_object_set_new(cell->facts, "cell", json_text(spelled));
    if (at)
        json_object_set_new(cell->facts, "layers", json_integer(layers));
    for (int i = 0; plus && i < job->count && !*cell->from; i++) {
        const repro_cell *other = &job->cells[i];
        const char *named = repro_text(other->facts, "cell");
        if (strncmp(named, text, (size_t)(plus - text)) == 0 && !named[plus - text] &&
            job->count / job->inner == i / job->inner) {
            strcpy(cell->from, other->name);
            json_object_set(cell->facts, "layers",
                            json_object_get(other->facts, "layers"));
        }
    }
    if (plus && !*cell->from)
        die(EXIT_USAGE, "--kinds: %s continues a cell that must come before it", spelled);
}

/* The first of these files that exists under the data folder, else the first. */
static const char *data_file(const repro_job *job, const json_t *list,
                             char path[REPRO_PATH], bool *there) {
    char one[REPRO_PATH];
    *there = false;
    *path = 0;
    for (size_t i = json_array_size(list); i-- > 0;) {
        const bool itself = strcmp(repro_item(list, i), ".") == 0;
        repro_path(one, job->data, itself ? "" : repro_item(list, i));
        const bool found = access(one, F_OK) == 0;
        if (found || (i == 0 && !*there))
            strcpy(path, itself ? job->data : one);
        *there = *there || found;
    }
    return path;
}

static void place_data(const repro_job *job, repro_cell *cell) {
    const json_t *list = json_object_get(cell->facts, "data");
    repro_config *config = &cell->config;
    bool there, dev_there;
    if (!job->data)
        return;
    const char *data = data_file(job, list ? list : json_object_get(job->table, "data"),
                                 cell->data, &there);
    const char *dev =
        data_file(job, json_object_get(cell->facts, "dev"), cell->dev, &dev_there);
    if (cell->task == shoal_task_find("speech")) {
        config->speech.folder = data;
        config->speech.cache = job->cache;
        config->speech.lexicon = job->words.lexicon;
        config->speech.skip_bad = job->skip_bad;
    } else if (cell->task == shoal_task_find("squad")) {
        config->squad.folder = data;
        config->squad.dev = dev;
        config->squad.model_folder = job->model;
        config->squad.skip_bad = job->skip_bad;
        there = there && dev_there;
    } else if (cell->task == shoal_task_find("glue")) {
        config->glue.folder = data;
        config->glue.model_folder = job->model;
        config->glue.skip_bad = job->skip_bad;
        there = shoal_glue_is_there(config->glue.dataset, data);
    }
    cell->missing = !there && !job->tasks &&
                    json_is_true(json_object_get(job->table, "optional"));
}

/* Adds the fields of an object, converted to texts. */
static void give(repro_cell *cell, const json_t *fields) {
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)fields, field, value) {
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        json_object_set_new(cell->given, field,
                            text ? json_string(text)
                                 : json_text(json_string_value(value)));
        free(text);
    }
}

/* Adds the fields of the task that are axes; a dataset may be a task of its own. */
static void give_axes(const repro_job *job, repro_cell *cell) {
    const json_t *axes = json_object_get(job->table, "axes");
    json_t *fields = json_object();
    for (size_t i = 0; i <= json_array_size(axes); i++) {
        const char *field = i == json_array_size(axes)
                                ? "layers"
                                : repro_text(json_array_get(axes, i), "field");
        if (shoal_task_field_find(cell->task, field))
            json_object_set(fields, field, json_object_get(cell->facts, field));
    }
    give(cell, fields);
    json_decref(fields);
}

static void set_field(const repro_job *job, repro_cell *cell, const char *name,
                      const char *text) {
    const char *names[256];
    int count = 0;
    const shoal_field *field;
    if (shoal_task_field_find(cell->task, name)) {
        demand(shoal_config_set(job->context, cell->task, &cell->config, name, text),
               EXIT_USAGE);
        return;
    }
    for (int i = 0; (field = shoal_task_field(cell->task, i)) && count < 256; i++)
        names[count++] = field->name;
    const char *near = closest_name(name, names, count, sizeof *names);
    die(EXIT_USAGE,
        near ? "there is no field \"%s\"; did you mean %s?"
             : "there is no field \"%s\"; shoal train %s --print-config lists all",
        name, near ? near : repro_text(job->table, "task"));
}

/* A cell that continues another uses a lower rate for a shorter time. */
static void go_on(const repro_job *job, repro_cell *cell) {
    const json_t *further = json_object_get(job->table, "further");
    const char *name;
    json_t *value;
    char text[SHOAL_VALUE_SIZE];
    json_object_foreach(json_object_get(further, "times"), name, value) {
        const double factor = json_number_value(value);
        const shoal_field *field = shoal_task_field_find(cell->task, name);
        shoal_config_get(cell->task, &cell->config, name, text, sizeof text);
        if (field && field->type == SHOAL_FIELD_TYPE_INTEGER)
            snprintf(text, sizeof text, "%.0f",
                     fmax(1, floor(strtod(text, NULL) * factor + 1e-9)));
        else
            snprintf(text, sizeof text, "%.9g",
                     (double)(strtof(text, NULL) * (float)factor));
        set_field(job, cell, name, text);
    }
    json_object_foreach(json_object_get(further, "settings"), name, value) {
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        set_field(job, cell, name, text);
    }
}

/* Settings of the table, of the entry, of the user, and of the axes. */
static void configure(const repro_job *job, repro_cell *cell) {
    const char *task = repro_text(cell->facts, "task"), *name;
    const char *preset = repro_text(job->table, "preset");
    json_t *text;
    cell->task = shoal_task_find(*task ? task : repro_text(job->table, "task"));
    if (!cell->task)
        die(EXIT_BAD_INPUT, "%s: there is no task \"%s\"", cell->name, task);
    demand(shoal_config_init(job->context, cell->task, *preset ? preset : NULL,
                             &cell->config, sizeof cell->config),
           EXIT_BAD_INPUT);
    cell->given = json_object();
    give(cell, json_object_get(job->table, "settings"));
    give(cell, json_object_get(cell->facts, "settings"));
    give(cell, job->given);
    if (!*cell->kind && job->kinds) {
        json_t *kinds = split("kinds", job->kinds);
        json_object_set(cell->given, "attention", json_array_get(kinds, 0));
        json_decref(kinds);
    }
    give_axes(job, cell);
    json_object_foreach(cell->given, name, text)
        set_field(job, cell, name, json_string_value(text));
    if (*cell->from)
        go_on(job, cell);
    shoal_attention_print(&cell->config.train.model.attention, cell->kind, REPRO_NAME);
    place_data(job, cell);
}

/* ---- All cells -------------------------------------------------------------------- */

static void make_cell(repro_job *job, json_t *const *entries, int axes) {
    const json_t *table = job->table, *list = json_object_get(table, "axes");
    repro_cell *cell = &job->cells[job->count];
    char text[REPRO_TEXT] = "", folder[REPRO_TEXT + 8];
    int rest = job->count;
    *cell = (repro_cell){.facts = json_object(), .seconds_per_step = (double)NAN};
    const char *kind = NULL, *name;
    json_t *terms, *facts = json_object_get(table, "facts");
    for (int a = axes; a-- > 0; rest /= (int)json_array_size(entries[a])) {
        json_t *entry =
            json_array_get(entries[a], (size_t)rest % json_array_size(entries[a]));
        const char *field = repro_text(json_array_get(list, (size_t)a), "field");
        json_object_update(cell->facts, entry);
        json_object_set(cell->facts, field, json_object_get(entry, "name"));
        if (strcmp(field, "attention") == 0)
            kind = repro_text(entry, "name");
        if (axes == 1)
            snprintf(text, sizeof text, "%s", repro_text(entry, "name"));
    }
    if (kind)
        place_kind(job, cell, kind);
    cell->seen = json_incref(cell->facts); /* for the names */
    json_object_foreach(facts, name, terms)
        json_object_set_new(cell->facts, name,
                            json_integer(llround(
                                repro_number(job, cell, "%s", repro_text(facts, name)))));
    const char *spelled = repro_text(cell->facts, "cell");
    const char *form = repro_text(table, "name");
    if (*form && !repro_fill(job, cell, form, "", "", text))
        die(EXIT_BAD_INPUT, "the name \"%s\" refers to a field that is not an axis",
            form);
    else if (!*form && *spelled)
        snprintf(text, sizeof text, "%s", spelled);
    for (char *at = text; !*form && (at = strchr(at, '/'));)
        *at = '_';
    snprintf(cell->name, REPRO_NAME, "%s", text);
    if (!*cell->name || repro_find(job, cell->name))
        die(EXIT_USAGE, "--kinds: %s is given twice", cell->name);
    json_object_set_new(cell->facts, "name", json_text(cell->name));
    form = repro_text(table, "folder");
    if (*form)
        repro_fill(job, cell, form, "", "", text);
    if (strchr(text, '/') || *text == '.')
        die(EXIT_BAD_INPUT, "\"%s\" cannot be the name of a cell's folder", text);
    snprintf(folder, sizeof folder, "cells/%s", text);
    repro_path(cell->folder, job->folder, folder);
    configure(job, cell);
    job->count++;
}

bool repro_is_chosen(const repro_job *job, const repro_cell *cell) {
    if (!job->only)
        return true;
    json_t *only = split("only", job->only);
    bool chosen = false;
    for (size_t i = 0; i < json_array_size(only); i++) {
        const char *name = repro_item(only, i);
        chosen = chosen || strcmp(name, cell->name) == 0;
        if (!repro_find(job, name))
            die(EXIT_USAGE, "--only: there is no cell %s", name);
    }
    json_decref(only);
    return chosen;
}

static void check_asked(const repro_job *job) {
    const char *field;
    json_t *values;
    if (json_is_true(json_object_get(job->table, "model")) && !job->model && !job->show)
        die(EXIT_USAGE, "%s needs --model, the folder of a BERT or RoBERTa", job->name);
    json_object_foreach(json_object_get(job->table, "instead"), field, values) {
        const char *asked = repro_text(job->given, field);
        const char *other = repro_text(values, asked);
        if (*other)
            die(EXIT_USAGE, "the %s of %s is not %s; use %s", field, job->name, asked,
                other);
    }
    for (int i = 0; i < job->count; i++)
        repro_is_chosen(job, &job->cells[i]);
}

void repro_make_cells(repro_job *job) {
    const json_t *axes = json_object_get(job->table, "axes");
    const int count = (int)json_array_size(axes);
    json_t *entries[4], *tested;
    int cells = 1;
    if (count > 4)
        die(EXIT_BAD_INPUT, "%s: more than 4 axes", job->name);
    for (int i = 0; i < count; i++) {
        entries[i] = entries_of(job, json_array_get(axes, (size_t)i));
        job->inner = (int)json_array_size(entries[i]);
        cells *= job->inner;
    }
    job->cells = reserve_zeros((size_t)cells, sizeof *job->cells);
    while (job->count < cells)
        make_cell(job, entries, count);
    for (int i = 0; i < count; i++)
        json_decref(entries[i]);
    check_asked(job);
    tested = json_object_get(json_object_get(job->table, "evaluate"), "kinds");
    tested = job->evaluate ? split("evaluate", job->evaluate) : json_incref(tested);
    for (size_t i = 0; i < json_array_size(tested) && i < REPRO_VALUES; i++)
        spell(job, repro_item(tested, i), job->tested[job->tested_count++]);
    json_decref(tested);
}
