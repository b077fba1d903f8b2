"""The operators shoal::attention, shoal::attention_backward and shoal::prefix_lengths."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._arrays import KEYS_ARE_QUERIES, check_shapes
from ._engine import CONTIGUOUS, Key, Layout, NativePlan, context_for, parse
from ._native import GradientPointers, Inputs, ShoalError

ALIGNMENT = 64  # of a state, in bytes
PLAIN = (Tensor, torch.nn.Parameter)
PROBE = 1 << 14  # positions; long enough that the rounding of sizes does not matter


# ---- What tensors must be ------------------------------------------------------------


def _refuse_tensor(tensor: Tensor, name: str) -> None:
    """Says why a tensor cannot be used as it is."""
    if tensor.device.type != "cpu":
        raise ShoalError(
            f"{name} is on {tensor.device}: Shoal runs on the CPU; move it with "
            f"{name}.cpu()"
        )
    if tensor.dtype != torch.float32:
        raise ShoalError(
            f"{name} is {tensor.dtype}: it must be float32; {name}.float() makes it so"
        )
    if tensor.layout != torch.strided or tensor.dim() != 4:
        raise ShoalError(
            f"{name} must be a plain tensor [batch, heads, length, dim], not one "
            f"of {tensor.dim()} axes and layout {tensor.layout}"
        )


def _layout(tensor: Tensor, name: str) -> Layout:
    if tensor.is_contiguous():
        return CONTIGUOUS
    shape, strides = tensor.shape, tensor.stride()
    # The stride of an axis of one element means nothing: 1, which is never all zero.
    batch, head, position = (strides[i] if shape[i] > 1 else 1 for i in range(3))
    if (shape[3] > 1 and strides[3] != 1) or not batch | head | position:
        raise ShoalError(
            f"{name}'s last axis is not contiguous, or {name} is one row expanded "
            f"over every axis (strides {strides}): use {name}.contiguous()"
        )
    return batch, head, position


def _check(q: Tensor, k: Tensor | None, v: Tensor, kind: str) -> None:
    """Refuses what does not fit. Fake tensors come here too."""
    for tensor, name in ((q, "q"), (k, "k"), (v, "v")):
        if tensor is not None and (
            tensor.dtype is not torch.float32 or tensor.dim() != 4 or not tensor.is_cpu
        ):
            _refuse_tensor(tensor, name)
    if k is None and parse(kind).kind not in KEYS_ARE_QUERIES:
        raise ShoalError(
            f"k is None, but {kind} needs keys: only shared-full and lsh take "
            "the queries for keys"
        )
    keys = q if k is None else k
    if not (q.shape == keys.shape == v.shape):
        check_shapes(tuple(q.shape), tuple(keys.shape), tuple(v.shape))


def _plan(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    out: Tensor,
    kind: str,
    scale: float,
    backward: bool,
) -> NativePlan:
    batch, heads, queries, dim = q.shape
    _, kv_heads, keys, value_dim = v.shape
    of_q = _layout(q, "q")
    key = Key(
        kind,
        None,
        scale,
        backward,
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        dim,
        value_dim,
        of_q,
        of_q if k is None else _layout(k, "k"),
        _layout(v, "v"),
        _layout(out, "out"),
    )
    return context_for(torch.get_num_threads()).plan(key)


def _out_memory(q: Tensor, v: Tensor) -> Tensor:
    """[batch, heads, queries, value_dim], lying as [batch][queries][heads][value_dim]:
    what follows an attention is nearly always the joining of its heads."""
    batch, heads, queries, _ = q.shape
    dim = v.shape[3]
    return torch.empty_strided(
        (batch, heads, queries, dim),
        (queries * heads * dim, dim, heads * dim, 1),
        dtype=torch.float32,
        device=q.device,
    )


# ---- The state that goes from forward to backward ------------------------------------


@lru_cache(maxsize=256)
def _state_rate(kind: str, dim: int, value_dim: int) -> tuple[int, int]:
    """Bytes of one head's state: (per position, fixed), both rounded up.

    Taken from two plans, so that a state's size is a formula of the shapes, which
    torch.compile can trace where shapes are symbols.
    """

    def size(positions: int) -> int:
        key = Key(kind, None, 0.0, True, 1, 1, 1, positions, positions, dim, value_dim)
        return NativePlan(context_for(1), key).state_size

    short, long = size(PROBE), size(2 * PROBE)
    per_position = -(-(long - short + 16 * ALIGNMENT) // PROBE)
    fixed = max(0, short - (long - short)) + 64 * per_position + 16 * ALIGNMENT
    return per_position, fixed


def _state_bytes(q: Tensor, v: Tensor, kind: str) -> int:
    per_position, fixed = _state_rate(kind, int(q.shape[3]), int(v.shape[3]))
    longer = torch.sym_max  # untyped in PyTorch
    positions: int = longer(q.shape[2], v.shape[2])  # type: ignore[no-untyped-call]
    return q.shape[0] * q.shape[1] * (per_position * positions + fixed) + 16 * ALIGNMENT


def _aligned_state(size: int) -> Tensor:
    """Zeros, so that what forward leaves alone is the same in every run."""
    state = torch.zeros(size, dtype=torch.uint8)
    shift = -state.data_ptr() % ALIGNMENT
    if shift:
        state = torch.zeros(size + ALIGNMENT, dtype=torch.uint8)
        shift = -state.data_ptr() % ALIGNMENT
        state = state[shift : shift + size]
    return state


def _check_state(state: Tensor, plan: NativePlan) -> Tensor:
    if state.numel() < plan.state_size:
        raise ShoalError(
            "this output was computed without what its gradient needs: call "
            "shoal.torch.attention where gradients are enabled"
        )
    if state.data_ptr() % ALIGNMENT:
        state = _aligned_state(state.numel()).copy_(state)
    return state


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _lengths(lengths: Tensor | None, batch: int, name: str) -> Tensor | None:
    if lengths is None:
        return None
    if (
        lengths.dtype != torch.int64
        or tuple(lengths.shape) != (batch,)
        or lengths.device.type != "cpu"
    ):
        raise ShoalError(
            f"{name} is {lengths.dtype} of shape {tuple(lengths.shape)} on "
            f"{lengths.device}: it must be int64 [{batch}] on the CPU"
        )
    return lengths.contiguous()


# ---- Forward -------------------------------------------------------------------------


def forward(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    kind: str,
    scale: float,
    query_lengths: Tensor | None,
    key_lengths: Tensor | None,
    with_state: bool,
) -> tuple[Tensor, Tensor | None]:
    _check(q, k, v, kind)
    out = _out_memory(q, v)
    plan = _plan(q, k, v, out, kind, scale, with_state)
    inputs = Inputs(q.data_ptr(), _pointer(k), v.data_ptr())
    state = None
    if with_state:
        state = _aligned_state(_state_bytes(q, v, kind))
        if state.numel() < plan.state_size:
            raise RuntimeError(
                f"shoal: the state of {kind} needs {plan.state_size} bytes, "
                f"and {state.numel()} were expected"
            )
        inputs.state = state.data_ptr()
    # The tensors must live until the call is over.
    of_queries = _lengths(query_lengths, q.shape[0], "query_lengths")
    of_keys = _lengths(key_lengths, q.shape[0], "key_lengths")
    inputs.query_lengths, inputs.key_lengths = _pointer(of_queries), _pointer(of_keys)
    plan.forward(inputs, out.data_ptr())
    return out, state


@torch.library.custom_op("shoal::attention", mutates_args=())
def attend(
    q: Tensor,
    k: Optional[Tensor],
    v: Tensor,
    kind: str,
    scale: float,
    query_lengths: Optional[Tensor],
    key_lengths: Optional[Tensor],
    with_state: bool,
) -> tuple[Tensor, Tensor]:
    out, state = forward(q, k, v, kind, scale, query_lengths, key_lengths, with_state)
    return out, q.new_empty(0, dtype=torch.uint8) if state is None else state


@attend.register_fake
def _(
    q: Tensor,
    k: Optional[Tensor],
    v: Tensor,
    kind: str,
    scale: float,
    query_lengths: Optional[Tensor],
    key_lengths: Optional[Tensor],
    with_state: bool,
) -> tuple[Tensor, Tensor]:
    _check(q, k, v, kind)
    size = _state_bytes(q, v, kind) if with_state else 0
    return _out_memory(q, v), q.new_empty(size, dtype=torch.uint8)


# ---- Backward ------------------------------------------------------------------------


def _dense(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """(the tensor, room for its gradient) with the same strides; a tensor with gaps or
    overlaps, where no gradient can be written, is copied."""
    gradient = torch.empty_like(tensor)
    if gradient.stride() != tensor.stride():
        tensor = torch.empty_like(gradient).copy_(tensor)
    return tensor, gradient


def _backward(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    out: Tensor,
    state: Tensor,
    dout: Tensor,
    kind: str,
    scale: float,
    query_lengths: Tensor | None,
    key_lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dk is empty where the keys are the queries: dq is the whole gradient then."""
    _check(q, k, v, kind)
    q, dq = _dense(q)
    v, dv = _dense(v)
    if k is None or parse(kind).kind in KEYS_ARE_QUERIES:
        k, dk = None, q.new_empty(0)
    else:
        k, dk = _dense(k)
    if dout.stride() != out.stride():
        dout = torch.empty_like(out).copy_(dout)
    plan = _plan(q, k, v, out, kind, scale, True)
    state = _check_state(state, plan)
    of_queries = _lengths(query_lengths, q.shape[0], "query_lengths")
    of_keys = _lengths(key_lengths, q.shape[0], "key_lengths")
    plan.backward(
        Inputs(
            q.data_ptr(),
            _pointer(k),
            v.data_ptr(),
            _pointer(of_queries),
            _pointer(of_keys),
            None,
            None,
            None,
            state.data_ptr(),
        ),
        GradientPointers(
            out.data_ptr(),
            dout.data_ptr(),
            dq.data_ptr(),
            None if k is None else dk.data_ptr(),
            dv.data_ptr(),
        ),
    )
    return dq, dk, dv


