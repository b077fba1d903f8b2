#include "speech/search.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

/* ---- Rules ---------------------------------------------------------------------- */

static void forbid(float *logits, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        logits[i] = -INFINITY;
}

static void forbid_listed(float *logits, int32_t vocabulary, const int32_t *listed,
                          int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (listed[i] >= 0 && listed[i] < vocabulary)
            logits[listed[i]] = -INFINITY;
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
    /* A float sum of at most 1024 numbers loses little; the blocks are added as
       doubles. */
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

/* ---- Memory --------------------------------------------------------------------- */

/* B beams, T text positions, V vocabulary. */
typedef struct {
    int32_t *tokens; /* [T] */
    int count;
    double sum; /* of log-probabilities */
    bool ended;
} hypothesis;

typedef struct {
    double sum;
    int32_t token, parent;
} candidate;

struct search {
    shoal_context *context;
    decoder *network;
    int beams, positions, vocabulary;
    float *logits;                  /* [B][V] */
    hypothesis *live, *next, *done; /* [B] each */
    candidate *candidates;          /* [B * (B + 1)] */
    int32_t *chosen, *parents;      /* [B] */
    bool damaged; /* a row of logits had NaN or infinity in this search */
};

static void place_hypotheses(block_layout *block, int beams, int positions,
                             hypothesis **list) {
    *list = sh_reserve(block, beams, sizeof **list);
    int32_t *ids = sh_reserve(block, sh_mul_checked(beams, positions), sizeof *ids);
    for (int i = 0; i < beams && *list && ids; i++)
        (*list)[i].tokens = ids + (int64_t)i * positions;
}

static void place(void *argument, block_layout *block) {
    search *s = argument;
    const int64_t beams = s->beams;
    sh_reserve(block, 1, sizeof *s);
    s->logits = reserve_floats(block, beams, s->vocabulary);
    place_hypotheses(block, s->beams, s->positions, &s->live);
    place_hypotheses(block, s->beams, s->positions, &s->next);
    place_hypotheses(block, s->beams, s->positions, &s->done);
    s->candidates =
        sh_reserve(block, sh_mul_checked(beams, beams + 1), sizeof *s->candidates);
    s->chosen = sh_reserve(block, beams, sizeof *s->chosen);
    s->parents = sh_reserve(block, beams, sizeof *s->parents);
}

shoal_status sh_search_create(shoal_context *context, decoder *network, search **made) {
    const whisper_sizes *sizes = sh_decoder_sizes(network);
    search sized = {.context = context,
                    .network = network,
                    .beams = sh_decoder_texts(network),
                    .positions = sizes->text_positions,
                    .vocabulary = sizes->vocabulary};
    search *s = sh_allocate_parts(context, place, &sized, NULL);
    if (s)
        *s = sized;
    *made = s;
    return s ? SHOAL_OK : SHOAL_NO_MEMORY;
}

void sh_search_destroy(search *s) {
    if (s)
        sh_release(s->context, s);
}

static float *logits_of(const search *s, int beam) {
    return s->logits + (int64_t)beam * s->vocabulary;
}

static void copy_hypothesis(hypothesis *to, const hypothesis *from) {
    memcpy(to->tokens, from->tokens, (size_t)from->count * sizeof *to->tokens);
    to->count = from->count;
    to->sum = from->sum;
    to->ended = from->ended;
}

/* Mean log-probability of the words; how texts of different lengths are ranked. */
static double rank_of(const hypothesis *h) {
    return h->sum / (h->count > 0 ? h->count : 1);
}

static int best_of(const hypothesis *list, int count) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (rank_of(&list[i]) > rank_of(&list[best]))
            best = i;
    return best;
}

/* ---- Greedy, and samples -------------------------------------------------------- */

/* A token with the probability that softmax(logits / temperature) gives it. */
static int32_t draw(const float *logits, int count, const search_task *task,
                    uint64_t counter) {
    const double heat = 1 / (double)task->temperature;
    const double largest = (double)logits[sh_largest_logit(logits, count)];
    const double uniform =
        (double)(sh_random_bits(task->seed, STREAM_SAMPLES, counter) >> 11) * 0x1p-53;
    double total = 0, passed = 0;
    int32_t last = task->rules.end;
    for (int i = 0; i < count; i++)
        total += exp(((double)logits[i] - largest) * heat);
    for (int32_t i = 0; i < count; i++) {
        const double share = exp(((double)logits[i] - largest) * heat);
        passed += share;
        last = share > 0 ? i : last;
        if (share > 0 && passed > uniform * total)
            return i;
    }
    return last;
}

