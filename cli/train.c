/* shoal train: the command line, and functions shared with shoal repro. */
#define _GNU_SOURCE
#include "train.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "command.h"

enum { DEFAULT_SAVE = 60 };

/* ---- Settings ---------------------------------------------------------------------- */

/* Finds a field of any task. */
static const shoal_field *find_field(const char *name) {
    const shoal_field *found = NULL;
    for (int i = 0; shoal_task_name(i) && !found; i++)
        found = shoal_task_field_find(shoal_task_find(shoal_task_name(i)), name);
    return found;
}

static int refuse_field(const train_settings *settings, const char *name) {
    const char *names[256];
    int count = 0;
    const shoal_field *field;
    for (int t = 0; shoal_task_name(t); t++)
        for (int i = 0;
             (field = shoal_task_field(shoal_task_find(shoal_task_name(t)), i)); i++)
            if (count < 256)
                names[count++] = field->name;
    const char *near = closest_name(name, names, count, sizeof *names);
    return complain(
        settings->file ? EXIT_BAD_INPUT : EXIT_USAGE, settings->command,
        near ? "%s%sthere is no field \"%s\"; did you mean %s?"
             : "%s%sthere is no field \"%s\"; shoal train %s --print-config lists all",
        settings->file ? settings->file : "", settings->file ? ": " : "", name,
        near             ? near
        : settings->task ? settings->task
                         : "TASK");
}

int settings_add(train_settings *settings, const char *name, const char *text) {
    if (!find_field(name))
        return refuse_field(settings, name);
    if (settings->count == TRAIN_SETTINGS)
        return complain(EXIT_USAGE, settings->command,
                        "more than %d settings; combine them in a file for --config",
                        TRAIN_SETTINGS);
    if (strlen(text) >= SHOAL_VALUE_SIZE)
        return complain(EXIT_USAGE, settings->command, "%s: \"%.40s...\" is too long",
                        name, text);
    const int at = settings->count++;
    snprintf(settings->list[at].name, sizeof settings->list[at].name, "%s", name);
    snprintf(settings->list[at].text, sizeof settings->list[at].text, "%s", text);
    settings->list[at].file = settings->file;
    return EXIT_OK;
}

const char *settings_find(const train_settings *settings, const char *name) {
    const shoal_field *field = find_field(name);
    for (int i = settings->count - 1; i >= 0; i--)
        if (find_field(settings->list[i].name) == field)
            return settings->list[i].text;
    return NULL;
}

int settings_add_pair(train_settings *settings, const char *pair) {
    char name[64];
    const size_t length = strcspn(pair, "=");
    if (!pair[length] || length == 0 || length >= sizeof name)
        return complain(EXIT_USAGE, settings->command,
                        "--set is \"%s\"; it must be KEY=VALUE", pair);
    snprintf(name, sizeof name, "%.*s", (int)length, pair);
    return settings_add(settings, name, pair + length + 1);
}

/* Converts a number, boolean or string to the text of an option. */
static bool value_text(const json_t *value, char *text, size_t size) {
    if (json_is_string(value))
        return (size_t)snprintf(text, size, "%s", json_string_value(value)) < size;
    if (json_is_integer(value))
        snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, size, "%.17g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(text, size, "%s", json_is_true(value) ? "true" : "false");
    else
        return false;
    return true;
}

int settings_add_file(train_settings *settings, const char *path) {
    json_t *object = load_json(settings->command, path);
    const char *key;
    json_t *value;
    int code = EXIT_OK;
    if (!object)
        return EXIT_BAD_INPUT;
    settings->file = path;
    if (!json_is_object(object))
        code = complain(EXIT_BAD_INPUT, settings->command,
                        "%s: it must contain one JSON object of fields", path);
    json_object_foreach(object, key, value) {
        char text[SHOAL_VALUE_SIZE];
        if (!value_text(value, text, sizeof text))
            code = complain(EXIT_BAD_INPUT, settings->command,
                            "%s: %s must be a number, true, false or a short string",
                            path, key);
        else
            code = settings_add(settings, key, text);
        if (code != EXIT_OK)
            break;
    }
    settings->file = NULL;
    json_decref(object);
    return code;
}

