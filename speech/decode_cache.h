/* Keys and values of the decoder's past, and exact causal attention over them.

   A row is written once, at (position, beam). Which rows a beam's past consists of stands
   in `origin`: position p of beam b was written by beam origin[b][p]. */
#ifndef SHOAL_SPEECH_DECODE_CACHE_H
#define SHOAL_SPEECH_DECODE_CACHE_H

#include "base/memory.h"
#include "models/nn/crew.h"

/* P positions, B beams, T = heads * dim. */
typedef struct {
    int64_t layers, positions, beams, heads, dim;
    int threads;
    float *keys, *values;   /* [layers][P][B][T] */
    int32_t *origin, *next; /* [B][P]; next is room for a new order */
    float *weights;         /* [threads][P] */
} decode_cache;

/* Reserves its memory; the sizes above are set. */
void sh_cache_place(decode_cache *cache, block_layout *block);

/* Every beam's past is what beam 0 will write. */
void sh_cache_clear(decode_cache *cache);
/* Beam b < beams has the past of beam parents[b], up to `length` positions. */
void sh_cache_reorder(decode_cache *cache, const int32_t *parents, int beams, int length);
/* Beam b < beams writes position p itself. */
void sh_cache_own(decode_cache *cache, int beams, int position);

/* Rows that are attended for. As a text: row r stands at position first + r of beam 0. As
   a step: row r stands at position first of beam r. */
typedef struct {
    int64_t rows, first;
    bool step;
    float *in;  /* [rows][3 T]: query, key, value */
    float *out; /* [rows][T] */
} cache_rows;

/* Keeps the rows' keys and values, then attends. */
void sh_cache_attend(const crew *by, decode_cache *cache, int64_t layer,
                     const cache_rows *now);

#endif
