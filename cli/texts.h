/* The model of embed and similar, which turns texts out of files into vectors. */
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
    int64_t size; /* of a vector */
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
         "attention, as shoal kinds spells it; in ModernBERT that of the\n"              \
         "global layers (default: full)",                                                \
         SETS_TEXT(job, model.attention)},                                               \
        {"long", 0, "HOW",                                                               \
         "what longer texts than the window become: windows that\n"                      \
         "overlap, cut or stretch (positions interpolated)\n"                            \
         "(default: windows)",                                                           \
         SETS_CHOICE(job, model.long_texts, long_names)},                                \
        {"window", 0, "W", "tokens of a window (default: 0, all that the model has)",    \
         SETS_INTEGER(job, model.window, 0, ROWS_MOST)},                                 \
        {"stride", 0, "S",                                                               \
         "tokens from one window to the next (default: 0, half a window)",               \
         SETS_INTEGER(job, model.stride, 0, ROWS_MOST)},                                 \
        {"pooling", 0, "HOW",                                                            \
         "own (as the folder says), mean, first or max of a text's rows\n"               \
         "(default: own)",                                                               \
         SETS_CHOICE(job, model.pooling, pooling_names)},                                \
        {"prefix", 0, "TEXT",                                                            \
         "put before every text, such as \"query: \" (default: nothing)",                \
         SETS_TEXT(job, source.prefix)},                                                 \
        {"field", 0, "NAME", "lines are JSON objects, of which this string is the text", \
         SETS_TEXT(job, source.field)},                                                  \
        {"whole", 0, NULL, "a file is one text, and not a text per line",                \
         SETS_FLAG(job, source.whole)},                                                  \
        {"rows", 0, "R",                                                                 \
         "tokens that are worked on at once (default: 0, which is 2048,\n"               \
         "4096 for stretch, or one window); a stretched text has no more",               \
         SETS_INTEGER(job, model.rows, 0, ROWS_MOST)},                                   \
        PRECISION_ROW(job, model.precision), EXACT_ROW(job, model.exact),                \
        THREADS_ROW_AT(job, model.threads), ISA_ROW_AT(job, model.isa)

/* Both die where they fail. */
void open_text_model(text_model *model);

/* Vectors [source->count][size] of the block. */
void embed_block(text_model *model, const text_source *source, float *vectors);

#endif
