/* shoal embed: a vector for every text. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "texts.h"

/* Cosines between two vectors of a text. */
typedef struct {
    int64_t count;
    double sum, squares, least;
} cosines;

typedef struct {
    text_model model;
    text_model other; /* with --compare: the same folder in another precision */
    text_source source;
    int compare; /* its precision; -1: none */
    cosines found;
    float *others; /* like vectors */
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
     {"compare", 0, "P",
      "compute all vectors in this precision too, and print the cosines\n"
      "between both instead of vectors",
      SETS_CHOICE(embed_job, compare, precision_names)},
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

/* ---- Two precisions ---------------------------------------------------------------- */

static void compare_block(embed_job *job) {
    const int64_t size = job->model.size;
    embed_block(&job->other, &job->source, job->others);
    for (int64_t i = 0; i < job->source.count; i++) {
        const float *a = job->vectors + i * size, *b = job->others + i * size;
        double product = 0, one = 0, other = 0;
        for (int64_t j = 0; j < size; j++) {
            product += (double)a[j] * (double)b[j];
            one += (double)a[j] * (double)a[j];
            other += (double)b[j] * (double)b[j];
        }
        /* A text without tokens is 0 in both. */
        const double cosine = one == 0 && other == 0 ? 1 : product / sqrt(one * other);
        cosines *found = &job->found;
        found->least = found->count && found->least < cosine ? found->least : cosine;
        found->count++;
        found->sum += cosine;
        found->squares += cosine * cosine;
    }
}

static const char *chosen(const text_model *model) {
    return precision_names[shoal_text_encoder_describe(model->encoder)->precision];
}

/* The mean with its 95 % interval over the texts. */
static void print_cosines(const embed_job *job) {
    const cosines *found = &job->found;
    const double count = (double)found->count, mean = found->sum / count;
    const double variance = found->squares / count - mean * mean;
    const double around = count > 1 && variance > 0 ? 1.96 * sqrt(variance / (count - 1))
                                                    : 0;
    if (found->count == 0)
        die(EXIT_BAD_INPUT, "there is no text to compare");
    printf("%s against %s, %" PRId64 " texts: cosine %.6f +- %.6f, least %.6f\n",
           chosen(&job->model), chosen(&job->other), found->count, mean, around,
           found->least);
}

int embed_command(int count, char **arguments) {
    static embed_job job = {.compare = -1};
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
    if (job.output && job.compare >= 0)
        die(EXIT_USAGE, "--compare prints cosines; there are no vectors for %s",
            job.output);
    plan_output(job.output);
    job.other = job.model;
    job.other.precision = job.compare;
    job.other.exact = false;
    open_text_model(&job.model);
    watch_stop(); /* an interrupt leaves a previous output file in place */
    job.vectors = reserve((size_t)(TEXT_BLOCK * job.model.size), sizeof(float));
    if (job.compare >= 0) {
        open_text_model(&job.other);
        job.others = reserve((size_t)(TEXT_BLOCK * job.model.size), sizeof(float));
    }
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
        if (job.compare >= 0)
            compare_block(&job);
        else
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
    if (job.compare >= 0) {
        print_cosines(&job);
        return EXIT_OK;
    }
    const double seconds = seconds_now() - begun;
    if (!job.quiet)
        tell("%" PRId64 " texts in %.2f s, %.1f per second; vectors of %" PRId64,
             job.done, seconds, (double)job.done / seconds, job.model.size);
    return EXIT_OK;
}