/* sh_log_sum_exp of a row after the rules, which always leave a token to choose. */
static double sum_of(search *s, const float *logits) {
    const double sum = sh_log_sum_exp(logits, s->vocabulary);
    s->damaged = s->damaged || !isfinite(sum);
    return sum;
}

static void extend(search *s, const search_task *task, int beam, uint64_t step) {
    hypothesis *h = &s->live[beam];
    float *logits = logits_of(s, beam);
    if (h->ended) { /* the others go on; what this one is given is not read */
        s->chosen[beam] = task->rules.end;
        return;
    }
    sh_rules_apply(&task->rules, h->tokens, h->count, logits);
    const double whole = sum_of(s, logits);
    int32_t token = task->rules.end;
    if (isfinite(whole)) {
        token = task->temperature > 0 ? draw(logits, s->vocabulary, task,
                                             step * (uint64_t)s->beams + (uint64_t)beam)
                                      : sh_largest_logit(logits, s->vocabulary);
        h->sum += (double)logits[token] - whole;
    }
    s->chosen[beam] = token;
    if (token == task->rules.end)
        h->ended = true;
    else
        h->tokens[h->count++] = token;
}

static int still_open(const hypothesis *list, int count) {
    int open = 0;
    for (int i = 0; i < count; i++)
        open += !list[i].ended;
    return open;
}

/* logits_of(0) are those after the prompt. */
static const hypothesis *run_samples(search *s, const search_task *task, int beams) {
    for (int beam = 1; beam < beams; beam++)
        memcpy(logits_of(s, beam), logits_of(s, 0),
               (size_t)s->vocabulary * sizeof *s->logits);
    for (int step = 0; step < task->longest; step++) {
        for (int beam = 0; beam < beams; beam++)
            extend(s, task, beam, (uint64_t)step);
        if (!still_open(s->live, beams) || sh_decoder_room(s->network, 0) == 0 ||
            step + 1 == task->longest)
            break;
        sh_decoder_step(s->network, s->chosen, beams);
        sh_decoder_logits(s->network, 0, beams, s->logits);
    }
    return &s->live[best_of(s->live, beams)];
}

/* ---- Beams ---------------------------------------------------------------------- */

/* Better first; of equal sums the beam and token that come first. */
static bool is_better(const candidate *a, const candidate *b) {
    if (a->sum != b->sum)
        return a->sum > b->sum;
    return a->parent != b->parent ? a->parent < b->parent : a->token < b->token;
}

static int insert(candidate *list, int count, int most, candidate one) {
    if (count == most && !is_better(&one, &list[count - 1]))
        return count;
    int at = count < most ? count++ : count - 1;
    for (; at > 0 && is_better(&one, &list[at - 1]); at--)
        list[at] = list[at - 1];
    list[at] = one;
    return count;
}

/* Adds the best beams + 1 continuations of one beam to the candidates; returns their new
   count. */
static int propose(search *s, const search_task *task, int beam, int count) {
    const hypothesis *h = &s->live[beam];
    float *logits = logits_of(s, beam);
    candidate *own = s->candidates + count;
    const int most = task->beams + 1;
    int found = 0;
    sh_rules_apply(&task->rules, h->tokens, h->count, logits);
    const double whole = sum_of(s, logits);
    if (!isfinite(whole))
        return count;
    float floor = -INFINITY;
    for (int32_t token = 0; token < s->vocabulary; token++)
        if (logits[token] > floor) {
            const double sum = h->sum + ((double)logits[token] - whole);
            found = insert(own, found, most, (candidate){sum, token, beam});
            if (found == most)
                floor = logits[own[most - 1].token];
        }
    return count + found;
}

static void sort_candidates(candidate *list, int count) {
    for (int i = 1; i < count; i++) {
        const candidate one = list[i];
        int at = i;
        for (; at > 0 && is_better(&one, &list[at - 1]); at--)
            list[at] = list[at - 1];
        list[at] = one;
    }
}

static void finish(search *s, const candidate *end, int beams, int *done) {
    if (*done == beams)
        return;
    hypothesis *h = &s->done[(*done)++];
    copy_hypothesis(h, &s->live[end->parent]);
    h->sum = end->sum;
}

