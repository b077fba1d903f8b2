/* shoal train: the command line. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "speech_data.h"
#include "train.h"
#include "train/tasks/text.h"

enum { DEFAULT_SAVE = 60, DEFAULT_TEST = 20 };

typedef struct {
    train_run run;
    train_settings settings;
    int64_t threads, save_seconds;
    shoal_transport *ranks;
    const char *isa, *cache, *preset, *data, *dev, *model, *lexicon;
    bool json, print_config, skip_bad;
    bool files;     /* the options are gone through for --config alone */
    int files_code; /* what became of its files */
} train_job;

/* Files first, so that flags win wherever they stand. */
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
    {"attention", 0, "KIND", "as shoal kinds spells them (default: full)",
     TAKEN_BY(take_field)},
    {"length", 0, "L", "copy: symbols of w in 0w0w, 2 L + 2 positions (default: 31)",
     TAKEN_BY(take_field)},
    {"labels", 0, "FILE",
     "speech: the file of transcripts in the data folders\n(default: text)",
     TAKEN_BY(take_field)},
    {"loss", 0, "NAME", "speech: ctc or lf-mmi (default: ctc)", TAKEN_BY(take_field)},
    {"lexicon", 0, "FILE",
     "speech, lf-mmi: the words' phones, as Kaldi or CMUdict keep them;\n"
     "several with commas between",
     SETS_TEXT(train_job, lexicon)},
    {"units", 0, "NAME", "speech: words or characters of that file (default: words)",
     TAKEN_BY(take_field)},
    {"preset", 0, "NAME",
     "speech: default, what learns from hours of speech on two cores;\n"
     "or paper (default: default)",
     SETS_TEXT(train_job, preset)},
    {"join", 0, "SECONDS",
     "speech: utterances of a speaker one after another up to that\n"
     "length (default: 0, each alone)",
     TAKEN_BY(take_field)},
    {"data", 0, "FILE", "glue: the folder with a folder for each task; squad: train.json",
     SETS_TEXT(train_job, data)},
    {"dev", 0, "FILE", "squad: dev.json", SETS_TEXT(train_job, dev)},
    {"model", 'm', "DIR",
     "glue, squad: Hugging Face folder of a BERT or RoBERTa to begin\nwith",
     SETS_TEXT(train_job, model)},
    {"epochs", 0, "N",
     "times through the data (default: 25 for speech, 4 for glue, 2 for\n"
     "squad)",
     TAKEN_BY(take_field)},
    {"from", 0, "RUN",
     "begin with the weights of another run, its best unless a file of it\n"
     "is named; the optimizer begins afresh",
     SETS_TEXT(train_job, run.from)},
    {"cache", 0, "DIR",
     "speech: folder for features, which are computed once\n"
     "(default: shoal in the user's folder of caches)",
     SETS_TEXT(train_job, cache)},
    {"skip-bad", 0, NULL, "leave out utterances and rows that cannot be used",
     SETS_FLAG(train_job, skip_bad)},
    {"layers", 0, "N", "encoder layers (default: 4)", TAKEN_BY(take_field)},
    {"steps", 0, "N",
     "steps in all (default: 5000 for copy, else 0: as many as the\n"
     "epochs have)",
     TAKEN_BY(take_field)},
    {"batch", 0, "N",
     "sequences of a step, for speech at most (default: 32; 64 for\n"
     "speech, 16 for squad)",
     TAKEN_BY(take_field)},
    {"learning-rate", 0, "X",
     "(default: 0.0002); speech: 0.0015, with lf-mmi 0.001; glue,\nsquad: 0.0001",
     TAKEN_BY(take_field)},
    {"seed", 0, "S", "of weights, data and dropout (default: 1)", TAKEN_BY(take_field)},
    {"config", 0, "FILE", "an object of fields, as --print-config writes it; flags win",
     TAKEN_BY(take_config), .repeats = true},
    {"set", 0, "KEY=VALUE", "any field; may be repeated", TAKEN_BY(take_pair)},
    {"print-config", 0, NULL, "print the whole configuration as JSON and stop",
     SETS_FLAG(train_job, print_config)},
    {"out", 'o', "DIR",
     "folder for " TRAIN_CHECKPOINT " and " TRAIN_LOG ";\n"
     "made if it is missing",
     SETS_TEXT(train_job, run.folder)},
    {"resume", 0, NULL,
     "go on from the checkpoint in the folder, or begin where there is\n"
     "none; the configuration is the checkpoint's, --steps may differ",
     SETS_FLAG(train_job, run.resume)},
    {"save-seconds", 0, "S",
     "seconds between checkpoints; 0: after every step (default: 60)",
     SETS_INTEGER(train_job, save_seconds, 0, 1000000)},
    {"average-every", 0, "K",
     "under mpirun: ranks step alone, and every K steps their weights\n"
     "are averaged (default: 0, gradients are summed in every step)",
     TAKEN_BY(take_field)},
    {"threads", 0, "T",
     "threads (default: 0, one per processor; under mpirun as many\n"
     "as each rank has); they change the time and nothing else",
     SETS_INTEGER(train_job, threads, 0, 4096)},
    ISA_ROW(train_job),
    {"json", 0, NULL, "print the result as one JSON object", SETS_FLAG(train_job, json)},
    HELP_ROW,
    {0}};

