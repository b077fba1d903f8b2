/* Table, JSON and picture of shoal wer. */
#include "plot.h"
#include "wer.h"

/* ---- Summaries --------------------------------------------------------------------- */

static int timed(const wer_job *job) {
    return job->done < WER_TIMED ? job->done : WER_TIMED;
}

/* Whether its encoder was timed. */
static bool is_timed(const wer_job *job, int kind) {
    return !job->no_time || job->kinds[kind].mode != WER_WINDOW;
}

static double median_seconds(const wer_job *job, int kind) {
    return is_timed(job, kind) ? median_of(job->kinds[kind].encoder_seconds, timed(job))
                               : NAN;
}

static double mean_output_error(const wer_job *job, int kind) {
    double sum = 0;
    for (int i = 0; i < job->done; i++)
        sum += job->kinds[kind].output_errors[i];
    return sum / job->done;
}

static double times_full(const wer_job *job, int kind) {
    return median_seconds(job, job->reference) / median_seconds(job, kind);
}

/* Of the windows done. */
static double audio_seconds(const wer_job *job) {
    double sum = 0;
    for (int i = 0; i < job->done; i++)
        sum += job->windows[i].seconds;
    return sum;
}

/* Number of distinct utterances in the windows done. */
static int utterances_done(const wer_job *job) {
    bool *heard = reserve_zeros((size_t)job->utterance_count, sizeof *heard);
    int count = 0;
    for (int at = 0; at < job->done; at++)
        for (int i = 0; i < job->windows[at].count; i++) {
            bool *one = &heard[job->windows[at].members[i]];
            count += !*one;
            *one = true;
        }
    free(heard);
    return count;
}

static double windows_per_second(const wer_job *job) {
    return job->seconds > 0 ? job->done * job->kind_count / job->seconds : NAN;
}

/* ---- The table --------------------------------------------------------------------- */

/* The number, or "" if it is not finite. */
static const char *number_text(char *text, size_t size, int decimals, double number) {
    snprintf(text, size, "%.*f", decimals, number);
    return isfinite(number) ? text : "-";
}

