#include "models/nn/parameters.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "shoal_models.h"

enum { ALIGNMENT = CACHE_LINE / sizeof(float), PIECE = 1 << 16 };

static int64_t aligned(int64_t floats) {
    return (floats + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void sh_parameters_add(parameters *into, parameter_shape shape, const char *format, ...) {
    parameter made = {.rank = shape.rank, .start = shape.start, .spread = shape.spread};
    made.count = 1;
    for (int i = 0; i < shape.rank; i++) {
        made.shape[i] = shape.shape[i];
        made.count = sh_mul_checked(made.count, shape.shape[i]);
    }
    if (made.count < 0 || made.count > INT64_MAX / 64 - into->size) {
        into->overflow = true;
        return;
    }
    made.offset = shape.joined ? into->size : aligned(into->size);
    into->size = made.offset + made.count;
    if (into->list) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(made.name, sizeof made.name, format, arguments);
        va_end(arguments);
        into->list[into->count] = made;
    }
    into->count++;
}

typedef struct {
    parameters *made;
    bool with_values, with_gradients;
} parameter_arrays;

static void place(void *argument, block_layout *block) {
    const parameter_arrays *arrays = argument;
    parameters *made = arrays->made;
    const int64_t size = aligned(made->size);
    block->overflow = made->overflow;
    sh_reserve(block, 1, sizeof *made);
    made->list = sh_reserve(block, made->count, sizeof(parameter));
    if (arrays->with_values)
        made->values = sh_reserve(block, size, sizeof(float));
    if (arrays->with_gradients)
        made->gradients = sh_reserve(block, size, sizeof(float));
}

static shoal_status create(shoal_context *context, describe_function *describe,
                           const void *model, parameter_arrays arrays,
                           parameters **made) {
    *made = NULL;
    parameters counted = {.context = context};
    describe(&counted, model);
    size_t bytes;
    arrays.made = &counted;
    parameters *arena = sh_allocate_parts(context, place, &arrays, &bytes);
    if (!arena)
        return SHOAL_NO_MEMORY;
    memset(arena, 0, bytes);
    *arena = counted;
    arena->count = arena->size = 0;
    describe(arena, model);
    arena->size = aligned(arena->size);
    *made = arena;
    return SHOAL_OK;
}

shoal_status sh_parameters_create(shoal_context *context, describe_function *describe,
                                  const void *model, bool with_gradients,
                                  parameters **made) {
    const parameter_arrays arrays = {.with_values = true,
                                     .with_gradients = with_gradients};
    return create(context, describe, model, arrays, made);
}

shoal_status sh_parameters_list(shoal_context *context, describe_function *describe,
                                const void *model, parameters **made) {
    return create(context, describe, model, (parameter_arrays){0}, made);
}

void sh_parameters_destroy(parameters *arena) {
    if (arena)
        sh_release(arena->context, arena); /* the arena is the beginning of its block */
}

const parameter *sh_parameters_find(const parameters *arena, const char *name) {
    for (int64_t i = 0; i < arena->count; i++)
        if (strcmp(arena->list[i].name, name) == 0)
            return &arena->list[i];
    return NULL;
}

nn_tensor sh_parameters_tensor(const parameters *arena, const char *format, ...) {
    char name[PARAMETER_NAME];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    const parameter *found = sh_parameters_find(arena, name);
    if (!found)
        return (nn_tensor){0};
    return (nn_tensor){.data = arena->values + found->offset,
                       .gradient = arena->gradients ? arena->gradients + found->offset
                                                    : NULL};
}

static float first_value(const parameter *entry, uint64_t seed, uint64_t counter) {
    if (entry->start == START_ONE)
        return 1;
    if (entry->start == START_NORMAL)
        return entry->spread * random_normal(seed, STREAM_WEIGHTS, counter);
    /* [outputs][inputs], or [taps][outputs][inputs], of which a sum has taps x inputs. */
    int64_t inputs = entry->shape[entry->rank - 1],
            outputs = entry->shape[entry->rank - 2];
    int64_t taps = entry->rank == 3 ? entry->shape[0] : 1;
    double bound = sqrt(6.0 / (double)(taps * (inputs + outputs)));
    double uniform = (double)(random_bits(seed, STREAM_WEIGHTS, counter) >> 11) * 0x1p-53;
    return (float)(bound * (2 * uniform - 1));
}

void sh_parameters_start(parameters *arena, uint64_t seed) {
    for (int64_t i = 0; i < arena->count; i++) {
        const parameter *entry = &arena->list[i];
        float *values = arena->values + entry->offset;
        uint64_t own_seed = random_bits(seed, STREAM_WEIGHTS, (uint64_t)i);
        for (int64_t j = 0; j < entry->count; j++)
            values[j] = entry->start == START_ZERO
                            ? 0
                            : first_value(entry, own_seed, (uint64_t)j);
    }
}

static void clear_task(void *shared, int64_t task, int thread UNUSED) {
    parameters *arena = shared;
    int64_t first = task * PIECE;
    memset(arena->gradients + first, 0,
           sizeof(float) * (size_t)min(PIECE, arena->size - first));
}

void sh_parameters_clear_gradients(const shoal_context *context, parameters *arena) {
    sh_run_tasks(context, ceil_divide(arena->size, PIECE), clear_task, arena);
}

/* ---- Random numbers for callers, as those that the first values come from ---------- */

uint64_t shoal_random(uint64_t seed, uint32_t stream, uint64_t counter) {
    return random_bits(seed, STREAM_CALLER + stream, counter);
}

uint64_t shoal_random_below(uint64_t seed, uint32_t stream, uint64_t counter,
                            uint64_t bound) {
    return random_below(seed, STREAM_CALLER + stream, counter, bound);
}

uint64_t shoal_random_mix(uint64_t x) {
    return random_mix(x);
}
