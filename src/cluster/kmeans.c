#include "cluster/kmeans.h"

#include <string.h>

#include "base/random.h"

/* ---- Hashes ----------------------------------------------------------------------- */

void sh_hash_directions(uint64_t seed, int bits, int64_t dim, float *directions) {
    for (int64_t i = 0; i < bits * dim; i++)
        directions[i] = random_normal(seed, STREAM_DIRECTIONS, (uint64_t)i);
}

void sh_hash_queries(const kernel_table *kernels, const float *q, int64_t stride,
                     int count, int64_t ahead, int dim, const float *directions,
                     hash_array *hashes, int64_t block, float *panel, float *scores) {
    uint8_t *planes = hash_block(hashes, block);
    memset(planes, 0, 8 * (size_t)hashes->words * HASH_BLOCK);
    for (int first = 0; first < count; first += kernels->panel) {
        /* The end of a block is a multiple of every table's lanes, so that no panel
           crosses it. */
        int width = panel_width(kernels, count - first);
        if (width > HASH_BLOCK - first)
            width = HASH_BLOCK - first;
        int live = count - first < width ? count - first : width;
        kernels->pack(q + first * stride, stride, NULL, live, width, dim, 1, panel);
        int64_t next = ahead - first - live;
        prefetch_rows(q + (first + live) * stride, stride, NULL,
                      next < kernels->panel ? next : kernels->panel, dim);
        kernels->score(panel, width, dim, directions, dim, hashes->bits, scores);
        kernels->signs(scores, width, hashes->bits, planes + first);
    }
}

/* ---- Memory ----------------------------------------------------------------------- */

enum { TASK_BLOCKS = 16 }; /* blocks of hashes per task */

void sh_kmeans_place_tally(kmeans_tally *tally, int clusters, int bits,
                           block_layout *place) {
    const int64_t C = clusters, W = hash_words(bits);
    tally->net = sh_reserve(place, C * 64 * W, sizeof(int16_t));
    tally->moves = sh_reserve(place, C, sizeof(int16_t));
    tally->size_change = sh_reserve(place, C, sizeof(int32_t));
    tally->flushed = sh_reserve(place, C, 1);
    tally->change = sh_reserve(place, C * 64 * W, sizeof(int32_t));
    tally->centres = sh_reserve(place, C * W, sizeof(uint64_t));
    tally->tables = sh_reserve(place, C * 16 * W * 16, 1);
    tally->changed_tables = sh_reserve(place, C * 16 * W * 16, 1);
    tally->nibbles = sh_reserve(place, 16 * W * HASH_BLOCK, 1);
    tally->planes = sh_reserve(place, 8 * W * HASH_BLOCK, 1);
}

void sh_kmeans_place(kmeans_work *work, int clusters, int bits, int64_t n,
                     block_layout *place) {
    const int64_t C = clusters, W = hash_words(bits);
    work->clusters = clusters;
    work->words = (int)W;
    work->centres = sh_reserve(place, C * W, sizeof(uint64_t));
    work->changed = sh_reserve(place, C, 1);
    work->changed_list = sh_reserve(place, C, sizeof(int32_t));
    work->bit_count = sh_reserve(place, C * 64 * W, sizeof(int32_t));
    work->sizes = sh_reserve(place, C, sizeof(int32_t));
    work->change = sh_reserve(place, C * kmeans_counters((int)W), sizeof(int32_t));
    work->starts = sh_reserve(place, C, sizeof(int32_t));
    work->farthest = sh_reserve(place, C * kmeans_far_words((int)W), sizeof(uint64_t));
    work->distances =
        sh_reserve(place, (n + HASH_BLOCK - 1) / HASH_BLOCK * HASH_BLOCK, 1);
}

/* ---- Assigning hashes to centres -------------------------------------------------- */

/* A separate function: in a loop that stores bytes through `tally` the compiler must
   assume that they change its bounds, and does not vectorise it. */
static void split_nibbles(const uint8_t *planes, int bytes, uint8_t *nibbles) {
    for (int p = 0; p < bytes; p++)
        for (int i = 0; i < HASH_BLOCK; i++) {
            uint8_t byte = planes[p * HASH_BLOCK + i];
            nibbles[2 * p * HASH_BLOCK + i] = byte & 15;
            nibbles[(2 * p + 1) * HASH_BLOCK + i] = byte >> 4;
        }
}

