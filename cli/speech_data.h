/* Utterances of a data folder as batches: joined, drawn at a speed, normalised, masked,
   and stacked into a model's rows. For training and for evaluating. */
#ifndef SHOAL_CLI_SPEECH_DATA_H
#define SHOAL_CLI_SPEECH_DATA_H

#include <shoal_speech.h>

#include "train.h"

/* One sequence: utterances of one speaker, one after another. */
typedef struct {
    int64_t first, count; /* in speech_set.members */
    int64_t frames;       /* at speed 1 */
} speech_item;

typedef struct {
    const train_config *config;
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

/* Why something was refused is said on stderr, bad utterances one by one. units NULL:
   those of the folder. all_speeds: those of the configuration; otherwise 1. */
int speech_open(const char *command, shoal_context *context, const char *folder,
                const train_config *config, bool all_speeds, const char *const *units,
                int64_t unit_count, speech_set *set);
/* Another part, at speed 1 and with the units of the first. */
int speech_open_alike(const char *command, shoal_context *context, const char *folder,
                      const train_config *config, const speech_set *first,
                      speech_set *set);
/* Looks at another part of the configuration's folder than train and dev: recordings and
   transcripts, whose units by CTC must be those of train. */
int speech_check(const char *command, shoal_context *context, const train_config *config,
                 const char *part);
void speech_close(speech_set *set);

/* Plans the epoch's batches; shuffled for training, else in the folder's order. */
bool speech_plan(speech_set *set, int64_t epoch, bool shuffled);

/* Positions of so many frames. */
int64_t speech_positions(const train_config *config, int64_t frames);
int64_t speech_features(const train_config *config); /* of a position */
/* frames [count][bands] to out [positions][features]: position i sees frames i hop - left
   .. i hop - left + context - 1, left = (context - hop) / 2; beyond the ends there is
   0. */
void speech_stack(const train_config *config, const float *frames, int64_t count,
                  float *out);
/* The longest sequence, and the most rows of a batch, of any epoch. */
int64_t speech_longest(const speech_set *set);
int64_t speech_most_rows(const speech_set *set);

typedef struct {
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
    int64_t first_row, first_sequence; /* how many other ranks have before these */
    float *frames;                     /* [T][bands] of one sequence, while it is made */
    size_t sequence_room, part_room, label_room, feature_room, frame_room;
} speech_batch;

/* Batch `number` of the planned epoch; training: speeds are drawn, and there are masks.
   false: out of memory. */
bool speech_fill(const speech_set *set, int64_t number, bool training,
                 speech_batch *batch);
/* The sequences of one of several ranks: a run of them, with about as many rows as those
   of each other rank. */
bool speech_fill_share(const speech_set *set, int64_t number, bool training,
                       const shoal_transport *ranks, speech_batch *batch);
void speech_batch_free(speech_batch *batch);
/* Keeps the rows of out [rows][classes] that have an output (every so many, as the
   configuration says), one after another; the batch's offsets are those from now on. */
void speech_thin(const speech_set *set, speech_batch *batch, int64_t classes, float *out);

/* FOLDER/NAME */
bool speech_path(char path[TRAIN_PATH], const char *folder, const char *name);
/* Where features are kept unless the user says otherwise; made if it is missing. NULL
   after a complaint. */
const char *speech_cache(const char *command, const char *chosen);

#endif
