/* Configurations as text: tables of fields, through which command lines, JSON and
   checkpoints read and write them. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "train/train.h"

/* ---- The fields -------------------------------------------------------------------- */

static const char *const truths[] = {"false", "true", NULL};
static const char *const norms[] = {"pre", "post", NULL};
static const char *const activations[] = {"gelu", "relu", NULL};
static const char *const positions[] = {"sinusoidal", "learned", "none", NULL};
static const char *const optimizers[] = {"radam", "adam", "radam-l2", "adam-l2", NULL};

/* The common fields in the order of files. A row has flags of which a task must have
   one, or 0 for fields of all tasks. A task's own fields come before them. */
#define ROW(flags, field_name, field_type, member, low, high, words, text)               \
    {                                                                                    \
        flags, {                                                                         \
            .name = field_name, .type = SHOAL_FIELD_TYPE_##field_type,                   \
            .offset = offsetof(shoal_train_config, member), .min = low, .max = high,     \
            .choices = words, .about = text                                              \
        }                                                                                \
    }
#define INTEGER(flags, name, member, low, high, text)                                    \
    ROW(flags, name, INTEGER, member, low, high, NULL, text)
#define REAL(flags, name, member, low, high, text)                                       \
    ROW(flags, name, REAL, member, low, high, NULL, text)
#define CHOICE(flags, name, member, words, text)                                         \
    ROW(flags, name, CHOICE, member, 0, 0, words, text)

enum {
    ALL = 0,
    MODEL = SHOAL_TASK_MODEL,
    EPOCHS = SHOAL_TASK_EPOCHS,
    ENDLESS = SHOAL_TASK_ENDLESS
};

static const struct {
    unsigned flags;
    shoal_field field;
} common[] = {
    INTEGER(EPOCHS, "epochs", epochs, 1, 1e6, "passes over the data"),
    ROW(ALL, "attention", ATTENTION, model.attention, 0, 0, NULL, "kind of attention"),
    CHOICE(MODEL, "shared_qk", model.shared_qk, truths,
           "one projection for queries and keys"),
    INTEGER(SHOAL_TASK_CONVOLUTIONS, "convolutions", model.convolutions, 0, 1024,
            "convolutions before the layers"),
    INTEGER(MODEL, "layers", model.layers, 1, 1024, "encoder layers"),
    INTEGER(MODEL, "heads", model.heads, 1, 1024, "heads per layer"),
    INTEGER(MODEL, "head_dim", model.head_dim, 1, 4096, "dimension of a head"),
    INTEGER(MODEL, "feed_forward", model.feed_forward, 1, 1 << 20,
            "width of the feed-forward network"),
    CHOICE(MODEL, "norm", model.norm, norms,
           "pre: before each block; post: after each residual sum"),
    CHOICE(MODEL, "activation", model.activation, activations,
           "activation of the feed-forward network"),
    CHOICE(MODEL, "positions", model.positions, positions, "position encoding"),
    REAL(MODEL, "dropout", model.dropout, 0, 0.99, "share of features set to 0"),
    CHOICE(ALL, "optimizer", optimizer.kind, optimizers, "optimization method"),
    REAL(ALL, "learning_rate", learning_rate, 1e-12, 10, "learning rate after warm-up"),
    REAL(ALL, "beta1", optimizer.beta1, 0, 0.999999, "decay of the gradient's mean"),
    REAL(ALL, "beta2", optimizer.beta2, 0, 0.9999999, "decay of the mean of its square"),
    REAL(ALL, "epsilon", optimizer.epsilon, 1e-30, 1,
         "added to the root of the mean square"),
    REAL(ALL, "weight_decay", optimizer.weight_decay, 0, 10, "weight decay"),
    REAL(ALL, "clip", clip, 0, 1e30, "maximum norm of the gradient; 0 for no limit"),
    INTEGER(ALL, "warmup", warmup, 0, 1e15, "steps of warm-up"),
    REAL(SHOAL_TASK_WARMUP_SHARE, "warmup_share", warmup_share, 0, 1,
         "share of the steps, if warmup is 0"),
    CHOICE(EPOCHS, "decay", decay, truths,
           "decay the learning rate linearly to 0 over all steps"),
    INTEGER(EPOCHS, "decay_steps", decay_steps, 0, 1e15,
            "step at which the decay reaches 0"),
    INTEGER(ALL, "plateau_patience", plateau_patience, 0, 1e9,
            "validations without improvement before the rate drops; 0: never drop it"),
    REAL(ALL, "plateau_factor", plateau_factor, 1e-6, 1,
         "factor of the rate after a plateau"),
    REAL(ALL, "average", optimizer.average, 0, 0.999999, "decay of averaged weights"),
    INTEGER(ALL, "batch", batch, 1, 1 << 20, "sequences per step"),
    INTEGER(ALL, "steps", steps, 0, 1e15, "total number; 0: as many as the epochs need"),
    INTEGER(ALL, "average_every", average_every, 0, 1e9,
            "steps between averages over processes; 0: sum gradients every step"),
    INTEGER(SHOAL_TASK_VALIDATE_EVERY, "validate_every", validate_every, 1, 1e15,
            "steps between validations"),
    INTEGER(ENDLESS, "validate_batches", validate_batches, 1, 1 << 20,
            "batches per validation"),
    INTEGER(ENDLESS, "stop_after", stop_after, 0, 1e9,
            "consecutive validations without a mistake that end the training; 0: never"),
    ROW(ALL, "seed", SEED, seed, 0, 0, NULL, "seed of weights, data and dropout"),
};
enum { COMMON = sizeof common / sizeof *common };

