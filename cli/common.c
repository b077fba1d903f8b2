#define _GNU_SOURCE
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char exit_codes_help[] =
    "exit codes:\n"
    "  0    done\n"
    "  1    a result is wrong, where a command checks its own\n"
    "  2    usage: the command line makes no sense\n"
    "  3    bad input: a file cannot be read or does not fit, or a training diverged\n"
    "  4    out of resources: not enough memory, or an output cannot be written\n"
    "  130  interrupted (128 and the signal's number); files are written whole or not "
    "at all\n";

/* ---- Messages --------------------------------------------------------------------- */

/* In UTF-8 the control characters from 0x80 on begin with 0xc2. */
int control_bytes(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
        return 2;
    return (*c && *c < ' ') || *c == 0x7f;
}

void mask_controls(char *text) {
    while (*text) {
        const int bytes = control_bytes(text);
        memset(text, '?', (size_t)bytes);
        text += bytes ? bytes : 1;
    }
}

static void print_masked(const char *format, va_list arguments) {
    char *text;
    if (vasprintf(&text, format, arguments) < 0)
        return;
    mask_controls(text);
    fprintf(stderr, "%s\n", text);
    free(text);
}

static int own_rank = -1; /* of several processes */

void complain_as(int rank) {
    own_rank = rank;
}

int complain(int exit_code, const char *command, const char *format, ...) {
    va_list arguments;
    char rank[32] = "";
    progress_end();
    if (own_rank >= 0)
        snprintf(rank, sizeof rank, "rank %d: ", own_rank);
    fprintf(stderr, "shoal%s%s: %s", *command ? " " : "", command, rank);
    va_start(arguments, format);
    print_masked(format, arguments);
    va_end(arguments);
    return exit_code;
}

void tell(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_masked(format, arguments);
    va_end(arguments);
}

int complain_status(shoal_status status, int otherwise, const char *command,
                    const shoal_context *context) {
    const char *message = context ? shoal_context_message(context) : "";
    return complain(status == SHOAL_NO_MEMORY ? EXIT_RESOURCES : otherwise, command, "%s",
                    *message ? message : shoal_status_text(status));
}

int open_context(const char *command, int threads, const char *isa,
                 shoal_context **context) {
    shoal_options options = {.threads = threads, .isa = isa};
    shoal_status status = shoal_context_create(&options, context);
    if (status == SHOAL_OK)
        return EXIT_OK;
    int code = complain_status(status, EXIT_USAGE, command, *context);
    shoal_context_destroy(*context);
    *context = NULL;
    return code;
}

/* ---- Time and sizes ---------------------------------------------------------------- */

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static char *next_text(void) {
    static char texts[8][32];
    static unsigned next;
    return texts[next++ % 8];
}

enum { TEXT = 32 };

/* Three digits, so that columns of very different sizes line up. */
static const char *scaled_text(double value, double step, const char *const *units,
                               int count) {
    char *text = next_text();
    int unit = 0;
    while (value >= 999.5 && unit + 1 < count) {
        value /= step;
        unit++;
    }
    int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, TEXT, "%.*f %s", decimals, value, units[unit]);
    return text;
}

const char *bytes_text(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    char *text;
    if (bytes >= 999.5)
        return scaled_text(bytes, 1024, units, 5);
    text = next_text();
    snprintf(text, TEXT, "%.0f B", bytes);
    return text;
}

const char *seconds_text(double seconds) {
    static const char *const units[] = {"us", "ms", "s"};
    return scaled_text(seconds * 1e6, 1000, units, 3);
}

/* ---- JSON -------------------------------------------------------------------------- */

json_t *load_json(const char *command, const char *path) {
    json_error_t error = {.line = -1};
    json_t *object = NULL;
    struct stat information;
    FILE *file = fopen(path, "r");
    if (!file)
        complain(EXIT_BAD_INPUT, command, "%s: cannot open it: %s", path,
                 strerror(errno));
    else if (fstat(fileno(file), &information) == 0 && S_ISDIR(information.st_mode))
        complain(EXIT_BAD_INPUT, command, "%s: is a directory; name a file in it", path);
    else if (!(object = json_loadf(file, JSON_REJECT_DUPLICATES, &error)))
        complain(EXIT_BAD_INPUT, command, "%s: line %d: %s", path, error.line,
                 error.text);
    if (file)
        fclose(file);
    return object;
}

json_t *json_seed(uint64_t seed) {
    return seed <= INT64_MAX ? json_integer((json_int_t)seed)
                             : json_sprintf("%" PRIu64, seed);
}

void make_utf8(char *text) {
    json_t *valid = json_string(text);
    for (char *c = text; !valid && *c; c++)
        *c = *c & 0x80 ? '?' : *c;
    json_decref(valid);
}

