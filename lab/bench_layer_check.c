/* The whole layer, verified in two halves that together are all of it. The attention of
   the same queries, keys and values is run alone, and verified as --scope attention
   verifies it. Around its output, rows of the layer are computed in double precision. */
#include <math.h>

#include "bench.h"

enum { ROWS = 64 };

static const double tolerance = 1e-5;

static shoal_status check_rows(const bench_job *job, const bench_layer *layer,
                               const bench_data *data, bench_row *row) {
    const int64_t rows = data->batch * data->length;
    double error = 0, size = 0;
    bench_exact exact;
    if (!bench_exact_create(&exact, layer, job, false))
        return SHOAL_NO_MEMORY;
    for (uint64_t s = 0; s < ROWS; s++) {
        const uint64_t draw = bench_random(job->seed, (uint64_t)10 << 56 | s);
        const int64_t at = (int64_t)(draw % (uint64_t)rows);
        bench_exact_load(&exact, data, at);
        bench_exact_forward(&exact);
        for (int64_t a = 0; a < exact.model; a++) {
            const double made = (double)layer->out[at * exact.model + a];
            error += (made - exact.out[a]) * (made - exact.out[a]);
            size += exact.out[a] * exact.out[a];
        }
    }
    bench_exact_destroy(&exact);
    bench_note(row, "the layer around its attention, 64 sampled rows", sqrt(error / size),
               tolerance);
    return SHOAL_OK;
}

shoal_status bench_verify_layer(bench_job *job, bench_layer *layer, bench_data *data,
                                int kind, bench_row *row) {
    const shoal_attention *attention = &job->attention[kind];
    const shoal_problem problem = bench_problem(data);
    const shoal_inputs inputs = bench_inputs(data, attention);
    shoal_plan *plan = NULL;
    double seconds;
    shoal_status status = shoal_plan_create(job->context, &problem, attention,
                                            job->train ? SHOAL_WITH_BACKWARD : 0, &plan);
    if (status == SHOAL_OK)
        status = shoal_forward(plan, &inputs, data->out);
    if (status == SHOAL_OK)
        status = check_rows(job, layer, data, row);
    if (status == SHOAL_OK && job->train)
        status = bench_verify_layer_gradients(job, layer, plan, data, kind, row);
    if (status == SHOAL_OK)
        status = bench_call(plan, data, attention, &seconds);
    if (status == SHOAL_OK)
        status = bench_verify(job, plan, data, kind, row);
    shoal_plan_destroy(plan);
    return status;
}