const command_help train_help = {
    "train",
    "train copy|speech DATA|glue TASK|squad --out DIR [options]",
    "Trains a transformer encoder.\n\n"
    "copy: 0w0w with w of L symbols from 1 to 10, a fifth of them masked and never\n"
    "both copies of one; the masked ones are wanted. Defaults are the paper's: 4\n"
    "layers, 6 heads of 32, feed-forward 768, sinusoidal positions, R-Adam at 0.0002,\n"
    "gradients clipped at 10, weight decay 0.01, batches of 32, 5000 steps, the rate\n"
    "halved on a plateau of the validation loss.\n\n"
    "speech: a recogniser by CTC, or by lattice-free MMI, whose outputs are of phones:\n"
    "then the transcripts have words, and the lexicon their phones. DATA has the\n"
    "folders train and dev, each as Kaldi keeps its data: wav.scp, text (or the file of\n"
    "--labels), and where they are there segments and utt2spk. All recordings are read\n"
    "before the first step. The model with the best error on dev is kept as\n" TRAIN_BEST
    "; shoal eval and shoal recognise use it.\n\n"
    "glue, squad: trains a BERT or RoBERTa further, on a task of GLUE (CoLA, SST-2,\n"
    "MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI; files as GLUE publishes them) or to find\n"
    "answers in contexts. AdamW, a warm-up and a line to 0; dropout as the model's\n"
    "config.json says, none of the attention's weights. The folder becomes one of\n"
    "Hugging Face with the weights of the best epoch on dev; shoal eval, shoal answer\n"
    "and shoal embed use it.\n",
    rows,
    "Validation is on fresh data every validate_every steps. The log has one JSON\n"
    "object per line; shoal plot draws it. Ctrl-C saves a checkpoint and says how to\n"
    "go on; after a crash nothing is lost but the steps since the last checkpoint,\n"
    "and --resume gives the same curve to the last bit as if nothing had happened.\n\n"
    "Under mpirun each rank has its share of every batch (docs/SCALE.md).\n",
    "copy|speech|glue|squad DIR"};

/* ---- Results --------------------------------------------------------------------- */

static json_t *score_json(const train_score *score) {
    json_t *object = json_pack("{s:o, s:o, s:I, s:I}", "loss", json_number(score->loss),
                               "accuracy", json_number(score->accuracy), "correct",
                               (json_int_t)score->correct, "counted",
                               (json_int_t)score->counted);
    if (score->impossible)
        json_object_set_new(object, "impossible", json_integer(score->impossible));
    if (score->broken)
        json_object_set_new(object, "broken", json_integer(score->broken));
    return object;
}

static int report_json(const train_job *job) {
    const train_run *run = &job->run;
    json_t *object =
        json_pack("{s:o, s:o, s:I, s:b, s:o, s:o, s:o}", "config",
                  train_config_json(&run->config), "folder", json_text(run->folder),
                  "steps", (json_int_t)run->state.step, "finished", run->finished,
                  "seconds", json_number(run->state.seconds), "sequences_per_second",
                  json_number(run->sequences_per_second), "loss_share",
                  json_number(run->loss_share));
    if (run->validated)
        json_object_set_new(object, "validation", score_json(&run->validation));
    if (run->tested)
        json_object_set_new(object, "test", score_json(&run->test));
    return print_json(object);
}

