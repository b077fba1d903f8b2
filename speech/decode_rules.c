#include "speech/decode_rules.h"

#include <math.h>

static void forbid(float *logits, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        logits[i] = -INFINITY;
}

static void forbid_listed(float *logits, int32_t vocabulary, const int32_t *tokens,
                          int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (tokens[i] >= 0 && tokens[i] < vocabulary)
            logits[tokens[i]] = -INFINITY;
}

int32_t sh_largest_logit(const float *logits, int count) {
    int32_t best = 0;
    float largest = -INFINITY;
    for (int32_t i = 0; i < count; i++)
        if (logits[i] > largest) {
            largest = logits[i];
            best = i;
        }
    return best;
}

double sh_log_sum_exp(const float *logits, int count) {
    float sums[8] = {0}, largest = -INFINITY;
    for (int i = 0; i < count; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    if (isinf(largest))
        return (double)largest;
    double total = 0;
    /* Blocks keep the float sums short; there are as many as the count alone says. */
    for (int first = 0; first < count; first += 1024) {
        const int end = first + 1024 < count ? first + 1024 : count;
        for (int j = 0; j < 8; j++)
            sums[j] = 0;
        for (int i = first; i < end; i++)
            if (logits[i] > largest - 40)
                sums[i % 8] += expf(logits[i] - largest);
        for (int j = 0; j < 8; j++)
            total += (double)sums[j];
    }
    return (double)largest + log(total);
}

/* Times come in pairs, an end and the next beginning: after one that stands alone only
   its partner or the end of the text may come, after two only words. */
static void keep_pairs(const decode_rules *rules, const int32_t *sampled, int count,
                       float *logits) {
    const int32_t first = rules->first_timestamp;
    const bool last_is_time = count >= 1 && sampled[count - 1] >= first;
    const bool one_before_is_time = count < 2 || sampled[count - 2] >= first;
    if (last_is_time && one_before_is_time)
        forbid(logits, first, rules->vocabulary);
    else if (last_is_time)
        forbid(logits, 0, rules->end);
    /* Time goes forward; only the partner of a lone time may repeat it. */
    for (int i = count - 1; i >= 0; i--)
        if (sampled[i] >= first) {
            const bool partner = last_is_time && !one_before_is_time;
            forbid(logits, first, (int64_t)sampled[i] + !partner);
            break;
        }
}

static void begin_with_a_time(const decode_rules *rules, float *logits) {
    forbid(logits, 0, rules->first_timestamp);
    if (rules->latest_beginning >= 0)
        forbid(logits, (int64_t)rules->latest_beginning + 1, rules->vocabulary);
}

/* The softmax's normaliser is the same on both sides, so logits are compared as they
   are. */
static void prefer_likely_times(const decode_rules *rules, float *logits) {
    const int32_t first = rules->first_timestamp;
    const double times = sh_log_sum_exp(logits + first, rules->vocabulary - first);
    float best_word = -INFINITY;
    for (int32_t i = 0; i < first; i++)
        best_word = logits[i] > best_word ? logits[i] : best_word;
    if (times > (double)best_word)
        forbid(logits, 0, first);
}

void sh_rules_apply(const decode_rules *rules, const int32_t *sampled, int count,
                    float *logits) {
    if (count == 0)
        forbid_listed(logits, rules->vocabulary, rules->not_first,
                      rules->not_first_count);
    forbid_listed(logits, rules->vocabulary, rules->never, rules->never_count);
    if (!rules->timestamps)
        return;
    forbid(logits, rules->no_timestamps, (int64_t)rules->no_timestamps + 1);
    keep_pairs(rules, sampled, count, logits);
    if (count == 0)
        begin_with_a_time(rules, logits);
    prefer_likely_times(rules, logits);
}
