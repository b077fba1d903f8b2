/* shoal wer: word error rates of a Whisper model with each kind of attention, and the
   time of the encoder. */
#define _GNU_SOURCE
#include "wer.h"

#include "plot.h"

#define DEFAULT_KINDS "full,shoal"
#define DEFAULT_GAP 0.5
enum { DEFAULT_PER_WINDOW = 2, MOST_BEAMS = 64, MOST_BATCH = 64, SAMPLES = 5 };

const char *const wer_modes[] = {"window", "vad", "no-vad", "published", NULL};

static bool take_number(const char *name, const char *value, const char *unit,
                        double most, double *number) {
    char *rest;
    *number = strtod(value, &rest);
    if (rest != value && !*rest && *number >= 0 && *number <= most)
        return true;
    complain(EXIT_USAGE, "wer", "--%s is \"%s\"; give a number from 0 to %g %s", name,
             value, most, unit);
    return false;
}

static bool take_gap(void *job, const char *name, const char *value) {
    return take_number(name, value, "seconds", 30, &((wer_job *)job)->gap);
}

static bool take_join(void *job, const char *name, const char *value) {
    return take_number(name, value, "minutes", 600, &((wer_job *)job)->join);
}

static bool take_language(void *job, const char *name, const char *value) {
    (void)name;
    return parse_language("wer", value, &((wer_job *)job)->language);
}

/* Names with commas between, each once. */
static bool take_precisions(void *user, const char *name, const char *value) {
    wer_job *job = user;
    job->precision_count = 0;
    for (const char *at = value; *at;) {
        const size_t length = strcspn(at, ",");
        int found = 0, before = 0;
        while (precision_names[found] && (strlen(precision_names[found]) != length ||
                                          strncmp(at, precision_names[found], length)))
            found++;
        while (before < job->precision_count && job->precisions[before] != found)
            before++;
        if (!precision_names[found] || before < job->precision_count) {
            complain(EXIT_USAGE, "wer",
                     "--%s is \"%s\"; it must be some of auto, float32, bfloat16 and "
                     "int8, each once, with commas between",
                     name, value);
            return false;
        }
        job->precisions[job->precision_count++] = found;
        at += length + (at[length] == ',');
    }
    return true;
}

static const option_row rows[] =
    {{"model", 'm', "MODEL",
      "model: a ggml file (f32 or f16) or a Hugging Face folder\n"
      "(default: the environment variable SHOAL_SPEECH_MODEL, else\n"
      "SHOAL_MODEL)",
      SETS_TEXT(wer_job, model)},
     {"attention", 'a', "KINDS",
      "kinds of attention for the encoder, as in shoal kinds; full is\n"
      "added if it is missing (default: full,shoal)",
      SETS_KINDS(wer_job, list, KINDS_MOST)},
     {"precision", 0, "LIST",
      "precisions of the matrices, every kind with each: auto, float32,\n"
      "bfloat16, int8; the first is what others are compared with\n"
      "(default: auto)",
      TAKEN_BY(take_precisions)},
     {"force", 0, NULL,
      "allow kinds that use the queries as keys (lsh, shared-full),\n"
      "which give meaningless text",
      SETS_FLAG(wer_job, force)},
     {"per-window", 0, "N",
      "maximum number of utterances per window, 1 to 16, as far as they\n"
      "fit into 30 s (default: 2)",
      SETS_INTEGER(wer_job, per_window, 1, WER_PER_WINDOW)},
     {"gap", 0, "SECONDS", "silence between utterances (default: 0.5)",
      TAKEN_BY(take_gap)},
     {"join", 0, "MINUTES",
      "concatenate utterances to recordings of this length and process\n"
      "them like shoal transcribe",
      TAKEN_BY(take_join)},
     {"vad", 0, NULL,
      "process windows like shoal transcribe too: speech detection,\n"
      "timestamps, higher temperatures if needed",
      SETS_FLAG(wer_job, vad)},
     {"timestamps", 0, NULL, "decode windows with timestamps (default: without)",
      SETS_FLAG(wer_job, timestamps)},
     {"shuffle", 0, NULL, "put the utterances in a random order instead of the folder's",
      SETS_FLAG(wer_job, shuffle)},
     {"arrangements", 0, "N",
      "process all utterances N times: as the options say, then one per\n"
      "window, then in other orders, with gaps of 0, 0.25, 1, 2 and\n"
      "0.5 s (default: 1)",
      SETS_INTEGER(wer_job, arrangement_count, 1, WER_ARRANGEMENTS)},
     {"seed", 0, "S", "seed of orders and of confidence intervals (default: 1)",
      SETS_SEED(wer_job, seed)},
     {"language", 'l', "L",
      "spoken language, or auto; numbers, titles and spellings are always\n"
      "normalised as English (default: en)",
      TAKEN_BY(take_language)},
     {"beam-size", 'b', "B", "beam size, 1 to 64; 1 is greedy decoding (default: 1)",
      SETS_INTEGER(wer_job, beams, 1, MOST_BEAMS)},
     {"batch", 0, "B",
      "number of windows processed in parallel, 1 to 64\n"
      "(default: 16, or as many as fit into 256 MiB)",
      SETS_INTEGER(wer_job, batch, 1, MOST_BATCH)},
     {"limit", 0, "N", "use only the first N utterances (default: all)",
      SETS_INTEGER(wer_job, limit, 1, INT32_MAX)},
     THREADS_ROW(wer_job),
     ISA_ROW(wer_job),
     {"no-time", 0, NULL, "run the encoder once per window and do not time it",
      SETS_FLAG(wer_job, no_time)},
     {"plot", 0, "FILE", "plot word error rate against encoder time (.svg or .png)",
      SETS_TEXT(wer_job, plot_path), .take = plot_option},
     {"json", 0, NULL, "print one JSON object instead of the table",
      SETS_FLAG(wer_job, json)},
     {"texts", 0, NULL, "with --json: include the text of every kind",
      SETS_FLAG(wer_job, texts)},
     HELP_ROW,
     {0}};

