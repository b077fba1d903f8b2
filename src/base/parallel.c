#include "base/parallel.h"

#include <omp.h>
#include <sched.h>

void sh_team_run(team workers, int64_t count, task_function *run, void *shared) {
    if (workers.threads == 1 || count <= 1) {
        for (int64_t task = 0; task < count; task++)
            run(shared, task, workers.self);
        return;
    }
    /* monotonic: a task may wait for an earlier one, which must have been started. */
#pragma omp parallel for num_threads(workers.threads) schedule(monotonic : dynamic, 1)
    for (int64_t task = 0; task < count; task++)
        run(shared, task, omp_get_thread_num());
}

/* The wait is short when every thread has a core; when not, the core is given away. */
void sh_await_turn(atomic_int *turn, int mine) {
    for (int spins = 1; atomic_load_explicit(turn, memory_order_acquire) != mine; spins++)
        if (spins % 256 == 0)
            sched_yield();
}

void sh_pass_turn(atomic_int *turn, int mine) {
    atomic_store_explicit(turn, mine + 1, memory_order_release);
}

int sh_unit_slots(int threads, int64_t count) {
    return count >= threads ? threads : 1;
}

void sh_run_units(int threads, int64_t count, unit_function *run, void *shared) {
    int64_t side_by_side = threads > 1 ? count - count % threads : 0;
    if (side_by_side > 0) {
#pragma omp parallel for num_threads(threads) schedule(monotonic : dynamic, 1)
        for (int64_t unit = 0; unit < side_by_side; unit++) {
            int thread = omp_get_thread_num();
            run(shared, unit, thread, (team){1, thread});
        }
    }
    for (int64_t unit = side_by_side; unit < count; unit++)
        run(shared, unit, 0, (team){threads, 0});
}
