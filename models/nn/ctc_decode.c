/* From rows of logits to labels: the likeliest class of each row, or a search over
   beginnings of labels ("prefixes"). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "shoal_models.h"

/* ---- Greedy ---------------------------------------------------------------------- */

static shoal_status check_logits(shoal_context *context, int64_t rows, int64_t classes,
                                 const float *logits, const int32_t *labels,
                                 const int64_t *count) {
    if (!context || rows < 0 || rows > INT32_MAX || classes < 1 || !count ||
        (rows > 0 && (!logits || !labels)))
        return sh_fail(context, SHOAL_INVALID,
                       "context, logits, labels or count is NULL, rows is negative, or "
                       "there are no classes");
    return SHOAL_OK;
}

static int32_t likeliest(const float *row, int64_t classes) {
    int64_t best = 0;
    for (int64_t c = 1; c < classes; c++)
        if (row[c] > row[best])
            best = c;
    return (int32_t)best;
}

shoal_status shoal_ctc_greedy(shoal_context *context, int64_t rows, int64_t classes,
                              const float *logits, int32_t *labels, int32_t *frames,
                              int64_t *count) {
    TRY(check_logits(context, rows, classes, logits, labels, count));
    int32_t before = 0;
    *count = 0;
    for (int64_t t = 0; t < rows; t++) {
        const int32_t best = likeliest(logits + t * classes, classes);
        if (best != 0 && best != before) {
            if (frames)
                frames[*count] = (int32_t)t;
            labels[(*count)++] = best;
        }
        before = best;
    }
    return SHOAL_OK;
}

/* ---- Prefix beam search ---------------------------------------------------------- */

/* Where a label was appended; following `before` gives a prefix from its end. */
typedef struct {
    int64_t before; /* -1: none */
    int32_t label, frame;
} prefix_node;

/* A prefix with the logarithms of the probabilities of its alignments that end in a blank
   and in its last label. The hash stands for the prefix: the same labels may come to be
   twice, after their first beginning had been dropped. */
typedef struct {
    uint64_t hash, before_hash;
    int64_t node;  /* -1 while the prefix is empty; of a new one, that before it */
    int32_t label; /* the last one, 0: empty */
    int32_t is_new;
    double blank, spoken;
} prefix;

typedef struct {
    int64_t rows, classes, beams;
    const float *logits;
    prefix *kept;       /* [beams] */
    int64_t kept_count; /* of them */
    prefix *found;      /* [beams x (classes + 1)] */
    int64_t found_count;
    int32_t *homes;     /* [beams][classes]: where a prefix and one more label is kept */
    double *logs;       /* [classes], of the row's softmax */
    prefix_node *nodes; /* [rows x beams] */
    int64_t node_count;
} prefix_search;

static void place(void *argument, block_layout *block) {
    prefix_search *s = argument;
    s->kept = sh_reserve(block, s->beams, sizeof *s->kept);
    s->found =
        sh_reserve(block, sh_mul_checked(s->beams, s->classes + 1), sizeof *s->found);
    s->homes = sh_reserve(block, sh_mul_checked(s->beams, s->classes), sizeof(int32_t));
    s->logs = sh_reserve(block, s->classes, sizeof(double));
    s->nodes = sh_reserve(block, sh_mul_checked(s->rows, s->beams), sizeof *s->nodes);
}

/* log(e^a + e^b). */
static double log_add(double a, double b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    return low == -INFINITY ? high : high + log1p(exp(low - high));
}

static double total(const prefix *p) {
    return log_add(p->blank, p->spoken);
}

static uint64_t hash_with(uint64_t hash, int32_t label) {
    uint64_t mixed = hash ^ ((uint64_t)label + 0x9e3779b97f4a7c15u + (hash << 12));
    mixed = (mixed ^ (mixed >> 31)) * 0xd6e8feb86659fd93u;
    return mixed ^ (mixed >> 32);
}

/* The likelier one first; of equals, an order that does not depend on the sort. */
static int compare(const void *left, const void *right) {
    const prefix *a = left, *b = right;
    const double first = total(a), second = total(b);
    if (first != second)
        return first > second ? -1 : 1;
    return a->hash < b->hash ? -1 : a->hash > b->hash;
}

