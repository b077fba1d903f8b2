/* shoal repro speech, by CTC, and lf-mmi, by that loss and with words: a grid of
   recognisers. A cell is a kind of attention, at a depth of
   its own where "@LAYERS" follows; "CELL+KIND" goes on with the weights of another cell,
   with a fresh optimizer at a lower rate.

       DIR/cells/CELL/     checkpoint, best model, log and result.json of a cell, and
                           epochs.safetensors, the best model after all epochs
       DIR/results.json    all of them
       DIR/tables.md       the tables
       DIR/errors.svg, losses.svg, matrix.svg, and the same as .png

   A cell is trained without a fall of the rate, with averaged weights, so that every
   moment of one training is a result: the best model on dev is evaluated on test after
   the same epochs for all cells ("epochs" in result.json), and after the same minutes
   ("minutes"). */
#ifndef SHOAL_LAB_REPRO_SPEECH_H
#define SHOAL_LAB_REPRO_SPEECH_H

#include "log_curves.h"
#include "repro.h"

#define SPEECH_SHOWN_KINDS                                                               \
    "the paper's, shoal;\n"                                                              \
    "of speech also shared-full; full and i-clustered-100 of fewer\n"                    \
    "layers; two of 100 clusters go on with 200"
#define SPEECH_KINDS                                                                     \
    "full,shared-full,clustered-100,i-clustered-100,shoal-100,lsh-1,lsh-4,full@2,"       \
    "i-clustered-100@2,clustered-100+clustered-200,i-clustered-100+i-clustered-200"
#define SPEECH_TESTED                                                                    \
    "full,shared-full,lsh-1,lsh-4,clustered-100,clustered-200,i-clustered-100,"          \
    "i-clustered-200,oracle-top-32,shoal-100"

#define LFMMI_KINDS                                                                      \
    "full,clustered-100,i-clustered-100,shoal-100,full@2,i-clustered-100@2,"             \
    "clustered-100+clustered-200,i-clustered-100+i-clustered-200"
#define LFMMI_TESTED                                                                     \
    "full,clustered-100,clustered-200,i-clustered-100,i-clustered-200,oracle-top-32,"    \
    "shoal-100"

/* ---- What the paper has (repro_speech_paper.c) ------------------------------------- */

/* Errors of units, the labels or phones; or of words. */
typedef enum { OF_UNITS, OF_WORDS } speech_measure;

typedef struct {
    const char *kind;             /* NULL: the end */
    double error, seconds, hours; /* %, per epoch, until it converged */
} paper_row;

enum { PAPER_TRAINED = 6 };

typedef struct {
    const char *kind;             /* evaluated with; NULL: the end */
    double errors[PAPER_TRAINED]; /* 0: none */
} paper_tested;

typedef struct {
    const char *name; /* on the command line and in results.json */
    shoal_speech_loss loss;
    speech_measure measure; /* what the paper counts */
    const char *loss_label;
    const paper_row *paper;
    const char *const *trained; /* [PAPER_TRAINED] columns of its matrix; NULL: none */
    const paper_tested *tested; /* rows */
} speech_experiment;

const speech_experiment *speech_experiment_find(const char *name); /* or NULL */
const paper_row *paper_find(const speech_experiment *experiment, const char *kind);
/* 0: there is none. */
double paper_error(const speech_experiment *experiment, const char *evaluated,
                   const char *trained);

/* ---- The grid ---------------------------------------------------------------------- */

typedef struct {
    char name[REPRO_NAME]; /* as it is spelled, the kind in its shortest spelling */
    char kind[REPRO_NAME], from[REPRO_NAME]; /* from: another cell's name, or "" */
    int64_t layers;                          /* 0: as the configuration has it */
    json_t *result;                          /* NULL: nothing yet */
    log_curves log;
} speech_cell;

typedef struct {
    const speech_experiment *experiment;
    char folder[TRAIN_PATH];
    speech_cell *cells; /* [REPRO_KINDS] */
    int count;
    char tested[REPRO_TESTED][REPRO_NAME]; /* kinds to evaluate with */
    int tested_count;
} speech_grid;

/* A grid from DIR/results.json and the logs; to be freed whatever comes of it. */
int speech_grid_read(const char *command, const char *folder, speech_grid *grid);
void speech_grid_free(speech_grid *grid);

/* A number of a cell's result after "epochs" or "minutes"; NAN where there is none. */
double speech_number(const speech_cell *cell, const char *when, const char *field);
/* The same of its evaluation with a kind; kind NULL: its own. */
double speech_tested(const speech_cell *cell, const char *when, const char *kind,
                     speech_measure measure, const char *field);
/* Whether a cell was evaluated by words. */
bool speech_has_words(const speech_grid *grid);
/* Hours of training at that time, those of the cell it began with included. */
double speech_hours(const speech_grid *grid, const speech_cell *cell, const char *when);

/* Tables to stdout, as Markdown if wanted, and tables.md (repro_speech_report.c). */
int speech_report(const speech_grid *grid, bool markdown);
/* errors, losses and matrix, .svg and .png (repro_speech_plot.c). */
int speech_draw(const char *command, const speech_grid *grid);

#endif
