/* The configuration of a training as text: one table of fields, through which flags,
   files and checkpoints read and write it, and the settings that the user gave. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <shoal_speech.h>

#include "common.h"
#include "options.h"
#include "train.h"

/* ---- The fields ------------------------------------------------------------------- */

typedef enum { WHOLE, REAL, CHOICE, SEED, TASK, ATTENTION, SHORT_TEXT } field_type;

/* Which tasks have a field. */
enum {
    COPY = 1,
    SPEECH = 2,
    GLUE = 4,
    SQUAD = 8,
    TEXT = GLUE | SQUAD,
    OWN_MODEL = COPY | SPEECH, /* text's is the folder's */
    EPOCHS = SPEECH | TEXT,
    ALL = COPY | SPEECH | TEXT
};

typedef struct {
    const char *name;
    field_type type;
    size_t offset;              /* in train_config */
    double min, max;            /* WHOLE and REAL */
    const char *const *choices; /* CHOICE: an int32_t counts through them; NULL ends */
    int tasks;
} field_row;

static const char *const losses[] = {"masked", "all", NULL};
static const char *const speech_losses[] = {"ctc", "lf-mmi", NULL};
static const char *const topologies[] = {"chain", "one", "blank", NULL};
static const char *const units[] = {"words", "characters", NULL};
static const char *const normalisations[] = {"speaker", "utterance", "none", NULL};
static const char *const truths[] = {"false", "true", NULL};
static const char *const norms[] = {"pre", "post", NULL};
static const char *const activations[] = {"gelu", "relu", NULL};
static const char *const positions[] = {"sinusoidal", "learned", "none", NULL};
static const char *const optimizers[] = {"radam", "adam", "radam-l2", "adam-l2", NULL};

#define PLACE(member) offsetof(train_config, member)
#define WHOLE_ROW(tasks, name, member, min, max)                                         \
    { name, WHOLE, PLACE(member), min, max, NULL, tasks }
#define REAL_ROW(tasks, name, member, min, max)                                          \
    { name, REAL, PLACE(member), min, max, NULL, tasks }
#define CHOICE_ROW(tasks, name, member, choices)                                         \
    { name, CHOICE, PLACE(member), 0, 0, choices, tasks }
#define OTHER_ROW(tasks, name, type, member)                                             \
    { name, type, PLACE(member), 0, 0, NULL, tasks }

