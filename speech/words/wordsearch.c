/* Word search: token passing through the lexicon tree.

   A token is at a place, a node of the tree (or the pause between words), with a state
   of the language model; of tokens with the same place and state only the best
   survives. Its score includes a look-ahead, the probability of the best word below its
   node; at the end of a word it is replaced by that of the language model. After a word
   a token returns to the root, in the set of roots: with the state after the word, and
   with what must not follow: a second pause, or with CTC the same phone without a blank
   between. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "base/parallel.h"
#include "speech/words/grow.h"
#include "speech/words/wordsearch.h"

enum {
    CACHE = 1 << 15,       /* cached queries of the language model */
    BINS = 512,            /* of the histogram of scores, if there are too many tokens */
    FIRST_SHRINK = 1 << 19 /* number of records after which unreachable ones are
                              removed */
};

/* What may follow: anything; no pause; or, from 0 on, any phone but this one. */
enum { AFTER_START = -1, AFTER_PAUSE = -2 };

/* Also used for roots, whose place is one of the values above. */
typedef struct {
    int32_t place, state;
    float score;
    int32_t group, begin; /* of the records so far; step in which the word began */
} token;

/* Hash slot with two keys; a slot with an older stamp is free. */
typedef struct {
    uint32_t stamp;
    int32_t index;
} slot;

/* Tokens with distinct pairs of place and state. */
typedef struct {
    shoal_context *context;
    token *list; /* [room] */
    int64_t count, room;
    slot *slots; /* [size], a power of 2 */
    uint32_t size, stamp;
} token_set;

typedef struct {
    int32_t state, word, next;
    float prob;
} cached;

/* Scores of one step by phone. */
typedef struct {
    float *enter, *stay; /* [phones] */
    float blank;         /* CTC: of the blank */
    float pause_enter, pause_stay;
} step_scores;

typedef struct word_search {
    const shoal_word_decoder *decoder;
    const shoal_word_settings *settings;
    float lm_weight, insertion;
    token_set now, next, roots, next_roots;
    float best_next; /* best score in next */
    step_scores scores;
    cached *cache; /* [CACHE] */
    word_paths paths;
    int32_t shrink_at;
    int32_t step; /* current step */
    double token_sum;
    bool failed; /* memory ran out */
} word_search;

/* ---- Tables ------------------------------------------------------------------------ */

static uint32_t mix(int32_t a, int32_t b) {
    const uint64_t key = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) *
                         0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32) ^ (uint32_t)(key >> 11);
}

static void clear(token_set *set) {
    set->count = 0;
    if (++set->stamp == 0) { /* the stamps wrapped around */
        memset(set->slots, 0, sizeof *set->slots * set->size);
        set->stamp = 1;
    }
}

/* The slot of this place and state, or the free slot for it. */
static slot *find(const token_set *set, int32_t place, int32_t state) {
    uint32_t at = mix(place, state) & (set->size - 1);
    for (; set->slots[at].stamp == set->stamp; at = (at + 1) & (set->size - 1)) {
        const token *there = &set->list[set->slots[at].index];
        if (there->place == place && there->state == state)
            break;
    }
    return &set->slots[at];
}

/* Makes room for one more token, with a load factor of at most one half. */
static bool make_room(token_set *set) {
    if (set->count < set->room)
        return true;
    if (!grow(set->context, &set->list, &set->room, set->count + 1, sizeof *set->list))
        return false;
    uint32_t size = set->size ? set->size : 1 << 10;
    while (size < 2 * (uint64_t)set->room)
        size *= 2;
    slot *slots = sh_allocate_zeros(set->context, size, sizeof *slots);
    if (!slots)
        return false;
    sh_free(set->slots);
    set->slots = slots;
    set->size = size;
    set->stamp = 1;
    for (int64_t i = 0; i < set->count; i++)
        *find(set, set->list[i].place, set->list[i].state) = (slot){1, (int32_t)i};
    return true;
}

