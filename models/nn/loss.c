/* Losses: from logits and targets to a number and its gradient. */
#include <stdatomic.h>
#include <string.h>

#include "base/context.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "models/kernels/kernels.h"
#include "shoal_models.h"

/* ---- Cross-entropy --------------------------------------------------------------- */

enum {
    PART = 4096,   /* rows whose losses are kept at a time; they are added in the rows'
                      order, so that this changes no bit */
    ROW_BLOCK = 64 /* rows of one task */
};

typedef struct {
    const shoal_context *context;
    int64_t rows, classes;
    const float *logits;
    const int32_t *targets;
    float factor;
    float *gradient;
    float losses[PART];
    atomic_llong correct; /* whole numbers: the order of adding does not matter */
} entropy_call;

static void entropy_task(void *shared, int64_t task, int thread UNUSED) {
    entropy_call *c = shared;
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows), correct = 0;
    for (int64_t row = task * ROW_BLOCK; row < last; row++) {
        float *gradient = c->gradient ? c->gradient + row * c->classes : NULL;
        c->losses[row] = 0;
        if (c->targets[row] == SHOAL_IGNORED) {
            if (gradient)
                memset(gradient, 0, sizeof(float) * (size_t)c->classes);
            continue;
        }
        int64_t best;
        sh_model_kernels(c->context)
            ->cross_entropy(c->classes, c->logits + row * c->classes, c->targets[row],
                            c->factor, gradient, &c->losses[row], &best);
        correct += best == c->targets[row];
    }
    atomic_fetch_add(&c->correct, correct);
}

shoal_status shoal_cross_entropy(shoal_context *context, int64_t rows, int64_t classes,
                                 const float *logits, const int32_t *targets,
                                 float *gradient, shoal_loss *loss) {
    if (!context || !context->kernels || !loss || rows < 0 || classes < 1 ||
        (rows > 0 && (!logits || !targets)))
        return sh_fail(context, SHOAL_INVALID,
                       "context, logits, targets or loss is NULL, rows is negative or "
                       "there are no classes");
    int64_t counted = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int32_t target = targets[row];
        if (target != SHOAL_IGNORED && (target < 0 || target >= classes))
            return sh_fail(
                context, SHOAL_INVALID,
                "target %d at row %lld: it must be from 0 to %lld, or %d to be ignored",
                (int)target, (long long)row, (long long)classes - 1, SHOAL_IGNORED);
        counted += target != SHOAL_IGNORED;
    }
    entropy_call c = {.context = context,
                      .classes = classes,
                      .factor = counted ? 1.0f / (float)counted : 0};
    double sum = 0;
    for (int64_t row = 0; row < rows; row += PART) {
        c.rows = min(PART, rows - row);
        c.logits = logits + row * classes;
        c.targets = targets + row;
        c.gradient = gradient ? gradient + row * classes : NULL;
        sh_run_tasks(c.context, ceil_divide(c.rows, ROW_BLOCK), entropy_task, &c);
        for (int64_t i = 0; i < c.rows; i++)
            sum += (double)c.losses[i];
    }
    *loss = (shoal_loss){.mean = counted ? sum / (double)counted : 0,
                         .counted = counted,
                         .correct = atomic_load(&c.correct)};
    return SHOAL_OK;
}