static const field_row rows[] = {
    OTHER_ROW(ALL, "task", TASK, task),
    WHOLE_ROW(COPY, "length", length, 1, 1 << 24),
    CHOICE_ROW(COPY, "loss", loss, losses),
    CHOICE_ROW(SPEECH, "loss", speech.loss, speech_losses),
    OTHER_ROW(SPEECH, "labels", SHORT_TEXT, speech.labels),
    CHOICE_ROW(SPEECH, "units", speech.units, units),
    OTHER_ROW(EPOCHS, "data", SHORT_TEXT, speech.data),
    OTHER_ROW(GLUE, "dataset", SHORT_TEXT, text.dataset),
    WHOLE_ROW(TEXT, "max_length", text.max_length, 8, 1 << 20),
    WHOLE_ROW(SQUAD, "stride", text.stride, 1, 1 << 20),
    WHOLE_ROW(SQUAD, "max_answer", text.max_answer, 1, 1 << 20),
    WHOLE_ROW(SPEECH, "bands", speech.bands, 1, 200),
    WHOLE_ROW(SPEECH, "rate", speech.rate, 0, 16000),
    CHOICE_ROW(SPEECH, "normalise", speech.normalise, normalisations),
    WHOLE_ROW(SPEECH, "hop", speech.hop, 1, 64),
    WHOLE_ROW(SPEECH, "context", speech.context, 1, 256),
    WHOLE_ROW(SPEECH, "every", speech.every, 1, 64),
    CHOICE_ROW(SPEECH, "topology", speech.topology, topologies),
    WHOLE_ROW(SPEECH, "order", speech.order, 2, 5),
    WHOLE_ROW(SPEECH, "extra", speech.extra, 0, 1e9),
    CHOICE_ROW(SPEECH, "whole", speech.whole, truths),
    REAL_ROW(SPEECH, "leak", speech.leak, 1e-8, 1),
    REAL_ROW(SPEECH, "output_l2", speech.output_l2, 0, 10),
    REAL_ROW(SPEECH, "output_range", speech.output_range, 0, 10),
    OTHER_ROW(SPEECH, "speeds", SHORT_TEXT, speech.speeds),
    WHOLE_ROW(SPEECH, "band_masks", speech.band_masks, 0, 100),
    WHOLE_ROW(SPEECH, "band_mask", speech.band_mask, 0, 200),
    WHOLE_ROW(SPEECH, "time_masks", speech.time_masks, 0, 1000),
    WHOLE_ROW(SPEECH, "time_mask", speech.time_mask, 0, 10000),
    WHOLE_ROW(SPEECH, "mask_after", speech.mask_after, 0, 1e9),
    REAL_ROW(SPEECH, "join", speech.join, 0, 3600),
    WHOLE_ROW(SPEECH, "join_after", speech.join_after, 0, 1e9),
    WHOLE_ROW(SPEECH, "batch_frames", speech.batch_frames, 1, 1 << 24),
    WHOLE_ROW(EPOCHS, "epochs", speech.epochs, 1, 1e6),
    OTHER_ROW(ALL, "attention", ATTENTION, model.attention),
    CHOICE_ROW(OWN_MODEL, "shared_qk", model.shared_qk, truths),
    WHOLE_ROW(SPEECH, "convolutions", model.convolutions, 0, 1024),
    WHOLE_ROW(OWN_MODEL, "layers", model.layers, 1, 1024),
    WHOLE_ROW(OWN_MODEL, "heads", model.heads, 1, 1024),
    WHOLE_ROW(OWN_MODEL, "head_dim", model.head_dim, 1, 4096),
    WHOLE_ROW(OWN_MODEL, "feed_forward", model.feed_forward, 1, 1 << 20),
    CHOICE_ROW(OWN_MODEL, "norm", model.norm, norms),
    CHOICE_ROW(OWN_MODEL, "activation", model.activation, activations),
    CHOICE_ROW(OWN_MODEL, "positions", model.positions, positions),
    REAL_ROW(OWN_MODEL, "dropout", model.dropout, 0, 0.99),
    CHOICE_ROW(ALL, "optimizer", optimizer.kind, optimizers),
    REAL_ROW(ALL, "learning_rate", learning_rate, 1e-12, 10),
    REAL_ROW(ALL, "beta1", optimizer.beta1, 0, 0.999999),
    REAL_ROW(ALL, "beta2", optimizer.beta2, 0, 0.9999999),
    REAL_ROW(ALL, "epsilon", optimizer.epsilon, 1e-30, 1),
    REAL_ROW(ALL, "weight_decay", optimizer.weight_decay, 0, 10),
    REAL_ROW(ALL, "clip", clip, 0, 1e30),
    WHOLE_ROW(ALL, "warmup", warmup, 0, 1e15),
    REAL_ROW(TEXT, "warmup_share", text.warmup_share, 0, 1),
    CHOICE_ROW(EPOCHS, "decay", speech.decay, truths),
    WHOLE_ROW(EPOCHS, "decay_steps", decay_steps, 0, 1e15),
    WHOLE_ROW(ALL, "plateau_patience", plateau_patience, 0, 1e9),
    REAL_ROW(ALL, "plateau_factor", plateau_factor, 1e-6, 1),
    REAL_ROW(ALL, "average", optimizer.average, 0, 0.999999),
    WHOLE_ROW(ALL, "batch", batch, 1, 1 << 20),
    WHOLE_ROW(ALL, "steps", steps, 0, 1e15),
    WHOLE_ROW(ALL, "average_every", average_every, 0, 1e9),
    WHOLE_ROW(OWN_MODEL, "validate_every", validate_every, 1, 1e15),
    WHOLE_ROW(COPY, "validate_batches", validate_batches, 1, 1 << 20),
    WHOLE_ROW(COPY, "stop_after", stop_after, 0, 1e9),
    OTHER_ROW(ALL, "seed", SEED, seed),
};
enum { ROWS = sizeof rows / sizeof *rows };

