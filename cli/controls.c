#include "controls.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

static bool is_cleared(const char *name, row_weights weights) {
    const char *const ends[][2] = {{"attention.query.weight", "attention.query.bias"},
                                   {"attention.output.weight", "attention.output.bias"}};
    const int which = weights == UNIFORM ? 0 : 1;
    return ends_with(name, ends[which][0]) || ends_with(name, ends[which][1]);
}

static void clear(shoal_model *model, row_weights weights) {
    shoal_parameter one;
    for (int i = 0; shoal_model_parameter(model, i, &one); i++) {
        size_t count = 1;
        for (int r = 0; r < one.rank; r++)
            count *= (size_t)one.shape[r];
        if (is_cleared(one.name, weights))
            memset(one.values, 0, count * sizeof *one.values);
    }
}

bool control_begin(shoal_model *model, row_weights weights, control_state *state) {
    *state = (control_state){0};
    if (weights == AS_TRAINED)
        return true;
    state->size = shoal_model_vectors(model, &state->values, NULL);
    state->kept = malloc(sizeof *state->kept * (size_t)state->size);
    if (!state->kept)
        return false;
    memcpy(state->kept, state->values, sizeof *state->kept * (size_t)state->size);
    clear(model, weights);
    return true;
}

void control_end(control_state *state) {
    if (state->kept)
        memcpy(state->values, state->kept, sizeof *state->kept * (size_t)state->size);
    free(state->kept);
    state->kept = NULL;
}

static bool add(shoal_context *context, const char *spelling, eval_kind *row) {
    const shoal_status status = shoal_attention_parse(context, spelling, &row->kind);
    if (status != SHOAL_OK) {
        complain_status(status, EXIT_USAGE, "eval", context);
        return false;
    }
    if (!row->name[0])
        shoal_attention_print(&row->kind, row->name, sizeof row->name);
    return true;
}

int eval_kinds(shoal_context *context, const eval_choice *choice, eval_kind *rows) {
    static const struct {
        const char *spelling;
        eval_kind row;
    } controls[] = {{"full", {"uniform attention", {0}, UNIFORM, true}},
                    {"full", {"no attention", {0}, NO_ATTENTION, true}},
                    {"clustered-1", {"", {0}, AS_TRAINED, true}}};
    char trained[1][EVAL_NAME];
    char(*names)[EVAL_NAME] = choice->names;
    int count = 0, kinds = choice->kinds;
    if (kinds == 0) {
        shoal_attention_print(choice->trained, trained[0], EVAL_NAME);
        names = trained;
        kinds = 1;
    }
    for (int i = 0; i < kinds; i++) {
        rows[count] = (eval_kind){.weights = AS_TRAINED};
        if (!add(context, names[i], &rows[count++]))
            return -1;
    }
    for (size_t i = 0; i < sizeof controls / sizeof *controls && choice->controls; i++) {
        rows[count] = controls[i].row;
        if (!add(context, controls[i].spelling, &rows[count++]))
            return -1;
    }
    return count;
}
