/* A folder of recordings and what is said in them: transcripts.txt, or LibriSpeech's
   *.trans.txt in any folder below; each line is the name of a recording beside it,
   without its ending, and the text. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"
#include "wer.h"
#include <shoal_speech.h>

enum { DEEPEST = 6, WINDOW_SECONDS = 30 };

/* ---- Transcripts ---------------------------------------------------------------- */

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
    return add_utterance(job, path, text + strspn(text, " \t"));
}

static bool enough(const wer_job *job) {
    return job->limit > 0 && job->utterance_count >= job->limit;
}

static int read_transcripts(wer_job *job, const char *folder, const char *file) {
    FILE *from = fopen(file, "r");
    char *line = NULL;
    size_t room = 0;
    int code = EXIT_OK;
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

int wer_read_folder(wer_job *job) {
    const int code = search_folder(job, job->folder, 0);
    if (code == EXIT_OK && job->utterance_count == 0)
        return complain(
            EXIT_BAD_INPUT, "wer",
            "%s has no transcripts.txt and no *.trans.txt with anything in it",
            job->folder);
    return code;
}

/* ---- Windows -------------------------------------------------------------------- */

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

int wer_pack(wer_job *job) {
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

void wer_release(wer_job *job) {
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