const command_help wer_help = {
    "wer",
    "wer DIR --model MODEL [options]",
    "Measures the word error rate of a Whisper model with each kind of attention in its\n"
    "encoder, and the time of the encoder. DIR and its subfolders have recordings and\n"
    "transcripts.txt, or LibriSpeech's *.trans.txt: each line is the name of a "
    "recording\n"
    "in the same folder, without extension, and its text. Or Kaldi's wav.scp, with "
    "names\n"
    "and paths of recordings, and text, with names and texts.\n",
    rows,
    "Decoding uses temperature 0 and no timestamps (timestamps for recordings beyond 30 "
    "s),\n"
    "unless --vad, --join or a kind's @MODE selects the processing of shoal transcribe\n"
    "(no-vad and published: with these options). Both texts are normalised: lower case, "
    "no\n"
    "punctuation, numbers as digits, contractions and titles spelled out, American\n"
    "spelling. Confidence intervals are 95 %, by the bootstrap over utterances; the\n"
    "difference from full is paired. Encoder times are of one window of 30 s, "
    "convolutions\n"
    "included, after a warm-up run of the same window. Ctrl-C prints the windows "
    "measured\n"
    "so far; a second one exits at once.\n",
    "DIR"};

/* ---- Arrangements ------------------------------------------------------------------ */

