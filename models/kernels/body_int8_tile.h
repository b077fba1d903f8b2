/* Products of bytes, once per way of multiplying them: body_int8.h defines INT8_NAME(x),
   the attribute INT8_TARGET, INT8_DOT(sums, x, w), which adds to each lane of 32 bits the
   four products of (x - INT8_BELOW) and w in its bytes, and includes this file. */

/* `rows` rows by INT8_VECTORS vectors of outputs. w: the first quad of these outputs. */
INT8_TARGET INLINE void INT8_NAME(tile)(int64_t quads, const int8_t *w, const uint8_t *x,
                                        int64_t stride, int rows,
                                        vi sums[INT8_TILE][INT8_VECTORS]) {
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < INT8_VECTORS; v++)
            sums[r][v] = (vi){0};
    }
    for (int64_t q = 0; q < quads; q++, w += 4 * PACKED_OUTPUTS, x += 4) {
        vi weights[INT8_VECTORS];
        UNROLL
        for (int v = 0; v < INT8_VECTORS; v++)
            memcpy(&weights[v], w + v * 4 * LANES, sizeof(vi));
        UNROLL
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, x + r * stride, sizeof four);
            const vi one = four - (vi){0};
            UNROLL
            for (int v = 0; v < INT8_VECTORS; v++)
                sums[r][v] = INT8_DOT(sums[r][v], one, weights[v]);
        }
    }
}

INT8_TARGET INLINE void INT8_NAME(rows)(int64_t quads, const int8_block *w,
                                        const uint8_t *x, int64_t x_stride,
                                        const int8_row *of, int rows, float *y,
                                        int64_t y_stride) {
    for (int first = 0; first < PACKED_OUTPUTS; first += INT8_VECTORS * LANES) {
        vi sums[INT8_TILE][INT8_VECTORS];
        INT8_NAME(tile)(quads, w->bytes + 4 * first, x, x_stride, rows, sums);
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int v = 0; v < INT8_VECTORS; v++) {
                const int64_t at = first + v * LANES;
                vi column;
                memcpy(&column, w->sums + at, sizeof column);
                const vi exact = sums[r][v] - (of[r].zero - INT8_BELOW) * column;
                const vf scale = of[r].scale * v_load(w->scales + at);
                v_store(y + r * y_stride + at,
                        __builtin_convertvector(exact, vf) * scale);
            }
        }
    }
}

INT8_TARGET static void INT8_NAME(any)(int64_t quads, const int8_block *w,
                                       const uint8_t *x, int64_t x_stride,
                                       const int8_row *of, int rows, float *y,
                                       int64_t y_stride) {
    while (rows > 0) {
        const int some = rows >= INT8_TILE ? INT8_TILE
                         : rows >= 8       ? 8
                         : rows >= 4       ? 4
                         : rows >= 2       ? 2
                                           : 1;
        switch (some) {
        case 1: INT8_NAME(rows)(quads, w, x, x_stride, of, 1, y, y_stride); break;
        case 2: INT8_NAME(rows)(quads, w, x, x_stride, of, 2, y, y_stride); break;
        case 4: INT8_NAME(rows)(quads, w, x, x_stride, of, 4, y, y_stride); break;
#if INT8_TILE_ROWS > 8
        case 8: INT8_NAME(rows)(quads, w, x, x_stride, of, 8, y, y_stride); break;
#endif
        default:
            INT8_NAME(rows)(quads, w, x, x_stride, of, INT8_TILE, y, y_stride);
            break;
        }
        rows -= some;
        x += some * x_stride;
        of += some;
        y += some * y_stride;
    }
}

#undef INT8_NAME
#undef INT8_TARGET
#undef INT8_DOT
#undef INT8_BELOW
