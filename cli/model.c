/* shoal model: where a model can be had, whether a file is that model, and its download
   by curl or wget where the user asks for it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "sha256.h"

/* Only models whose bytes were at hand when their sums were computed. */
typedef struct {
    const char *name, *file, *about, *licence;
    int64_t bytes;
    const char *sha256;
    const char *address;
    const char *visited; /* when the address was last tried; NULL: never */
    const char *use;
} model_row;

static const model_row models[] = {
    {"whisper-tiny", "ggml-tiny.bin", "Whisper tiny for 99 languages, by OpenAI", "MIT",
     77691713, "be07e048e1e599ad46341c8d2a135645097a538221678b7acdd1b1919c6e1b21",
     "https://huggingface.co/ggerganov/whisper.cpp/resolve/main/ggml-tiny.bin", NULL,
     "shoal transcribe talk.mp3 --model"}};
enum { MODELS = sizeof models / sizeof *models };

typedef struct {
    bool download, json;
    const char *check, *from, *out;
} model_job;

static const option_row rows[] =
    {{"check", 0, "FILE", "compare the size and SHA-256 of a file that you downloaded",
      SETS_TEXT(model_job, check)},
     {"download", 0, NULL, "download the model with curl or wget, and check it",
      SETS_FLAG(model_job, download)},
     {"out", 'o', "FILE", "with --download: where to (default: the publisher's name)",
      SETS_TEXT(model_job, out)},
     {"from", 0, "URL", "with --download: another address, such as a mirror's",
      SETS_TEXT(model_job, from)},
     {"json", 0, NULL, "print a JSON object", SETS_FLAG(model_job, json)},
     HELP_ROW,
     {0}};

const command_help model_help =
    {"model",
     "model [NAME] [--check FILE | --download [-o FILE]] [--json]",
     "Where a model can be had, its size and SHA-256. Nothing is downloaded unless you\n"
     "ask for it. Without NAME all models are listed.\n",
     rows,
     "examples:\n"
     "  shoal model whisper-tiny\n"
     "  shoal model whisper-tiny --check ggml-tiny.bin\n"
     "  shoal model whisper-tiny --download\n",
     "whisper-tiny"};

/* ---- Printing ---------------------------------------------------------------------- */

static json_t *row_json(const model_row *row) {
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:s?}", "name", row->name,
                     "file", row->file, "about", row->about, "licence", row->licence,
                     "bytes", (json_int_t)row->bytes, "sha256", row->sha256, "address",
                     row->address, "address_visited", row->visited);
}

static void print_row(const model_row *row) {
    printf("%s: %s\n"
           "  licence  %s\n"
           "  size     %lld bytes\n"
           "  SHA-256  %s\n"
           "  address  %s\n"
           "           (%s%s)\n"
           "Download and check it:  shoal model %s --download\n"
           "Check a copy:           shoal model %s --check %s\n"
           "Use it:                 %s %s\n",
           row->name, row->about, row->licence, (long long)row->bytes, row->sha256,
           row->address,
           row->visited ? "visited " : "this address was not tried by Shoal's authors; ",
           row->visited ? row->visited : "the sum tells whether the file is right",
           row->name, row->name, row->file, row->use, row->file);
}

static int print_list(bool json) {
    if (json) {
        json_t *list = json_array();
        for (int i = 0; i < MODELS; i++)
            json_array_append_new(list, row_json(&models[i]));
        return print_json(json_pack("{s:o}", "models", list));
    }
    for (int i = 0; i < MODELS; i++)
        printf("%-14s %s, %s\n", models[i].name, models[i].about,
               bytes_text((double)models[i].bytes));
    printf(
        "\nshoal model NAME says where; any other model of the same form works too.\n");
    return EXIT_OK;
}

/* ---- Checking ---------------------------------------------------------------------- */

/* Whether the file is the model; an exit code after a complaint. */
static int check_file(const model_row *row, const char *path) {
    char sum[SHA256_TEXT];
    int64_t bytes;
    FILE *file = fopen(path, "rb");
    const bool good = file && sha256_stream(file, sum, &bytes);
    const int why = errno;
    if (file)
        fclose(file);
    if (!good)
        return complain(EXIT_BAD_INPUT, "model", "cannot read %s: %s", path,
                        strerror(why));
    if (bytes != row->bytes)
        return complain(EXIT_BAD_INPUT, "model",
                        "%s has %lld bytes, and %s has %lld: the download is not whole, "
                        "or it is another file",
                        path, (long long)bytes, row->name, (long long)row->bytes);
    if (strcmp(sum, row->sha256) != 0)
        return complain(EXIT_BAD_INPUT, "model",
                        "%s has the SHA-256 %s, and %s has %s: it is damaged or another "
                        "file; do not use it",
                        path, sum, row->name, row->sha256);
    return EXIT_OK;
}