static void report(const train_job *job) {
    const train_run *run = &job->run;
    char kind[TRAIN_VALUE];
    shoal_attention_print(&run->config.model.attention, kind, sizeof kind);
    printf("%s, %s: %" PRId64 " of %" PRId64 " steps, %s\n", run->config.task, kind,
           run->state.step, run->config.steps, seconds_text(run->state.seconds));
    if (run->stepped && isnan(run->last_step.score.accuracy))
        printf("last step    loss %.6f\n", run->last_step.score.loss);
    else if (run->stepped)
        printf("last step    loss %.6f  right %.2f %%\n", run->last_step.score.loss,
               100 * run->last_step.score.accuracy);
    if (isfinite(run->loss_share))
        printf("the loss     %.1f %% of the steps' time\n", 100 * run->loss_share);
    if (run->validated && run->validation.metric) {
        printf("validation   ");
        if (isfinite(run->validation.loss))
            printf("loss %.6f  ", run->validation.loss);
        printf("%s %.4f", run->validation.metric, run->validation.accuracy);
        if (run->validation.second)
            printf("  %s %.4f", run->validation.second, run->validation.second_value);
        putchar('\n');
    } else if (run->validated)
        printf("validation   loss %.6f  right %.2f %%\n", run->validation.loss,
               100 * run->validation.accuracy);
    if (run->validated && run->validation.impossible)
        printf("             %" PRId64 " sequences have more labels than positions\n",
               run->validation.impossible);
    if (run->tested)
        printf("test         loss %.6f  right %.2f %% (%" PRId64 " of %" PRId64 ")\n",
               run->test.loss, 100 * run->test.accuracy, run->test.correct,
               run->test.counted);
    if (run->state.best_step > 0 && train_is_text(&run->config))
        printf("best         step %" PRId64 "  %s %.4f  %s\n", run->state.best_step,
               run->validation.metric ? run->validation.metric : "score",
               1 - run->state.best, run->folder);
    else if (run->state.best_step > 0)
        printf("best         step %" PRId64 "  error rate %.2f %%  %s/%s\n",
               run->state.best_step, 100 * run->state.best, run->folder, TRAIN_BEST);
    printf("%s/%s\n%s/%s\n", run->folder, TRAIN_CHECKPOINT, run->folder, TRAIN_LOG);
    fflush(stdout);
}

/* In quotes where a shell would split or expand it. */
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

static int interrupted(const train_job *job) {
    const int code = 128 + (stop_signal() ? stop_signal() : SIGTERM);
    if (!ranks_first(job->ranks))
        return code;
    fprintf(stderr,
            "shoal train: interrupted after step %" PRId64
            "; the checkpoint is written. To go on:\n  shoal train %s",
            job->run.state.step, job->run.config.task);
    const bool text = train_is_text(&job->run.config);
    if (text && *job->run.config.text.dataset)
        print_word(stderr, job->run.config.text.dataset);
    if (text)
        fputs(" --data", stderr);
    if (job->run.config.folder)
        print_word(stderr, job->run.config.folder);
    if (job->run.config.dev) {
        fputs(" --dev", stderr);
        print_word(stderr, job->run.config.dev);
    }
    fputs(" --resume --out", stderr);
    print_word(stderr, job->run.folder);
    fprintf(stderr, " --steps %" PRId64, job->run.config.steps);
    if (job->cache) {
        fputs(" --cache", stderr);
        print_word(stderr, job->cache);
    }
    if (job->lexicon) {
        fputs(" --lexicon", stderr);
        print_word(stderr, job->lexicon);
    }
    if (job->skip_bad)
        fputs(" --skip-bad", stderr);
    if (job->isa) /* another one rounds otherwise */
        fprintf(stderr, " --isa %s", job->isa);
    fputs(job->ranks ? "\nunder mpirun, with any number of ranks\n" : "\n", stderr);
    return code;
}

/* ---- The command ----------------------------------------------------------------- */

static int print_config(train_job *job, shoal_context *context) {
    const int code = settings_apply(&job->settings, context, &job->run.config);
    return code == EXIT_OK ? print_json(train_config_json(&job->run.config)) : code;
}

