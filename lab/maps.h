/* Attention maps: weights from the tokens of a question to a text, by kind. */
#ifndef SHOAL_LAB_MAPS_H
#define SHOAL_LAB_MAPS_H

#include "lab.h"

enum { MAPS_KINDS = 8, MAPS_WORD = 40 };

typedef struct {
    float *weights; /* [rows][tokens], of one head or the mean over heads */
    double error;   /* of the weights, as returned by map_weigh */
    double away;    /* total variation distance from the first kind's weights, mean
                       over rows */
} maps_kind;

typedef struct {
    int64_t tokens;
    char (*words)[MAPS_WORD]; /* [tokens] */
    int64_t first, rows;      /* tokens of the question */
    int64_t context;          /* index of the context's first token */
    kind_list kinds;
    maps_kind measured[MAPS_KINDS];
    double threshold;
    const char *caption;
} attention_maps;

/* Lists the tokens above the threshold for a token of the question, largest first: "won
   0.09". */
void maps_list(const attention_maps *maps, const maps_kind *kind, int64_t row, char *text,
               size_t size);

void maps_draw(const char *path, const attention_maps *maps);

#endif
