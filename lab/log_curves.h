/* Training logs as curves. */
#ifndef SHOAL_LAB_LOG_CURVES_H
#define SHOAL_LAB_LOG_CURVES_H

#include "lab.h"

enum { CURVE_POINTS = 400, CURVE_NAME = 96 };

/* Means of `stride` neighbours once there are too many points. */
typedef struct {
    double x[CURVE_POINTS], y[CURVE_POINTS];
    int count, stride, pending;
    double sum_x, sum_y;
} log_curve;

typedef enum {
    CURVE_LOSS,
    CURVE_ACCURACY, /* in percent */
    CURVE_VALIDATION_LOSS,
    CURVE_VALIDATION_ACCURACY,
    CURVES
} curve_name;

typedef enum { AGAINST_STEPS, AGAINST_HOURS } curve_against;

typedef struct {
    char path[4096], name[CURVE_NAME];
    log_curve curves[CURVES];
} log_curves;

/* Reads log->path and names the log after its configuration. A log that is still being
   written is read up to its last complete line. */
int log_curves_read(const char *command, log_curves *log, curve_against against);

#endif
