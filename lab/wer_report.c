/* The table, the JSON and the picture. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "plot.h"
#include "wer.h"
#include <shoal_speech.h>

/* ---- Summaries ------------------------------------------------------------------ */

double wer_percent(const shoal_word_errors *errors) {
    const int64_t wrong = errors->substitutions + errors->insertions + errors->deletions;
    return errors->words > 0 ? 100.0 * (double)wrong / (double)errors->words : NAN;
}

double wer_best_seconds(const wer_job *job, int kind) {
    double best = INFINITY;
    for (int i = 0; i < job->done; i++)
        best = fmin(best, job->kinds[kind].encoder_seconds[i]);
    return best;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double wer_median_seconds(const wer_job *job, int kind) {
    double *sorted = malloc((size_t)job->done * sizeof *sorted);
    if (!sorted || job->done == 0) {
        free(sorted);
        return NAN;
    }
    memcpy(sorted, job->kinds[kind].encoder_seconds, (size_t)job->done * sizeof *sorted);
    qsort(sorted, (size_t)job->done, sizeof *sorted, compare_doubles);
    const double middle = (sorted[job->done / 2] + sorted[(job->done - 1) / 2]) / 2;
    free(sorted);
    return middle;
}

double wer_mean_output_error(const wer_job *job, int kind) {
    double sum = 0;
    for (int i = 0; i < job->done; i++)
        sum += job->kinds[kind].output_errors[i];
    return sum / job->done;
}

static double times_full(const wer_job *job, int kind) {
    return wer_median_seconds(job, job->reference) / wer_median_seconds(job, kind);
}

static double audio_seconds(const wer_job *job) {
    double sum = 0;
    for (int i = 0; i < job->done; i++)
        sum += job->windows[i].seconds;
    return sum;
}

static int utterances_done(const wer_job *job) {
    int sum = 0;
    for (int i = 0; i < job->done; i++)
        sum += job->windows[i].count;
    return sum;
}

/* ---- The table ------------------------------------------------------------------ */

static void print_heading(const wer_job *job) {
    const int threads = shoal_context_threads(job->context);
    printf("%s: %d utterance%s, %.0f s in %d window%s of at most %" PRId64 ", %" PRId64
           " words\n",
           job->folder, utterances_done(job), utterances_done(job) == 1 ? "" : "s",
           audio_seconds(job), job->done, job->done == 1 ? "" : "s", job->per_window,
           job->kinds[0].errors.words);
    printf("%s; shoal %s, %s, %d thread%s; %s\n\n", job->model, shoal_version(),
           shoal_context_isa(job->context), threads, threads == 1 ? "" : "s",
           job->beams > 1 ? "beam search" : "greedy");
}

static void print_row(const wer_job *job, int kind, int width) {
    const wer_kind *k = &job->kinds[kind];
    printf("%-*s %7.2f %6" PRId64 " %6" PRId64 " %6" PRId64 " %9.2f %9.2f %8.2f %9.5f\n",
           width, k->spelling, wer_percent(&k->errors), k->errors.substitutions,
           k->errors.insertions, k->errors.deletions, 1e3 * wer_best_seconds(job, kind),
           1e3 * wer_median_seconds(job, kind), times_full(job, kind),
           wer_mean_output_error(job, kind));
}

void wer_print(const wer_job *job) {
    int width = 4;
    if (job->done == 0) {
        printf("%s: interrupted before the first window was done\n", job->folder);
        return;
    }
    for (int kind = 0; kind < job->kind_count; kind++)
        if ((int)strlen(job->kinds[kind].spelling) > width)
            width = (int)strlen(job->kinds[kind].spelling);
    print_heading(job);
    printf("%-*s %7s %6s %6s %6s %9s %9s %8s %9s\n", width, "", "WER", "sub-", "inser-",
           "dele-", "encoder", "encoder", "speed", "encoder");
    printf("%-*s %7s %6s %6s %6s %9s %9s %8s %9s\n", width, "kind", "%", "stit.", "tions",
           "tions", "ms best", "median", "vs full", "error");
    for (int kind = 0; kind < job->kind_count; kind++)
        print_row(job, kind, width);
    printf(
        "\nWords are compared after normalisation: lower case, no punctuation, numbers "
        "as digits,\ncontractions and titles spelled out, American spelling. Encoder "
        "error: |out - full| / |full|,\nmean over the windows.\n");
    if (job->done < job->window_count)
        printf("Interrupted: %d of %d windows.\n", job->done, job->window_count);
    fflush(stdout);
}

/* ---- JSON ----------------------------------------------------------------------- */

static json_t *kind_object(const wer_job *job, int kind) {
    const wer_kind *k = &job->kinds[kind];
    json_t *seconds = json_array(), *errors = json_array();
    for (int i = 0; i < job->done; i++) {
        json_array_append_new(seconds, json_number(k->encoder_seconds[i]));
        json_array_append_new(errors, json_number(k->output_errors[i]));
    }
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "kind", k->spelling, "wer_percent",
                     json_number(wer_percent(&k->errors)), "words",
                     (json_int_t)k->errors.words, "substitutions",
                     (json_int_t)k->errors.substitutions, "insertions",
                     (json_int_t)k->errors.insertions, "deletions",
                     (json_int_t)k->errors.deletions, "encoder_seconds_best",
                     json_number(wer_best_seconds(job, kind)), "encoder_seconds_median",
                     json_number(wer_median_seconds(job, kind)), "speed_relative_to_full",
                     json_number(times_full(job, kind)), "encoder_error",
                     json_number(wer_mean_output_error(job, kind)),
                     "encoder_seconds_by_window", seconds, "encoder_error_by_window",
                     errors);
}

