/* What the machine is, what it can do at best, and how much memory the process holds. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench.h"
#include "common.h"

#if defined(SHOAL_HAVE_OPENBLAS)
#include <cblas.h>
#endif

#if defined(__clang__)
const char bench_compiler[] = __VERSION__;
#else
const char bench_compiler[] = "GCC " __VERSION__;
#endif

/* ---- Description ------------------------------------------------------------------- */

/* What follows the colon of the first line that begins with the name. */
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

/* "always [madvise] never": the word in brackets. */
static void describe_huge_pages(char *text, size_t size) {
    char line[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file && !fgets(line, sizeof line, file))
        line[0] = 0;
    if (file)
        fclose(file);
    const char *open = strchr(line, '[');
    snprintf(text, size, "%.*s", open ? (int)strcspn(open + 1, "]") : 7,
             open ? open + 1 : "unknown");
}

void bench_machine_describe(bench_machine *machine) {
    if (!find_line("/proc/cpuinfo", "model name", machine->cpu, sizeof machine->cpu))
        snprintf(machine->cpu, sizeof machine->cpu, "unknown processor");
    describe_huge_pages(machine->huge_pages, sizeof machine->huge_pages);
    machine->cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    machine->memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    bench_peak_begin(&machine->peak_resets);
}

/* ---- What it can do ---------------------------------------------------------------- */

static const double measuring_seconds = 0.25;

#if defined(SHOAL_HAVE_OPENBLAS)

const char bench_blas[] = "OpenBLAS";

enum { SIDE = 1024 };

/* A product of matrices whose elements are (row + column) % 7 - 3 is exact in float32,
   so a row of the result can be compared bit for bit. */
static bool product_is_right(const float *a, const float *b, const float *c) {
    for (int column = 0; column < SIDE; column++) {
        float sum = 0;
        for (int i = 0; i < SIDE; i++)
            sum += a[i] * b[i * SIDE + column];
        if (sum != c[column])
            return false;
    }
    return true;
}

/* Operations per second; 0 where memory is short or the result is wrong. */
static double sgemm_rate(int threads) {
    float *a = malloc(3 * sizeof(float) * SIDE * SIDE), *b, *c;
    double best = INFINITY, begun = seconds_now();
    bool right = false;
    if (!a)
        return 0;
    b = a + SIDE * SIDE;
    c = b + SIDE * SIDE;
    for (int i = 0; i < SIDE * SIDE; i++)
        a[i] = b[i] = (float)((i / SIDE + i % SIDE) % 7 - 3);
    openblas_set_num_threads(threads);
    while (best == INFINITY || seconds_now() - begun < measuring_seconds) {
        const double start = seconds_now();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, a,
                    SIDE, b, SIDE, 0, c, SIDE);
        best = fmin(best, seconds_now() - start);
    }
    right = product_is_right(a, b, c);
    free(a);
    return right ? 2.0 * SIDE * SIDE * SIDE / best : 0;
}

#else

const char bench_blas[] = "none";

static double sgemm_rate(int threads) {
    (void)threads;
    return 0;
}

#endif

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
    triad_slice *slices = calloc((size_t)threads, sizeof *slices);
    for (int t = 0; a && slices && t < threads; t++)
        slices[t] = (triad_slice){.a = a + 3 * t * count,
                                  .b = a + (3 * t + 1) * count,
                                  .c = a + (3 * t + 2) * count,
                                  .count = count};
    if (a && slices)
        run_slices(slices, threads, true);
    while (a && slices &&
           (best == INFINITY || seconds_now() - begun < measuring_seconds)) {
        const double start = seconds_now();
        run_slices(slices, threads, false);
        best = fmin(best, seconds_now() - start);
    }
    const bool right = a && slices && a[0] == 1 && a[1] == 4 && a[count - 1] >= 1;
    free(slices);
    free(a);
    return right ? 3.0 * (double)(count * threads) * sizeof *a / best : 0;
}

void bench_machine_measure(bench_rates *rates, int threads) {
    rates->sgemm = sgemm_rate(threads);
    rates->bandwidth = triad_rate(threads);
}

/* ---- Memory of the process --------------------------------------------------------- */

static double status_bytes(const char *name) {
    char text[64];
    if (find_line("/proc/self/status", name, text, sizeof text))
        return strtod(text, NULL) * 1024;
    return 0;
}

/* A new peak starts where the kernel allows it. */
static bool reset_peak(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    return file && fputs("5", file) >= 0 && fclose(file) == 0;
}

double bench_peak_now(void) {
    const double peak = status_bytes("VmHWM");
    struct rusage usage;
    if (peak > 0 || getrusage(RUSAGE_SELF, &usage) != 0)
        return peak;
    return (double)usage.ru_maxrss * 1024;
}

double bench_peak_begin(bool *resets) {
    *resets = reset_peak() && status_bytes("VmHWM") > 0;
    return *resets ? status_bytes("VmRSS") : bench_peak_now();
}
