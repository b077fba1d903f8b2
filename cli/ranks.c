#define _GNU_SOURCE
#include "ranks.h"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

#define TEXT_OF(x) #x
#define AS_TEXT(x) TEXT_OF(x)
#define LIBRARY                                                                          \
    "libshoal-mpi.so." AS_TEXT(SHOAL_VERSION_MAJOR) "." AS_TEXT(SHOAL_VERSION_MINOR)

static struct {
    const char *command, *advice;
    volatile bool ending; /* this rank ends: what happens to others is no news */
    bool agreed;          /* all ranks know that they end */
    void (*close)(shoal_transport *);
} job;

/* ---- The launcher ------------------------------------------------------------------ */

/* The variable that a launcher left, NULL: there was none. *size is 0 where it does not
   say how many processes there are. */
static const char *find_launcher(long *size) {
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE",
                                            "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_SIZE", "PMI_SIZE"},
                                           {"PMI_RANK", NULL},
                                           {"PMIX_RANK", NULL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i][0]);
        if (!text || !*text)
            continue;
        *size = names[i][1] ? strtol(text, NULL, 10) : 0;
        return names[i][0];
    }
    return NULL;
}

/* In a thread of the library. Files are written under another name, so that this can
   happen at any time. */
static void lose(void *unused, const char *message) {
    (void)unused;
    if (job.ending)
        return;
    complain(EXIT_RESOURCES, job.command, "%s; this rank ends too. %s", message,
             job.advice);
    writing_wait();
    _exit(EXIT_RESOURCES);
}

static double patience(void) {
    const char *text = getenv("SHOAL_MPI_PATIENCE");
    return text ? strtod(text, NULL) : 0;
}

/* The library beside libshoal: who stands between the program and dlopen, as sanitizers
   do, hides from it where the program looks for libraries. */
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

static int load(const char *command, const char *variable, void **library) {
    *library = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!*library)
        *library = load_beside();
    if (*library)
        return EXIT_OK;
    return complain(EXIT_RESOURCES, command,
                    "%s says that several processes were started, but %s cannot be "
                    "loaded (%s); build Shoal where an MPI is installed (Debian: "
                    "libopenmpi-dev), or start one process, without a launcher",
                    variable, LIBRARY, dlerror());
}

typedef shoal_status open_function(const shoal_mpi_options *, shoal_transport **);

static int open_library(const char *command, void *library, shoal_transport **ranks) {
    open_function *open = (open_function *)(uintptr_t)dlsym(library, "shoal_mpi_open");
    job.close = (void (*)(shoal_transport *))(uintptr_t)dlsym(library, "shoal_mpi_close");
    if (!open || !job.close)
        return complain(EXIT_RESOURCES, command, "%s is not of this version", LIBRARY);
    const shoal_mpi_options options = {.patience = patience(), .lost = lose};
    if (open(&options, ranks) == SHOAL_OK)
        return EXIT_OK;
    return complain(EXIT_RESOURCES, command, "%s: %s", LIBRARY,
                    *ranks ? (*ranks)->message : "out of memory");
}

int ranks_open(const char *command, const char *advice, shoal_transport **ranks) {
    long size = 0;
    void *library;
    const char *variable = find_launcher(&size);
    *ranks = NULL;
    if (!variable || size == 1)
        return EXIT_OK;
    job.command = command;
    job.advice = advice;
    int code = load(command, variable, &library);
    if (code == EXIT_OK)
        code = open_library(command, library, ranks);
    if (code == EXIT_OK && size > 0 && (*ranks)->ranks != size)
        return complain(EXIT_USAGE, command,
                        "%s is %ld, but %s finds %d: it was built with another MPI than "
                        "the launcher's; start the job with the mpirun of that one",
                        variable, size, LIBRARY, (int)(*ranks)->ranks);
    if (code == EXIT_OK && (*ranks)->rank > 0)
        complain_as((*ranks)->rank);
    return code;
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

/* ---- What all agree about ---------------------------------------------------------- */

int ranks_follow(shoal_transport *ranks, int code) {
    int32_t first = code;
    if (!ranks)
        return code;
    if (ranks->broadcast(ranks, 0, sizeof first, &first) != SHOAL_OK)
        return complain(EXIT_RESOURCES, job.command, "%s", ranks->message);
    job.agreed = first != EXIT_OK;
    return first;
}

void ranks_agreed(void) {
    job.agreed = true;
}
