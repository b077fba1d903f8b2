"""Requirements on numpy arrays that are passed to the C library without a copy."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._engine import CONTIGUOUS, Layout, parse
from ._native import FLOAT16 as HALF, FLOAT32 as FLOAT, ShoalError, kind_rows

FloatArray = npt.NDArray[Any]  # float32 or float16
IntArray = npt.NDArray[np.int32]
Lengths = Union[int, Sequence[int], npt.NDArray[np.integer[Any]], None]

FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
DTYPES = {FLOAT32: FLOAT, FLOAT16: HALF}  # shoal_dtype
KEYS_ARE_QUERIES = tuple(
    kind for kind, row in enumerate(kind_rows()) if row.keys_are_queries
)
Shape = tuple[int, ...]


def four_axes(array: FloatArray, name: str) -> FloatArray:
    """[batch, heads, length, dim]; missing leading axes become 1."""
    if isinstance(array, (np.ma.MaskedArray, np.matrix)):
        raise ShoalError(
            f"{name} is a {type(array).__name__}: it must be a plain numpy array; use "
            "query_lengths and key_lengths for padding"
        )
    if not isinstance(array, np.ndarray):
        hint = " (shoal.torch is for tensors)" if hasattr(array, "data_ptr") else ""
        raise ShoalError(
            f"{name} is a {type(array).__name__}: it must be a numpy array of "
            f"float32 or float16{hint}"
        )
    if not 2 <= array.ndim <= 4:
        raise ShoalError(
            f"{name} has {array.ndim} axes: it must be [batch, heads, length, "
            "dim], [heads, length, dim] or [length, dim]"
        )
    return (
        array.reshape((1,) * (4 - array.ndim) + array.shape) if array.ndim < 4 else array
    )


def refuse_layout(array: FloatArray, name: str) -> None:
    """Raises an error that says why an array cannot be used."""
    if array.dtype not in DTYPES:
        raise ShoalError(
            f"{name} is {array.dtype}: it must be float32 or float16; convert it with "
            f"{name}.astype(numpy.float32)"
        )
    size = array.itemsize
    if not array.flags.aligned or any(stride % size for stride in array.strides):
        raise ShoalError(
            f"{name} is not aligned to {array.dtype} elements: copy it with "
            f"{name}.copy()"
        )
    if array.shape[3] > 1 and array.strides[3] != size:
        raise ShoalError(
            f"{name}'s last axis is not contiguous (stride {array.strides[3]} "
            f"bytes): copy it with numpy.ascontiguousarray({name})"
        )
    if min(array.strides[:3]) < 0:
        raise ShoalError(
            f"{name} has negative strides {array.strides}: copy it with "
            f"numpy.ascontiguousarray({name})"
        )
    if not any(array.strides[:3]):
        raise ShoalError(
            f"{name} is one row broadcast over every axis: copy it with "
            f"numpy.ascontiguousarray({name})"
        )


def layout(array: FloatArray, name: str) -> Layout:
    """Strides of an array in elements, as in shoal_strides."""
    flags, dtype = array.flags, array.dtype
    if (dtype is FLOAT32 or dtype is FLOAT16) and flags.c_contiguous and flags.aligned:
        return CONTIGUOUS
    shape, strides, size = array.shape, array.strides, array.itemsize
    # The stride of an axis of length 1 is irrelevant: use 1, so that not all are zero.
    batch, head, position = (strides[i] if shape[i] > 1 else size for i in range(3))
    if (
        dtype not in DTYPES
        or not flags.aligned
        or (batch | head | position) % size
        or (shape[3] > 1 and strides[3] != size)
        or min(batch, head, position) < 0
        or not batch | head | position
    ):
        refuse_layout(array, name)
    return batch // size, head // size, position // size


def address(array: Any) -> int:
    """Address of an array. array.ctypes.data takes three times as long."""
    if array.dtype is FLOAT32 and array.flags.carray and array.nbytes:
        return addressof(c_char.from_buffer(array))
    return int(array.ctypes.data)


def check_shapes(q: Shape, k: Shape, v: Shape) -> None:
    """Raises an error that names the shapes that do not match."""
    for name, shape in (("k", k), ("v", v)):
        if shape[0] != q[0]:
            raise ShoalError(f"{name} has batch {shape[0]}, q has {q[0]}")
    if k[3] != q[3]:
        raise ShoalError(f"k has dim {k[3]}, q has {q[3]}")
    if k[1:3] != v[1:3]:
        raise ShoalError(
            f"k has {k[1]} heads of {k[2]} positions, v has {v[1]} of {v[2]}"
        )
    if k[1] == 0 or q[1] % k[1]:
        raise ShoalError(f"k and v have {k[1]} heads, which must divide q's {q[1]} heads")


def check_keys_given(kind: str) -> None:
    if parse(kind).kind not in KEYS_ARE_QUERIES:
        raise ShoalError(
            f"k is None, but {kind} needs keys: only shared-full and lsh use "
            "the queries as keys"
        )


def lengths(values: Lengths, batch: int, name: str) -> npt.NDArray[np.int64] | None:
    """int64 [batch]; one integer applies to every sequence."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ShoalError(f"{name} holds {array.dtype}: it must hold integers")
    if array.ndim == 0:
        array = np.full(batch, array)
    if array.shape != (batch,):
        raise ShoalError(
            f"{name} has shape {array.shape}: it must be ({batch},), one length "
            "per sequence"
        )
    return np.array(array, dtype=np.int64)  # a copy: a plan keeps it for backward


