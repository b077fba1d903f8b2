/* Scores of predictions, as GLUE and SQuAD define them. */
#ifndef SHOAL_CLI_TEXT_METRICS_H
#define SHOAL_CLI_TEXT_METRICS_H

#include <stdbool.h>
#include <stdint.h>

/* predicted and wanted: [count], classes as whole numbers. */
double metric_accuracy(int64_t count, const float *predicted, const float *wanted);
/* Of class 1; 0 where nothing was or should have been in it. */
double metric_f1(int64_t count, const float *predicted, const float *wanted);
/* Matthews' correlation of classes 0 and 1; 0 where one of them is all there is. */
double metric_matthews(int64_t count, const float *predicted, const float *wanted);
/* Correlations of numbers, and of their ranks (equal ones share the mean of theirs); 0
   where all are equal. NAN: out of memory. */
double metric_pearson(int64_t count, const float *predicted, const float *wanted);
double metric_spearman(int64_t count, const float *predicted, const float *wanted);

/* SQuAD's answers: lower case, without ASCII punctuation, without the words a, an and
   the, with single spaces. In malloc's memory; NULL: none left. Bytes that are no UTF-8
   stay as they are. */
char *squad_normalise(const char *text);
/* Of normalised texts: words in common, each as often as it is in both. */
double squad_f1(const char *predicted, const char *wanted);

#endif
