/* Problems in half precision. full's forward converts blocks of rows by itself
   (dense.c). Everything else works on one head at a time: sh_run_heads converts a head's
   rows to floats in the slot's room, shows the kind a call in floats, and converts what
   it wrote. */
#ifndef SHOAL_ATTENTION_HEADS_H
#define SHOAL_ATTENTION_HEADS_H

#include "attention/attention.h"

/* Rows of floats for a unit, one head: N queries, S keys; in backward of all the query
   heads that share its keys. What a unit does not need is NULL. */
typedef struct float_room {
    float *q, *dq;          /* [heads][N][D] */
    float *out, *dout;      /* [heads][N][Dv] */
    float *k, *dk, *v, *dv; /* [S][D] and [S][Dv] */
} float_room;

/* Rooms for the slots of a plan, where its problem is in half precision. */
void sh_rooms_place(shoal_plan *plan, block_layout *work);

/* sh_run_units for the heads of a call: batch * heads units in forward, batch * heads or
   batch * kv_heads in backward. `run` gets the call, as it is or in floats. */
void sh_run_heads(const attention_call *call, int64_t count, unit_function *run);

/* Rows of halves. */
typedef struct {
    uint16_t *data;
    int64_t stride, dim;
    shoal_dtype dtype;
} half_rows;

static inline half_rows half_rows_of(row_view rows, int64_t dim, shoal_dtype dtype) {
    return (half_rows){(uint16_t *)(void *)rows.data, rows.stride, dim, dtype};
}

/* to [count][dim] = rows first .. first + count - 1 of halves, as floats. */
void sh_widen_rows(const kernel_table *kernels, half_rows halves, int64_t first,
                   int64_t count, float *to);
/* And back. */
void sh_narrow_rows(const kernel_table *kernels, const float *from, half_rows halves,
                    int64_t first, int64_t count);
/* Sets rows first .. last - 1 of an output to 0, floats or halves. */
void sh_clear_output(const attention_call *call, row_view out, int64_t first,
                     int64_t last);

#endif
