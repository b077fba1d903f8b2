/* Data of the tasks glue and squad: texts as tokens with labels, losses of a model's
   outputs, and metrics of a dev set. */
#ifndef SHOAL_TRAIN_TASKS_TEXT_H
#define SHOAL_TRAIN_TASKS_TEXT_H

#include "train/tasks/task.h"
#include <jansson.h>

/* ---- Sequences (text.c) ------------------------------------------------------------ */

/* Tokens of all sequences, concatenated. */
typedef struct {
    pool memory;
    int64_t count, room;  /* numbers of sequences */
    int64_t *offsets;     /* [count + 1] */
    float *labels;        /* [count]: class or number; glue only */
    int32_t (*wanted)[2]; /* [count]: rows of the answer's first and last token in the
                             sequence; 0, 0 if the answer is not in it; squad only */
    int64_t *questions;   /* [count]: question of each window; squad only */
    int64_t token_count, token_room;
    int32_t *ids, *types; /* [token_count] */
    int32_t (*bytes)[2];  /* [token_count]: byte range of a token in the context; -1,
                             -1 for tokens outside the context; squad only */
} text_set;

void sh_text_set_free(text_set *set);
/* Appends a sequence. bytes and wanted may be NULL. */
shoal_status sh_text_set_add(shoal_context *context, text_set *set, int64_t count,
                             const int32_t *ids, const int32_t *types,
                             const int32_t (*bytes)[2], float label,
                             const int32_t wanted[2], int64_t question);
/* A digest of tokens and labels. */
uint64_t sh_text_set_fingerprint(const text_set *set);
/* Maximum number of rows of a batch of `batch` sequences. */
int64_t sh_text_set_most_rows(const text_set *set, int64_t batch);

/* Some sequences of a set, packed. */
typedef struct {
    pool memory;
    int64_t count, room, row_room;
    int64_t *offsets;     /* [count + 1] */
    int64_t *at;          /* [count]: indices of the sequences in the set */
    int32_t *ids, *types; /* [rows] */
} text_batch;

/* Packs sequences order[first] .. order[first + count - 1]; order NULL is the
   identity. */
shoal_status sh_text_batch_fill(const text_set *set, const int64_t *order, int64_t first,
                                int64_t count, text_batch *batch);
void sh_text_batch_free(text_batch *batch);
shoal_model_inputs sh_text_batch_inputs(const text_batch *batch);

/* Conversion of files to sequences. */
typedef struct {
    shoal_context *context;
    shoal_tokenizer *tokenizer;
    int64_t max_length;
    bool skip_bad; /* skip rows and questions that cannot be used */
    const shoal_train_callbacks *callbacks; /* receive the number skipped */
} text_reader;

/* ---- Metrics (metrics.c) ----------------------------------------------------------- */

typedef enum {
    METRIC_NONE,
    METRIC_ACCURACY,
    METRIC_F1,       /* of class 1; 0 if it is neither predicted nor present */
    METRIC_MATTHEWS, /* correlation of classes 0 and 1; 0 if only one class occurs */
    METRIC_PEARSON,  /* correlation of numbers */
    METRIC_SPEARMAN, /* correlation of ranks (ties share the mean rank); 0 if all are
                        equal */
    METRIC_EXACT,    /* share of exactly equal answers; METRIC_F1 also applies to
                        answers */
    METRICS
} text_metric;
extern const char *const sh_text_metric_names[METRICS];

/* predicted and wanted: [count], classes as integers. NAN if out of memory. */
double sh_text_metric(shoal_context *context, text_metric metric, int64_t count,
                      const float *predicted, const float *wanted);

/* Normalises an answer of SQuAD: lower case, no ASCII punctuation, no words a, an and
   the, single spaces; invalid UTF-8 is kept. The result is in the context's memory; NULL
   if out of memory. */
char *sh_squad_normalise(shoal_context *context, const char *text);
/* F1 of normalised texts; common words count with multiplicity. */
double sh_squad_f1(const char *predicted, const char *wanted);

/* ---- GLUE (glue.c) ---------------------------------------------------------------- */

typedef struct {
    const char *name;              /* of the task and its folder */
    int classes;                   /* 1 for regression */
    text_metric first, second;     /* the first one selects the best epoch; the second is
                                  optional */
    const char *train[2], *dev[2]; /* file names; the first that exists is used */
    const char *columns[3];        /* names of the columns of the texts and the label
                                      in a header; the second text may be NULL */
    int places[3], fields;         /* column indices without a header; fields 0 if
                                      there is a header */
    const char *words[3];          /* labels as words, if they are not numbers */
} glue_task;

