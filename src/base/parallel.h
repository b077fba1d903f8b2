/* Threads. Work is divided into tasks whose number and bounds do not depend on the
   number of threads, so that results do not either.

   A context has a pool of workers, started by the first work that can use them. An idle
   thread spins for some microseconds, since the next work usually follows at once, and
   then sleeps. The caller works too and waits only for workers that have taken a task:
   if another program uses the other cores, the caller does all of the work. */
#ifndef SHOAL_BASE_PARALLEL_H
#define SHOAL_BASE_PARALLEL_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/export.h"
#include "shoal.h"

typedef struct thread_pool thread_pool;

/* Default number of threads: OMP_NUM_THREADS, or the number of processors that the
   process may use. A value outside 1 to POOL_MOST_THREADS means that the variable is
   invalid. */
enum { POOL_MOST_THREADS = 4096 };
long sh_default_threads(void);

/* A pool of threads - 1 workers, or NULL if out of memory. They are started later. */
thread_pool *sh_pool_create(shoal_context *context, int threads);
void sh_pool_destroy(shoal_context *context, thread_pool *pool); /* NULL is allowed */

/* The caller's threads: see shoal_context_borrow_threads. */
typedef struct {
    void (*parallel)(void (*body)(void *data), void *data, unsigned threads,
                     unsigned flags);
    int (*number)(void);
} borrowed_threads;
void sh_pool_borrow(thread_pool *pool, borrowed_threads threads); /* NULL is allowed */

/* Who may share a piece of work: `threads` of them numbered from 0, or, when threads is
   1, the one thread numbered `self` (whose scratch memory the work must use). */
typedef struct {
    int threads, self;
    thread_pool *pool; /* NULL for one thread */
} team;

/* All threads of a context. */
SHOAL_PRIVATE team sh_team_of(const shoal_context *context);

/* Runs tasks 0 .. count - 1, started in that order. A task that does not need scratch
   memory of its thread marks the parameter UNUSED. */
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

/* Waits until the turn is `mine`; pass_turn advances it. For sums to which tasks add in
   order. */
void sh_await_turn(atomic_int *turn, int mine);
void sh_pass_turn(atomic_int *turn, int mine);

/* Units are whole heads. As many as divide evenly run in parallel, one thread each; the
   remaining ones run one after another with all threads inside. `slot` identifies a
   workspace that is not in use by others; there are sh_unit_slots() of them. */
typedef void unit_function(void *shared, int64_t unit, int slot, team workers);
void sh_run_units(team workers, int64_t count, unit_function *run, void *shared);
int sh_unit_slots(int threads, int64_t count);

#endif
