/* Which kernel tables there are and which of them this machine can run. */
#include <stddef.h>

#include "kernels/kernels.h"

extern const kernel_table sh_scalar_table, sh_avx2_table, sh_avx512_table, sh_neon_table;

const kernel_table *sh_kernel_table_at(int index) {
    static const kernel_table *const tables[] = {
        &sh_scalar_table,
#ifdef SHOAL_HAVE_AVX2
        &sh_avx2_table,
#endif
#ifdef SHOAL_HAVE_AVX512
        &sh_avx512_table,
#endif
#ifdef SHOAL_HAVE_NEON
        &sh_neon_table,
#endif
    };
    int count = (int)(sizeof tables / sizeof *tables);
    return index >= 0 && index < count ? tables[index] : NULL;
}

int sh_kernel_table_runs(const kernel_table *table) {
#ifdef SHOAL_HAVE_AVX2
    if (table == &sh_avx2_table)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
#ifdef SHOAL_HAVE_AVX512
    if (table == &sh_avx512_table)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return table != NULL;
}

int sh_kernel_table_has_brains(const kernel_table *table) {
#ifdef SHOAL_HAVE_AVX512
    if (table == &sh_avx512_table)
        return __builtin_cpu_supports("avx512bf16") != 0;
#endif
    (void)table;
    return 0;
}