/* The nearest of `clusters` centres for one block of hashes, in several passes if there
   are more than 256. */
static void nearest_of(const kmeans_pass *pass, const uint8_t *nibbles,
                       const uint8_t *tables, int clusters, uint8_t *distance,
                       int32_t *centre) {
    const int nibble_count = 16 * pass->work->words;
    uint8_t here[HASH_BLOCK], who[HASH_BLOCK];
    pass->kernels->nearest(nibbles, nibble_count, tables,
                           clusters < NEAREST_CENTRES ? clusters : NEAREST_CENTRES,
                           distance, who);
    for (int i = 0; i < HASH_BLOCK; i++)
        centre[i] = who[i];
    for (int first = NEAREST_CENTRES; first < clusters; first += NEAREST_CENTRES) {
        const int count = clusters - first;
        pass->kernels->nearest(nibbles, nibble_count,
                               tables + (int64_t)first * nibble_count * 16,
                               count < NEAREST_CENTRES ? count : NEAREST_CENTRES, here,
                               who);
        for (int i = 0; i < HASH_BLOCK; i++)
            if (here[i] < distance[i]) {
                distance[i] = here[i];
                centre[i] = first + who[i];
            }
    }
}

/* Before the 16-bit counts of a centre can overflow they are added to its 32-bit ones. */
static void flush(kmeans_tally *tally, int64_t c, int64_t counters) {
    int32_t *change = tally->change + c * counters;
    int16_t *net = tally->net + c * counters;
    for (int64_t b = 0; b < counters; b++)
        change[b] += net[b];
    memset(net, 0, (size_t)counters * sizeof *net);
    tally->moves[c] = 0;
    tally->flushed[c] = 1;
}

/* Counts a hash that came to centre c (by 1) or left it (by -1). */
static void count_move(const kmeans_pass *pass, kmeans_tally *tally, const uint64_t *hash,
                       int64_t c, int16_t by) {
    const int words = pass->work->words;
    int16_t *net = tally->net + c * 64 * words;
    if (tally->moves[c] == INT16_MAX)
        flush(tally, c, 64 * words);
    tally->moves[c]++;
    tally->size_change[c] += by;
    for (int w = 0; w < words; w++)
        pass->kernels->tally(hash[w], by, net + (int64_t)64 * w);
}

enum { MOST_WORDS = 4 }; /* a hash has at most 255 bits */

/* Moves query i to another centre. */
static void move(const kmeans_pass *pass, kmeans_tally *tally, int64_t i,
                 int32_t centre) {
    const int32_t before = pass->groups[i];
    uint64_t hash[MOST_WORDS];
    for (int w = 0; w < pass->work->words; w++)
        hash[w] = hash_word(pass->hashes, i, w);
    if (before >= 0)
        count_move(pass, tally, hash, before, -1);
    count_move(pass, tally, hash, centre, 1);
    pass->groups[i] = centre;
}

static void assign(const kmeans_pass *pass, kmeans_tally *tally, int64_t i,
                   int32_t centre, uint8_t distance) {
    pass->work->distances[i] = distance;
    if (centre != pass->groups[i])
        move(pass, tally, i, centre);
}

/* Compares the waiting queries with all centres, as a separate block. */
static void assign_waiting(const kmeans_pass *pass, kmeans_tally *tally) {
    const int words = pass->work->words;
    uint8_t distance[HASH_BLOCK];
    int32_t centre[HASH_BLOCK];
    if (tally->waiting_count == 0)
        return;
    for (int i = 0; i < tally->waiting_count; i++) {
        const int64_t from = tally->waiting[i];
        const uint8_t *hash = hash_block(pass->hashes, from / HASH_BLOCK) +
                              from % HASH_BLOCK;
        for (int p = 0; p < 8 * words; p++)
            tally->planes[p * HASH_BLOCK + i] = hash[p * HASH_BLOCK];
    }
    split_nibbles(tally->planes, 8 * words, tally->nibbles);
    nearest_of(pass, tally->nibbles, tally->tables, pass->work->clusters, distance,
               centre);
    for (int i = 0; i < tally->waiting_count; i++)
        assign(pass, tally, tally->waiting[i], centre[i], distance[i]);
    tally->waiting_count = 0;
}

