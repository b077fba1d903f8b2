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
    tally->arrived = sh_reserve(place, C * 64 * W, 1);
    tally->left = sh_reserve(place, C * 64 * W, 1);
    tally->arrivals = sh_reserve(place, C, 1);
    tally->leavings = sh_reserve(place, C, 1);
    tally->touched = sh_reserve(place, C, 1);
    tally->change = sh_reserve(place, C * 64 * W, sizeof(int32_t));
    tally->size_change = sh_reserve(place, C, sizeof(int32_t));
    tally->nibbles = sh_reserve(place, 16 * W * HASH_BLOCK, 1);
}

void sh_kmeans_place(kmeans_work *work, int clusters, int bits, int64_t n,
                     block_layout *place) {
    const int64_t C = clusters, W = hash_words(bits);
    work->clusters = clusters;
    work->words = (int)W;
    work->centres = sh_reserve(place, C * W, sizeof(uint64_t));
    work->tables = sh_reserve(place, C * 16 * W * 16, 1);
    work->changed = sh_reserve(place, C, 1);
    work->changed_list = sh_reserve(place, C, sizeof(int32_t));
    work->changed_tables = sh_reserve(place, C * 16 * W * 16, 1);
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
    for (int first = 0; first < clusters; first += NEAREST_CENTRES) {
        int count = clusters - first;
        uint8_t here[HASH_BLOCK], who[HASH_BLOCK];
        pass->kernels->nearest(nibbles, nibble_count,
                               tables + (int64_t)first * nibble_count * 16,
                               count < NEAREST_CENTRES ? count : NEAREST_CENTRES, here,
                               who);
        for (int i = 0; i < HASH_BLOCK; i++)
            if (first == 0 || here[i] < distance[i]) {
                distance[i] = here[i];
                centre[i] = first + who[i];
            }
    }
}

/* Byte counters are added to the 32-bit counts before they overflow at 255. */
static void flush(kmeans_tally *tally, int64_t c, int64_t counters) {
    int32_t *change = tally->change + c * counters;
    uint8_t *arrived = tally->arrived + c * counters, *left = tally->left + c * counters;
    for (int64_t b = 0; b < counters; b++)
        change[b] += arrived[b] - left[b];
    tally->size_change[c] += tally->arrivals[c] - tally->leavings[c];
    memset(arrived, 0, (size_t)counters);
    memset(left, 0, (size_t)counters);
    tally->arrivals[c] = tally->leavings[c] = 0;
}

/* Counts query i as leaving, or arriving at, centre c. */
static void count_move(const kmeans_pass *pass, kmeans_tally *tally, int64_t i, int32_t c,
                       uint8_t *moves, uint8_t *counters) {
    const int words = pass->work->words;
    if (moves[c] == 255)
        flush(tally, c, 64 * words);
    moves[c]++;
    tally->touched[c] = 1;
    for (int w = 0; w < words; w++)
        pass->kernels->tally(hash_word(pass->hashes, i, w),
                             counters + ((int64_t)c * words + w) * 64);
}

static void assign(const kmeans_pass *pass, kmeans_tally *tally, int64_t i,
                   int32_t centre, uint8_t distance) {
    const int32_t before = pass->groups[i];
    pass->work->distances[i] = distance;
    if (centre == before)
        return;
    if (before >= 0)
        count_move(pass, tally, i, before, tally->leavings, tally->left);
    count_move(pass, tally, i, centre, tally->arrivals, tally->arrived);
    pass->groups[i] = centre;
}