const char *train_field(int index) {
    return index >= 0 && index < ROWS ? rows[index].name : NULL;
}

static int task_bit(const char *task) {
    static const char *const names[] = {"copy", "speech", "glue", "squad"};
    for (int i = 0; i < 4; i++)
        if (strcmp(task, names[i]) == 0)
            return 1 << i;
    return COPY;
}

bool train_has_field(const train_config *config, int index) {
    return (rows[index].tasks & task_bit(config->task)) != 0;
}

/* Flags are written with '-' where files have '_'. */
static bool same_name(const char *name, const char *written) {
    for (; *name; name++, written++)
        if (*name != (*written == '-' ? '_' : *written))
            return false;
    return !*written;
}

/* Tasks may have fields of the same name: those of `tasks` come first. */
static const field_row *find_row(const char *written, int tasks) {
    const field_row *found = NULL;
    for (int i = 0; i < ROWS; i++)
        if (same_name(rows[i].name, written) && (!found || (rows[i].tasks & tasks)))
            found = &rows[i];
    return found;
}

static bool refuse(train_reason *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool refuse(train_reason *reason, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason->text, sizeof reason->text, format, arguments);
    va_end(arguments);
    return false;
}

static bool check_task(const char *name, train_reason *reason) {
    return strcmp(name, "copy") == 0 || task_bit(name) != COPY ||
           refuse(reason, "there is no task \"%.40s\"; tasks: copy, speech, glue, squad",
                  name);
}

bool train_is_text(const train_config *config) {
    return (task_bit(config->task) & TEXT) != 0;
}

static train_config copy_defaults(void) {
    return (train_config){.task = "copy",
                          .length = 31,
                          .loss = LOSS_MASKED,
                          .model = {.layers = 4,
                                    .heads = 6,
                                    .head_dim = 32,
                                    .feed_forward = 768,
                                    .norm = SHOAL_NORM_PRE,
                                    .activation = SHOAL_GELU,
                                    .positions = SHOAL_SINUSOIDAL},
                          .optimizer = shoal_optimizer_defaults(),
                          .learning_rate = 2e-4f,
                          .clip = 10,
                          .plateau_patience = 30,
                          .plateau_factor = 0.5f,
                          .batch = 32,
                          .steps = 5000,
                          .validate_every = 100,
                          .validate_batches = 5,
                          .seed = 1};
}

/* What learns from hours of speech on two cores (docs/SPEECH.md). */
static void speech_defaults(train_config *config) {
    snprintf(config->task, sizeof config->task, "speech");
    config->speech = (speech_config){.labels = "text",
                                     .bands = 40,
                                     .hop = 4,
                                     .context = 12,
                                     .speeds = "0.9,1,1.1",
                                     .band_masks = 2,
                                     .band_mask = 8,
                                     .time_masks = 2,
                                     .time_mask = 40,
                                     .mask_after = 6,
                                     .batch_frames = 4000,
                                     .epochs = 25,
                                     .decay = 1,
                                     .every = 1,
                                     .order = 4,
                                     .extra = 2000,
                                     .leak = 0.1f,
                                     .output_l2 = 5e-5f,
                                     .output_range = 0.01f};
    config->model.activation = SHOAL_RELU;
    config->model.convolutions = 4;
    config->model.dropout = 0.1f;
    config->optimizer.kind = SHOAL_ADAM;
    config->optimizer.beta2 = 0.98f;
    config->learning_rate = 1.5e-3f;
    config->warmup = 150;
    config->plateau_patience = 0;
    config->batch = 64;
    config->steps = 0;
    config->validate_every = 400;
}

