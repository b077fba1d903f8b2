#define _POSIX_C_SOURCE 200809L
#include "guarded.h"
#include "cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { GUARD = 0xa5, GUARD_BYTES = 64, ALIGNMENT = 64, MOST_BLOCKS = 16 };

static struct {
    unsigned char *start;
    size_t bytes; /* between the guards; 0 for an input, which has none */
} blocks[MOST_BLOCKS];
static int block_count;

static unsigned char *keep_block(size_t bytes, size_t guarded) {
    void *start = NULL;
    assert_true(block_count < MOST_BLOCKS);
    assert_int_equal(posix_memalign(&start, ALIGNMENT, bytes ? bytes : 1), 0);
    blocks[block_count].start = start;
    blocks[block_count++].bytes = guarded;
    return start;
}

void *guarded_input(size_t bytes) {
    return keep_block(bytes, 0);
}

void *guarded_output(size_t bytes) {
    unsigned char *start = keep_block(bytes + 2 * GUARD_BYTES, bytes);
    memset(start, GUARD, bytes + 2 * GUARD_BYTES);
    return start + GUARD_BYTES;
}

void guarded_forget(void) {
    while (block_count > 0)
        free(blocks[--block_count].start);
}

void guarded_finish(const char *what) {
    for (int b = 0; b < block_count; b++) {
        const unsigned char *before = blocks[b].start;
        const unsigned char *after = before + GUARD_BYTES + blocks[b].bytes;
        for (int i = 0; i < GUARD_BYTES && blocks[b].bytes; i++)
            if (before[i] != GUARD || after[i] != GUARD)
                fail_msg("%s wrote outside its output", what);
    }
    guarded_forget();
}

/* ---- Random content ---------------------------------------------------------------- */

uint64_t draw(void) {
    static uint64_t drawn;
    return test_hash(11, 5, drawn++);
}

int draw_below(int bound) {
    return (int)(draw() % (uint64_t)bound);
}

float draw_uniform(void) {
    return (float)((double)(draw() >> 11) / 4503599627370496.0 - 1);
}

static float *fill(float *x, size_t count) {
    for (size_t i = 0; i < count; i++)
        x[i] = draw_uniform();
    return x;
}

float *random_panel(int64_t rows, int width) {
    size_t count = (size_t)(rows * width);
    return fill(guarded_input(count * sizeof(float)), count);
}

float *random_rows(int64_t count, int64_t stride, int64_t dim) {
    size_t elements = count > 0 ? (size_t)((count - 1) * stride + dim) + 1 : 1;
    return fill(guarded_input(elements * sizeof(float)), elements) + 1;
}

int32_t *random_index(int count, int rows) {
    int32_t *index = guarded_input((size_t)count * sizeof *index);
    int shift = rows > 0 ? draw_below(rows) : 0;
    for (int i = 0; i < count; i++)
        index[i] = (rows - 1 - i + shift) % rows;
    return index;
}

/* ---- Pairs ------------------------------------------------------------------------- */

float_pair pair_create(int64_t count) {
    size_t bytes = (size_t)count * sizeof(float);
    float_pair pair = {guarded_output(bytes), guarded_output(bytes), (size_t)count};
    fill(pair.expected, pair.count);
    pair_copy(pair);
    return pair;
}

void pair_copy(float_pair pair) {
    memcpy(pair.actual, pair.expected, pair.count * sizeof(float));
}

static int close_enough(float a, float b, float tolerance) {
    return (isnan(a) && isnan(b)) || a == b || fabsf(a - b) <= tolerance;
}

void pair_compare(float_pair pair, float tolerance, const char *what, const char *who) {
    for (size_t i = 0; i < pair.count; i++)
        if (!close_enough(pair.expected[i], pair.actual[i], tolerance))
            fail_msg("%s of %s: element %zu of %zu is %.9g instead of %.9g", what, who, i,
                     pair.count, (double)pair.actual[i], (double)pair.expected[i]);
}

void bytes_compare(const void *expected, const void *actual, size_t bytes,
                   const char *what, const char *who) {
    if (bytes && memcmp(expected, actual, bytes) != 0)
        fail_msg("%s of %s differs from scalar", what, who);
}
