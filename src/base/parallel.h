/* Threads. Work is cut into tasks whose number and bounds never depend on how many
   threads there are, so that results do not either. */
#ifndef SHOAL_BASE_PARALLEL_H
#define SHOAL_BASE_PARALLEL_H

#include "base/export.h"

#include <stdatomic.h>
#include <stdint.h>

/* Who may share a piece of work: `threads` of them numbered from 0, or, when threads is
   1, the one thread numbered `self` (whose scratch memory the work must use). */
typedef struct {
    int threads, self;
} team;

/* Runs tasks 0 .. count - 1, started in that order. */
typedef void task_function(void *shared, int64_t task, int thread);
SHOAL_PRIVATE void sh_team_run(team workers, int64_t count, task_function *run,
                               void *shared);

/* Waits until it is `mine` on the turn; pass_turn lets the next one in. For sums that
   tasks add to in the tasks' order. */
void sh_await_turn(atomic_int *turn, int mine);
void sh_pass_turn(atomic_int *turn, int mine);

/* Units are whole heads. As many as divide evenly run side by side, one thread each; the
   rest run one after another with all threads inside. `slot` names a workspace that
   nobody else uses meanwhile; there are sh_unit_slots() of them. */
typedef void unit_function(void *shared, int64_t unit, int slot, team workers);
void sh_run_units(int threads, int64_t count, unit_function *run, void *shared);
int sh_unit_slots(int threads, int64_t count);

#endif
