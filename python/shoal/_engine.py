"""Contexts and plans: one context per thread, and a small cache of plans in each.

A context belongs to one thread of one process. Threads never share one, so calls need no
lock and run in parallel (ctypes releases the GIL). A forked child creates its own, with
one thread each, because it is usually one of several, such as a DataLoader's workers.
Results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from functools import lru_cache, partial
from typing import Any, Callable, Dict, NamedTuple

from . import _checked
from ._native import FLOAT32, Attention, Error, GradientPointers, Inputs, Options
from ._native import Problem, ShoalError, Strides, WITH_BACKWARD, lib, raise_status

PLANS_KEPT = 16  # per context
BYTES_KEPT = 256 << 20  # total size of their workspaces

Layout = tuple[int, int, int]  # strides in elements; (0, 0, 0) for contiguous
CONTIGUOUS: Layout = (0, 0, 0)


class Key(NamedTuple):
    """The properties that a plan depends on, except its context."""

    kind: str
    seed: int | None
    scale: float  # 0 for 1/sqrt(dim)
    backward: bool
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    q: Layout = CONTIGUOUS
    k: Layout = CONTIGUOUS
    v: Layout = CONTIGUOUS
    out: Layout = CONTIGUOUS
    causal: bool = False
    dropout: float = 0.0
    dtype: int = FLOAT32  # of the arrays, a shoal_dtype


# Makes a Key from a complete tuple without Key's slower constructor; used in every call.
key_of: Callable[[tuple[Any, ...]], Key] = partial(tuple.__new__, Key)


def _openmp() -> tuple[int, int] | None:
    """Addresses of the OpenMP library's functions that run a parallel region, if the
    process has loaded one for all to see, as PyTorch does."""
    try:
        process = ctypes.CDLL(None)
        found = process.GOMP_parallel, process.omp_get_thread_num
    except (AttributeError, OSError, TypeError):
        return None
    parallel, number = (ctypes.cast(x, ctypes.c_void_p).value for x in found)
    return (parallel, number) if parallel and number else None


class Context:
    """Owns a shoal_context and the plans created with it."""

    __slots__ = ("handle", "plans", "latest", "bytes_kept", "__weakref__")

    def __init__(self, threads: int | None, borrows: bool = False) -> None:
        self.handle = None
        self.plans: OrderedDict[Key, NativePlan] = OrderedDict()
        # The plan used last, which is also in plans: comparing is faster than hashing.
        self.latest: tuple[Key | None, NativePlan | None] = None, None
        self.bytes_kept = 0
        options = Options(threads=_checked.threads(threads))
        handle = ctypes.c_void_p()
        status = lib.shoal_context_create(ctypes.byref(options), ctypes.byref(handle))
        self.handle = handle.value
        if status:
            raise_status(status, self.handle)
        functions = _openmp() if borrows else None
        if functions is not None:
            lib.shoal_context_borrow_threads(self.handle, *functions)

    def __del__(self) -> None:
        self.clear()
        if self.handle and lib is not None:
            lib.shoal_context_destroy(self.handle)

    def clear(self) -> None:
        """Removes the cached plans."""
        self.plans.clear()
        self.latest = None, None
        self.bytes_kept = 0

    def plan(self, key: Key) -> NativePlan:
        """The plan for a key, cached or new."""
        latest, plan = self.latest
        if plan is not None and latest == key:
            return plan
        plan = self.plans.get(key)
        if plan is not None:
            self.plans.move_to_end(key)
            self.latest = key, plan
            return plan
        plan = NativePlan(self, key)
        if plan.workspace <= BYTES_KEPT:
            self.plans[key] = plan
            self.latest = key, plan
            self.bytes_kept += plan.workspace
            while len(self.plans) > PLANS_KEPT or self.bytes_kept > BYTES_KEPT:
                self.bytes_kept -= self.plans.popitem(last=False)[1].workspace
        return plan


class OwnedPlan:
    """Owns a shoal_plan, if there is a handle; keeps its context alive."""

    __slots__ = ("handle", "context")

    def __init__(self, context: Context) -> None:
        self.handle: int | None = None
        self.context = context

    def __del__(self) -> None:
        if getattr(self, "handle", None) and lib is not None:
            lib.shoal_plan_destroy(self.handle)

    def check(self, status: int) -> None:
        if status:
            raise_status(status, self.context.handle)

    def forward(self, inputs: Inputs, out: int) -> None:
        status = lib.shoal_forward(self.handle, inputs, out)
        if status:
            raise_status(status, self.context.handle)

    def backward(self, inputs: Inputs, gradients: GradientPointers) -> None:
        self.check(lib.shoal_backward(self.handle, inputs, gradients))


def _strides(layout: Layout) -> Any:
    """A pointer to strides, or None for a contiguous array."""
    return ctypes.pointer(Strides(*layout)) if any(layout) else None


class NativePlan(OwnedPlan):
    """The plan of a single process."""

    __slots__ = ("attention", "workspace", "state_size")

    def __init__(self, context: Context, key: Key) -> None:
        super().__init__(context)
        self.attention = parse(key.kind, key.seed)
        problem = Problem(
            key.batch,
            key.heads,
            key.kv_heads,
            key.queries,
            key.keys,
            key.dim,
            key.value_dim,
            key.scale,
            0,
            key.causal,
            key.dropout,
            key.dtype,
            *(_strides(layout) for layout in (key.q, key.k, key.v, key.out)),
        )
        handle = ctypes.c_void_p()
        self.check(
            lib.shoal_plan_create(
                context.handle,
                ctypes.byref(problem),
                ctypes.byref(self.attention),
                WITH_BACKWARD if key.backward else 0,
                ctypes.byref(handle),
            )
        )
        self.handle = handle.value
        self.workspace: int = lib.shoal_plan_workspace(self.handle)
        self.state_size: int = lib.shoal_plan_state_size(self.handle)

    def picked(self) -> Attention:
        attention = Attention()
        self.check(lib.shoal_plan_picked(self.handle, None, ctypes.byref(attention)))
        return attention

    def error(self, inputs: Inputs, out: int, samples: int, seed: int) -> Error:
        error = Error()
        self.check(
            lib.shoal_error_estimate(
                self.handle, inputs, out, samples, seed, ctypes.byref(error)
            )
        )
        return error


def refuse_kind(kind: object) -> None:
    """Rejects anything that is not exactly a str."""
    if not isinstance(kind, str):
        raise ShoalError(
            f"kind is a {type(kind).__name__}: it must be a spelling such as "
            '"i-clustered-100:topk=32"; shoal.kinds() lists them'
        )


@lru_cache(maxsize=256)
def parse(kind: str, seed: int | None = None) -> Attention:
    """Parses a spelling; an explicit seed overrides the spelled one."""
    spelled = _checked.text("kind", kind)
    attention = Attention()
    context = context_for(1)
    status = lib.shoal_attention_parse(context.handle, spelled, ctypes.byref(attention))
    if status:
        raise_status(status, context.handle)
    if seed is not None:
        attention.seed = _checked.seed("seed", seed)
    return attention


def spell(attention: Attention) -> str:
    """The shortest spelling."""
    text = ctypes.create_string_buffer(256)
    lib.shoal_attention_print(ctypes.byref(attention), text, len(text))
    return text.value.decode()


def spell_all(attention: Attention) -> str:
    """The spelling with all options."""
    text = ctypes.create_string_buffer(256)
    lib.shoal_attention_print_all(ctypes.byref(attention), text, len(text))
    return text.value.decode()


class _Contexts(Dict[int, "Context"]):
    """The contexts of a thread. Plans and contexts refer to each other, and the garbage
    collector does not know how much memory they own: they are destroyed when the thread
    ends.
    """

    def __init__(self) -> None:
        self.process = os.getpid()

    def __del__(self) -> None:
        if self.process == os.getpid():  # a forked child does not free its parent's
            for context in self.values():
                context.clear()


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.contexts = _Contexts()


_mine = _PerThread()
_forked = False


def context_for(threads: int | None, borrows: bool = False) -> Context:
    """This thread's context with that number of threads; None or 0: one per processor.
    borrows: they are OpenMP's, so that OpenMP's waiting threads, of which there must be
    as many, do not take the cores from Shoal's."""
    if _forked:
        threads = 1
    contexts = _mine.contexts
    number = threads or 0
    key = ~number if borrows else number
    context = contexts.get(key)
    if context is None:
        context = contexts[key] = Context(threads, borrows)
    return context


def clear_cache() -> None:
    """Frees the plans that this thread keeps for repeated calls.

    Up to 16 plans of 256 MiB in total are kept per thread; the oldest are removed first.

    >>> import shoal
    >>> shoal.clear_cache()
    """
    for context in _mine.contexts.values():
        context.clear()


def is_forked() -> bool:
    """Whether this process is a forked child, which cannot use plans made before the
    fork.
    """
    return _forked


def _after_fork() -> None:
    global _forked, _mine
    _forked = True
    _left_behind.append(_mine)  # not freed: another thread may have been using it
    _mine = _PerThread()


_left_behind: list[_PerThread] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
