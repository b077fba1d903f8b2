#include "models/text/vocabulary.h"

#include <string.h>

#include "base/memory.h"

/* A power of two at least twice the number of entries, so that probe sequences are
   short. */
static uint64_t slots_for(int64_t entries) {
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)entries)
        slots *= 2;
    return slots;
}

/* ---- Words ------------------------------------------------------------------------ */

static void place_words(void *argument, block_layout *block) {
    vocabulary *words = argument;
    words->text = sh_reserve(block, (int64_t)words->bytes, 1);
    words->begin = sh_reserve(block, words->room + 1, sizeof *words->begin);
    words->ids = sh_reserve(block, words->room, sizeof *words->ids);
    words->slots = sh_reserve(block, (int64_t)words->mask + 1, sizeof *words->slots);
}

shoal_status sh_vocabulary_create(shoal_context *context, int64_t words, size_t bytes,
                                  vocabulary *made) {
    *made = (vocabulary){.room = words, .bytes = bytes, .mask = slots_for(words) - 1};
    made->block = sh_allocate_parts(context, place_words, made, NULL);
    if (!made->block)
        return SHOAL_NO_MEMORY;
    memset(made->slots, 0, (made->mask + 1) * sizeof *made->slots);
    made->bytes = 0;
    made->begin[0] = 0;
    return SHOAL_OK;
}

void sh_vocabulary_destroy(shoal_context *context, vocabulary *words) {
    sh_release(context, words->block);
    *words = (vocabulary){0};
}

/* FNV-1a with its upper half folded in, since a slot is its lower bits. */
static uint64_t hash_of(const char *word, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)word[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

/* The slot of the word, or the free slot for it. */
static uint64_t slot_of(const vocabulary *words, const char *word, size_t size) {
    uint64_t slot = hash_of(word, size) & words->mask;
    for (; words->slots[slot]; slot = (slot + 1) & words->mask) {
        const uint32_t index = words->slots[slot] - 1;
        const size_t begin = words->begin[index];
        if (words->begin[index + 1] - begin == size &&
            memcmp(words->text + begin, word, size) == 0)
            break;
    }
    return slot;
}

bool sh_vocabulary_add(vocabulary *words, const char *word, size_t size, int32_t id) {
    const uint64_t slot = slot_of(words, word, size);
    if (words->slots[slot])
        return false;
    if (size > 0)
        memcpy(words->text + words->bytes, word, size);
    words->bytes += size;
    words->longest = size > words->longest ? size : words->longest;
    words->ids[words->count++] = id;
    words->begin[words->count] = words->bytes;
    words->slots[slot] = (uint32_t)words->count;
    return true;
}

int32_t sh_vocabulary_find(const vocabulary *words, const char *word, size_t size) {
    if (words->count == 0)
        return -1;
    const uint32_t found = words->slots[slot_of(words, word, size)];
    return found ? words->ids[found - 1] : -1;
}

/* ---- Merges ----------------------------------------------------------------------- */

static const uint64_t free_slot = UINT64_MAX;

shoal_status sh_merges_create(shoal_context *context, int64_t count, merge_table *made) {
    *made = (merge_table){.mask = slots_for(count) - 1};
    made->slots = sh_allocate(context, (made->mask + 1) * sizeof *made->slots);
    if (!made->slots)
        return SHOAL_NO_MEMORY;
    for (uint64_t i = 0; i <= made->mask; i++)
        made->slots[i].pair = free_slot;
    return SHOAL_OK;
}

void sh_merges_destroy(shoal_context *context, merge_table *merges) {
    sh_release(context, merges->slots);
    *merges = (merge_table){0};
}

static merge *merge_slot(const merge_table *merges, int32_t left, int32_t right) {
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t mixed = pair * 0x9e3779b97f4a7c15u;
    uint64_t slot = (mixed ^ mixed >> 32) & merges->mask;
    while (merges->slots[slot].pair != free_slot && merges->slots[slot].pair != pair)
        slot = (slot + 1) & merges->mask;
    return &merges->slots[slot];
}

bool sh_merges_add(merge_table *merges, int32_t left, int32_t right, int32_t id) {
    merge *slot = merge_slot(merges, left, right);
    if (slot->pair != free_slot)
        return false;
    *slot = (merge){.pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right,
                    .rank = (int32_t)merges->count++,
                    .id = id};
    return true;
}

const merge *sh_merges_find(const merge_table *merges, int32_t left, int32_t right) {
    const merge *slot = merge_slot(merges, left, right);
    return slot->pair == free_slot ? NULL : slot;
}

/* ---- Pieces ----------------------------------------------------------------------- */

typedef struct {
    piece_trie *trie;
    int64_t room;
} trie_plan;

static void place_trie(void *argument, block_layout *block) {
    const trie_plan *plan = argument;
    piece_trie *trie = plan->trie;
    trie->nodes = sh_reserve(block, plan->room, sizeof *trie->nodes);
    trie->slots = sh_reserve(block, (int64_t)trie->mask + 1, sizeof *trie->slots);
}

shoal_status sh_trie_create(shoal_context *context, size_t bytes, piece_trie *made) {
    const int64_t room = (int64_t)bytes + 1;
    *made = (piece_trie){.mask = slots_for(room) - 1};
    made->block = sh_allocate_parts(context, place_trie, &(trie_plan){made, room}, NULL);
    if (!made->block)
        return SHOAL_NO_MEMORY;
    memset(made->slots, 0, (made->mask + 1) * sizeof *made->slots);
    made->nodes[made->count++] = (trie_node){.id = -1};
    return SHOAL_OK;
}

void sh_trie_destroy(shoal_context *context, piece_trie *trie) {
    sh_release(context, trie->block);
    *trie = (piece_trie){0};
}

/* The slot of the node, or the free slot for it. */
static uint32_t *trie_slot(const piece_trie *trie, uint32_t parent, unsigned char byte) {
    uint64_t mixed = ((uint64_t)parent << 8 | byte) * 0x9e3779b97f4a7c15u;
    uint64_t slot = (mixed ^ mixed >> 32) & trie->mask;
    for (; trie->slots[slot]; slot = (slot + 1) & trie->mask) {
        const trie_node *node = &trie->nodes[trie->slots[slot]];
        if (node->parent == parent && node->byte == byte)
            break;
    }
    return &trie->slots[slot];
}

void sh_trie_add(piece_trie *trie, const char *piece, size_t size, int32_t id) {
    uint32_t node = 0;
    for (size_t i = 0; i < size; i++) {
        const unsigned char byte = (unsigned char)piece[i];
        uint32_t *slot = trie_slot(trie, node, byte);
        if (!*slot) {
            *slot = (uint32_t)trie->count;
            trie->nodes[trie->count++] =
                (trie_node){.parent = node, .id = -1, .byte = byte};
        }
        node = *slot;
    }
    trie->nodes[node].id = id;
}

uint32_t sh_trie_next(const piece_trie *trie, uint32_t node, unsigned char byte) {
    return *trie_slot(trie, node, byte);
}
