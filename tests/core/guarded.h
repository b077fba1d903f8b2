/* Memory for comparing two versions of a function: inputs end exactly where they may be
   read, so that a sanitizer sees a step beyond; outputs stand between guards. */
#ifndef SHOAL_TESTS_GUARDED_H
#define SHOAL_TESTS_GUARDED_H

#include <stddef.h>
#include <stdint.h>

/* Everything that one comparison asks for is kept until guarded_finish, which fails the
   test if a guard was written to; guarded_forget drops what a failed test left behind. */
void *guarded_input(size_t bytes);  /* aligned to a cache line */
void *guarded_output(size_t bytes); /* the same */
void guarded_finish(const char *what);
void guarded_forget(void);

/* Random numbers in a row. */
uint64_t draw(void);
int draw_below(int bound);
float draw_uniform(void); /* -1 .. 1 */

/* Inputs full of draw_uniform. An aligned [rows][width]; and `count` rows that begin one
   element off alignment and end with the last feature. */
float *random_panel(int64_t rows, int width);
float *random_rows(int64_t count, int64_t stride, int64_t dim);
/* `count` different rows of `rows`, in falling order. */
int32_t *random_index(int count, int rows);

/* Two outputs that begin alike and must end alike. */
typedef struct {
    float *expected, *actual;
    size_t count;
} float_pair;

float_pair pair_create(int64_t count);
void pair_copy(float_pair pair); /* expected to actual */
/* NaN equals NaN. `what` and `who` are for the message. */
void pair_compare(float_pair pair, float tolerance, const char *what, const char *who);
void bytes_compare(const void *expected, const void *actual, size_t bytes,
                   const char *what, const char *who);

#endif