static const shoal_field name_field = {.name = "task",
                                       .type = SHOAL_FIELD_TYPE_NAME,
                                       .about = "name of the task"};

static const shoal_train_task *const tasks[] = {&sh_copy_task,
#ifdef SHOAL_HAVE_SPEECH
                                                &sh_speech_task,
#endif
                                                &sh_glue_task, &sh_squad_task};
enum { TASKS = sizeof tasks / sizeof *tasks };

const char *shoal_task_name(int index) {
    return index >= 0 && index < TASKS ? tasks[index]->name : NULL;
}

const shoal_train_task *shoal_task_find(const char *name) {
    for (int i = 0; i < TASKS && name; i++)
        if (strcmp(tasks[i]->name, name) == 0)
            return tasks[i];
    return NULL;
}

const shoal_field *shoal_task_field(const shoal_train_task *task, int index) {
    if (!task || index < 0)
        return NULL;
    if (index-- == 0)
        return &name_field;
    for (const shoal_field *own = task->fields; own && own->name; own++)
        if (index-- == 0)
            return own;
    for (int i = 0; i < COMMON; i++)
        if ((common[i].flags == ALL || (common[i].flags & task->flags)) && index-- == 0)
            return &common[i].field;
    return NULL;
}

const shoal_field *shoal_task_field_find(const shoal_train_task *task, const char *name) {
    const shoal_field *field;
    for (int i = 0; name && (field = shoal_task_field(task, i)); i++) {
        size_t k = 0; /* options are spelled with '-', files with '_' */
        while (field->name[k] && field->name[k] == (name[k] == '-' ? '_' : name[k]))
            k++;
        if (!field->name[k] && !name[k])
            return field;
    }
    return NULL;
}

/* ---- Defaults ---------------------------------------------------------------------- */

/* Fills a complete configuration with the paper's settings for the masked copy task;
   other tasks override them. */
static shoal_status fill_defaults(shoal_context *context, const shoal_train_task *task,
                                  const char *preset, shoal_train_config *whole) {
    const char *other = preset && strcmp(preset, "default") != 0 ? preset : NULL;
    memset(whole, 0, task->config_size);
    *whole = (shoal_train_config){.size = task->config_size,
                                  .model = {.size = sizeof whole->model,
                                            .layers = 4,
                                            .heads = 6,
                                            .head_dim = 32,
                                            .feed_forward = 768,
                                            .norm = SHOAL_NORM_PRE,
                                            .activation = SHOAL_ACTIVATION_GELU,
                                            .positions = SHOAL_POSITIONS_SINUSOIDAL},
                                  .optimizer = shoal_optimizer_config_defaults(),
                                  .learning_rate = 2e-4f,
                                  .clip = 10,
                                  .plateau_patience = 30,
                                  .plateau_factor = 0.5f,
                                  .batch = 32,
                                  .steps = 5000,
                                  .validate_every = 100,
                                  .validate_batches = 5,
                                  .seed = 1};
    if (task->defaults ? task->defaults(task->user, other, whole) == 0 : !other)
        return SHOAL_OK;
    return sh_fail(context, SHOAL_INVALID,
                   "there is no preset \"%.40s\" for %s; speech has default and paper, "
                   "and both with -lf-mmi",
                   preset, task->name);
}

