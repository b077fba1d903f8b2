#include "command.h"

#include <math.h>
#include <stdlib.h>

static utterance_errors draw_utterances(const utterance_errors *utterances,
                                        uint64_t count, uint64_t seed, int draw) {
    const uint64_t start = mix_bits(seed + 0x9e3779b97f4a7c15u) + (uint64_t)draw * count;
    utterance_errors sum = {0};
    for (uint64_t i = 0; i < count; i++) {
        const utterance_errors *one = &utterances[mix_bits(start + i) % count];
        sum.words += one->words;
        sum.wrong += one->wrong;
        sum.wrong_of_other += one->wrong_of_other;
    }
    return sum;
}

/* The middle 95 % of what is sorted here. */
static void middle(double *values, int count, double *low, double *high) {
    qsort(values, (size_t)count, sizeof *values, by_double);
    *low = values[count / 40];
    *high = values[count - 1 - count / 40];
}

bootstrap_interval bootstrap_rates(const utterance_errors *utterances, int64_t count,
                                   uint64_t seed) {
    bootstrap_interval found = {NAN, NAN, NAN, NAN};
    double rates[BOOTSTRAP_DRAWS], differences[BOOTSTRAP_DRAWS];
    int used = 0;
    for (int draw = 0; draw < BOOTSTRAP_DRAWS; draw++) {
        const utterance_errors sum =
            draw_utterances(utterances, (uint64_t)count, seed, draw);
        if (sum.words <= 0) /* a draw without words has no rate */
            continue;
        rates[used] = 100 * sum.wrong / sum.words;
        differences[used++] = 100 * (sum.wrong - sum.wrong_of_other) / sum.words;
    }
    if (used == 0)
        return found;
    middle(rates, used, &found.rate_low, &found.rate_high);
    middle(differences, used, &found.difference_low, &found.difference_high);
    return found;
}
