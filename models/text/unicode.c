#include "models/text/unicode.h"

#include <utf8proc.h>

#include "models/text/ranges.h"

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

/* Later than the tokenizers' tables: there they have no class. */
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

/* Later than utf8proc's. */
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
    enum { WAS_MARK = 0x1734 }; /* it takes room since Unicode 14 */
    return code == WAS_MARK || (code >= 0x300 && category(code) == UTF8PROC_CATEGORY_MN &&
                                !WITHIN(late_marks, code));
}

bool sh_char_is_punctuation(uint32_t code) {
    if (code < 0x80)
        return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
               (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
    if (code == 0x166d || code == 0x111c9) /* they were, in Unicode 8 */
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

/* ---- Other characters in place of one --------------------------------------------- */

/* Capitals that are newer than utf8proc's, and where their small letters begin. */
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

/* Composed since Unicode 13 only. */
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
