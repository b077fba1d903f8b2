"""shoal.Plan: a problem that is planned once and run many times."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from . import _checked, _engine
from ._arrays import DTYPES, FLOAT32, KEYS_ARE_QUERIES, FloatArray, IntArray, Lengths
from ._arrays import Shape, address, check_output, empty_like_strides, four_axes, layout
from ._arrays import overlaps_itself
from ._call import Call, key_for, make_call, scale_for, shorten
from ._engine import Key, NativePlan
from ._handle import Handle
from ._native import Attention, GradientPointers, ShoalError, lib


class Gradients(NamedTuple):
    """Gradients of the loss; dk is None if the kind uses the queries as keys."""

    dq: FloatArray
    dk: Optional[FloatArray]
    dv: FloatArray


class ErrorEstimate(NamedTuple):
    """Error of an output relative to exact attention, over a sample of queries."""

    samples: int
    relative_error: float
    largest_error: float
    centred_error: float


class Plan(Handle):
    """An attention for one shape: checked and allocated once, then run.

    ``shoal.attention`` caches plans itself. Use a Plan to get its clusters, its gradient
    without a second forward, or its memory in advance.

    >>> import numpy as np, shoal
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 4, 500, 16), np.float32)
    >>> plan = shoal.Plan("i-clustered-20:topk=8", batch=2, heads=4, queries=500,
    ...                   keys=500, dim=16, backward=True)
    >>> out = plan.forward(q, k, v)
    >>> dq, dk, dv = plan.backward(np.ones_like(out))
    >>> plan.groups.shape, plan.top_keys.shape, plan.workspace > 0
    ((2, 4, 500), (2, 4, 20, 8), True)

    Arrays are contiguous [batch, heads, length, dim]; use ``Plan.like`` for other
    strides. Threads that share a plan wait for each other. close() releases its memory.
    Pickling keeps the arguments of the plan, not its memory.
    """

    _what = "the plan"

    def __init__(
        self,
        kind: str,
        *,
        batch: int,
        heads: int,
        queries: int,
        keys: int,
        dim: int,
        value_dim: int | None = None,
        kv_heads: int | None = None,
        scale: float | None = None,
        seed: int | None = None,
        backward: bool = False,
        threads: int | None = None,
        dtype: Any = FLOAT32,
    ) -> None:
        if type(kind) is not str:
            _engine.refuse_kind(kind)
        if np.dtype(dtype) not in DTYPES:
            raise ShoalError(f"dtype is {dtype}: it must be float32 or float16")
        size = _checked.size
        self._plan_for(
            Key(
                kind,
                seed,
                scale_for(scale),
                bool(backward),
                size("batch", batch),
                size("heads", heads),
                size("kv_heads", heads if kv_heads is None else kv_heads),
                size("queries", queries),
                size("keys", keys),
                size("dim", dim),
                size("value_dim", dim if value_dim is None else value_dim),
                dtype=DTYPES[np.dtype(dtype)],
            ),
            threads,
        )

    @classmethod
    def like(
        cls,
        q: FloatArray,
        k: FloatArray | None,
        v: FloatArray,
        kind: str = "auto",
        *,
        scale: float | None = None,
        seed: int | None = None,
        backward: bool = False,
        threads: int | None = None,
    ) -> Plan:
        """A plan for arrays with the shapes and the strides of these.

        >>> import numpy as np, shoal
        >>> qkv = np.zeros((2, 300, 3, 4, 16), np.float32)  # one projection's output
        >>> q, k, v = qkv.transpose(2, 0, 3, 1, 4)          # three views of it
        >>> shoal.Plan.like(q, k, v, "full").forward(q, k, v).shape
        (2, 4, 300, 16)
        """
        call = make_call(q, k, v, None, None, None)
        plan = cls.__new__(cls)
        plan._plan_for(key_for(call, kind, seed, scale, backward), threads)
        return plan

    def _plan_for(self, key: Key, threads: int | None) -> None:
        self._key, self._threads = key, threads
        self._make()
        self._start()

    def _make(self) -> None:
        # A separate context: the thread that created it may not be the one that runs it.
        context = _engine.Context(1 if _engine.is_forked() else self._threads)
        self._plan: NativePlan | None = NativePlan(context, self._key)
        self._last: Call | None = None
        self._out: FloatArray | None = None

    def _after_fork(self) -> None:
        """A forked child creates its own plan, with one thread and a new lock, and leaves
        the parent's plan alone.
        """
        _left_behind.append(self._plan)
        self._make()
        self._start()

    def _free(self) -> None:
        self._plan = self._last = self._out = None

    @contextmanager
    def _native(self) -> Iterator[NativePlan]:
        """The native plan, reserved for this thread."""
        with self._turn():
            assert self._plan is not None
            yield self._plan

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (tuple(self._key), self._threads)

    def __repr__(self) -> str:
        key = self._key
        return (
            f"<shoal.Plan {key.kind}: {key.batch} x {key.heads} heads, {key.queries} "
            f"queries, {key.keys} keys, {key.dim} -> {key.value_dim}>"
        )

    @property
    def workspace(self) -> int:
        """Bytes allocated by the plan."""
        with self._native() as native:
            return native.workspace

    def forward(
        self,
        q: FloatArray,
        k: FloatArray | None,
        v: FloatArray,
        *,
        query_lengths: Lengths = None,
        key_lengths: Lengths = None,
        groups: Any = None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """The output of the attention; the arguments are those of shoal.attention."""
        call = make_call(q, k, v, query_lengths, key_lengths, groups)
        own = self._key
        key = key_for(call, own.kind, own.seed, own.scale or None, own.backward)
        if key != own:
            raise ShoalError(
                f"the arrays do not match the plan: it has {_about(own)}; they have "
                f"{_about(key)} (Plan.like plans for given strides)"
            )
        shape: Shape = (key.batch, key.heads, key.queries, key.value_dim)
        if out is None:
            result = np.empty(shape, call.q.dtype)
        else:
            result = four_axes(out, "out")
            check_output(result, shape, (call.q, call.k, call.v))
            if not result.flags.c_contiguous:
                raise ShoalError("out of a plan must be contiguous")
        with self._native() as native:
            native.forward(call.inputs, address(result))
            self._last, self._out = call, result
        return out if out is not None else shorten(result, call.axes)

    def backward(self, dout: FloatArray) -> Gradients:
        """Gradients for the gradient of the last forward's output.

        Each has the strides of its input. Clusters and exact keys are constants;
        everything else is differentiated exactly.
        """
        with self._native() as native:
            call, out = self._last, self._out
            if call is None or out is None:
                raise ShoalError("call forward before backward, in the same process")
            dout = four_axes(dout, "dout")
            if dout.shape != out.shape:
                raise ShoalError(f"dout has shape {dout.shape}: out has {out.shape}")
            if dout.dtype != out.dtype:
                raise ShoalError(f"dout is {dout.dtype}: it must be {out.dtype}")
            dout = np.ascontiguousarray(dout)
            shared = native.attention.kind in KEYS_ARE_QUERIES
            dq, dk, dv = _room_for_gradients(call, shared)
            native.backward(
                call.inputs,
                GradientPointers(
                    out.ctypes.data,
                    dout.ctypes.data,
                    dq.ctypes.data,
                    None if dk is None else dk.ctypes.data,
                    dv.ctypes.data,
                ),
            )
        axes = call.axes
        return Gradients(
            shorten(dq, axes),
            None if dk is None else shorten(dk, axes),
            shorten(dv, axes),
        )

    def error_estimate(
        self, out: FloatArray | None = None, *, samples: int = 256, seed: int = 0
    ) -> ErrorEstimate:
        """The error of the last forward's output; see shoal.error_estimate."""
        samples, seed = _checked.size("samples", samples), _checked.seed("seed", seed)
        with self._native() as native:
            call = self._last
            if call is None or self._out is None:
                raise ShoalError(
                    "call forward before error_estimate, in the same process"
                )
            given = self._out if out is None else four_axes(out, "out")
            if (
                given.shape != self._out.shape
                or layout(given, "out") != _engine.CONTIGUOUS
            ):
                raise ShoalError(f"out must be contiguous, of shape {self._out.shape}")
            error = native.error(call.inputs, given.ctypes.data, samples, seed)
        return ErrorEstimate(error.samples, error.relative_error, error.largest_error,
                             error.centred_error)

    @property
    def groups(self) -> IntArray | None:
        """int32 [batch, heads, queries]: clusters of the last forward, -1 for padding;
        None for kinds without clusters.
        """
        key = self._key
        return self._copy(lib.shoal_plan_clusters, lambda _: (key.queries,))

    @property
    def top_keys(self) -> IntArray | None:
        """int32 [batch, heads, clusters, topk]: exact keys of each cluster; None for
        kinds without. Sizes that depend on the problem are those of this plan.
        """
        return self._copy(
            lib.shoal_plan_top_keys, lambda picked: (picked.clusters, picked.topk)
        )

    @property
    def picked(self) -> str:
        """The spelling of the kind that the last forward used: the one that auto picked,
        or the plan's own.

        >>> import numpy as np, shoal
        >>> q = k = v = np.zeros((1, 1, 50, 16), np.float32)
        >>> plan = shoal.Plan.like(q, k, v, "auto")
        >>> out = plan.forward(q, k, v)
        >>> plan.picked
        'full'
        """
        with self._native() as native:
            if self._last is None:
                raise ShoalError("call forward before picked, in the same process")
            return _engine.spell(native.picked())

    def _copy(
        self, function: Any, shape: Callable[[Attention], tuple[int, ...]]
    ) -> IntArray | None:
        """Copies the array that a function of the library returns: [batch, heads,
        *shape].
        """
        with self._native() as native:
            if self._last is None:
                raise ShoalError("call forward before groups and top_keys")
            pointer = function(native.handle, None)
            if not pointer:
                return None
            key = self._key
            result = np.empty((key.batch, key.heads, *shape(native.picked())), np.int32)
            ctypes.memmove(result.ctypes.data, pointer, result.nbytes)
        return result


