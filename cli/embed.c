/* shoal embed: a vector for every text. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "texts.h"

typedef struct {
    text_model model;
    text_source source;
    const char *output;
    bool quiet;
    replacement to;
    FILE *file;     /* NULL for JSON lines on stdout */
    float *vectors; /* [TEXT_BLOCK][size] */
    int64_t done;
} embed_job;

static const option_row rows[] =
    {{"output", 'o', "FILE",
      ".npy file for the vectors, float32 [texts][size], in the order of\n"
      "the texts (default: JSON lines on standard output)",
      SETS_TEXT(embed_job, output)},
     TEXT_MODEL_ROWS(embed_job),
     {"normalize", 0, NULL, "normalize vectors to length 1",
      SETS_FLAG(embed_job, model.normalize)},
     {"quiet", 'q', NULL, "print no summary on standard error",
      SETS_FLAG(embed_job, quiet)},
     HELP_ROW,
     {0}};

const command_help embed_help =
    {"embed",
     "embed FILE... --model DIR [-o vectors.npy] [options]",
     "Computes a vector for every text with a BERT, RoBERTa or ModernBERT model and any\n"
     "kind of attention. FILE has one text per line; - is standard input.\n",
     rows,
     "Texts are read in blocks, sorted by length and packed without padding, so memory "
     "does\n"
     "not grow with the files. The order of the texts is kept. An empty line is a text,\n"
     "except with --field. A byte order mark at the start of a file is skipped.\n",
     "FILE"};

/* ---- .npy output; the number of rows is only known at the end ---------------------- */

enum { HEADER = 128 };

static bool write_header(FILE *file, int64_t texts, int64_t size) {
    char text[HEADER + 1];
    memset(text, ' ', sizeof text);
    memcpy(text, "\x93NUMPY\x01\x00\x76\x00", 10); /* version 1; 118 bytes follow */
    const int length = snprintf(text + 10, HEADER - 10,
                                "{'descr': '<f4', 'fortran_order': False, 'shape': "
                                "(%" PRId64 ", %" PRId64 "), }",
                                texts, size);
    text[10 + length] = ' ';
    text[HEADER - 1] = '\n';
    return fwrite(text, 1, HEADER, file) == HEADER;
}

static _Noreturn void cannot_write(const embed_job *job) {
    die(EXIT_RESOURCES, "%s cannot be written: %s", job->output, strerror(errno));
}

static _Noreturn void no_stream(const char *name) {
    die(EXIT_USAGE,
        "%s is not a regular file, but the number of texts must be written to its "
        "beginning at the end; omit -o to print vectors to standard output",
        name);
}

/* ---- Blocks ------------------------------------------------------------------------ */

static void put_block(const embed_job *job) {
    const int64_t size = job->model.size;
    const size_t count = (size_t)(job->source.count * size);
    if (job->file && fwrite(job->vectors, sizeof(float), count, job->file) != count)
        cannot_write(job);
    if (job->file)
        return;
    for (int64_t i = 0; i < job->source.count; i++) {
        printf("{\"text\": %" PRId64 ", \"vector\": [", job->source.first + i + 1);
        for (int64_t j = 0; j < size; j++)
            printf("%s%.9g", j ? ", " : "", (double)job->vectors[i * size + j]);
        puts("]}");
    }
    if (fflush(stdout) != 0)
        die(EXIT_RESOURCES, "standard output cannot be written");
}

int embed_command(int count, char **arguments) {
    static embed_job job;
    job.model.folder = default_model("SHOAL_TEXT_MODEL");
    begin_command(&embed_help, count, arguments, &job);
    job.source.paths = arguments + optind;
    job.source.files = count - optind;
    if (job.source.files == 0)
        die_of_usage("no file was given");
    for (int i = 0; i < job.source.files; i++)
        if (strcmp(job.source.paths[i], "-") != 0)
            plan_input(job.source.paths[i]);
    if (job.output && strcmp(job.output, "-") == 0)
        no_stream("standard output");
    plan_output(job.output);
    open_text_model(&job.model);
    watch_stop(); /* an interrupt leaves a previous output file in place */
    job.vectors = reserve((size_t)(TEXT_BLOCK * job.model.size), sizeof(float));
    if (job.output) {
        job.file = replace_begin(&job.to, job.output);
        if (!job.file)
            cannot_write(&job);
        if (fseek(job.file, 0, SEEK_SET) != 0 || !job.to.waits)
            no_stream(job.output);
        if (!write_header(job.file, 0, job.model.size))
            cannot_write(&job);
    }
    const double begun = seconds_now();
    if (!job.quiet)
        progress_begin(1);
    progress_say("the first texts");
    for (texts_next(&job.source); job.source.count > 0 && !stop_signal();
         texts_next(&job.source)) {
        embed_block(&job.model, &job.source, job.vectors);
        put_block(&job);
        job.done += job.source.count;
        progress_say("%" PRId64 " texts, %.1f per second", job.done,
                     (double)job.done / (seconds_now() - begun));
    }
    if (stop_signal())
        leave(128 + stop_signal());
    if (job.file) {
        const bool good = fseek(job.file, 0, SEEK_SET) == 0 &&
                          write_header(job.file, job.done, job.model.size);
        if (!replace_end(&job.to, good))
            cannot_write(&job);
    }
    progress_end();
    const double seconds = seconds_now() - begun;
    if (!job.quiet)
        tell("%" PRId64 " texts in %.2f s, %.1f per second; vectors of %" PRId64,
             job.done, seconds, (double)job.done / seconds, job.model.size);
    return EXIT_OK;
}
