/* The experiments of the method's paper with speech, and its figures. */
#include <string.h>

#include "repro_speech.h"

/* WSJ, 9 layers; hours are until it converged. */
static const paper_row wsj[] = {{"full", 5.03, 2514, 87.99},
                                {"lsh-1", 9.43, 1004, 189.64},
                                {"lsh-4", 8.59, 2320, 210.09},
                                {"clustered-100", 7.50, 803, 102.15},
                                {"i-clustered-100", 5.61, 1325, 72.14},
                                {0}};

/* On the validation set; 0: not there. */
static const char *const wsj_trained[PAPER_TRAINED] =
    {"full", "shared-full", "lsh-1", "lsh-4", "clustered-100", "i-clustered-100"};
static const paper_tested wsj_tested[] =
    {{"full", {5.14, 0, 0, 0, 7.10, 5.56}},
     {"shared-full", {0, 6.57, 25.16, 41.61, 0, 0}},
     {"lsh-1", {0, 71.40, 10.43, 13.76, 0, 0}},
     {"lsh-4", {0, 64.29, 9.35, 9.33, 0, 0}},
     {"clustered-100", {44.88, 40.86, 68.06, 66.43, 7.06, 18.83}},
     {"clustered-200", {21.76, 25.86, 57.75, 57.24, 6.34, 8.95}},
     {"i-clustered-100", {9.29, 13.22, 41.65, 48.20, 8.80, 5.95}},
     {"i-clustered-200", {6.38, 8.43, 30.09, 42.43, 7.71, 5.60}},
     {"oracle-top-32", {17.16, 77.18, 43.35, 59.38, 24.32, 6.96}},
     {0}};

/* Switchboard, 12 layers; 3.84, 1.91 and 2.57 hours per epoch. */
static const paper_row switchboard[] = {{"full", 15.0, 13824, 228.05},
                                        {"clustered-100", 18.5, 6876, 132.13},
                                        {"i-clustered-100", 15.5, 9252, 127.44},
                                        {0}};

static const speech_experiment experiments[] = {{.name = "speech",
                                                 .loss = SHOAL_SPEECH_CTC,
                                                 .measure = OF_UNITS,
                                                 .loss_label = "CTC loss per label, nats",
                                                 .paper = wsj,
                                                 .trained = wsj_trained,
                                                 .tested = wsj_tested},
                                                {.name = "lf-mmi",
                                                 .loss = SHOAL_SPEECH_LFMMI,
                                                 .measure = OF_WORDS,
                                                 .loss_label =
                                                     "LF-MMI loss per output, nats",
                                                 .paper = switchboard}};

const speech_experiment *speech_experiment_find(const char *name) {
    for (size_t i = 0; i < sizeof experiments / sizeof *experiments; i++)
        if (strcmp(experiments[i].name, name) == 0)
            return &experiments[i];
    return NULL;
}

const paper_row *paper_find(const speech_experiment *experiment, const char *kind) {
    for (const paper_row *row = experiment->paper; row->kind; row++)
        if (strcmp(row->kind, kind) == 0)
            return row;
    return NULL;
}

double paper_error(const speech_experiment *experiment, const char *evaluated,
                   const char *trained) {
    for (const paper_tested *row = experiment->tested; row && row->kind; row++)
        for (int i = 0; i < PAPER_TRAINED; i++)
            if (strcmp(row->kind, evaluated) == 0 &&
                strcmp(experiment->trained[i], trained) == 0)
                return row->errors[i];
    return 0;
}