/* Reads the lengths of the utterances and arranges them. */
static void arrange(wer_job *job) {
    static const double gaps[] = {0, 0.25, 1, 2, 0.5};
    const double most = job->join > 0 ? 60 * job->join : WER_WINDOW_SECONDS;
    const shoal_speech_info info = *shoal_speech_describe(job->speech);
    const size_t utterances = (size_t)job->utterance_count,
                 arrangements = (size_t)job->arrangement_count;
    float *features = reserve((size_t)info.mels * (size_t)info.frames, sizeof *features);
    int *order = reserve(utterances, sizeof *order);
    job->arrangements = reserve_zeros(arrangements, sizeof *job->arrangements);
    job->windows = reserve_zeros(utterances * arrangements, sizeof *job->windows);
    job->members = reserve_zeros(utterances * arrangements, sizeof *job->members);
    job->errors = reserve_zeros(utterances * arrangements * (size_t)job->kind_count,
                                sizeof *job->errors);
    for (int i = 0; i < job->utterance_count; i++) {
        const char *path = job->utterances[i].path;
        const shoal_recording recording = {.size = sizeof(shoal_recording),
                                           .paths = &path,
                                           .files = 1};
        progress_say("reading %d of %d recordings", i + 1, job->utterance_count);
        demand(shoal_speech_features(job->speech, &recording, 0, features,
                                     &job->utterances[i].seconds),
               EXIT_BAD_INPUT);
    }
    for (int at = 0; at < (int)job->arrangement_count; at++) {
        /* order: [utterance_count], an output. */
        wer_arrangement *arrangement = &job->arrangements[at];
        /* The first arrangement follows the options, the second has one utterance per
           window, the others have other orders and gaps. */
        *arrangement = (wer_arrangement){job->per_window, job->gap, job->shuffle,
                                         job->seed + (uint64_t)at, 0};
        if (job->join > 0) {
            arrangement->per_window = INT64_MAX;
            arrangement->shuffled = job->shuffle || at > 0;
        } else if (at == 1) {
            arrangement->per_window = job->per_window > 1 ? 1 : 2;
            arrangement->shuffled = false;
        } else if (at > 1) {
            arrangement->per_window = job->per_window > 1 ? job->per_window : 2;
            arrangement->gap = gaps[(at - 2) % 5];
            arrangement->shuffled = true;
        }
        for (int i = 0; i < job->utterance_count; i++)
            order[i] = i;
        for (int i = job->utterance_count - 1; arrangement->shuffled && i > 0; i--) {
            const uint64_t drawn = mix_bits(mix_bits(arrangement->seed) + (uint64_t)i);
            const int other = (int)(drawn % ((uint64_t)i + 1)), before = order[i];
            order[i] = order[other];
            order[other] = before;
        }
        for (int first = 0; first < job->utterance_count;) {
            const size_t place = (size_t)at * (size_t)job->utterance_count +
                                 (size_t)first;
            wer_window *window = &job->windows[job->window_count++];
            window->arrangement = at;
            window->members = job->members + place;
            /* Takes the next utterances that fit into one window or recording. */
            while (first + window->count < job->utterance_count &&
                   window->count < arrangement->per_window) {
                const int next = order[first + window->count];
                const double more = job->utterances[next].seconds +
                                    (window->count > 0 ? arrangement->gap : 0);
                if (window->count > 0 && window->seconds + more > most)
                    break;
                window->seconds += more;
                window->members[window->count++] = next;
            }
            for (int kind = 0; kind < job->kind_count; kind++)
                window->errors[kind] = job->errors + place * (size_t)job->kind_count +
                                       kind * window->count;
            first += window->count;
            arrangement->windows++;
        }
    }
    free(features);
    free(order);
}

/* ---- One kind on one window -------------------------------------------------------- */

/* Kinds alternate on each window, so that other load on the machine affects all of
   them. A kind's encoder runs once per window, and is run again and timed on the first
   WER_TIMED windows. */
typedef struct {
    wer_job *job;
    wer_window *window;
    const char **paths; /* [utterances] */
    shoal_recording recording;
    int64_t size;                   /* elements of an encoder's output */
    float *features;                /* [mels][frames] */
    float *exact, *encoded, *again; /* [size] */
} wer_run;

static void demand_call(const wer_run *run, shoal_status status, const char *kind) {
    if (status != SHOAL_OK)
        complain(EXIT_BAD_INPUT, "wer", "%s on %s:", kind, run->paths[0]);
    demand(status, EXIT_BAD_INPUT);
}

static int collect(void *user, const shoal_segment *segment) {
    fprintf(user, "%s ", segment->text);
    return 0;
}

/* Transcribes a window by greedy or beam search at temperature 0, without timestamps
   unless they are requested or a single recording is longer than the window, which is
   then processed from its beginning. Other modes work like shoal transcribe; the
   encoder's time is that of one window. */
static shoal_status hear(const wer_run *run, wer_kind *kind, const float *encoded,
                         FILE *to) {
    const wer_job *job = run->job;
    const bool window = kind->mode == WER_WINDOW;
    const bool longer = run->window->count == 1 &&
                        run->window->seconds >= WER_WINDOW_SECONDS;
    const shoal_transcribe_options options = {.size = sizeof(shoal_transcribe_options),
                                              .language = job->language,
                                              .beams = (int)job->beams,
                                              .no_timestamps = window && !longer &&
                                                               !job->timestamps,
                                              .no_vad = window ||
                                                        kind->mode == WER_NO_VAD,
                                              .no_fallback = window,
                                              .published = kind->mode == WER_PUBLISHED};
    if (window && !longer)
        return shoal_speech_decode(job->models[kind->precision], encoded,
                                   run->window->seconds, &options, collect, to, NULL);
    shoal_transcription summary;
    const shoal_status status = shoal_speech_transcribe(job->models[kind->precision],
                                                        &run->recording, &options,
                                                        collect, to, &summary);
    if (window) {
        run->window->seconds = status == SHOAL_OK ? summary.seconds
                                                  : run->window->seconds;
        return status;
    }
    if (job->done < WER_TIMED)
        kind->encoder_seconds[job->done] =
            summary.windows > 0 ? summary.encoder_seconds / (double)summary.windows : 0;
    kind->output_errors[job->done] = NAN;
    return status;
}

