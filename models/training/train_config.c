#include "models/training/train_config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plain.h"
#include "models/training/task.h"
#include "shoal_models.h"

typedef enum { WHOLE, REAL, CHOICE, SEED, TASK, ATTENTION } field_type;

typedef struct {
    shoal_train_field field;
    field_type type;
    size_t offset;              /* in shoal_train_config */
    double least, most;         /* WHOLE and REAL */
    const char *const *choices; /* CHOICE: an int32_t counts through them; NULL ends */
} field_row;

static const char *const losses[] = {"masked", "all", NULL};
static const char *const truths[] = {"false", "true", NULL};
static const char *const norms[] = {"pre", "post", NULL};
static const char *const activations[] = {"gelu", "relu", NULL};
static const char *const position_kinds[] = {"sinusoidal", "learned", "none", NULL};
static const char *const optimizers[] = {"radam", "adam", "radam-l2", "adam-l2", NULL};

#define PLACE(member) offsetof(shoal_train_config, member)

static const field_row rows[] = {
    {{"task", "what is learnt"}, TASK, PLACE(task), 0, 0, NULL},
    {{"length", "symbols of w in 0w0w"}, WHOLE, PLACE(length), 1, 1 << 24, NULL},
    {{"loss", "over masked positions or all"}, CHOICE, PLACE(loss), 0, 0, losses},
    {{"attention", "kind of attention"}, ATTENTION, PLACE(model.attention), 0, 0, NULL},
    {{"shared_qk", "one projection for queries and keys"},
     CHOICE,
     PLACE(model.shared_qk),
     0,
     0,
     truths},
    {{"layers", "encoder layers"}, WHOLE, PLACE(model.layers), 1, 1024, NULL},
    {{"heads", "heads of a layer"}, WHOLE, PLACE(model.heads), 1, 1024, NULL},
    {{"head_dim", "features of a head"}, WHOLE, PLACE(model.head_dim), 1, 4096, NULL},
    {{"feed_forward", "features inside a feed-forward"},
     WHOLE,
     PLACE(model.feed_forward),
     1,
     1 << 20,
     NULL},
    {{"norm", "pre or post: before a block, or after its sum"},
     CHOICE,
     PLACE(model.norm),
     0,
     0,
     norms},
    {{"activation", "gelu or relu"}, CHOICE, PLACE(model.activation), 0, 0, activations},
    {{"positions", "sinusoidal, learned or none"},
     CHOICE,
     PLACE(model.positions),
     0,
     0,
     position_kinds},
    {{"dropout", "share of features set to 0 in training"},
     REAL,
     PLACE(model.dropout),
     0,
     0.99,
     NULL},
    {{"optimizer", "radam, adam; -l2: weight decay in the gradient"},
     CHOICE,
     PLACE(optimizer),
     0,
     0,
     optimizers},
    {{"learning_rate", "largest step of a weight"},
     REAL,
     PLACE(learning_rate),
     1e-12,
     10,
     NULL},
    {{"beta1", "decay of the gradient's mean"}, REAL, PLACE(beta1), 0, 0.999999, NULL},
    {{"beta2", "decay of the squared gradient's mean"},
     REAL,
     PLACE(beta2),
     0,
     0.9999999,
     NULL},
    {{"epsilon", "added to the root of the latter"},
     REAL,
     PLACE(epsilon),
     1e-30,
     1,
     NULL},
    {{"weight_decay", "per step and learning rate"},
     REAL,
     PLACE(weight_decay),
     0,
     10,
     NULL},
    {{"clip", "largest norm of the whole gradient; 0: any"},
     REAL,
     PLACE(clip),
     0,
     1e30,
     NULL},
    {{"warmup", "steps until the learning rate is whole"},
     WHOLE,
     PLACE(warmup),
     0,
     1e15,
     NULL},
    {{"plateau_patience", "validations without a lower loss it forgives; 0: all"},
     WHOLE,
     PLACE(plateau_patience),
     0,
     1e9,
     NULL},
    {{"plateau_factor", "what it is multiplied by then"},
     REAL,
     PLACE(plateau_factor),
     1e-6,
     1,
     NULL},
    {{"average", "decay of averaged weights; 0: none"},
     REAL,
     PLACE(average),
     0,
     0.999999,
     NULL},
    {{"batch", "sequences of a step"}, WHOLE, PLACE(batch), 1, 1 << 20, NULL},
    {{"steps", "steps in all"}, WHOLE, PLACE(steps), 0, 1e15, NULL},
    {{"validate_every", "steps between validations"},
     WHOLE,
     PLACE(validate_every),
     1,
     1e15,
     NULL},
    {{"validate_batches", "fresh batches of a validation"},
     WHOLE,
     PLACE(validate_batches),
     1,
     1 << 20,
     NULL},
    {{"stop_after", "validations in a row without a mistake that end it; 0: never"},
     WHOLE,
     PLACE(stop_after),
     0,
     1e9,
     NULL},
    {{"seed", "of weights, data and dropout"}, SEED, PLACE(seed), 0, 0, NULL},
};
enum { ROWS = sizeof rows / sizeof *rows };

