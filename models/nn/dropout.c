#include "models/nn/dropout.h"

#include "base/random.h"
#include "models/nn/rows.h"

/* One 64-bit number decides four elements, 16 bits each. A row's numbers are counted from
   row << 32, so that rows of any width below 2^34 do not meet. */
void sh_dropout_factors(const dropout *mask, int64_t row, int64_t left, int64_t count,
                        float *factors) {
    const uint32_t dropped = (uint32_t)(mask->rate * 65536.0f + 0.5f);
    const float kept = 65536.0f / (65536.0f - (float)dropped);
    const uint64_t key =
        sh_random_bits(mask->seed ^ sh_random_bits(mask->site, STREAM_DROPOUT, 0),
                       STREAM_DROPOUT, mask->step);
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t column = (uint64_t)(left + i);
        if (i == 0 || column % 4 == 0)
            bits =
                sh_random_bits(key, STREAM_DROPOUT, ((uint64_t)row << 32) + column / 4);
        uint32_t number = (uint32_t)(bits >> (16 * (column % 4))) & 0xffffu;
        factors[i] = number < dropped ? 0 : kept;
    }
}

typedef struct {
    const crew *by;
    const dropout *mask;
    int64_t rows, size;
    const float *x;
    float *y;
} dropout_call;

enum { PIECE = 256 };

static void apply_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const dropout_call *c = shared;
    float factors[PIECE];
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows);
    for (int64_t row = task * ROW_BLOCK; row < last; row++)
        for (int64_t left = 0; left < c->size; left += PIECE) {
            int64_t some = min(PIECE, c->size - left);
            const float *x = c->x + row * c->size + left;
            float *y = c->y + row * c->size + left;
            sh_dropout_factors(c->mask, row, left, some, factors);
            for (int64_t i = 0; i < some; i++)
                y[i] = x[i] * factors[i];
        }
}

void sh_dropout_apply(const crew *by, const dropout *mask, int64_t rows, int64_t size,
                      const float *x, float *y) {
    dropout_call c = {by, mask, rows, size, x, y};
    sh_team_run(by->workers, ceil_divide(rows, ROW_BLOCK), apply_task, &c);
}
