/* Data of the tasks glue and squad: texts as tokens with their labels, what a model makes
   of them, and the scores of a dev part. */
#ifndef SHOAL_TRAIN_TASKS_TEXT_H
#define SHOAL_TRAIN_TASKS_TEXT_H

#include "train/tasks/task.h"
#include <jansson.h>

/* ---- Sequences (text.c) ------------------------------------------------------------ */

/* Tokens of all sequences, one after another. */
typedef struct {
    pool memory;
    int64_t count, room;  /* sequences */
    int64_t *offsets;     /* [count + 1] */
    float *labels;        /* [count]: class or number; glue */
    int32_t (*wanted)[2]; /* [count]: rows of the answer's first and last token, in the
                             sequence; 0, 0: it is not in there; squad */
    int64_t *questions;   /* [count]: which question a window is of; squad */
    int64_t token_count, token_room;
    int32_t *ids, *types; /* [token_count] */
    int32_t (*bytes)[2];  /* [token_count]: where a token of the context is in it;
                                    -1, -1: none of the context's; squad */
} text_set;

void sh_text_set_free(text_set *set);
/* Puts a sequence at the end. bytes and wanted may be NULL. */
shoal_status sh_text_set_add(shoal_context *context, text_set *set, int64_t count,
                             const int32_t *ids, const int32_t *types,
                             const int32_t (*bytes)[2], float label,
                             const int32_t wanted[2], int64_t question);
/* A number that other tokens or labels would not give. */
uint64_t sh_text_set_fingerprint(const text_set *set);
/* Rows of the largest batch that `batch` sequences can make. */
int64_t sh_text_set_most_rows(const text_set *set, int64_t batch);

/* Some sequences of a set, copied together. */
typedef struct {
    pool memory;
    int64_t count, room, row_room;
    int64_t *offsets;     /* [count + 1] */
    int64_t *at;          /* [count]: which sequences of the set */
    int32_t *ids, *types; /* [rows] */
} text_batch;

/* Sequences order[first] .. order[first + count - 1]; order NULL: first and so on. */
shoal_status sh_text_batch_fill(const text_set *set, const int64_t *order, int64_t first,
                                int64_t count, text_batch *batch);
void sh_text_batch_free(text_batch *batch);
shoal_model_inputs sh_text_batch_inputs(const text_batch *batch);

/* How files become sequences. */
typedef struct {
    shoal_context *context;
    shoal_tokenizer *tokenizer;
    int64_t max_length;
    bool skip_bad; /* rows and questions that cannot be used are left out */
    const shoal_train_callbacks *callbacks; /* hear how many were */
} text_reader;

/* ---- Metrics (metrics.c) ----------------------------------------------------------- */

typedef enum {
    METRIC_NONE,
    METRIC_ACCURACY,
    METRIC_F1,       /* of class 1; 0 where nothing was or should have been in it */
    METRIC_MATTHEWS, /* correlation of classes 0 and 1; 0 where one is all there is */
    METRIC_PEARSON,  /* correlation of numbers, and */
    METRIC_SPEARMAN, /* of their ranks (equal ones share the mean); 0 if all are equal */
    METRIC_EXACT,    /* of answers, as METRIC_F1 can be */
    METRICS
} text_metric;
extern const char *const sh_text_metric_names[METRICS];

/* predicted and wanted: [count], classes as whole numbers. NAN: out of memory. */
double sh_text_metric(shoal_context *context, text_metric metric, int64_t count,
                      const float *predicted, const float *wanted);

/* SQuAD's answers: lower case, without ASCII punctuation, without the words a, an and
   the, with single spaces. In malloc's memory; NULL: none left. Bytes that are no UTF-8
   stay as they are. */
char *sh_squad_normalise(shoal_context *context, const char *text);
/* Of normalised texts: words in common, each as often as it is in both. */
double sh_squad_f1(const char *predicted, const char *wanted);

/* ---- GLUE (glue.c) ---------------------------------------------------------------- */

typedef struct {
    const char *name;          /* of the task and its folder */
    int classes;               /* 1: a number */
    text_metric first, second; /* the best epoch is the first one's; second may be none */
    const char *train[2], *dev[2]; /* names of files, of which the first that is there */
    const char *columns[3];        /* of the texts and the label in a header; the second
                                      text may be NULL */
    int places[3], fields;         /* the same without a header; fields 0: it has one */
    const char *words[3];          /* labels as words, where they are not numbers */
} glue_task;

