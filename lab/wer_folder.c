/* Folders of recordings and transcripts: transcripts.txt, LibriSpeech's .trans.txt, or
   Kaldi's wav.scp and text, in the folder or its subfolders. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wer.h"

enum { DEEPEST = 6 };

static char *copy_text(const char *text) {
    char *copy = strdup(text);
    if (!copy)
        die_of_memory();
    return copy;
}

/* text is NULL if it comes later. */
static void add_utterance(wer_job *job, const char *path, const char *name,
                          const char *text) {
    plan_input(path);
    job->utterances = realloc(job->utterances, ((size_t)job->utterance_count + 1) *
                                                   sizeof *job->utterances);
    if (!job->utterances)
        die_of_memory();
    job->utterances[job->utterance_count++] =
        (wer_utterance){.path = copy_text(path),
                        .name = copy_text(name),
                        .text = text ? copy_text(text) : NULL};
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

typedef void line_function(wer_job *job, const text_line *line);

static _Noreturn void bad_line(const text_line *line, const char *what) {
    die(EXIT_BAD_INPUT, "%s, line %ld: %s", line->file, line->number, what);
}

static void read_lines(wer_job *job, const char *folder, const char *file,
                       line_function *take) {
    FILE *from = fopen(file, "r");
    char *text = NULL;
    size_t room = 0;
    ssize_t length;
    text_line line = {.folder = folder, .file = file};
    if (!from)
        die(EXIT_BAD_INPUT, "%s cannot be read: %s", file, strerror(errno));
    plan_input(file);
    while ((length = getline(&text, &room, from)) >= 0) {
        line.number++;
        if (strlen(text) != (size_t)length)
            bad_line(&line, "is not UTF-8 text");
        text[strcspn(text, "\r\n")] = 0;
        if (text[strspn(text, " \t")] == 0) /* empty line */
            continue;
        line.name = text;
        line.rest = text + strcspn(text, " \t");
        if (*line.rest)
            *line.rest++ = 0;
        line.rest += strspn(line.rest, " \t");
        if (*line.name == 0 || strchr(line.name, '/') || strlen(line.name) > 1000)
            bad_line(&line, "must begin with the name of a recording");
        take(job, &line);
    }
    if (ferror(from))
        die(EXIT_BAD_INPUT, "%s cannot be read: %s", file, strerror(errno));
    free(text);
    fclose(from);
}

/* For transcripts.txt and *.trans.txt. */
static void take_transcript(wer_job *job, const text_line *line) {
    static const char *const endings[] = {"flac", "wav", "ogg", "mp3", "opus", NULL};
    char path[4200];
    int found = 0;
    if (enough(job))
        return;
    for (; endings[found]; found++) {
        snprintf(path, sizeof path, "%s/%s.%s", line->folder, line->name, endings[found]);
        if (access(path, F_OK) == 0)
            break;
    }
    if (!endings[found])
        die(EXIT_BAD_INPUT,
            "%s, line %ld: there is no recording %s/%s.flac (or .wav, .ogg, .mp3, .opus)",
            line->file, line->number, line->folder, line->name);
    add_utterance(job, path, line->name, line->rest);
}

/* ---- Kaldi's wav.scp and text ------------------------------------------------------ */

/* "NAME PATH", relative to the folder. */
static void take_recording(wer_job *job, const text_line *line) {
    char path[4200];
    const size_t length = strlen(line->rest);
    if (enough(job))
        return;
    if (length == 0 || line->rest[length - 1] == '|')
        bad_line(line, "must name a recording; commands are not run");
    if (*line->rest == '/')
        snprintf(path, sizeof path, "%s", line->rest);
    else
        snprintf(path, sizeof path, "%s/%s", line->folder, line->rest);
    if (access(path, F_OK) != 0)
        die(EXIT_BAD_INPUT, "%s, line %ld: there is no recording %s", line->file,
            line->number, path);
    add_utterance(job, path, line->name, NULL);
}

/* Recordings of other folders have their texts already. */
static void take_text(wer_job *job, const text_line *line) {
    for (int i = 0; i < job->utterance_count; i++) {
        wer_utterance *one = &job->utterances[i];
        if (one->text || strcmp(one->name, line->name) != 0)
            continue;
        one->text = copy_text(line->rest);
        return;
    }
}

/* ---- Folders ----------------------------------------------------------------------- */

/* Sorted by name, so that the order is the same on every system. */
static void search_folder(wer_job *job, const char *folder, int depth) {
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);
    if (count < 0)
        die(EXIT_BAD_INPUT, "%s cannot be read: %s", folder, strerror(errno));
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        char path[4200];
        struct stat about;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (!enough(job) && name[0] != '.' && stat(path, &about) == 0) {
            if (S_ISDIR(about.st_mode) && depth < DEEPEST)
                search_folder(job, path, depth + 1);
            else if (S_ISREG(about.st_mode)) {
                static const char ending[] = ".trans.txt";
                const size_t length = strlen(name), wanted = sizeof ending - 1;
                if (strcmp(name, "transcripts.txt") == 0 ||
                    (length >= wanted && strcmp(name + length - wanted, ending) == 0))
                    read_lines(job, folder, path, take_transcript);
                else if (strcmp(name, "wav.scp") == 0) {
                    char text[4200];
                    snprintf(text, sizeof text, "%s/text", folder);
                    read_lines(job, folder, path, take_recording);
                    read_lines(job, folder, text, take_text);
                    for (int k = 0; k < job->utterance_count; k++)
                        if (!job->utterances[k].text)
                            die(EXIT_BAD_INPUT, "%s has no line for %s of %s", text,
                                job->utterances[k].name, path);
                }
            }
        }
        free(entries[i]);
    }
    free(entries);
}

void wer_read_folder(wer_job *job) {
    search_folder(job, job->folder, 0);
    if (job->utterance_count == 0)
        die(EXIT_BAD_INPUT, "%s has no usable transcripts.txt, *.trans.txt or wav.scp",
            job->folder);
}
