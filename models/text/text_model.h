/* Text encoders: the configuration of a Hugging Face folder (text_config.c), its
   weights (text_weights.c), ModernBERT's layers (modern.c), and the encoder
   (text_encoder.c). BERT and RoBERTa use the layers of models/nn/encoder.h. */
#ifndef SHOAL_MODELS_TEXT_TEXT_MODEL_H
#define SHOAL_MODELS_TEXT_TEXT_MODEL_H

#include <jansson.h>

#include "models/files/safetensors.h"
#include "models/nn/encoder.h"
#include "shoal_models.h"

typedef enum {
    FAMILY_BERT,    /* post-norm; sum of word, position and type embeddings */
    FAMILY_ROBERTA, /* the same, with positions that start after the padding id */
    FAMILY_MODERN   /* pre-norm without biases, rotary positions, GeGLU, local layers */
} text_family;

enum { TEXT_LAYERS_MOST = 256 };

typedef struct {
    text_family family;
    char type[32];             /* as the folder names it */
    int64_t vocabulary, types; /* rows of the word and type tables */
    int64_t table_positions;   /* rows of the position table; 0 for rotary positions */
    int64_t positions;         /* maximum number of tokens */
    int64_t layers, heads, size, feed_forward;
    int32_t padding; /* padding id; RoBERTa's positions start after it */
    activation activation;
    float epsilon;
    float dropout; /* in training; BERT and RoBERTa */
    /* ModernBERT: local layers and their sliding window, and the bases of the rotations
       of global and local layers. */
    bool local[TEXT_LAYERS_MOST];
    int64_t window;
    double theta[2]; /* global, local */
    shoal_text_pooling pooling;
    bool normalize; /* vectors are normalised to length 1 */
} text_config;

enum { TEXT_CONFIG_LARGEST = 1 << 22 };

/* Reads the folder's config.json. */
shoal_status sh_text_config_open(shoal_context *context, const char *folder,
                                 text_config *config);
/* Parses a config.json; unsupported settings are named. */
shoal_status sh_text_config_read(shoal_context *context, const char *label,
                                 const json_t *root, text_config *config);

/* ---- Pooling of sentence-transformers (pooling.c) --------------------------------- */

/* Reads modules.json and the Pooling that it names; without it 1_Pooling/config.json;
   without both nothing changes. Unsupported settings are named. */
shoal_status sh_text_modules_open(shoal_context *context, const char *folder,
                                  text_config *config);
/* Parses the config.json of a Pooling. */
shoal_status sh_text_pooling_read(shoal_context *context, const char *label,
                                  const json_t *root, text_config *config);

/* ---- Weights ---------------------------------------------------------------------- */

/* One layer of ModernBERT. */
typedef struct {
    nn_tensor attention_scale; /* [M]; absent in the first layer */
    nn_tensor projections;     /* [3 M][M]: queries, keys, values */
    nn_tensor output;          /* [M][M] */
    nn_tensor forward_scale;   /* [M] */
    nn_tensor widen;           /* [2 F][M]: activated part, and gate */
    nn_tensor narrow;          /* [M][F] */
} modern_layer;

/* How the matrices of the layers lie in memory (nn_tensor). */
typedef enum { MATRIX_FLOATS, MATRIX_PACKED, MATRIX_BF16, MATRIX_INT8 } matrix_form;
enum { TEXT_MATRICES_MOST = 4 }; /* of a layer */

typedef struct {
    safetensors *file;      /* kept open for the table of words */
    file_tensor words;      /* [vocabulary][M], in the file's type */
    nn_tensor positions;    /* [table_positions][M] */
    nn_tensor types;        /* [types][M] */
    nn_tensor scale, shift; /* [M], norm of the sum; ModernBERT has no shift */
    encoder_layer *layers;  /* [layers], BERT and RoBERTa */
    modern_layer *modern;   /* [layers], ModernBERT */
    nn_tensor final_scale;  /* [M], ModernBERT */
    float *zeros;           /* [M]: absent shifts */
    matrix_form form;       /* of the layers' matrices */
    matrix_form instead;    /* of matrices that bytes cannot represent */
    bool outliers;          /* whether there are such matrices */
    float *arena;           /* all numbers except the table of words */
    void *block;
} text_weights;

/* Opens model.safetensors of a folder, or its shards. */
shoal_status sh_text_file_open(shoal_context *context, const char *folder,
                               safetensors **file);
/* The tensor PREFIX NAME; for a norm also under the older names LayerNorm.gamma and
   .beta. NULL if there is none. */
const file_tensor *sh_text_tensor_find(const safetensors *file, const char *prefix,
                                       const char *name);
/* Opens model.safetensors, or its shards, and converts all but the table of words to
   float, and the layers' matrices to the precision if sizes and kernels allow it. */
shoal_status sh_text_weights_open(shoal_context *context, const char *folder,
                                  const text_config *config, shoal_precision precision,
                                  text_weights *weights);
/* Whether some matrices have this form. */
static inline bool text_weights_have(const text_weights *weights, matrix_form form) {
    return weights->form == form || (weights->outliers && weights->instead == form);
}
void sh_text_weights_close(shoal_context *context, text_weights *weights);

/* ---- ModernBERT's layers (modern.c) ----------------------------------------------- */

typedef struct modern_stack modern_stack;

typedef struct {
    int64_t batch, rows, length;
    bool packed_weights, bf16_weights, int8_weights, other_weights; /* encoder_limits */
} text_limits;

shoal_status sh_modern_create(shoal_context *context, const text_config *config,
                              const shoal_attention *attention, const text_limits *limits,
                              modern_stack **made);
void sh_modern_destroy(modern_stack *stack); /* NULL is allowed */
size_t sh_modern_memory(const modern_stack *stack);
/* x [R][M]: words after their norm; overwritten. places [R]: position of each row.
   *out: [R][M] inside the object. */
shoal_status sh_modern_forward(modern_stack *stack, const text_weights *weights,
                               const packing *sequences, const float *places, float *x,
                               const float **out);

#endif
