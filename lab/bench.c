/* shoal bench: the command line, the machine and its peak rates. */
#define _GNU_SOURCE
#include "bench.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "blas.h"
#include "plot.h"

#if defined(__clang__)
const char bench_compiler[] = __VERSION__;
#else
const char bench_compiler[] = "GCC " __VERSION__;
#endif

#define DEFAULT_KINDS "full,shoal,clustered-100,i-clustered-100,lsh-1,lsh-4"
#define RANKS_KINDS "full,clustered-100,i-clustered-100,shoal-100"
#define DEFAULT_LENGTHS "512..32768"
#define QUICK_LENGTHS "512..8192"
enum { DEFAULT_REPEATS = 7, QUICK_REPEATS = 3, DEFAULT_BUDGET = 240, QUICK_BUDGET = 35 };

/* ---- Parsing ---------------------------------------------------------------------- */

static bool take_lengths(void *shared, const char *name, const char *text) {
    bench_job *job = shared;
    char copy[512], *rest = copy;
    int64_t from, to;
    job->lengths = 0;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy)
        die(EXIT_USAGE, "--%s is too long", name);
    while (next_range(name, &rest, 1, 1 << 26, &from, &to))
        for (int64_t length = from; length <= to; length *= 2) {
            const int64_t before = job->lengths ? job->length[job->lengths - 1] : 0;
            if (job->lengths == BENCH_LENGTHS)
                die(EXIT_USAGE, "--lengths has more than %d lengths; give fewer",
                    BENCH_LENGTHS);
            if (before >= length)
                die(EXIT_USAGE,
                    "--lengths must increase: %" PRId64 " comes after %" PRId64, length,
                    before);
            job->length[job->lengths++] = length;
        }
    return true;
}

/* ---- The options ------------------------------------------------------------------- */

static const char *const modes[] = {"forward", "train", NULL};
static const char *const scopes[] = {"attention", "layer", NULL};

static const option_row rows[] =
    {{"kinds", 0, "KINDS",
      "kinds of attention, as in shoal kinds (default:\n" DEFAULT_KINDS ";\n"
      "under mpirun " RANKS_KINDS ")",
      SETS_KINDS(bench_job, kinds, BENCH_KINDS)},
     {"lengths", 0, "LIST",
      "sequence lengths; A..B doubles from A to B (default:\n" DEFAULT_LENGTHS
      "; with --quick " QUICK_LENGTHS ")",
      TAKEN_BY(take_lengths)},
     {"heads", 0, "H", "number of heads (default: 6)",
      SETS_INTEGER(bench_job, heads, 1, 4096)},
     {"dim", 0, "D", "dimension of queries and keys (default: 64)",
      SETS_INTEGER(bench_job, dim, 1, 65536)},
     {"value-dim", 0, "D", "dimension of values (default: that of --dim)",
      SETS_INTEGER(bench_job, value_dim, 1, 65536)},
     {"feed-forward", 0, "F",
      "with --scope layer: width of the feed-forward network\n"
      "(default: 4 H D, which is 1536)",
      SETS_INTEGER(bench_job, feed_forward, 1, 1 << 24)},
     {"batch", 0, "B", "number of sequences (default: 1)",
      SETS_INTEGER(bench_job, batch, 1, 65536)},
     THREADS_ROW(bench_job),
     {"mode", 0, "MODE", "forward, or train: forward and backward (default: forward)",
      SETS_CHOICE(bench_job, train, modes)},
     {"scope", 0, "SCOPE",
      "attention, or layer: a complete encoder layer with projections,\n"
      "feed-forward network and norms (default: attention)",
      SETS_CHOICE(bench_job, layer, scopes)},
     {"repeats", 0, "R",
      "maximum number of repetitions, 1 to 100; fewer if time is short\n"
      "(default: 7; with --quick 3)",
      SETS_INTEGER(bench_job, repeats, 1, BENCH_REPEATS)},
     {"quick", 0, NULL, "fewer lengths and repetitions: less than 45 seconds",
      SETS_FLAG(bench_job, quick)},
     {"budget", 0, "SECONDS",
      "total time; kinds and lengths that would exceed it are estimated\n"
      "(default: 240; with --quick 35)",
      SETS_INTEGER(bench_job, budget, 1, 1000000)},
     {"seed", 0, "S", "seed of the data and of the kinds (default: 1)",
      SETS_SEED(bench_job, seed)},
     ISA_ROW(bench_job),
     {"json", 0, NULL, "print one JSON object instead of the table",
      SETS_FLAG(bench_job, json)},
     {"csv", 0, "FILE", "write the rows to this file as comma-separated values",
      SETS_TEXT(bench_job, csv_path)},
     {"plot", 0, "FILE",
      "plot time and memory per element against the length (.svg or .png)",
      SETS_TEXT(bench_job, plot_path), .take = plot_option},
     HELP_ROW,
     {0}};

