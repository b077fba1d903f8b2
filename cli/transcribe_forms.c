#define _GNU_SOURCE
#include "transcribe_forms.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

const char *const transcript_forms[] = {"txt", "srt", "vtt", "json", "csv", "lrc", NULL};

bool transcript_begin(transcript *t, bool into_file) {
    t->to = into_file ? open_memstream(&t->text, &t->size) : stdout;
    t->list = t->form == FORM_JSON ? json_array() : NULL;
    if (!t->to || (t->form == FORM_JSON && !t->list))
        return false;
    if (t->form == FORM_VTT)
        fputs("WEBVTT\n\n", t->to);
    if (t->form == FORM_CSV)
        fputs(t->words ? "start,end,text,probability\n" : "start,end,text\n", t->to);
    return true;
}

/* ---- Times and text ------------------------------------------------------------- */

static int64_t milliseconds(double seconds) {
    return (int64_t)llround(seconds * 1000);
}

/* 01:02:03,004 */
static void print_time(FILE *to, double seconds, char point) {
    const int64_t ms = milliseconds(seconds);
    fprintf(to, "%02" PRId64 ":%02" PRId64 ":%02" PRId64 "%c%03" PRId64, ms / 3600000,
            ms / 60000 % 60, ms / 1000 % 60, point, ms % 1000);
}

/* 62:03.04 */
static void print_lyrics_time(FILE *to, double seconds) {
    const int64_t hundredths = (int64_t)llround(seconds * 100);
    fprintf(to, "%02" PRId64 ":%02" PRId64 ".%02" PRId64, hundredths / 6000,
            hundredths / 100 % 60, hundredths % 100);
}

/* Prints one character; returns true if the next one is consumed too. Tokens may be any
   bytes; "-->" would end a cue, and WebVTT and CSV have special characters. */
static bool print_character(const transcript *t, const char *text) {
    const bool cue = t->form == FORM_SRT || t->form == FORM_VTT;
    if ((unsigned char)*text < ' ' || *text == 0x7f)
        fputc(' ', t->to);
    else if (cue && strncmp(text, "-->", 3) == 0)
        fputs("-", t->to);
    else if (t->form == FORM_VTT && *text == '&')
        fputs("&amp;", t->to);
    else if (t->form == FORM_VTT && *text == '<')
        fputs("&lt;", t->to);
    else if (t->form == FORM_CSV && *text == '"')
        fputs("\"\"", t->to);
    else
        fputc(*text, t->to);
    return cue && strncmp(text, "-->", 3) == 0;
}

/* Without surrounding spaces. */
static void print_text(const transcript *t, const char *text) {
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1]))
        length--;
    const char *end = text + length;
    for (text += strspn(text, " \t\r\n"); text < end; text++)
        text += print_character(t, text);
}

/* ---- Forms ---------------------------------------------------------------------- */

static void print_cue_times(transcript *t, double begin, double end) {
    const char point = t->form == FORM_SRT ? ',' : '.';
    t->cues++;
    if (t->form == FORM_SRT)
        fprintf(t->to, "%" PRId64 "\n", t->cues);
    print_time(t->to, begin, point);
    fputs(" --> ", t->to);
    print_time(t->to, end, point);
    fputc('\n', t->to);
}

/* A word of a cue, including the space before it. */
typedef struct {
    const char *text;
    int length; /* bytes */
    double begin, end;
} cue_word;

/* In characters; without the space at the start of a line. */
static int64_t width_of(const cue_word *word, bool first) {
    int64_t width = 0;
    for (int i = first ? (int)strspn(word->text, " ") : 0; i < word->length; i++)
        width += ((unsigned char)word->text[i] & 0xc0) != 0x80;
    return width;
}

/* End of the line that starts with word `first`. */
static int64_t line_end(const transcript *t, const cue_word *words, int64_t first,
                        int64_t end) {
    int64_t at = first + 1, width = width_of(&words[first], true);
    for (; at < end && (width += width_of(&words[at], false)) <= t->line_width; at++)
        continue;
    return at;
}

