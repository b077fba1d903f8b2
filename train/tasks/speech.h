/* Data and losses of the task speech, for training and evaluation: utterances of a data
   folder as batches (joined, at varied speeds, normalised, masked, stacked into rows of
   a model), lexicon and graphs of LF-MMI, and losses and errors of a batch. */
#ifndef SHOAL_TRAIN_TASKS_SPEECH_H
#define SHOAL_TRAIN_TASKS_SPEECH_H

#include "shoal_speech.h"
#include "train/tasks/task.h"

/* ---- Sets of a data folder (speech_data.c) ---------------------------------------- */

enum { MOST_SPEEDS = 8 };

/* One sequence: consecutive utterances of one speaker. */
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
    int plain;                          /* index of speed 1 */
    shoal_corpus_info info;             /* at speed 1 */
    /* The plan of an epoch is a function of the seed and the epoch. */
    int64_t epoch; /* -1 if there is none yet */
    double join;   /* seconds, in this epoch */
    int32_t *members;
    speech_item *items; /* [item_count] */
    int64_t item_count;
    int64_t *batches; /* [batch_count + 1] first item of each batch */
    int32_t *order;   /* [batch_count] */
    uint64_t *keys;   /* for sorting */
    int64_t batch_count;
    int32_t *words; /* [units + 1]: word of each label; NULL to keep labels */
} speech_set;

/* Parses "0.9,1,1.1"; *plain is the index of 1. Returns the number of speeds, or 0 if
   the text is invalid or has no 1. */
int sh_speech_speeds(const char *text, double speed[MOST_SPEEDS], int *plain);

/* Folder for features: the chosen one, or by default shoal in the user's cache folder;
   created if it is missing. */
shoal_status sh_speech_cache(shoal_context *context, const char *chosen,
                             char path[SH_PATH]);

/* Opens a set. Bad utterances are reported as warnings. units NULL: those of the
   folder. all_speeds: those of the configuration; otherwise only 1. The configuration
   must outlive the set, which must be closed even after an error. */
shoal_status sh_speech_open(const shoal_task_opening *opening, const char *folder,
                            const shoal_speech_train_config *config, bool all_speeds,
                            const char *const *units, int64_t unit_count,
                            speech_set *set);
/* Opens another set at speed 1 with the units of the first. */
shoal_status sh_speech_open_alike(const shoal_task_opening *opening, const char *folder,
                                  const shoal_speech_train_config *config,
                                  const speech_set *first, speech_set *set);
/* Checks that dev has no units that train lacks, before hours of audio are read. */
shoal_status sh_speech_check_units(const shoal_task_opening *opening, const char *train,
                                   const char *dev,
                                   const shoal_speech_train_config *config);
void sh_speech_close(speech_set *set);

/* Plans the batches of an epoch: shuffled for training, otherwise in the folder's
   order. */
bool sh_speech_plan(speech_set *set, int64_t epoch, bool shuffled);

/* Length of the longest sequence, and rows of the largest batch, in any epoch. */
int64_t sh_speech_longest(const speech_set *set);
int64_t sh_speech_most_rows(const speech_set *set);

typedef struct {
    pool memory;
    int64_t count;          /* sequences */
    int64_t *offsets;       /* [count + 1] of rows */
    int64_t *label_offsets; /* [count + 1] */
    int32_t *labels;
    float *features;          /* [rows][features] */
    int64_t *first, *members; /* [count]: range of utterances in speech_set.members */
    int64_t *phase;           /* [count]: first position that has an output */
    /* First row and first label of each utterance: */
    int64_t parts;
    int64_t *part_offsets; /* [count + 1], of the sequences' parts */
    int64_t *part_rows;    /* [parts + 1] */
    int64_t *part_labels;  /* [parts + 1] */
    int64_t longest, most_labels;
    int64_t first_row, first_sequence; /* rows and sequences of the batch in preceding
                                          ranks */
    float *frames;                     /* [T][bands], buffer for one sequence */
    int64_t sequence_room, part_room, label_room, feature_room, frame_room;
} speech_batch;

/* Fills this process's share of batch `number` of the planned epoch: a contiguous range
   of its sequences, with about the same number of rows in each process. training: draws
   speeds and applies masks. */
