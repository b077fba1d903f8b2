"""One call on numpy arrays: its pointers, and the key of the plan that it needs."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from . import _engine
from ._arrays import DTYPES, FloatArray, Lengths, address, check_keys_given
from ._arrays import check_shapes, four_axes, group_numbers, layout, lengths
from ._engine import Key, key_of
from ._native import Inputs, ShoalError


class Call(NamedTuple):
    """One forward: its arrays, kept alive, and their pointers."""

    q: FloatArray
    k: Optional[FloatArray]
    v: FloatArray
    keep: tuple[Any, ...]
    inputs: Inputs
    axes: int  # of the caller's q


def scale_for(scale: float | None) -> float:
    """The library uses 0 for 1/sqrt(dim), so that a scale of 0 cannot be passed to it."""
    if scale is None:
        return 0.0
    if abs(scale) <= 2.0**-150:  # rounds to 0 in float32
        raise ShoalError(
            f"scale is {scale}, which is 0 in float32: all weights would be equal; use "
            "None for 1/sqrt(dim)"
        )
    return float(scale)


def make_call(
    q: FloatArray,
    k: FloatArray | None,
    v: FloatArray,
    query_lengths: Lengths,
    key_lengths: Lengths,
    groups: Any,
) -> Call:
    """Four axes and pointers; types and strides are checked separately."""
    axes = getattr(q, "ndim", 0)
    if not (
        axes == 4
        and type(q) is type(v) is np.ndarray
        and v.ndim == 4
        and (k is None or (type(k) is np.ndarray and k.ndim == 4))
    ):
        given = q, k, v
        q, v = four_axes(q, "q"), four_axes(v, "v")
        k = None if k is None else four_axes(k, "k")
        if given[2].ndim != axes or (given[1] is not None and given[1].ndim != axes):
            raise ShoalError("q, k and v have different numbers of axes")
    if query_lengths is None and key_lengths is None and groups is None:
        return Call(
            q,
            k,
            v,
            (),
            Inputs(address(q), None if k is None else address(k), address(v)),
            axes,
        )
    keep = (
        lengths(query_lengths, q.shape[0], "query_lengths"),
        lengths(key_lengths, q.shape[0], "key_lengths"),
        group_numbers(groups, q.shape),
    )
    of_queries, of_keys, of_groups = (None if x is None else x.ctypes.data for x in keep)
    inputs = Inputs(
        address(q),
        None if k is None else address(k),
        address(v),
        of_queries,
        of_keys,
        None,
        None,
        of_groups,
    )
    return Call(q, k, v, keep, inputs, axes)


def key_for(
    call: Call,
    kind: str,
    seed: int | None,
    scale: float | None,
    backward: bool,
    out: FloatArray | None = None,
) -> Key:
    """The properties that a plan depends on; rejects arrays that do not match."""
    if type(kind) is not str:
        _engine.refuse_kind(kind)
    q, k, v = call.q, call.k, call.v
    batch, heads, queries, dim = q.shape
    v_batch, kv_heads, keys, value_dim = v.shape
    of_q = layout(q, "q")
    of_v = layout(v, "v")
    if k is None:
        check_keys_given(kind)
        check_shapes(q.shape, q.shape, v.shape)
        of_k = of_q
    else:
        of_k = layout(k, "k")
        if (
            k.shape != (batch, kv_heads, keys, dim)
            or v_batch != batch
            or heads != kv_heads
        ):
            check_shapes(q.shape, k.shape, v.shape)
    dtype = q.dtype
    if dtype != v.dtype or (k is not None and k.dtype != dtype):
        of_keys = "" if k is None else f"k {k.dtype}, "
        raise ShoalError(
            f"q is {dtype}, {of_keys}v {v.dtype}: they must have the same type"
        )
    return key_of(
        (
            kind,
            seed,
            0.0 if scale is None else scale_for(scale),
            backward,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            dim,
            value_dim,
            of_q,
            of_k,
            of_v,
            _engine.CONTIGUOUS if out is None else layout(out, "out"),
            False,
            0.0,
            DTYPES[dtype],
        )
    )


def shorten(array: Any, axes: int) -> Any:
    """Removes the axes that four_axes added."""
    return array if axes == 4 else array.reshape(array.shape[4 - axes :])