/* The token of this place and state; a new one has a score of -infinity. NULL if out of
   memory. */
static token *take(word_search *s, token_set *set, int32_t place, int32_t state) {
    if (!make_room(set)) {
        s->failed = true;
        return NULL;
    }
    slot *at = find(set, place, state);
    if (at->stamp != set->stamp) {
        *at = (slot){set->stamp, (int32_t)set->count};
        set->list[set->count++] = (token){place, state, -INFINITY, -1, 0};
    }
    return &set->list[at->index];
}

/* ---- One step ---------------------------------------------------------------------- */

static float beam_of(const word_search *s) {
    return (float)s->settings->beam;
}

/* Adds a token for the next step, unless a better one exists or it is outside the
   beam. */
static void offer(word_search *s, token made) {
    if (!(made.score >= s->best_next - beam_of(s)) || made.score <= -INFINITY)
        return;
    if (made.score > s->best_next)
        s->best_next = made.score;
    token *there = take(s, &s->next, made.place, made.state);
    if (there && made.score > there->score)
        *there = made;
}

/* Places: 2 node, or with CTC 2 node + 1 in the blanks after its phone. */
static int32_t pause_place(const word_search *s) {
    return 2 * s->decoder->tree.node_count;
}

static bool is_ctc(const word_search *s) {
    return s->decoder->topology == SHOAL_TOPOLOGY_CTC;
}

/* Enters the children of a node; banned: a phone that may not follow, or -1. */
static void enter_children(word_search *s, const tree_node *node, token from, float ahead,
                           int32_t banned) {
    const tree_node *nodes = s->decoder->tree.nodes;
    const float least = s->best_next - beam_of(s);
    for (int32_t i = node->child; i < node->child + node->child_count; i++) {
        const tree_node *child = &nodes[i];
        const float score = from.score + s->scores.enter[child->phone] +
                            s->lm_weight * (child->ahead - ahead);
        if (score >= least && child->phone != banned)
            offer(s, (token){2 * i, from.state, score, from.group, from.begin});
    }
}

static void move_token(word_search *s, token from) {
    if (from.place == pause_place(s)) {
        from.score += s->scores.pause_stay;
        offer(s, from);
        return;
    }
    const tree_node *node = &s->decoder->tree.nodes[from.place / 2];
    const bool between = from.place & 1;
    enter_children(s, node, from, node->ahead, is_ctc(s) && !between ? node->phone : -1);
    token stays = from;
    stays.score += between ? s->scores.blank : s->scores.stay[node->phone];
    offer(s, stays);
    if (is_ctc(s) && !between && node->child_count > 0) {
        from.score += s->scores.blank;
        from.place++;
        offer(s, from);
    }
}

/* ---- Ends of words ----------------------------------------------------------------- */

static float modelled(word_search *s, int32_t state, int32_t word, int32_t *next) {
    if (word < 0) {
        *next = 0;
        return s->decoder->tree.unknown;
    }
    cached *c = &s->cache[mix(state, word) & (CACHE - 1)];
    if (c->state != state || c->word != word) {
        c->prob = sh_ngram_step(s->decoder->ngram, state, word, &c->next);
        c->state = state;
        c->word = word;
    }
    *next = c->next;
    return c->prob;
}

/* Adds the end of a word to the group of its root. */
static void add_record(word_search *s, token *to, const token *from, int32_t spelled,
                       float score) {
    const bool all = s->settings->nbest > 1 || s->settings->confidence;
    word_record made = {spelled, from->group, -1, from->begin, s->step + 1, score};
    const bool better = score > to->score;
    if (!all && !better)
        return;
    if (!all && to->group >= 0) {
        s->paths.records[to->group] = made;
        to->score = score;
        return;
    }
    if (s->paths.count == INT32_MAX - 1 ||
        !grow(s->decoder->context, &s->paths.records, &s->paths.room, s->paths.count + 1,
              sizeof *s->paths.records)) {
        s->failed = true;
        return;
    }
    if (better) {
        made.other = to->group;
        to->group = s->paths.count;
        to->score = score;
    } else {
        made.other = s->paths.records[to->group].other;
        s->paths.records[to->group].other = s->paths.count;
    }
    s->paths.records[s->paths.count++] = made;
}

