#define _GNU_SOURCE /* for sched_getaffinity */
#include "base/parallel.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/context.h"
#include "base/memory.h"

/* ---- Number of threads ------------------------------------------------------------ */

static long processors(void) {
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return CPU_COUNT(&allowed);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? online : 1;
}

/* OpenMP's variable, because users set it for all programs. It may be a list, of which
   the first number applies. */
long sh_default_threads(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    if (!text || !*text) {
        const long found = processors();
        return found < POOL_MOST_THREADS ? found : POOL_MOST_THREADS;
    }
    char *end;
    const long given = strtol(text, &end, 10);
    return end == text || (*end && *end != ',' && *end != ' ') ? 0 : given;
}

/* ---- Waiting ---------------------------------------------------------------------- */

/* Active waiting: SPINS pauses are about 20 microseconds, little beside the time slice of
   a program that needs the core. Within the steps of one unit more work is sure to come,
   after what the caller does alone, so threads wait CALL_SPINS times as long: waking a
   thread that sleeps takes longer than most of what lies between two steps. */
enum { SPINS = 1000, CALL_SPINS = 16 };

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` does nothing on most of these processors */
#endif
}

/* If every thread has a core, the turn comes soon. If not, this thread yields its core,
   and finally sleeps: the thread whose turn it is may need the core. */
void sh_await_turn(atomic_int *turn, int mine) {
    const struct timespec moment = {.tv_nsec = 50000};
    for (int spins = 1; atomic_load_explicit(turn, memory_order_acquire) != mine;
         spins++) {
        pause_briefly();
        if (spins > 64 * SPINS)
            nanosleep(&moment, NULL);
        else if (spins > SPINS && spins % 64 == 0)
            sched_yield();
    }
}

void sh_pass_turn(atomic_int *turn, int mine) {
    atomic_store_explicit(turn, mine + 1, memory_order_release);
}

/* ---- The pool --------------------------------------------------------------------- */

/* The gate controls access to the work. The caller opens it; a worker enters while it
   is open and leaves when no task is left; the caller closes it and waits until it is
   empty. A worker that wakes late finds it closed and has missed nothing. */
enum { GATE_OPEN = 1 << 30 }; /* plus the number of workers inside */

typedef struct {
    thread_pool *pool;
    pthread_t thread;
    int number; /* thread number, from 1 */
} pool_worker;

/* A run of tasks that one thread begins with, on a cache line of its own. */
typedef struct {
    _Alignas(CACHE_LINE) atomic_int_least64_t next; /* the first task not yet taken */
    int64_t end;
} task_range;

struct thread_pool {
    int threads;          /* the caller and the workers */
    int started;          /* workers that run */
    pid_t owner;          /* process in which they run: a fork has none of them */
    int spins;            /* SPINS, or 0 where there are more threads than processors */
    task_range *ranges;   /* [threads] */
    pool_worker *workers; /* [threads - 1] */
    borrowed_threads borrowed; /* parallel NULL: the workers do the work */
    atomic_int sleeping;       /* workers that wait on `work` */
    atomic_int emptying;       /* the caller waits on `empty` */
    atomic_int ending;
    atomic_int within_unit; /* all threads share a unit, and it has not ended */
    pthread_mutex_t lock;   /* only for the two conditions */
    pthread_cond_t work, empty;
    /* What every piece of work changes, on one cache line: fetching it from another core
       takes longer than all that is done with it. */
    _Alignas(CACHE_LINE) atomic_uint works; /* counts them: workers wait for the next */
    atomic_int gate;
    /* Written while the gate is closed and empty. */
    task_function *run;
    void *shared;
    int range_count; /* how many of the ranges are used */
};

static void run_tasks(thread_pool *pool, int thread) {
    for (int i = 0; i < pool->range_count; i++) {
        task_range *range = &pool->ranges[(thread + i) % pool->range_count];
        /* Looked at before it is counted up: most ranges of others are empty. */
        while (atomic_load_explicit(&range->next, memory_order_relaxed) < range->end) {
            const int64_t task = atomic_fetch_add(&range->next, 1);
            if (task >= range->end)
                break;
            pool->run(pool->shared, task, thread);
        }
    }
}

static bool enter(thread_pool *pool) {
    int gate = atomic_load(&pool->gate);
    while (gate & GATE_OPEN)
        if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1))
            return true;
    return false;
}

static void leave(thread_pool *pool) {
    if (atomic_fetch_sub(&pool->gate, 1) != 1 || !atomic_load(&pool->emptying))
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->empty);
    pthread_mutex_unlock(&pool->lock);
}

/* Whether to look again, after `spins` times, instead of sleeping. */
static bool keep_spinning(thread_pool *pool, int spins) {
    if (spins < pool->spins)
        return true;
    return spins < CALL_SPINS * pool->spins &&
           atomic_load_explicit(&pool->within_unit, memory_order_relaxed);
}

/* Returns the number of the newest work, once it is not `seen` any more. */
static unsigned await_work(thread_pool *pool, unsigned seen) {
    unsigned now = atomic_load(&pool->works);
    for (int spins = 0; now == seen && keep_spinning(pool, spins); spins++) {
        pause_briefly();
        now = atomic_load(&pool->works);
    }
    if (now != seen)
        return now;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleeping, 1);
    while ((now = atomic_load(&pool->works)) == seen)
        pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
    return now;
}

static void *work(void *argument) {
    pool_worker *self = argument;
    thread_pool *pool = self->pool;
    for (unsigned seen = 0; !atomic_load(&pool->ending);) {
        seen = await_work(pool, seen);
        __builtin_prefetch(&pool->ranges[self->number], 1);
        if (enter(pool)) {
            run_tasks(pool, self->number);
            leave(pool);
        }
    }
    return NULL;
}

static void begin(thread_pool *pool) {
    pool->owner = getpid();
    pool->started = 0;
    atomic_init(&pool->gate, 0);
    atomic_init(&pool->works, 0);
    atomic_init(&pool->sleeping, 0);
    atomic_init(&pool->emptying, 0);
    atomic_init(&pool->ending, 0);
    atomic_init(&pool->within_unit, 0);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->empty, NULL);
}

/* Wakes the workers. */
static void announce(thread_pool *pool) {
    atomic_fetch_add(&pool->works, 1);
    if (!atomic_load(&pool->sleeping))
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static void await_empty(thread_pool *pool) {
    atomic_fetch_and(&pool->gate, ~GATE_OPEN);
    for (int spins = 0; atomic_load(&pool->gate) && keep_spinning(pool, spins); spins++)
        pause_briefly();
    if (!atomic_load(&pool->gate))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->emptying, 1);
    while (atomic_load(&pool->gate))
        pthread_cond_wait(&pool->empty, &pool->lock);
    atomic_store(&pool->emptying, 0);
    pthread_mutex_unlock(&pool->lock);
}

thread_pool *sh_pool_create(shoal_context *context, int threads) {
    const size_t each = sizeof(task_range) + sizeof(pool_worker);
    thread_pool *pool = sh_allocate(context, sizeof *pool + (size_t)threads * each);
    if (!pool)
        return NULL;
    task_range *ranges = (task_range *)(void *)(pool + 1);
    *pool = (thread_pool){.threads = threads,
                          .spins = threads <= processors() ? SPINS : 0,
                          .ranges = ranges,
                          .workers = (pool_worker *)(void *)(ranges + threads)};
    begin(pool);
    return pool;
}

void sh_pool_destroy(shoal_context *context, thread_pool *pool) {
    if (!pool)
        return;
    if (pool->owner == getpid()) {
        atomic_store(&pool->ending, 1);
        announce(pool);
        for (int i = 0; i < pool->started; i++)
            pthread_join(pool->workers[i].thread, NULL);
        pthread_mutex_destroy(&pool->lock);
        pthread_cond_destroy(&pool->work);
        pthread_cond_destroy(&pool->empty);
    }
    sh_release(context, pool);
}

/* ---- Work ------------------------------------------------------------------------- */

team sh_team_of(const shoal_context *context) {
    return (team){context->threads, 0, context->pool};
}

static void start_workers(thread_pool *pool) {
    /* Signals are the program's business: workers have them blocked. Where the system
       gives no more threads, those that there are do the work. */
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE,
                              SIGILL}; /* of what a thread does */
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->started < pool->threads - 1) {
        pool_worker *worker = &pool->workers[pool->started];
        *worker = (pool_worker){.pool = pool, .number = pool->started + 1};
        if (pthread_create(&worker->thread, NULL, work, worker) != 0)
            break;
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void sh_pool_borrow(thread_pool *pool, borrowed_threads threads) {
    if (pool)
        pool->borrowed = threads;
}

/* A borrowed thread's part of the work. */
static void join_work(void *shared) {
    thread_pool *pool = shared;
    const int number = pool->borrowed.number();
    if (number >= 0 && number < pool->threads)
        run_tasks(pool, number);
}

/* Cuts the tasks into `ranges` of them. Thread t begins with range t; a thread that
   has finished its own range continues with the others. */
static void run_ranges(team workers, int64_t count, int ranges, task_function *run,
                       void *shared) {
    thread_pool *pool = workers.pool;
    if (workers.threads == 1 || count <= 1 || !pool) {
        for (int64_t task = 0; task < count; task++)
            run(shared, task, workers.self);
        return;
    }
    if (pool->owner != getpid()) {
        pool->borrowed = (borrowed_threads){0}; /* a fork has none of those either */
        begin(pool);
    }
    if (pool->started == 0 && !pool->borrowed.parallel)
        start_workers(pool);
    pool->run = run;
    pool->shared = shared;
    pool->range_count = ranges;
    for (int i = 0; i < ranges; i++) {
        pool->ranges[i].end = count * (i + 1) / ranges;
        atomic_store_explicit(&pool->ranges[i].next, count * i / ranges,
                              memory_order_relaxed);
    }
    if (pool->borrowed.parallel) {
        pool->borrowed.parallel(join_work, pool, (unsigned)pool->threads, 0);
        run_tasks(pool, 0); /* what is left if no thread joined */
        return;
    }
    atomic_store_explicit(&pool->gate, GATE_OPEN, memory_order_release);
    announce(pool);
    run_tasks(pool, 0);
    await_empty(pool);
}

void sh_team_run(team workers, int64_t count, task_function *run, void *shared) {
    run_ranges(workers, count, 1, run, shared);
}

void sh_team_deal(team workers, int64_t count, task_function *run, void *shared) {
    run_ranges(workers, count, workers.threads, run, shared);
}

void sh_run_tasks(const shoal_context *context, int64_t count, task_function *run,
                  void *shared) {
    sh_team_run(sh_team_of(context), count, run, shared);
}

int sh_unit_slots(int threads, int64_t count) {
    return count >= threads ? threads : 1;
}

typedef struct {
    unit_function *run;
    void *shared;
} unit_work;

static void run_unit(void *shared, int64_t unit, int thread) {
    const unit_work *work_of_all = shared;
    work_of_all->run(work_of_all->shared, unit, thread,
                     (team){.threads = 1, .self = thread});
}

void sh_run_units(team workers, int64_t count, unit_function *run, void *shared) {
    const int64_t side_by_side = workers.threads > 1 ? count - count % workers.threads
                                                     : 0;
    sh_team_run(workers, side_by_side, run_unit, &(unit_work){run, shared});
    if (workers.pool)
        atomic_store_explicit(&workers.pool->within_unit, 1, memory_order_relaxed);
    for (int64_t unit = side_by_side; unit < count; unit++)
        run(shared, unit, 0, workers);
    if (workers.pool)
        atomic_store_explicit(&workers.pool->within_unit, 0, memory_order_relaxed);
}
