/* shoal wer: word error rates of a Whisper model with each kind of attention, and what
   the encoder costs with it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"
#include "lab.h"
#include "options.h"
#include "plot.h"
#include <shoal_speech.h>

enum { MOST_KINDS = 24, LONGEST_NAME = 128, MOST_PER_WINDOW = 16 };

typedef struct {
    char *path;     /* of the recording */
    char *text;     /* what is said in it */
    double seconds; /* up to 30 */
} wer_utterance;

/* Utterances that are heard together. */
typedef struct {
    int first, count;
    char *reference;         /* their texts */
    char *texts[MOST_KINDS]; /* what each kind heard */
    double seconds;          /* of audio, with the gaps */
} wer_window;

typedef struct {
    char spelling[LONGEST_NAME];
    shoal_word_errors errors;
    double *encoder_seconds; /* [windows done] */
    double *output_errors;   /* [windows done], |encoded - full's| / |full's| */
} wer_kind;

typedef struct {
    /* Options. */
    const char *folder, *model, *language, *isa, *plot_path;
    int64_t per_window, beams, threads, limit;
    double gap;
    bool json, texts, force;

    /* What is worked on. */
    shoal_context *context;
    shoal_speech *speech;
    wer_utterance *utterances; /* [utterance_count] */
    int utterance_count;
    wer_window *windows; /* [window_count] */
    int window_count, done;
    wer_kind kinds[MOST_KINDS];
    int kind_count, reference; /* reference: which of them is full */
    bool interrupted;
} wer_job;

#define DEFAULT_KINDS "full,shoal-100"
#define DEFAULT_GAP 0.5
enum { DEFAULT_PER_WINDOW = 2, MOST_BEAMS = 64 };

static bool take_kinds(void *shared, const char *name, const char *text) {
    wer_job *job = shared;
    char names[MOST_KINDS][LONGEST_NAME];
    job->kind_count = read_kinds("wer", name, text, names[0], sizeof *names, MOST_KINDS);
    for (int i = 0; i < job->kind_count; i++)
        memcpy(job->kinds[i].spelling, names[i], sizeof names[i]);
    return job->kind_count > 0;
}

static bool take_gap(void *shared, const char *name, const char *value) {
    wer_job *job = shared;
    char *rest;
    job->gap = strtod(value, &rest);
    if (rest != value && !*rest && job->gap >= 0 && job->gap <= 30)
        return true;
    complain(EXIT_USAGE, "wer", "--%s is \"%s\"; it must be from 0 to 30 seconds", name,
             value);
    return false;
}

static bool take_language(void *job, const char *name, const char *value) {
    (void)name;
    return parse_language("wer", value, &((wer_job *)job)->language);
}

static bool take_picture(void *job, const char *name, const char *value) {
    (void)name;
    return take_plot("wer", value, &((wer_job *)job)->plot_path);
}

static const option_row rows[] =
    {{"model", 'm', "MODEL",
      "model: a ggml file (f32 or f16) or a Hugging Face folder\n"
      "(default: the environment variable SHOAL_MODEL)",
      SETS_TEXT(wer_job, model)},
     {"attention", 'a', "KINDS",
      "kinds of attention for the encoder, as shoal kinds spells\n"
      "them; full is added where it is missing\n"
      "(default: full,shoal-100)",
      TAKEN_BY(take_kinds)},
     {"force", 0, NULL,
      "also kinds that take the queries as keys (lsh, shared-full),\n"
      "though no sense can come of them",
      SETS_FLAG(wer_job, force)},
     {"per-window", 0, "N",
      "utterances that are heard together, 1 to 16, as long as\n"
      "they fit into 30 s: speech fills the window then\n"
      "(default: 2)",
      SETS_INTEGER(wer_job, per_window, 1, MOST_PER_WINDOW)},
     {"gap", 0, "SECONDS", "silence between them (default: 0.5)", TAKEN_BY(take_gap)},
     {"language", 'l', "L",
      "language spoken, or auto; numbers, titles and spellings are\n"
      "normalised as English in any case (default: en)",
      TAKEN_BY(take_language)},
     {"beam-size", 'b', "B",
      "texts that are followed side by side, 1 to 64; 1 is greedy\n"
      "(default: 1)",
      SETS_INTEGER(wer_job, beams, 1, MOST_BEAMS)},
     {"limit", 0, "N", "only the first N utterances (default: all)",
      SETS_INTEGER(wer_job, limit, 1, INT32_MAX)},
     THREADS_ROW(wer_job),
     ISA_ROW(wer_job),
     {"plot", 0, "FILE", "draw word error rate against encoder time (.svg or .png)",
      TAKEN_BY(take_picture)},
     {"json", 0, NULL, "print one JSON object instead of the table",
      SETS_FLAG(wer_job, json)},
     {"texts", 0, NULL, "with --json: also what every kind heard",
      SETS_FLAG(wer_job, texts)},
     HELP_ROW,
     {0}};

