/* Which tables of the models' kernels there are, and the one of a context. */
#include "base/context.h"
#include "models/kernels/kernels.h"

#include <stddef.h>
#ifdef SHOAL_HAVE_AVX2
#include <cpuid.h>
#endif
#ifdef SHOAL_HAVE_NEON
#include <sys/auxv.h>
#endif

#include "kernels/kernels.h"

#define DECLARE_TABLE(set) extern const model_kernels sh_##set##_model_kernels;
SHOAL_ISAS(DECLARE_TABLE)

const model_kernels *sh_model_kernels_at(int index) {
#define TABLE(set) &sh_##set##_model_kernels,
    static const model_kernels *const tables[] = {SHOAL_ISAS(TABLE)};
    return index >= 0 && index < ISA_COUNT ? tables[index] : NULL;
}

const model_kernels *sh_model_kernels(const shoal_context *context) {
    return sh_model_kernels_at(context->kernels->set);
}

bool sh_multiplies_bf16(const shoal_context *context) {
#ifdef SHOAL_HAVE_AVX512
    if (context->kernels->set == ISA_avx512)
        return __builtin_cpu_supports("avx512bf16") != 0;
#endif
    (void)context;
    return false;
}

bool sh_dots_int8_at(int index) {
#ifdef SHOAL_HAVE_AVX512
    if (index == ISA_avx512)
        return __builtin_cpu_supports("avx512vnni") != 0;
#endif
#ifdef SHOAL_HAVE_AVX2
    if (index == ISA_avx2) {
        unsigned a, b, c, d; /* AVX-VNNI: compilers' lists of names lack it */
        return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
    }
#endif
#ifdef SHOAL_HAVE_NEON
    if (index == ISA_neon) {
        const unsigned long dot_products = 1 << 20; /* HWCAP_ASIMDDP */
        return (getauxval(AT_HWCAP) & dot_products) != 0;
    }
#endif
    (void)index;
    return false;
}

bool sh_dots_int8(const shoal_context *context) {
    const int set = (int)context->kernels->set;
#ifdef SHOAL_HAVE_AVX512
    if (set == ISA_avx2 && __builtin_cpu_supports("avx512bw"))
        return false;
#endif
    return sh_dots_int8_at(set);
}
