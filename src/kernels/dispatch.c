/* Which kernel tables there are and which of them this machine can run. */
#include <stddef.h>

#include "kernels/kernels.h"

#define DECLARE_TABLE(set) extern const kernel_table sh_##set##_table;
SHOAL_ISAS(DECLARE_TABLE)

const kernel_table *sh_kernel_table_at(int index) {
#define TABLE(set) &sh_##set##_table,
    static const kernel_table *const tables[] = {SHOAL_ISAS(TABLE)};
    return index >= 0 && index < ISA_COUNT ? tables[index] : NULL;
}

int sh_kernel_table_runs(const kernel_table *kernels) {
#ifdef SHOAL_HAVE_AVX2
    if (kernels == &sh_avx2_table)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
#ifdef SHOAL_HAVE_AVX512
    if (kernels == &sh_avx512_table)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return kernels != NULL;
}