/* Roots of the next step: after a pause, or at the ends of words. */
static void make_roots(word_search *s) {
    const word_tree *tree = &s->decoder->tree;
    for (int64_t i = 0; i < s->next.count; i++) {
        const token *from = &s->next.list[i];
        if (from->score < s->best_next - beam_of(s))
            continue;
        if (from->place == pause_place(s)) {
            token *to = take(s, &s->next_roots, AFTER_PAUSE, from->state);
            if (to) {
                to->score = from->score;
                to->group = from->group;
            }
            continue;
        }
        if (from->place & 1)
            continue;
        const tree_node *node = &tree->nodes[from->place / 2];
        const int32_t last = is_ctc(s) ? node->phone : AFTER_START;
        for (int32_t w = node->word; w < node->word + node->word_count; w++) {
            int32_t next;
            const float prob = modelled(s, from->state, tree->words[w].modelled, &next);
            const float score = from->score + s->lm_weight * (prob - node->ahead) +
                                s->insertion;
            if (!(score >= s->best_next - beam_of(s)) || score <= -INFINITY)
                continue;
            token *to = take(s, &s->next_roots, last, next);
            if (to)
                add_record(s, to, from, tree->words[w].spelled, score);
        }
    }
}

/* ---- Limits ------------------------------------------------------------------------ */

/* Score limit that keeps at most the maximum number of tokens, within the beam; the
   best score is 0. */
static float token_limit(const word_search *s) {
    const int64_t most = s->settings->tokens;
    int32_t bins[BINS] = {0};
    float low = -beam_of(s);
    if (most == 0 || s->now.count <= most)
        return low;
    if (low <= -INFINITY)
        for (int64_t i = 0; i < s->now.count; i++)
            low = s->now.list[i].score < low || low <= -INFINITY ? s->now.list[i].score
                                                                 : low;
    if (!(low < 0))
        return low;
    const float scale = (float)(BINS - 1) / -low;
    for (int64_t i = 0; i < s->now.count; i++)
        if (s->now.list[i].score >= low && s->now.list[i].score <= 0)
            bins[(int32_t)(-s->now.list[i].score * scale)]++;
    int64_t sum = 0;
    for (int i = 0; i < BINS; i++) {
        sum += bins[i];
        if (sum > most)
            return i == 0 ? -1 / scale : -(float)i / scale;
    }
    return low;
}

/* Removes unreachable records once there are many. */
static bool shrink_records(word_search *s) {
    if (s->paths.count < s->shrink_at)
        return true;
    const token_set *const sets[] = {&s->now, &s->roots};
    int64_t count = 0;
    int32_t **groups =
        sh_allocate(s->decoder->context,
                    sizeof *groups * (size_t)(s->now.count + s->roots.count + 1));
    if (!groups)
        return false;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < sets[k]->count; i++)
            groups[count++] = &sets[k]->list[i].group;
    const bool good = sh_paths_shrink(&s->paths, groups, count);
    sh_free(groups);
    s->shrink_at = 2 * s->paths.count > FIRST_SHRINK ? 2 * s->paths.count : FIRST_SHRINK;
    return good;
}

/* ---- A sequence -------------------------------------------------------------------- */

