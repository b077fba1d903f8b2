/* Graphs of lattice-free MMI, built from the phone language model. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "speech/recogniser/lfmmi.h"
#include "speech/words/grow.h"

/* The start state is never entered. */
static state_outputs outputs_of(int32_t topology, int32_t phones, int32_t last) {
    const int32_t p = last < 0 ? 0 : last;
    switch (topology) {
    case SHOAL_TOPOLOGY_ONE: return (state_outputs){p, p};
    case SHOAL_TOPOLOGY_BLANK: return (state_outputs){p, phones};
    default: return (state_outputs){2 * p, 2 * p + 1};
    }
}

static void place_arcs(block_layout *block, int64_t states, int64_t arcs,
                       arc_lists *lists) {
    lists->first = sh_reserve(block, states + 1, sizeof *lists->first);
    lists->other = sh_reserve(block, arcs, sizeof *lists->other);
    lists->weight = sh_reserve(block, arcs, sizeof *lists->weight);
}

typedef struct {
    int32_t from, to;
    float weight;
} graph_arc;

/* Sorts arcs [count] by source or destination. lists->first is zeroed. */
static void sort_arcs(const graph_arc *arcs, int32_t count, int32_t states,
                      bool by_source, arc_lists *lists) {
    for (int32_t a = 0; a < count; a++)
        lists->first[(by_source ? arcs[a].from : arcs[a].to) + 1]++;
    for (int32_t s = 0; s < states; s++)
        lists->first[s + 1] += lists->first[s];
    for (int32_t a = 0; a < count; a++) {
        const int32_t at = lists->first[by_source ? arcs[a].from : arcs[a].to]++;
        lists->other[at] = by_source ? arcs[a].to : arcs[a].from;
        lists->weight[at] = arcs[a].weight;
    }
    memmove(lists->first + 1, lists->first, sizeof *lists->first * (size_t)states);
    lists->first[0] = 0;
}

/* ---- Denominator ------------------------------------------------------------------ */

typedef struct {
    den_graph *den;
    int64_t phones, firsts;
} den_sizes;

static void place_den(void *argument, block_layout *block) {
    const den_sizes *sizes = argument;
    den_graph *den = sizes->den;
    place_arcs(block, den->states, den->arcs, &den->in);
    place_arcs(block, den->states, den->arcs, &den->out);
    den->outputs = sh_reserve(block, den->states, sizeof *den->outputs);
    den->init = sh_reserve(block, den->states, sizeof *den->init);
    den->final = sh_reserve(block, den->states, sizeof *den->final);
    den->occupancy = sh_reserve(block, den->states, sizeof *den->occupancy);
    den->first_of = sh_reserve(block, sizes->phones + 1, sizeof *den->first_of);
    den->first_state = sh_reserve(block, sizes->firsts, sizeof *den->first_state);
    den->first_weight = sh_reserve(block, sizes->firsts, sizeof *den->first_weight);
}

/* Mean occupancy over 100 steps from the start; rows are normalised, with weight 1 for
   a loop. sums: [3][states] */
static void find_occupancy(const phone_lm *lm, double *sums) {
    enum { STEPS = 100 };
    double *mean = sums, *now = sums + lm->states, *then = now + lm->states;
    memset(sums, 0, sizeof *sums * 3 * (size_t)lm->states);
    now[0] = 1;
    for (int step = 0; step < STEPS; step++) {
        double total = 0;
        for (int32_t s = 0; s < lm->states; s++) {
            mean[s] += now[s] / STEPS;
            then[s] = 0;
        }
        for (int32_t s = 0; s < lm->states; s++) {
            double row = lm->end[s] + (s > 0);
            for (int32_t a = lm->first[s]; a < lm->first[s + 1]; a++)
                row += lm->weight[a];
            const double share = row > 0 ? now[s] / row : 0;
            for (int32_t a = lm->first[s]; a < lm->first[s + 1]; a++)
                then[lm->next[a]] += share * lm->weight[a];
            then[s] += s > 0 ? share : 0;
        }
        for (int32_t s = 0; s < lm->states; s++)
            total += then[s];
        for (int32_t s = 0; s < lm->states; s++)
            now[s] = total > 0 ? then[s] / total : 0;
    }
}

bool sh_den_make(shoal_context *context, const phone_lm *lm, int32_t topology, bool whole,
                 den_graph *den) {
    const size_t states = (size_t)lm->states;
    double *sums = sh_allocate_zeros(context, 5 * states + 1, sizeof *sums);
    graph_arc *arcs = sh_allocate(context, sizeof *arcs * ((size_t)lm->arcs + 1));
    *den = (den_graph){.states = lm->states, .arcs = lm->arcs, .last = lm->last};
    if (!sums || !arcs) {
        FREE_ALL(sums, arcs);
        return false;
    }
    double *init = sums + 3 * states, *ways = init + states;
    find_occupancy(lm, sums);
    if (whole)
        init[0] = 1;
    else
        memcpy(init, sums, sizeof *init * states);
    /* ways: probability of reaching each state with the first phone, its last one. */
    den_sizes sizes = {den, lm->phones, 0};
    for (int32_t s = 0; s < lm->states; s++)
        for (int32_t a = lm->first[s]; a < lm->first[s + 1]; a++)
            ways[lm->next[a]] += init[s] * lm->weight[a];
    for (int32_t s = 0; s < lm->states; s++)
        sizes.firsts += ways[s] > 0;
    den->block = sh_allocate_zeroed_parts(context, place_den, &sizes);
    for (size_t s = 0; den->block && s < states; s++) {
        den->outputs[s] = outputs_of(topology, lm->phones, lm->last[s]);
        den->init[s] = (float)init[s];
        den->final[s] = whole ? (float)lm->end[s] : 1;
        den->occupancy[s] = (float)sums[s];
    }
    if (den->block) {
        for (int32_t s = 0; s < lm->states; s++)
            for (int32_t a = lm->first[s]; a < lm->first[s + 1]; a++)
                arcs[a] = (graph_arc){s, lm->next[a], (float)lm->weight[a]};
        sort_arcs(arcs, lm->arcs, lm->states, false, &den->in);
        sort_arcs(arcs, lm->arcs, lm->states, true, &den->out);
        int32_t at = 0;
        for (int32_t p = 0; p < lm->phones; p++) {
            den->first_of[p] = at;
            for (int32_t s = 1; s < lm->states; s++)
                if (lm->last[s] == p && ways[s] > 0) {
                    den->first_state[at] = s;
                    den->first_weight[at++] = ways[s];
                }
        }
        den->first_of[lm->phones] = at;
    }
    FREE_ALL(sums, arcs);
    return den->block != NULL;
}

void sh_den_free(den_graph *den) {
    sh_free(den->block);
    *den = (den_graph){0};
}

/* ---- Numerators: the acceptor of pronunciations ----------------------------------- */

/* Nodes are topologically sorted: B of a boundary, C after its silence, then the inner
   nodes of the next word's pronunciations. */
typedef struct {
    int32_t phone, to;
} node_arc;

typedef struct {
    int32_t *first; /* [nodes + 1]: first arc */
    node_arc *arcs;
    int32_t nodes, arc_count;
    int32_t end; /* nodes from here on are final */
} acceptor;

typedef struct {
    int32_t from, to, phone;
} plain_arc;

/* Writes all arcs of the acceptor; arcs NULL counts them. */
typedef struct {
    plain_arc *arcs;
    int32_t count, nodes;
} arc_writer;

static void write_arc(arc_writer *w, int32_t from, int32_t to, int32_t phone) {
    if (w->arcs)
        w->arcs[w->count] = (plain_arc){from, to, phone};
    w->count++;
}

/* A boundary and the node after its silence have consecutive numbers. */
static void write_arcs(arc_writer *w, const shoal_lexicon *lexicon, const int32_t *words,
                       int64_t count) {
    const int32_t silence = (int32_t)shoal_lexicon_describe(lexicon)->silence, *phones;
    int32_t b = 0;
    w->count = 0;
    for (int64_t i = 0;; i++) {
        write_arc(w, b, b + 1, silence);
        w->nodes = b + 2;
        if (i == count)
            return;
        /* One word, from boundary b to the next. */
        const int64_t ways = shoal_lexicon_pronunciations(lexicon, words[i]);
        int32_t inside = w->nodes, boundary = w->nodes;
        for (int64_t p = 0; p < ways; p++)
            boundary +=
                (int32_t)shoal_lexicon_pronunciation(lexicon, words[i], p, &phones) - 1;
        for (int64_t p = 0; p < ways; p++) {
            const int64_t length =
                shoal_lexicon_pronunciation(lexicon, words[i], p, &phones);
            for (int64_t k = 0; k < length; k++) {
                const int32_t to = k == length - 1 ? boundary : inside;
                if (k == 0)
                    write_arc(w, b + 1, to, phones[k]);
                write_arc(w, k == 0 ? b : inside - 1, to, phones[k]);
                inside += k < length - 1;
            }
        }
        b = boundary;
    }
}

static bool make_acceptor(shoal_context *context, const shoal_lexicon *lexicon,
                          const int32_t *words, int64_t count, acceptor *made) {
    arc_writer w = {0};
    write_arcs(&w, lexicon, words, count);
    *made = (acceptor){.nodes = w.nodes, .arc_count = w.count, .end = w.nodes - 2};
    w.arcs = sh_allocate_zeros(context, (size_t)w.count + 1, sizeof *w.arcs);
    made->first = sh_allocate_zeros(context, (size_t)w.nodes + 2, sizeof *made->first);
    made->arcs = sh_allocate_zeros(context, (size_t)w.count + 1, sizeof *made->arcs);
    if (w.arcs && made->first && made->arcs) {
        write_arcs(&w, lexicon, words, count);
        for (int32_t i = 0; i < w.count; i++)
            made->first[w.arcs[i].from + 2]++;
        for (int32_t n = 0; n <= w.nodes; n++)
            made->first[n + 1] += made->first[n];
        for (int32_t i = 0; i < w.count; i++)
            made->arcs[made->first[w.arcs[i].from + 1]++] =
                (node_arc){w.arcs[i].phone, w.arcs[i].to};
    }
    const bool good = w.arcs && made->first && made->arcs;
    sh_free(w.arcs);
    return good;
}

/* ---- Numerators: composition with the language model ------------------------------ */

/* A state is a pair of a node and a state of the language model. */
typedef struct {
    int32_t node, state;
    int32_t next; /* next state of the same node; -1 if none */
    int32_t least, rest, number;
} draft_state;

typedef struct {
    shoal_context *context;
    const phone_lm *lm;
    acceptor nodes;
    int32_t *heads, *tails; /* [nodes]: lists of states; -1 if empty */
    draft_state *states;
    graph_arc *arcs;
    int64_t state_room, arc_room;
    int32_t state_count, arc_count;
    bool failed;
} num_draft;

static int32_t state_at(num_draft *d, int32_t node, int32_t state) {
    for (int32_t i = d->heads[node]; i >= 0; i = d->states[i].next)
        if (d->states[i].state == state)
            return i;
    if (!grow(d->context, &d->states, &d->state_room, d->state_count + 1,
              sizeof *d->states)) {
        d->failed = true;
        return 0;
    }
    const int32_t made = d->state_count++;
    d->states[made] = (draft_state){node, state, -1, INT32_MAX / 2, INT32_MAX / 2, -1};
    if (d->heads[node] < 0)
        d->heads[node] = made;
    else
        d->states[d->tails[node]].next = made;
    d->tails[node] = made;
    return made;
}

static void add_arc(num_draft *d, int32_t from, int32_t node, int32_t state,
                    double weight) {
    const int32_t to = state_at(d, node, state);
    if (d->failed ||
        !grow(d->context, &d->arcs, &d->arc_room, d->arc_count + 1, sizeof *d->arcs)) {
        d->failed = true;
        return;
    }
    d->arcs[d->arc_count++] = (graph_arc){from, to, (float)weight};
    if (d->states[from].least + 1 < d->states[to].least)
        d->states[to].least = d->states[from].least + 1;
}

static void place_num(void *argument, block_layout *block) {
    num_graph *num = argument;
    place_arcs(block, num->states, num->arcs, &num->in);
    place_arcs(block, num->states, num->arcs, &num->out);
    num->outputs = sh_reserve(block, num->states, sizeof *num->outputs);
    num->final = sh_reserve(block, num->states, sizeof *num->final);
    num->least = sh_reserve(block, num->states, sizeof *num->least);
    num->rest = sh_reserve(block, num->states, sizeof *num->rest);
}

static bool finish(num_draft *d, const den_graph *den, int32_t topology, num_graph *num) {
    /* Arcs are sorted by their source, so that `rest` is known when needed in reverse
       order. */
    int32_t kept = 0;
    for (int32_t i = 0; i < d->state_count; i++)
        if (i > 0 && d->states[i].node >= d->nodes.end &&
            den->final[d->states[i].state] > 0)
            d->states[i].rest = 0;
    for (int32_t a = d->arc_count - 1; a >= 0; a--) {
        const int32_t rest = d->states[d->arcs[a].to].rest + 1;
        if (rest < d->states[d->arcs[a].from].rest)
            d->states[d->arcs[a].from].rest = rest;
    }
    for (int32_t n = 0; n < d->nodes.nodes; n++)
        for (int32_t i = d->heads[n]; i >= 0; i = d->states[i].next)
            if (d->states[i].rest < INT32_MAX / 2)
                d->states[i].number = kept++;
    if (d->states[0].number != 0)
        return true; /* no path: no states */
    num->states = kept;
    for (int32_t a = 0; a < d->arc_count; a++) { /* keep and renumber */
        const int32_t from = d->states[d->arcs[a].from].number;
        const int32_t to = d->states[d->arcs[a].to].number;
        if (from >= 0 && to >= 0)
            d->arcs[num->arcs++] = (graph_arc){from, to, d->arcs[a].weight};
    }
    num->block = sh_allocate_zeroed_parts(d->context, place_num, num);
    if (!num->block)
        return false;
    for (int32_t i = 0; i < d->state_count; i++) {
        const draft_state *from = &d->states[i];
        if (from->number < 0)
            continue;
        num->outputs[from->number] =
            outputs_of(topology, d->lm->phones, d->lm->last[from->state]);
        num->least[from->number] = from->least;
        num->rest[from->number] = from->rest;
        num->final[from->number] =
            i > 0 && from->node >= d->nodes.end ? (double)den->final[from->state] : 0;
    }
    sort_arcs(d->arcs, num->arcs, kept, false, &num->in);
    sort_arcs(d->arcs, num->arcs, kept, true, &num->out);
    return true;
}

bool sh_num_make(shoal_context *context, const phone_lm *lm, const den_graph *den,
                 int32_t topology, const shoal_lexicon *lexicon, const int32_t *words,
                 int64_t count, num_graph *num) {
    num_draft d = {.context = context, .lm = lm};
    *num = (num_graph){0};
    bool good = make_acceptor(context, lexicon, words, count, &d.nodes);
    const size_t nodes = (size_t)d.nodes.nodes;
    d.heads = sh_allocate(context, sizeof *d.heads * (nodes + 1));
    d.tails = sh_allocate(context, sizeof *d.tails * (nodes + 1));
    good = good && d.heads && d.tails;
    if (good) {
        memset(d.heads, -1, sizeof *d.heads * nodes);
        /* The first state is the first node with all initial states. */
        state_at(&d, 0, 0);
        if (!d.failed)
            d.states[0].least = 0;
        for (int32_t a = d.nodes.first[0]; a < d.nodes.first[1] && !d.failed; a++) {
            const node_arc arc = d.nodes.arcs[a];
            for (int32_t i = den->first_of[arc.phone]; i < den->first_of[arc.phone + 1];
                 i++)
                add_arc(&d, 0, arc.to, den->first_state[i], den->first_weight[i]);
        }
        for (int32_t n = 1; n < d.nodes.nodes; n++)
            for (int32_t i = d.heads[n]; i >= 0 && !d.failed; i = d.states[i].next)
                for (int32_t a = d.nodes.first[n]; a < d.nodes.first[n + 1]; a++) {
                    const node_arc arc = d.nodes.arcs[a];
                    const int32_t found =
                        sh_phone_lm_arc(lm, d.states[i].state, arc.phone);
                    if (found >= 0 && !d.failed)
                        add_arc(&d, i, arc.to, lm->next[found], lm->weight[found]);
                }
        good = !d.failed && finish(&d, den, topology, num);
    }
    FREE_ALL(d.nodes.first, d.nodes.arcs, d.heads, d.tails, d.states, d.arcs);
    return good;
}

void sh_num_free(num_graph *num) {
    sh_free(num->block);
    *num = (num_graph){0};
}
