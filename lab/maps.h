/* Maps of attention: what the tokens of a question weigh of a text, by kind. */
#ifndef SHOAL_LAB_MAPS_H
#define SHOAL_LAB_MAPS_H

#include "lab.h"

enum { MAPS_KINDS = 8, MAPS_WORD = 40 };

typedef struct {
    float *weights; /* [rows][tokens], of the head or the mean over heads */
    double error;   /* of the weights, as map_weigh says */
    double away;    /* half the sum of differences from the first kind's, mean over rows:
                       the share of the weight that lies elsewhere */
} maps_kind;

typedef struct {
    int64_t tokens;
    char (*words)[MAPS_WORD]; /* [tokens] */
    int64_t first, rows;      /* tokens of the question */
    int64_t context;          /* the first of the context's */
    kind_list kinds;
    maps_kind measured[MAPS_KINDS];
    double threshold;
    const char *caption;
} attention_maps;

/* The tokens above the threshold of a question's token, the largest first: "won 0.09". */
void maps_list(const attention_maps *maps, const maps_kind *kind, int64_t row, char *text,
               size_t size);

/* Writes the picture. */
void maps_draw(const char *path, const attention_maps *maps);

#endif
