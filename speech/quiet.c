#define _GNU_SOURCE
#include "speech/quiet.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

typedef struct {
    void (*run)(void *argument);
    void *argument;
} call;

/* A thread may have a table of file descriptors of its own (Linux): closing and opening
   in it changes nothing for the others, while the open files themselves are shared. */
static void *call_quietly(void *shared) {
    const call *c = shared;
#ifdef __linux__
    if (unshare(CLONE_FILES) == 0) {
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (nowhere >= 0)
            dup2(nowhere, STDERR_FILENO);
    }
#endif
    c->run(c->argument);
    return NULL;
}

void sh_run_quietly(void (*run)(void *argument), void *argument) {
    call c = {run, argument};
    pthread_t thread;
    sigset_t all, before;
    /* A signal's handler must not run where its messages would be lost. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, call_quietly, &c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        run(argument);
    else
        pthread_join(thread, NULL);
}