/* Population count, without the instruction that some x86 processors lack. */
static int count_bits(uint64_t word) {
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) +
           (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (int)(word * UINT64_C(0x0101010101010101) >> 56);
}

static int hash_distance(const kmeans_pass *pass, int64_t i, int32_t centre) {
    const kmeans_work *work = pass->work;
    int distance = 0;
    for (int w = 0; w < work->words; w++)
        distance += count_bits(hash_word(pass->hashes, i, w) ^
                               work->centres[(int64_t)centre * work->words + w]);
    return distance;
}

/* Bit i is flags[i], which is 0 or 1. */
static uint64_t pack_bits(const uint8_t flags[64]) {
    uint64_t bits = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (int byte = 0; byte < 8; byte++) {
        /* The product's highest byte collects the lowest bit of every byte. */
        uint64_t eight;
        memcpy(&eight, flags + 8 * byte, sizeof eight);
        bits |= (eight * UINT64_C(0x0102040810204080) >> 56) << (8 * byte);
    }
#else
    for (int i = 0; i < 64; i++)
        bits |= (uint64_t)flags[i] << i;
#endif
    return bits;
}

/* One block of hashes, the nearest of some centres for each, and where they are. Few
   queries are concerned: finding those first, without a branch for each, is quicker than
   branching. Past the last query nobody is concerned. */
typedef struct {
    int64_t first, count;
    uint8_t distance[HASH_BLOCK], before[HASH_BLOCK];
    int32_t centre[HASH_BLOCK], own[HASH_BLOCK];
} hash_distances;

static void load_block(const kmeans_pass *pass, int64_t block, hash_distances *here) {
    here->first = block * HASH_BLOCK;
    here->count = pass->n - here->first < HASH_BLOCK ? pass->n - here->first : HASH_BLOCK;
    memcpy(here->own, here->centre, sizeof here->own);
    memset(here->before, 0, HASH_BLOCK);
    memcpy(here->own, pass->groups + here->first, sizeof(int32_t) * (size_t)here->count);
    memcpy(here->before, pass->work->distances + here->first, (size_t)here->count);
}

/* All centres were compared. */
static void assign_nearest(const kmeans_pass *pass, kmeans_tally *tally,
                           const hash_distances *here) {
    uint8_t moved[HASH_BLOCK];
    memcpy(pass->work->distances + here->first, here->distance, HASH_BLOCK);
    for (int i = 0; i < HASH_BLOCK; i++)
        moved[i] = here->own[i] != here->centre[i];
    for (uint64_t left = pack_bits(moved); left; left &= left - 1) {
        const int i = __builtin_ctzll(left);
        move(pass, tally, here->first + i, here->centre[i]);
    }
}

/* Queries that need a look at all centres. */
static void add_waiting(const kmeans_pass *pass, kmeans_tally *tally, int64_t first,
                        uint64_t waiting) {
    for (; waiting; waiting &= waiting - 1) {
        tally->waiting[tally->waiting_count++] =
            (int32_t)(first + __builtin_ctzll(waiting));
        if (tally->waiting_count == HASH_BLOCK)
            assign_waiting(pass, tally);
    }
}

/* The changed centres were compared. Where a query's own centre did not change, a nearer
   one takes it. Where it did, the nearest of the changed ones is the nearest of all if
   neither that nor the own one is farther than the own one was. */
static void assign_bounded(const kmeans_pass *pass, kmeans_tally *tally,
                           const hash_distances *here) {
    uint8_t changed[HASH_BLOCK] = {0}, take[HASH_BLOCK], look[HASH_BLOCK],
            wait[HASH_BLOCK];
    for (int64_t i = 0; i < here->count; i++)
        changed[i] = pass->work->changed[here->own[i]];
    for (int i = 0; i < HASH_BLOCK; i++) {
        const uint8_t near = here->distance[i] <= here->before[i];
        const uint8_t nearer = here->distance[i] < here->before[i];
        const uint8_t lower = here->centre[i] < here->own[i];
        const uint8_t same = here->centre[i] == here->own[i];
        take[i] = (changed[i] ? near & same : nearer | (near & lower));
        look[i] = changed[i] & near & (same ^ 1);
        wait[i] = changed[i] & (near ^ 1);
    }
    uint64_t taken = pack_bits(take), waiting = pack_bits(wait);
    for (uint64_t left = pack_bits(look); left; left &= left - 1) {
        const int i = __builtin_ctzll(left);
        const uint64_t farther = hash_distance(pass, here->first + i, here->own[i]) >
                                 here->before[i];
        waiting |= farther << i;
        taken |= (farther ^ 1) << i;
    }
    for (; taken; taken &= taken - 1) {
        const int i = __builtin_ctzll(taken);
        assign(pass, tally, here->first + i, here->centre[i], here->distance[i]);
    }
    add_waiting(pass, tally, here->first, waiting);
}

