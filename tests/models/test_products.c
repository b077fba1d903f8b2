/* Products of matrices against plain loops in double precision, at awkward sizes and
   around the sizes of blocks; the same bits on any number of threads and any instruction
   set; the epilogue sees every element once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "models/nn/products.h"
#include "support.h"

typedef enum { FORWARD, DATA, WEIGHTS, KINDS } product_kind;

typedef struct {
    int64_t rows, inputs, outputs;
} sizes;

/* One product: factors [a_rows][a_stride], [b_rows][b_stride], result [rows][stride],
   with columns beside them that must neither be read into a sum nor written. */
typedef struct {
    product_kind kind;
    sizes of;
    bool onto;
    int64_t rows, width, depth; /* of the result, and of its sums */
    int64_t a_stride, b_stride, stride;
    float *a, *b, *before; /* before: the result as it begins */
    float *bias;           /* [rows]: weights only */
} product_case;

enum { BESIDE = 3 };

static float *random_floats(int64_t count, uint64_t seed) {
    float *x = test_memory(count + 1, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)test_normal(test_hash(7, seed, (uint64_t)i));
    return x;
}

static product_case case_of(product_kind kind, sizes of, bool onto) {
    product_case c = {.kind = kind, .of = of, .onto = onto || kind == WEIGHTS};
    c.rows = kind == WEIGHTS ? of.outputs : of.rows;
    c.width = kind == FORWARD ? of.outputs : of.inputs;
    c.depth = kind == FORWARD ? of.inputs : kind == DATA ? of.outputs : of.rows;
    c.a_stride = (kind == FORWARD ? of.inputs : of.outputs) + BESIDE;
    c.b_stride = of.inputs + BESIDE;
    c.stride = c.width + BESIDE;
    c.a = random_floats(of.rows * c.a_stride, 1);
    c.b = random_floats((kind == WEIGHTS ? of.rows : of.outputs) * c.b_stride, 2);
    c.before = random_floats(c.rows * c.stride, 3);
    c.bias = random_floats(c.rows, 4);
    return c;
}

static void case_free(product_case *c) {
    free(c->a), free(c->b), free(c->before), free(c->bias);
}

/* The result, which the caller frees. bias: [rows], added to; weights only. */
static float *multiplied(shoal_context *context, const product_case *c, epilogue then,
                         float *bias) {
    const size_t bytes = (size_t)(c->rows * c->stride) * sizeof(float);
    float *result = test_memory(c->rows * c->stride + 1, sizeof *result);
    memcpy(result, c->before, bytes);
    const const_matrix a = {c->a, c->a_stride}, b = {c->b, c->b_stride};
    const matrix to = {result, c->stride};
    const sizes of = c->of;
    assert_int_equal(sh_products_hold(context), SHOAL_OK);
    if (c->kind == FORWARD)
        sh_matmul_forward(context, of.rows, of.inputs, of.outputs, a, b, c->onto, to,
                          then);
    else if (c->kind == DATA)
        sh_matmul_data(context, of.rows, of.inputs, of.outputs, a, b, c->onto, to, then);
    else
        sh_matmul_weights(context, of.rows, of.inputs, of.outputs, a, b, to, bias);
    sh_products_drop(context);
    return result;
}

static void check_result(const product_case *c, const float *result) {
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t column = 0; column < c->stride; column++) {
            const float before = c->before[row * c->stride + column];
            const float here = result[row * c->stride + column];
            double sum = c->onto ? (double)before : 0, size = fabs(sum);
            for (int64_t k = 0; column < c->width && k < c->depth; k++) {
                const double left = c->kind == WEIGHTS ? c->a[k * c->a_stride + row]
                                                       : c->a[row * c->a_stride + k];
                const double right = c->kind == FORWARD ? c->b[column * c->b_stride + k]
                                                        : c->b[k * c->b_stride + column];
                sum += left * right;
                size += fabs(left * right);
            }
            if (column >= c->width)
                assert_true(here == before);
            else if (!(fabs((double)here - sum) <= 3e-7 * size + 1e-12))
                fail_msg("product %d of %lld x %lld, depth %lld: [%lld][%lld] is %g, "
                         "not %g",
                         (int)c->kind, (long long)c->rows, (long long)c->width,
                         (long long)c->depth, (long long)row, (long long)column,
                         (double)here, sum);
        }
}

static const sizes awkward[] = {{0, 3, 2},      {3, 0, 2},     {3, 2, 0},
                                {1, 1, 1},      {2, 7, 5},     {11, 31, 33},
                                {12, 32, 32},   {13, 33, 31},  {24, 16, 64},
                                {97, 101, 103}, {193, 65, 40}, {40, 385, 9},
                                {383, 12, 13},  {384, 384, 8}, {385, 20, 513},
                                {9, 513, 385},  {530, 5, 7},   {5, 6, 1030},
                                {6, 1030, 5},   {769, 40, 33}};

