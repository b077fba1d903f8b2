/* Folders of recordings and of what is said in them: transcripts.txt, LibriSpeech's
   *.trans.txt, or Kaldi's wav.scp and text, in the folder or below. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"
#include "wer.h"

enum { DEEPEST = 6 };

static bool find_audio(const char *folder, const char *name, char *path, size_t size) {
    static const char *const endings[] = {"flac", "wav", "ogg", "mp3", "opus"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        snprintf(path, size, "%s/%s.%s", folder, name, endings[i]);
        if (access(path, F_OK) == 0)
            return true;
    }
    return false;
}

/* text may come later: NULL. */
static int add_utterance(wer_job *job, const char *path, const char *name,
                         const char *text) {
    const int code = will_read("wer", path);
    if (code != EXIT_OK)
        return code;
    wer_utterance *grown = realloc(job->utterances, ((size_t)job->utterance_count + 1) *
                                                        sizeof *job->utterances);
    if (grown)
        job->utterances = grown;
    wer_utterance one = {.path = strdup(path),
                         .name = strdup(name),
                         .text = text ? strdup(text) : NULL};
    if (!grown || !one.path || !one.name || (text && !one.text)) {
        free(one.path);
        free(one.name);
        free(one.text);
        return complain(EXIT_RESOURCES, "wer", "out of memory");
    }
    job->utterances[job->utterance_count++] = one;
    return EXIT_OK;
}

static bool enough(const wer_job *job) {
    return job->limit > 0 && job->utterance_count >= job->limit;
}

/* ---- Lines ------------------------------------------------------------------------- */

/* A line "NAME REST" of a file in a folder. */
typedef struct {
    const char *folder, *file;
    long number;
    char *name, *rest;
} text_line;

typedef int line_function(wer_job *job, const text_line *line);

static int bad_line(const text_line *line, const char *what) {
    return complain(EXIT_BAD_INPUT, "wer", "%s, line %ld: %s", line->file, line->number,
                    what);
}

/* Empty lines are passed over. */
static int take_line(wer_job *job, text_line *line, char *text, line_function *take) {
    text[strcspn(text, "\r\n")] = 0;
    if (text[strspn(text, " \t")] == 0)
        return EXIT_OK;
    line->name = text;
    line->rest = text + strcspn(text, " \t");
    if (*line->rest)
        *line->rest++ = 0;
    line->rest += strspn(line->rest, " \t");
    if (*line->name == 0 || strchr(line->name, '/') || strlen(line->name) > 1000)
        return bad_line(line, "it must begin with the name of a recording");
    return take(job, line);
}

static int read_lines(wer_job *job, const char *folder, const char *file,
                      line_function *take) {
    FILE *from = fopen(file, "r");
    char *text = NULL;
    size_t room = 0;
    int code = will_read("wer", file);
    text_line line = {.folder = folder, .file = file};
    if (!from)
        return complain(EXIT_BAD_INPUT, "wer", "%s cannot be read: %s", file,
                        strerror(errno));
    while (code == EXIT_OK) {
        const ssize_t length = getline(&text, &room, from);
        if (length < 0)
            break;
        line.number++;
        code = strlen(text) == (size_t)length ? take_line(job, &line, text, take)
                                              : bad_line(&line, "is not text");
    }
    if (code == EXIT_OK && ferror(from))
        code = complain(EXIT_BAD_INPUT, "wer", "%s cannot be read: %s", file,
                        strerror(errno));
    free(text);
    fclose(from);
    return code;
}

/* ---- transcripts.txt, *.trans.txt -------------------------------------------------- */

static int take_transcript(wer_job *job, const text_line *line) {
    char path[4200];
    if (enough(job))
        return EXIT_OK;
    if (!find_audio(line->folder, line->name, path, sizeof path))
        return complain(EXIT_BAD_INPUT, "wer",
                        "%s, line %ld: there is no recording %s/%s.flac (or .wav, .ogg, "
                        ".mp3, .opus)",
                        line->file, line->number, line->folder, line->name);
    return add_utterance(job, path, line->name, line->rest);
}

/* ---- Kaldi's wav.scp and text ------------------------------------------------------ */

/* "NAME PATH", relative to the folder. */
static int take_recording(wer_job *job, const text_line *line) {
    char path[4200];
    const size_t length = strlen(line->rest);
    if (enough(job))
        return EXIT_OK;
    if (length == 0 || line->rest[length - 1] == '|')
        return bad_line(line, "it must name a recording; commands are not run");
    if (*line->rest == '/')
        snprintf(path, sizeof path, "%s", line->rest);
    else
        snprintf(path, sizeof path, "%s/%s", line->folder, line->rest);
    if (access(path, F_OK) != 0)
        return complain(EXIT_BAD_INPUT, "wer", "%s, line %ld: there is no recording %s",
                        line->file, line->number, path);
    return add_utterance(job, path, line->name, NULL);
}

/* Those of other folders have their texts. */
static int take_text(wer_job *job, const text_line *line) {
    for (int i = 0; i < job->utterance_count; i++) {
        wer_utterance *one = &job->utterances[i];
        if (one->text || strcmp(one->name, line->name) != 0)
            continue;
        one->text = strdup(line->rest);
        return one->text ? EXIT_OK : complain(EXIT_RESOURCES, "wer", "out of memory");
    }
    return EXIT_OK;
}

static int read_kaldi(wer_job *job, const char *folder, const char *scp) {
    char text[4200];
    snprintf(text, sizeof text, "%s/text", folder);
    int code = read_lines(job, folder, scp, take_recording);
    if (code == EXIT_OK)
        code = read_lines(job, folder, text, take_text);
    for (int i = 0; i < job->utterance_count && code == EXIT_OK; i++)
        if (!job->utterances[i].text)
            code = complain(EXIT_BAD_INPUT, "wer", "%s has no line for %s of %s", text,
                            job->utterances[i].name, scp);
    return code;
}

/* ---- Folders ----------------------------------------------------------------------- */

static bool ends_in(const char *name, const char *ending) {
    const size_t length = strlen(name), wanted = strlen(ending);
    return length >= wanted && strcmp(name + length - wanted, ending) == 0;
}

static int read_file(wer_job *job, const char *folder, const char *name,
                     const char *path) {
    if (strcmp(name, "transcripts.txt") == 0 || ends_in(name, ".trans.txt"))
        return read_lines(job, folder, path, take_transcript);
    return strcmp(name, "wav.scp") == 0 ? read_kaldi(job, folder, path) : EXIT_OK;
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
            else if (S_ISREG(about.st_mode))
                code = read_file(job, folder, name, path);
        }
        free(entries[i]);
    }
    free(entries);
    return code;
}

int wer_read_folder(wer_job *job) {
    const int code = search_folder(job, job->folder, 0);
    if (code == EXIT_OK && job->utterance_count == 0)
        return complain(EXIT_BAD_INPUT, "wer",
                        "%s has no transcripts.txt, no *.trans.txt and no wav.scp with "
                        "anything in it",
                        job->folder);
    return code;
}