def group_numbers(groups: Any, shape: tuple[int, ...]) -> IntArray | None:
    """int32 [batch, heads, queries]."""
    if groups is None:
        return None
    array = np.asarray(groups)
    if array.dtype.kind not in "iu" and array.size:
        raise ShoalError(f"groups holds {array.dtype}: it must hold integers")
    missing = 3 - array.ndim  # missing leading axes, as in q
    if missing < 0 or (1,) * missing + array.shape != shape[:3]:
        raise ShoalError(f"groups has shape {array.shape}: it must be {shape[:3]}")
    if array.size and (array.min() < -(1 << 31) or array.max() >= 1 << 31):
        raise ShoalError("groups holds numbers beyond 32 bits")
    return np.ascontiguousarray(array, dtype=np.int32)


def overlaps_itself(array: FloatArray) -> bool:
    """Whether two indices may name the same element."""
    if array.size == 0:
        return False
    reach = array.shape[3] * array.itemsize
    axes = (
        (abs(array.strides[i]), array.shape[i]) for i in range(3) if array.shape[i] > 1
    )
    for stride, count in sorted(axes):
        if stride < reach:
            return True
        reach = stride * (count - 1) + reach
    return False


def check_output(
    out: FloatArray, shape: Shape, inputs: Sequence[FloatArray | None]
) -> None:
    """Checks an output array: shape, writeable, no overlap with the inputs, and the type
    of the first input, q.
    """
    wanted = getattr(inputs[0], "dtype", FLOAT32)
    if not isinstance(out, np.ndarray) or out.dtype != wanted:
        raise ShoalError(
            f"out must be a {wanted} array, not {getattr(out, 'dtype', type(out))}"
        )
    if not out.flags.writeable:
        raise ShoalError("out is read-only")
    if out.shape != shape:
        raise ShoalError(f"out has shape {out.shape}: it must be {shape}")
    if overlaps_itself(out):
        raise ShoalError(
            "out's elements overlap: it cannot be a broadcast view"
        )
    for name, array in zip(("q", "k", "v"), inputs):
        if (
            array is not None
            and np.may_share_memory(out, array)
            and np.shares_memory(out, array)
        ):
            raise ShoalError(f"out overlaps {name}: use separate memory")


def empty_like_strides(array: FloatArray) -> FloatArray:
    """A new array with the strides of one that does not overlap itself."""
    if array.flags.c_contiguous:
        return np.empty(array.shape, array.dtype)
    size = array.itemsize
    elements = 1 + sum(
        (n - 1) * (s // size) for n, s in zip(array.shape, array.strides) if n > 1
    )
    memory = np.empty(max(elements, 1), array.dtype)
    return np.lib.stride_tricks.as_strided(memory, array.shape, array.strides)