const command_help wer_help =
    {"wer",
     "wer DIR --model MODEL [options]",
     "How well a Whisper model recognises speech with each kind of attention in its\n"
     "encoder, and what that costs. DIR holds recordings and transcripts.txt, or\n"
     "LibriSpeech's *.trans.txt, in it or below: each line is the name of a recording\n"
     "beside it, without its ending, and what is said.\n",
     rows,
     "Decoding is at temperature 0 without timestamps (with them for recordings beyond\n"
     "30 s). Both texts are normalised: lower case, no punctuation, numbers as digits,\n"
     "contractions and titles spelled out, American spelling. Encoder times are of one\n"
     "window of 30 s, convolutions included, after a first run of the same.\n"
     "Ctrl-C shows the windows measured so far; twice ends at once.\n",
     "DIR"};

/* ---- Options ----------------------------------------------------------------------- */

/* Errors and speeds are against full: where it is not listed it is put first. */
static bool place_reference(wer_job *job) {
    for (job->reference = 0; job->reference < job->kind_count; job->reference++)
        if (strcmp(job->kinds[job->reference].spelling, "full") == 0)
            return true;
    if (job->kind_count == MOST_KINDS) {
        complain(EXIT_USAGE, "wer", "--attention has more than %d kinds without full",
                 MOST_KINDS - 1);
        return false;
    }
    memmove(job->kinds + 1, job->kinds, (size_t)job->kind_count * sizeof *job->kinds);
    snprintf(job->kinds[0].spelling, LONGEST_NAME, "full");
    job->kind_count++;
    job->reference = 0;
    return true;
}

/* ---- A folder of recordings -------------------------------------------------------- */

/* transcripts.txt, or LibriSpeech's *.trans.txt in any folder below; each line is the
   name of a recording beside it, without its ending, and the text. */
enum { DEEPEST = 6, WINDOW_SECONDS = 30 };

static bool find_audio(const char *folder, const char *name, char *path, size_t size) {
    static const char *const endings[] = {"flac", "wav", "ogg", "mp3", "opus"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        snprintf(path, size, "%s/%s.%s", folder, name, endings[i]);
        if (access(path, F_OK) == 0)
            return true;
    }
    return false;
}

static int add_utterance(wer_job *job, const char *path, const char *text) {
    wer_utterance *grown = realloc(job->utterances, ((size_t)job->utterance_count + 1) *
                                                        sizeof *job->utterances);
    if (grown)
        job->utterances = grown;
    wer_utterance one = {.path = strdup(path), .text = strdup(text)};
    if (!grown || !one.path || !one.text) {
        free(one.path);
        free(one.text);
        return complain(EXIT_RESOURCES, "wer", "out of memory");
    }
    job->utterances[job->utterance_count++] = one;
    return EXIT_OK;
}

/* "NAME TEXT". */
static int take_line(wer_job *job, const char *folder, const char *file, long number,
                     char *line) {
    char path[4200];
    line[strcspn(line, "\r\n")] = 0;
    char *text = line + strcspn(line, " \t");
    if (line[strspn(line, " \t")] == 0)
        return EXIT_OK;
    if (*text)
        *text++ = 0;
    if (*line == 0 || strchr(line, '/') || strlen(line) > 1000)
        return complain(EXIT_BAD_INPUT, "wer",
                        "%s, line %ld: it must begin with the name of a recording", file,
                        number);
    if (!find_audio(folder, line, path, sizeof path))
        return complain(EXIT_BAD_INPUT, "wer",
                        "%s, line %ld: there is no recording %s/%s.flac (or .wav, .ogg, "
                        ".mp3, .opus)",
                        file, number, folder, line);
    const int code = will_read("wer", path);
    return code == EXIT_OK ? add_utterance(job, path, text + strspn(text, " \t")) : code;
}

static bool enough(const wer_job *job) {
    return job->limit > 0 && job->utterance_count >= job->limit;
}

