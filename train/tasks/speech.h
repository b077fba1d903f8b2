/* Data and losses of the task speech, for training and for evaluating: utterances of a
   data folder as batches (joined, drawn at a speed, normalised, masked, stacked into a
   model's rows), lexicon and graphs of LF-MMI, and what logits of a batch are worth. */
#ifndef SHOAL_TRAIN_TASKS_SPEECH_H
#define SHOAL_TRAIN_TASKS_SPEECH_H

#include "shoal_speech.h"
#include "train/tasks/task.h"

/* ---- Parts of a data folder (speech_data.c) ---------------------------------------- */

enum { MOST_SPEEDS = 8 };

/* One sequence: utterances of one speaker, one after another. */
typedef struct {
    int64_t first, count; /* in speech_set.members */
    int64_t frames;       /* at speed 1 */
} speech_item;

typedef struct {
    const shoal_speech_train_config *config;
    pool memory;
    shoal_features_config features; /* of the configuration */
    int speeds;
    double speed[MOST_SPEEDS];
    shoal_corpus *corpora[MOST_SPEEDS]; /* the same utterances at each speed */
    int plain;                          /* which of them has speed 1 */
    shoal_corpus_info info;             /* of that one */
    /* The plan of one epoch: a function of the seed and the epoch. */
    int64_t epoch; /* -1: none yet */
    double join;   /* seconds, in this epoch */
    int32_t *members;
    speech_item *items; /* [item_count] */
    int64_t item_count;
    int64_t *batches; /* [batch_count + 1] where each begins among the items */
    int32_t *order;   /* [batch_count] */
    uint64_t *keys;   /* for sorting */
    int64_t batch_count;
    int32_t *words; /* [units + 1]: what labels become; NULL: they stay */
} speech_set;

/* "0.9,1,1.1"; *plain: which of them is 1. Returns how many there are, 0: it is none of
   that form, or none is 1. */
int sh_speech_speeds(const char *text, double speed[MOST_SPEEDS], int *plain);

/* Where features are kept: the one that was chosen, or by default shoal in the user's
   folder of caches; made if it is missing. */
shoal_status sh_speech_cache(shoal_context *context, const char *chosen,
                             char path[SH_PATH]);

/* Bad utterances are warnings, one by one. units NULL: those of the folder. all_speeds:
   those of the configuration; otherwise 1. The configuration outlives the set, which is
   to be closed in any case. */
shoal_status sh_speech_open(const shoal_task_opening *opening, const char *folder,
                            const shoal_speech_train_config *config, bool all_speeds,
                            const char *const *units, int64_t unit_count,
                            speech_set *set);
/* Another part, at speed 1 and with the units of the first. */
shoal_status sh_speech_open_alike(const shoal_task_opening *opening, const char *folder,
                                  const shoal_speech_train_config *config,
                                  const speech_set *first, speech_set *set);
/* Whether the transcripts of dev have units that those of train have, before hours of
   sound are read. */
shoal_status sh_speech_check_units(const shoal_task_opening *opening, const char *train,
                                   const char *dev,
                                   const shoal_speech_train_config *config);
void sh_speech_close(speech_set *set);

/* Plans the epoch's batches; shuffled for training, else in the folder's order. */
bool sh_speech_plan(speech_set *set, int64_t epoch, bool shuffled);

/* The longest sequence, and the most rows of a batch, of any epoch. */
int64_t sh_speech_longest(const speech_set *set);
int64_t sh_speech_most_rows(const speech_set *set);

typedef struct {
    pool memory;
    int64_t count;          /* sequences */
    int64_t *offsets;       /* [count + 1] of rows */
    int64_t *label_offsets; /* [count + 1] */
    int32_t *labels;
    float *features;          /* [rows][features] */
    int64_t *first, *members; /* [count]: their utterances, in speech_set.members */
    int64_t *phase;           /* [count]: the first position that has an output */
    /* Each utterance of a sequence, where it begins among rows and labels: */
    int64_t parts;
    int64_t *part_offsets; /* [count + 1], of the sequences' parts */
    int64_t *part_rows;    /* [parts + 1] */
    int64_t *part_labels;  /* [parts + 1] */
    int64_t longest, most_labels;
    int64_t first_row, first_sequence; /* how many other processes have before these */
    float *frames;                     /* [T][bands] of one sequence, while it is made */
    int64_t sequence_room, part_room, label_room, feature_room, frame_room;
} speech_batch;