shoal_status sh_speech_fill(const speech_set *set, shoal_context *context, int64_t number,
                            bool training, shoal_share share, speech_batch *batch);
void sh_speech_batch_free(speech_batch *batch);
shoal_model_inputs sh_speech_inputs(const speech_batch *batch);
/* Compacts out [rows][classes] to the rows that have an output (config->every) and
   updates the batch's offsets. */
void sh_speech_thin(const speech_set *set, speech_batch *batch, int64_t classes,
                    float *out);

/* ---- LF-MMI (speech_lfmmi.c) ------------------------------------------------------- */

/* files are separated by commas; phones [phone_count] of a model, or NULL for those of
   the files. */
shoal_status sh_lexicon_open(shoal_context *context, const char *files,
                             const char *const *phones, int64_t phone_count,
                             shoal_lexicon **lexicon);

/* Warns about all words of a folder's transcripts that have no pronunciation, and returns
   an error unless bad utterances are skipped. Reads no recording. */
shoal_status sh_lfmmi_check_words(const shoal_task_opening *opening, const char *folder,
                                  const shoal_speech_train_config *config,
                                  const shoal_lexicon *lexicon);
/* As sh_speech_open, with labels that become words of the lexicon, after
   sh_lfmmi_check_words. Utterances with other words are left out, with a warning. */
shoal_status sh_lfmmi_open_set(const shoal_task_opening *opening, const char *folder,
                               const shoal_speech_train_config *config, bool all_speeds,
                               const shoal_lexicon *lexicon, speech_set *set);

/* Creates the graphs from the transcripts of the set. */
shoal_status sh_lfmmi_create(shoal_context *context,
                             const shoal_speech_train_config *config,
                             const shoal_lexicon *lexicon, const speech_set *set,
                             shoal_lfmmi **loss);
/* A digest of the pronunciations of the set's words. */
uint64_t sh_lfmmi_fingerprint(const speech_set *set, const shoal_lexicon *lexicon);

/* ---- Scores (speech.c) ------------------------------------------------------------- */

/* Rows of a batch that have an output, compacted for LF-MMI. */
typedef struct {
    int64_t *offsets;   /* [utterances + 1] first step */
    int64_t *sequences; /* [sequences + 1] first step */
    int64_t *counts;    /* [sequences]: number of decoded phones */
    int64_t *rows;      /* [steps] */
    float *outputs;     /* [steps][classes] */
    int32_t *phones, *begins, *wanted;
    int64_t part_room, row_room, wanted_room;
} speech_steps;

/* Buffers that grow to the largest batch so far. */
typedef struct {
    pool memory;
    /* For LF-MMI: */
    shoal_lfmmi *lfmmi;           /* NULL for CTC */
    const shoal_lexicon *lexicon; /* labels are its words; NULL if labels are 1 + phone */
    int64_t every;
    speech_steps steps;
    /* For CTC: */
    shoal_ctc *ctc;
    int64_t classes, batch, rows, labels; /* capacity of ctc */
    int32_t *spelled;                     /* [rows] */
    int64_t spelled_room;
    int64_t beams; /* 0 for greedy decoding */
} speech_scorer;

void sh_speech_scorer_free(speech_scorer *scorer);

/* Sums over batches. */
typedef struct {
    double loss;
    int64_t labels; /* number of labels; for LF-MMI, of steps */
    double divisor; /* divisor of the gradient, for one batch */
    int64_t impossible, broken;
    shoal_edits edits;
} speech_result;

void sh_add_edits(const shoal_edits *edits, shoal_edits *sum);

/* gradient: of the loss per label (or step) of the batch; may alias logits; NULL if not
   needed. each: [sequences], edits per sequence; may be NULL. */
shoal_status sh_speech_score(speech_scorer *scorer, const speech_batch *batch,
                             int64_t classes, const float *logits, float *gradient,
                             speech_result *result, shoal_edits *each);
/* The LF-MMI case (speech_lfmmi.c). */
shoal_status sh_lfmmi_score(speech_scorer *scorer, const speech_batch *batch,
                            int64_t classes, const float *out, float *gradient,
                            speech_result *result, shoal_edits *each);

#endif
