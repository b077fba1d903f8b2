/* Transcripts as text, SubRip, WebVTT and JSON. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "transcribe.h"
#include <shoal_speech.h>

const char *const transcript_forms[FORMS] = {"txt", "srt", "vtt", "json"};

bool transcript_begin(transcript *t, bool into_file) {
    t->to = into_file ? open_memstream(&t->text, &t->size) : stdout;
    t->list = t->form == FORM_JSON ? json_array() : NULL;
    if (!t->to || (t->form == FORM_JSON && !t->list))
        return false;
    if (t->form == FORM_VTT)
        fputs("WEBVTT\n\n", t->to);
    return true;
}

/* 01:02:03,004 */
static void print_time(FILE *to, double seconds, char point) {
    const int64_t ms = (int64_t)llround(seconds * 1000);
    fprintf(to, "%02" PRId64 ":%02" PRId64 ":%02" PRId64 "%c%03" PRId64, ms / 3600000,
            ms / 60000 % 60, ms / 1000 % 60, point, ms % 1000);
}

/* One line without spaces around it; an arrow would end a cue, and WebVTT has marks of
   its own. */
static void print_line(const transcript *t, const char *text) {
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1]))
        length--;
    const char *end = text + length;
    for (text += strspn(text, " \t\r\n"); text < end; text++) {
        const bool cue = t->form == FORM_SRT || t->form == FORM_VTT;
        if (*text == '\n' || *text == '\r')
            fputc(' ', t->to);
        else if (cue && strncmp(text, "-->", 3) == 0)
            fputs("-", t->to), text++;
        else if (t->form == FORM_VTT && *text == '&')
            fputs("&amp;", t->to);
        else if (t->form == FORM_VTT && *text == '<')
            fputs("&lt;", t->to);
        else
            fputc(*text, t->to);
    }
    fputc('\n', t->to);
}

static void print_cue(const transcript *t, const shoal_segment *segment) {
    const char point = t->form == FORM_SRT ? ',' : '.';
    if (t->form == FORM_SRT)
        fprintf(t->to, "%" PRId64 "\n", t->segments);
    print_time(t->to, segment->begin, point);
    fputs(" --> ", t->to);
    print_time(t->to, segment->end, point);
    fputc('\n', t->to);
    print_line(t, segment->text);
    fputc('\n', t->to);
}

static void add_object(const transcript *t, const shoal_segment *segment) {
    json_t *ids = json_array();
    for (int64_t i = 0; i < segment->token_count; i++)
        json_array_append_new(ids, json_integer(segment->tokens[i]));
    json_array_append_new(t->list,
                          json_pack("{s:I, s:f, s:f, s:o, s:o, s:f, s:o, s:o, s:o}", "id",
                                    (json_int_t)t->segments - 1, "start", segment->begin,
                                    "end", segment->end, "text", json_text(segment->text),
                                    "tokens", ids, "temperature", segment->temperature,
                                    "mean_logprob", json_number(segment->mean_logprob),
                                    "compression_ratio",
                                    json_number(segment->compression), "no_speech",
                                    json_number(segment->no_speech)));
}

void transcript_add(transcript *t, const shoal_segment *segment) {
    t->segments++;
    if (t->form == FORM_JSON)
        add_object(t, segment);
    else if (t->form == FORM_TXT)
        print_line(t, segment->text);
    else
        print_cue(t, segment);
    if (t->to == stdout)
        fflush(stdout);
}

/* All segments' texts, as one. */
static json_t *whole_text(const json_t *list) {
    char *text = NULL;
    size_t size = 0, index;
    json_t *segment;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return json_string("");
    json_array_foreach(list, index, segment)
        fputs(json_string_value(json_object_get(segment, "text")), to);
    fclose(to);
    json_t *value = json_string(text + strspn(text, " "));
    free(text);
    return value ? value : json_string("");
}

bool transcript_end(transcript *t, json_t *details) {
    bool good = true;
    if (t->form == FORM_JSON) {
        json_object_set_new(details, "text", whole_text(t->list));
        json_object_set(details, "segments", t->list);
        good = json_dumpf(details, t->to, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
               fputc('\n', t->to) != EOF;
    }
    json_decref(details);
    if (t->to == stdout)
        return fflush(stdout) == 0 && !ferror(stdout) && good;
    good = fclose(t->to) == 0 && good;
    t->to = NULL;
    return good;
}

void transcript_drop(transcript *t) {
    json_decref(t->list);
    if (t->to && t->to != stdout)
        fclose(t->to);
    free(t->text);
    *t = (transcript){0};
}

int transcript_save(const transcript *t, const char *path) {
    replacement to;
    FILE *file = replace_begin(&to, path);
    if (file && replace_end(&to, fwrite(t->text, 1, t->size, file) == t->size))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "transcribe", "%s cannot be written: %s", path,
                    strerror(errno));
}