_left_behind: list[Any] = []  # plans of a parent, never freed in a child


def _room_for_gradients(
    call: Call, shared: bool
) -> tuple[FloatArray, FloatArray | None, FloatArray]:
    """Arrays with the strides of q, k and v; no dk if the kind uses the queries as
    keys."""
    for name, array in (("q", call.q), ("k", call.k), ("v", call.v)):
        if array is not None and overlaps_itself(array):
            raise ShoalError(
                f"{name} is a broadcast or overlapping view, to which a gradient "
                f"cannot be written: copy it with numpy.ascontiguousarray({name})"
            )
    dk = None if call.k is None or shared else empty_like_strides(call.k)
    return empty_like_strides(call.q), dk, empty_like_strides(call.v)


def _about(key: Key) -> str:
    return (
        f"batch {key.batch}, {key.heads} heads ({key.kv_heads} of k and v), "
        f"{key.queries} queries, {key.keys} keys, dims {key.dim} and {key.value_dim}, "
        f"strides {key.q}, {key.k}, {key.v}, "
        f"{'float16' if key.dtype else 'float32'}"
    )


def _rebuild(key: tuple[Any, ...], threads: int | None) -> Plan:
    plan = Plan.__new__(Plan)
    plan._plan_for(Key(*key), threads)
    return plan
