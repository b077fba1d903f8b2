#include "base/random.h"

#include "shoal_models.h"

uint64_t shoal_random(uint64_t seed, uint32_t stream, uint64_t counter) {
    return sh_random_bits(seed, STREAM_CALLER + stream, counter);
}

uint64_t shoal_random_below(uint64_t seed, uint32_t stream, uint64_t counter,
                            uint64_t bound) {
    return sh_random_below(seed, STREAM_CALLER + stream, counter, bound);
}

uint64_t shoal_random_mix(uint64_t x) {
    return random_mix(x);
}
