#define _GNU_SOURCE
#include "ranks.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "command.h"

#define TEXT_OF(x) #x
#define AS_TEXT(x) TEXT_OF(x)
#define LIBRARY "libshoal-mpi.so." AS_TEXT(SHOAL_VERSION_MAJOR)

static struct {
    const char *advice;
    volatile bool begun;  /* all ranks have started */
    volatile bool ending; /* this rank is exiting: lost ranks are not reported */
    bool agreed;          /* all ranks know that they will exit */
    void (*close)(shoal_transport *);
} job;

/* Runs in a thread of the library, at any time: files are written under a temporary
   name. */
static void lose(void *unused, const char *message) {
    (void)unused;
    if (job.ending)
        return;
    complain(EXIT_RESOURCES, command_name(), "%s; this rank stops too. %s", message,
             job.advice);
    writing_wait();
    _exit(EXIT_RESOURCES);
}

/* Loads the library from the folder of libshoal: interposers of dlopen, such as
   sanitizers, hide the program's search path. */
static void *load_beside(void) {
    char path[4096];
    Dl_info own;
    if (!dladdr((const void *)(uintptr_t)shoal_version, &own))
        return NULL;
    const char *name = strrchr(own.dli_fname, '/');
    const int folder = name ? (int)(name - own.dli_fname) : 0;
    const int length =
        snprintf(path, sizeof path, "%.*s/%s", folder, own.dli_fname, LIBRARY);
    return folder > 0 && length < (int)sizeof path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL)
                                                   : NULL;
}

enum { BEGIN_SECONDS = 60 };

/* Runs in a thread, because MPI_Init waits forever for processes that never call it. */
static void *watch_begin(void *seconds) {
    const double begun = seconds_now(), most = *(const double *)seconds;
    while (!job.begun && seconds_now() - begun < most)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    if (!job.begun) {
        complain(EXIT_RESOURCES, command_name(),
                 "not all processes started within %g s; each must run shoal %s", most,
                 command_name());
        _exit(EXIT_RESOURCES);
    }
    return NULL;
}

typedef shoal_status open_function(const shoal_mpi_options *, shoal_transport **);

shoal_transport *ranks_open(const char *variable, long size, const char *advice) {
    shoal_transport *ranks = NULL;
    const char *patience = getenv("SHOAL_MPI_PATIENCE");
    job.advice = advice;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        library = load_beside();
    if (!library)
        die(EXIT_RESOURCES,
            "%s shows that several processes were started, but %s cannot be loaded (%s); "
            "build Shoal with MPI installed (Debian: libopenmpi-dev), or start one "
            "process without a launcher",
            variable, LIBRARY, dlerror());
    open_function *open = (open_function *)(uintptr_t)dlsym(library, "shoal_mpi_create");
    job.close =
        (void (*)(shoal_transport *))(uintptr_t)dlsym(library, "shoal_mpi_destroy");
    if (!open || !job.close)
        die(EXIT_RESOURCES,
            "%s belongs to another version of Shoal; install both from one build",
            LIBRARY);
    const shoal_mpi_options options = {.size = sizeof(shoal_mpi_options),
                                       .patience = patience ? strtod(patience, NULL) : 0,
                                       .lost = lose};
    static double seconds;
    pthread_t watcher;
    seconds = options.patience > 0 ? options.patience : BEGIN_SECONDS;
    const bool watched = pthread_create(&watcher, NULL, watch_begin, &seconds) == 0;
    const shoal_status status = open(&options, &ranks);
    job.begun = true;
    if (watched)
        pthread_join(watcher, NULL);
    if (status != SHOAL_OK)
        die(EXIT_RESOURCES, "%s: %s", LIBRARY, ranks ? ranks->message : "out of memory");
    job.ending = size > 0 && ranks->ranks != size;
    if (job.ending)
        die(EXIT_USAGE,
            "%s is %ld, but %s finds %d processes: it was built with another MPI than "
            "the launcher's; start the job with the matching mpirun",
            variable, size, LIBRARY, (int)ranks->ranks);
    if (ranks->rank > 0)
        complain_as(ranks->rank);
    return ranks;
}

void ranks_close(shoal_transport *ranks, int exit_code) {
    if (!ranks)
        return;
    if (exit_code == EXIT_OK || job.agreed)
        job.close(ranks);
    job.ending = true;
}

/* ---- Threads ----------------------------------------------------------------------- */

typedef struct {
    char machine[256];
    cpu_set_t processors;
} rank_place;

int ranks_threads(shoal_transport *ranks) {
    rank_place own;
    int same = 0;
    if (!ranks)
        return 0;
    memset(&own, 0, sizeof own);
    if (sched_getaffinity(0, sizeof own.processors, &own.processors) != 0)
        return 1;
    gethostname(own.machine, sizeof own.machine - 1);
    rank_place *all = calloc((size_t)ranks->ranks, sizeof *all);
    if (!all || ranks->gather(ranks, sizeof own, &own, all) != SHOAL_OK) {
        free(all);
        return 1;
    }
    for (int i = 0; i < ranks->ranks; i++)
        same += memcmp(&all[i], &own, sizeof own) == 0;
    free(all);
    const int threads = CPU_COUNT(&own.processors) / same;
    return threads > 1 ? threads : 1;
}

/* ---- Agreement between ranks ------------------------------------------------------- */

void ranks_same(shoal_transport *ranks, uint64_t digest, const char *what) {
    uint64_t *all = reserve((size_t)ranks->ranks, sizeof *all);
    if (ranks->gather(ranks, sizeof digest, &digest, all) != SHOAL_OK)
        die(EXIT_RESOURCES, "%s", ranks->message);
    for (int i = 1; i < ranks->ranks; i++) {
        job.agreed = all[i] != all[0];
        if (job.agreed && ranks->rank > 0)
            leave(EXIT_USAGE);
        if (job.agreed)
            die(EXIT_USAGE, "rank %d has %s than rank 0", i, what);
    }
    free(all);
}

int ranks_follow(shoal_transport *ranks, int code) {
    int32_t first = code;
    if (!ranks)
        return code;
    if (ranks->broadcast(ranks, 0, sizeof first, &first) != SHOAL_OK)
        return complain(EXIT_RESOURCES, command_name(), "%s", ranks->message);
    job.agreed = first != EXIT_OK;
    return first;
}

void ranks_agreed(void) {
    job.agreed = true;
}
