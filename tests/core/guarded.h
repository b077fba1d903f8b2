/* Memory for comparing two versions of a function: inputs end exactly at their last
   readable element, so that a sanitizer detects overruns; outputs are between
   guards. */
#ifndef SHOAL_TESTS_GUARDED_H
#define SHOAL_TESTS_GUARDED_H

#include <stddef.h>
#include <stdint.h>

/* Blocks are kept until guarded_finish, which fails the test if a guard was
   overwritten; guarded_forget frees the blocks of a failed test. */
void *guarded_input(size_t bytes);  /* aligned to a cache line */
void *guarded_output(size_t bytes); /* the same */
void guarded_finish(const char *what);
void guarded_forget(void);

/* A sequence of random numbers. */
uint64_t draw(void);
int draw_below(int bound);
float draw_uniform(void); /* -1 .. 1 */

/* Inputs filled by draw_uniform: an aligned [rows][width]; and `count` rows that begin
   one element off alignment and end with the last feature. */
float *random_panel(int64_t rows, int width);
float *random_rows(int64_t count, int64_t stride, int64_t dim);
/* `count` distinct rows of `rows`, decreasing. */
int32_t *random_index(int count, int rows);

/* Two outputs with equal initial values that must have equal results. */
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