static int read_transcripts(wer_job *job, const char *folder, const char *file) {
    FILE *from = fopen(file, "r");
    char *line = NULL;
    size_t room = 0;
    int code = will_read("wer", file);
    if (!from)
        return complain(EXIT_BAD_INPUT, "wer", "%s cannot be read: %s", file,
                        strerror(errno));
    for (long number = 1; code == EXIT_OK && !enough(job); number++) {
        const ssize_t length = getline(&line, &room, from);
        if (length < 0)
            break;
        if (strlen(line) != (size_t)length)
            code =
                complain(EXIT_BAD_INPUT, "wer", "%s, line %ld is not text", file, number);
        else
            code = take_line(job, folder, file, number, line);
    }
    if (code == EXIT_OK && ferror(from))
        code = complain(EXIT_BAD_INPUT, "wer", "%s cannot be read: %s", file,
                        strerror(errno));
    free(line);
    fclose(from);
    return code;
}

static bool ends_in(const char *name, const char *ending) {
    const size_t length = strlen(name), wanted = strlen(ending);
    return length >= wanted && strcmp(name + length - wanted, ending) == 0;
}

/* Names in order, so that a run is the same everywhere. */
static int search_folder(wer_job *job, const char *folder, int depth) {
    struct dirent **entries;
    int code = EXIT_OK;
    const int count = scandir(folder, &entries, NULL, alphasort);
    if (count < 0)
        return complain(EXIT_BAD_INPUT, "wer", "%s cannot be read: %s", folder,
                        strerror(errno));
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        char path[4200];
        struct stat about;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (code == EXIT_OK && !enough(job) && name[0] != '.' &&
            stat(path, &about) == 0) {
            if (S_ISDIR(about.st_mode) && depth < DEEPEST)
                code = search_folder(job, path, depth + 1);
            else if (S_ISREG(about.st_mode) && (strcmp(name, "transcripts.txt") == 0 ||
                                                ends_in(name, ".trans.txt")))
                code = read_transcripts(job, folder, path);
        }
        free(entries[i]);
    }
    free(entries);
    return code;
}

static int read_folder(wer_job *job) {
    const int code = search_folder(job, job->folder, 0);
    if (code == EXIT_OK && job->utterance_count == 0)
        return complain(
            EXIT_BAD_INPUT, "wer",
            "%s has no transcripts.txt and no *.trans.txt with anything in it",
            job->folder);
    return code;
}

/* ---- Windows ----------------------------------------------------------------------- */

static int measure_length(wer_job *job, wer_utterance *utterance, float *features) {
    const char *path = utterance->path;
    const shoal_recording recording = {.paths = &path, .files = 1};
    const shoal_status status =
        shoal_speech_features(job->speech, &recording, 0, features, &utterance->seconds);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "wer", job->context);
}

/* Utterances first .. that fit into one window. */
static wer_window window_from(const wer_job *job, int first) {
    wer_window window = {.first = first};
    while (first + window.count < job->utterance_count &&
           window.count < job->per_window) {
        const double more = job->utterances[first + window.count].seconds +
                            (window.count > 0 ? job->gap : 0);
        if (window.count > 0 && window.seconds + more > WINDOW_SECONDS)
            break;
        window.seconds += more;
        window.count++;
    }
    return window;
}

static char *join_texts(const wer_job *job, const wer_window *window) {
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return NULL;
    for (int i = 0; i < window->count; i++)
        fprintf(to, "%s%s", i > 0 ? " " : "", job->utterances[window->first + i].text);
    fclose(to);
    return text;
}

static int fill_windows(wer_job *job) {
    for (int first = 0; first < job->utterance_count;) {
        wer_window *window = &job->windows[job->window_count];
        *window = window_from(job, first);
        window->reference = join_texts(job, window);
        job->window_count++;
        if (!window->reference)
            return complain(EXIT_RESOURCES, "wer", "out of memory");
        first += window->count;
    }
    return EXIT_OK;
}

static int pack_windows(wer_job *job) {
    const shoal_speech_info info = shoal_speech_describe(job->speech);
    float *features = malloc((size_t)info.mels * (size_t)info.frames * sizeof *features);
    job->windows = calloc((size_t)job->utterance_count, sizeof *job->windows);
    int code = features && job->windows
                   ? EXIT_OK
                   : complain(EXIT_RESOURCES, "wer", "out of memory");
    for (int i = 0; i < job->utterance_count && code == EXIT_OK; i++) {
        progress_say("reading %d of %d recordings", i + 1, job->utterance_count);
        code = measure_length(job, &job->utterances[i], features);
    }
    free(features);
    return code == EXIT_OK ? fill_windows(job) : code;
}

