/* Transcripts on their way out: text, SubRip, WebVTT, LRC, CSV or JSON. */
#ifndef SHOAL_CLI_TRANSCRIBE_FORMS_H
#define SHOAL_CLI_TRANSCRIBE_FORMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include <shoal_speech.h>

enum { FORM_TXT, FORM_SRT, FORM_VTT, FORM_JSON, FORM_CSV, FORM_LRC };
/* As options spell them, and as files end. */
extern const char *const transcript_forms[];

/* One recording's transcript: to stdout as it comes, or to memory that becomes a file at
   the end. */
typedef struct {
    int form;
    bool words;                     /* each with its own times */
    bool colors;                    /* FORM_TXT: words by their probability */
    int64_t line_width, line_count; /* of a cue: characters of a line, and lines */
    FILE *to;
    int64_t cues; /* so far */
    json_t *list; /* FORM_JSON: the segments so far */
    char *text;   /* what was collected for a file */
    size_t size;
} transcript;

/* Into a file at the end, or to stdout at once. False when memory ran out. */
bool transcript_begin(transcript *t, bool into_file);
void transcript_add(transcript *t, const shoal_segment *segment);

/* The rest; `details` (a JSON object, dropped here) heads the JSON form. False when it
   could not be written. */
bool transcript_end(transcript *t, json_t *details);
void transcript_drop(transcript *t);

/* Writes the collected text through a temporary file. Exit code, after a complaint. */
int transcript_save(const transcript *t, const char *path);

#endif