static void set_scores(word_search *s, const float *row) {
    const int32_t phones = s->decoder->phones, silence = phones - 1;
    step_scores *to = &s->scores;
    const bool blank = s->decoder->topology == SHOAL_TOPOLOGY_BLANK;
    const int32_t each = s->decoder->topology == SHOAL_TOPOLOGY_CHAIN ? 2 : 1;
    for (int32_t p = 0; p < phones && !is_ctc(s); p++) {
        to->enter[p] = row[each * p];
        to->stay[p] = row[blank ? phones : each * p + each - 1];
    }
    if (is_ctc(s)) {
        /* enter[p] is class p + 1; the entry of the silence is unused */
        float high = -INFINITY;
        double sum = 0;
        for (int32_t p = 0; p < phones; p++)
            high = row[p] > high ? row[p] : high;
        for (int32_t p = 0; p < phones; p++)
            sum += exp((double)row[p] - (double)high);
        const float all = high + (float)log(sum);
        for (int32_t p = 0; p < phones; p++)
            to->stay[p] = row[p] - all;
        to->blank = to->pause_enter = to->pause_stay = to->stay[0];
        memmove(to->stay, to->stay + 1, sizeof(float) * (size_t)(phones - 1));
        memcpy(to->enter, to->stay, sizeof(float) * (size_t)(phones - 1));
    } else {
        to->pause_enter = to->enter[silence];
        to->pause_stay = to->stay[silence];
    }
}

static bool begin_sequence(word_search *s, const shoal_word_settings *settings,
                           int64_t steps) {
    const shoal_ngram *ngram = s->decoder->ngram;
    s->settings = settings;
    s->lm_weight = (float)settings->lm_weight;
    s->insertion = (float)settings->insertion;
    s->now.count = s->paths.end_count = s->paths.count = 0;
    s->paths.steps = (int32_t)steps;
    s->paths.scale = s->lm_weight > 1 ? 1 / s->lm_weight : 1;
    s->step = 0;
    s->token_sum = 0;
    s->shrink_at = FIRST_SHRINK;
    s->failed = false;
    sh_free(s->paths.bases);
    s->paths.bases =
        sh_allocate_zeros(s->decoder->context, (size_t)steps + 1, sizeof(double));
    clear(&s->next);
    clear(&s->next_roots);
    s->roots.count = 1;
    s->roots.list[0] =
        (token){AFTER_START, ngram->order > 1 ? 1 + ngram->begin : 0, 0, -1, 0};
    return s->paths.bases != NULL;
}

/* Advances to the next step. Scores become relative to the best one, which is added to
   the step's base. */
static void next_step(word_search *s) {
    const token_set tokens = s->now, roots = s->roots;
    s->now = s->next;
    s->next = tokens;
    s->roots = s->next_roots;
    s->next_roots = roots;
    clear(&s->next);
    clear(&s->next_roots);
    s->step++;
    float best = -INFINITY;
    const token_set *const sets[] = {&s->now, &s->roots};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < sets[k]->count; i++)
            best = sets[k]->list[i].score > best ? sets[k]->list[i].score : best;
    if (best <= -INFINITY)
        best = 0;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < sets[k]->count; i++)
            sets[k]->list[i].score -= best;
    s->paths.bases[s->step] = s->paths.bases[s->step - 1] + (double)best;
    /* the scores of this step's records are final */
    for (int32_t i = s->paths.count - 1; i >= 0 && s->paths.records[i].end == s->step;
         i--)
        s->paths.records[i].score -= best;
}

static bool add_end(word_paths *paths, path_end end) {
    if (!grow(paths->context, &paths->ends, &paths->end_room, paths->end_count + 1,
              sizeof end))
        return false;
    paths->ends[paths->end_count++] = end;
    return true;
}