/* Case-insensitive; NULL if unknown. */
const glue_task *sh_glue_find(const char *name);
#define GLUE_NAMES "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI"
/* folder: of the task, or of all tasks. train or dev may be NULL. Messages name file
   and line. */
shoal_status sh_glue_read(const text_reader *reader, const glue_task *task,
                          const char *folder, text_set *train, text_set *dev);

/* ---- SQuAD (squad.c) -------------------------------------------------------------- */

typedef struct {
    const char *id, *text, *context; /* point into the file's memory */
    const json_t *answers;
} squad_question;

typedef struct {
    json_t *root;
    squad_question *questions; /* [count] */
    int64_t count;
    text_set windows;
} squad_set;

/* Reads questions as windows of max_length tokens, `stride` tokens of the context apart
   (fewer if a long question leaves less room). training: one answer per question is
   located. Questions that cannot be used are an error that names them, or are skipped
   and counted. */
shoal_status sh_squad_read(const text_reader *reader, const char *path, int64_t stride,
                           bool training, squad_set *set);
void sh_squad_free(squad_set *set);
/* Windows of one question, with this index. answer: byte range of the context, or
   NULL. */
shoal_status sh_squad_windows(const text_reader *reader, const squad_question *question,
                              int64_t number, int64_t stride, const int64_t answer[2],
                              text_set *windows);

/* Best answer of a question so far. */
typedef struct {
    double score;       /* -INFINITY if there is none yet */
    int32_t begin, end; /* bytes of the context */
} squad_answer;

/* Finds the best answer of at most max_answer tokens in window `at`, whose logits of
   begin and end are [rows][2]. */
void sh_squad_look(const text_set *windows, int64_t at, const float *logits,
                   int64_t max_answer, squad_answer *best);
/* Removes surrounding white space, which byte-level tokens may include. */
void sh_squad_trim(const squad_question *question, squad_answer *answer);
/* Trimmed text in the context's memory; "" if there is no answer, NULL if out of memory. */
char *sh_squad_text(shoal_context *context, const squad_question *question,
                    const squad_answer *answer);

/* answers [count], one per question; results are shares of 1. Returns false if out of
   memory. */
bool sh_squad_scores(shoal_context *context, const squad_set *set,
                     const squad_answer *answers, double *exact, double *f1);

/* ---- Scores (text.c) --------------------------------------------------------------- */

/* Note of a checkpoint that holds the paths of its data. */
#define TEXT_PATHS_NOTE "text.paths"

typedef struct {
    double mean; /* over the sequences: cross-entropy; squared error of a number; for a
                    span the mean of its two cross-entropies */
    int64_t correct; /* sequences; for numbers, those that round to the target */
    int64_t counted;
} text_loss;

/* logits: [sequences][classes], or [rows][2] for spans (glue NULL). gradient: of the
   mean, in the same shape; may alias logits, or be NULL. */
shoal_status sh_text_loss(const glue_task *glue, const text_set *set,
                          const text_batch *batch, const float *logits, float *gradient,
                          text_loss *loss);

/* Dev set of GLUE, or of SQuAD if glue is NULL. */
typedef struct {
    const glue_task *glue;
    text_set set;
    squad_set squad;
    int64_t max_answer;
    float *predicted;      /* [sequences] of the last run; glue only */
    squad_answer *answers; /* [questions] of the last run; squad only */
} text_dev;

void sh_text_dev_free(text_dev *dev);
const text_set *sh_text_dev_set(const text_dev *dev);
/* Names of the metrics; the second is NULL if there is only one. */
const char *sh_text_dev_first(const text_dev *dev);
const char *sh_text_dev_second(const text_dev *dev);

typedef struct {
    double loss;          /* mean over the sequences; NAN for SQuAD */
    double first, second; /* the metrics */
    int64_t correct, counted;
} text_result;

/* Start an evaluation; add a model's outputs for some sequences of the set; and, after
   all of them, compute the metrics. */
shoal_status sh_text_dev_begin(text_dev *dev, text_result *result);
shoal_status sh_text_dev_take(text_dev *dev, const text_batch *batch, const float *logits,
                              text_result *result);
shoal_status sh_text_dev_end(const text_dev *dev, text_result *result);

#endif
