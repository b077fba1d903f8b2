/* OpenBLAS as a yardstick leaves the process as it was. */
#include "lab/blas.c"

#include "cases.h"

static void the_number_of_threads_is_restored(void **state) {
    open_blas blas;
    if (!load(&blas)) {
        print_message("OpenBLAS is not installed\n");
        skip();
    }
    blas.set_threads(2);
    const int before = blas.threads();
    assert_true(blas_sgemm_rate(before == 1 ? 2 : 1) > 0);
    assert_int_equal(blas.threads(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_of_threads_is_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