/* This process's share of batch `number` of the planned epoch: a run of its sequences,
   with about as many rows as those of each other process. training: speeds are drawn, and
   there are masks. */
shoal_status sh_speech_fill(const speech_set *set, shoal_context *context, int64_t number,
                            bool training, shoal_share share, speech_batch *batch);
void sh_speech_batch_free(speech_batch *batch);
shoal_model_inputs sh_speech_inputs(const speech_batch *batch);
/* Keeps the rows of out [rows][classes] that have an output (every so many, as the
   configuration says), one after another; the batch's offsets are those from now on. */
void sh_speech_thin(const speech_set *set, speech_batch *batch, int64_t classes,
                    float *out);

/* ---- LF-MMI (speech_lfmmi.c) ------------------------------------------------------- */

/* Files with commas between; phones [phone_count] of a model, or NULL: those of the
   files. */
shoal_status sh_lexicon_open(shoal_context *context, const char *files,
                             const char *const *phones, int64_t phone_count,
                             shoal_lexicon **lexicon);

/* Words of a folder's transcripts without a pronunciation are warnings, all of them, and
   refused unless bad utterances are to be skipped. No recording is read. */
shoal_status sh_lfmmi_check_words(const shoal_task_opening *opening, const char *folder,
                                  const shoal_speech_train_config *config,
                                  const shoal_lexicon *lexicon);
/* As sh_speech_open, with labels that become words of the lexicon, after
   sh_lfmmi_check_words. Utterances with other words are left out, with a warning. */
shoal_status sh_lfmmi_open_set(const shoal_task_opening *opening, const char *folder,
                               const shoal_speech_train_config *config, bool all_speeds,
                               const shoal_lexicon *lexicon, speech_set *set);

/* The graphs, from the transcripts of the set. */
shoal_status sh_lfmmi_create(shoal_context *context,
                             const shoal_speech_train_config *config,
                             const shoal_lexicon *lexicon, const speech_set *set,
                             shoal_lfmmi **loss);
/* A number that other pronunciations of the set's words would not give. */
uint64_t sh_lfmmi_fingerprint(const speech_set *set, const shoal_lexicon *lexicon);

/* ---- Scores (speech.c) ------------------------------------------------------------- */

/* What LF-MMI needs of a batch: the rows that have an output, one after another. */
typedef struct {
    int64_t *offsets;   /* [utterances + 1] of steps */
    int64_t *sequences; /* [sequences + 1] of steps */
    int64_t *counts;    /* [sequences]: phones that were heard */
    int64_t *rows;      /* [steps] */
    float *outputs;     /* [steps][classes] */
    int32_t *phones, *begins, *wanted;
    int64_t part_room, row_room, wanted_room;
} speech_steps;

/* Memory that grows to the largest batch so far. */
typedef struct {
    pool memory;
    /* Of LF-MMI: */
    shoal_lfmmi *lfmmi;           /* NULL: CTC */
    const shoal_lexicon *lexicon; /* labels are its words; NULL: labels are 1 + phone */
    int64_t every;
    speech_steps steps;
    /* Of CTC: */
    shoal_ctc *ctc;
    int64_t classes, batch, rows, labels; /* that it was made for */
    int32_t *spelled;                     /* [rows] */
    int64_t spelled_room;
    int64_t beams; /* 0: the likeliest class of each position; else a search */
} speech_scorer;

void sh_speech_scorer_free(speech_scorer *scorer);

/* Sums over batches. */
typedef struct {
    double loss;
    int64_t labels; /* that it is of; of LF-MMI, steps */
    double divisor; /* what it was divided by for the gradient, of one batch */
    int64_t impossible, broken;
    shoal_edits edits;
} speech_result;

void sh_add_edits(const shoal_edits *edits, shoal_edits *sum);

/* gradient: of the loss per label (or step) of the batch; it may be the logits, or NULL:
   no gradient. each: [sequences], their edits alone; may be NULL. */
shoal_status sh_speech_score(speech_scorer *scorer, const speech_batch *batch,
                             int64_t classes, const float *logits, float *gradient,
                             speech_result *result, shoal_edits *each);
/* The part of it that LF-MMI has (speech_lfmmi.c). */
shoal_status sh_lfmmi_score(speech_scorer *scorer, const speech_batch *batch,
                            int64_t classes, const float *out, float *gradient,
                            speech_result *result, shoal_edits *each);

#endif