/* What is written, against the files of --config; in a new folder there is nothing. */
static int check_files(const char *folder) {
    static const char *const names[] = {TRAIN_CHECKPOINT, TRAIN_LOG, TRAIN_BEST,
                                        "model.safetensors", "config.json"};
    struct stat information;
    char path[TRAIN_PATH];
    if (stat(folder, &information) != 0 || !S_ISDIR(information.st_mode))
        return EXIT_OK;
    for (int i = 0; i < 5; i++) {
        if (!train_path("train", path, folder, names[i]))
            return EXIT_USAGE;
        const int code = will_write("train", path);
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}

static int train(train_job *job, shoal_context *context) {
    if (!job->run.folder)
        return complain(EXIT_USAGE, "train", "no folder was given; usage: shoal %s",
                        train_help.usage);
    int code = check_files(job->run.folder);
    if (code != EXIT_OK)
        return code;
    watch_stop();
    code = train_go(&job->run, context);
    if (code != EXIT_OK)
        return code;
    if (ranks_first(job->ranks)) {
        if (job->json)
            code = report_json(job);
        else
            report(job);
    }
    const bool stopped = stop_signal() || job->run.stopped;
    return code == EXIT_OK && stopped && !job->run.finished ? interrupted(job) : code;
}

/* glue has a word more, the name of its task. */
static int take_text(train_job *job, int count, char **words) {
    train_config *config = &job->run.config;
    const bool glue = strcmp(config->task, "glue") == 0;
    if (count != 1 + glue)
        return complain(EXIT_USAGE, "train", "%s; usage: shoal %s",
                        count > 1 + glue ? "one task at a time"
                                         : "no task of GLUE was given",
                        train_help.usage);
    config->folder = job->data;
    config->dev = job->dev;
    config->model_folder = job->model;
    config->skip_bad = job->skip_bad;
    if (!glue)
        return EXIT_OK;
    const glue_task *task = sh_glue_find(words[1]);
    if (!task)
        return complain(EXIT_USAGE, "train", "there is no task %s of GLUE; there are %s",
                        words[1], sh_glue_names());
    return settings_add(&job->settings, "dataset", task->name);
}

/* Where the data is, for tasks that have some. */
static int take_data(train_job *job, int count, char **words) {
    train_config *config = &job->run.config;
    const bool speech = strcmp(config->task, "speech") == 0;
    if (train_is_text(config))
        return take_text(job, count, words);
    if (count > 1 + speech)
        return complain(EXIT_USAGE, "train", "%s; usage: shoal %s",
                        speech ? "one data folder at a time" : "one task at a time",
                        train_help.usage);
    if (!speech || job->print_config)
        return EXIT_OK;
    if (count < 2)
        return complain(EXIT_USAGE, "train", "no data folder was given; usage: shoal %s",
                        train_help.usage);
    config->folder = words[1];
    config->skip_bad = job->skip_bad;
    config->lexicon = job->lexicon;
    config->cache = speech_cache("train", job->cache);
    return config->cache ? EXIT_OK : EXIT_RESOURCES;
}

static int with_task(train_job *job, int count, char **words) {
    shoal_context *context;
    train_reason reason;
    if (count == 0)
        return complain(EXIT_USAGE, "train", "no task was given; usage: shoal %s",
                        train_help.usage);
    if (!train_defaults(words[0], &job->run.config, &reason) ||
        (job->preset && !train_preset(job->preset, &job->run.config, &reason)))
        return complain(EXIT_USAGE, "train", "%s", reason.text);
    const char *loss = settings_find(&job->settings, "loss");
    if (loss && strcmp(loss, "lf-mmi") == 0 && strcmp(words[0], "speech") == 0)
        train_lfmmi_defaults(job->preset, &job->run.config);
    int code = take_data(job, count, words);
    if (code == EXIT_OK && !job->print_config)
        code = ranks_open("train",
                          "Nothing is lost but the time since the last checkpoint: "
                          "start the job again with --resume",
                          &job->ranks);
    if (code != EXIT_OK)
        return code;
    job->run.config.ranks = job->ranks;
    if (job->threads == 0)
        job->threads = ranks_threads(job->ranks);
    code = open_context("train", (int)job->threads, job->isa, &context);
    if (code == EXIT_OK)
        code = settings_add(&job->settings, "task", words[0]);
    if (code == EXIT_OK)
        code = job->print_config ? print_config(job, context) : train(job, context);
    ranks_close(job->ranks, job->run.stopped ? EXIT_OK : code); /* all of them stopped */
    shoal_context_destroy(context);
    return code;
}

int train_command(int count, char **arguments) {
    static train_job job = {.run = {.command = "train",
                                    .label = "",
                                    .settings = &job.settings,
                                    .test_batches = DEFAULT_TEST},
                            .settings = {.command = "train"},
                            .save_seconds = DEFAULT_SAVE};
    int code = -1;
    train_config config;
    train_reason reason;
    if (count > 1 && train_defaults(arguments[1], &config, &reason))
        job.settings.task = arguments[1];
    for (int pass = 0; pass < 2 && code < 0; pass++) {
        job.files = pass == 0;
        code = take_options(&train_help, count, arguments, &job);
    }
    if (code >= 0)
        return job.files_code != EXIT_OK ? job.files_code : code;
    job.run.save_seconds = (double)job.save_seconds;
    return with_task(&job, count - optind, arguments + optind);
}