shoal_status shoal_config_init(shoal_context *context, const shoal_train_task *task,
                               const char *preset, void *config, size_t size) {
    if (!config || size < sizeof(shoal_train_config))
        return sh_fail(context, SHOAL_INVALID, "config: NULL or too small");
    memset(config, 0, size);
    if (!task || task->config_size < sizeof(shoal_train_config))
        return sh_fail(context, SHOAL_INVALID, "task: it is NULL");
    if (size >= task->config_size)
        return fill_defaults(context, task, preset, config);
    shoal_train_config *whole =
        sh_allocate(context, task->config_size); /* of a newer library */
    if (!whole)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    const shoal_status status = fill_defaults(context, task, preset, whole);
    whole->size = size;
    memcpy(config, whole, size);
    sh_free(whole);
    return status;
}

shoal_status sh_config_copy(shoal_context *context, const shoal_train_task *task,
                            const void *config, shoal_train_config **copy) {
    const shoal_train_config *given = config;
    *copy = NULL;
    if (!given || given->size < sizeof *given || task->config_size < sizeof *given)
        return sh_fail(context, SHOAL_INVALID,
                       "config: it must be initialised by its _defaults function");
    shoal_train_config *whole = *copy = sh_allocate(context, task->config_size);
    if (!whole)
        return SHOAL_NO_MEMORY;
    fill_defaults(context, task, NULL, whole);
    const shoal_status status =
        sh_read_struct(context, "config", given, whole, task->config_size);
    whole->model.size = sizeof whole->model;
    whole->optimizer.size = sizeof whole->optimizer;
    if (status != SHOAL_OK) {
        sh_release(context, whole);
        *copy = NULL;
    }
    return status;
}

/* ---- From text --------------------------------------------------------------------- */

/* "A, B, C" */
static void join_name(char names[SHOAL_VALUE_SIZE], const char *name) {
    const size_t used = strlen(names);
    snprintf(names + used, SHOAL_VALUE_SIZE - used, "%s%s", used ? ", " : "", name);
}

/* Reports the values that a field accepts. */
static shoal_status refuse(shoal_context *context, const shoal_field *field,
                           const char *text, const char *rule) {
    return sh_fail(context, SHOAL_INVALID, "%s is \"%s\"; it must be %s", field->name,
                   text, rule);
}

/* The limits of a real field are floats, like its values. */
static shoal_status set_number(shoal_context *context, const shoal_field *field,
                               void *place, const char *text) {
    char *rest, rule[96];
    const bool real = field->type == SHOAL_FIELD_TYPE_REAL;
    const double low = real ? (double)(float)field->min : field->min;
    const double high = real ? (double)(float)field->max : field->max;
    errno = 0;
    const long long whole = real ? 0 : strtoll(text, &rest, 10);
    const float value = real ? (float)strtod(text, &rest) : 0;
    const double found = real ? (double)value : (double)whole;
    snprintf(rule, sizeof rule,
             real ? "a number from %.9g to %.9g" : "a whole number from %.0f to %.0f",
             field->min, field->max);
    if (rest == text || *rest || (!real && errno) || !(found >= low && found <= high))
        return refuse(context, field, text, rule);
    if (real)
        memcpy(place, &value, sizeof value);
    else
        memcpy(place, &(int64_t){whole}, sizeof(int64_t));
    return SHOAL_OK;
}

