"""The operators shoal::attention and shoal::attention_backward, and the short way."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ._arrays import KEYS_ARE_QUERIES
from ._engine import parse
from ._native import GradientPointers, Inputs, ShoalError
from ._torch_tensors import StateMaker, check, check_state, exact_state, formula_state
from ._torch_tensors import layout_of_out, lengths_of, out_memory, plan_for, pointer
from ._torch_tensors import state_bytes


# ---- Forward -------------------------------------------------------------------------


def forward(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    kind: str,
    scale: float,
    query_lengths: Tensor | None,
    key_lengths: Tensor | None,
    make_state: StateMaker,
) -> tuple[Tensor, Tensor | None]:
    """(output, the state for its gradient); no state where none is made."""
    shapes = check(q, k, v, kind)
    out, of_out = out_memory(q, shapes)
    plan = plan_for(q, k, v, shapes, of_out, kind, scale, make_state is not None)
    inputs = Inputs(q.data_ptr(), None if k is None else k.data_ptr(), v.data_ptr())
    state = None
    if make_state is not None:
        state = make_state(plan)
        inputs.state = state.data_ptr()
    # The lengths must live until the call is over.
    if query_lengths is not None:
        query_lengths = lengths_of(query_lengths, q.shape[0], "query_lengths")
        inputs.query_lengths = query_lengths.data_ptr()
    if key_lengths is not None:
        key_lengths = lengths_of(key_lengths, q.shape[0], "key_lengths")
        inputs.key_lengths = key_lengths.data_ptr()
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
    state_format: int,
) -> tuple[Tensor, Tensor]:
    """(output, state); state_format is 0 for no state, else see state_format()."""
    maker = formula_state(q, v, kind) if state_format else None
    out, state = forward(q, k, v, kind, scale, query_lengths, key_lengths, maker)
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
    state_format: int,
) -> tuple[Tensor, Tensor]:
    shapes = check(q, k, v, kind)
    size = state_bytes(q, v, kind) if state_format else 0
    return out_memory(q, shapes)[0], q.new_empty(size, dtype=torch.uint8)


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
    shapes = check(q, k, v, kind)
    q, dq = _dense(q)
    v, dv = _dense(v)
    if k is None or parse(kind).kind in KEYS_ARE_QUERIES:
        k, dk = None, q.new_empty(0)
    else:
        k, dk = _dense(k)
    if dout.stride() != out.stride():
        dout = torch.empty_like(out).copy_(dout)
    plan = plan_for(q, k, v, shapes, layout_of_out(out), kind, scale, True)
    state = check_state(state, plan)
    if query_lengths is not None:
        query_lengths = lengths_of(query_lengths, q.shape[0], "query_lengths")
    if key_lengths is not None:
        key_lengths = lengths_of(key_lengths, q.shape[0], "key_lengths")
    plan.backward(
        Inputs(
            q.data_ptr(),
            pointer(k),
            v.data_ptr(),
            pointer(query_lengths),
            pointer(key_lengths),
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
    q, k, v, ctx.kind, ctx.scale, query_lengths, key_lengths, ctx.state_format = inputs
    ctx.save_for_backward(q, k, v, *output, query_lengths, key_lengths)


def _gradient(ctx: Any, dout: Tensor | None, _: Any) -> tuple[Any, ...]:
    q, k, v, out, state, query_lengths, key_lengths = ctx.saved_tensors
    nothing = (None,) * 5
    if dout is None:
        return None, None, None, *nothing
    if not ctx.state_format:
        raise ShoalError(
            "torch.ops.shoal.attention was called with state_format=0: there is "
            "nothing to compute a gradient from"
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
        out, state = forward(
            q, k, v, kind, scale, query_lengths, key_lengths, exact_state
        )
        ctx.kind, ctx.scale = kind, scale
        ctx.save_for_backward(q, k, v, out, state, query_lengths, key_lengths)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, k, v, out, state, query_lengths, key_lengths = ctx.saved_tensors
        # With create_graph the operator, which refuses to be differentiated once more.
        run = _attention_backward if torch.is_grad_enabled() else _backward
        dq, dk, dv = run(
            q, k, v, out, state, dout, ctx.kind, ctx.scale, query_lengths, key_lengths
        )
        shared = k is None or dk.shape != k.shape
        return dq, None if shared else dk, dv, None, None, None, None