/* Roots after the last step, or the best token if there are none. */
static bool end_sequence(word_search *s, shoal_spoken *spoken) {
    const shoal_ngram *ngram = s->decoder->ngram;
    bool good = true;
    int64_t best = 0;
    int32_t next;
    for (int64_t i = 0; i < s->roots.count && good; i++) {
        const float prob =
            sh_ngram_next(ngram, s->roots.list[i].state, ngram->end, &next);
        good = add_end(&s->paths, (path_end){s->roots.list[i].score + s->lm_weight * prob,
                                             s->roots.list[i].group});
    }
    spoken->whole = s->roots.count > 0;
    spoken->tokens_of_step = s->step ? s->token_sum / s->step : 0;
    if (s->roots.count > 0)
        return good;
    for (int64_t i = 0; i < s->now.count; i++)
        best = s->now.list[i].score > s->now.list[best].score ? i : best;
    return add_end(&s->paths, s->now.count ? (path_end){s->now.list[best].score,
                                                        s->now.list[best].group}
                                           : (path_end){0, -1});
}

static bool run_sequence(word_search *s, const shoal_word_settings *settings,
                         const float *outputs, int64_t steps, shoal_spoken *spoken,
                         void **block) {
    bool good = begin_sequence(s, settings, steps);
    for (int64_t i = 0; i < steps && good; i++) {
        set_scores(s, outputs + i * s->decoder->outputs);
        s->best_next = -INFINITY;
        const float least = token_limit(s);
        int64_t first = 0;
        for (int64_t k = 0; k < s->now.count; k++) /* the best token is first and sets
                                                      the beam */
            first = s->now.list[k].score > s->now.list[first].score ? k : first;
        if (s->now.count > 0)
            move_token(s, s->now.list[first]);
        for (int64_t k = 0; k < s->now.count; k++)
            if (s->now.list[k].score >= least && k != first) {
                move_token(s, s->now.list[k]);
                s->token_sum++;
            }
        for (int64_t k = 0; k < s->roots.count; k++)
            if (s->roots.list[k].score >= least) {
                const token from = s->roots.list[k];
                const token start = {0, from.state, from.score, from.group, s->step};
                enter_children(s, &s->decoder->tree.nodes[0], start, 0, from.place);
                if (from.place != AFTER_PAUSE)
                    offer(s, (token){pause_place(s), from.state,
                                     from.score + s->scores.pause_enter, from.group,
                                     s->step});
            }
        make_roots(s);
        next_step(s);
        good = !s->failed && shrink_records(s);
    }
    return good && end_sequence(s, spoken) &&
           sh_paths_read(&s->paths, settings, spoken, block);
}

/* ---- Searches of all threads ------------------------------------------------------ */

static void free_search(word_search *s) {
    if (!s)
        return;
    token_set *const sets[] = {&s->now, &s->next, &s->roots, &s->next_roots};
    for (int i = 0; i < 4; i++)
        FREE_ALL(sets[i]->list, sets[i]->slots);
    FREE_ALL(s->scores.enter, s->scores.stay, s->cache, s->paths.records, s->paths.bases,
             s->paths.ends, s);
}

static word_search *make_search(const shoal_word_decoder *decoder) {
    word_search *s = sh_allocate_zeros(decoder->context, 1, sizeof *s);
    const size_t phones = (size_t)decoder->phones + 1;
    if (!s)
        return NULL;
    *s = (word_search){.decoder = decoder,
                       .now.context = decoder->context,
                       .next.context = decoder->context,
                       .roots.context = decoder->context,
                       .next_roots.context = decoder->context,
                       .paths.context = decoder->context,
                       .paths.lexicon = decoder->lexicon,
                       .scores.enter =
                           sh_allocate_zeros(decoder->context, phones, sizeof(float)),
                       .scores.stay =
                           sh_allocate_zeros(decoder->context, phones, sizeof(float)),
                       .cache = sh_allocate(decoder->context, sizeof *s->cache * CACHE)};
    if (s->scores.enter && s->scores.stay && s->cache && make_room(&s->now) &&
        make_room(&s->next) && make_room(&s->roots) && make_room(&s->next_roots)) {
        memset(s->cache, 0xff, sizeof *s->cache * CACHE); /* -1 is not a valid state */
        return s;
    }
    free_search(s);
    return NULL;
}

