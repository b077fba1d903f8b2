/* Threads. Work is cut into tasks whose number and bounds never depend on how many
   threads there are, so that results do not either.

   A context has a pool of workers, started at the first work that can use them. Whoever
   has nothing to do waits actively for some microseconds, since the next work usually
   follows at once, and then sleeps. The caller works itself and waits only for workers
   that have taken a task: where another program holds the other cores, the caller does
   all of it, and nobody spins until a core is free. */
#ifndef SHOAL_BASE_PARALLEL_H
#define SHOAL_BASE_PARALLEL_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/export.h"
#include "shoal.h"

typedef struct thread_pool thread_pool;

/* How many threads a process should use: OMP_NUM_THREADS, or the processors that it may
   run on. Not 1 to POOL_MOST_THREADS: what the environment says cannot be honoured. */
enum { POOL_MOST_THREADS = 4096 };
long sh_default_threads(void);

/* A pool of threads - 1 workers, or NULL when memory ran out. Nothing is started yet. */
thread_pool *sh_pool_create(shoal_context *context, int threads);
void sh_pool_destroy(shoal_context *context, thread_pool *pool); /* NULL is legal */

/* The caller's threads: see shoal_context_borrow_threads. */
typedef struct {
    void (*parallel)(void (*body)(void *data), void *data, unsigned threads,
                     unsigned flags);
    int (*number)(void);
} borrowed_threads;
void sh_pool_borrow(thread_pool *pool, borrowed_threads threads); /* NULL is legal */

/* Who may share a piece of work: `threads` of them numbered from 0, or, when threads is
   1, the one thread numbered `self` (whose scratch memory the work must use). */
typedef struct {
    int threads, self;
    thread_pool *pool; /* NULL: one thread */
} team;

/* All threads of a context. */
SHOAL_PRIVATE team sh_team_of(const shoal_context *context);

/* Runs tasks 0 .. count - 1, started in that order. A task that needs no scratch memory
   of its thread's own has its number UNUSED. */
#define UNUSED __attribute__((unused))
typedef void task_function(void *shared, int64_t task, int thread);
SHOAL_PRIVATE void sh_team_run(team workers, int64_t count, task_function *run,
                               void *shared);
/* The same in no particular order: every thread begins with a range of its own, so that
   steps over the same rows find them in its cache. Not for tasks that wait for turns. */
void sh_team_deal(team workers, int64_t count, task_function *run, void *shared);
/* sh_team_run by all threads of a context. */
SHOAL_PRIVATE void sh_run_tasks(const shoal_context *context, int64_t count,
                                task_function *run, void *shared);

/* Waits until it is `mine` on the turn; pass_turn lets the next one in. For sums that
   tasks add to in the tasks' order. */
void sh_await_turn(atomic_int *turn, int mine);
void sh_pass_turn(atomic_int *turn, int mine);

/* Units are whole heads. As many as divide evenly run side by side, one thread each; the
   rest run one after another with all threads inside. `slot` names a workspace that
   nobody else uses meanwhile; there are sh_unit_slots() of them. */
typedef void unit_function(void *shared, int64_t unit, int slot, team workers);
void sh_run_units(team workers, int64_t count, unit_function *run, void *shared);
int sh_unit_slots(int threads, int64_t count);

#endif