/* What such models are fine-tuned with everywhere: AdamW, a warm-up, a line to 0. */
static void text_defaults(const char *task, train_config *config) {
    const bool squad = strcmp(task, "squad") == 0;
    snprintf(config->task, sizeof config->task, "%s", task);
    config->text = (text_settings){.max_length = squad ? 384 : 128,
                                   .stride = 128,
                                   .max_answer = 30,
                                   .warmup_share = 0.1f};
    config->speech = (speech_config){.epochs = squad ? 2 : 4, .decay = 1};
    config->model = (shoal_model_config){0};
    config->optimizer.kind = SHOAL_ADAM;
    config->learning_rate = 1e-4f;
    config->clip = 1;
    config->plateau_patience = 0;
    config->batch = squad ? 16 : 32;
    config->steps = 0;
}

bool train_preset(const char *preset, train_config *config, train_reason *reason) {
    speech_config *speech = &config->speech;
    if (strcmp(preset, "default") == 0)
        return true;
    if (strcmp(preset, "paper") != 0 || strcmp(config->task, "speech") != 0)
        return refuse(reason,
                      "there is no preset \"%.40s\" of %s; speech has default and "
                      "paper",
                      preset, config->task);
    config->model.layers = 9;
    config->model.convolutions = 0;
    config->model.activation = SHOAL_GELU;
    config->model.dropout = 0;
    config->optimizer = shoal_optimizer_defaults();
    config->learning_rate = 1e-4f;
    config->warmup = 0;
    config->plateau_patience = 5;
    speech->hop = speech->context = 1;
    snprintf(speech->speeds, sizeof speech->speeds, "1");
    speech->band_masks = speech->time_masks = 0;
    speech->normalise = SHOAL_NORMALISE_UTTERANCE;
    speech->batch_frames = 12000;
    speech->epochs = 100;
    speech->decay = 0;
    return true;
}

/* What was seen to learn from a flat start (docs/notebook/SPEECH.md): an output every 30
   ms; or as in the paper, at every third frame of a full-rate encoder. */
void train_lfmmi_defaults(const char *preset, train_config *config) {
    config->speech.loss = SPEECH_LFMMI;
    config->clip = 1;
    if (preset && strcmp(preset, "paper") == 0) {
        config->speech.bands = 80;
        config->speech.every = 3;
        config->model.layers = 12;
        config->learning_rate = 2e-4f;
        return;
    }
    config->speech.order = 3;
    config->speech.extra = 0;
    config->speech.hop = 3;
    config->speech.context = 9;
    config->learning_rate = 1e-3f;
}

bool train_defaults(const char *task, train_config *config, train_reason *reason) {
    *config = copy_defaults();
    if (strcmp(task, "speech") == 0)
        speech_defaults(config);
    if (task_bit(task) & TEXT)
        text_defaults(task, config);
    return check_task(task, reason);
}

/* ---- From text -------------------------------------------------------------------- */

/* The ends of a real's range are floats, as its values are. */
static bool in_range(const field_row *row, double value) {
    const bool real = row->type == REAL;
    return value >= (real ? (double)(float)row->min : row->min) &&
           value <= (real ? (double)(float)row->max : row->max);
}

static bool set_whole(const field_row *row, void *place, const char *text,
                      train_reason *reason) {
    char *rest;
    errno = 0;
    const long long value = strtoll(text, &rest, 10);
    if (rest == text || *rest || errno || !in_range(row, (double)value))
        return refuse(reason, "%s is \"%s\"; it must be a whole number from %.0f to %.0f",
                      row->name, text, row->min, row->max);
    memcpy(place, &(int64_t){value}, sizeof(int64_t));
    return true;
}

static bool set_real(const field_row *row, void *place, const char *text,
                     train_reason *reason) {
    char *rest;
    const float value = (float)strtod(text, &rest);
    if (rest == text || *rest || !in_range(row, (double)value))
        return refuse(reason, "%s is \"%s\"; it must be a number from %.9g to %.9g",
                      row->name, text, row->min, row->max);
    memcpy(place, &value, sizeof value);
    return true;
}