static void assign_block(const kmeans_pass *pass, kmeans_tally *tally, int64_t block) {
    const kmeans_work *work = pass->work;
    hash_distances here;
    split_nibbles(hash_block(pass->hashes, block), 8 * work->words, tally->nibbles);
    if (pass->all) {
        nearest_of(pass, tally->nibbles, tally->tables, work->clusters, here.distance,
                   here.centre);
        load_block(pass, block, &here);
        assign_nearest(pass, tally, &here);
        return;
    }
    nearest_of(pass, tally->nibbles, tally->changed_tables, work->changed_count,
               here.distance, here.centre);
    for (int i = 0; i < HASH_BLOCK; i++)
        here.centre[i] = work->changed_list[here.centre[i]];
    load_block(pass, block, &here);
    assign_bounded(pass, tally, &here);
}

/* tables[c][n][x]: how many of four bits x differ from the centre's n-th four. Every
   thread makes its own, which is quicker than fetching them from another core. */
static void make_tables(const kmeans_pass *pass, kmeans_tally *tally, int all) {
    static const uint8_t ones[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const kmeans_work *work = pass->work;
    const int words = work->words;
    const size_t size = 256 * (size_t)words, word_size = 8 * (size_t)words;
    uint8_t differ[16][16];
    for (int y = 0; y < 16; y++)
        for (int x = 0; x < 16; x++)
            differ[y][x] = ones[x ^ y];
    for (int64_t c = 0; c < work->clusters; c++) {
        const uint64_t *centre = work->centres + c * words;
        uint8_t *table = tally->tables + (size_t)c * size;
        if (!all && memcmp(tally->centres + c * words, centre, word_size) == 0)
            continue;
        memcpy(tally->centres + c * words, centre, word_size);
        for (int n = 0; n < 16 * words; n++)
            memcpy(table + 16 * n, differ[centre[n / 16] >> 4 * (n % 16) & 15], 16);
    }
    for (int64_t i = 0; i < work->changed_count && !pass->all; i++)
        memcpy(tally->changed_tables + (size_t)i * size,
               tally->tables + (size_t)work->changed_list[i] * size, size);
}

/* Whether the thread has had a task of this assignment. Other works may have used its
   tally since the last one. */
static int took_part(const kmeans_work *work, const kmeans_tally *tally) {
    return tally->owner == work && tally->round == work->round;
}

/* A thread's first task of an assignment: nothing is counted, and the tables are those of
   the new centres. */
static void begin_round(const kmeans_pass *pass, kmeans_tally *tally) {
    const kmeans_work *work = pass->work;
    const int64_t C = work->clusters, counters = 64 * work->words;
    const int is_first = tally->owner != work;
    tally->owner = work;
    tally->round = work->round;
    if (is_first) {
        memset(tally->net, 0, (size_t)(C * counters) * sizeof(int16_t));
        memset(tally->change, 0, (size_t)(C * counters) * sizeof(int32_t));
        memset(tally->planes, 0, 8 * (size_t)work->words * HASH_BLOCK);
    }
    for (int64_t c = 0; c < C && !is_first; c++) {
        if (tally->moves[c])
            memset(tally->net + c * counters, 0, (size_t)counters * sizeof(int16_t));
        if (tally->flushed[c])
            memset(tally->change + c * counters, 0, (size_t)counters * sizeof(int32_t));
    }
    memset(tally->moves, 0, (size_t)C * sizeof(int16_t));
    memset(tally->size_change, 0, (size_t)C * sizeof(int32_t));
    memset(tally->flushed, 0, (size_t)C);
    tally->waiting_count = 0;
    make_tables(pass, tally, is_first);
}

static void assign_task(void *shared, int64_t task, int thread) {
    const kmeans_pass *pass = shared;
    kmeans_tally *tally = &pass->work->tally[thread];
    if (!took_part(pass->work, tally))
        begin_round(pass, tally);
    for (int64_t block = task * TASK_BLOCKS; block < (task + 1) * TASK_BLOCKS; block++)
        if (block * HASH_BLOCK < pass->n)
            assign_block(pass, tally, block);
    assign_waiting(pass, tally);
}

/* ---- Updating the centres --------------------------------------------------------- */

enum { CENTRE_TASK = 32 };

/* Adds up what the threads counted for one centre. */
static void gather_centre(const kmeans_pass *pass, int64_t c) {
    const int64_t counters = 64 * pass->work->words;
    int32_t *change = pass->work->change + c * kmeans_counters(pass->work->words);
    memset(change, 0, sizeof *change * (size_t)kmeans_counters(pass->work->words));
    for (int t = 0; t < pass->workers.threads; t++) {
        const kmeans_tally *tally = &pass->work->tally[pass->workers.self + t];
        const int16_t *net = tally->net + c * counters;
        const int32_t *flushed = tally->change + c * counters;
        if (!took_part(pass->work, tally))
            continue;
        change[counters] += tally->size_change[c];
        for (int64_t b = 0; b < counters && tally->moves[c]; b++)
            change[b] += net[b];
        for (int64_t b = 0; b < counters && tally->flushed[c]; b++)
            change[b] += flushed[b];
    }
}

/* The majority of the members' bits, of 64. Twice the members that have a bit, less all
   members: above 0 is a majority, and 0 a tie, which keeps the bit. */
static uint64_t majority(const int32_t *counts, int32_t size, uint64_t before) {
    uint8_t more[64], tie[64];
    for (int b = 0; b < 64; b++) {
        const int32_t others = size - counts[b];
        more[b] = counts[b] > others;
        tie[b] = counts[b] == others;
    }
    return pack_bits(more) | (pack_bits(tie) & before);
}

static void move_centre(const kmeans_pass *pass, int64_t c) {
    kmeans_work *work = pass->work;
    const int64_t counters = 64 * work->words;
    const int32_t *change = work->change + c * kmeans_counters(work->words);
    int32_t any = 0;
    for (int64_t b = 0; b <= counters; b++)
        any |= change[b];
    work->changed[c] = 0;
    if (!any)
        return;
    for (int64_t b = 0; b < counters; b++)
        work->bit_count[c * counters + b] += change[b];
    work->sizes[c] += change[counters];
    for (int64_t i = c * work->words; i < (c + 1) * work->words; i++) {
        const uint64_t word =
            majority(work->bit_count + 64 * i, work->sizes[c], work->centres[i]);
        work->changed[c] |= word != work->centres[i];
        work->centres[i] = word;
    }
}

/* What is done for every centre, on whatever thread. */
typedef struct {
    const kmeans_pass *pass;
    void (*first)(const kmeans_pass *pass, int64_t c);
    void (*second)(const kmeans_pass *pass, int64_t c); /* may be NULL */
} centre_loop;

static void centre_task(void *shared, int64_t task, int thread) {
    const centre_loop *loop = shared;
    const int64_t end = (task + 1) * CENTRE_TASK, all = loop->pass->work->clusters;
    (void)thread;
    for (int64_t c = task * CENTRE_TASK; c < end && c < all; c++) {
        loop->first(loop->pass, c);
        if (loop->second)
            loop->second(loop->pass, c);
    }
}

static void for_centres(centre_loop loop) {
    const int64_t tasks = (loop.pass->work->clusters + CENTRE_TASK - 1) / CENTRE_TASK;
    sh_team_deal(loop.pass->workers, tasks, centre_task, &loop);
}

int sh_kmeans_empty(const kmeans_work *work) {
    int empty = 0;
    for (int64_t c = 0; c < work->clusters; c++)
        empty += work->sizes[c] == 0;
    return empty;
}

/* Each hash is taken once: it counts as near until all are chosen. */
int sh_kmeans_find_farthest(kmeans_pass *pass, int64_t origin, int count) {
    kmeans_work *work = pass->work;
    int taken = 0;
    for (; taken < count && taken < pass->n; taken++) {
        uint64_t *far = work->farthest + taken * kmeans_far_words(work->words);
        int64_t farthest = 0;
        for (int64_t i = 1; i < pass->n; i++)
            if (work->distances[i] > work->distances[farthest])
                farthest = i;
        if (work->distances[farthest] == 0)
            break;
        far[0] = (uint64_t)work->distances[farthest] << 32 |
                 (uint64_t)(UINT32_MAX - (uint64_t)(origin + farthest));
        for (int w = 0; w < work->words; w++)
            far[1 + w] = hash_word(pass->hashes, farthest, w);
        work->starts[taken] = (int32_t)farthest;
        work->distances[farthest] = 0;
    }
    for (int i = 0; i < taken; i++)
        work->distances[work->starts[i]] =
            (uint8_t)(work->farthest[i * kmeans_far_words(work->words)] >> 32);
    return taken;
}

/* Centres without members move to the farthest hashes, in decreasing order of the first
   word. */
void sh_kmeans_reseed(kmeans_work *work, uint64_t *farthest, int count) {
    const int64_t size = kmeans_far_words(work->words);
    for (int64_t c = 0; c < work->clusters; c++) {
        uint64_t *next = farthest;
        if (work->sizes[c] > 0)
            continue;
        for (int i = 1; i < count; i++)
            next = farthest[i * size] > *next ? farthest + i * size : next;
        if (count == 0 || *next == 0)
            break;
        *next = 0;
        memcpy(work->centres + c * work->words, next + 1,
               sizeof *next * (size_t)work->words);
        work->changed[c] = 1;
    }
}

void sh_kmeans_tally(kmeans_pass *pass) {
    for_centres((centre_loop){pass, gather_centre, NULL});
}

void sh_kmeans_move(kmeans_pass *pass) {
    for_centres((centre_loop){pass, move_centre, NULL});
}

int sh_kmeans_settle(kmeans_pass *pass) {
    kmeans_work *work = pass->work;
    work->changed_count = 0;
    for (int32_t c = 0; c < work->clusters; c++)
        if (work->changed[c])
            work->changed_list[work->changed_count++] = c;
    /* If most centres changed, comparing with all is faster than selecting the changed
       ones. */
    pass->all = work->changed_count > work->clusters - work->clusters / 8;
    return work->changed_count > 0;
}

void sh_kmeans_draw(kmeans_pass *pass, uint64_t seed, int64_t all, int64_t origin) {
    kmeans_work *work = pass->work;
    random_subset(seed, STREAM_STARTS, all, work->clusters, work->starts);
    for (int64_t c = 0; c < work->clusters; c++)
        for (int w = 0; w < work->words; w++) {
            const int64_t i = work->starts[c] - origin;
            work->centres[c * work->words + w] =
                i >= 0 && i < pass->n ? hash_word(pass->hashes, i, w) : 0;
        }
}

void sh_kmeans_start(kmeans_pass *pass) {
    kmeans_work *work = pass->work;
    const size_t C = (size_t)work->clusters, counters = C * 64 * (size_t)work->words;
    memset(work->bit_count, 0, counters * sizeof(int32_t));
    memset(work->sizes, 0, C * sizeof(int32_t));
    memset(work->changed, 1, C);
    sh_kmeans_settle(pass);
    pass->all = 1;
    for (int64_t i = 0; i < pass->n; i++)
        pass->groups[i] = -1;
    work->round = 0;
    for (int t = 0; t < pass->workers.threads; t++)
        work->tally[pass->workers.self + t].owner = NULL;
}

void sh_kmeans_assign(kmeans_pass *pass) {
    const int64_t task = TASK_BLOCKS * HASH_BLOCK;
    pass->work->round++;
    sh_team_deal(pass->workers, (pass->n + task - 1) / task, assign_task, pass);
}

void sh_kmeans_run(kmeans_work *work, const kernel_table *kernels, team workers,
                   const hash_array *hashes, int64_t n, int iterations, uint64_t seed,
                   int32_t *groups) {
    kmeans_pass pass = {work, kernels, hashes, n, groups, workers, 0};
    sh_kmeans_start(&pass);
    sh_kmeans_draw(&pass, seed, n, 0);
    for (int l = 0; l < iterations; l++) {
        sh_kmeans_assign(&pass);
        if (l == iterations - 1)
            break;
        for_centres((centre_loop){&pass, gather_centre, move_centre});
        const int found = sh_kmeans_find_farthest(&pass, 0, sh_kmeans_empty(work));
        sh_kmeans_reseed(work, work->farthest, found);
        if (!sh_kmeans_settle(&pass))
            break;
    }
}
