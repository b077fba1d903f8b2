#include <math.h>

#include "shoal_models.h"

shoal_schedule shoal_schedule_start(double rate) {
    return (shoal_schedule){.rate = rate,
                            .factor = 1,
                            .threshold = 1e-4,
                            .best = INFINITY,
                            .scale = 1};
}

double shoal_schedule_rate(const shoal_schedule *schedule, int64_t step) {
    if (!schedule)
        return 0;
    const double rate = schedule->rate * schedule->scale;
    return step < schedule->warmup ? rate * ((double)step / (double)schedule->warmup)
                                   : rate;
}

int shoal_schedule_observe(shoal_schedule *schedule, double loss) {
    if (!schedule)
        return 0;
    if (loss < schedule->best * (1 - schedule->threshold)) {
        schedule->best = loss;
        schedule->waiting = 0;
        return 0;
    }
    if (++schedule->waiting <= schedule->patience)
        return 0;
    schedule->waiting = 0;
    if (schedule->factor <= 0 || schedule->factor >= 1)
        return 0;
    double scale = schedule->scale * schedule->factor;
    if (schedule->rate * scale < schedule->minimum)
        scale = schedule->minimum / schedule->rate;
    const int dropped = scale < schedule->scale;
    if (dropped)
        schedule->scale = scale;
    return dropped;
}
