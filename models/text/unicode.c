#include "models/text/unicode.h"

#include <utf8proc.h>

/* Character sets as sorted ranges. */
typedef struct {
    uint32_t first, last;
} range;

static bool within(const range *ranges, size_t count, uint32_t code) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= ranges[low].first;
}

#define WITHIN(ranges, code) within(ranges, sizeof ranges / sizeof *ranges, code)

/* ---- UTF-8 ------------------------------------------------------------------------ */

int sh_utf8_next(const char *text, size_t size, uint32_t *code) {
    utf8proc_int32_t read;
    if (size == 0)
        return 0;
    utf8proc_ssize_t bytes =
        utf8proc_iterate((const utf8proc_uint8_t *)text,
                         size < UTF8_MOST ? (utf8proc_ssize_t)size : UTF8_MOST, &read);
    if (bytes <= 0 || read < 0)
        return 0;
    *code = (uint32_t)read;
    return (int)bytes;
}

bool sh_utf8_valid(const char *text, size_t size) {
    uint32_t code;
    for (size_t at = 0, step; at < size; at += step)
        if ((step = (size_t)sh_utf8_next(text + at, size - at, &code)) == 0)
            return false;
    return true;
}

bool sh_utf8_has_controls(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        const unsigned char next = i + 1 < size ? (unsigned char)text[i + 1] : 0;
        const bool high = c == 0xc2 && next >= 0x80 && next < 0xa0;
        if ((c < ' ' && c != '\t' && c != '\r') || c == 0x7f || high)
            return true;
    }
    return false;
}

int sh_utf8_put(uint32_t code, char out[UTF8_MOST]) {
    return (int)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)out);
}

/* ---- Characters that changed between versions of Unicode -------------------------- */

/* Newer than the tables of `tokenizers`, which have no class for them. */
static const range late_controls[] = {{0x890, 0x891},
                                      {0x8e2, 0x8e2},
                                      {0x110cd, 0x110cd},
                                      {0x13430, 0x1343f}};

static const range late_marks[] =
    {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8e1},     {0x9fe, 0x9fe},
     {0xafa, 0xaff},     {0xb55, 0xb55},     {0xc04, 0xc04},     {0xc3c, 0xc3c},
     {0xd00, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},
     {0xece, 0xece},     {0x180f, 0x180f},   {0x1885, 0x1886},   {0x1abf, 0x1ace},
     {0x1df6, 0x1dfb},   {0xa82c, 0xa82c},   {0xa8c5, 0xa8c5},   {0xa8ff, 0xa8ff},
     {0xa9bd, 0xa9bd},   {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
     {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x11073, 0x11074},
     {0x110c2, 0x110c2}, {0x111c9, 0x111c9}, {0x111cf, 0x111cf}, {0x1123e, 0x1123e},
     {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x11438, 0x1143f}, {0x11442, 0x11444},
     {0x11446, 0x11446}, {0x1145e, 0x1145e}, {0x1182f, 0x11837}, {0x11839, 0x1183a},
     {0x1193b, 0x1193c}, {0x1193e, 0x1193e}, {0x11943, 0x11943}, {0x119d4, 0x119d7},
     {0x119da, 0x119db}, {0x119e0, 0x119e0}, {0x11a01, 0x11a0a}, {0x11a33, 0x11a38},
     {0x11a3b, 0x11a3e}, {0x11a47, 0x11a47}, {0x11a51, 0x11a56}, {0x11a59, 0x11a5b},
     {0x11a8a, 0x11a96}, {0x11a98, 0x11a99}, {0x11c30, 0x11c36}, {0x11c38, 0x11c3d},
     {0x11c3f, 0x11c3f}, {0x11c92, 0x11ca7}, {0x11caa, 0x11cb0}, {0x11cb2, 0x11cb3},
     {0x11cb5, 0x11cb6}, {0x11d31, 0x11d36}, {0x11d3a, 0x11d3a}, {0x11d3c, 0x11d3d},
     {0x11d3f, 0x11d45}, {0x11d47, 0x11d47}, {0x11d90, 0x11d91}, {0x11d95, 0x11d95},
     {0x11d97, 0x11d97}, {0x11ef3, 0x11ef4}, {0x11f00, 0x11f01}, {0x11f36, 0x11f3a},
     {0x11f40, 0x11f40}, {0x11f42, 0x11f42}, {0x13440, 0x13440}, {0x13447, 0x13455},
     {0x16f4f, 0x16f4f}, {0x16fe4, 0x16fe4}, {0x1cf00, 0x1cf2d}, {0x1cf30, 0x1cf46},
     {0x1e000, 0x1e006}, {0x1e008, 0x1e018}, {0x1e01b, 0x1e021}, {0x1e023, 0x1e024},
     {0x1e026, 0x1e02a}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
     {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e944, 0x1e94a}};