static void release(wer_job *job) {
    for (int i = 0; i < job->window_count; i++) {
        free(job->windows[i].reference);
        for (int kind = 0; kind < job->kind_count; kind++)
            free(job->windows[i].texts[kind]);
    }
    for (int i = 0; i < job->utterance_count; i++) {
        free(job->utterances[i].path);
        free(job->utterances[i].text);
    }
    for (int kind = 0; kind < job->kind_count; kind++) {
        free(job->kinds[kind].encoder_seconds);
        free(job->kinds[kind].output_errors);
    }
    free(job->windows);
    free(job->utterances);
}

/* ---- One kind on one window -------------------------------------------------------- */

/* A window at a time, on which the kinds take turns, so that whatever else the machine
   does falls on all of them. A kind's encoder runs on a window for the text, and then
   twice more: to warm up, and on the clock. */
typedef struct {
    wer_job *job;
    wer_window *window;
    const char *paths[MOST_PER_WINDOW];
    shoal_recording recording;
    int64_t size;                   /* of an encoder's output */
    float *features;                /* [mels][frames] */
    float *exact, *encoded, *again; /* [size] */
} wer_run;

static int fail_call(const wer_run *run, shoal_status status, const char *kind) {
    complain(EXIT_BAD_INPUT, "wer", "%s on %s:", kind, run->paths[0]);
    return complain_status(status, EXIT_BAD_INPUT, "wer", run->job->context);
}

static int collect(void *user, const shoal_segment *segment) {
    fprintf(user, "%s ", segment->text);
    return 0;
}

/* Greedy or beams at temperature 0; without timestamps unless one recording alone goes
   beyond the window. */
static shoal_status hear(const wer_run *run, char **text) {
    const wer_job *job = run->job;
    const bool longer = run->window->count == 1 && run->window->seconds >= WINDOW_SECONDS;
    const shoal_transcribe_options options = {.language = job->language,
                                              .beams = (int)job->beams,
                                              .no_timestamps = !longer,
                                              .no_fallback = 1};
    size_t size;
    shoal_transcription summary;
    FILE *to = open_memstream(text, &size);
    if (!to)
        return SHOAL_NO_MEMORY;
    const shoal_status status = shoal_speech_transcribe(job->speech, &run->recording,
                                                        &options, collect, to, &summary);
    fclose(to);
    if (status == SHOAL_OK && longer)
        run->window->seconds = summary.seconds;
    return status;
}

static double relative_error(const float *encoded, const float *exact, int64_t count) {
    squares sums = {0};
    for (int64_t i = 0; i < count; i++)
        squares_add(&sums, (double)encoded[i], (double)exact[i]);
    return squares_relative(sums);
}

/* Twice: a time counts only for a result that is the same again. */
static int time_encoder(wer_run *run, int kind, float *out) {
    wer_kind *k = &run->job->kinds[kind];
    const size_t bytes = (size_t)run->size * sizeof *out;
    shoal_status status = shoal_speech_encode(run->job->speech, run->features, out);
    const double begun = seconds_now();
    if (status == SHOAL_OK)
        status = shoal_speech_encode(run->job->speech, run->features, run->again);
    k->encoder_seconds[run->job->done] = seconds_now() - begun;
    if (status != SHOAL_OK)
        return fail_call(run, status, k->spelling);
    if (memcmp(out, run->again, bytes) != 0)
        return complain(EXIT_FAILURE, "wer",
                        "WRONG: %s on %s: the same call gave another output; please "
                        "report it",
                        k->spelling, run->paths[0]);
    return EXIT_OK;
}

static int try_kind(wer_run *run, int kind) {
    wer_job *job = run->job;
    wer_kind *k = &job->kinds[kind];
    float *out = kind == job->reference ? run->exact : run->encoded;
    progress_say("window %d of %d, %s", job->done + 1, job->window_count, k->spelling);
    shoal_status status = shoal_speech_set_attention(job->speech, k->spelling);
    if (status == SHOAL_OK)
        status = hear(run, &run->window->texts[kind]);
    if (status != SHOAL_OK)
        return fail_call(run, status, k->spelling);
    const int code = time_encoder(run, kind, out);
    if (code != EXIT_OK)
        return code;
    k->output_errors[job->done] = relative_error(out, run->exact, run->size);
    return EXIT_OK;
}