json_t *json_text(const char *text) {
    char *copy = text ? strdup(text) : NULL;
    if (!copy)
        return json_null();
    make_utf8(copy);
    json_t *string = json_string(copy);
    free(copy);
    return string;
}

int print_json(json_t *object) {
    int failed = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (failed || putchar('\n') == EOF || fflush(stdout) != 0)
        return stdout_reader_left()
                   ? EXIT_OK
                   : complain(EXIT_RESOURCES, "", "the JSON output could not be written");
    return EXIT_OK;
}

json_t *json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* ---- Progress --------------------------------------------------------------------- */

static struct {
    bool running, stop, shown;
    double begun, silent_seconds;
    char text[200];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void wait_a_little(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 250000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&progress.changed, &progress.lock, &until);
}

/* One line of the terminal at most: a longer one would stay when the next is written. */
static void print_progress(double elapsed) {
    struct winsize window = {0};
    char seconds[32];
    int room = 79 - snprintf(seconds, sizeof seconds, " (%.0f s)", elapsed);
    int length = (int)strlen(progress.text);
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        room += window.ws_col - 80;
    if (length > room)
        length = room > 0 ? room : 0;
    while (length > 0 && (progress.text[length] & 0xc0) == 0x80)
        length--; /* no part of a character */
    fprintf(stderr, "\r\033[K%.*s%s", length, progress.text, seconds);
}

static void *show_progress(void *unused) {
    pthread_mutex_lock(&progress.lock);
    while (!progress.stop) {
        double elapsed = seconds_now() - progress.begun;
        if (progress.text[0] && elapsed >= progress.silent_seconds) {
            print_progress(elapsed);
            progress.shown = true;
        }
        wait_a_little();
    }
    if (progress.shown)
        fputs("\r\033[K", stderr);
    pthread_mutex_unlock(&progress.lock);
    return unused;
}

void progress_begin(double silent_seconds) {
    if (progress.running || !isatty(STDERR_FILENO))
        return;
    progress.stop = progress.shown = false;
    if (progress.begun == 0)
        progress.begun = seconds_now();
    progress.silent_seconds = silent_seconds;
    progress.text[0] = 0;
    progress.running = pthread_create(&progress.thread, NULL, show_progress, NULL) == 0;
}

void progress_say(const char *format, ...) {
    if (!progress.running)
        return;
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&progress.lock);
    vsnprintf(progress.text, sizeof progress.text, format, arguments);
    mask_controls(progress.text);
    pthread_mutex_unlock(&progress.lock);
    va_end(arguments);
}

void progress_end(void) {
    if (!progress.running)
        return;
    pthread_mutex_lock(&progress.lock);
    progress.stop = true;
    pthread_cond_signal(&progress.changed);
    pthread_mutex_unlock(&progress.lock);
    pthread_join(progress.thread, NULL);
    progress.running = false;
}

/* ---- Signals ---------------------------------------------------------------------- */

static volatile sig_atomic_t writing, pending_signal;

static void on_signal(int number) {
    if (writing) {
        pending_signal = number;
        return;
    }
    /* Leave the progress line behind; if that fails there is nothing to be done. */
    ssize_t unused = progress.running ? write(STDERR_FILENO, "\n", 1) : 0;
    (void)unused;
    _exit(128 + number);
}

void catch_signals(void (*handler)(int number)) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        /* Someone who started us with a signal ignored (nohup) wants it to stay so. */
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

/* Files are mapped; what is cut off one meanwhile cannot be read any more. */
static void on_lost_pages(int number) {
    static const char message[] =
        "shoal: a file was made shorter, or its disk failed, while it was in use\n";
    (void)number;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0)
        _exit(EXIT_RESOURCES);
    _exit(EXIT_BAD_INPUT);
}

void handle_signals(void) {
    struct sigaction lost = {.sa_handler = on_lost_pages};
    sigemptyset(&lost.sa_mask);
    sigaction(SIGBUS, &lost, NULL);
    catch_signals(on_signal);
}

static volatile sig_atomic_t noted_signal;

static void note_signal(int number) {
    if (noted_signal) /* asked twice: whoever asks does not want to wait */
        on_signal(number);
    noted_signal = number;
}

void watch_stop(void) {
    catch_signals(note_signal);
}

int stop_signal(void) {
    return (int)noted_signal;
}

void writing_begin(void) {
    writing = 1;
}

void writing_wait(void) {
    const double begun = seconds_now();
    while (writing && seconds_now() - begun < 10)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

void writing_end(void) {
    writing = 0;
    if (pending_signal)
        _exit(128 + (int)pending_signal);
}
