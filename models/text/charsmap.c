#define _GNU_SOURCE
#include "models/text/charsmap.h"

#include <string.h>

#include "base/memory.h"
#include "models/text/unicode.h"

/* ---- Base64 ----------------------------------------------------------------------- */

static int value_of(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes a text whose length is a multiple of four; returns the number of bytes, or -1
   if it is not base64. */
static int64_t decode(const char *text, size_t size, unsigned char *out) {
    int64_t made = 0;
    const size_t padding = size > 0 && text[size - 1] == '=' ? 1 + (text[size - 2] == '=')
                                                             : 0;
    for (size_t at = 0; at < size; at += 4) {
        uint32_t group = 0;
        const size_t kept = at + 4 == size ? 4 - padding : 4;
        for (size_t i = 0; i < 4; i++) {
            const int value = i < kept ? value_of(text[at + i]) : 0;
            if (value < 0)
                return -1;
            group = group << 6 | (uint32_t)value;
        }
        for (size_t i = 0; i + 1 < kept; i++)
            out[made++] = (unsigned char)(group >> (16 - 8 * i));
    }
    return made;
}

/* ---- The array -------------------------------------------------------------------- */

static const uint32_t is_value = 1u << 31;

static bool has_value(uint32_t unit) {
    return unit >> 8 & 1;
}

static uint32_t far_of(uint32_t unit) {
    return unit >> 10 << (unit >> 6 & 8);
}

static uint32_t little_endian(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
           (uint32_t)at[3] << 24;
}

/* Whether all 256 possible children of a unit are in the array, and its value is the
   start of a character in the texts. */
static bool stays_inside(const charsmap *map, uint32_t index) {
    const uint32_t unit = map->units[index], children = index ^ far_of(unit);
    if (unit & is_value)
        return index > 0;
    if ((children | 0xff) >= map->unit_count)
        return false;
    const uint32_t value = map->units[children] & ~is_value;
    return !has_value(unit) ||
           (value < map->text_size && (map->text[value] & 0xc0) != 0x80);
}

shoal_status sh_charsmap_read(shoal_context *context, const char *label,
                              const char *base64, charsmap *map) {
    enum { HEAD = 4, UNIT = 4 };
    const size_t length = strlen(base64);
    *map = (charsmap){.bytes = sh_allocate(context, length / 4 * 3 + 1)};
    if (!map->bytes)
        return SHOAL_NO_MEMORY;
    const int64_t bytes = length % 4 == 0 ? decode(base64, length, map->bytes) : -1;
    if (bytes < 0)
        return sh_fail(
            context, SHOAL_BAD_FILE,
            "%s: precompiled_charsmap of a Precompiled normalizer is not base64", label);
    /* Finds the array and the texts in the bytes. */
    const size_t size = (size_t)bytes;
    const uint32_t array = size >= HEAD ? little_endian(map->bytes) : 0;
    if (array == 0 || array % UNIT != 0 || array > size - HEAD)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: precompiled_charsmap has %zu bytes, which does not match its "
                       "array of %u bytes",
                       label, size, (unsigned)array);
    map->unit_count = array / UNIT;
    map->text = (char *)map->bytes + HEAD + array;
    map->text_size = size - HEAD - array;
    map->units = sh_allocate(context, array);
    if (!map->units)
        return SHOAL_NO_MEMORY;
    for (uint32_t i = 0; i < map->unit_count; i++)
        map->units[i] = little_endian(map->bytes + HEAD + (size_t)UNIT * i);
    if (!sh_utf8_valid(map->text, map->text_size))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: the texts of precompiled_charsmap are not UTF-8", label);
    for (uint32_t i = 0; i < map->unit_count; i++)
        if (!stays_inside(map, i))
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: unit %u of precompiled_charsmap points outside the array",
                           label, (unsigned)i);
    return SHOAL_OK;
}

void sh_charsmap_destroy(shoal_context *context, charsmap *map) {
    sh_release(context, map->units);
    sh_release(context, map->bytes);
    *map = (charsmap){0};
}

const char *sh_charsmap_find(const charsmap *map, const char *bytes, size_t size,
                             size_t *found_size) {
    uint32_t at = far_of(map->units[0]);
    for (size_t i = 0; i < size && bytes[i]; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        const uint32_t unit = map->units[at ^ byte];
        if ((unit & (is_value | 0xff)) != byte)
            return NULL;
        at ^= byte ^ far_of(unit);
        if (has_value(unit)) {
            const char *text = map->text + (map->units[at] & ~is_value);
            *found_size = strnlen(text, (size_t)(map->text + map->text_size - text));
            return text;
        }
    }
    return NULL;
}