static json_t *window_object(const wer_job *job, int at) {
    const wer_window *window = &job->windows[at];
    json_t *files = json_array(), *texts = json_object();
    for (int i = 0; i < window->count; i++)
        json_array_append_new(files, json_text(job->utterances[window->first + i].path));
    for (int kind = 0; kind < job->kind_count; kind++)
        json_object_set_new(texts, job->kinds[kind].spelling,
                            json_text(window->texts[kind]));
    return json_pack("{s:o, s:f, s:o, s:o}", "files", files, "seconds", window->seconds,
                     "reference", json_text(window->reference), "texts", texts);
}

int wer_print_json(const wer_job *job) {
    json_t *kinds = json_array(), *windows = json_array();
    for (int kind = 0; kind < job->kind_count && job->done > 0; kind++)
        json_array_append_new(kinds, kind_object(job, kind));
    for (int at = 0; at < job->done && job->texts; at++)
        json_array_append_new(windows, window_object(job, at));
    json_t *all =
        json_pack("{s:s, s:s, s:i, s:o, s:o, s:I, s:f, s:I, s:i, s:i, s:f, s:b, s:o}",
                  "version", shoal_version(), "isa", shoal_context_isa(job->context),
                  "threads", shoal_context_threads(job->context), "folder",
                  json_text(job->folder), "model", json_text(job->model), "per_window",
                  (json_int_t)job->per_window, "gap", job->gap, "beam_size",
                  (json_int_t)job->beams, "windows_done", job->done, "utterances",
                  utterances_done(job), "audio_seconds", audio_seconds(job),
                  "interrupted", job->interrupted, "kinds", kinds);
    if (job->texts)
        json_object_set(all, "windows", windows);
    json_decref(windows);
    return print_json(all);
}

/* ---- The picture ---------------------------------------------------------------- */

int wer_write_plot(const wer_job *job) {
    double x[WER_KINDS], y[WER_KINDS], high = 1;
    plot_series series[WER_KINDS];
    char caption[160], reason[4300];
    const int threads = shoal_context_threads(job->context);
    if (job->done == 0)
        return EXIT_OK;
    for (int kind = 0; kind < job->kind_count; kind++) {
        x[kind] = 1e3 * wer_median_seconds(job, kind);
        y[kind] = wer_percent(&job->kinds[kind].errors);
        high = fmax(high, y[kind]);
        series[kind] = (plot_series){.name = job->kinds[kind].spelling,
                                     .x = &x[kind],
                                     .y = &y[kind],
                                     .count = 1,
                                     .colour = kind % PLOT_COLOURS,
                                     .marker = (plot_marker)(kind % PLOT_NO_MARKER)};
    }
    const plot_chart chart = {.title = "Word error rate against encoder time",
                              .x = {.label = "encoder, ms per 30 s window (median)",
                                    .scale = PLOT_LINEAR},
                              .y = {.label = "word error rate, %",
                                    .scale = PLOT_LINEAR,
                                    .low = -0.03 * high,
                                    .high = 1.05 * high},
                              .series = series,
                              .series_count = job->kind_count};
    snprintf(caption, sizeof caption, "shoal %s, %s, %d thread%s; %d windows%s",
             shoal_version(), shoal_context_isa(job->context), threads,
             threads == 1 ? "" : "s", job->done, job->interrupted ? "; interrupted" : "");
    const plot_figure figure = {.charts = &chart, .count = 1, .caption = caption};
    if (!plot_write(job->plot_path, &figure, reason, sizeof reason))
        return complain(EXIT_RESOURCES, "wer", "%s", reason);
    return EXIT_OK;
}