typedef struct {
    shoal_word_decoder *decoder;
    const shoal_word_settings *settings;
    const int64_t *offsets;
    const float *outputs;
    shoal_spoken *spoken;
    char *good; /* [count] */
} decode_job;

static void decode_task(void *shared, int64_t task, int thread) {
    decode_job *job = shared;
    word_search **own = &job->decoder->searches[thread];
    const int64_t begin = job->offsets[task], end = job->offsets[task + 1];
    if (!*own)
        *own = make_search(job->decoder);
    job->good[task] = *own && run_sequence(*own, job->settings,
                                           job->outputs + begin * job->decoder->outputs,
                                           end - begin, &job->spoken[task],
                                           &job->decoder->blocks[task]);
}

/* ---- The interface ----------------------------------------------------------------- */

void shoal_word_settings_init(shoal_word_settings *settings, size_t size,
                              shoal_topology topology) {
    const bool ctc = topology == SHOAL_TOPOLOGY_CTC;
    const shoal_word_settings known = {.size = sizeof known,
                                       .beam = 12,
                                       .tokens = 3000,
                                       .lm_weight = ctc ? 0.6 : 1,
                                       .insertion = ctc ? 0 : -1,
                                       .nbest = 1};
    sh_write_struct(settings, size, &known, sizeof known);
}

int64_t sh_topology_outputs(int32_t topology, int64_t phones) {
    switch (topology) {
    case SHOAL_TOPOLOGY_BLANK: return phones + 1;
    case SHOAL_TOPOLOGY_CHAIN: return 2 * phones;
    default: return phones; /* CTC has a blank instead of the silence */
    }
}

shoal_status shoal_word_decoder_create(shoal_context *context,
                                       const shoal_lexicon *lexicon,
                                       const shoal_ngram *ngram, shoal_topology topology,
                                       double unknown, shoal_word_decoder **decoder) {
    if (!context || !lexicon || !ngram || !decoder)
        return sh_fail(context, SHOAL_INVALID,
                       "a word search needs a lexicon and a language model");
    *decoder = NULL;
    if ((int)topology < 0 || topology > SHOAL_TOPOLOGY_CTC || !(unknown >= 0) ||
        unknown > 1)
        return sh_fail(
            context, SHOAL_INVALID,
            "invalid topology, or the probability of unknown words is not from 0 to 1");
    shoal_word_decoder *made = sh_allocate_zeros(context, 1, sizeof *made);
    if (!made)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory for the search");
    const int64_t phones = shoal_lexicon_describe(lexicon)->phones;
    *made =
        (shoal_word_decoder){.context = context,
                             .lexicon = lexicon,
                             .ngram = ngram,
                             .topology = topology,
                             .phones = (int32_t)phones,
                             .outputs = sh_topology_outputs((int32_t)topology, phones),
                             .searches = sh_allocate_zeros(context,
                                                           (size_t)context->threads,
                                                           sizeof(*made->searches))};
    const shoal_status status =
        made->searches
            ? sh_word_tree_make(context, lexicon, ngram, unknown, &made->tree)
            : sh_fail(context, SHOAL_NO_MEMORY, "out of memory for the search");
    if (status == SHOAL_OK)
        *decoder = made;
    else
        shoal_word_decoder_destroy(made);
    return status;
}

static void drop_blocks(shoal_word_decoder *decoder) {
    for (int64_t i = 0; i < decoder->block_count; i++)
        sh_free(decoder->blocks[i]);
    sh_free(decoder->blocks);
    decoder->blocks = NULL;
    decoder->block_count = 0;
}

void shoal_word_decoder_destroy(shoal_word_decoder *decoder) {
    if (!decoder)
        return;
    for (int i = 0; decoder->searches && i < decoder->context->threads; i++)
        free_search(decoder->searches[i]);
    sh_free(decoder->searches);
    drop_blocks(decoder);
    sh_word_tree_free(&decoder->tree);
    sh_free(decoder);
}