int settings_apply(const train_settings *settings, shoal_context *context,
                   const shoal_train_task *task, train_config *config) {
    for (int i = 0; i < settings->count; i++) {
        const char *file = settings->list[i].file;
        if (shoal_config_set(context, task, config, settings->list[i].name,
                             settings->list[i].text) != SHOAL_OK)
            return complain(file ? EXIT_BAD_INPUT : EXIT_USAGE, settings->command,
                            "%s%s%s", file ? file : "", file ? ": " : "",
                            shoal_context_message(context));
    }
    return EXIT_OK;
}

json_t *train_config_json(const shoal_train_task *task, const train_config *config) {
    char text[8192];
    shoal_config_json(task, config, text, sizeof text);
    return json_loads(text, 0, NULL);
}

/* ---- Runs -------------------------------------------------------------------------- */

bool train_path(const char *command, char path[TRAIN_PATH], const char *folder,
                const char *name) {
    const int length = snprintf(path, TRAIN_PATH, "%s/%s", folder, name);
    if (length >= 0 && length < TRAIN_PATH)
        return true;
    complain(EXIT_USAGE, command, "%.80s...: the path is too long", folder);
    return false;
}

static void show_step(const char *label, const shoal_train_progress *at) {
    const double accuracy = at->step->score.accuracy;
    const double left = at->steps > 0 ? at->elapsed / (double)at->steps *
                                            (double)(at->all - at->done)
                                      : (double)NAN;
    char time_left[32] = "?", right[32] = "";
    if (isfinite(left))
        snprintf(time_left, sizeof time_left,
                 left < 120    ? "%.0f s"
                 : left < 7200 ? "%.1f min"
                               : "%.1f h",
                 left < 120    ? left
                 : left < 7200 ? left / 60
                               : left / 3600);
    if (!isnan(accuracy))
        snprintf(right, sizeof right, "  right %.1f %%", 100 * accuracy);
    progress_say("%sstep %" PRId64 "/%" PRId64
                 "  loss %.4f%s  %.0f seq/s  at most %s left",
                 label, at->done, at->all, at->step->score.loss, right,
                 (double)at->sequences / at->elapsed, time_left);
}

static void show_progress(void *user, const shoal_train_progress *at) {
    const char *label = user;
    switch (at->event) {
    case SHOAL_TRAIN_EVENT_DATA:
        progress_begin(1);
        progress_say("features of %s: %" PRId64 " of %" PRId64, at->what, at->done,
                     at->all);
        break;
    case SHOAL_TRAIN_EVENT_BEGINNING:
        progress_begin(1);
        progress_say("%sfirst step", label);
        break;
    case SHOAL_TRAIN_EVENT_TEST:
        progress_begin(1);
        progress_say("%stesting", label);
        break;
    case SHOAL_TRAIN_EVENT_STEP:
    case SHOAL_TRAIN_EVENT_VALIDATION:
        progress_begin(1); /* a message may have ended it */
        show_step(label, at);
        break;
    case SHOAL_TRAIN_EVENT_SAVING: writing_begin(); break;
    case SHOAL_TRAIN_EVENT_SAVED: writing_end(); break;
    case SHOAL_TRAIN_EVENT_END: progress_end(); break;
    case SHOAL_TRAIN_EVENT_EVALUATION:
        progress_begin(2);
        if (at->all)
            progress_say("%s, %" PRId64 " of %" PRId64, at->what, at->done, at->all);
        else
            progress_say("%s", at->what);
        break;
    }
}

static void show_message(void *user, const char *text) {
    (void)user;
    if (*text == ' ') /* continues the previous line */
        tell("%s", text);
    else
        complain(EXIT_OK, command_name(), "%s", text);
}

static int is_cancelled(void *user) {
    (void)user;
    return stop_signal() != 0;
}

shoal_train_callbacks show_training(const char *label) {
    return (shoal_train_callbacks){.user = (char *)label, /* not modified */
                                   .progress = show_progress,
                                   .message = show_message,
                                   .cancelled = is_cancelled};
}

