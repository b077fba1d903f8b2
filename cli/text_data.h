/* Data of the tasks glue and squad: texts as tokens, with what is wanted of them. */
#ifndef SHOAL_CLI_TEXT_DATA_H
#define SHOAL_CLI_TEXT_DATA_H

#include <jansson.h>
#include <stdbool.h>

#include <shoal_models.h>

/* ---- Sequences ------------------------------------------------------------------- */

/* Tokens of all sequences, one after another. */
typedef struct {
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

void text_set_free(text_set *set);
/* Puts a sequence at the end. bytes may be NULL. False: out of memory. */
bool text_set_add(text_set *set, int64_t count, const int32_t *ids, const int32_t *types,
                  const int32_t (*bytes)[2], float label, const int32_t wanted[2],
                  int64_t question);
/* A number that other tokens or labels would not give. */
uint64_t text_set_fingerprint(const text_set *set);
/* Rows of the largest batch that `batch` sequences can make, and of the longest one. */
int64_t text_set_most_rows(const text_set *set, int64_t batch);
int64_t text_set_longest(const text_set *set);

/* Some sequences of a set, copied together. */
typedef struct {
    int64_t count, room, row_room;
    int64_t *offsets;     /* [count + 1] */
    int64_t *at;          /* [count]: which sequences of the set */
    int32_t *ids, *types; /* [rows] */
} text_batch;

/* Sequences order[first] .. order[first + count - 1]; order NULL: first and so on. False:
   out of memory. */
bool text_batch_fill(const text_set *set, const int64_t *order, int64_t first,
                     int64_t count, text_batch *batch);
void text_batch_free(text_batch *batch);
shoal_model_inputs text_batch_inputs(const text_batch *batch);

/* ---- GLUE (glue.c) ---------------------------------------------------------------- */

typedef enum {
    METRIC_NONE,
    METRIC_ACCURACY,
    METRIC_F1,
    METRIC_MATTHEWS,
    METRIC_PEARSON,
    METRIC_SPEARMAN,
    METRIC_EXACT,
    METRICS
} text_metric;
extern const char *const metric_names[METRICS];
double text_metric_of(text_metric metric, int64_t count, const float *predicted,
                      const float *wanted);

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
const glue_task *glue_find(const char *name);
/* All names with commas between. */
const char *glue_names(void);

typedef struct {
    const char *command;
    shoal_context *context;
    shoal_tokenizer *tokenizer;
    int64_t max_length;
    bool skip_bad;
} text_reader;

/* Whether the folder has the task's files. */
bool glue_is_there(const glue_task *task, const char *folder);
/* folder: of the task, or of all tasks. Parts that are not wanted are NULL. Exit code,
   after a complaint that names file and line. */
int glue_read(const text_reader *reader, const glue_task *task, const char *folder,
              text_set *train, text_set *dev);

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
int squad_read(const text_reader *reader, const char *path, int64_t stride, bool training,
               squad_set *set);
void squad_free(squad_set *set);
/* The windows of one question; what `answer` has too. */
int squad_windows(const text_reader *reader, const squad_question *question,
                  int64_t number, int64_t stride, const int64_t answer[2],
                  text_set *windows);

/* The likeliest answer so far of a question. */
typedef struct {
    double score;       /* -INFINITY: none yet */
    int32_t begin, end; /* bytes of the context */
} squad_answer;

/* Looks for the best answer of at most max_answer tokens in window `at`, whose logits of
   beginning and end are [rows][2]. */
void squad_look(const text_set *windows, int64_t at, const float *logits,
                int64_t max_answer, squad_answer *best);
/* Without the white space around it, which tokens of bytes have. */
void squad_trim(const squad_question *question, squad_answer *answer);
/* Its text, trimmed, in malloc's memory; "" where there is none. NULL: out of memory. */
char *squad_text(const squad_question *question, const squad_answer *answer);

typedef struct {
    double exact, f1; /* shares of 1 */
} squad_score;

/* answers [count], one for each question. False: out of memory. */
bool squad_scores(const squad_set *set, const squad_answer *answers, squad_score *score);

#endif