static const range late_punctuation[] =
    {{0x61d, 0x61d},     {0x9fd, 0x9fd},     {0xa76, 0xa76},     {0xc77, 0xc77},
     {0xc84, 0xc84},     {0x1b7d, 0x1b7e},   {0x2e43, 0x2e4f},   {0x2e52, 0x2e5d},
     {0x10ead, 0x10ead}, {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x1144b, 0x1144f},
     {0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c}, {0x116b9, 0x116b9},
     {0x1183b, 0x1183b}, {0x11944, 0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46},
     {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2}, {0x11b00, 0x11b09}, {0x11c41, 0x11c45},
     {0x11c70, 0x11c71}, {0x11ef7, 0x11ef8}, {0x11f43, 0x11f4f}, {0x11fff, 0x11fff},
     {0x12ff1, 0x12ff2}, {0x16e97, 0x16e9a}, {0x16fe2, 0x16fe2}, {0x1e95e, 0x1e95f}};

static const range late_combining[] =
    {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
     {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
     {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
     {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
     {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
     {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
     {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
     {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f},
     {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}};

/* Newer than utf8proc. */
static const range latest_letters[] =
    {{0x1c89, 0x1c8a},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},   {0x105c0, 0x105f3},
     {0x10d4a, 0x10d65}, {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4}, {0x11380, 0x11389},
     {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7},
     {0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0}, {0x13460, 0x143fa},
     {0x16100, 0x1611d}, {0x16d40, 0x16d6c}, {0x18cff, 0x18cff}, {0x1e5d0, 0x1e5ed},
     {0x1e5f0, 0x1e5f0}, {0x2ebf0, 0x2ee5d}};

static const range latest_numbers[] = {{0x10d40, 0x10d49}, {0x116d0, 0x116e3},
                                       {0x11bf0, 0x11bf9}, {0x16130, 0x16139},
                                       {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9},
                                       {0x1e5f1, 0x1e5fa}};

static utf8proc_category_t category(uint32_t code) {
    return utf8proc_category((utf8proc_int32_t)code);
}

/* ---- Classes ---------------------------------------------------------------------- */

bool sh_char_is_space(uint32_t code) {
    if (code < 0x80)
        return code == ' ' || (code >= '\t' && code <= '\r');
    return code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
           code == 0x202f || code == 0x205f || code == 0x3000;
}

bool sh_char_is_control(uint32_t code) {
    if (code < 0x80)
        return (code < ' ' && code != '\t' && code != '\n' && code != '\r') ||
               code == 0x7f;
    const utf8proc_category_t kind = category(code);
    return code == 0xfffd || kind == UTF8PROC_CATEGORY_CC ||
           kind == UTF8PROC_CATEGORY_CO ||
           (kind == UTF8PROC_CATEGORY_CF && !WITHIN(late_controls, code));
}

bool sh_char_is_ideograph(uint32_t code) {
    static const range ideographs[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},
                                       {0xf900, 0xfaff},   {0x20000, 0x2a6df},
                                       {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf},
                                       {0x2f800, 0x2fa1f}};
    return WITHIN(ideographs, code);
}

bool sh_char_is_mark(uint32_t code) {
    enum { WAS_MARK = 0x1734 }; /* a spacing mark since Unicode 14 */
    return code == WAS_MARK || (code >= 0x300 && category(code) == UTF8PROC_CATEGORY_MN &&
                                !WITHIN(late_marks, code));
}

bool sh_char_is_punctuation(uint32_t code) {
    if (code < 0x80)
        return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
               (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
    if (code == 0x166d || code == 0x111c9) /* punctuation in Unicode 8 */
        return true;
    const utf8proc_category_t kind = category(code);
    return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO &&
           !WITHIN(late_punctuation, code);
}

char_class sh_char_class(uint32_t code) {
    if (sh_char_is_space(code))
        return CHAR_SPACE;
    const utf8proc_category_t kind = category(code);
    if (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO)
        return CHAR_LETTER;
    if (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO)
        return CHAR_NUMBER;
    if (kind != UTF8PROC_CATEGORY_CN)
        return CHAR_OTHER;
    if (WITHIN(latest_letters, code))
        return CHAR_LETTER;
    return WITHIN(latest_numbers, code) ? CHAR_NUMBER : CHAR_OTHER;
}

/* ---- Mappings --------------------------------------------------------------------- */

/* Capitals newer than utf8proc: the first of their lower-case letters. */
static uint32_t latest_lower(uint32_t code) {
    static const struct {
        uint32_t first, last, lower;
    } rows[] = {{0x1c89, 0x1c89, 0x1c8a},    {0xa7cb, 0xa7cb, 0x0264},
                {0xa7cc, 0xa7cc, 0xa7cd},    {0xa7ce, 0xa7ce, 0xa7cf},
                {0xa7d2, 0xa7d2, 0xa7d3},    {0xa7d4, 0xa7d4, 0xa7d5},
                {0xa7da, 0xa7da, 0xa7db},    {0xa7dc, 0xa7dc, 0x019b},
                {0x10d50, 0x10d65, 0x10d70}, {0x16ea0, 0x16eb8, 0x16ebb}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (code >= rows[i].first && code <= rows[i].last)
            return rows[i].lower + (code - rows[i].first);
    return code;
}

int sh_char_lower(uint32_t code, uint32_t out[LOWER_MOST]) {
    enum { DOTTED_I = 0x130, DOT_ABOVE = 0x307 };
    if (code < 0x80) {
        out[0] = code >= 'A' && code <= 'Z' ? code + ('a' - 'A') : code;
        return 1;
    }
    if (code == DOTTED_I) {
        out[0] = 'i';
        out[1] = DOT_ABOVE;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    if (out[0] == code)
        out[0] = latest_lower(code);
    return 1;
}

/* composed only since Unicode 13 */
enum { LATE_COMPOSITE = 0x11938 };

static int decompose(uint32_t code, utf8proc_option_t how,
                     uint32_t out[DECOMPOSED_MOST]) {
    utf8proc_int32_t parts[DECOMPOSED_MOST];
    int boundary = 0;
    out[0] = code;
    utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)code, parts,
                                                     DECOMPOSED_MOST, how, &boundary);
    if (count < 1 || count > DECOMPOSED_MOST)
        return 1;
    for (int i = 0; i < (int)count; i++)
        out[i] = (uint32_t)parts[i];
    return (int)count;
}

int sh_char_decompose(uint32_t code, uint32_t out[DECOMPOSED_MOST]) {
    out[0] = code;
    return code < 0xc0 || code == LATE_COMPOSITE
               ? 1
               : decompose(code, UTF8PROC_DECOMPOSE, out);
}

int sh_char_decompose_compatible(uint32_t code, uint32_t out[DECOMPOSED_MOST]) {
    static const range late[] = {{0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
                                 {0xab69, 0xab69},   {0x10781, 0x107ba},
                                 {0x11938, 0x11938}, {0x1e030, 0x1e06d},
                                 {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
    out[0] = code;
    return code < 0xa0 || WITHIN(late, code)
               ? 1
               : decompose(code, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, out);
}

int sh_char_combining(uint32_t code) {
    if (code < 0x300)
        return 0;
    const int class = utf8proc_get_property((utf8proc_int32_t)code)->combining_class;
    return class != 0 && WITHIN(late_combining, code) ? 0 : class;
}

uint32_t sh_char_compose(uint32_t first, uint32_t second) {
    utf8proc_int32_t both[2] = {(utf8proc_int32_t)first, (utf8proc_int32_t)second};
    if (second < 0x300)
        return 0;
    utf8proc_ssize_t count =
        utf8proc_normalize_utf32(both, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return count == 1 && both[0] != LATE_COMPOSITE ? (uint32_t)both[0] : 0;
}

/* ---- Grapheme clusters ------------------------------------------------------------ */

/* utf8proc has the rules; this section adds the classes of Unicode 17, which the
   `tokenizers` package uses. Consonants beyond U+FFFF are omitted: clusters that begin
   with one are too long to be looked up. */

/* Newer than utf8proc. */
static const range newer_marks[] =
    {{0x897, 0x897},     {0x1acf, 0x1add},   {0x1ae0, 0x1aeb},   {0x10d69, 0x10d6d},
     {0x10efa, 0x10efc}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5},
     {0x113c7, 0x113ca}, {0x113cc, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2},
     {0x11b60, 0x11b67}, {0x11f5a, 0x11f5a}, {0x1611e, 0x1612f}, {0x1e5ee, 0x1e5ef},
     {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5}};

/* Spacing marks in utf8proc's version. */
static const range narrow_marks[] =
    {{0xcc0, 0xcc0},     {0xcc7, 0xcc8},     {0xcca, 0xccb},     {0x1715, 0x1715},
     {0x1734, 0x1734},   {0x1b3b, 0x1b3b},   {0x1b3d, 0x1b3d},   {0x1b43, 0x1b44},
     {0x1baa, 0x1baa},   {0x1bf2, 0x1bf3},   {0xa953, 0xa953},   {0xa9c0, 0xa9c0},
     {0x111c0, 0x111c0}, {0x11235, 0x11235}, {0x1134d, 0x1134d}, {0x116b6, 0x116b6},
     {0x1193d, 0x1193d}, {0x11f41, 0x11f41}, {0x16ff0, 0x16ff1}, {0x1d166, 0x1d166},
     {0x1d16d, 0x1d16d}};

static const range pictographs[] =
    {{0xa9, 0xa9},       {0xae, 0xae},       {0x203c, 0x203c},   {0x2049, 0x2049},
     {0x2122, 0x2122},   {0x2139, 0x2139},   {0x2194, 0x2199},   {0x21a9, 0x21aa},
     {0x231a, 0x231b},   {0x2328, 0x2328},   {0x23cf, 0x23cf},   {0x23e9, 0x23f3},
     {0x23f8, 0x23fa},   {0x24c2, 0x24c2},   {0x25aa, 0x25ab},   {0x25b6, 0x25b6},
     {0x25c0, 0x25c0},   {0x25fb, 0x25fe},   {0x2600, 0x2604},   {0x260e, 0x260e},
     {0x2611, 0x2611},   {0x2614, 0x2615},   {0x2618, 0x2618},   {0x261d, 0x261d},
     {0x2620, 0x2620},   {0x2622, 0x2623},   {0x2626, 0x2626},   {0x262a, 0x262a},
     {0x262e, 0x262f},   {0x2638, 0x263a},   {0x2640, 0x2640},   {0x2642, 0x2642},
     {0x2648, 0x2653},   {0x265f, 0x2660},   {0x2663, 0x2663},   {0x2665, 0x2666},
     {0x2668, 0x2668},   {0x267b, 0x267b},   {0x267e, 0x267f},   {0x2692, 0x2697},
     {0x2699, 0x2699},   {0x269b, 0x269c},   {0x26a0, 0x26a1},   {0x26a7, 0x26a7},
     {0x26aa, 0x26ab},   {0x26b0, 0x26b1},   {0x26bd, 0x26be},   {0x26c4, 0x26c5},
     {0x26c8, 0x26c8},   {0x26ce, 0x26cf},   {0x26d1, 0x26d1},   {0x26d3, 0x26d4},
     {0x26e9, 0x26ea},   {0x26f0, 0x26f5},   {0x26f7, 0x26fa},   {0x26fd, 0x26fd},
     {0x2702, 0x2702},   {0x2705, 0x2705},   {0x2708, 0x270d},   {0x270f, 0x270f},
     {0x2712, 0x2712},   {0x2714, 0x2714},   {0x2716, 0x2716},   {0x271d, 0x271d},
     {0x2721, 0x2721},   {0x2728, 0x2728},   {0x2733, 0x2734},   {0x2744, 0x2744},
     {0x2747, 0x2747},   {0x274c, 0x274c},   {0x274e, 0x274e},   {0x2753, 0x2755},
     {0x2757, 0x2757},   {0x2763, 0x2764},   {0x2795, 0x2797},   {0x27a1, 0x27a1},
     {0x27b0, 0x27b0},   {0x27bf, 0x27bf},   {0x2934, 0x2935},   {0x2b05, 0x2b07},
     {0x2b1b, 0x2b1c},   {0x2b50, 0x2b50},   {0x2b55, 0x2b55},   {0x3030, 0x3030},
     {0x303d, 0x303d},   {0x3297, 0x3297},   {0x3299, 0x3299},   {0x1f004, 0x1f004},
     {0x1f02c, 0x1f02f}, {0x1f094, 0x1f09f}, {0x1f0af, 0x1f0b0}, {0x1f0c0, 0x1f0c0},
     {0x1f0cf, 0x1f0d0}, {0x1f0f6, 0x1f0ff}, {0x1f170, 0x1f171}, {0x1f17e, 0x1f17f},
     {0x1f18e, 0x1f18e}, {0x1f191, 0x1f19a}, {0x1f1ae, 0x1f1e5}, {0x1f201, 0x1f20f},
     {0x1f21a, 0x1f21a}, {0x1f22f, 0x1f22f}, {0x1f232, 0x1f23a}, {0x1f23c, 0x1f23f},
     {0x1f249, 0x1f25f}, {0x1f266, 0x1f321}, {0x1f324, 0x1f393}, {0x1f396, 0x1f397},
     {0x1f399, 0x1f39b}, {0x1f39e, 0x1f3f0}, {0x1f3f3, 0x1f3f5}, {0x1f3f7, 0x1f3fa},
     {0x1f400, 0x1f4fd}, {0x1f4ff, 0x1f53d}, {0x1f549, 0x1f54e}, {0x1f550, 0x1f567},
     {0x1f56f, 0x1f570}, {0x1f573, 0x1f57a}, {0x1f587, 0x1f587}, {0x1f58a, 0x1f58d},
     {0x1f590, 0x1f590}, {0x1f595, 0x1f596}, {0x1f5a4, 0x1f5a5}, {0x1f5a8, 0x1f5a8},
     {0x1f5b1, 0x1f5b2}, {0x1f5bc, 0x1f5bc}, {0x1f5c2, 0x1f5c4}, {0x1f5d1, 0x1f5d3},
     {0x1f5dc, 0x1f5de}, {0x1f5e1, 0x1f5e1}, {0x1f5e3, 0x1f5e3}, {0x1f5e8, 0x1f5e8},
     {0x1f5ef, 0x1f5ef}, {0x1f5f3, 0x1f5f3}, {0x1f5fa, 0x1f64f}, {0x1f680, 0x1f6c5},
     {0x1f6cb, 0x1f6d2}, {0x1f6d5, 0x1f6e5}, {0x1f6e9, 0x1f6e9}, {0x1f6eb, 0x1f6f0},
     {0x1f6f3, 0x1f6ff}, {0x1f7da, 0x1f7ff}, {0x1f80c, 0x1f80f}, {0x1f848, 0x1f84f},
     {0x1f85a, 0x1f85f}, {0x1f888, 0x1f88f}, {0x1f8ae, 0x1f8af}, {0x1f8bc, 0x1f8bf},
     {0x1f8c2, 0x1f8cf}, {0x1f8d9, 0x1f8ff}, {0x1f90c, 0x1f93a}, {0x1f93c, 0x1f945},
     {0x1f947, 0x1f9ff}, {0x1fa58, 0x1fa5f}, {0x1fa6e, 0x1faff}, {0x1fc00, 0x1fffd}};

static const range consonants[] = {{0x915, 0x939},   {0x958, 0x95f},   {0x978, 0x97f},
                                   {0x995, 0x9a8},   {0x9aa, 0x9b0},   {0x9b2, 0x9b2},
                                   {0x9b6, 0x9b9},   {0x9dc, 0x9dd},   {0x9df, 0x9df},
                                   {0x9f0, 0x9f1},   {0xa95, 0xaa8},   {0xaaa, 0xab0},
                                   {0xab2, 0xab3},   {0xab5, 0xab9},   {0xaf9, 0xaf9},
                                   {0xb15, 0xb28},   {0xb2a, 0xb30},   {0xb32, 0xb33},
                                   {0xb35, 0xb39},   {0xb5c, 0xb5d},   {0xb5f, 0xb5f},
                                   {0xb71, 0xb71},   {0xc15, 0xc28},   {0xc2a, 0xc39},
                                   {0xc58, 0xc5a},   {0xd15, 0xd3a},   {0x1000, 0x102a},
                                   {0x103f, 0x103f}, {0x1050, 0x1055}, {0x105a, 0x105d},
                                   {0x1061, 0x1061}, {0x1065, 0x1066}, {0x106e, 0x1070},
                                   {0x1075, 0x1081}, {0x108e, 0x108e}, {0x1780, 0x17b3},
                                   {0x1a20, 0x1a54}, {0x1b0b, 0x1b0c}, {0x1b13, 0x1b33},
                                   {0x1b45, 0x1b4c}, {0x1b83, 0x1ba0}, {0x1bae, 0x1baf},
                                   {0x1bbb, 0x1bbd}, {0xa989, 0xa98b}, {0xa98f, 0xa9b2},
                                   {0xa9e0, 0xa9e4}, {0xa9e7, 0xa9ef}, {0xa9fa, 0xa9fe},
                                   {0xaa60, 0xaa6f}, {0xaa71, 0xaa73}, {0xaa7a, 0xaa7a},
                                   {0xaa7e, 0xaa7f}, {0xaae0, 0xaaea}, {0xabc0, 0xabda}};

/* Signs that join two consonants. */
static const range linkers[] =
    {{0x94d, 0x94d},     {0x9cd, 0x9cd},     {0xacd, 0xacd},     {0xb4d, 0xb4d},
     {0xc4d, 0xc4d},     {0xd4d, 0xd4d},     {0x1039, 0x1039},   {0x17d2, 0x17d2},
     {0x1a60, 0x1a60},   {0x1b44, 0x1b44},   {0x1bab, 0x1bab},   {0xa9c0, 0xa9c0},
     {0xaaf6, 0xaaf6},   {0x10a3f, 0x10a3f}, {0x11133, 0x11133}, {0x113d0, 0x113d0},
     {0x1193e, 0x1193e}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11f42, 0x11f42}};

static int class_of(uint32_t code) {
    return (int)utf8proc_get_property((utf8proc_int32_t)code)->boundclass;
}

/* An older character of the same class, for characters that utf8proc does not
   classify. */
static uint32_t older(uint32_t code) {
    enum { CONTROL = 1, ACUTE = 0x301, NUMBER_SIGN = 0x600, FACE = 0x1f600 };
    if (WITHIN(newer_marks, code))
        return ACUTE;
    if (WITHIN(pictographs, code))
        return FACE;
    if (code == 0x113d1)
        return NUMBER_SIGN; /* prepended marks */
    if (code == 0x2065 || (code >= 0xfff0 && code <= 0xfff8))
        return CONTROL;
    /* No longer in either class. */
    return code == 0x11a3a || class_of(code) == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC
               ? 'a'
               : code;
}

/* A consonant, marks that include a linker, and another consonant form one cluster. */
static bool joins_consonants(uint32_t before, uint32_t code, cluster_state *state) {
    enum { NON_JOINER = 0x200c };
    const int class = class_of(older(before));
    const bool between = before != NON_JOINER && (class == UTF8PROC_BOUNDCLASS_EXTEND ||
                                                  class == UTF8PROC_BOUNDCLASS_ZWJ ||
                                                  WITHIN(narrow_marks, before));
    if (WITHIN(consonants, before))
        state->conjunct = CONJUNCT_BEGUN;
    else if (!between)
        state->conjunct = CONJUNCT_NONE;
    else if (state->conjunct != CONJUNCT_NONE && WITHIN(linkers, before))
        state->conjunct = CONJUNCT_LINKED;
    return state->conjunct == CONJUNCT_LINKED && WITHIN(consonants, code);
}

bool sh_char_continues(uint32_t before, uint32_t code, cluster_state *state) {
    enum { FIRST_MARK = 0x300 }; /* below it, only line ends form clusters */
    if (before < FIRST_MARK && code < FIRST_MARK && before != '\r' && !state->rules)
        return false;
    const bool apart = utf8proc_grapheme_break_stateful((utf8proc_int32_t)older(before),
                                                        (utf8proc_int32_t)older(code),
                                                        &state->rules);
    return joins_consonants(before, code, state) || !apart;
}