int train_go(train_run *run, shoal_context *context) {
    static const int codes[] = {[SHOAL_RUN_CAUSE_NONE] = EXIT_OK,
                                [SHOAL_RUN_CAUSE_SETTINGS] = EXIT_USAGE,
                                [SHOAL_RUN_CAUSE_INPUT] = EXIT_BAD_INPUT,
                                [SHOAL_RUN_CAUSE_OUTPUT] = EXIT_RESOURCES};
    shoal_setting said[TRAIN_SETTINGS];
    shoal_run_options *options = &run->options;
    for (int i = 0; i < run->settings->count; i++)
        said[i] =
            (shoal_setting){run->settings->list[i].name, run->settings->list[i].text};
    options->settings = said;
    options->setting_count = run->settings->count;
    options->callbacks = show_training(run->label);
    const int code = settings_apply(run->settings, context, run->task, &run->config);
    if (code != EXIT_OK)
        return code;
    const shoal_status status =
        shoal_train_run(context, run->task, &run->config, options, &run->result);
    progress_end();
    options->settings = NULL;
    run->stopped = status == SHOAL_CANCELLED && run->result.saved;
    if (status == SHOAL_OK || run->stopped)
        return EXIT_OK;
    if (status == SHOAL_CANCELLED)
        return 128 + (stop_signal() ? stop_signal() : SIGTERM);
    if (run->result.agreed)
        ranks_agreed();
    if (!run->result.agreed || ranks_first(options->transport))
        complain(EXIT_USAGE, run->command, "%s", shoal_context_message(context));
    return codes[run->result.cause];
}

/* ---- The command line -------------------------------------------------------------- */

typedef struct {
    train_run run;
    train_settings settings;
    int64_t threads, save_seconds;
    shoal_transport *ranks;
    const char *isa, *cache, *preset, *data, *dev, *model, *lexicon;
    bool json, print_config, skip_bad, resume;
    bool files;     /* first pass: only --config is processed */
    int files_code; /* exit code of the first pass */
} train_job;

/* Files are read first, so that flags win in any position. */
static bool take_config(void *shared, const char *name, const char *value) {
    train_job *job = shared;
    (void)name;
    if (job->files)
        job->files_code = will_read("train", value);
    if (job->files && job->files_code == EXIT_OK)
        job->files_code = settings_add_file(&job->settings, value);
    return job->files_code == EXIT_OK;
}

static bool take_field(void *shared, const char *name, const char *value) {
    train_job *job = shared;
    return job->files || settings_add(&job->settings, name, value) == EXIT_OK;
}

static bool take_pair(void *shared, const char *name, const char *value) {
    train_job *job = shared;
    (void)name;
    return job->files || settings_add_pair(&job->settings, value) == EXIT_OK;
}