const shoal_train_field *shoal_train_describe(int index) {
    return index >= 0 && index < ROWS ? &rows[index].field : NULL;
}

int sh_train_field_may_differ(int index) {
    return rows[index].offset == PLACE(steps);
}

/* ---- Reading text ---------------------------------------------------------------- */

/* Flags are written with '-' where files have '_'. */
static int same_name(const char *name, const char *written) {
    for (; *name; name++, written++)
        if (*name != (*written == '-' ? '_' : *written))
            return 0;
    return !*written;
}

static const field_row *find_row(const char *written) {
    for (int i = 0; i < ROWS; i++)
        if (same_name(rows[i].field.name, written))
            return &rows[i];
    return NULL;
}

/* The ends of a real's range are floats, as its values are. */
static bool in_range(const field_row *row, double value) {
    const bool real = row->type == REAL;
    return value >= (real ? (double)(float)row->least : row->least) &&
           value <= (real ? (double)(float)row->most : row->most);
}

static shoal_status set_whole(shoal_context *context, const field_row *row, void *place,
                              const char *text) {
    char *rest;
    errno = 0;
    const long long value = strtoll(text, &rest, 10);
    if (rest == text || *rest || errno || !in_range(row, (double)value))
        return sh_fail(context, SHOAL_INVALID,
                       "%s is \"%s\"; it must be a whole number from %.0f to %.0f",
                       row->field.name, text, row->least, row->most);
    memcpy(place, &(int64_t){value}, sizeof(int64_t));
    return SHOAL_OK;
}

static shoal_status set_real(shoal_context *context, const field_row *row, void *place,
                             const char *text) {
    double value;
    if (!sh_read_c(text, &value) || !in_range(row, (double)(float)value))
        return sh_fail(context, SHOAL_INVALID,
                       "%s is \"%s\"; it must be a number from %.9g to %.9g",
                       row->field.name, text, row->least, row->most);
    memcpy(place, &(float){(float)value}, sizeof(float));
    return SHOAL_OK;
}

static shoal_status set_choice(shoal_context *context, const field_row *row, void *place,
                               const char *text) {
    char names[TRAIN_TEXT] = "";
    for (int32_t i = 0; row->choices[i]; i++) {
        if (strcmp(row->choices[i], text) == 0) {
            memcpy(place, &i, sizeof i);
            return SHOAL_OK;
        }
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                 row->choices[i]);
    }
    return sh_fail(context, SHOAL_INVALID, "%s is \"%s\"; it must be one of %s",
                   row->field.name, text, names);
}

static shoal_status set_seed(shoal_context *context, const field_row *row, void *place,
                             const char *text) {
    char *rest;
    errno = 0;
    const unsigned long long value = strtoull(text, &rest, 10);
    if (text[0] < '0' || text[0] > '9' || *rest || errno)
        return sh_fail(context, SHOAL_INVALID,
                       "%s is \"%s\"; it must be a whole number from 0 to %" PRIu64,
                       row->field.name, text, UINT64_MAX);
    memcpy(place, &(uint64_t){value}, sizeof(uint64_t));
    return SHOAL_OK;
}

static shoal_status set_task(shoal_context *context, void *place, const char *text) {
    const task_kind *task;
    shoal_status status = sh_task_find(context, text, &task);
    if (status == SHOAL_OK)
        snprintf(place, sizeof((shoal_train_config *)0)->task, "%s", task->name);
    return status;
}