/* By its name in capitals or not; NULL: none. */
const glue_task *sh_glue_find(const char *name);
#define GLUE_NAMES "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI"
/* folder: of the task, or of all tasks. Parts that are not wanted are NULL. Messages name
   file and line. */
shoal_status sh_glue_read(const text_reader *reader, const glue_task *task,
                          const char *folder, text_set *train, text_set *dev);

/* ---- SQuAD (squad.c) -------------------------------------------------------------- */

typedef struct {
    const char *id, *text, *context; /* in the file's memory */
    const json_t *answers;
} squad_question;

typedef struct {
    json_t *root;
    squad_question *questions; /* [count] */
    int64_t count;
    text_set windows;
} squad_set;

/* Windows of max_length tokens, `stride` of the context from one to the next (fewer where
   a long question leaves less room). training: an answer of each question is looked up.
   Questions that cannot be used are refused by name, or left out and counted. */
shoal_status sh_squad_read(const text_reader *reader, const char *path, int64_t stride,
                           bool training, squad_set *set);
void sh_squad_free(squad_set *set);
/* The windows of one question, under a number. answer: bytes of the context, or NULL. */
shoal_status sh_squad_windows(const text_reader *reader, const squad_question *question,
                              int64_t number, int64_t stride, const int64_t answer[2],
                              text_set *windows);

/* The likeliest answer so far of a question. */
typedef struct {
    double score;       /* -INFINITY: none yet */
    int32_t begin, end; /* bytes of the context */
} squad_answer;

/* Looks for the best answer of at most max_answer tokens in window `at`, whose logits of
   beginning and end are [rows][2]. */
void sh_squad_look(const text_set *windows, int64_t at, const float *logits,
                   int64_t max_answer, squad_answer *best);
/* Without the white space around it, which tokens of bytes have. */
void sh_squad_trim(const squad_question *question, squad_answer *answer);
/* Its text, trimmed, in malloc's memory; "" where there is none. NULL: out of memory. */
char *sh_squad_text(shoal_context *context, const squad_question *question,
                    const squad_answer *answer);

/* answers [count], one for each question; shares of 1. False: out of memory. */
bool sh_squad_scores(shoal_context *context, const squad_set *set,
                     const squad_answer *answers, double *exact, double *f1);

/* ---- Scores (text.c) --------------------------------------------------------------- */

/* Where a checkpoint keeps the paths of its data. */
#define TEXT_PATHS_NOTE "text.paths"

typedef struct {
    double mean; /* over the sequences: cross-entropy; the square of a number's error; of
                    a span the mean of its two cross-entropies */
    int64_t correct; /* sequences; of numbers those that round to the wanted one */
    int64_t counted;
} text_loss;

/* logits: [sequences][classes], or [rows][2] of spans (glue NULL). gradient: of the mean,
   in the same shape; it may be the logits, or NULL. */
shoal_status sh_text_loss(const glue_task *glue, const text_set *set,
                          const text_batch *batch, const float *logits, float *gradient,
                          text_loss *loss);

/* A dev part: of GLUE, or of SQuAD where glue is NULL. */
typedef struct {
    const glue_task *glue;
    text_set set;
    squad_set squad;
    int64_t max_answer;
    float *predicted;      /* [sequences] of the last run; glue */
    squad_answer *answers; /* [questions], likewise; squad */
} text_dev;

void sh_text_dev_free(text_dev *dev);
const text_set *sh_text_dev_set(const text_dev *dev);
/* The metrics, by their names; the second is NULL where there is one alone. */
const char *sh_text_dev_first(const text_dev *dev);
const char *sh_text_dev_second(const text_dev *dev);

typedef struct {
    double loss;          /* mean over the sequences; of SQuAD NAN */
    double first, second; /* the metrics */
    int64_t correct, counted;
} text_result;

/* Begins anew; takes what a model makes of some sequences of the set; and, after all of
   them, finds the metrics. */
shoal_status sh_text_dev_begin(text_dev *dev, text_result *result);
shoal_status sh_text_dev_take(text_dev *dev, const text_batch *batch, const float *logits,
                              text_result *result);
shoal_status sh_text_dev_end(const text_dev *dev, text_result *result);

#endif