/* Last position in the second half of the words that follows punctuation, preferably
   the end of a sentence; `end` if there is none. */
static int64_t behind_mark(const cue_word *words, int64_t first, int64_t end) {
    static const char *const marks[] = {".?!", ",;:"};
    for (int kind = 0; kind < 2; kind++)
        for (int64_t at = end; at > first + (end - first) / 2; at--)
            if (strchr(marks[kind], words[at - 1].text[words[at - 1].length - 1]))
                return at;
    return end;
}

static int64_t count_lines(const transcript *t, const cue_word *words, int64_t first,
                           int64_t end, bool marks) {
    int64_t lines = 0;
    for (; first < end; lines++) {
        const int64_t stop = line_end(t, words, first, end);
        first = marks && stop < end ? behind_mark(words, first, stop) : stop;
    }
    return lines;
}

/* Lines break at punctuation if that does not need more lines. */
static void print_lines(transcript *t, const cue_word *words, int64_t first, int64_t end,
                        bool timed) {
    const bool marks = count_lines(t, words, first, end, true) <= t->line_count;
    for (int64_t stop; first < end; first = stop) {
        stop = line_end(t, words, first, end);
        stop = marks && stop < end ? behind_mark(words, first, stop) : stop;
        const cue_word *last = &words[stop - 1];
        char *text = NULL;
        if (!timed) {
            text = strndup(words[first].text,
                           (size_t)(last->text + last->length - words[first].text));
            print_text(t, text ? text : "");
        }
        /* WebVTT puts times between the words. */
        for (int64_t i = first; timed && i < stop; i++) {
            fputs(i > first && words[i].text[0] == ' ' ? " <" : "<", t->to);
            print_time(t->to, words[i].begin, '.');
            fputs("><c>", t->to);
            text = strndup(words[i].text, (size_t)words[i].length);
            print_text(t, text ? text : "");
            fputs("</c>", t->to);
            free(text);
            text = NULL;
        }
        free(text);
        fputc('\n', t->to);
    }
}

/* Lists the words of a segment with the times given by the model, or else with times in
   proportion to their letters. Returns their number. words: room for all bytes of the
   text. */
static int64_t list_words(const shoal_segment *segment, cue_word *words) {
    const char *at = segment->text;
    const double all = (double)strlen(at), lasts = segment->end - segment->begin;
    int64_t count = 0;
    while (at[strspn(at, " \t\r\n")]) {
        const shoal_word *known = count < segment->word_count ? &segment->words[count]
                                                              : NULL;
        const size_t spaces = strspn(at, " "), length = known ? strlen(known->text) : 0;
        const bool same = length > 0 && strncmp(at, known->text, length) == 0;
        cue_word made = {at, (int)(same ? length : spaces + strcspn(at + spaces, " ")),
                         segment->begin + lasts * (double)(at - segment->text) / all, 0};
        at += made.length;
        made.end = segment->begin + lasts * (double)(at - segment->text) / all;
        if (same) {
            made.begin = known->begin;
            made.end = known->end;
        }
        words[count++] = made;
    }
    return count;
}

/* Prints a segment as cues of at most line_count lines of line_width characters; a cue
   that is not the last ends at punctuation if there is some in its second half. */
static void print_cues(transcript *t, const shoal_segment *segment) {
    cue_word *words = malloc((strlen(segment->text) + 1) * sizeof *words);
    const int64_t count = words ? list_words(segment, words) : 0;
    const bool timed = t->words && segment->word_count > 0;
    const bool alone = timed && t->form == FORM_SRT; /* one cue per word */
    for (int64_t first = 0, end; first < count; first = end) {
        end = first;
        for (int64_t line = 0; line < t->line_count && end < count; line++)
            end = line_end(t, words, end, count);
        if (alone)
            end = first + 1;
        else if (end < count)
            end = behind_mark(words, first, end);
        print_cue_times(t, first == 0 && !alone ? segment->begin : words[first].begin,
                        end == count && !alone ? segment->end : words[end - 1].end);
        print_lines(t, words, first, end, timed && !alone);
        fputc('\n', t->to);
    }
    free(words);
}