const shoal_word_decoder_info *
shoal_word_decoder_describe(const shoal_word_decoder *decoder) {
    if (!decoder)
        return NULL;
    const word_tree *tree = &decoder->tree;
    shoal_word_decoder_info info = {.words = tree->heard,
                                    .pronunciations = tree->word_count,
                                    .left_out = tree->left_out,
                                    .nodes = tree->node_count,
                                    .outputs = decoder->outputs};
    info.bytes = sizeof(tree_node) * (size_t)tree->node_count +
                 sizeof(tree_word) * (size_t)tree->word_count;
    for (int i = 0; i < decoder->context->threads; i++) {
        const word_search *s = decoder->searches[i];
        if (s)
            info.bytes += sizeof(token) * (size_t)(s->now.room + s->next.room +
                                                   s->roots.room + s->next_roots.room) +
                          sizeof(slot) * ((size_t)s->now.size + s->next.size +
                                          s->roots.size + s->next_roots.size) +
                          sizeof(cached) * CACHE +
                          sizeof(word_record) * (size_t)s->paths.room;
    }
    shoal_word_decoder_info *kept = &((shoal_word_decoder *)(uintptr_t)decoder)->info;
    *kept = info;
    return kept;
}

int shoal_word_decoder_hears(const shoal_word_decoder *decoder, int64_t word) {
    return word >= 0 && word < shoal_lexicon_describe(decoder->lexicon)->words &&
           decoder->tree.hears[word];
}

shoal_status shoal_word_decoder_run(shoal_word_decoder *decoder,
                                    const shoal_word_settings *settings, int64_t count,
                                    const int64_t *offsets, const float *outputs,
                                    shoal_spoken *spoken) {
    if (!decoder || count < 0 || (count > 0 && (!offsets || !outputs || !spoken)))
        return sh_fail(decoder ? decoder->context : NULL, SHOAL_INVALID,
                       "a word search needs outputs and a place for its results");
    shoal_context *context = decoder->context;
    shoal_word_settings own = shoal_word_settings_defaults(decoder->topology);
    TRY(READ_STRUCT(context, shoal_word_settings, settings, &own));
    settings = settings ? &own : NULL;
    if (!settings || !(settings->beam > 0) || settings->tokens < 0 ||
        !isfinite(settings->lm_weight) || settings->lm_weight < 0 ||
        !isfinite(settings->insertion) || settings->nbest < 1 || settings->nbest > 10000)
        return sh_fail(context, SHOAL_INVALID,
                       "invalid settings: beam must be above 0, tokens and weight at "
                       "least 0, strings from 1 to 10000");
    for (int64_t i = 0; i < count; i++)
        if (offsets[i] > offsets[i + 1] || offsets[i] < 0 ||
            offsets[i + 1] - offsets[i] >= INT32_MAX)
            return sh_fail(context, SHOAL_INVALID, "offsets must be non-decreasing");
    const int64_t begin = count ? offsets[0] : 0, end = count ? offsets[count] : 0;
    for (int64_t i = begin * decoder->outputs; i < end * decoder->outputs; i++)
        if (!(outputs[i] < INFINITY))
            return sh_fail(context, SHOAL_INVALID,
                           "the outputs of step %lld are not finite",
                           (long long)(i / decoder->outputs));
    drop_blocks(decoder);
    char *good = sh_allocate_zeros(context, (size_t)count + 1, 1);
    decoder->blocks =
        sh_allocate_zeros(context, (size_t)count + 1, sizeof *decoder->blocks);
    bool all = good && decoder->blocks;
    if (all) {
        decoder->block_count = count;
        decode_job job = {decoder, settings, offsets, outputs, spoken, good};
        sh_team_run(sh_team_of(context), count, decode_task, &job);
    }
    for (int64_t i = 0; i < count && all; i++)
        all = good[i];
    sh_free(good);
    return all ? SHOAL_OK
               : sh_fail(context, SHOAL_NO_MEMORY, "out of memory for the search");
}