/* The reference first: the others are compared with it. */
static int try_window(wer_run *run) {
    wer_job *job = run->job;
    const shoal_status status =
        shoal_speech_features(job->speech, &run->recording, 0, run->features, NULL);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, "wer", job->context);
    int code = try_kind(run, job->reference);
    for (int kind = 0; kind < job->kind_count && code == EXIT_OK && !stop_signal();
         kind++)
        if (kind != job->reference)
            code = try_kind(run, kind);
    return code;
}

static int count_errors(wer_job *job, const wer_window *window) {
    for (int kind = 0; kind < job->kind_count; kind++) {
        const shoal_status status =
            shoal_count_word_errors(job->context, window->reference, window->texts[kind],
                                    &job->kinds[kind].errors);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_BAD_INPUT, "wer", job->context);
    }
    return EXIT_OK;
}

/* ---- The run ----------------------------------------------------------------------- */

static int reserve_memory(wer_run *run) {
    wer_job *job = run->job;
    const shoal_speech_info info = shoal_speech_describe(job->speech);
    const size_t windows = (size_t)job->window_count;
    run->size = (int64_t)info.positions * info.width;
    const size_t bytes = (size_t)run->size * sizeof(float);
    run->features = malloc((size_t)info.mels * (size_t)info.frames * sizeof(float));
    run->exact = malloc(bytes);
    run->encoded = malloc(bytes);
    run->again = malloc(bytes);
    bool good = run->features && run->exact && run->encoded && run->again;
    for (int kind = 0; kind < job->kind_count; kind++) {
        job->kinds[kind].encoder_seconds = calloc(windows, sizeof(double));
        job->kinds[kind].output_errors = calloc(windows, sizeof(double));
        good = good && job->kinds[kind].encoder_seconds && job->kinds[kind].output_errors;
    }
    return good ? EXIT_OK : complain(EXIT_RESOURCES, "wer", "out of memory");
}

static int do_window(wer_run *run, int at) {
    wer_job *job = run->job;
    run->window = &job->windows[at];
    for (int i = 0; i < run->window->count; i++)
        run->paths[i] = job->utterances[run->window->first + i].path;
    run->recording = (shoal_recording){.paths = run->paths,
                                       .files = run->window->count,
                                       .gap = job->gap};
    int code = try_window(run);
    if (code == EXIT_OK && !stop_signal()) {
        code = count_errors(job, run->window);
        job->done++;
    }
    return code;
}

static int measure_windows(wer_job *job) {
    wer_run run = {.job = job};
    int code = reserve_memory(&run);
    watch_stop();
    for (int at = 0; at < job->window_count && code == EXIT_OK && !stop_signal(); at++)
        code = do_window(&run, at);
    job->interrupted = stop_signal() != 0;
    free(run.features);
    free(run.exact);
    free(run.encoded);
    free(run.again);
    return code;
}

/* ---- Summaries --------------------------------------------------------------------- */

static double percent(const shoal_word_errors *errors) {
    const int64_t wrong = errors->substitutions + errors->insertions + errors->deletions;
    return errors->words > 0 ? 100.0 * (double)wrong / (double)errors->words : NAN;
}