static bool set_choice(const field_row *row, void *place, const char *text,
                       train_reason *reason) {
    char names[TRAIN_VALUE] = "";
    for (int32_t i = 0; row->choices[i]; i++) {
        if (strcmp(row->choices[i], text) == 0) {
            memcpy(place, &i, sizeof i);
            return true;
        }
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                 row->choices[i]);
    }
    return refuse(reason, "%s is \"%s\"; it must be one of %s", row->name, text, names);
}

static bool set_seed(const field_row *row, void *place, const char *text,
                     train_reason *reason) {
    char *rest;
    errno = 0;
    const unsigned long long value = strtoull(text, &rest, 10);
    if (text[0] < '0' || text[0] > '9' || *rest || errno)
        return refuse(reason,
                      "%s is \"%s\"; it must be a whole number from 0 to %" PRIu64,
                      row->name, text, UINT64_MAX);
    memcpy(place, &(uint64_t){value}, sizeof(uint64_t));
    return true;
}

int train_read_speeds(const char *text, double speed[MOST_SPEEDS], int *plain) {
    int count = 0;
    *plain = -1;
    for (const char *at = text; *at || at == text;) {
        char *rest;
        const double value = strtod(at, &rest);
        if (rest == at || (*rest && *rest != ',') || !(value >= 0.5 && value <= 2) ||
            count == MOST_SPEEDS)
            return 0;
        if (value == 1)
            *plain = count;
        speed[count++] = value;
        at = *rest ? rest + 1 : rest;
    }
    return *plain >= 0 ? count : 0;
}

static bool set_text(const field_row *row, void *place, const char *text,
                     train_reason *reason) {
    double speed[MOST_SPEEDS];
    int plain;
    if (strlen(text) >= TRAIN_TEXT)
        return refuse(reason, "%s has more than %d bytes", row->name, TRAIN_TEXT - 1);
    if (row->offset == offsetof(train_config, speech.speeds) &&
        train_read_speeds(text, speed, &plain) == 0)
        return refuse(reason,
                      "%s is \"%s\"; it must be up to %d numbers from 0.5 to 2 with "
                      "commas between, one of them 1",
                      row->name, text, MOST_SPEEDS);
    snprintf(place, TRAIN_TEXT, "%s", text);
    return true;
}

bool train_set(shoal_context *context, train_config *config, const char *name,
               const char *text, train_reason *reason) {
    const field_row *row = find_row(name, task_bit(config->task));
    if (!row)
        return refuse(reason, "there is no field \"%s\"", name);
    if (!(row->tasks & task_bit(config->task)))
        return refuse(reason, "the task %s has no %s", config->task, row->name);
    void *place = (char *)config + row->offset;
    switch (row->type) {
    case WHOLE: return set_whole(row, place, text, reason);
    case REAL: return set_real(row, place, text, reason);
    case CHOICE: return set_choice(row, place, text, reason);
    case SEED: return set_seed(row, place, text, reason);
    case SHORT_TEXT: return set_text(row, place, text, reason);
    case TASK:
        return strcmp(text, config->task) == 0 ||
               (check_task(text, reason) &&
                refuse(reason, "task is %s, not %s", config->task, text));
    case ATTENTION: break;
    }
    return shoal_attention_parse(context, text, place) == SHOAL_OK ||
           refuse(reason, "%s", shoal_context_message(context));
}

/* ---- To text ---------------------------------------------------------------------- */

/* The shortest decimal that reads back to the same float. */
static int print_real(char *text, size_t size, float value) {
    char found[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(found, sizeof found, "%.*g", digits, (double)value);
        if ((float)strtod(found, NULL) == value)
            break;
    }
    return snprintf(text, size, "%s", found);
}

