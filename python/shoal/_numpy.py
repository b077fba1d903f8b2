"""Functions on numpy arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import _checked, _engine
from ._arrays import FloatArray, IntArray, Lengths, address, check_output, four_axes
from ._arrays import overlaps_itself
from ._call import key_for, make_call, shorten
from ._engine import context_for
from ._native import ShoalError, kind_rows
from ._plan import ErrorEstimate, Gradients, Plan


class Kind(NamedTuple):
    """One kind of attention."""

    name: str
    defaults: str  # the spelling with all options
    cost: str
    summary: str
    keys_are_queries: bool
    has_clusters: bool
    has_top_keys: bool
    has_seed: bool


def attention(
    q: FloatArray,
    k: FloatArray | None,
    v: FloatArray,
    kind: str = "auto",
    *,
    scale: float | None = None,
    seed: int | None = None,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    groups: Any = None,
    threads: int | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """Attention of arrays [batch, heads, length, dim], without copying them.

    >>> import numpy as np, shoal
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 1, 4, 1000, 64), np.float32)
    >>> out = shoal.attention(q, k, v, "i-clustered-100:topk=32")
    >>> out.shape, out.dtype
    ((1, 4, 1000, 64), dtype('float32'))

    Arrays are float32 or float16, which is computed in float32 and rounded once. [heads,
    length, dim] and [length, dim] are accepted too. The number of heads of k and v must
    divide that of q. The last axis must be contiguous, and no stride negative; other
    arrays raise an error and are not copied.

    kind           a spelling; ``shoal.kinds()`` lists them. auto is full attention if
                   that is faster, and shoal from a few hundred positions on
    scale          of the scores; None is 1/sqrt(dim)
    seed           of the clusters; None is the kind's own (ignored by kinds without
                   randomness)
    query_lengths, key_lengths
                   [batch] integers, or one for all: later positions are padding, whose
                   output is 0
    groups         [batch, heads, queries] integers below the number of clusters, instead
                   of the clusters that the kind would find
    threads        None is one per processor, and 1 in a forked child
    out            output array, [batch, heads, queries, value_dim]

    k is None (or q itself) for shared-full and lsh, which use the queries as keys. Raises
    ShoalError, a ValueError, for invalid arguments, and MemoryError.
    """
    call = make_call(q, k, v, query_lengths, key_lengths, groups)
    if out is None:
        key = key_for(call, kind, seed, scale, False)
        result = np.empty((key.batch, key.heads, key.queries, key.value_dim), q.dtype)
    else:
        result = four_axes(out, "out")
        key = key_for(call, kind, seed, scale, False, result)
        check_output(
            result,
            (key.batch, key.heads, key.queries, key.value_dim),
            (call.q, call.k, call.v),
        )
    context_for(threads).plan(key).forward(call.inputs, address(result))
    return out if out is not None else shorten(result, call.axes)


def attention_grad(
    q: FloatArray,
    k: FloatArray | None,
    v: FloatArray,
    dout: FloatArray,
    kind: str = "auto",
    *,
    scale: float | None = None,
    seed: int | None = None,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    groups: Any = None,
    threads: int | None = None,
) -> Gradients:
    """Gradients (dq, dk, dv) of a loss whose gradient with respect to the output is dout.

    Runs forward and backward; ``Plan`` returns the output as well. dk is None if the kind
    uses the queries as keys (shared-full, lsh): dq is then the complete gradient.
    Broadcast views are copied, because a gradient cannot be written to one.

    >>> import numpy as np, shoal
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 50, 16), np.float32)
    >>> dq, dk, dv = shoal.attention_grad(q, k, v, np.ones_like(q), "full")
    >>> bool(abs(dv.sum(axis=1) - 50).max() < 1e-3)    # every row of weights sums to 1
    True
    """

    def own(array: FloatArray, name: str) -> FloatArray:
        overlapping = overlaps_itself(four_axes(array, name))
        return np.ascontiguousarray(array) if overlapping else array

    separate = None if k is None or k is q else own(k, "k")
    q = own(q, "q")
    k = q if k is not None and separate is None else separate
    v = own(v, "v")
    plan = Plan.like(
        q, k, v, kind, scale=scale, seed=seed, backward=True, threads=threads
    )
    plan.forward(
        q, k, v, query_lengths=query_lengths, key_lengths=key_lengths, groups=groups
    )
    return plan.backward(dout)


def groups(
    q: FloatArray,
    k: FloatArray | None,
    kind: str = "q-clustered-100",
    *,
    scale: float | None = None,
    seed: int | None = None,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    threads: int | None = None,
) -> IntArray:
    """The clusters of queries that a kind finds: int32, [batch, heads, queries].

    Padding has -1. They can be passed to ``attention(..., groups=...)``.

    >>> import numpy as np, shoal
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.standard_normal((2, 2, 300, 16), np.float32)
    >>> found = shoal.groups(q, k, "clustered-8")
    >>> found.shape, int(found.min()) >= 0, int(found.max()) < 8
    ((2, 300), True, True)
    """
    if type(kind) is not str:
        _engine.refuse_kind(kind)
    if not kind_rows()[_engine.parse(kind).kind].has_clusters:
        raise ShoalError(f"{kind} has no clusters of queries")
    keys = four_axes(q, "q") if k is None else four_axes(k, "k")
    v = np.zeros(keys.shape[:3] + (1,), keys.dtype)
    axes = q.ndim
    plan = Plan.like(
        q, k, shorten(v, axes), kind, scale=scale, seed=seed, threads=threads
    )
    plan.forward(
        q, k, shorten(v, axes), query_lengths=query_lengths, key_lengths=key_lengths
    )
    found = plan.groups
    assert found is not None
    return found if axes == 4 else found.reshape(found.shape[4 - axes :])


def error_estimate(
    q: FloatArray,
    k: FloatArray | None,
    v: FloatArray,
    out: FloatArray,
    kind: str = "full",
    *,
    samples: int = 256,
    sample_seed: int = 0,
    scale: float | None = None,
    query_lengths: Lengths = None,
    key_lengths: Lengths = None,
    threads: int | None = None,
) -> ErrorEstimate:
    """Estimates the error of an output from a sample of its queries.

    Exact attention is computed in double precision for ``samples`` queries, which costs
    samples x keys. Pass the kind that computed the output: for kinds with clusters,
    queries with a large expected error are then sampled more often, at the cost of
    another, better approximation, so that few samples are enough even if a handful of
    queries cause most of the error.

    >>> import numpy as np, shoal
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 1, 2, 600, 32), np.float32)
    >>> exact = shoal.error_estimate(q, k, v, shoal.attention(q, k, v, "full"))
    >>> exact.samples, exact.relative_error < 1e-5
    (256, True)
    >>> rough = shoal.error_estimate(q, k, v, shoal.attention(q, k, v, "clustered-10"))
    >>> rough.relative_error > 0.1
    True
    """
    samples = _checked.size("samples", samples)
    sample_seed = _checked.seed("sample_seed", sample_seed)
    call = make_call(q, k, v, query_lengths, key_lengths, None)
    given = four_axes(out, "out")
    key = key_for(call, kind, None, scale, False, given)
    expected = (key.batch, key.heads, key.queries, key.value_dim)
    if given.shape != expected:
        raise ShoalError(f"out has shape {given.shape}: it must be {expected}")
    if given.dtype != call.q.dtype:
        raise ShoalError(f"out is {given.dtype}: it must be {call.q.dtype}, like q")
    error = (
        context_for(threads)
        .plan(key)
        .error(call.inputs, given.ctypes.data, samples, sample_seed)
    )
    return ErrorEstimate(error.samples, error.relative_error, error.largest_error,
                         error.centred_error)


def kinds() -> list[Kind]:
    """All kinds of attention, with defaults, cost and a summary.

    >>> import shoal
    >>> [kind.name for kind in shoal.kinds()][:2]
    ['full', 'shared-full']
    """
    return [
        Kind(
            row.name.decode(),
            _engine.spell_all(row.defaults),
            row.cost.decode(),
            row.summary.decode(),
            bool(row.keys_are_queries),
            bool(row.has_clusters),
            bool(row.has_top_keys),
            bool(row.has_seed),
        )
        for row in kind_rows()
    ]


def spelling(kind: str, seed: int | None = None) -> str:
    """The shortest spelling of a kind; raises an error if it is invalid.

    >>> import shoal
    >>> shoal.spelling("i-clustered-25:topk=32,bits=63")
    'i-clustered-25'
    """
    _engine.refuse_kind(kind)
    return _engine.spell(_engine.parse(str(kind), seed))