/* Compares the waiting queries with all centres, as a separate block. */
static void assign_waiting(const kmeans_pass *pass, kmeans_tally *tally) {
    const int words = pass->work->words;
    uint8_t distance[HASH_BLOCK];
    int32_t centre[HASH_BLOCK];
    if (tally->waiting_count == 0)
        return;
    memset(tally->nibbles, 0, 16 * (size_t)words * HASH_BLOCK);
    for (int i = 0; i < tally->waiting_count; i++)
        for (int w = 0; w < words; w++) {
            uint64_t word = hash_word(pass->hashes, tally->waiting[i], w);
            for (int n = 0; n < 16; n++)
                tally->nibbles[(16 * w + n) * HASH_BLOCK + i] = word >> 4 * n & 15;
        }
    nearest_of(pass, tally->nibbles, pass->work->tables, pass->work->clusters, distance,
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

/* One query, given the nearest of the changed centres. */
static void assign_bounded(const kmeans_pass *pass, kmeans_tally *tally, int64_t i,
                           int32_t centre, uint8_t distance) {
    const int32_t own = pass->groups[i];
    const uint8_t before = pass->work->distances[i];
    if (!pass->work->changed[own]) {
        if (distance < before || (distance == before && centre < own))
            assign(pass, tally, i, centre, distance);
    } else if (distance <= before &&
               (centre == own || hash_distance(pass, i, own) <= before)) {
        assign(pass, tally, i, centre, distance);
    } else {
        tally->waiting[tally->waiting_count++] = (int32_t)i;
    }
}

static void assign_block(const kmeans_pass *pass, kmeans_tally *tally, int64_t block) {
    const kmeans_work *work = pass->work;
    const int64_t first = block * HASH_BLOCK;
    const int64_t count = pass->n - first < HASH_BLOCK ? pass->n - first : HASH_BLOCK;
    uint8_t distance[HASH_BLOCK];
    int32_t centre[HASH_BLOCK];
    split_nibbles(hash_block(pass->hashes, block), 8 * work->words, tally->nibbles);
    if (pass->all) {
        nearest_of(pass, tally->nibbles, work->tables, work->clusters, distance, centre);
        for (int64_t i = 0; i < count; i++)
            assign(pass, tally, first + i, centre[i], distance[i]);
        return;
    }
    nearest_of(pass, tally->nibbles, work->changed_tables, work->changed_count, distance,
               centre);
    /* Few queries are affected: finding them first, without a branch for each, is
       faster than branching. */
    uint64_t concerned = 0;
    for (int64_t i = 0; i < count; i++) {
        unsigned near = distance[i] <= work->distances[first + i];
        concerned |= (uint64_t)(near | work->changed[pass->groups[first + i]]) << i;
    }
    for (; concerned; concerned &= concerned - 1) {
        int i = __builtin_ctzll(concerned);
        assign_bounded(pass, tally, first + i, work->changed_list[centre[i]],
                       distance[i]);
        if (tally->waiting_count == HASH_BLOCK)
            assign_waiting(pass, tally);
    }
}

static void assign_task(void *shared, int64_t task, int thread) {
    const kmeans_pass *pass = shared;
    kmeans_tally *tally = &pass->work->tally[thread];
    for (int64_t block = task * TASK_BLOCKS; block < (task + 1) * TASK_BLOCKS; block++)
        if (block * HASH_BLOCK < pass->n)
            assign_block(pass, tally, block);
    assign_waiting(pass, tally);
}

/* ---- Updating the centres --------------------------------------------------------- */

enum { CENTRE_TASK = 32 };

static void gather_task(void *shared, int64_t task, int thread) {
    const kmeans_pass *pass = shared;
    (void)thread;
    for (int64_t c = task * CENTRE_TASK;
         c < (task + 1) * CENTRE_TASK && c < pass->work->clusters; c++) {
        /* Adds the counts of all threads for one centre. */
        const int64_t counters = 64 * pass->work->words;
        int32_t *change = pass->work->change + c * kmeans_counters(pass->work->words);
        memset(change, 0, sizeof *change * (size_t)kmeans_counters(pass->work->words));
        for (int t = 0; t < pass->workers.threads; t++) {
            kmeans_tally *tally = &pass->work->tally[pass->workers.self + t];
            if (!tally->touched[c])
                continue;
            flush(tally, c, counters);
            change[counters] += tally->size_change[c];
            tally->size_change[c] = tally->touched[c] = 0;
            int32_t *counted = tally->change + c * counters;
            for (int64_t b = 0; b < counters; b++) {
                change[b] += counted[b];
                counted[b] = 0;
            }
        }
    }
}

static void move_task(void *shared, int64_t task, int thread) {
    const kmeans_pass *pass = shared;
    kmeans_work *work = pass->work;
    const int64_t counters = 64 * work->words;
    (void)thread;
    for (int64_t c = task * CENTRE_TASK;
         c < (task + 1) * CENTRE_TASK && c < work->clusters; c++) {
        const int32_t *change = work->change + c * kmeans_counters(work->words);
        int32_t any = 0;
        for (int64_t b = 0; b <= counters; b++)
            any |= change[b];
        work->changed[c] = 0;
        if (!any)
            continue;
        for (int64_t b = 0; b < counters; b++)
            work->bit_count[c * counters + b] += change[b];
        work->sizes[c] += change[counters];
        /* Twice the members with the bit, minus all members: positive for a majority, 0
           for a tie, which keeps the bit. */
        for (int64_t i = c * work->words; i < (c + 1) * work->words; i++) {
            const int32_t *counts = work->bit_count + 64 * i;
            uint64_t more = 0, tie = 0;
            for (int b = 0; b < 64; b++) {
                int64_t balance = 2 * (int64_t)counts[b] - work->sizes[c];
                more |= (uint64_t)(balance > 0) << b;
                tie |= (uint64_t)(balance == 0) << b;
            }
            uint64_t word = more | (tie & work->centres[i]);
            work->changed[c] |= word != work->centres[i];
            work->centres[i] = word;
        }
    }
}

static int64_t centre_tasks(const kmeans_work *work) {
    return (work->clusters + CENTRE_TASK - 1) / CENTRE_TASK;
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
    sh_team_run(pass->workers, centre_tasks(pass->work), gather_task, pass);
}

void sh_kmeans_move(kmeans_pass *pass) {
    sh_team_run(pass->workers, centre_tasks(pass->work), move_task, pass);
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
    for (int t = 0; t < pass->workers.threads; t++) {
        kmeans_tally *tally = &work->tally[pass->workers.self + t];
        memset(tally->arrived, 0, counters);
        memset(tally->left, 0, counters);
        memset(tally->arrivals, 0, C);
        memset(tally->leavings, 0, C);
        memset(tally->touched, 0, C);
        memset(tally->change, 0, counters * sizeof(int32_t));
        memset(tally->size_change, 0, C * sizeof(int32_t));
        tally->waiting_count = 0;
    }
}

void sh_kmeans_assign(kmeans_pass *pass) {
    const int64_t task = TASK_BLOCKS * HASH_BLOCK;
    /* tables[c][n][x]: number of bits in which x differs from the n-th nibble of centre
       c. */
    kmeans_work *work = pass->work;
    static const uint8_t ones[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const size_t size = 256 * (size_t)work->words;
    uint8_t differ[16][16];
    for (int y = 0; y < 16; y++)
        for (int x = 0; x < 16; x++)
            differ[y][x] = ones[x ^ y];
    for (int i = 0; i < work->changed_count; i++) {
        const uint64_t *centre = work->centres +
                                 (int64_t)work->changed_list[i] * work->words;
        uint8_t *table = work->changed_tables + (size_t)i * size;
        for (int n = 0; n < 16 * work->words; n++)
            memcpy(table + 16 * n, differ[centre[n / 16] >> 4 * (n % 16) & 15], 16);
        memcpy(work->tables + (size_t)work->changed_list[i] * size, table, size);
    }
    sh_team_run(pass->workers, (pass->n + task - 1) / task, assign_task, pass);
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
        sh_kmeans_tally(&pass);
        sh_kmeans_move(&pass);
        const int found = sh_kmeans_find_farthest(&pass, 0, sh_kmeans_empty(work));
        sh_kmeans_reseed(work, work->farthest, found);
        if (!sh_kmeans_settle(&pass))
            break;
    }
}