size_t train_get(const train_config *config, int index, char *text, size_t size) {
    const field_row *row = &rows[index];
    const void *place = (const char *)config + row->offset;
    switch (row->type) {
    case WHOLE: return (size_t)snprintf(text, size, "%" PRId64, *(const int64_t *)place);
    case REAL: return (size_t)print_real(text, size, *(const float *)place);
    case CHOICE:
        return (size_t)snprintf(text, size, "%s", row->choices[*(const int32_t *)place]);
    case SEED: return (size_t)snprintf(text, size, "%" PRIu64, *(const uint64_t *)place);
    case SHORT_TEXT:
    case TASK: return (size_t)snprintf(text, size, "%s", (const char *)place);
    case ATTENTION: break;
    }
    return shoal_attention_print(place, text, size);
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

json_t *train_config_json(const train_config *config) {
    json_t *object = json_object();
    char text[TRAIN_VALUE];
    for (int i = 0; i < ROWS; i++) {
        if (!train_has_field(config, i))
            continue;
        train_get(config, i, text, sizeof text);
        json_object_set_new(object, rows[i].name,
                            rows[i].type == SHORT_TEXT ? json_string(text)
                                                       : json_of_text(text));
    }
    return object;
}

/* ---- Settings ------------------------------------------------------------ */

static int refuse_field(const train_settings *settings, const char *name) {
    const char *near = closest_name(name, &rows[0].name, ROWS, sizeof *rows);
    return complain(settings->file ? EXIT_BAD_INPUT : EXIT_USAGE, settings->command,
                    near ? "%s%sthere is no field \"%s\"; did you mean %s?"
                         : "%s%sthere is no field \"%s\"; shoal train %s --print-config "
                           "shows all",
                    settings->file ? settings->file : "", settings->file ? ": " : "",
                    name,
                    near             ? near
                    : settings->task ? settings->task
                                     : "TASK");
}

int settings_add(train_settings *settings, const char *name, const char *text) {
    if (!find_row(name, ALL))
        return refuse_field(settings, name);
    if (settings->count == TRAIN_SETTINGS)
        return complain(EXIT_USAGE, settings->command, "more than %d settings",
                        TRAIN_SETTINGS);
    if (strlen(text) >= TRAIN_VALUE)
        return complain(EXIT_USAGE, settings->command, "%s: \"%.40s...\" is too long",
                        name, text);
    const int at = settings->count++;
    snprintf(settings->list[at].name, sizeof settings->list[at].name, "%s", name);
    snprintf(settings->list[at].text, sizeof settings->list[at].text, "%s", text);
    settings->list[at].file = settings->file;
    return EXIT_OK;
}

const char *settings_find(const train_settings *settings, const char *name) {
    for (int i = settings->count - 1; i >= 0; i--)
        if (same_name(name, settings->list[i].name))
            return settings->list[i].text;
    return NULL;
}

int settings_add_all(train_settings *settings, const train_config *config) {
    char text[TRAIN_VALUE];
    int code = EXIT_OK;
    settings->count = 0;
    for (int i = 0; i < ROWS && code == EXIT_OK; i++) {
        if (!train_has_field(config, i))
            continue;
        train_get(config, i, text, sizeof text);
        code = settings_add(settings, rows[i].name, text);
    }
    return code;
}

int settings_add_pair(train_settings *settings, const char *pair) {
    char name[64];
    const size_t length = strcspn(pair, "=");
    if (!pair[length] || length == 0 || length >= sizeof name)
        return complain(EXIT_USAGE, settings->command,
                        "--set is \"%s\"; it must be KEY=VALUE", pair);
    snprintf(name, sizeof name, "%.*s", (int)length, pair);
    return settings_add(settings, name, pair + length + 1);
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

int settings_add_file(train_settings *settings, const char *path) {
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
            code = settings_add(settings, key, text);
        if (code != EXIT_OK)
            break;
    }
    settings->file = NULL;
    json_decref(object);
    return code;
}

int settings_apply(const train_settings *settings, shoal_context *context,
                   train_config *config) {
    for (int i = 0; i < settings->count; i++) {
        train_reason reason;
        if (train_set(context, config, settings->list[i].name, settings->list[i].text,
                      &reason))
            continue;
        const char *file = settings->list[i].file;
        return complain(file ? EXIT_BAD_INPUT : EXIT_USAGE, settings->command, "%s%s%s",
                        file ? file : "", file ? ": " : "", reason.text);
    }
    return EXIT_OK;
}
