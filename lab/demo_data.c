/* Attention that can be approximated needs queries that resemble one another and keys
   that differ in importance, as real ones do; white noise has neither. So every position
   has a topic; few topics are common and many are rare. */
#include "demo_data.h"

#include <math.h>

enum { TOPICS = 60 };

const char demo_data_description[] =
    "generated data: every position has one of 60 topics, "
    "the first far more common; its\n"
    "query, key and value are the topic's random vector "
    "plus noise of half its size, and\n"
    "some keys are louder than others";

static const float noise = 0.5f, loudness_spread = 0.5f;

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* In (0, 1), a pure function of its arguments. */
static double uniform(uint64_t stream, uint64_t a, uint64_t b) {
    return ((double)(mix(mix(mix(stream) + a) + b) >> 11) + 0.5) / 9007199254740992.0;
}

/* A sum of uniform numbers is normal enough here, and needs no logarithm. */
static float normal(uint64_t stream, uint64_t a, uint64_t b) {
    uint64_t bits = mix(mix(mix(stream) + a) + b);
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(bits >> 16 * i & 0xffff);
    return (float)((sum / 65536 - 2) * 1.7320508);
}

enum {
    STREAM_TOPIC,
    STREAM_LOUDNESS,
    STREAM_KEY_VECTOR,
    STREAM_VALUE_VECTOR,
    STREAM_NOISE
};

/* About TOPICS^u for a uniform u: topic t comes up about as often as 1/(t+1). */
static uint64_t topic_of(uint64_t head, uint64_t position) {
    double topic = pow(TOPICS, uniform(STREAM_TOPIC, head, position)) - 1;
    return (uint64_t)topic;
}

static void fill(float *row, uint64_t topic_stream, uint64_t topic, uint64_t noise_stream,
                 uint64_t head, uint64_t position, int dim) {
    for (int d = 0; d < dim; d++) {
        uint64_t feature = (uint64_t)d;
        row[d] = normal(topic_stream, head * TOPICS + topic, feature) +
                 noise * normal(noise_stream, head * 4096 + feature, position);
    }
}

void fill_demo_data(float *q, float *k, float *v, int heads, int64_t length, int dim) {
    for (int64_t i = 0; i < heads * length; i++) {
        uint64_t head = (uint64_t)(i / length), position = (uint64_t)(i % length);
        uint64_t topic = topic_of(head, position);
        float loudness = expf(loudness_spread * normal(STREAM_LOUDNESS, head, position));
        /* Queries and keys of a topic share their vector: it attends to itself. */
        fill(q + i * dim, STREAM_KEY_VECTOR, topic, STREAM_NOISE, head, position, dim);
        fill(k + i * dim, STREAM_KEY_VECTOR, topic, STREAM_NOISE + 1, head, position,
             dim);
        fill(v + i * dim, STREAM_VALUE_VECTOR, topic, STREAM_NOISE + 2, head, position,
             dim);
        for (int d = 0; d < dim; d++)
            k[i * dim + d] *= loudness;
    }
}
