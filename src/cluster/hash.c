#include "cluster/hash.h"

#include <string.h>

#include "base/random.h"

void sh_hash_directions(uint64_t seed, int bits, int64_t dim, float *directions) {
    for (int64_t i = 0; i < bits * dim; i++)
        directions[i] = sh_random_normal(seed, STREAM_DIRECTIONS, (uint64_t)i);
}

void sh_hash_queries(const kernel_table *table, const float *q, int64_t stride, int count,
                     int64_t ahead, int dim, const float *directions, hash_array *hashes,
                     int64_t block, float *panel, float *scores) {
    uint8_t *planes = hash_block(hashes, block);
    memset(planes, 0, 8 * (size_t)hashes->words * HASH_BLOCK);
    for (int first = 0; first < count; first += table->panel) {
        /* The block's end is a multiple of every table's lanes, so no panel passes it. */
        int width = panel_width(table, count - first);
        if (width > HASH_BLOCK - first)
            width = HASH_BLOCK - first;
        int live = count - first < width ? count - first : width;
        table->pack(q + first * stride, stride, NULL, live, width, dim, 1, panel);
        int64_t next = ahead - first - live;
        prefetch_rows(q + (first + live) * stride, stride, NULL,
                      next < table->panel ? next : table->panel, dim);
        table->score(panel, width, dim, directions, dim, hashes->bits, scores);
        table->signs(scores, width, hashes->bits, planes + first);
    }
}
