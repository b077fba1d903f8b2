/* Connectionist temporal classification (Graves et al. 2006): the probability that rows
   of logits spell a list of labels, summed over all alignments, and its gradient.

   T rows, L labels, classes 0 .. classes - 1 of which 0 is the blank. An alignment gives
   each row one class and spells what is left when repeated classes are merged and blanks
   are dropped. Its states are L + 1 blanks and L labels between them:

       blank 0, label 0, blank 1, ..., label L - 1, blank L
       blank k is reached from itself and label k - 1,
       label k from itself, blank k, and label k - 1 if that is another class

   ahead[t][s]: probability of all beginnings that are in state s at row t. behind: the
   same from the end, which is the same recursion with rows and labels reversed. Their
   product over the row's own probability, which both contain, is the probability of being
   there. Only `ahead` is kept for all rows. Numbers have exponents of their own
   (models/kernels/body_ctc.h). */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "models/kernels/kernels.h"
#include "shoal_models.h"

/* One row of states: blanks [L + 1]; and labels [L + 1], of which the first is what
   stands before label 0 and cannot be. */
typedef struct {
    double *blanks, *labels;
    int64_t *blank_powers, *label_powers;
} ctc_row;

/* What one thread needs, for M labels. */
typedef struct {
    double *numbers;          /* [T + 2][2 M + 2], mantissas of rows */
    int64_t *powers;          /* the same, their exponents */
    int64_t *skips;           /* [M]: 0 or CTC_NEVER */
    int64_t *skips_r;         /* [M], of the labels reversed */
    int32_t *reversed;        /* [M], the labels */
    double *emissions;        /* [M], of the labels in a row of logits */
    int64_t *emission_powers; /* [M] */
    double *classes;          /* [classes], softmax of a row */
    int64_t *class_powers;    /* [classes] */
    double *softmax;          /* [classes], the same as plain doubles */
    double *posterior;        /* [classes] */
    double *met;              /* [M + 1] */
} ctc_scratch;

struct shoal_ctc {
    shoal_context *context;
    int64_t classes, max_batch, max_rows, max_labels;
    int threads;
    ctc_scratch *scratch; /* [threads] */
    double *losses;       /* [max_batch] */
    size_t bytes;
};

/* ---- Creation -------------------------------------------------------------------- */

static void place(void *argument, block_layout *block) {
    shoal_ctc *ctc = argument;
    const int64_t labels = ctc->max_labels, classes = ctc->classes;
    const int64_t states = sh_mul_checked(ctc->max_rows + 2, 2 * labels + 2);
    sh_reserve(block, 1, sizeof *ctc);
    ctc->scratch = sh_reserve(block, ctc->threads, sizeof *ctc->scratch);
    ctc->losses = sh_reserve(block, ctc->max_batch, sizeof *ctc->losses);
    for (int i = 0; i < ctc->threads; i++) {
        const ctc_scratch made = {.numbers = sh_reserve(block, states, sizeof(double)),
                                  .powers = sh_reserve(block, states, sizeof(int64_t)),
                                  .skips = sh_reserve(block, labels, sizeof(int64_t)),
                                  .skips_r = sh_reserve(block, labels, sizeof(int64_t)),
                                  .reversed = sh_reserve(block, labels, sizeof(int32_t)),
                                  .emissions = sh_reserve(block, labels, sizeof(double)),
                                  .emission_powers =
                                      sh_reserve(block, labels, sizeof(int64_t)),
                                  .classes = sh_reserve(block, classes, sizeof(double)),
                                  .class_powers =
                                      sh_reserve(block, classes, sizeof(int64_t)),
                                  .softmax = sh_reserve(block, classes, sizeof(double)),
                                  .posterior = sh_reserve(block, classes, sizeof(double)),
                                  .met = sh_reserve(block, labels + 1, sizeof(double))};
        if (block->base)
            ctc->scratch[i] = made;
    }
}

