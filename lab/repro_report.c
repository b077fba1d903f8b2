/* The grid as a table: for the terminal, as Markdown and as JSON. */
#include "repro.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common.h"

static int kind_width(const repro_job *job) {
    size_t width = 4;
    for (int k = 0; k < job->kind_count; k++)
        width = strlen(job->kinds[k]) > width ? strlen(job->kinds[k]) : width;
    return (int)width;
}

/* 99.996 % is not 100 %: only all of them are. */
static void percent_text(char text[16], double accuracy) {
    double percent = 100 * accuracy;
    if (accuracy < 1 && percent > 99.99)
        percent = 99.99;
    snprintf(text, 16, accuracy == 1 ? "%.0f" : "%.2f", percent);
}

static const char *hours_text(char text[16], double seconds) {
    if (seconds < 600)
        snprintf(text, 16, "%.0f s", seconds);
    else if (seconds < 36000)
        snprintf(text, 16, "%.0f min", seconds / 60);
    else
        snprintf(text, 16, "%.1f h", seconds / 3600);
    return text;
}

void repro_print(const repro_job *job) {
    const int width = kind_width(job);
    int missing = 0;
    printf("%-*s %6s %6s %9s %8s %10s  %s\n", width, "kind", "L", "N", "right %", "steps",
           "time", "ended");
    for (int l = 0; l < job->length_count; l++)
        for (int k = 0; k < job->kind_count; k++) {
            const repro_cell cell = repro_cell_of(job, job->kinds[k], job->lengths[l]);
            char right[16], time[16];
            printf("%-*s %6" PRId64 " %6" PRId64, width, job->kinds[k], job->lengths[l],
                   copy_positions(job->lengths[l]));
            missing += !cell.done;
            if (!cell.done && !cell.begun) {
                printf(" %9s %8s %10s  not begun\n", "-", "-", "-");
                continue;
            }
            percent_text(right, cell.accuracy);
            printf(" %9s %8" PRId64 " %10s  %s\n", right, cell.steps,
                   hours_text(time, cell.seconds),
                   cell.begun           ? "not finished: last validation"
                   : cell.stopped_early ? "early, no mistakes"
                                        : "all steps");
        }
    printf("\nright: masked symbols of 640 fresh sequences at batch 32. early: three\n"
           "validations in a row without one mistake (or as stop_after says).\n");
    if (missing > 0)
        printf("%d of %d cells are not finished.\n", missing,
               job->kind_count * job->length_count);
    fflush(stdout);
}

void repro_print_markdown(const repro_job *job) {
    printf("| kind |");
    for (int l = 0; l < job->length_count; l++)
        printf(" N = %" PRId64 " |", copy_positions(job->lengths[l]));
    printf("\n|---|");
    for (int l = 0; l < job->length_count; l++)
        printf("---|");
    putchar('\n');
    for (int k = 0; k < job->kind_count; k++) {
        printf("| %s |", job->kinds[k]);
        for (int l = 0; l < job->length_count; l++) {
            const repro_cell cell = repro_cell_of(job, job->kinds[k], job->lengths[l]);
            char right[16], time[16];
            if (!cell.done && !cell.begun) {
                printf(" not run |");
                continue;
            }
            percent_text(right, cell.accuracy);
            printf(" %s%s %% (%" PRId64 " steps%s, %s) |",
                   cell.begun ? "unfinished: " : "", right, cell.steps,
                   cell.stopped_early ? ", early" : "", hours_text(time, cell.seconds));
        }
        putchar('\n');
    }
    fflush(stdout);
}

/* The cells that were asked for, in the table's order. */
int repro_print_json(const repro_job *job) {
    json_t *cells = json_array();
    for (int l = 0; l < job->length_count; l++)
        for (int k = 0; k < job->kind_count; k++) {
            const repro_cell cell = repro_cell_of(job, job->kinds[k], job->lengths[l]);
            json_t *row = json_pack("{s:s, s:I, s:I, s:b}", "kind", job->kinds[k],
                                    "length", (json_int_t)job->lengths[l], "positions",
                                    (json_int_t)copy_positions(job->lengths[l]),
                                    "finished", cell.done);
            if (cell.done || cell.begun) {
                json_object_set_new(row, cell.done ? "accuracy" : "validation_accuracy",
                                    json_real(cell.accuracy));
                json_object_set_new(row, "steps", json_integer(cell.steps));
                json_object_set_new(row, "seconds", json_real(cell.seconds));
                json_object_set_new(row, "stopped_early",
                                    json_boolean(cell.stopped_early));
            }
            json_array_append_new(cells, row);
        }
    return print_json(json_pack("{s:s, s:s, s:o}", "experiment", "copy", "shoal",
                                shoal_version(), "cells", cells));
}
