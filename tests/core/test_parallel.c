/* The thread pool: every task runs once, turns are in order, and waiting does not use a
   processor. Waiting is measured by processor time, which is independent of other
   programs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/context.h"
#include "base/parallel.h"
#include "cases.h"

static shoal_context *context_with(int threads) {
    shoal_context *context;
    assert_int_equal(shoal_context_create(&(shoal_options){.size = sizeof(shoal_options),
                                                           .threads = threads},
                                          &context),
                     SHOAL_OK);
    return context;
}

typedef struct {
    int threads;
    atomic_int runs[100];
    atomic_int wrong; /* invalid thread numbers */
    atomic_int turn;
    int order[100]; /* tasks in the order of their turns */
    int taken;
} tally;

static void count_task(void *shared, int64_t task, int thread) {
    tally *t = shared;
    atomic_fetch_add(&t->runs[task], 1);
    atomic_fetch_add(&t->wrong, thread < 0 || thread >= t->threads);
}

static void every_task_runs_once(void **state) {
    for (int threads = 1; threads <= 5; threads++) {
        shoal_context *context = context_with(threads);
        for (int round = 0; round < 2000; round++) {
            tally t = {.threads = threads};
            const int count = round % 100;
            (round % 2 ? sh_team_run : sh_team_deal)(sh_team_of(context), count,
                                                     count_task, &t);
            assert_int_equal(t.wrong, 0);
            for (int i = 0; i < 100; i++)
                assert_int_equal(t.runs[i], i < count);
        }
        shoal_context_destroy(context);
    }
}

static void turn_task(void *shared, int64_t task, int thread) {
    tally *t = shared;
    (void)thread;
    sh_await_turn(&t->turn, (int)task);
    t->order[t->taken++] = (int)task;
    sh_pass_turn(&t->turn, (int)task);
}

static void turns_come_in_order(void **state) {
    shoal_context *context = context_with(4);
    for (int round = 0; round < 200; round++) {
        tally t = {.threads = 4};
        sh_team_run(sh_team_of(context), 100, turn_task, &t);
        for (int i = 0; i < 100; i++)
            assert_int_equal(t.order[i], i);
    }
    shoal_context_destroy(context);
}

static void unit_task(void *shared, int64_t unit, int slot, team workers) {
    tally *t = shared;
    atomic_fetch_add(&t->runs[unit], 1);
    atomic_fetch_add(&t->wrong, slot >= sh_unit_slots(t->threads, t->taken));
    atomic_fetch_add(&t->wrong, workers.threads != 1 && workers.threads != t->threads);
}

