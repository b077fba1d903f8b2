/* Fuzz target of LF-MMI graphs as stored in a run. The first byte selects the topology,
   and whether utterances are whole; the rest is the file, whose checksum is corrected,
   so that damage is not just detected by it. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_graph"
#include "fuzz.h"

#include <math.h>

#include "speech/recogniser/lfmmi.h"

enum { STEPS = 5, HEAD = 40 };

/* A graph may have no path, but its results are finite or marked as invalid. */
static void check(const phone_lm *lm, int32_t topology, bool whole) {
    den_graph den;
    lfmmi_scratch scratch = {0};
    const int64_t outputs = sh_topology_outputs(topology, lm->phones);
    float *y = calloc((size_t)(STEPS * outputs), sizeof *y);
    float *gradient = calloc((size_t)(STEPS * outputs), sizeof *gradient);
    int32_t phones[STEPS], begins[STEPS];
    double logarithm;
    require(y && gradient && sh_den_make(NULL, lm, topology, whole, &den),
            "there is memory");
    for (int64_t i = 0; i < STEPS * outputs; i++)
        y[i] = (float)(i * 7 % 11) - 5;
    require(sh_den_pass(&den, 0.1f, y, STEPS, outputs, &scratch, &logarithm, gradient, 1),
            "there is memory");
    for (int64_t i = 0; i < STEPS * outputs && isfinite(logarithm); i++)
        require(gradient[i] >= 0 && gradient[i] <= 1.05f, "posteriors are from 0 to 1");
    const int64_t count =
        sh_den_decode(&den, y, STEPS, outputs, &scratch, phones, begins);
    require(count >= 0 && count <= STEPS, "phones take steps");
    for (int64_t i = 0; i < count; i++)
        require(phones[i] >= 0 && phones[i] < lm->phones && begins[i] >= 0 &&
                    begins[i] < STEPS && (i == 0 || begins[i] > begins[i - 1]),
                "phones are there, one after another");
    sh_free(scratch.rows);
    sh_free(scratch.gradient);
    sh_free(scratch.small);
    sh_den_free(&den);
    free(gradient);
    free(y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    phone_lm lm;
    if (size == 0)
        return 0;
    unsigned char *bytes = exact_copy(data + 1, --size);
    if (size >= HEAD) {
        const uint64_t sum = sh_phone_lm_sum(bytes, size / 4 * 4);
        memcpy(bytes + PHONE_LM_SUM_PLACE, &sum, sizeof sum);
    }
    if (judged(sh_phone_lm_parse(fuzz_context(), "input", bytes, size, 0, &lm)))
        check(&lm, SHOAL_TOPOLOGY_CHAIN + data[0] % 3, data[0] & 4);
    sh_phone_lm_free(&lm);
    free(bytes);
    return 0;
}
