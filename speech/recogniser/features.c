/* Filter banks as a recogniser's model sees them: normalised, and stacked into rows. */
#include <math.h>
#include <string.h>

#include "shoal_speech.h"

int64_t shoal_features_positions(const shoal_features_config *config, int64_t frames) {
    return (frames + config->hop - 1) / config->hop;
}

int64_t shoal_features_width(const shoal_features_config *config) {
    return config->context * config->bands;
}

void shoal_features_normalise(const shoal_features_config *config, int64_t count,
                              float *frames) {
    const int64_t bands = config->bands;
    if (config->normalise == SHOAL_NORMALISE_NOTHING)
        return;
    for (int64_t band = 0; band < bands; band++) {
        double sum = 0, squares = 0;
        for (int64_t t = 0; t < count; t++) {
            const double value = (double)frames[t * bands + band];
            sum += value;
            squares += value * value;
        }
        const double mean = sum / (double)count;
        const double variance = squares / (double)count - mean * mean;
        const float scale = (float)(1 / sqrt(variance > 1e-6 ? variance : 1e-6));
        for (int64_t t = 0; t < count; t++)
            frames[t * bands + band] = (frames[t * bands + band] - (float)mean) * scale;
    }
}

void shoal_features_stack(const shoal_features_config *config, int64_t count,
                          const float *frames, float *rows) {
    const int64_t bands = config->bands, context = config->context;
    const int64_t left = (context - config->hop) / 2;
    const int64_t positions = shoal_features_positions(config, count);
    for (int64_t i = 0; i < positions; i++)
        for (int64_t k = 0; k < context; k++) {
            const int64_t t = i * config->hop - left + k;
            float *to = rows + (i * context + k) * bands;
            if (t >= 0 && t < count)
                memcpy(to, frames + t * bands, sizeof *to * (size_t)bands);
            else
                memset(to, 0, sizeof *to * (size_t)bands);
        }
}