static const option_row rows[] = {
    {"attention", 0, "KIND", "attention kind, as in shoal kinds (default: full)",
     TAKEN_BY(take_field)},
    {"length", 0, "L",
     "copy: symbols of w in 0w0w; a sequence has 2 L + 2 positions\n"
     "(default: 31)",
     TAKEN_BY(take_field)},
    {"labels", 0, "FILE",
     "speech: name of the transcript file in the data folders\n"
     "(default: text)",
     TAKEN_BY(take_field)},
    {"loss", 0, "NAME", "speech: ctc or lf-mmi (default: ctc)", TAKEN_BY(take_field)},
    {"lexicon", 0, "FILE",
     "speech, lf-mmi: pronunciation lexicon in the format of Kaldi or\n"
     "CMUdict; several files separated by commas",
     SETS_TEXT(train_job, lexicon)},
    {"units", 0, "NAME",
     "speech: words, characters or subwords of the transcripts (default:\n"
     "auto, which means characters for text, words for another file and\n"
     "for lf-mmi)",
     TAKEN_BY(take_field)},
    {"preset", 0, "NAME",
     "speech: default, for hours of speech on two cores, or paper\n"
     "(default: default)",
     SETS_TEXT(train_job, preset)},
    {"join", 0, "SECONDS",
     "speech: concatenate utterances of a speaker up to this length\n"
     "(default: 0, none)",
     TAKEN_BY(take_field)},
    {"data", 0, "FILE", "glue: folder with one folder per task; squad: train.json",
     SETS_TEXT(train_job, data)},
    {"dev", 0, "FILE", "squad: dev.json", SETS_TEXT(train_job, dev)},
    {"model", 'm', "DIR",
     "glue, squad: Hugging Face folder of the BERT or RoBERTa to start\n"
     "from",
     SETS_TEXT(train_job, model)},
    {"epochs", 0, "N",
     "passes over the data (default: 25 for speech, 4 for glue, 2 for\n"
     "squad)",
     TAKEN_BY(take_field)},
    {"from", 0, "RUN",
     "start from the best weights of another run, or from a file in it;\n"
     "the state of the optimizer is not copied",
     SETS_TEXT(train_job, run.options.from)},
    {"cache", 0, "DIR",
     "speech: folder for features, which are computed once\n"
     "(default: shoal in the user's cache folder)",
     SETS_TEXT(train_job, cache)},
    {"skip-bad", 0, NULL, "skip utterances and rows that cannot be used",
     SETS_FLAG(train_job, skip_bad)},
    {"layers", 0, "N", "encoder layers (default: 4)", TAKEN_BY(take_field)},
    {"steps", 0, "N",
     "total number of steps (default: 5000 for copy; otherwise 0, as many\n"
     "as the epochs need)",
     TAKEN_BY(take_field)},
    {"batch", 0, "N",
     "sequences per step, for speech at most (default: 32; 64 for\n"
     "speech, 16 for squad)",
     TAKEN_BY(take_field)},
    {"learning-rate", 0, "X",
     "learning rate (default: 0.0002; speech 0.0015, with lf-mmi 0.001;\n"
     "glue and squad 0.0001)",
     TAKEN_BY(take_field)},
    {"seed", 0, "S", "seed of weights, data and dropout (default: 1)",
     TAKEN_BY(take_field)},
    {"config", 0, "FILE", "JSON object of fields, as --print-config prints it; flags win",
     TAKEN_BY(take_config), .repeats = true},
    {"set", 0, "KEY=VALUE", "set any field; may be repeated", TAKEN_BY(take_pair)},
    {"print-config", 0, NULL, "print the complete configuration as JSON and exit",
     SETS_FLAG(train_job, print_config)},
    {"out", 'o', "DIR",
     "folder for " SHOAL_RUN_CHECKPOINT " and " SHOAL_RUN_LOG ";\n"
     "created if it is missing",
     SETS_TEXT(train_job, run.options.folder)},
    {"resume", 0, NULL,
     "continue from the checkpoint in the folder, or start if there is\n"
     "none; the configuration is the checkpoint's, except --steps",
     SETS_FLAG(train_job, resume)},
    {"save-seconds", 0, "S",
     "seconds between checkpoints; 0: after every step (default: 60)",
     SETS_INTEGER(train_job, save_seconds, 0, 1000000)},
    {"average-every", 0, "K",
     "under mpirun: ranks train separately, and every K steps their\n"
     "weights are averaged (default: 0, gradients are summed every step)",
     TAKEN_BY(take_field)},
    {"threads", 0, "T",
     "number of threads (default: 0, one per processor; under mpirun the\n"
     "processors of each rank); results do not depend on it",
     SETS_INTEGER(train_job, threads, 0, 4096)},
    ISA_ROW(train_job),
    {"json", 0, NULL, "print the result as one JSON object", SETS_FLAG(train_job, json)},
    HELP_ROW,
    {0}};