static void continue_with(search *s, const candidate *c, int beam) {
    hypothesis *h = &s->next[beam];
    copy_hypothesis(h, &s->live[c->parent]);
    h->tokens[h->count++] = c->token;
    h->sum = c->sum;
    s->chosen[beam] = c->token;
    s->parents[beam] = c->parent;
}

/* One step: the best candidates that go on are the next beams, those that end before the
   last of them are done. Returns how many go on. */
static int advance(search *s, const search_task *task, int live, int *done) {
    int count = 0, kept = 0;
    for (int beam = 0; beam < live; beam++)
        count = propose(s, task, beam, count);
    sort_candidates(s->candidates, count);
    for (int i = 0; i < count && kept < task->beams; i++) {
        if (s->candidates[i].token == task->rules.end)
            finish(s, &s->candidates[i], task->beams, done);
        else
            continue_with(s, &s->candidates[i], kept++);
    }
    hypothesis *before = s->live;
    s->live = s->next;
    s->next = before;
    return kept;
}

static const hypothesis *run_beams(search *s, const search_task *task) {
    int live = 1, done = 0; /* all beams begin with the same text */
    for (int step = 0; step < task->longest; step++) {
        live = advance(s, task, live, &done);
        if (live == 0 || done == task->beams || sh_decoder_room(s->network, 0) == 0 ||
            step + 1 == task->longest)
            break;
        sh_decoder_reorder(s->network, s->parents, live);
        sh_decoder_step(s->network, s->chosen, live);
        sh_decoder_logits(s->network, 0, live, s->logits);
    }
    /* Where too few have ended, the likeliest of the others, which are sorted. */
    for (int beam = 0; beam < live && done < task->beams; beam++)
        copy_hypothesis(&s->done[done++], &s->live[beam]);
    if (done == 0) {
        s->done[0].count = 0;
        s->done[0].sum = 0;
        done = 1;
    }
    return &s->done[best_of(s->done, done)];
}

/* ---- The search ----------------------------------------------------------------- */

static double probability_of(const float *logits, int vocabulary, int32_t token) {
    return exp((double)logits[token] - sh_log_sum_exp(logits, vocabulary));
}

shoal_status sh_search_run(search *s, const search_task *task, search_result *result) {
    search_task bounded = *task;
    const int room = s->positions - task->prompt_count;
    bounded.beams = task->beams < s->beams ? task->beams : s->beams;
    if (task->longest > room + 1)
        bounded.longest = room + 1;
    if (bounded.longest > s->positions)
        bounded.longest = s->positions;
    s->damaged = false;
    sh_decoder_begin(s->network, task->prompt, task->prompt_count);
    sh_decoder_logits(s->network, task->start, 1, s->logits);
    result->no_speech = probability_of(s->logits, s->vocabulary, task->no_speech);
    sh_decoder_logits(s->network, task->prompt_count - 1, 1, s->logits);
    for (int beam = 0; beam < s->beams; beam++) {
        s->live[beam].count = 0;
        s->live[beam].sum = 0;
        s->live[beam].ended = false;
    }
    const bool sampled = task->temperature > 0;
    const hypothesis *best = sampled ? run_samples(s, &bounded, bounded.beams)
                             : bounded.beams == 1 ? run_samples(s, &bounded, 1)
                                                  : run_beams(s, &bounded);
    result->tokens = best->tokens;
    result->count = best->count;
    result->mean_logprob = best->sum / (best->count + 1);
    return s->damaged
               ? sh_fail(s->context, SHOAL_BAD_FILE,
                         "the model's decoder gives NaN or infinities: its weights "
                         "are damaged")
               : SHOAL_OK;
}

int32_t sh_search_choice(search *s, int32_t after, const int32_t *among, int count,
                         double *probability) {
    int best = 0;
    sh_decoder_begin(s->network, &after, 1);
    sh_decoder_logits(s->network, 0, 1, s->logits);
    for (int i = 0; i < count; i++)
        if (s->logits[among[i]] > s->logits[among[best]])
            best = i;
    double total = 0;
    for (int i = 0; i < count; i++)
        total += exp((double)s->logits[among[i]] - (double)s->logits[among[best]]);
    *probability = 1 / total;
    return among[best];
}
