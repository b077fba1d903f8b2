/* shoal wer, by file: the command line, arrangements of utterances, and each kind on
   each window (wer.c), folders of recordings and transcripts (wer_folder.c), rates and
   confidence intervals (wer_rates.c), and output (wer_report.c). */
#ifndef SHOAL_LAB_WER_H
#define SHOAL_LAB_WER_H

#include "lab.h"
#include "shoal_speech.h"

enum {
    WER_PER_WINDOW = 16, /* maximum number of utterances per 30 s window */
    WER_ARRANGEMENTS = 1000,
    WER_WINDOW_SECONDS = 30,
    WER_PRECISIONS = 4,
    WER_TIMED = 20 /* number of windows on which encoders are timed */
};

typedef struct {
    char *path;     /* of the recording */
    char *name;     /* its name in the list */
    char *text;     /* reference transcript */
    double seconds; /* up to 30 */
} wer_utterance;

/* Every utterance once, distributed over windows. */
typedef struct {
    int64_t per_window; /* maximum number of utterances per window */
    double gap;         /* seconds of silence between them */
    bool shuffled;      /* in an order drawn by the seed, rather than the folder's */
    uint64_t seed;
    int windows;
} wer_arrangement;

/* Utterances processed together: in one window, or as one recording. */
typedef struct {
    int arrangement, count;
    int *members;                          /* [count]: indices of the utterances */
    double seconds;                        /* of audio, including gaps */
    char *texts[KINDS_MOST];               /* transcript of each kind */
    shoal_word_errors *errors[KINDS_MOST]; /* [count]: per utterance */
} wer_window;

/* Processing of a kind: one window of 30 s at temperature 0, or like shoal transcribe
   with these options. */
typedef enum { WER_WINDOW, WER_VAD, WER_NO_VAD, WER_PUBLISHED } wer_mode;
extern const char *const wer_modes[]; /* spelling after "@" */

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
    double gap, join; /* join: minutes per recording; 0 for windows */
    uint64_t seed;
    int precisions[WER_PRECISIONS], precision_count;
    bool shuffle, json, texts, force, timestamps, vad, no_time;

    /* State. */
    shoal_context *context;
    shoal_speech *models[WER_PRECISIONS]; /* of those that are asked for */
    shoal_speech *speech;                 /* the first of them */
    wer_utterance *utterances;            /* [utterance_count] */
    int utterance_count;
    wer_arrangement *arrangements; /* [arrangement_count] */
    wer_window *windows;           /* [window_count], sorted by arrangement */
    int *members;                  /* storage of the windows' members */
    shoal_word_errors *errors;     /* storage of the windows' errors */
    int window_count, done;
    kind_list list; /* value of --attention */
    wer_kind kinds[KINDS_MOST];
    int kind_count, reference; /* reference: the first that is full */
    double seconds;            /* time of transcription */
    bool interrupted;
} wer_job;

void wer_read_folder(wer_job *job);
int wer_print_json(const wer_job *job);
void wer_write_plot(const wer_job *job);
void wer_print(const wer_job *job);

/* ---- Rates (wer_rates.c) ----------------------------------------------------------- */

/* Over the windows done, of one arrangement or of all (-1). */
shoal_word_errors wer_count(const wer_job *job, int kind, int arrangement);
double wer_percent(const shoal_word_errors *errors);

/* Rate of a kind in percent, and difference from full's rate in points. */
typedef struct {
    double rate, rate_low, rate_high;
    double difference, difference_low, difference_high;
} wer_interval;

/* 95 % confidence intervals by the bootstrap over utterances: as many as there are are
   drawn with replacement, each with its errors in all windows that contain it; the
   interval covers the middle 95 % of the rates. The difference is paired: both rates
   use the same draw. NAN if there are no words or not enough memory. */
wer_interval wer_intervals(const wer_job *job, int kind);

#endif