const command_help train_help = {
    "train",
    "train copy|speech DATA|glue TASK|squad --out DIR [options]",
    "Trains a transformer encoder.\n"
    "\n"
    "copy: the masked copy task. Sequences are 0w0w, where w has L symbols from 1 to "
    "10;\n"
    "a fifth of the symbols are masked, never both copies of one, and must be "
    "predicted.\n"
    "The defaults are the paper's: 4 layers, 6 heads of dimension 32, feed-forward 768,\n"
    "sinusoidal positions, R-Adam with learning rate 0.0002, gradient clipping at 10,\n"
    "weight decay 0.01, batches of 32, 5000 steps, learning rate halved when the\n"
    "validation loss stops improving.\n"
    "\n"
    "speech: a recogniser trained with CTC, or with lattice-free MMI, whose outputs "
    "model\n"
    "phones: then the transcripts contain words and the lexicon their phones. DATA has\n"
    "the folders train and dev in Kaldi's format: wav.scp, text (or the file of "
    "--labels)\n"
    "and optionally segments and utt2spk. All recordings are read before the first "
    "step.\n"
    "The model with the lowest error on dev is saved as\n" SHOAL_RUN_BEST
    "; shoal eval and shoal recognise use it.\n"
    "\n"
    "glue, squad: fine-tunes a BERT or RoBERTa on a task of GLUE (CoLA, SST-2, MRPC,\n"
    "STS-B, QQP, MNLI, QNLI, RTE, WNLI; files as GLUE publishes them) or on SQuAD.\n"
    "AdamW with warm-up and linear decay to 0; dropout as in the model's config.json,\n"
    "but none on attention weights. The run is also a Hugging Face folder with the\n"
    "weights of the best epoch on dev; shoal eval, shoal answer and shoal embed use "
    "it.\n",
    rows,
    "Validation uses new data every validate_every steps. The log has one JSON object "
    "per\n"
    "line; shoal plot draws it. Ctrl-C saves a checkpoint and prints the command to\n"
    "resume. After a crash only the steps since the last checkpoint are lost; --resume\n"
    "reproduces the results of an uninterrupted run bit for bit.\n"
    "\n"
    "Under mpirun each rank processes its share of every batch (docs/scale.md).\n",
    "copy|speech|glue|squad DIR"};

/* ---- Results ----------------------------------------------------------------------- */

static json_t *score_json(const shoal_train_score *score) {
    return json_pack("{s:o, s:o, s:I, s:I, s:o*, s:o*}", "loss", json_number(score->loss),
                     "accuracy", json_number(score->accuracy), "correct",
                     (json_int_t)score->correct, "counted", (json_int_t)score->counted,
                     "impossible",
                     score->impossible ? json_integer(score->impossible) : NULL, "broken",
                     score->broken ? json_integer(score->broken) : NULL);
}

static bool is_text(const train_run *run) {
    return strcmp(run->task->name, "glue") == 0 || strcmp(run->task->name, "squad") == 0;
}

static void report(const train_run *run) {
    const shoal_run_result *result = &run->result;
    const shoal_train_state *state = &result->state;
    const shoal_train_score *last = &result->last_step.score;
    const char *folder = run->options.folder;
    char kind[SHOAL_VALUE_SIZE];
    shoal_attention_print(&run->config.train.model.attention, kind, sizeof kind);
    printf("%s, %s: %" PRId64 " of %" PRId64 " steps, %s\n", run->task->name, kind,
           state->step, run->config.train.steps, seconds_text(state->seconds));
    if (result->stepped && isnan(last->accuracy))
        printf("last step    loss %.6f\n", last->loss);
    else if (result->stepped)
        printf("last step    loss %.6f  right %.2f %%\n", last->loss,
               100 * last->accuracy);
    if (isfinite(result->loss_share))
        printf("the loss     %.1f %% of the steps' time\n", 100 * result->loss_share);
    if (result->validated) {
        printf("validation   ");
        if (!result->validation.metric || isfinite(result->validation.loss))
            printf("loss %.6f  ", result->validation.loss);
        if (!result->validation.metric)
            printf("right %.2f %%", 100 * result->validation.accuracy);
        else
            printf("%s %.4f", result->validation.metric, result->validation.accuracy);
        if (result->validation.second)
            printf("  %s %.4f", result->validation.second,
                   result->validation.second_value);
        putchar('\n');
        if (result->validation.impossible)
            printf("             %" PRId64 " sequences have more labels than positions\n",
                   result->validation.impossible);
    }
    if (result->tested)
        printf("test         loss %.6f  right %.2f %% (%" PRId64 " of %" PRId64 ")\n",
               result->test.loss, 100 * result->test.accuracy, result->test.correct,
               result->test.counted);
    if (state->best_step > 0 && is_text(run))
        printf("best         step %" PRId64 "  %s %.4f  %s\n", state->best_step,
               result->validation.metric ? result->validation.metric : "score",
               1 - state->best, folder);
    else if (state->best_step > 0)
        printf("best         step %" PRId64 "  error rate %.2f %%  %s/%s\n",
               state->best_step, 100 * state->best, folder, SHOAL_RUN_BEST);
    printf("%s/%s\n%s/%s\n", folder, SHOAL_RUN_CHECKPOINT, folder, SHOAL_RUN_LOG);
    fflush(stdout);
}

