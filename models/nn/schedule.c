#include "models/nn/schedule.h"

#include <math.h>

schedule_state sh_schedule_begin(void) {
    return (schedule_state){.best = INFINITY, .scale = 1};
}

double sh_schedule_rate(const schedule_settings *settings, const schedule_state *state,
                        int64_t step) {
    double rate = settings->rate * state->scale;
    if (step < settings->warmup_steps)
        rate *= (double)step / (double)settings->warmup_steps;
    return rate;
}

bool sh_schedule_observe(const schedule_settings *settings, schedule_state *state,
                         double loss) {
    if (loss < state->best * (1 - settings->threshold)) {
        state->best = loss;
        state->waiting = 0;
        return false;
    }
    if (++state->waiting <= settings->patience)
        return false;
    state->waiting = 0;
    if (settings->factor <= 0 || settings->factor >= 1)
        return false;
    double scale = state->scale * settings->factor;
    if (settings->rate * scale < settings->minimum)
        scale = settings->minimum / settings->rate;
    bool dropped = scale < state->scale;
    state->scale = dropped ? scale : state->scale;
    return dropped;
}