static void results_are_right(void **state) {
    for (int isa = 0; test_isa(isa); isa++) {
        shoal_context *context = test_context(test_isa(isa), 2);
        for (int64_t i = 0; i < COUNT_OF(awkward); i++)
            for (int kind = 0; kind < KINDS; kind++)
                for (int onto = 0; onto < 2; onto++) {
                    product_case c = case_of((product_kind)kind, awkward[i], onto != 0);
                    float *result = multiplied(context, &c, (epilogue){0}, NULL);
                    check_result(&c, result);
                    free(result);
                    case_free(&c);
                }
        shoal_context_destroy(context);
    }
}

static void biases_get_the_sums_of_columns(void **state) {
    shoal_context *context = test_context(NULL, 2);
    for (int64_t i = 0; i < COUNT_OF(awkward); i++) {
        product_case c = case_of(WEIGHTS, awkward[i], true);
        float *bias = test_memory(c.rows + 1, sizeof *bias);
        memcpy(bias, c.bias, (size_t)c.rows * sizeof *bias);
        free(multiplied(context, &c, (epilogue){0}, bias));
        for (int64_t row = 0; row < c.rows; row++) {
            double sum = (double)c.bias[row];
            for (int64_t k = 0; k < c.depth && c.width > 0; k++)
                sum += (double)c.a[k * c.a_stride + row];
            assert_true(fabs((double)bias[row] - sum) <= 1e-4);
        }
        free(bias);
        case_free(&c);
    }
    shoal_context_destroy(context);
}

static void bits_depend_on_neither_threads_nor_instructions(void **state) {
    const int threads[] = {1, 2, 3, 8};
    const sizes of[] = {{97, 101, 103}, {900, 70, 530}, {385, 1030, 65}, {200, 385, 385}};
    for (int64_t i = 0; i < COUNT_OF(of); i++)
        for (int kind = 0; kind < KINDS; kind++) {
            product_case c = case_of((product_kind)kind, of[i], kind == DATA);
            const size_t bytes = (size_t)(c.rows * c.stride) * sizeof(float);
            float *first = NULL;
            for (int isa = 0; test_isa(isa); isa++)
                for (int64_t t = 0; t < COUNT_OF(threads); t++) {
                    shoal_context *context = test_context(test_isa(isa), threads[t]);
                    float *result = multiplied(context, &c, (epilogue){0}, NULL);
                    if (first)
                        assert_memory_equal(result, first, bytes);
                    else
                        first = result;
                    if (result != first)
                        free(result);
                    shoal_context_destroy(context);
                }
            free(first);
            case_free(&c);
        }
}

typedef struct {
    int64_t rows, width;
    bool whole_rows;
    float *seen; /* [rows][width] */
} witness;

static void look(const void *shared, const shoal_context *context, int64_t first,
                 int64_t count, int64_t left, int64_t width) {
    const witness *w = shared;
    (void)context;
    /* A task must not fail a test: what is wrong shows in `seen`. */
    const float one = w->whole_rows && (left != 0 || width != w->width) ? 100 : 1;
    for (int64_t row = first; row < first + count; row++)
        for (int64_t column = left; column < left + width; column++)
            w->seen[row * w->width + column] += one;
}

static void epilogues_see_every_element_once(void **state) {
    shoal_context *context = test_context(NULL, 2);
    for (int64_t i = 0; i < COUNT_OF(awkward); i++)
        for (int kind = 0; kind < WEIGHTS; kind++)
            for (int whole = 0; whole < 2; whole++) {
                product_case c = case_of((product_kind)kind, awkward[i], false);
                witness w = {c.rows, c.width, whole != 0,
                             test_memory(c.rows * c.width + 1, sizeof(float))};
                memset(w.seen, 0, (size_t)(c.rows * c.width) * sizeof(float));
                free(multiplied(context, &c,
                                (epilogue){.run = look,
                                           .shared = &w,
                                           .whole_rows = w.whole_rows},
                                NULL));
                for (int64_t at = 0; at < c.rows * c.width; at++)
                    assert_true(w.seen[at] == 1);
                free(w.seen);
                case_free(&c);
            }
    shoal_context_destroy(context);
}

static void room_is_held_while_somebody_multiplies(void **state) {
    shoal_context *context = test_context(NULL, 2);
    assert_null(context->workspace);
    assert_int_equal(sh_products_hold(context), SHOAL_OK);
    const float *room = context->workspace;
    assert_int_equal(sh_products_hold(context), SHOAL_OK);
    sh_products_drop(context);
    assert_ptr_equal(context->workspace, room);
    sh_products_drop(context);
    assert_null(context->workspace);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_right),
        cmocka_unit_test(biases_get_the_sums_of_columns),
        cmocka_unit_test(bits_depend_on_neither_threads_nor_instructions),
        cmocka_unit_test(epilogues_see_every_element_once),
        cmocka_unit_test(room_is_held_while_somebody_multiplies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