static void run_search(prefix_search *s) {
    s->kept[0] = (prefix){.node = -1, .blank = 0, .spoken = -INFINITY};
    s->kept_count = 1;
    for (int64_t t = 0; t < s->rows; t++) {
        const float *row = s->logits + t * s->classes;
        const double top = (double)row[likeliest(row, s->classes)];
        double sum = 0;
        for (int64_t c = 0; c < s->classes; c++)
            sum += exp((double)row[c] - top);
        for (int64_t c = 0; c < s->classes; c++)
            s->logs[c] = (double)row[c] - top - log(sum);
        /* The kept prefixes stay as they are: a blank more, or their last label again. */
        for (int64_t i = 0; i < s->kept_count; i++) {
            prefix next = s->kept[i];
            next.blank = total(&s->kept[i]) + s->logs[0];
            next.spoken = next.label ? s->kept[i].spoken + s->logs[next.label]
                                     : -INFINITY;
            s->found[i] = next;
        }
        s->found_count = s->kept_count;
        memset(s->homes, -1, sizeof *s->homes * (size_t)(s->kept_count * s->classes));
        for (int64_t j = 0; j < s->kept_count; j++)
            for (int64_t i = 0; i < s->kept_count && s->kept[j].label; i++)
                if (s->kept[i].hash == s->kept[j].before_hash)
                    s->homes[i * s->classes + s->kept[j].label] = (int32_t)j;
        /* The same label again needs a blank between. */
        for (int64_t i = 0; i < s->kept_count; i++) {
            const prefix *from = &s->kept[i];
            for (int32_t c = 1; c < s->classes; c++) {
                const double spoken = (c == from->label ? from->blank : total(from)) +
                                      s->logs[c];
                const int32_t home = s->homes[i * s->classes + c];
                if (home >= 0)
                    s->found[home].spoken = log_add(s->found[home].spoken, spoken);
                else if (spoken > -INFINITY)
                    s->found[s->found_count++] =
                        (prefix){.hash = hash_with(from->hash, c),
                                 .before_hash = from->hash,
                                 .node = from->node,
                                 .label = c,
                                 .is_new = 1,
                                 .blank = -INFINITY,
                                 .spoken = spoken};
            }
        }
        qsort(s->found, (size_t)s->found_count, sizeof *s->found, compare);
        s->kept_count = s->found_count < s->beams ? s->found_count : s->beams;
        for (int64_t i = 0; i < s->kept_count; i++) {
            prefix *one = &s->kept[i];
            *one = s->found[i];
            if (one->is_new) {
                s->nodes[s->node_count] =
                    (prefix_node){one->node, one->label, (int32_t)t};
                one->node = s->node_count++;
                one->is_new = 0;
            }
        }
    }
}

shoal_status shoal_ctc_search(shoal_context *context, int64_t rows, int64_t classes,
                              const float *logits, int64_t beams, int32_t *labels,
                              int32_t *frames, int64_t *count, double *log_probability) {
    shoal_status status = check_logits(context, rows, classes, logits, labels, count);
    if (status == SHOAL_OK && (beams < 1 || beams > 1 << 20))
        status = sh_fail(context, SHOAL_INVALID, "beams is %lld: it must be from 1 to %d",
                         (long long)beams, 1 << 20);
    for (int64_t i = 0; status == SHOAL_OK && i < rows * classes; i++)
        if (!isfinite(logits[i]))
            status = sh_fail(context, SHOAL_INVALID,
                             "the logits at row %lld are not finite",
                             (long long)(i / classes));
    if (status != SHOAL_OK)
        return status;
    prefix_search s = {.rows = rows,
                       .classes = classes,
                       .beams = beams,
                       .logits = logits};
    void *block = sh_allocate_parts(context, place, &s, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    run_search(&s);
    *count = 0;
    for (int64_t n = s.kept[0].node; n >= 0; n = s.nodes[n].before)
        ++*count;
    int64_t at = *count;
    for (int64_t n = s.kept[0].node; n >= 0; n = s.nodes[n].before) {
        labels[--at] = s.nodes[n].label;
        if (frames)
            frames[at] = s.nodes[n].frame;
    }
    if (log_probability)
        *log_probability = total(&s.kept[0]);
    sh_release(context, block);
    return SHOAL_OK;
}