static void print_row(const transcript *t, double begin, double end, const char *text) {
    fprintf(t->to, "%" PRId64 ",%" PRId64 ",\"", milliseconds(begin), milliseconds(end));
    print_text(t, text);
    fputc('"', t->to);
}

static void print_rows(const transcript *t, const shoal_segment *segment) {
    if (!t->words) {
        print_row(t, segment->begin, segment->end, segment->text);
        fputc('\n', t->to);
        return;
    }
    for (int64_t i = 0; i < segment->word_count; i++) {
        const shoal_word *word = &segment->words[i];
        print_row(t, word->begin, word->end, word->text);
        fprintf(t->to, ",%.4f\n", word->probability);
    }
}

static json_t *words_of(const shoal_segment *segment) {
    json_t *list = json_array();
    for (int64_t i = 0; i < segment->word_count; i++) {
        const shoal_word *word = &segment->words[i];
        json_array_append_new(list, json_pack("{s:o, s:f, s:f, s:o}", "word",
                                              json_text(word->text), "start", word->begin,
                                              "end", word->end, "probability",
                                              json_number(word->probability)));
    }
    return list;
}

void transcript_add(transcript *t, const shoal_segment *segment) {
    if (t->form == FORM_JSON) {
        json_t *ids = json_array();
        for (int64_t i = 0; i < segment->token_count; i++)
            json_array_append_new(ids, json_integer(segment->tokens[i]));
        json_t *object = json_pack("{s:I, s:f, s:f, s:o, s:o, s:f, s:o, s:o, s:o}", "id",
                                   (json_int_t)t->cues++, "start", segment->begin, "end",
                                   segment->end, "text", json_text(segment->text),
                                   "tokens", ids, "temperature", segment->temperature,
                                   "mean_logprob", json_number(segment->mean_logprob),
                                   "compression_ratio", json_number(segment->compression),
                                   "no_speech", json_number(segment->no_speech));
        if (t->words)
            json_object_set_new(object, "words", words_of(segment));
        json_array_append_new(t->list, object);
    } else if (t->form == FORM_CSV) {
        print_rows(t, segment);
    } else if (t->form == FORM_LRC) {
        fputc('[', t->to);
        print_lyrics_time(t->to, segment->begin);
        fputc(']', t->to);
        if (t->words && segment->word_count > 0)
            for (int64_t i = 0; i < segment->word_count; i++) {
                fputs(i > 0 ? " <" : "<", t->to);
                print_lyrics_time(t->to, segment->words[i].begin);
                fputs("> ", t->to);
                print_text(t, segment->words[i].text);
            }
        else
            print_text(t, segment->text);
        fputc('\n', t->to);
    } else if (t->form != FORM_TXT) {
        print_cues(t, segment);
    } else if (t->colors && segment->word_count > 0) {
        /* From red (low probability) to green. */
        static const int colors[] = {196, 202, 208, 214, 220, 226, 190, 154, 118, 46};
        for (int64_t i = 0; i < segment->word_count; i++) {
            const shoal_word *word = &segment->words[i];
            const double share = word->probability *
                                 word->probability; /* spreads the values, most of
                                                       which are near 1 */
            const int color = share < 1 ? (int)(share * 10) : 9;
            if (i > 0 && word->text[0] == ' ')
                fputc(' ', t->to);
            fprintf(t->to, "\033[38;5;%dm", colors[color < 0 ? 0 : color]);
            print_text(t, word->text);
            fputs("\033[0m", t->to);
        }
        fputc('\n', t->to);
    } else {
        print_text(t, segment->text);
        fputc('\n', t->to);
    }
    if (t->to == stdout)
        fflush(stdout);
}

/* ---- The end -------------------------------------------------------------------- */

/* Texts of all segments, concatenated. */
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