@torch.library.custom_op("shoal::attention_backward", mutates_args=())
def _attention_backward(
    q: Tensor,
    k: Optional[Tensor],
    v: Tensor,
    out: Tensor,
    state: Tensor,
    dout: Tensor,
    kind: str,
    scale: float,
    query_lengths: Optional[Tensor],
    key_lengths: Optional[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(q, k, v, out, state, dout, kind, scale, query_lengths, key_lengths)


@_attention_backward.register_fake
def _(
    q: Tensor,
    k: Optional[Tensor],
    v: Tensor,
    out: Tensor,
    state: Tensor,
    dout: Tensor,
    kind: str,
    scale: float,
    query_lengths: Optional[Tensor],
    key_lengths: Optional[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    shared = k is None or parse(kind).kind in KEYS_ARE_QUERIES
    dk = q.new_empty(0) if shared else torch.empty_like(k)  # type: ignore[arg-type]
    return torch.empty_like(q), dk, torch.empty_like(v)


def _keep_for_backward(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]
) -> None:
    q, k, v, ctx.kind, ctx.scale, query_lengths, key_lengths, ctx.with_state = inputs
    ctx.save_for_backward(q, k, v, *output, query_lengths, key_lengths)


def _gradient(ctx: Any, dout: Tensor | None, _: Any) -> tuple[Any, ...]:
    q, k, v, out, state, query_lengths, key_lengths = ctx.saved_tensors
    nothing = (None,) * 5
    if dout is None:
        return None, None, None, *nothing
    if not ctx.with_state:
        raise ShoalError(
            "torch.ops.shoal.attention was called with with_state=False: there "
            "is nothing to compute a gradient from"
        )
    dq, dk, dv = _attention_backward(
        q, k, v, out, state, dout, ctx.kind, ctx.scale, query_lengths, key_lengths
    )
    return dq, None if k is None or dk.shape != k.shape else dk, dv, *nothing


attend.register_autograd(_gradient, setup_context=_keep_for_backward)


class Direct(torch.autograd.Function):
    """What the operator does, without the way through the dispatcher: for plain tensors
    that nothing traces, where that way would cost more than a small attention."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor | None,
        v: Tensor,
        kind: str,
        scale: float,
        query_lengths: Tensor | None,
        key_lengths: Tensor | None,
    ) -> Tensor:
        out, state = forward(q, k, v, kind, scale, query_lengths, key_lengths, True)
        ctx.kind, ctx.scale = kind, scale
        ctx.save_for_backward(q, k, v, out, state, query_lengths, key_lengths)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, k, v, out, state, query_lengths, key_lengths = ctx.saved_tensors
        dq, dk, dv = _backward(
            q, k, v, out, state, dout, ctx.kind, ctx.scale, query_lengths, key_lengths
        )
        shared = k is None or dk.shape != k.shape
        return dq, None if shared else dk, dv, None, None, None, None


def nothing_traces(q: Tensor, k: Tensor | None, v: Tensor) -> bool:
    """Whether the tensors are plain and no mode or transformation watches."""
    return (
        type(q) in PLAIN
        and type(v) in PLAIN
        and (k is None or type(k) in PLAIN)
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )
