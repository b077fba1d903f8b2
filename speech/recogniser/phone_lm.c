/* Counts and the automaton. A history of up to order - 1 symbols is one number with 12
   bits per symbol, oldest first, padded with 0, so that numbers sort like histories: 1
   is the beginning, phone p is p + 2. An n-gram is a history and one more symbol, for
   which 1 is the end. */
#define _GNU_SOURCE
#include "speech/recogniser/phone_lm.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "models/files/checksum.h"
#include "models/files/files.h"
#include "speech/words/grow.h"

enum { BITS = 12, START = 1, END = 1, FIRST_PHONE = 2 };

/* Probabilities of silence at both ends of an utterance and between words. */
static const double edge_silence = 0.8, inner_silence = 0.1;

/* ---- Histories --------------------------------------------------------------------- */

static int place_of(int longest, int index) {
    return BITS * (longest - 1 - index);
}

static int length_of(uint64_t history, int longest) {
    int length = longest;
    while (length > 0 && (history >> place_of(longest, length - 1)) % (1 << BITS) == 0)
        length--;
    return length;
}

static uint64_t append(uint64_t history, int longest, uint64_t symbol) {
    const int length = length_of(history, longest);
    const uint64_t all = (UINT64_C(1) << BITS * longest) - 1;
    if (length == longest)
        return (history << BITS & all) | symbol;
    return history | symbol << place_of(longest, length);
}

/* Removes the oldest symbol. */
static uint64_t shorten(uint64_t history, int longest) {
    return history << BITS & ((UINT64_C(1) << BITS * longest) - 1);
}

/* ---- Counts ------------------------------------------------------------------------ */

typedef struct {
    uint64_t key; /* an n-gram: history << BITS | symbol; 0 for a free slot */
    double count;
} gram;

typedef struct {
    shoal_context *context;
    gram *slots;
    int64_t room, used; /* room: a power of 2 */
    bool failed;        /* out of memory */
} gram_table;

static gram *slot_of(const gram_table *table, uint64_t key) {
    uint64_t i = key * 0x9e3779b97f4a7c15u;
    i ^= i >> 29;
    while (table->slots[i & (uint64_t)(table->room - 1)].key != 0 &&
           table->slots[i & (uint64_t)(table->room - 1)].key != key)
        i++;
    return &table->slots[i & (uint64_t)(table->room - 1)];
}

static void count_gram(gram_table *table, uint64_t key, double count) {
    if (2 * (table->used + 1) > table->room) {
        const gram_table old = *table;
        table->room = old.room ? 2 * old.room : 1 << 12;
        table->slots =
            sh_allocate_zeros(table->context, (size_t)table->room, sizeof *table->slots);
        if (!table->slots) {
            *table = old;
            table->failed = true;
        }
        for (int64_t i = 0; table->slots != old.slots && i < old.room; i++)
            if (old.slots[i].key)
                *slot_of(table, old.slots[i].key) = old.slots[i];
        if (table->slots != old.slots)
            sh_free(old.slots);
    }
    if (table->failed)
        return;
    gram *slot = slot_of(table, key);
    table->used += slot->key == 0;
    slot->key = key;
    slot->count += count;
}

/* Distinct histories with their probabilities. */
typedef struct {
    shoal_context *context;
    struct {
        uint64_t history;
        double share;
    } * list;
    int64_t count, room;
} live_set;

static bool add_live(live_set *set, uint64_t history, double share) {
    for (int64_t i = 0; i < set->count; i++)
        if (set->list[i].history == history) {
            set->list[i].share += share;
            return true;
        }
    if (!grow(set->context, &set->list, &set->room, set->count + 1, sizeof *set->list))
        return false;
    set->list[set->count].history = history;
    set->list[set->count++].share = share;
    return true;
}

typedef struct {
    const phone_texts *texts;
    int longest; /* maximum symbols of a history */
    gram_table table;
    live_set live, next;
    bool failed;
} counting;

/* Advances a share of all live histories through the phones into `next`. */
static void push(counting *c, const int32_t *phones, int64_t count, double share) {
    for (int64_t i = 0; i < c->live.count; i++) {
        uint64_t history = c->live.list[i].history;
        const double part = c->live.list[i].share * share;
        for (int64_t k = 0; k < count; k++) {
            const uint64_t symbol = (uint64_t)phones[k] + FIRST_PHONE;
            count_gram(&c->table, history << BITS | symbol, part);
            history = append(history, c->longest, symbol);
        }
        c->failed = !add_live(&c->next, history, part) || c->failed;
    }
}

static void go_on(counting *c) {
    const live_set empty = c->live;
    c->live = c->next;
    c->next = empty;
    c->next.count = 0;
}

static void count_silence(counting *c, double chance) {
    const int32_t silence = (int32_t)shoal_lexicon_describe(c->texts->lexicon)->silence;
    push(c, NULL, 0, 1 - chance);
    push(c, &silence, 1, chance);
    go_on(c);
}

/* ---- Sorted counts ----------------------------------------------------------------- */

/* Count of an n-gram under its current history; `from` is the original one. */
typedef struct {
    uint64_t history, from;
    uint32_t symbol;
    double count;
} row;

static int compare_rows(const void *a, const void *b) {
    const row *x = a, *y = b;
    if (x->history != y->history)
        return x->history < y->history ? -1 : 1;
    if (x->symbol != y->symbol)
        return x->symbol < y->symbol ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

/* Sorts and merges rows of the same n-gram; returns the number left. */
static int64_t sort_rows(row *rows, int64_t count) {
    int64_t kept = 0;
    qsort(rows, (size_t)count, sizeof *rows, compare_rows);
    for (int64_t i = 0; i < count; i++)
        if (kept > 0 && rows[kept - 1].history == rows[i].history &&
            rows[kept - 1].symbol == rows[i].symbol)
            rows[kept - 1].count += rows[i].count;
        else
            rows[kept++] = rows[i];
    return kept;
}

/* End of the rows with the history of row `begin`, and the sum of their counts. */
static int64_t end_of(const row *rows, int64_t count, int64_t begin, double *sum) {
    int64_t end = begin;
    for (*sum = 0; end < count && rows[end].history == rows[begin].history; end++)
        *sum += rows[end].count;
    return end;
}

/* ---- Pruning ----------------------------------------------------------------------- */

typedef struct {
    uint64_t history;
    double gain; /* log-likelihood lost by merging it into its suffix */
} ranked;

static int compare_ranked(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->gain != y->gain)
        return x->gain > y->gain ? -1 : 1;
    return (x->history > y->history) - (x->history < y->history);
}

static int compare_histories(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return (x->history > y->history) - (x->history < y->history);
}

/* The first sorted row that is not before this n-gram. */
static int64_t find_row(const row *rows, int64_t count, uint64_t history,
                        uint32_t symbol) {
    const row wanted = {.history = history, .symbol = symbol};
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (compare_rows(&rows[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The best `extra` histories of maximum length, sorted. */
static ranked *rank(shoal_context *context, const row *rows, int64_t count, int longest,
                    int64_t extra, int64_t *kept) {
    row *low = sh_allocate_zeros(context, (size_t)count + 1, sizeof *low);
    ranked *list = sh_allocate_zeros(context, (size_t)count + 1, sizeof *list);
    int64_t low_count = 0, found = 0;
    double sum;
    for (int64_t i = 0; low && i < count; i++)
        if (length_of(rows[i].history, longest) == longest) {
            low[low_count] = rows[i];
            low[low_count].history = shorten(rows[i].history, longest);
            low[low_count++].from = rows[i].history;
        }
    if (low)
        low_count = sort_rows(low, low_count);
    for (int64_t i = 0, end; low && list && i < count; i = end) {
        end = end_of(rows, count, i, &sum);
        if (length_of(rows[i].history, longest) < longest)
            continue;
        /* Rows of this history compared with those of its suffix. */
        const uint64_t suffix = shorten(rows[i].history, longest);
        double low_sum, gain = 0;
        end_of(low, low_count, find_row(low, low_count, suffix, 0), &low_sum);
        for (int64_t k = i; k < end; k++) {
            const row *same = &low[find_row(low, low_count, suffix, rows[k].symbol)];
            gain += rows[k].count *
                    (log(rows[k].count / sum) - log(same->count / low_sum));
        }
        list[found++] = (ranked){rows[i].history, gain};
    }
    *kept = extra < found ? extra : found;
    if (list) {
        qsort(list, (size_t)found, sizeof *list, compare_ranked);
        qsort(list, (size_t)*kept, sizeof *list, compare_histories);
    }
    if (!low) {
        sh_free(list);
        return NULL;
    }
    sh_free(low);
    return list;
}

/* The history that replaces this one. */
static uint64_t reduce(uint64_t history, int longest, const ranked *kept, int64_t count) {
    const ranked wanted = {.history = history};
    if (!kept || length_of(history, longest) < longest ||
        bsearch(&wanted, kept, (size_t)count, sizeof *kept, compare_histories))
        return history;
    return shorten(history, longest);
}

/* ---- The automaton ----------------------------------------------------------------- */

static void place(void *argument, block_layout *block) {
    phone_lm *lm = argument;
    lm->last = sh_reserve(block, lm->states, sizeof *lm->last);
    lm->first = sh_reserve(block, lm->states + 1, sizeof *lm->first);
    lm->phone = sh_reserve(block, lm->arcs, sizeof *lm->phone);
    lm->next = sh_reserve(block, lm->arcs, sizeof *lm->next);
    lm->weight = sh_reserve(block, lm->arcs, sizeof *lm->weight);
    lm->end = sh_reserve(block, lm->states, sizeof *lm->end);
}

void *sh_allocate_zeroed_parts(shoal_context *context, place_function *place_parts,
                               void *argument) {
    size_t bytes;
    void *block = sh_allocate_parts(context, place_parts, argument, &bytes);
    return block ? memset(block, 0, bytes) : NULL;
}

bool sh_phone_lm_allocate(shoal_context *context, phone_lm *lm) {
    lm->block = sh_allocate_zeroed_parts(context, place, lm);
    return lm->block != NULL;
}

void sh_phone_lm_free(phone_lm *lm) {
    sh_free(lm->block);
    *lm = (phone_lm){0};
}

static bool make_automaton(shoal_context *context, const gram_table *table, int64_t extra,
                           phone_lm *lm) {
    const int longest = lm->order - 1;
    row *rows = sh_allocate_zeros(context, (size_t)table->used + 1, sizeof *rows);
    int64_t count = 0, kept_count = 0;
    ranked *kept = NULL;
    bool good = rows != NULL;
    for (int64_t i = 0; good && i < table->room; i++) {
        const gram *slot = &table->slots[i];
        if (slot->key)
            rows[count++] = (row){slot->key >> BITS, slot->key >> BITS,
                                  (uint32_t)(slot->key % (1 << BITS)), slot->count};
    }
    if (good)
        sort_rows(rows, count);
    if (good && extra >= 0 && longest > 1) { /* a single symbol cannot be shortened */
        kept = rank(context, rows, count, longest, extra, &kept_count);
        good = kept != NULL;
        for (int64_t i = 0; good && i < count; i++)
            rows[i].history = reduce(rows[i].history, longest, kept, kept_count);
        if (good)
            count = sort_rows(rows, count);
    }
    /* Rows with the same remaining history become a state. */
    int32_t *states = good ? sh_allocate_zeros(context, (size_t)count + 1, sizeof *states)
                           : NULL; /* per row */
    double sum;
    for (int64_t i = 0; states && i < count; i++) {
        lm->states += i == 0 || rows[i - 1].history != rows[i].history;
        states[i] = lm->states - 1;
        lm->arcs += rows[i].symbol != END;
    }
    good = states && sh_phone_lm_allocate(context, lm);
    lm->states = lm->arcs = 0;
    for (int64_t begin = 0, end; good && begin < count; begin = end) {
        end = end_of(rows, count, begin, &sum);
        const int32_t state = lm->states++;
        const int length = length_of(rows[begin].history, longest);
        const uint64_t newest = rows[begin].history >> place_of(longest, length - 1);
        lm->last[state] = (int32_t)(newest % (1 << BITS)) - FIRST_PHONE;
        for (int64_t i = begin; i < end; i++) {
            const double share = rows[i].count / sum;
            if (rows[i].symbol == END) {
                lm->end[state] = share;
                continue;
            }
            const uint64_t to = append(rows[begin].history, longest, rows[i].symbol);
            const uint64_t history = reduce(to, longest, kept, kept_count);
            lm->phone[lm->arcs] = (int32_t)rows[i].symbol - FIRST_PHONE;
            lm->next[lm->arcs] = states[find_row(rows, count, history, 0)];
            lm->weight[lm->arcs++] = share;
        }
        lm->first[state + 1] = lm->arcs;
    }
    FREE_ALL(rows, kept, states);
    return good;
}

shoal_status sh_phone_lm_make(shoal_context *context, const phone_texts *texts,
                              int32_t order, int64_t extra, phone_lm *lm) {
    counting c = {.texts = texts,
                  .longest = order - 1,
                  .table.context = context,
                  .live.context = context,
                  .next.context = context};
    *lm = (phone_lm){0};
    const shoal_lexicon_info info = *shoal_lexicon_describe(texts->lexicon);
    if (order < PHONE_LM_LEAST_ORDER || order > PHONE_LM_MOST_ORDER || extra < -1 ||
        info.phones > PHONE_LM_PHONES)
        return sh_fail(context, SHOAL_INVALID,
                       "order is %d and must be from 2 to 5, extra is below -1, or there "
                       "are more than %d phones",
                       (int)order, PHONE_LM_PHONES);
    if (texts->count == 0)
        return sh_fail(context, SHOAL_INVALID, "there are no transcripts");
    for (int64_t i = 0; i < texts->count; i++) {
        const int64_t begin = c.texts->offsets[i], end = c.texts->offsets[i + 1];
        c.live.count = 0;
        c.failed = !add_live(&c.live, append(0, c.longest, START), 1) || c.failed;
        count_silence(&c, edge_silence);
        for (int64_t w = begin; w < end; w++) {
            const int32_t word = c.texts->words[w];
            const int64_t count = shoal_lexicon_pronunciations(c.texts->lexicon, word);
            for (int64_t k = 0; k < count; k++) {
                const int32_t *phones;
                const int64_t length =
                    shoal_lexicon_pronunciation(c.texts->lexicon, word, k, &phones);
                push(&c, phones, length, 1 / (double)count);
            }
            go_on(&c);
            count_silence(&c, w + 1 == end ? edge_silence : inner_silence);
        }
        for (int64_t k = 0; k < c.live.count; k++)
            count_gram(&c.table, c.live.list[k].history << BITS | END,
                       c.live.list[k].share);
    }
    lm->phones = (int32_t)shoal_lexicon_describe(texts->lexicon)->phones;
    lm->order = order;
    const bool good = !c.failed && !c.table.failed && c.table.used < INT32_MAX / 2 &&
                      make_automaton(context, &c.table, extra, lm);
    FREE_ALL(c.table.slots, c.live.list, c.next.list);
    if (!good)
        sh_phone_lm_free(lm);
    return good
               ? SHOAL_OK
               : sh_fail(context, SHOAL_NO_MEMORY, "out of memory for the phone n-grams");
}

int32_t sh_phone_lm_arc(const phone_lm *lm, int32_t state, int32_t phone) {
    return (int32_t)find_rising(lm->phone, lm->first[state], lm->first[state + 1], phone);
}

/* ---- Files ------------------------------------------------------------------------- */

/* A header, then the arrays in native byte order:

       last [states], first [states + 1], phone [arcs], next [arcs]: int32_t
       weight [arcs], end [states]: double */
typedef struct {
    char magic[8];
    uint64_t key, checksum; /* checksum: of everything, with 0 in its place */
    int32_t phones, order, states, arcs;
} file_head;

_Static_assert(offsetof(file_head, checksum) == PHONE_LM_SUM_PLACE, "as the header says");
static const char magic[8] = "shoalpl1";
enum { PARTS = 6, VERSION = 1 };

static void list_parts(const phone_lm *lm, file_part *parts) {
    const size_t states = (size_t)lm->states, arcs = (size_t)lm->arcs;
    const file_part all[PARTS] = {{lm->last, states * sizeof *lm->last},
                                  {lm->first, (states + 1) * sizeof *lm->first},
                                  {lm->phone, arcs * sizeof *lm->phone},
                                  {lm->next, arcs * sizeof *lm->next},
                                  {lm->weight, arcs * sizeof *lm->weight},
                                  {lm->end, states * sizeof *lm->end}};
    memcpy(parts, all, sizeof all);
}

uint64_t sh_phone_lm_key(const phone_texts *texts, int32_t order, int64_t extra) {
    uint64_t key = mix_word(mix_word(VERSION, (uint64_t)order), (uint64_t)extra);
    key = mix_word(key, (uint64_t)shoal_lexicon_describe(texts->lexicon)->phones);
    for (int64_t u = 0; u < texts->count; u++) {
        key = mix_word(key, UINT64_MAX);
        for (int64_t w = texts->offsets[u]; w < texts->offsets[u + 1]; w++) {
            const int32_t *phones;
            int64_t length;
            for (int64_t i = 0;
                 (length = shoal_lexicon_pronunciation(texts->lexicon, texts->words[w], i,
                                                       &phones)) > 0;
                 i++)
                key = mix_words(mix_word(key, (uint64_t)length), phones,
                                sizeof *phones * (size_t)length);
            key = mix_word(key, 0);
        }
    }
    return key ? key : 1;
}

shoal_status sh_phone_lm_write(shoal_context *context, const phone_lm *lm, uint64_t key,
                               const char *path) {
    file_head head = {.key = key,
                      .phones = lm->phones,
                      .order = lm->order,
                      .states = lm->states,
                      .arcs = lm->arcs};
    file_part all[PARTS + 1] = {{&head, sizeof head}};
    uint64_t sum = 0;
    memcpy(head.magic, magic, sizeof magic);
    list_parts(lm, all + 1);
    for (int i = 0; i <= PARTS; i++)
        sum = mix_words(sum, all[i].bytes, all[i].size);
    head.checksum = sum;
    if (sh_file_replace(NULL, path, all, PARTS + 1, SHOAL_SYNC_DATA) == SHOAL_OK)
        return SHOAL_OK;
    return sh_fail(context, SHOAL_IO, "%s cannot be written: %s", path, strerror(errno));
}

/* Checks of the contents after the checksum. */
static bool is_sound(const phone_lm *lm) {
    for (int32_t s = 0; s < lm->states; s++)
        if (lm->last[s] < (s == 0 ? -1 : 0) || lm->last[s] >= lm->phones ||
            lm->first[s + 1] < lm->first[s] || !(lm->end[s] >= 0 && lm->end[s] <= 1))
            return false;
    if (lm->first[0] != 0 || lm->first[lm->states] != lm->arcs || lm->last[0] != -1)
        return false;
    for (int32_t s = 0; s < lm->states; s++)
        for (int32_t a = lm->first[s]; a < lm->first[s + 1]; a++)
            if (lm->phone[a] < 0 || lm->next[a] < 1 || lm->next[a] >= lm->states ||
                lm->last[lm->next[a]] != lm->phone[a] ||
                (a > lm->first[s] && lm->phone[a - 1] >= lm->phone[a]) ||
                !(lm->weight[a] > 0 && lm->weight[a] <= 1))
                return false;
    return true;
}

uint64_t sh_phone_lm_sum(const void *bytes, size_t size) {
    file_head head;
    memcpy(&head, bytes, sizeof head);
    head.checksum = 0;
    return mix_words(mix_words(0, &head, sizeof head), (const char *)bytes + sizeof head,
                     size - sizeof head);
}

shoal_status sh_phone_lm_parse(shoal_context *context, const char *name,
                               const void *bytes, size_t size, uint64_t key,
                               phone_lm *lm) {
    file_head head = {0};
    file_part parts[PARTS];
    *lm = (phone_lm){0};
    if (size >= sizeof head)
        memcpy(&head, bytes, sizeof head);
    const size_t wanted = sizeof head + 4 * (2 * (size_t)head.states + 1) +
                          16 * (size_t)head.arcs + 8 * (size_t)head.states;
    if (memcmp(head.magic, magic, sizeof magic) != 0 || (key != 0 && head.key != key) ||
        head.states <= 0 || head.arcs < 0 || head.phones <= 0 ||
        head.phones > PHONE_LM_PHONES || head.order < PHONE_LM_LEAST_ORDER ||
        head.order > PHONE_LM_MOST_ORDER || size != wanted)
        return sh_fail(
            context, SHOAL_BAD_FILE,
            "%s: is not a phone language model, is damaged, or belongs to another model",
            name);
    *lm = (phone_lm){.phones = head.phones,
                     .order = head.order,
                     .states = head.states,
                     .arcs = head.arcs};
    const bool room = sh_phone_lm_allocate(context, lm);
    list_parts(lm, parts);
    const char *at = (const char *)bytes + sizeof head;
    for (int i = 0; i < PARTS && room; at += parts[i].size, i++)
        if (parts[i].size)
            memcpy((void *)(uintptr_t)parts[i].bytes, at, parts[i].size);
    if (room && head.checksum == sh_phone_lm_sum(bytes, size) && is_sound(lm))
        return SHOAL_OK;
    sh_phone_lm_free(lm);
    return room ? sh_fail(context, SHOAL_BAD_FILE, "%s: is damaged", name)
                : sh_fail(context, SHOAL_NO_MEMORY, "out of memory for %s", name);
}

shoal_status sh_phone_lm_read(shoal_context *context, const char *path, uint64_t key,
                              phone_lm *lm) {
    file_map map = {0};
    *lm = (phone_lm){0};
    shoal_status status = sh_file_map_open(context, path, &map);
    if (status == SHOAL_OK)
        status = sh_phone_lm_parse(context, path, map.bytes, map.size, key, lm);
    sh_file_map_close(&map);
    return status;
}
