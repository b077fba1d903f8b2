/* The file of a phone language model: a head, then its arrays one after another, in the
   machine's own byte order.

       last [states], first [states + 1], phone [arcs], next [arcs]: int32_t
       weight [arcs], end [states]: double */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/files/checksum.h"
#include "models/files/files.h"
#include "speech/recogniser/phone_lm.h"

typedef struct {
    char magic[8];
    uint64_t key, checksum; /* of all, with 0 in its place */
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
    key = mix_word(key, (uint64_t)shoal_lexicon_describe(texts->lexicon).phones);
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

/* ---- Writing ----------------------------------------------------------------------- */

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

/* ---- Reading ----------------------------------------------------------------------- */

/* What only a damaged or foreign file has, after its sum. */
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
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is no phone language model, damaged, or another one", name);
    *lm = (phone_lm){.phones = head.phones,
                     .order = head.order,
                     .states = head.states,
                     .arcs = head.arcs};
    const bool room = sh_phone_lm_allocate(lm);
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