/* ---- Downloading ------------------------------------------------------------------- */

/* Runs the program, whose progress goes to standard error; its exit code, 127 where it
   is not installed. */
static int run_program(char *const *words) {
    fflush(NULL);
    const pid_t child = fork();
    int status = 0;
    if (child < 0)
        die(EXIT_RESOURCES, "cannot start %s: %s", words[0], strerror(errno));
    if (child == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execvp(words[0], words);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            die(EXIT_RESOURCES, "cannot wait for %s: %s", words[0], strerror(errno));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int fetch(const char *address, const char *path) {
    char *curl[] = {"curl",       "--location", "--fail",        "--output",
                    (char *)path, "--",         (char *)address, NULL};
    char *wget[] = {"wget", "-O", (char *)path, "--", (char *)address, NULL};
    const int code = run_program(curl);
    return code == 127 ? run_program(wget) : code;
}

/* Fetches the model to `part`, and puts it in place if it is whole. */
static int fetch_checked(const model_row *row, const char *address, const char *part,
                         const char *path) {
    const int failed = fetch(address, part);
    if (failed)
        return complain(
            EXIT_BAD_INPUT, "model",
            failed == 127
                ? "neither curl nor wget is installed; download %s yourself, then run "
                  "shoal model %s --check FILE"
                : "the download failed; is there a network? If not, bring %s from "
                  "elsewhere, then run shoal model %s --check FILE",
            address, row->name);
    const int code = check_file(row, part);
    if (code == EXIT_OK && rename(part, path) != 0)
        return complain(EXIT_RESOURCES, "model", "cannot rename %s to %s: %s", part, path,
                        strerror(errno));
    return code;
}

static int download(const model_row *row, const model_job *job) {
    const char *path = job->out ? job->out : row->file;
    const char *address = job->from ? job->from : row->address;
    if (access(path, F_OK) == 0) {
        const int code = check_file(row, path);
        if (code == EXIT_OK)
            printf("%s is there already, and is %s\n", path, row->name);
        return code;
    }
    plan_output(path);
    char *part = reserve(strlen(path) + sizeof ".part", 1);
    sprintf(part, "%s.part", path);
    const int code = fetch_checked(row, address, part, path);
    if (code == EXIT_OK)
        printf("%s is %s, checked\nUse it:  %s %s\n", path, row->name, row->use, path);
    else
        unlink(part);
    free(part);
    return code;
}

/* ---- The command ------------------------------------------------------------------- */

static const model_row *find_model(const char *name) {
    for (int i = 0; i < MODELS; i++)
        if (strcmp(name, models[i].name) == 0 || strcmp(name, models[i].file) == 0)
            return &models[i];
    const char *near = closest_name(name, &models[0].name, MODELS, sizeof models[0]);
    if (near)
        die(EXIT_USAGE, "no model named %.60s; did you mean %s?", name, near);
    die(EXIT_USAGE, "no model named %.60s; shoal model lists them", name);
}

int model_command(int count, char **arguments) {
    static model_job job;
    begin_command(&model_help, count, arguments, &job);
    const int words = count - optind;
    if (words > 1)
        die_of_usage("one model at a time");
    if (job.check && job.download)
        die_of_usage("--check and --download exclude each other");
    if ((job.out || job.from) && !job.download)
        die_of_usage("--out and --from need --download");
    if (words == 0) {
        if (job.check || job.download)
            die_of_usage("no model was named");
        return print_list(job.json);
    }
    const model_row *row = find_model(arguments[optind]);
    if (job.download)
        return download(row, &job);
    if (job.check) {
        const int code = check_file(row, job.check);
        if (code == EXIT_OK)
            printf("%s is %s\n", job.check, row->name);
        return code;
    }
    if (job.json)
        return print_json(row_json(row));
    print_row(row);
    return EXIT_OK;
}