const command_help bench_help = {
    "bench",
    "bench [options]",
    "Measures time and memory of each kind of attention on this machine at growing\n"
    "lengths, and the length from which it is faster than full attention. Every result "
    "is\n"
    "verified before its time is printed. Repetitions of the kinds alternate; the table\n"
    "has the best time, the median and their distance, and the rates of a BLAS and of\n"
    "memory measured in the same run.\n",
    rows,
    "An element is a position of a sequence. B/elem. plan: bytes of the plan besides\n"
    "inputs and outputs (layer: bytes of the model including weights); process: growth "
    "of\n"
    "the process at its peak. If a kind would exceed the budget, its time is an "
    "estimate,\n"
    "marked ~. Ctrl-C prints and saves the results so far. A wrong result has no time, "
    "and\n"
    "the exit code is 1.\n"
    "\n"
    "Under mpirun each process has a contiguous part of the positions. Calls of a "
    "single\n"
    "process and of all processes alternate, and their results must agree; the table "
    "has\n"
    "the bytes that a process sends per call. --csv and --plot are not available "
    "there.\n",
    NULL};

/* ---- The machine ------------------------------------------------------------------ */

/* Text after the colon of the first line that begins with the name. */
static bool find_line(const char *path, const char *name, char *text, size_t size) {
    char line[512];
    bool found = false;
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        found = colon && strncmp(line, name, strlen(name)) == 0;
        if (found)
            snprintf(text, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (file)
        fclose(file);
    return found;
}

/* ---- Memory of the process -------------------------------------------------------- */

static double status_bytes(const char *name) {
    char text[64] = "0";
    find_line("/proc/self/status", name, text, sizeof text);
    return strtod(text, NULL) * 1024;
}

double bench_peak_now(void) {
    const double peak = status_bytes("VmHWM");
    struct rusage usage;
    if (peak > 0 || getrusage(RUSAGE_SELF, &usage) != 0)
        return peak;
    return (double)usage.ru_maxrss * 1024;
}

double bench_peak_begin(bool *resets) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    *resets = file && fputs("5", file) >= 0 && fclose(file) == 0 &&
              status_bytes("VmHWM") > 0;
    return *resets ? status_bytes("VmRSS") : bench_peak_now();
}

/* ---- Peak rates of the machine ---------------------------------------------------- */

static const double measuring_seconds = 0.25;

/* a = b + s c over arrays larger than caches; three times their bytes per pass. Threads
   have a slice each, and first fill it, so that its memory is near them. */
typedef struct {
    pthread_t thread;
    bool started, filling;
    float *a, *b, *c;
    int64_t count;
} triad_slice;

static void *run_slice(void *argument) {
    const triad_slice *s = argument;
    for (int64_t i = 0; i < s->count && s->filling; i++) {
        s->a[i] = 0;
        s->b[i] = 1;
        s->c[i] = (float)(i % 3);
    }
    for (int64_t i = 0; i < s->count && !s->filling; i++)
        s->a[i] = s->b[i] + 3 * s->c[i];
    return NULL;
}

static void run_slices(triad_slice *slices, int threads, bool filling) {
    for (int t = 0; t < threads; t++) {
        triad_slice *s = &slices[t];
        s->filling = filling;
        s->started = t > 0 && pthread_create(&s->thread, NULL, run_slice, s) == 0;
        if (!s->started && t > 0)
            run_slice(s);
    }
    run_slice(&slices[0]);
    for (int t = 1; t < threads; t++)
        if (slices[t].started)
            pthread_join(slices[t].thread, NULL);
}

