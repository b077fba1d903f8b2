#include "models/nn/half.h"

uint16_t sh_half_from_float(float value) {
    union {
        float value;
        uint32_t bits;
    } pun = {value};
    uint32_t sign = (pun.bits >> 16) & 0x8000u, magnitude = pun.bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu)); /* NaN, quiet */
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    uint32_t shift = 13, base = magnitude, exponent = magnitude >> 23;
    if (exponent >= 113) { /* normal: move the exponent's bias from 127 to 15 */
        base -= (uint32_t)112 << 23;
    } else { /* subnormal: the hidden bit becomes visible and everything moves right */
        if (exponent < 102)
            return (uint16_t)sign;
        base = (magnitude & 0x7fffffu) | 0x800000u;
        shift += 113 - exponent;
    }
    uint32_t kept = base >> shift, half = UINT32_C(1) << (shift - 1);
    uint32_t rest = base & ((UINT32_C(1) << shift) - 1);
    kept += rest > half || (rest == half && (kept & 1));
    return (uint16_t)(sign | kept);
}
