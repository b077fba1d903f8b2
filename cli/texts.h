/* The model of embed and similar, which turns texts from files into vectors. */
#ifndef SHOAL_CLI_TEXTS_H
#define SHOAL_CLI_TEXTS_H

#include "command.h"
#include <shoal_models.h>

typedef struct {
    const char *folder, *attention, *isa;
    int64_t threads, rows, window, stride;
    int long_texts, pooling, precision;
    bool normalize, exact;
    shoal_context *context;
    shoal_text_encoder *encoder;
    int64_t size; /* dimension of a vector */
} text_model;

extern const char *const long_names[], *const pooling_names[];

enum { ROWS_MOST = 1 << 22 };

#define TEXT_MODEL_ROWS(job)                                                             \
    {"model", 'm', "DIR",                                                                \
     "Hugging Face folder of a BERT, RoBERTa or ModernBERT\n"                            \
     "(default: the environment variable SHOAL_TEXT_MODEL, else\n"                       \
     "SHOAL_MODEL)",                                                                     \
     SETS_TEXT(job, model.folder)},                                                      \
        {"attention", 'a', "KIND",                                                       \
         "attention kind, as in shoal kinds; for ModernBERT that of the\n"               \
         "global layers (default: full)",                                                \
         SETS_TEXT(job, model.attention)},                                               \
        {"long", 0, "HOW",                                                               \
         "texts longer than a window: windows (overlapping), cut, or\n"                  \
         "stretch (interpolated positions) (default: windows)",                          \
         SETS_CHOICE(job, model.long_texts, long_names)},                                \
        {"window", 0, "W", "tokens per window (default: 0, the maximum of the model)",   \
         SETS_INTEGER(job, model.window, 0, ROWS_MOST)},                                 \
        {"stride", 0, "S",                                                               \
         "tokens from one window to the next (default: 0, half a window)",               \
         SETS_INTEGER(job, model.stride, 0, ROWS_MOST)},                                 \
        {"pooling", 0, "HOW",                                                            \
         "pooling of token vectors: own (as the folder specifies), mean,\n"              \
         "first or max (default: own)",                                                  \
         SETS_CHOICE(job, model.pooling, pooling_names)},                                \
        {"prefix", 0, "TEXT",                                                            \
         "text put before every text, such as \"query: \" (default: none)",              \
         SETS_TEXT(job, source.prefix)},                                                 \
        {"field", 0, "NAME", "lines are JSON objects; this string member is the text",   \
         SETS_TEXT(job, source.field)},                                                  \
        {"whole", 0, NULL, "treat each file as one text instead of one text per line",   \
         SETS_FLAG(job, source.whole)},                                                  \
        {"rows", 0, "R",                                                                 \
         "tokens per batch (default: 0, which means 2048, 4096 for stretch,\n"           \
         "or one window); also the maximum length of a stretched text",                  \
         SETS_INTEGER(job, model.rows, 0, ROWS_MOST)},                                   \
        PRECISION_ROW(job, model.precision), EXACT_ROW(job, model.exact),                \
        THREADS_ROW_AT(job, model.threads), ISA_ROW_AT(job, model.isa)

/* Both exit on failure. */
void open_text_model(text_model *model);

/* vectors [source->count][size] */
void embed_block(text_model *model, const text_source *source, float *vectors);

#endif