static void print_arrangements(const wer_job *job) {
    printf("\n%-32s", "error rate (minus full's)");
    for (int kind = 0; kind < job->kind_count; kind++)
        printf(" %16s", job->kinds[kind].spelling);
    putchar('\n');
    for (int at = 0; at < (int)job->arrangement_count; at++) {
        char text[80];
        const shoal_word_errors full = wer_count(job, job->reference, at);
        const size_t size = sizeof text;
        int length = job->arrangements[at].per_window == INT64_MAX
                         ? snprintf(text, size, "joined")
                         : snprintf(text, size, "%" PRId64 " per window",
                                    job->arrangements[at].per_window);
        if (job->arrangements[at].per_window > 1)
            length += snprintf(text + length, size - (size_t)length, ", gap %g s",
                               job->arrangements[at].gap);
        if (job->arrangements[at].shuffled)
            snprintf(text + length, size - (size_t)length, ", order %" PRIu64,
                     job->arrangements[at].seed);
        printf("%-32s", text);
        for (int kind = 0; kind < job->kind_count; kind++) {
            const shoal_word_errors errors = wer_count(job, kind, at);
            const double rate = wer_percent(&errors);
            if (kind == job->reference)
                printf(" %16.2f", rate);
            else
                printf(" %8.2f (%+.2f)", rate, rate - wer_percent(&full));
        }
        putchar('\n');
    }
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
    const int utterances = utterances_done(job);
    const shoal_word_errors errors = wer_count(job, job->reference, -1);
    printf("%s: %d utterance%s in %d window%s, %.0f s, %" PRId64 " words; %" PRId64
           " arrangement%s\n%s; %s; %s\n\n",
           job->folder, utterances, plural(utterances), job->done, plural(job->done),
           audio_seconds(job), errors.words, job->arrangement_count,
           plural(job->arrangement_count), job->model, setting_text(job->context),
           job->beams > 1 ? "beam search" : "greedy");
    printf("%-*s %6s  %14s %22s %6s %5s %5s %8s %7s %8s\n", width, "", "WER", "", "minus",
           "sub-", "in-", "de-", "encoder", "speed", "encoder");
    printf("%-*s %6s  %14s %22s %6s %5s %5s %8s %7s %8s\n", width, "kind", "%",
           "interval", "full     interval", "stit.", "sert.", "let.", "ms", "vs full",
           "error");
    for (int kind = 0; kind < job->kind_count; kind++) {
        const shoal_word_errors own = wer_count(job, kind, -1);
        const wer_interval i = wer_intervals(job, kind);
        char difference[64] = "", milliseconds[32], speed[32], error[32];
        if (kind != job->reference)
            snprintf(difference, sizeof difference, "%+.2f  %+.2f to %+.2f", i.difference,
                     i.difference_low, i.difference_high);
        printf("%-*s %6.2f  %5.2f to %5.2f %22s %6" PRId64 " %5" PRId64 " %5" PRId64
               " %8s %7s %8s\n",
               width, job->kinds[kind].spelling, i.rate, i.rate_low, i.rate_high,
               difference, own.substitutions, own.insertions, own.deletions,
               number_text(milliseconds, sizeof milliseconds, 1,
                           1e3 * median_seconds(job, kind)),
               number_text(speed, sizeof speed, 2, times_full(job, kind)),
               number_text(error, sizeof error, 5, mean_output_error(job, kind)));
    }
    if (job->arrangement_count > 1)
        print_arrangements(job);
    printf("\nIntervals: 95 %%, bootstrap over utterances (%d draws, seed %" PRIu64
           "); differences are\n"
           "paired. Words are compared after normalisation: lower case, no punctuation, "
           "numbers as\n"
           "digits, contractions and titles spelled out, American spelling. Encoder: "
           "median of the first\n"
           "%d windows; error: |out - full| / |full|, mean over the windows. %.2f "
           "windows and kinds per\n"
           "second.\n",
           10000, job->seed, timed(job), windows_per_second(job));
    if (job->done < job->window_count)
        printf("Interrupted: %d of %d windows.\n", job->done, job->window_count);
    fflush(stdout);
}

/* ---- JSON -------------------------------------------------------------------------- */

static json_t *pair(double low, double high) {
    return json_pack("[o, o]", json_number(low), json_number(high));
}

static json_t *kind_object(const wer_job *job, int kind) {
    const wer_kind *k = &job->kinds[kind];
    const shoal_word_errors errors = wer_count(job, kind, -1);
    const wer_interval i = wer_intervals(job, kind);
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}",
        "kind", k->spelling, "wer_percent", json_number(i.rate), "wer_interval",
        pair(i.rate_low, i.rate_high), "difference_points", json_number(i.difference),
        "difference_interval", pair(i.difference_low, i.difference_high), "words",
        (json_int_t)errors.words, "substitutions", (json_int_t)errors.substitutions,
        "insertions", (json_int_t)errors.insertions, "deletions",
        (json_int_t)errors.deletions, "encoder_seconds_best",
        json_number(is_timed(job, kind)
                        ? best_of(job->kinds[kind].encoder_seconds, timed(job))
                        : NAN),
        "encoder_seconds_median", json_number(median_seconds(job, kind)),
        "speed_relative_to_full", json_number(times_full(job, kind)), "encoder_error",
        json_number(mean_output_error(job, kind)), "encoder_seconds_by_window",
        json_numbers(k->encoder_seconds, is_timed(job, kind) ? timed(job) : 0),
        "encoder_error_by_window", json_numbers(k->output_errors, job->done));
}

