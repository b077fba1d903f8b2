/* shoal wer, in files: the command line, which utterances are heard together, and each
   kind on each window (wer.c), folders of recordings with their texts (wer_folder.c),
   rates with their intervals (wer_rates.c), and all that is printed and drawn
   (wer_report.c). */
#ifndef SHOAL_LAB_WER_H
#define SHOAL_LAB_WER_H

#include "lab.h"
#include "shoal_speech.h"

enum {
    WER_PER_WINDOW = 16, /* most utterances in a window of 30 s */
    WER_ARRANGEMENTS = 1000,
    WER_WINDOW_SECONDS = 30,
    WER_PRECISIONS = 4,
    WER_TIMED = 20 /* windows on which encoders are timed */
};

typedef struct {
    char *path;     /* of the recording */
    char *name;     /* its name in the list */
    char *text;     /* what is said in it */
    double seconds; /* up to 30 */
} wer_utterance;

/* Every utterance once, in windows. */
typedef struct {
    int64_t per_window; /* most of them in one */
    double gap;         /* seconds of silence between them */
    bool shuffled;      /* in an order drawn by the seed, rather than the folder's */
    uint64_t seed;
    int windows;
} wer_arrangement;

/* Utterances that are heard together: in one window, or as one recording. */
typedef struct {
    int arrangement, count;
    int *members;                          /* [count]: which utterances */
    double seconds;                        /* of audio, with the gaps */
    char *texts[KINDS_MOST];               /* what each kind heard */
    shoal_word_errors *errors[KINDS_MOST]; /* [count]: of each utterance */
} wer_window;

/* How a kind listens: one window of 30 s at temperature 0, or as shoal transcribe does,
   with its options. */
typedef enum { WER_WINDOW, WER_VAD, WER_NO_VAD, WER_PUBLISHED } wer_mode;
extern const char *const wer_modes[]; /* as kinds spell them behind "@" */

typedef struct {
    char spelling[KIND_NAME];  /* KIND, or KIND@MODE, and the precision after a slash */
    char attention[KIND_NAME]; /* KIND */
    int mode;                  /* a wer_mode */
    int precision;             /* a shoal_precision */
    double encoder_seconds[WER_TIMED];
    double *output_errors; /* [windows done], |encoded - full's| / |full's| */
} wer_kind;

typedef struct {
    /* Options. */
    const char *folder, *model, *language, *isa, *plot_path;
    int64_t per_window, beams, batch, threads, limit, arrangement_count;
    double gap, join; /* join: minutes of one recording; 0: windows */
    uint64_t seed;
    int precisions[WER_PRECISIONS], precision_count;
    bool shuffle, json, texts, force, timestamps, vad, no_time;

    /* What is worked on. */
    shoal_context *context;
    shoal_speech *models[WER_PRECISIONS]; /* of those that are asked for */
    shoal_speech *speech;                 /* the first of them */
    wer_utterance *utterances;            /* [utterance_count] */
    int utterance_count;
    wer_arrangement *arrangements; /* [arrangement_count] */
    wer_window *windows;           /* [window_count], arrangement after arrangement */
    int *members;                  /* memory of the windows' */
    shoal_word_errors *errors;     /* likewise */
    int window_count, done;
    kind_list list; /* as --attention has them */
    wer_kind kinds[KINDS_MOST];
    int kind_count, reference; /* reference: the first that is full */
    double seconds;            /* that hearing took */
    bool interrupted;
} wer_job;

void wer_read_folder(wer_job *job);
int wer_print_json(const wer_job *job);
void wer_write_plot(const wer_job *job);
void wer_print(const wer_job *job);

/* ---- Rates (wer_rates.c) ----------------------------------------------------------- */

/* Of the windows done, of one arrangement or (-1) of all. */
shoal_word_errors wer_count(const wer_job *job, int kind, int arrangement);
double wer_percent(const shoal_word_errors *errors);

/* Of a kind's rate and of its difference from full's, percent and points. */
typedef struct {
    double rate, rate_low, rate_high;
    double difference, difference_low, difference_high;
} wer_interval;

/* 95 % intervals by the bootstrap over utterances: as many as there are are
   drawn with replacement, each with its errors in all windows where it was
   heard; the interval is what the middle 95 % of the rates reach over. The difference is
   paired: both kinds' rates are of the same draw. NAN where there are no words or no
   memory. */
wer_interval wer_intervals(const wer_job *job, int kind);

#endif