shoal_status shoal_train_set(shoal_context *context, shoal_train_config *config,
                             const char *name, const char *text) {
    if (!context || !config || !name || !text)
        return sh_fail(context, SHOAL_INVALID, "context, config, name or text is NULL");
    const field_row *row = find_row(name);
    if (!row)
        return sh_fail(context, SHOAL_INVALID, "there is no field \"%s\"", name);
    void *place = (char *)config + row->offset;
    switch (row->type) {
    case WHOLE: return set_whole(context, row, place, text);
    case REAL: return set_real(context, row, place, text);
    case CHOICE: return set_choice(context, row, place, text);
    case SEED: return set_seed(context, row, place, text);
    case TASK: return set_task(context, place, text);
    case ATTENTION: break;
    }
    return shoal_attention_parse(context, text, place);
}

/* ---- Writing text ---------------------------------------------------------------- */

/* The shortest decimal that reads back to the same float. */
static void print_real(char *text, size_t size, float value) {
    double back;
    for (int digits = 1; digits <= 9; digits++) {
        sh_print_c(text, size, "%.*g", digits, (double)value);
        if (sh_read_c(text, &back) && (float)back == value)
            break;
    }
}

static int32_t count_choices(const field_row *row) {
    int32_t count = 0;
    while (row->choices[count])
        count++;
    return count;
}

size_t shoal_train_get(const shoal_train_config *config, int index, char *text,
                       size_t size) {
    char whole[TRAIN_TEXT] = "";
    if (!config || index < 0 || index >= ROWS)
        return 0;
    const field_row *row = &rows[index];
    const void *place = (const char *)config + row->offset;
    int32_t choice = 0;
    switch (row->type) {
    case WHOLE: snprintf(whole, sizeof whole, "%" PRId64, *(const int64_t *)place); break;
    case REAL: print_real(whole, sizeof whole, *(const float *)place); break;
    case CHOICE:
        memcpy(&choice, place, sizeof choice);
        if (choice >= 0 && choice < count_choices(row))
            snprintf(whole, sizeof whole, "%s", row->choices[choice]);
        break;
    case SEED: snprintf(whole, sizeof whole, "%" PRIu64, *(const uint64_t *)place); break;
    case TASK: snprintf(whole, sizeof whole, "%s", (const char *)place); break;
    case ATTENTION: shoal_attention_print(place, whole, sizeof whole); break;
    }
    return (size_t)snprintf(text, size, "%s", whole);
}

/* ---- Checking -------------------------------------------------------------------- */

static shoal_status check_row(shoal_context *context, const field_row *row,
                              const shoal_train_config *config) {
    const void *place = (const char *)config + row->offset;
    int32_t choice = 0;
    double value = row->least;
    switch (row->type) {
    case WHOLE: value = (double)*(const int64_t *)place; break;
    case REAL: value = (double)*(const float *)place; break;
    case CHOICE:
        memcpy(&choice, place, sizeof choice);
        if (choice < 0 || choice >= count_choices(row))
            return sh_fail(context, SHOAL_INVALID,
                           "%s is %d; there are %d choices, from 0", row->field.name,
                           (int)choice, (int)count_choices(row));
        return SHOAL_OK;
    default: return SHOAL_OK;
    }
    if (in_range(row, value))
        return SHOAL_OK;
    return sh_fail(context, SHOAL_INVALID, "%s is %g; it must be from %.9g to %.9g",
                   row->field.name, value, row->least, row->most);
}

shoal_status sh_train_config_check(shoal_context *context,
                                   const shoal_train_config *config) {
    const task_kind *task;
    shoal_status status = sh_task_find(context, config->task, &task);
    for (int i = 0; i < ROWS && status == SHOAL_OK; i++)
        status = check_row(context, &rows[i], config);
    return status;
}

shoal_status shoal_train_defaults(shoal_context *context, const char *task,
                                  shoal_train_config *config) {
    const task_kind *found;
    if (!context || !config || !task)
        return sh_fail(context, SHOAL_INVALID, "context, task or config is NULL");
    shoal_status status = sh_task_find(context, task, &found);
    if (status != SHOAL_OK)
        return status;
    *config = found->defaults;
    return shoal_attention_parse(context, "full", &config->model.attention);
}
