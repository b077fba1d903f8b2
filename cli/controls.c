#include "controls.h"

#include <stdbool.h>
#include <string.h>

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

void control_clear(shoal_model *model, row_weights weights) {
    shoal_parameter one;
    for (int i = 0; shoal_model_parameter(model, i, &one); i++) {
        size_t count = 1;
        for (int r = 0; r < one.rank; r++)
            count *= (size_t)one.shape[r];
        if (weights != AS_TRAINED && is_cleared(one.name, weights))
            memset(one.values, 0, count * sizeof *one.values);
    }
}