static void units_run_once(void **state) {
    shoal_context *context = context_with(3);
    for (int units = 0; units < 20; units++) {
        tally t = {.threads = 3, .taken = units};
        sh_run_units(sh_team_of(context), units, unit_task, &t);
        assert_int_equal(t.wrong, 0);
        for (int i = 0; i < 20; i++)
            assert_int_equal(t.runs[i], i < units);
    }
    shoal_context_destroy(context);
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void sleep_for(double seconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

typedef struct {
    atomic_int begun; /* tasks */
} slow_work;

/* The two tasks meet, so that each has a thread of its own; then the worker's sleeps. */
static void slow_task(void *shared, int64_t task, int thread) {
    slow_work *slow = shared;
    (void)task;
    atomic_fetch_add(&slow->begun, 1);
    while (atomic_load(&slow->begun) < 2)
        sleep_for(0.001);
    if (thread != 0)
        sleep_for(0.3);
}

static void callers_sleep(void **state) {
    shoal_context *context = context_with(2);
    slow_work slow = {0};
    const double before = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    sh_team_run(sh_team_of(context), 2, slow_task, &slow);
    assert_true(seconds_of(CLOCK_THREAD_CPUTIME_ID) - before < 0.05);
    shoal_context_destroy(context);
}

static void idle_workers_sleep(void **state) {
    shoal_context *context = context_with(4);
    tally t = {.threads = 4};
    sh_team_run(sh_team_of(context), 100, count_task, &t);
    const double before = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    sleep_for(0.3);
    assert_true(seconds_of(CLOCK_PROCESS_CPUTIME_ID) - before < 0.05);
    shoal_context_destroy(context);
}

static void late_task(void *shared, int64_t task, int thread) {
    atomic_int *turn = shared;
    (void)thread;
    if (task == 0)
        sleep_for(0.3);
    sh_await_turn(turn, (int)task);
    sh_pass_turn(turn, (int)task);
}

static void those_whose_turn_is_late_sleep(void **state) {
    shoal_context *context = context_with(2);
    atomic_int turn = 0;
    const double before = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    sh_team_run(sh_team_of(context), 2, late_task, &turn);
    assert_true(seconds_of(CLOCK_PROCESS_CPUTIME_ID) - before < 0.1);
    shoal_context_destroy(context);
}

/* A forked process has the context and none of its workers. */
static void a_fork_works(void **state) {
#if defined(__SANITIZE_THREAD__) || defined(SHOAL_EMULATED)
    skip(); /* neither allows threads after a fork */
#endif
    shoal_context *context = context_with(3);
    tally t = {.threads = 3};
    sh_team_run(sh_team_of(context), 100, count_task, &t);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        sh_team_run(sh_team_of(context), 100, count_task, &t);
        bool twice = true;
        for (int i = 0; i < 100; i++)
            twice = twice && t.runs[i] == 2;
        shoal_context_destroy(context);
        _exit(twice ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    shoal_context_destroy(context);
}

/* Threads of a program, as OpenMP's: started anew each time. */
static _Thread_local int own_number;

typedef struct {
    void (*body)(void *data);
    void *data;
    int number;
} joining;

static void *join_body(void *argument) {
    const joining *join = argument;
    own_number = join->number;
    join->body(join->data);
    return NULL;
}

static int number_of_thread(void) {
    return own_number;
}

static int regions; /* parallel regions so far */

static void run_parallel(void (*body)(void *data), void *data, unsigned threads,
                         unsigned flags) {
    pthread_t started[8];
    joining joins[8];
    assert_true(threads <= 8 && flags == 0);
    regions++;
    for (unsigned i = 1; i < threads; i++) {
        joins[i] = (joining){body, data, (int)i};
        assert_int_equal(pthread_create(&started[i], NULL, join_body, &joins[i]), 0);
    }
    body(data);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(started[i], NULL);
}

/* A region that no thread joins: the caller does the work. */
static void run_nobody(void (*body)(void *data), void *data, unsigned threads,
                       unsigned flags) {
    (void)body, (void)data, (void)threads, (void)flags;
}

static void check_tasks(shoal_context *context, int threads) {
    for (int count = 0; count < 100; count += 9) {
        tally t = {.threads = threads};
        sh_team_run(sh_team_of(context), count, count_task, &t);
        sh_team_deal(sh_team_of(context), count, count_task, &t);
        assert_int_equal(t.wrong, 0);
        for (int i = 0; i < 100; i++)
            assert_int_equal(t.runs[i], 2 * (i < count));
    }
}

static void threads_can_be_borrowed(void **state) {
    shoal_context *context = context_with(3);
    check_tasks(context, 3);
    assert_int_equal(shoal_context_borrow_threads(context, run_parallel, NULL),
                     SHOAL_INVALID);
    assert_int_equal(shoal_context_borrow_threads(context, NULL, number_of_thread),
                     SHOAL_INVALID);
    assert_int_equal(shoal_context_borrow_threads(context, run_parallel,
                                                  number_of_thread),
                     SHOAL_OK);
    regions = 0;
    check_tasks(context, 3);
    assert_true(regions > 0);
    assert_int_equal(shoal_context_borrow_threads(context, run_nobody, number_of_thread),
                     SHOAL_OK);
    check_tasks(context, 3);
    regions = 0;
    assert_int_equal(shoal_context_borrow_threads(context, NULL, NULL), SHOAL_OK);
    check_tasks(context, 3);
    assert_int_equal(regions, 0);
    shoal_context_destroy(context);
    assert_int_equal(shoal_context_borrow_threads(NULL, NULL, NULL), SHOAL_INVALID);
}

static void check_environment(const char *text, shoal_status wanted, int threads) {
    shoal_context *context;
    setenv("OMP_NUM_THREADS", text, 1);
    const shoal_status status = shoal_context_create(NULL, &context);
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(status, wanted);
    if (wanted == SHOAL_OK)
        assert_int_equal(shoal_context_threads(context), threads);
    else
        assert_non_null(strstr(shoal_context_message(context), "OMP_NUM_THREADS"));
    shoal_context_destroy(context);
}

static void the_environment_says_how_many(void **state) {
    check_environment("3", SHOAL_OK, 3);
    check_environment("2,4", SHOAL_OK, 2);
    check_environment("4096", SHOAL_OK, 4096);
    check_environment("4097", SHOAL_INVALID, 0);
    check_environment("99999999999", SHOAL_INVALID, 0);
    check_environment("999999999999999999999999", SHOAL_INVALID, 0);
    check_environment("0", SHOAL_INVALID, 0);
    check_environment("-2", SHOAL_INVALID, 0);
    check_environment("many", SHOAL_INVALID, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(turns_come_in_order),
        cmocka_unit_test(units_run_once),
        cmocka_unit_test(callers_sleep),
        cmocka_unit_test(idle_workers_sleep),
        cmocka_unit_test(those_whose_turn_is_late_sleep),
        cmocka_unit_test(a_fork_works),
        cmocka_unit_test(threads_can_be_borrowed),
        cmocka_unit_test(the_environment_says_how_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
