/* Shared by the checks of kernel lists. A test defines before including it:
   KERNEL_LIST          the list
   checked_kernels      the type of its tables
   KERNELS_AT(index)    the table of an instruction set, 0 for the scalar one */
#ifndef SHOAL_TESTS_KERNEL_CHECKS_H
#define SHOAL_TESTS_KERNEL_CHECKS_H

#include "guarded.h"
#include "kernels/kernels.h"
#include "support.h"

static const float EPSILON = 1.1920929e-7f;

typedef void check_function(const checked_kernels *kernels);
#define DECLARE_CHECK(name, arguments) static check_function check_##name;
KERNEL_LIST(DECLARE_CHECK)

#define SCALAR KERNELS_AT(0)

#define CHECK(name, walks)                                                               \
    static void check_##name(const checked_kernels *kernels) {                           \
        walks;                                                                           \
    }

/* For kernels whose sums have the same order on every instruction set. */
static inline void compare_bits(float_pair pair, const char *what,
                                const checked_kernels *kernels) {
    bytes_compare(pair.expected, pair.actual, pair.count * sizeof(float), what,
                  kernels->isa);
}

static const int LENGTHS[] = {0,  1,  2,  3,  7,  8,   9,   15,  16,  17,  31,
                              32, 33, 64, 65, 97, 255, 256, 257, 511, 513, 700};

/* Every length, salts 0 .. salts - 1. */
static inline void walk_lengths(const checked_kernels *kernels, int salts,
                                void (*compare)(const checked_kernels *kernels, int count,
                                                int salt)) {
    for (int64_t i = 0; i < COUNT_OF(LENGTHS); i++)
        for (int salt = 0; salt < salts; salt++)
            compare(kernels, LENGTHS[i], salt);
}

static inline uint16_t *random_halves(int count) {
    uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
    for (int i = 0; i < count; i++) /* no infinity, no NaN */
        halves[i] = (uint16_t)(draw() & 0xbbff);
    return halves;
}

static void on_every_table(check_function *check) {
    for (int i = 1; KERNELS_AT(i); i++) {
        if (!sh_kernel_table_runs(sh_kernel_table_at(i))) {
            print_message("%s does not run here\n", KERNELS_AT(i)->isa);
            continue;
        }
        guarded_forget();
        check(KERNELS_AT(i));
    }
}

/* One test case per kernel of the list. */
#define TEST_OF(name, arguments)                                                         \
    static void name(void **state) {                                                     \
        (void)state;                                                                     \
        on_every_table(check_##name);                                                    \
    }
KERNEL_LIST(TEST_OF)
#define KERNEL_TEST(name, arguments) cmocka_unit_test(name),

#endif