shoal_status shoal_ctc_create(shoal_context *context, int64_t classes, int64_t max_batch,
                              int64_t max_rows, int64_t max_labels, shoal_ctc **ctc) {
    const int64_t most = INT32_MAX / 4;
    if (ctc)
        *ctc = NULL;
    if (!context || !context->kernels || !ctc || classes < 1 || classes > most ||
        max_batch < 0 || max_batch > most || max_rows < 0 || max_rows > most ||
        max_labels < 0 || max_labels > most)
        return sh_fail(context, SHOAL_INVALID,
                       "context or ctc is NULL, there are no classes, or a limit is "
                       "negative or beyond %lld",
                       (long long)most);
    shoal_ctc draft = {.context = context,
                       .classes = classes,
                       .max_batch = max_batch,
                       .max_rows = max_rows,
                       .max_labels = max_labels,
                       .threads = context->threads};
    shoal_ctc *made = sh_allocate_parts(context, place, &draft, &draft.bytes);
    if (!made)
        return SHOAL_NO_MEMORY;
    *made = draft;
    *ctc = made;
    return SHOAL_OK;
}

void shoal_ctc_destroy(shoal_ctc *ctc) {
    if (ctc)
        sh_release(ctc->context, ctc);
}

size_t shoal_ctc_workspace(const shoal_ctc *ctc) {
    return ctc ? ctc->bytes : 0;
}

/* ---- One sequence ---------------------------------------------------------------- */

typedef struct {
    const model_kernels *kernels;
    ctc_scratch *scratch;
    int64_t rows, count, classes; /* count: L */
    const float *logits;          /* [rows][classes] */
    const int32_t *labels;        /* [count] */
} ctc_sequence;

/* Row `index` of the states in memory: 0 .. T - 1 are those ahead. */
static ctc_row row_at(const ctc_sequence *s, int64_t index) {
    const int64_t half = s->count + 1;
    double *numbers = s->scratch->numbers + index * 2 * half;
    int64_t *powers = s->scratch->powers + index * 2 * half;
    return (ctc_row){numbers, numbers + half, powers, powers + half};
}

static void set_skips(const int32_t *labels, int64_t count, int64_t *skips) {
    for (int64_t k = 0; k < count; k++)
        skips[k] = k > 0 && labels[k] != labels[k - 1] ? 0 : CTC_NEVER;
}

/* Before the first row: surely in front of everything. */
static void start_row(const ctc_sequence *s, ctc_row row) {
    for (int64_t k = 0; k <= s->count; k++) {
        row.blanks[k] = row.labels[k] = 1;
        row.blank_powers[k] = k ? CTC_NEVER : 0;
        row.label_powers[k] = CTC_NEVER;
    }
}

/* The softmax of row t; false where it has none, since a logit is no number. */
static bool take_row(const ctc_sequence *s, int64_t t) {
    const float *logits = s->logits + t * s->classes;
    const ctc_scratch *w = s->scratch;
    double total = 0;
    float top = logits[0];
    for (int64_t c = 1; c < s->classes; c++)
        top = logits[c] > top ? logits[c] : top;
    s->kernels->powers(s->classes, logits, top, w->classes, w->class_powers, w->softmax);
    for (int64_t c = 0; c < s->classes; c++)
        total += w->softmax[c];
    const double inverse = 1 / total;
    for (int64_t c = 0; c < s->classes; c++) {
        w->classes[c] *= inverse;
        w->softmax[c] *= inverse;
    }
    return isfinite(total) != 0;
}

/* From the states of one row to those of the next, whose softmax was taken. */
static void advance(const ctc_sequence *s, const int32_t *labels, const int64_t *skips,
                    ctc_row from, ctc_row to) {
    const ctc_scratch *w = s->scratch;
    for (int64_t k = 0; k < s->count; k++) {
        w->emissions[k] = w->classes[labels[k]];
        w->emission_powers[k] = w->class_powers[labels[k]];
    }
    s->kernels->ctc_blanks(s->count + 1, from.blanks, from.blank_powers, from.labels,
                           from.label_powers, w->classes[0], w->class_powers[0],
                           to.blanks, to.blank_powers);
    s->kernels->ctc_labels(s->count, from.blanks, from.blank_powers, from.labels,
                           from.label_powers, skips, w->emissions, w->emission_powers,
                           to.labels + 1, to.label_powers + 1);
    to.labels[0] = 1;
    to.label_powers[0] = CTC_NEVER;
}