static void try_kind(wer_run *run, int index) {
    wer_job *job = run->job;
    wer_kind *kind = &job->kinds[index];
    shoal_speech *speech = job->models[kind->precision];
    float *out = index == job->reference ? run->exact : run->encoded;
    size_t size;
    progress_say("window %d of %d, %s", job->done + 1, job->window_count, kind->spelling);
    demand_call(run, shoal_speech_set_attention(speech, kind->attention), kind->spelling);
    if (kind->mode == WER_WINDOW) {
        demand_call(run, shoal_speech_encode(speech, run->features, out), kind->spelling);
        kind->output_errors[job->done] = job->kinds[job->reference].mode == WER_WINDOW
                                             ? relative_error(out, run->exact, run->size)
                                             : NAN;
        if (job->done < WER_TIMED && !job->no_time) {
            /* A time counts only if the result is reproduced. */
            const double begun = seconds_now();
            const shoal_status status =
                shoal_speech_encode(speech, run->features, run->again);
            kind->encoder_seconds[run->job->done] = seconds_now() - begun;
            demand_call(run, status, kind->spelling);
            if (memcmp(out, run->again, (size_t)run->size * sizeof *out) != 0)
                die(EXIT_FAILURE,
                    "WRONG: %s on %s: a repeated call gave a different output; please "
                    "report it",
                    kind->spelling, run->paths[0]);
        }
    }
    FILE *to = open_memstream(&run->window->texts[index], &size);
    if (!to)
        die_of_memory();
    const shoal_status status = hear(run, kind, out, to);
    fclose(to);
    demand_call(run, status, kind->spelling);
}

static void measure(wer_job *job) {
    const shoal_speech_info info = *shoal_speech_describe(job->speech);
    wer_run run = {.job = job, .size = (int64_t)info.positions * info.width};
    const double begun = seconds_now();
    run.features = reserve((size_t)info.mels * (size_t)info.frames, sizeof(float));
    run.exact = reserve(3 * (size_t)run.size, sizeof(float));
    run.encoded = run.exact + run.size;
    run.again = run.encoded + run.size;
    run.paths = reserve((size_t)job->utterance_count, sizeof *run.paths);
    const char **references = reserve((size_t)job->utterance_count, sizeof *references);
    for (int kind = 0; kind < job->kind_count; kind++)
        job->kinds[kind].output_errors =
            reserve_zeros((size_t)job->window_count, sizeof(double));
    watch_stop();
    for (int at = 0; at < job->window_count && !stop_signal(); at++) {
        wer_window *window = run.window = &job->windows[at];
        for (int i = 0; i < window->count; i++) {
            run.paths[i] = job->utterances[window->members[i]].path;
            references[i] = job->utterances[window->members[i]].text;
        }
        run.recording =
            (shoal_recording){.size = sizeof(shoal_recording),
                              .paths = run.paths,
                              .files = window->count,
                              .gap = job->arrangements[window->arrangement].gap};
        demand(shoal_speech_features(job->speech, &run.recording, 0, run.features, NULL),
               EXIT_BAD_INPUT);
        /* The reference first: the others are compared with it. */
        try_kind(&run, job->reference);
        for (int kind = 0; kind < job->kind_count && !stop_signal(); kind++)
            if (kind != job->reference)
                try_kind(&run, kind);
        if (stop_signal())
            break;
        for (int kind = 0; kind < job->kind_count; kind++)
            demand(shoal_count_part_errors(job->context, references, window->count,
                                           window->texts[kind], window->errors[kind]),
                   EXIT_BAD_INPUT);
        job->done++;
    }
    job->interrupted = stop_signal() != 0;
    job->seconds = seconds_now() - begun;
    free(run.features);
    free(run.exact);
    free(run.paths);
    free(references);
}

/* ---- The command ------------------------------------------------------------------- */

static int printed; /* exit code of printing */

static void print_result(void *job) {
    if (((const wer_job *)job)->json)
        printed = wer_print_json(job);
    else
        wer_print(job);
}