int wer_print_json(const wer_job *job) {
    json_t *kinds = json_array(), *arrangements = json_array(),
           *windows = job->texts ? json_array() : NULL;
    for (int kind = 0; kind < job->kind_count && job->done > 0; kind++)
        json_array_append_new(kinds, kind_object(job, kind));
    for (int at = 0; at < (int)job->arrangement_count; at++) {
        const wer_arrangement *arrangement = &job->arrangements[at];
        json_t *rates = json_object();
        for (int kind = 0; kind < job->kind_count; kind++) {
            const shoal_word_errors errors = wer_count(job, kind, at);
            json_object_set_new(rates, job->kinds[kind].spelling,
                                json_number(wer_percent(&errors)));
        }
        json_array_append_new(arrangements,
                              json_pack("{s:o, s:f, s:b, s:o, s:i, s:o}", "per_window",
                                        arrangement->per_window == INT64_MAX
                                            ? json_null()
                                            : json_integer(
                                                  (json_int_t)arrangement->per_window),
                                        "gap", arrangement->gap, "shuffled",
                                        arrangement->shuffled, "seed",
                                        json_seed(arrangement->seed), "windows",
                                        arrangement->windows, "wer_percent", rates));
    }
    for (int at = 0; at < job->done && job->texts; at++) {
        const wer_window *window = &job->windows[at];
        json_t *files = json_array(), *references = json_array(), *texts = json_object(),
               *lost = json_object();
        for (int i = 0; i < window->count; i++) {
            const wer_utterance *one = &job->utterances[window->members[i]];
            json_array_append_new(files, json_text(one->path));
            json_array_append_new(references, json_text(one->text));
        }
        for (int kind = 0; kind < job->kind_count; kind++) {
            json_int_t left_out = 0;
            for (int i = 0; i < window->count; i++)
                left_out += window->errors[kind][i].deletions;
            json_object_set_new(texts, job->kinds[kind].spelling,
                                json_text(window->texts[kind]));
            json_object_set_new(lost, job->kinds[kind].spelling, json_integer(left_out));
        }
        json_array_append_new(windows,
                              json_pack("{s:i, s:o, s:f, s:o, s:o, s:o}", "arrangement",
                                        window->arrangement, "files", files, "seconds",
                                        window->seconds, "references", references,
                                        "texts", texts, "words_left_out", lost));
    }
    return print_json(
        json_pack("{s:s, s:s, s:i, s:o, s:o, s:I, s:f, s:o, s:I, s:i, s:i, s:f, s:b, "
                  "s:o, s:o, s:o, "
                  "s:o, s:o*}",
                  "version", shoal_version(), "isa", shoal_context_isa(job->context),
                  "threads", shoal_context_threads(job->context), "folder",
                  json_text(job->folder), "model", json_text(job->model), "per_window",
                  (json_int_t)job->per_window, "gap", job->gap, "seed",
                  json_seed(job->seed), "beam_size", (json_int_t)job->beams,
                  "windows_done", job->done, "utterances", utterances_done(job),
                  "audio_seconds", audio_seconds(job), "interrupted", job->interrupted,
                  "join_minutes", job->join > 0 ? json_number(job->join) : json_null(),
                  "windows_per_second", json_number(windows_per_second(job)), "kinds",
                  kinds, "arrangements", arrangements, "windows", windows));
}

/* ---- The picture ------------------------------------------------------------------- */

void wer_write_plot(const wer_job *job) {
    double x[KINDS_MOST], y[KINDS_MOST], high = 1;
    plot_series series[KINDS_MOST];
    char caption[160];
    if (job->done == 0)
        return;
    for (int kind = 0; kind < job->kind_count; kind++) {
        x[kind] = 1e3 * median_seconds(job, kind);
        const shoal_word_errors errors = wer_count(job, kind, -1);
        y[kind] = wer_percent(&errors);
        high = fmax(high, y[kind]);
        series[kind] = plot_kind(job->kinds[kind].spelling, kind, &x[kind], &y[kind], 1);
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
    snprintf(caption, sizeof caption, "%s; %d windows%s", setting_text(job->context),
             job->done, job->interrupted ? "; interrupted" : "");
    plot_write(job->plot_path, &(plot_figure){&chart, 1, caption});
}
