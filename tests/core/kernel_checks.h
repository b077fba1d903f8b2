/* What the checks of kernels share, test_kernels.c and kernels_of_models.c. */
#ifndef SHOAL_TESTS_KERNEL_CHECKS_H
#define SHOAL_TESTS_KERNEL_CHECKS_H

#include "guarded.h"
#include "kernels/kernels.h"

static const float EPSILON = 1.1920929e-7f;

typedef void check_function(const kernel_table *table);
#define DECLARE_CHECK(name, arguments) check_function check_##name;
SHOAL_KERNELS(DECLARE_CHECK)
#undef DECLARE_CHECK

#define SCALAR sh_kernel_table_at(0)

#define CHECK(name, walks)                                                               \
    void check_##name(const kernel_table *table) {                                       \
        walks;                                                                           \
    }

/* For kernels whose sums have one order on every instruction set. */
static inline void compare_bits(float_pair pair, const char *what,
                                const kernel_table *table) {
    bytes_compare(pair.expected, pair.actual, pair.count * sizeof(float), what,
                  table->isa);
}

/* A case of its own beside the list's. */
void scalar_halves_are_the_nearest(void **state);

#endif