/* Every kind with every precision, where some are asked for. */
static void cross_precisions(wer_job *job) {
    const int kinds = job->kind_count, count = job->precision_count;
    if (count == 0)
        job->precision_count = 1;
    if (kinds * count > KINDS_MOST)
        die(EXIT_USAGE, "%d kinds with %d precisions; there may be %d at most", kinds,
            count, KINDS_MOST);
    for (int i = kinds * count - 1; i >= 0; i--) {
        wer_kind *kind = &job->kinds[i];
        char spelling[KIND_NAME];
        *kind = job->kinds[i % kinds];
        kind->precision = job->precisions[i / kinds];
        snprintf(spelling, sizeof spelling, "%.100s/%s", kind->spelling,
                 precision_names[kind->precision]);
        memcpy(kind->spelling, spelling, sizeof spelling);
    }
    job->kind_count = kinds * job->precision_count;
}

static void open_models(wer_job *job) {
    shoal_status status = SHOAL_OK;
    for (int i = job->precision_count - 1; i >= 0 && status == SHOAL_OK; i--) {
        const int precision = job->precisions[i];
        const shoal_speech_options options = {.size = sizeof options,
                                              .beams = (int)(job->beams < SAMPLES
                                                                 ? SAMPLES
                                                                 : job->beams),
                                              .force = job->force,
                                              .batch = (int)job->batch,
                                              .precision = precision};
        progress_say("opening %s", job->model);
        status = shoal_speech_open(job->context, job->model, &options,
                                   &job->models[precision]);
        job->speech = job->models[precision];
    }
    for (int i = 0; i < job->kind_count && status == SHOAL_OK; i++)
        status = shoal_speech_set_attention(job->speech, job->kinds[i].attention);
    demand(status, status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT);
}

int wer_command(int count, char **arguments) {
    static wer_job job = {.language = "en",
                          .per_window = DEFAULT_PER_WINDOW,
                          .gap = DEFAULT_GAP,
                          .beams = 1,
                          .arrangement_count = 1,
                          .seed = 1};
    job.model = default_model("SHOAL_SPEECH_MODEL");
    const int ended = take_options(&wer_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    default_kinds(&job.list, DEFAULT_KINDS);
    job.reference = place_full(&job.list, "attention", KINDS_MOST);
    job.kind_count = job.list.count;
    /* KIND@MODE; the mode defaults to that of the options. A misspelt kind is a usage
       error; the shortest spelling is shown. */
    for (int i = 0; i < job.kind_count; i++) {
        const char *spelling = job.list.names[i], *at = strchr(spelling, '@');
        int mode = job.vad || job.join > 0 ? WER_VAD : WER_WINDOW;
        if (at)
            for (mode = job.join > 0;
                 wer_modes[mode] && strcmp(at + 1, wer_modes[mode]) != 0;)
                mode++;
        if (!wer_modes[mode])
            die(EXIT_USAGE,
                "--attention has %s; the mode after @ must be%s vad, no-vad or published",
                spelling, job.join > 0 ? "" : " window,");
        snprintf(job.kinds[i].attention, KIND_NAME, "%.*s", (int)strcspn(spelling, "@"),
                 spelling);
        job.kinds[i].mode = mode;
    }
    if (count - optind != 1)
        die(EXIT_USAGE, "%s; usage: shoal %s",
            optind < count ? "give one folder" : "no folder was given", wer_help.usage);
    if (!job.model || !*job.model)
        die(EXIT_USAGE, NO_SPEECH_MODEL);
    job.folder = arguments[optind];
    plan_output(job.plot_path);
    plan_input(job.model);
    job.context = begin_context(job.threads, job.isa);
    for (int i = 0; i < job.kind_count; i++) {
        shoal_attention parsed;
        wer_kind *kind = &job.kinds[i];
        const bool mode = strchr(job.list.names[i], '@') != NULL;
        demand(shoal_attention_parse(job.context, kind->attention, &parsed), EXIT_USAGE);
        shoal_attention_print(&parsed, kind->attention, KIND_NAME);
        snprintf(kind->spelling, KIND_NAME, "%.100s%s%s", kind->attention,
                 mode ? "@" : "", mode ? wer_modes[kind->mode] : "");
    }
    cross_precisions(&job);
    progress_begin(1);
    open_models(&job);
    wer_read_folder(&job);
    arrange(&job);
    measure(&job);
    progress_end();
    before_leaving(print_result, &job); /* also if the picture cannot be written */
    if (job.plot_path)
        wer_write_plot(&job);
    before_leaving(NULL, NULL);
    print_result(&job);
    return printed == EXIT_OK && job.interrupted ? 128 + stop_signal() : printed;
}