static double best_seconds(const wer_job *job, int kind) {
    double best = INFINITY;
    for (int i = 0; i < job->done; i++)
        best = fmin(best, job->kinds[kind].encoder_seconds[i]);
    return best;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_seconds(const wer_job *job, int kind) {
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

static double mean_output_error(const wer_job *job, int kind) {
    double sum = 0;
    for (int i = 0; i < job->done; i++)
        sum += job->kinds[kind].output_errors[i];
    return sum / job->done;
}

static double times_full(const wer_job *job, int kind) {
    return median_seconds(job, job->reference) / median_seconds(job, kind);
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

/* ---- The table --------------------------------------------------------------------- */

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
           width, k->spelling, percent(&k->errors), k->errors.substitutions,
           k->errors.insertions, k->errors.deletions, 1e3 * best_seconds(job, kind),
           1e3 * median_seconds(job, kind), times_full(job, kind),
           mean_output_error(job, kind));
}

static void print_table(const wer_job *job) {
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

/* ---- JSON -------------------------------------------------------------------------- */

static json_t *kind_object(const wer_job *job, int kind) {
    const wer_kind *k = &job->kinds[kind];
    json_t *seconds = json_array(), *errors = json_array();
    for (int i = 0; i < job->done; i++) {
        json_array_append_new(seconds, json_number(k->encoder_seconds[i]));
        json_array_append_new(errors, json_number(k->output_errors[i]));
    }
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "kind", k->spelling, "wer_percent", json_number(percent(&k->errors)),
                     "words", (json_int_t)k->errors.words, "substitutions",
                     (json_int_t)k->errors.substitutions, "insertions",
                     (json_int_t)k->errors.insertions, "deletions",
                     (json_int_t)k->errors.deletions, "encoder_seconds_best",
                     json_number(best_seconds(job, kind)), "encoder_seconds_median",
                     json_number(median_seconds(job, kind)), "speed_relative_to_full",
                     json_number(times_full(job, kind)), "encoder_error",
                     json_number(mean_output_error(job, kind)),
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

static int print_all_json(const wer_job *job) {
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

/* ---- The picture ------------------------------------------------------------------- */

static int write_plot(const wer_job *job) {
    double x[MOST_KINDS], y[MOST_KINDS], high = 1;
    plot_series series[MOST_KINDS];
    char caption[160], reason[4300];
    const int threads = shoal_context_threads(job->context);
    if (job->done == 0)
        return EXIT_OK;
    for (int kind = 0; kind < job->kind_count; kind++) {
        x[kind] = 1e3 * median_seconds(job, kind);
        y[kind] = percent(&job->kinds[kind].errors);
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

/* ---- The command ------------------------------------------------------------------- */

/* Misspelt kinds are mistakes of the command line; the shortest spelling is shown. */
static int check_kinds(wer_job *job) {
    for (int i = 0; i < job->kind_count; i++) {
        shoal_attention parsed;
        const shoal_status status =
            shoal_attention_parse(job->context, job->kinds[i].spelling, &parsed);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "wer", job->context);
        shoal_attention_print(&parsed, job->kinds[i].spelling, LONGEST_NAME);
    }
    return EXIT_OK;
}

static int open_model(wer_job *job) {
    const shoal_speech_options options = {.beams = (int)job->beams, .force = job->force};
    progress_say("opening %s", job->model);
    shoal_status status =
        shoal_speech_open(job->context, job->model, &options, &job->speech);
    for (int i = 0; i < job->kind_count && status == SHOAL_OK; i++)
        status = shoal_speech_set_attention(job->speech, job->kinds[i].spelling);
    const int code = status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT;
    return status == SHOAL_OK ? EXIT_OK
                              : complain_status(status, code, "wer", job->context);
}

static int report(const wer_job *job) {
    int code = job->plot_path ? write_plot(job) : EXIT_OK;
    if (job->json) {
        const int printed = print_all_json(job);
        code = code == EXIT_OK ? printed : code;
    } else {
        print_table(job);
    }
    return code == EXIT_OK && job->interrupted ? 128 + stop_signal() : code;
}

static int work(wer_job *job) {
    progress_begin(1);
    int code = open_model(job);
    if (code == EXIT_OK)
        code = read_folder(job);
    if (code == EXIT_OK)
        code = pack_windows(job);
    if (code == EXIT_OK)
        code = measure_windows(job);
    progress_end();
    if (code == EXIT_OK)
        code = report(job);
    release(job);
    shoal_speech_close(job->speech);
    return code;
}

static int run(wer_job *job, int count, char **words) {
    if (count != 1)
        return complain(EXIT_USAGE, "wer", "%s; usage: shoal %s",
                        count ? "one folder at a time" : "no folder was given",
                        wer_help.usage);
    if (!job->model || !*job->model)
        return complain(EXIT_USAGE, "wer",
                        "no model; give --model MODEL or set SHOAL_MODEL");
    job->folder = words[0];
    int code = will_write("wer", job->plot_path);
    if (code == EXIT_OK)
        code = will_read("wer", job->model);
    if (code == EXIT_OK)
        code = open_context("wer", (int)job->threads, job->isa, &job->context);
    if (code == EXIT_OK)
        code = check_kinds(job);
    if (code == EXIT_OK)
        code = work(job);
    shoal_context_destroy(job->context);
    return code;
}

int wer_command(int count, char **arguments) {
    static wer_job job = {.language = "en",
                          .per_window = DEFAULT_PER_WINDOW,
                          .gap = DEFAULT_GAP,
                          .beams = 1};
    job.model = getenv("SHOAL_MODEL");
    const int ended = take_options(&wer_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    if (job.kind_count == 0)
        take_kinds(&job, "attention", DEFAULT_KINDS);
    if (!place_reference(&job))
        return EXIT_USAGE;
    return run(&job, count - optind, arguments + optind);
}
