/* shoal wer, in files: the command line (wer.c), folders of recordings with transcripts
   (wer_folder.c), what is measured in which order (wer_run.c), and the table, the JSON
   and the picture (wer_report.c). */
#ifndef SHOAL_CLI_WER_H
#define SHOAL_CLI_WER_H

#include <stdbool.h>

#include "shoal.h"
#include "shoal_speech.h"

enum { WER_KINDS = 24, WER_NAME = 128, WER_MOST_PER_WINDOW = 16 };

typedef struct {
    char *path;     /* of the recording */
    char *text;     /* what is said in it */
    double seconds; /* up to 30 */
} wer_utterance;

/* Utterances that are heard together. */
typedef struct {
    int first, count;
    char *reference;        /* their texts */
    char *texts[WER_KINDS]; /* what each kind heard */
    double seconds;         /* of audio, with the gaps */
} wer_window;

typedef struct {
    char spelling[WER_NAME];
    shoal_word_errors errors;
    double *encoder_seconds; /* [windows done] */
    double *output_errors;   /* [windows done], |encoded - full's| / |full's| */
} wer_kind;

typedef struct {
    /* What was asked for. */
    const char *folder, *model, *language, *isa, *plot_path;
    int64_t per_window, beams, threads, limit;
    double gap;
    bool json, texts;

    /* What is worked on. */
    shoal_context *context;
    shoal_speech *speech;
    wer_utterance *utterances; /* [utterance_count] */
    int utterance_count;
    wer_window *windows; /* [window_count] */
    int window_count, done;
    wer_kind kinds[WER_KINDS];
    int kind_count, reference; /* reference: which of them is full */
    bool interrupted;
} wer_job;

/* Each returns an exit code, after a complaint where it is not EXIT_OK. */
int wer_read_folder(wer_job *job);
/* Packs utterances into windows, in their order. */
int wer_pack(wer_job *job);
void wer_release(wer_job *job);

int wer_measure(wer_job *job);

double wer_percent(const shoal_word_errors *errors);
double wer_best_seconds(const wer_job *job, int kind);
double wer_median_seconds(const wer_job *job, int kind);
double wer_mean_output_error(const wer_job *job, int kind);

void wer_print(const wer_job *job);
int wer_print_json(const wer_job *job);
int wer_write_plot(const wer_job *job);

#endif
