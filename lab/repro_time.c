/* Time of an experiment: seconds per step of its cells, and the remaining time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "repro.h"
#include "table.h"

enum { ROUNDS = 3, WARM = 2, TIMED = 5 }; /* steps of a cell per round */

/* ---- Calibration ------------------------------------------------------------------- */

/* Seconds of some steps of a training that is discarded. */
static void time_steps(const repro_job *job, const repro_cell *cell,
                       double seconds[TIMED]) {
    repro_config config = cell->config;
    shoal_trainer *trainer = NULL;
    shoal_train_step step;
    const shoal_train_callbacks callbacks = show_training("");
    const char *field;
    json_t *value;
    json_object_foreach(json_object_get(job->table, "calibrate"), field, value) {
        char text[32];
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        demand(shoal_config_set(job->context, cell->task, &config, field, text),
               EXIT_BAD_INPUT);
    }
    demand(shoal_trainer_create(job->context, cell->task, &config, &callbacks, NULL,
                                &trainer),
           EXIT_BAD_INPUT);
    for (int i = 0; i < WARM + TIMED && !stop_signal(); i++) {
        const double before = seconds_now();
        demand(shoal_trainer_step(trainer, &step), EXIT_BAD_INPUT);
        if (i >= WARM)
            seconds[i - WARM] = seconds_now() - before;
    }
    shoal_trainer_destroy(trainer);
    progress_end();
}

static void find_machine(char name[128]) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    strcpy(name, "not known");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %127[^\n]", name) == 1)
            break;
    if (file)
        fclose(file);
    make_utf8(name);
}

/* Cells alternate, so that other load on the machine affects all of them. */
void repro_calibrate(repro_job *job) {
    double(*seconds)[ROUNDS * TIMED] = reserve((size_t)job->count, sizeof *seconds);
    json_t *steps = json_object();
    char machine[128];
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < job->count && !stop_signal(); i++)
            if (repro_is_chosen(job, &job->cells[i]) && !job->cells[i].missing)
                time_steps(job, &job->cells[i], seconds[i] + TIMED * round);
    for (int i = 0; i < job->count; i++)
        if (repro_is_chosen(job, &job->cells[i]) && !job->cells[i].missing)
            job->cells[i].seconds_per_step = median_of(seconds[i], ROUNDS * TIMED);
    free(seconds);
    if (stop_signal())
        return;
    for (int i = 0; i < job->count; i++)
        if (isfinite(job->cells[i].seconds_per_step)) {
            json_object_set_new(steps, job->cells[i].name,
                                json_number(job->cells[i].seconds_per_step));
            printf("%-32s %s per step\n", job->cells[i].name,
                   seconds_text(job->cells[i].seconds_per_step));
        }
    find_machine(machine);
    json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:o}", "experiment", job->name,
                               "setting", setting_text(job->context), "commit",
                               repro_commit, "machine", machine, "seconds_per_step",
                               steps);
    repro_write(job->folder, REPRO_CALIBRATION, object);
    json_decref(object);
}

/* ---- Status ------------------------------------------------------------------------ */

static bool is_running(const repro_cell *cell) {
    const int folder = open(cell->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool locked = folder >= 0 && flock(folder, LOCK_EX | LOCK_NB) != 0;
    if (folder >= 0)
        close(folder);
    return locked;
}

/* Progress of a cell. */
typedef struct {
    double step, all, seconds; /* all: 0 if unknown */
    double per_step;           /* NAN if unknown */
} cell_time;

static cell_time time_of(const repro_cell *cell) {
    json_t *line = repro_last_line(cell, "\"step\"");
    json_t *first = repro_last_line(cell, "\"config\"");
    const json_t *steps = json_object_get(json_object_get(first, "config"), "steps");
    cell_time time = {json_number_value(json_object_get(line, "step")),
                      json_number_value(steps),
                      json_number_value(json_object_get(line, "seconds")), NAN};
    if (cell->config.train.steps > 0)
        time.all = (double)cell->config.train.steps;
    if (time.step > 0)
        time.per_step = time.seconds / time.step;
    if (isfinite(cell->seconds_per_step))
        time.per_step = cell->seconds_per_step;
    json_decref(line);
    json_decref(first);
    return time;
}

/* Unknown times are estimated from the other cells. */
void repro_status(repro_job *job) {
    static text_table table;
    cell_time *times = reserve((size_t)job->count, sizeof *times), usual = {0};
    int known = 0, counts[3] = {0};
    double left = 0;
    for (int i = 0; i < job->count; i++) {
        times[i] = time_of(&job->cells[i]);
        const bool knows = times[i].all > 0 && isfinite(times[i].per_step);
        usual.all += knows ? times[i].all : 0;
        usual.per_step += knows ? times[i].per_step : 0;
        known += knows;
    }
    table_row(&table, "cell");
    table_add(&table, "state");
    table_add(&table, "steps");
    table_add(&table, "of");
    table_add(&table, "left");
    for (int i = 0; i < job->count; i++) {
        const repro_cell *cell = &job->cells[i];
        const cell_time *time = &times[i];
        const int state = repro_is_done(job, cell) ? 0 : is_running(cell) ? 1 : 2;
        const double all = time->all > 0 ? time->all : usual.all / known;
        const double step = isfinite(time->per_step) ? time->per_step
                                                     : usual.per_step / known;
        const double most =
            fmax(all - time->step, (double)repro_budget(job, cell) - time->step);
        const double seconds = state == 0 || cell->missing ? 0 : fmax(most, 0) * step;
        static const char *const names[] = {"done", "running", "left"};
        counts[state] += !cell->missing;
        table_row(&table, cell->name);
        table_add(&table, "%s", cell->missing ? "no data" : names[state]);
        table_add(&table, "%.0f", time->step);
        table_add(&table, time->all > 0 ? "%.0f" : "?", time->all);
        table_add(&table, "%s",
                  state == 0          ? "-"
                  : isfinite(seconds) ? seconds_text(seconds)
                                      : "?");
        left += seconds;
    }
    table_print(&table, job->markdown, stdout);
    printf("\n%d done, %d running, %d left", counts[0], counts[1], counts[2]);
    if (isfinite(left))
        printf("; %.1f hours of one process, without evaluations", left / 3600);
    printf("\n");
    free(times);
}
