/* The loop over a call's heads, and half precision.

   A kind's function works on one head in float32. Where the problem is in half precision
   the loop converts the head's rows to floats in buffers of its slot, shows the function
   a call in float32, and converts what it wrote. The forward pass of some kinds reads and
   writes half precision by itself, block by block (dense.c). */
#ifndef SHOAL_ATTENTION_HEADS_H
#define SHOAL_ATTENTION_HEADS_H

#include "attention/attention.h"

/* One slot's rows as floats: N queries, S keys, and in backward all query heads that
   share the keys. What a plan does not need is NULL. */
typedef struct float_rows {
    float *q, *dq;          /* [heads][N][D] */
    float *out, *dout;      /* [heads][N][Dv] */
    float *k, *dk, *v, *dv; /* [S][D] and [S][Dv] */
} float_rows;

/* Reserves them for the slots of a plan, where its problem is in half precision. */
void sh_float_rows_place(shoal_plan *plan, block_layout *work);

/* The passes over all heads of a call that was checked, by its plan's kind. */
void sh_forward_heads(const attention_call *call);
void sh_backward_heads(const attention_call *call);
/* Runs `one` for the query heads 0 .. batch * heads - 1 of a call. */
void sh_for_heads(const attention_call *call, head_function *one);

/* Rows in half precision. */
typedef struct {
    uint16_t *data;
    int64_t stride, dim;
    shoal_dtype dtype;
} half_rows;

static inline half_rows half_rows_of(row_view rows, int64_t dim, shoal_dtype dtype) {
    return (half_rows){(uint16_t *)(void *)rows.data, rows.stride, dim, dtype};
}

/* to [count][dim] = rows first .. first + count - 1 as floats. */
void sh_widen_rows(const kernel_table *kernels, half_rows rows, int64_t first,
                   int64_t count, float *to);
/* And back. */
void sh_narrow_rows(const kernel_table *kernels, const float *from, half_rows rows,
                    int64_t first, int64_t count);
/* Sets rows first .. last - 1 of an output to 0, in the problem's precision. */
void sh_clear_output(const attention_call *call, row_view out, int64_t first,
                     int64_t last);

#endif