/* All rows ahead; without `keep` the memory of two. NaN where a logit is no number. */
static double go_ahead(const ctc_sequence *s, bool keep, int64_t *exponent) {
    ctc_row from = row_at(s, s->rows);
    set_skips(s->labels, s->count, s->scratch->skips);
    start_row(s, from);
    for (int64_t t = 0; t < s->rows; t++) {
        const ctc_row to = row_at(s, keep ? t : t % 2);
        if (!take_row(s, t))
            return NAN;
        advance(s, s->labels, s->scratch->skips, from, to);
        from = to;
    }
    /* Minus the logarithm of the probability in a last row of states, with its exponent;
       infinite where no alignment gets there. */
    const int64_t k = s->count, blank = from.blank_powers[k],
                  label = from.label_powers[k];
    const int64_t most = max(blank, label), least = -1100;
    *exponent = most;
    if (most < CTC_NEVER / 2)
        return INFINITY;
    const double sum = ldexp(from.blanks[k], (int)max(blank - most, least)) +
                       ldexp(from.labels[k], (int)max(label - most, least));
    return -(log(sum) + (double)most * 0.69314718055994531);
}

/* The rows from the last to the first; the gradient may be the logits. */
static void go_back(const ctc_sequence *s, int64_t exponent, double factor,
                    float *gradient) {
    const ctc_scratch *w = s->scratch;
    ctc_row from = row_at(s, s->rows), to = row_at(s, s->rows + 1);
    for (int64_t k = 0; k < s->count; k++)
        w->reversed[k] = s->labels[s->count - 1 - k];
    set_skips(w->reversed, s->count, w->skips_r);
    start_row(s, from);
    for (int64_t t = s->rows - 1; t >= 0; t--) {
        take_row(s, t);
        advance(s, w->reversed, w->skips_r, from, to);
        /* The probability of each class at row t, from the states ahead and behind. */
        const ctc_row ahead = row_at(s, t);

        double *posterior = w->posterior, total = 0;
        memset(posterior, 0, sizeof *posterior * (size_t)s->classes);
        s->kernels->ctc_meet(s->count + 1, ahead.blanks, ahead.blank_powers, to.blanks,
                             to.blank_powers, NULL, exponent + w->class_powers[0],
                             w->met);
        for (int64_t k = 0; k <= s->count; k++)
            posterior[0] += w->met[k];
        for (int64_t k = 0; k < s->count; k++)
            w->emission_powers[k] = w->class_powers[s->labels[k]];
        s->kernels->ctc_meet(s->count, ahead.labels + 1, ahead.label_powers + 1,
                             to.labels + 1, to.label_powers + 1, w->emission_powers,
                             exponent, w->met);
        for (int64_t k = 0; k < s->count; k++)
            posterior[s->labels[k]] += w->met[k];
        for (int64_t c = 0; c < s->classes; c++) {
            posterior[c] /= w->classes[c];
            total += posterior[c];
        }
        const double inverse = 1 / total; /* 1 but for rounding */
        for (int64_t c = 0; c < s->classes; c++)
            posterior[c] *= inverse;
        for (int64_t c = 0; c < s->classes; c++)
            gradient[t * s->classes + c] =
                (float)(factor * (w->softmax[c] - w->posterior[c]));
        const ctc_row last = from;
        from = to;
        to = last;
    }
}

/* ---- A batch --------------------------------------------------------------------- */

typedef struct {
    shoal_ctc *ctc;
    const shoal_ctc_batch *batch;
    const float *logits;
    double factor;
    float *gradient;
} ctc_call;