static shoal_status set_choice(shoal_context *context, const shoal_field *field,
                               void *place, const char *text) {
    char names[SHOAL_VALUE_SIZE] = "";
    for (int32_t i = 0; field->choices[i]; i++) {
        if (strcmp(field->choices[i], text) == 0) {
            memcpy(place, &i, sizeof i);
            return SHOAL_OK;
        }
        join_name(names, field->choices[i]);
    }
    return sh_fail(context, SHOAL_INVALID, "%s is \"%s\"; it must be one of %s",
                   field->name, text, names);
}

static shoal_status set_seed(shoal_context *context, const shoal_field *field,
                             void *place, const char *text) {
    char *rest, rule[64];
    errno = 0;
    const unsigned long long value = strtoull(text, &rest, 10);
    snprintf(rule, sizeof rule, "a whole number from 0 to %" PRIu64, UINT64_MAX);
    if (text[0] < '0' || text[0] > '9' || *rest || errno)
        return refuse(context, field, text, rule);
    memcpy(place, &(uint64_t){value}, sizeof(uint64_t));
    return SHOAL_OK;
}

static shoal_status set_text(shoal_context *context, const shoal_field *field,
                             void *place, const char *text) {
    if (strlen(text) >= SHOAL_TEXT_SIZE)
        return sh_fail(context, SHOAL_INVALID, "%s has more than %d bytes", field->name,
                       SHOAL_TEXT_SIZE - 1);
    if (field->valid && !field->valid(field->user, text))
        return refuse(context, field, text, field->rule);
    snprintf(place, SHOAL_TEXT_SIZE, "%s", text);
    return SHOAL_OK;
}

static shoal_status check_name(shoal_context *context, const shoal_train_task *task,
                               const char *text) {
    char names[SHOAL_VALUE_SIZE] = "";
    if (strcmp(text, task->name) == 0)
        return SHOAL_OK;
    if (shoal_task_find(text))
        return sh_fail(context, SHOAL_INVALID, "task is %s, not %s", task->name, text);
    for (int i = 0; i < TASKS; i++)
        join_name(names, tasks[i]->name);
    return sh_fail(context, SHOAL_INVALID, "there is no task \"%.40s\"; tasks: %s", text,
                   names);
}

static shoal_status set_field(shoal_context *context, const shoal_train_task *task,
                              void *config, const shoal_field *field, const char *text) {
    void *place = (char *)config + field->offset;
    switch (field->type) {
    case SHOAL_FIELD_TYPE_NAME: return check_name(context, task, text);
    case SHOAL_FIELD_TYPE_INTEGER:
    case SHOAL_FIELD_TYPE_REAL: return set_number(context, field, place, text);
    case SHOAL_FIELD_TYPE_CHOICE: return set_choice(context, field, place, text);
    case SHOAL_FIELD_TYPE_SEED: return set_seed(context, field, place, text);
    case SHOAL_FIELD_TYPE_TEXT: return set_text(context, field, place, text);
    case SHOAL_FIELD_TYPE_ATTENTION: return shoal_attention_parse(context, text, place);
    case SHOAL_FIELD_TYPE_COUNT: break;
    }
    return sh_fail(context, SHOAL_INVALID, "%s: its field has an invalid type",
                   field->name);
}

shoal_status shoal_config_set(shoal_context *context, const shoal_train_task *task,
                              void *config, const char *name, const char *text) {
    if (!task || !config || !name || !text)
        return sh_fail(context, SHOAL_INVALID, "task, config, name or text is NULL");
    const shoal_field *field = shoal_task_field_find(task, name);
    if (field)
        return set_field(context, task, config, field, text);
    for (int i = 0; i < TASKS; i++)
        if ((field = shoal_task_field_find(tasks[i], name)))
            return sh_fail(context, SHOAL_INVALID, "the task %s has no %s", task->name,
                           field->name);
    return sh_fail(context, SHOAL_INVALID, "there is no field \"%s\"", name);
}

/* ---- To text ----------------------------------------------------------------------- */

