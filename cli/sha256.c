#include "sha256.h"

#include <string.h>

typedef struct {
    uint32_t state[8];
    unsigned char block[64];
    size_t used; /* bytes of the block */
    uint64_t bytes;
} sha256;

static const uint32_t first_state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint32_t constants[64] =
    {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
     0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
     0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
     0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
     0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
     0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
     0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
     0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
     0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
     0xc67178f2};

static uint32_t rotate(uint32_t x, int by) {
    return x >> by | x << (32 - by);
}

static void take_block(sha256 *hash) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        const unsigned char *b = hash->block + 4 * i;
        w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, hash->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t big1 = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t one = s[7] + big1 + choice + constants[i] + w[i];
        const uint32_t big0 = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + big0 + majority;
    }
    for (int i = 0; i < 8; i++)
        hash->state[i] += s[i];
}

static void take(sha256 *hash, const unsigned char *bytes, size_t count) {
    hash->bytes += count;
    while (count > 0) {
        size_t some = sizeof hash->block - hash->used;
        if (some > count)
            some = count;
        memcpy(hash->block + hash->used, bytes, some);
        hash->used += some;
        bytes += some;
        count -= some;
        if (hash->used == sizeof hash->block) {
            take_block(hash);
            hash->used = 0;
        }
    }
}

static void finish(sha256 *hash, char text[SHA256_TEXT]) {
    const uint64_t bits = 8 * hash->bytes;
    unsigned char end[72] = {0x80};
    const size_t zeros = (119 - hash->used) % 64; /* after the 0x80, before the length */
    for (int i = 0; i < 8; i++)
        end[1 + zeros + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    take(hash, end, 1 + zeros + 8);
    for (int i = 0; i < 8; i++)
        snprintf(text + 8 * i, 9, "%08x", (unsigned)hash->state[i]);
}

bool sha256_stream(FILE *file, char text[SHA256_TEXT], int64_t *bytes) {
    sha256 hash = {.used = 0};
    unsigned char buffer[16384];
    size_t count;
    memcpy(hash.state, first_state, sizeof first_state);
    while ((count = fread(buffer, 1, sizeof buffer, file)) > 0)
        take(&hash, buffer, count);
    if (ferror(file))
        return false;
    *bytes = (int64_t)hash.bytes;
    finish(&hash, text);
    return true;
}