static double triad_rate(int threads) {
    const int64_t count = ((int64_t)1 << 24) / threads;
    double best = INFINITY, begun = seconds_now();
    float *a = malloc(3 * (size_t)(count * threads) * sizeof *a);
    if (!a)
        return 0;
    triad_slice *slices = reserve_zeros((size_t)threads, sizeof *slices);
    for (int t = 0; t < threads; t++)
        slices[t] = (triad_slice){.a = a + 3 * t * count,
                                  .b = a + (3 * t + 1) * count,
                                  .c = a + (3 * t + 2) * count,
                                  .count = count};
    run_slices(slices, threads, true);
    while (best == INFINITY || seconds_now() - begun < measuring_seconds) {
        const double start = seconds_now();
        run_slices(slices, threads, false);
        best = fmin(best, seconds_now() - start);
    }
    const bool right = a[0] == 1 && a[1] == 4 && a[count - 1] >= 1;
    free(slices);
    free(a);
    return right ? 3.0 * (double)(count * threads) * sizeof *a / best : 0;
}

void bench_machine_measure(bench_rates *rates, int threads) {
    rates->sgemm = blas_sgemm_rate(threads);
    rates->bandwidth = triad_rate(threads);
}

/* ---- The command ------------------------------------------------------------------- */

int bench_command(int count, char **arguments) {
    static bench_job job = {.heads = 6, .dim = 64, .batch = 1, .seed = 1};
    begin_command(&bench_help, count, arguments, &job);
    if (job.layer && job.value_dim > 0 && job.value_dim != job.dim)
        die(EXIT_USAGE,
            "--value-dim is %" PRId64
            "; a layer needs --value-dim equal to --dim, %" PRId64,
            job.value_dim, job.dim);
    if (!job.layer && job.feed_forward > 0)
        die(EXIT_USAGE, "--feed-forward needs --scope layer");
    job.ranks = begin_ranks("Start the job again");
    if (job.ranks && (job.csv_path || job.plot_path))
        die(EXIT_USAGE, "--csv and --plot are not available with several processes");
    if (job.ranks && job.threads == 0)
        job.threads = ranks_threads(job.ranks);
    /* Set defaults. */
    default_kinds(&job.kinds, job.ranks ? RANKS_KINDS : DEFAULT_KINDS);
    if (job.lengths == 0)
        take_lengths(&job, "lengths", job.quick ? QUICK_LENGTHS : DEFAULT_LENGTHS);
    if (job.repeats == 0)
        job.repeats = job.quick ? QUICK_REPEATS : DEFAULT_REPEATS;
    if (job.budget == 0)
        job.budget = job.quick ? QUICK_BUDGET : DEFAULT_BUDGET;
    if (job.value_dim == 0)
        job.value_dim = job.dim;
    if (job.layer && job.feed_forward == 0)
        job.feed_forward = 4 * job.heads * job.dim;
    plan_output(job.csv_path);
    plan_output(job.plot_path);
    job.context = begin_context(job.threads, job.isa);
    parse_kind_list(&job.kinds, job.context, job.seed);
    if (!find_line("/proc/cpuinfo", "model name", job.machine.cpu,
                   sizeof job.machine.cpu))
        snprintf(job.machine.cpu, sizeof job.machine.cpu, "unknown processor");
    /* "always [madvise] never": the word in brackets. */
    char line[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file && !fgets(line, sizeof line, file))
        line[0] = 0;
    if (file)
        fclose(file);
    const char *open = strchr(line, '[');
    snprintf(job.machine.huge_pages, sizeof job.machine.huge_pages, "%.*s",
             open ? (int)strcspn(open + 1, "]") : 7, open ? open + 1 : "unknown");
    job.machine.cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    job.machine.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    bench_peak_begin(&job.machine.peak_resets);
    return job.ranks ? bench_over_ranks(&job) : bench_run(&job);
}
