/* Output formats of transcripts: text, SubRip, WebVTT, LRC, CSV and JSON. */
#ifndef SHOAL_CLI_TRANSCRIBE_FORMS_H
#define SHOAL_CLI_TRANSCRIBE_FORMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include <shoal_speech.h>

enum { FORM_TXT, FORM_SRT, FORM_VTT, FORM_JSON, FORM_CSV, FORM_LRC };
/* Values of --format and file name extensions. */
extern const char *const transcript_forms[];

/* Transcript of one recording: printed to stdout as it comes, or collected in memory
   and saved at the end. */
typedef struct {
    int form;
    bool words;                     /* times per word */
    bool colors;                    /* FORM_TXT: color words by probability */
    int64_t line_width, line_count; /* limits of a cue: characters per line, lines */
    FILE *to;
    int64_t cues; /* number so far */
    json_t *list; /* FORM_JSON: segments so far */
    char *text;   /* collected for a file */
    size_t size;
} transcript;

/* Begins a transcript; false if out of memory. */
bool transcript_begin(transcript *t, bool into_file);
void transcript_add(transcript *t, const shoal_segment *segment);

/* Writes the end; `details` (a JSON object, freed here) comes first in the JSON format.
   Returns false if writing failed. */
bool transcript_end(transcript *t, json_t *details);
void transcript_drop(transcript *t);

/* Writes the collected text atomically. Returns an exit code, after a message if it is
   not EXIT_OK. */
int transcript_save(const transcript *t, const char *path);

#endif