static void sequence_task(void *shared, int64_t task, int thread) {
    const ctc_call *c = shared;
    const shoal_ctc_batch *batch = c->batch;
    const int64_t first = batch->offsets[task], label = batch->label_offsets[task];
    const int64_t classes = c->ctc->classes;
    const ctc_sequence s = {.kernels = sh_model_kernels(c->ctc->context),
                            .scratch = &c->ctc->scratch[thread],
                            .rows = batch->offsets[task + 1] - first,
                            .count = batch->label_offsets[task + 1] - label,
                            .classes = classes,
                            .logits = c->logits + first * classes,
                            .labels = batch->labels + label};
    float *gradient = c->gradient ? c->gradient + first * classes : NULL;
    int64_t exponent = 0;
    const double loss = go_ahead(&s, gradient != NULL, &exponent);
    c->ctc->losses[task] = loss;
    if (gradient && isfinite(loss))
        go_back(&s, exponent, c->factor, gradient);
    else if (gradient) {
        const float value = isnan(loss) ? NAN : 0;
        for (int64_t i = 0; i < s.rows * classes; i++)
            gradient[i] = value;
    }
}

shoal_status shoal_ctc_loss(shoal_ctc *ctc, const shoal_ctc_batch *batch,
                            const float *logits, double factor, float *gradient,
                            double *losses, shoal_ctc_result *result) {
    if (!ctc || !result)
        return sh_fail(ctc ? ctc->context : NULL, SHOAL_INVALID, "ctc or result is NULL");
    shoal_ctc_batch own = shoal_ctc_batch_defaults();
    TRY(READ_STRUCT(ctc->context, shoal_ctc_batch, batch, &own));
    batch = batch ? &own : NULL;
    if (!batch || batch->batch < 0 || batch->batch > ctc->max_batch || !batch->offsets ||
        !batch->label_offsets || batch->offsets[0] != 0 || batch->label_offsets[0] != 0 ||
        (batch->offsets[batch->batch] > 0 && !logits) ||
        (batch->label_offsets[batch->batch] > 0 && !batch->labels))
        return sh_fail(ctc->context, SHOAL_INVALID,
                       "batch, logits, offsets, labels or loss is NULL, offsets do not "
                       "begin with 0, or there are more than %lld sequences",
                       (long long)ctc->max_batch);
    for (int64_t b = 0; b < batch->batch; b++) {
        const int64_t rows = batch->offsets[b + 1] - batch->offsets[b];
        const int64_t first = batch->label_offsets[b], last = batch->label_offsets[b + 1];
        if (rows < 0 || rows > ctc->max_rows || last < first ||
            last - first > ctc->max_labels)
            return sh_fail(ctc->context, SHOAL_INVALID,
                           "sequence %lld has %lld rows and %lld labels; the limits of "
                           "this object are %lld and %lld",
                           (long long)b, (long long)rows, (long long)(last - first),
                           (long long)ctc->max_rows, (long long)ctc->max_labels);
        for (int64_t i = first; i < last; i++)
            if (batch->labels[i] < 1 || batch->labels[i] >= ctc->classes)
                return sh_fail(ctc->context, SHOAL_INVALID,
                               "label %lld of sequence %lld is %d; it must be 1 to %lld",
                               (long long)(i - first), (long long)b,
                               (int)batch->labels[i], (long long)ctc->classes - 1);
    }
    ctc_call c = {ctc, batch, logits, factor, gradient};
    sh_run_tasks(ctc->context, batch->batch, sequence_task, &c);
    *result = (shoal_ctc_result){0};
    for (int64_t b = 0; b < batch->batch; b++) {
        const bool possible = !isinf(ctc->losses[b]);
        const double loss = possible ? ctc->losses[b] : 0;
        result->sum += loss;
        result->sequences += possible;
        result->labels += possible ? batch->label_offsets[b + 1] - batch->label_offsets[b]
                                   : 0;
        if (losses)
            losses[b] = loss;
    }
    result->impossible = batch->batch - result->sequences;
    return SHOAL_OK;
}