/* Quotes a word that a shell would split or expand. */
static void print_word(FILE *file, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_-+=:,./";
    if (*word && word[strspn(word, plain)] == 0) {
        fprintf(file, " %s", word);
        return;
    }
    fputs(" '", file);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", file);
        else
            fputc(*word, file);
    fputc('\'', file);
}

/* " --NAME WORD"; nothing if word is NULL. */
static void print_option(const char *name, const char *word) {
    if (!word)
        return;
    fprintf(stderr, " --%s", name);
    print_word(stderr, word);
}

static int interrupted(const train_job *job) {
    const int code = 128 + (stop_signal() ? stop_signal() : SIGTERM);
    const train_run *run = &job->run;
    char steps[32];
    if (!ranks_first(job->ranks))
        return code;
    fprintf(stderr,
            "shoal train: interrupted after step %" PRId64
            "; the checkpoint is written. To resume:\n"
            "  shoal train %s",
            run->result.state.step, run->task->name);
    if (strcmp(run->task->name, "glue") == 0)
        print_word(stderr, run->config.glue.dataset);
    if (strcmp(run->task->name, "speech") == 0)
        print_word(stderr, run->config.speech.folder);
    if (is_text(run))
        print_option("data", job->data);
    print_option("dev", is_text(run) ? job->dev : NULL);
    fputs(" --resume", stderr);
    print_option("out", run->options.folder);
    snprintf(steps, sizeof steps, "%" PRId64, run->config.train.steps);
    print_option("steps", steps);
    print_option("cache", job->cache);
    print_option("lexicon", job->lexicon);
    if (job->skip_bad)
        fputs(" --skip-bad", stderr);
    print_option("isa", job->isa); /* another instruction set rounds differently */
    fputs(job->ranks ? "\n"
                       "under mpirun, with any number of ranks\n"
                     : "\n",
          stderr);
    return code;
}

/* ---- The command ------------------------------------------------------------------- */

/* Checks outputs against the files of --config; a new folder has none. */
static void check_files(const char *folder) {
    static const char *const names[] = {SHOAL_RUN_CHECKPOINT, SHOAL_RUN_LOG,
                                        SHOAL_RUN_BEST, "model.safetensors",
                                        "config.json"};
    struct stat information;
    char path[TRAIN_PATH];
    if (stat(folder, &information) != 0 || !S_ISDIR(information.st_mode))
        return;
    for (int i = 0; i < 5; i++) {
        if (!train_path("train", path, folder, names[i]))
            leave(EXIT_USAGE);
        plan_output(path);
    }
}

static int train(train_job *job, shoal_context *context) {
    train_run *run = &job->run;
    if (!run->options.folder)
        die_of_usage("no folder was given");
    check_files(run->options.folder);
    watch_stop();
    int code = train_go(run, context);
    if (code != EXIT_OK)
        return code;
    if (run->stopped)
        ranks_agreed(); /* all ranks stopped */
    if (ranks_first(job->ranks) && job->json) {
        const shoal_run_result *result = &run->result;
        code = print_json(
            json_pack("{s:o, s:o, s:I, s:b, s:o, s:o, s:o, s:o*, s:o*}", "config",
                      train_config_json(run->task, &run->config), "folder",
                      json_text(run->options.folder), "steps",
                      (json_int_t)result->state.step, "finished", result->finished,
                      "seconds", json_number(result->state.seconds),
                      "sequences_per_second", json_number(result->sequences_per_second),
                      "loss_share", json_number(result->loss_share), "validation",
                      result->validated ? score_json(&result->validation) : NULL, "test",
                      result->tested ? score_json(&result->test) : NULL));
    } else if (ranks_first(job->ranks))
        report(run);
    return code == EXIT_OK && run->stopped ? interrupted(job) : code;
}

