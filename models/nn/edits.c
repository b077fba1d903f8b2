#include "models/nn/edits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "shoal_models.h"

/* The best way to one corner of the table: fewest edits, then most substitutions. */
typedef struct {
    int64_t substitutions, insertions, deletions;
} path;

static int64_t length_of(path p) {
    return p.substitutions + p.insertions + p.deletions;
}

static bool is_better(path a, path b) {
    if (length_of(a) != length_of(b))
        return length_of(a) < length_of(b);
    return a.substitutions > b.substitutions;
}

/* A cell of the table is [width] paths: the whole, then, where there are several parts,
   what of it falls on each. */
typedef struct {
    edit_sequence reference, other;
    const int64_t *ends; /* [parts] */
    int parts, width;
    path *row;    /* [other.count + 1] cells */
    path *corner; /* the cell above and to the left */
    path *next;   /* the cell to be */
} alignment;

static path *cell(const alignment *a, int64_t j) {
    return a->row + j * a->width;
}

static void copy_cell(const alignment *a, path *to, const path *from) {
    memcpy(to, from, (size_t)a->width * sizeof *to);
}

static void add_path(path *to, path edit) {
    to->substitutions += edit.substitutions;
    to->insertions += edit.insertions;
    to->deletions += edit.deletions;
}

static void add_edit(const alignment *a, path *to, int part, path edit) {
    add_path(to, edit);
    if (a->width > 1)
        add_path(to + part + 1, edit);
}

/* One row of the table per reference; cell j: for the first j of the other. The last cell
   is the answer. */
static const path *align(const alignment *a) {
    int part = 0;
    memset(a->row, 0, (size_t)((a->other.count + 1) * a->width) * sizeof *a->row);
    for (int64_t j = 1; j <= a->other.count; j++)
        add_edit(a, cell(a, j), 0, (path){.insertions = j});
    for (int64_t i = 0; i < a->reference.count; i++) {
        while (part + 1 < a->parts && i >= a->ends[part])
            part++;
        copy_cell(a, a->corner, cell(a, 0));
        add_edit(a, cell(a, 0), part, (path){.deletions = 1});
        for (int64_t j = 1; j <= a->other.count; j++) {
            /* Cell j of the row of reference i, from its three neighbours. */
            const path substitution = {.substitutions = a->reference.values[i] !=
                                                        a->other.values[j - 1]};
            const path insertion = {.insertions = 1}, deletion = {.deletions = 1};
            path *above = cell(a, j), *left = cell(a, j - 1);
            path diagonal = a->corner[0], up = above[0], before = left[0];
            diagonal.substitutions += substitution.substitutions;
            up.deletions++;
            before.insertions++;
            const bool from_left = is_better(before, up);
            if (!is_better(from_left ? before : up, diagonal)) {
                copy_cell(a, a->next, a->corner);
                add_edit(a, a->next, part, substitution);
            } else {
                copy_cell(a, a->next, from_left ? left : above);
                add_edit(a, a->next, part, from_left ? insertion : deletion);
            }
            copy_cell(a, a->corner, above);
            copy_cell(a, above, a->next);
        }
    }
    return cell(a, a->other.count);
}

static void place(void *argument, block_layout *block) {
    alignment *a = argument;
    a->row = sh_reserve(block, (a->other.count + 1) * a->width, sizeof(path));
    a->corner = sh_reserve(block, a->width, sizeof(path));
    a->next = sh_reserve(block, a->width, sizeof(path));
}

shoal_status sh_edits_count(shoal_context *context, edit_sequence reference,
                            edit_sequence other, const int64_t *ends, int parts,
                            shoal_edits *edits) {
    alignment a = {.reference = reference,
                   .other = other,
                   .ends = ends,
                   .parts = parts,
                   .width = parts > 1 ? parts + 1 : 1};
    void *block = sh_allocate_parts(context, place, &a, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    const path *found = align(&a) + (parts > 1);
    for (int part = 0; part < parts; part++) {
        edits[part].length += ends[part] - (part > 0 ? ends[part - 1] : 0);
        edits[part].substitutions += found[part].substitutions;
        edits[part].insertions += found[part].insertions;
        edits[part].deletions += found[part].deletions;
    }
    sh_release(context, block);
    return SHOAL_OK;
}

shoal_status shoal_count_edits(shoal_context *context, const int32_t *reference,
                               int64_t reference_count, const int32_t *recognised,
                               int64_t recognised_count, shoal_edits *edits) {
    if (!context || !edits || reference_count < 0 || recognised_count < 0 ||
        recognised_count > INT32_MAX || (reference_count > 0 && !reference) ||
        (recognised_count > 0 && !recognised))
        return sh_fail(context, SHOAL_INVALID,
                       "context, labels or edits is NULL, or a count is negative");
    return sh_edits_count(context, (edit_sequence){reference, reference_count},
                          (edit_sequence){recognised, recognised_count}, &reference_count,
                          1, edits);
}

/* ---- The bootstrap ----------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle 95 % of what is sorted here. */
static void middle(double *values, int count, double *low, double *high) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    *low = values[count / 40];
    *high = values[count - 1 - count / 40];
}

shoal_rate_interval shoal_bootstrap_rates(const shoal_sequence_errors *sequences,
                                          int64_t count, uint64_t seed) {
    enum { DRAWS = 10000 };
    const uint64_t all = (uint64_t)count,
                   first = random_mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    shoal_rate_interval found = {NAN, NAN, NAN, NAN};
    double rates[DRAWS], differences[DRAWS];
    int used = 0;
    for (uint64_t draw = 0; draw < DRAWS; draw++) {
        shoal_sequence_errors sum = {0};
        for (uint64_t i = 0; i < all; i++) {
            const shoal_sequence_errors *one =
                &sequences[random_mix(first + draw * all + i) % all];
            sum.length += one->length;
            sum.wrong += one->wrong;
            sum.wrong_of_other += one->wrong_of_other;
        }
        if (sum.length <= 0) /* a draw without labels has no rate */
            continue;
        rates[used] = 100 * sum.wrong / sum.length;
        differences[used++] = 100 * (sum.wrong - sum.wrong_of_other) / sum.length;
    }
    if (used == 0)
        return found;
    middle(rates, used, &found.rate_low, &found.rate_high);
    middle(differences, used, &found.difference_low, &found.difference_high);
    return found;
}