size_t sh_field_print(const shoal_train_task *task, const void *config,
                      const shoal_field *field, char *text, size_t size) {
    const void *place = (const char *)config + field->offset;
    char real[32];
    switch (field->type) {
    case SHOAL_FIELD_TYPE_NAME: place = task->name; break;
    case SHOAL_FIELD_TYPE_INTEGER:
        return (size_t)snprintf(text, size, "%" PRId64, *(const int64_t *)place);
    case SHOAL_FIELD_TYPE_REAL:
        place = sh_real_text(real, (double)*(const float *)place, true);
        break;
    case SHOAL_FIELD_TYPE_CHOICE: place = field->choices[*(const int32_t *)place]; break;
    case SHOAL_FIELD_TYPE_SEED:
        return (size_t)snprintf(text, size, "%" PRIu64, *(const uint64_t *)place);
    case SHOAL_FIELD_TYPE_ATTENTION: return shoal_attention_print(place, text, size);
    case SHOAL_FIELD_TYPE_TEXT:
    case SHOAL_FIELD_TYPE_COUNT: break;
    }
    return (size_t)snprintf(text, size, "%s", (const char *)place);
}

size_t shoal_config_get(const shoal_train_task *task, const void *config,
                        const char *name, char *text, size_t size) {
    const shoal_field *field = config ? shoal_task_field_find(task, name) : NULL;
    return field ? sh_field_print(task, config, field, text, size)
                 : (size_t)snprintf(text, size, "%s", "");
}

/* Numbers and booleans become JSON numbers and booleans. */
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

size_t shoal_config_json(const shoal_train_task *task, const void *config, char *text,
                         size_t size) {
    json_t *object = json_object();
    char value[SHOAL_VALUE_SIZE];
    const shoal_field *field;
    for (int i = 0; config && (field = shoal_task_field(task, i)); i++) {
        sh_field_print(task, config, field, value, sizeof value);
        json_object_set_new(object, field->name,
                            field->type == SHOAL_FIELD_TYPE_TEXT ? json_string(value)
                                                                 : json_of_text(value));
    }
    const size_t flags = JSON_REAL_PRECISION(9);
    const size_t length = json_dumpb(object, NULL, 0, flags);
    if (length < size)
        text[json_dumpb(object, text, size, flags)] = 0;
    else if (size > 0)
        text[0] = 0;
    json_decref(object);
    return length;
}

/* ---- Fields in files -------------------------------------------------------------- */

/* Stores the attention with all options, so that a file keeps its meaning if defaults
   change. */
size_t sh_field_store(const shoal_train_task *task, const void *config,
                      const shoal_field *field, char *text, size_t size) {
    const void *place = (const char *)config + field->offset;
    return field->type == SHOAL_FIELD_TYPE_ATTENTION
               ? shoal_attention_print_all(place, text, size)
               : sh_field_print(task, config, field, text, size);
}

/* Value of a field for files written before the field existed; NULL for original
   fields. */
static const char *value_before(const char *field) {
    static const char *const values[][2] =
        {{"rate", "16000"},     {"join_after", "0"},    {"average_every", "0"},
         {"loss", "ctc"},       {"every", "1"},         {"topology", "chain"},
         {"order", "4"},        {"extra", "2000"},      {"whole", "false"},
         {"leak", "0.1"},       {"output_l2", "5e-05"}, {"output_range", "0.01"},
         {"convolutions", "0"}, {"pieces", "500"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (strcmp(values[i][0], field) == 0)
            return values[i][1];
    return NULL;
}

/* An attention keeps the meaning that it had when the file was written. */
shoal_status sh_field_restore(shoal_context *context, const shoal_train_task *task,
                              void *config, const shoal_field *field, const char *text) {
    if (!text)
        text = value_before(field->name);
    if (!text)
        return sh_fail(context, SHOAL_INVALID, "the checkpoint has no config.%s",
                       field->name);
    if (field->type == SHOAL_FIELD_TYPE_ATTENTION)
        return shoal_attention_parse_stored(context, text, 1,
                                            (shoal_attention *)((char *)config +
                                                                field->offset));
    return set_field(context, task, config, field, text);
}

#ifndef SHOAL_HAVE_SPEECH
shoal_status shoal_speech_check(shoal_context *context,
                                const shoal_speech_train_config *config, const char *part,
                                const shoal_train_callbacks *callbacks) {
    (void)config, (void)part, (void)callbacks;
    return sh_fail(context, SHOAL_INVALID, "this library was built without speech");
}
#endif