/* Spelling of a GLUE task as GLUE publishes it. */
static const char *find_dataset(const char *word) {
    char names[256] = "";
    const shoal_glue_info *glue;
    for (int i = 0; (glue = shoal_glue_describe(i)); i++) {
        if (strcasecmp(glue->name, word) == 0)
            return glue->name;
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", glue->name);
    }
    die(EXIT_USAGE, "GLUE has no task %s; tasks: %s", word, names);
}

/* Takes the positional arguments after the task, which say where the data is. */
static void take_data(train_job *job, int count, char **words) {
    train_config *config = &job->run.config;
    const char *task = words[0];
    const bool speech = strcmp(task, "speech") == 0, glue = strcmp(task, "glue") == 0;
    if (count > 1 + (speech || glue))
        die_of_usage(speech ? "give one data folder" : "give one task");
    if (count < 1 + (glue || (speech && !job->print_config)))
        die_of_usage(speech ? "no data folder was given" : "no GLUE task was given");
    if (speech) {
        config->speech.folder = words[1];
        config->speech.lexicon = job->lexicon;
        config->speech.cache = job->cache;
        config->speech.skip_bad = job->skip_bad;
    } else if (glue) {
        config->glue.folder = job->data;
        config->glue.model_folder = job->model;
        config->glue.skip_bad = job->skip_bad;
        if (settings_add(&job->settings, "dataset", find_dataset(words[1])) != EXIT_OK)
            leave(EXIT_USAGE);
    } else if (strcmp(task, "squad") == 0) {
        config->squad.folder = job->data;
        config->squad.dev = job->dev;
        config->squad.model_folder = job->model;
        config->squad.skip_bad = job->skip_bad;
    }
}

/* Finds the task and its defaults; lf-mmi has its own. */
static void take_task(train_job *job, const char *name) {
    train_run *run = &job->run;
    const char *loss = settings_find(&job->settings, "loss"), *preset = job->preset;
    const bool paper = preset && strcmp(preset, "paper") == 0;
    const size_t size = sizeof run->config;
    run->task = shoal_task_find(name);
    if (!run->task)
        die(EXIT_USAGE, "there is no task \"%.40s\"; tasks: copy, speech, glue, squad%s",
            name, shoal_task_find("speech") ? "" : " (speech was not built)");
    if (shoal_config_init(NULL, run->task, preset, &run->config, size) != SHOAL_OK)
        die(EXIT_USAGE,
            "there is no preset \"%.40s\" for %s; speech has default and paper", preset,
            name);
    if (loss && strcmp(loss, "lf-mmi") == 0 && strcmp(name, "speech") == 0)
        shoal_config_init(NULL, run->task, paper ? "paper-lf-mmi" : "lf-mmi",
                          &run->config, size);
}

int train_command(int count, char **arguments) {
    static train_job job = {.run = {.command = "train",
                                    .label = "",
                                    .settings = &job.settings},
                            .settings = {.command = "train"},
                            .save_seconds = DEFAULT_SAVE};
    train_run *run = &job.run;
    int code = -1;
    run->options = shoal_run_options_defaults();
    if (count > 1 && shoal_task_find(arguments[1]))
        job.settings.task = arguments[1];
    for (int pass = 0; pass < 2 && code < 0; pass++) {
        job.files = pass == 0;
        code = take_options(&train_help, count, arguments, &job);
    }
    if (code >= 0)
        return job.files_code != EXIT_OK ? job.files_code : code;
    run->options.save_seconds = (double)job.save_seconds;
    run->options.resume = job.resume;
    if (count == optind)
        die_of_usage("no task was given");
    take_task(&job, arguments[optind]);
    take_data(&job, count - optind, arguments + optind);
    if (!job.print_config)
        job.ranks = begin_ranks("Only the time since the last checkpoint is lost: start "
                                "the job again with --resume");
    run->options.transport = job.ranks;
    if (job.threads == 0)
        job.threads = ranks_threads(job.ranks);
    shoal_context *context = begin_context(job.threads, job.isa);
    code = settings_add(&job.settings, "task", arguments[optind]);
    if (code == EXIT_OK && !job.print_config)
        return train(&job, context);
    if (code == EXIT_OK)
        code = settings_apply(&job.settings, context, run->task, &run->config);
    return code == EXIT_OK ? print_json(train_config_json(run->task, &run->config))
                           : code;
}
