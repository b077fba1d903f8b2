"""The operators shoal::attention and shoal::attention_backward, and a direct path."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ._arrays import KEYS_ARE_QUERIES
from ._engine import parse
from ._native import GradientPointers, Inputs, ShoalError
from ._torch_tensors import StateMaker, check, check_state, exact_state, formula_state
from ._torch_tensors import is_of_keys, key_bias_of, layout_of_out, lengths_of
from ._torch_tensors import out_memory, pairs_of, plan_for, pointer, state_bytes


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
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(output, state for backward); the state is None if it is not needed."""
    shapes = check(q, k, v, kind)
    out, of_out = out_memory(q, shapes)
    plan = plan_for(
        q, k, v, shapes, of_out, kind, scale, make_state is not None, causal, dropout
    )
    inputs = Inputs(q.data_ptr(), None if k is None else k.data_ptr(), v.data_ptr())
    kept = set_masks(inputs, shapes, bias, mask, seed)  # alive until the call returns
    state = None
    if make_state is not None:
        state = make_state(plan)
        inputs.state = state.data_ptr()
    # The lengths must stay alive until the call returns.
    if query_lengths is not None:
        query_lengths = lengths_of(query_lengths, q.shape[0], "query_lengths")
        inputs.query_lengths = query_lengths.data_ptr()
    if key_lengths is not None:
        key_lengths = lengths_of(key_lengths, q.shape[0], "key_lengths")
        inputs.key_lengths = key_lengths.data_ptr()
    plan.forward(inputs, out.data_ptr())
    del kept
    return out, state


def set_masks(
    inputs: Inputs,
    shapes: tuple[torch.Size, torch.Size],
    bias: Tensor | None,
    mask: Tensor | None,
    seed: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Stores the arguments in the inputs; returns the tensors that own their memory."""
    (batch, heads, queries, _), keys = shapes[0], shapes[1][2]
    shape = batch, heads, queries, keys
    if bias is not None and is_of_keys(bias):
        bias, inputs.key_bias_strides = key_bias_of(bias, shape)
        inputs.key_bias = bias.data_ptr()
    elif bias is not None:
        bias, inputs.bias_strides = pairs_of(bias, shape, "bias")
        inputs.bias = bias.data_ptr()
    if mask is not None:
        mask, inputs.mask_strides = pairs_of(mask, shape, "mask")
        inputs.mask = mask.data_ptr()
    if seed is not None:
        inputs.dropout_seed = int(seed) & (1 << 64) - 1
    return bias, mask


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
    bias: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """(output, state); state_format is 0 for no state, else see state_format()."""
    maker = formula_state(q, v, kind) if state_format else None
    out, state = forward(
        q,
        k,
        v,
        kind,
        scale,
        query_lengths,
        key_lengths,
        maker,
        bias,
        mask,
        causal,
        dropout,
        seed,
    )
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
    bias: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    shapes = check(q, k, v, kind)
    size = state_bytes(q, v, kind) if state_format else 0
    return out_memory(q, shapes)[0], q.new_empty(size, dtype=torch.uint8)


# ---- Backward ------------------------------------------------------------------------


def _dense(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """(tensor, memory for its gradient) with the same strides; a tensor with gaps or
    overlaps, to which no gradient can be written, is copied.
    """
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
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    wants_dbias: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dk is empty if the kind uses the queries as keys: dq is then the complete gradient.
    dbias is empty if it is not needed.
    """
    shapes = check(q, k, v, kind)
    q, dq = _dense(q)
    v, dv = _dense(v)
    if k is None or parse(kind).kind in KEYS_ARE_QUERIES:
        k, dk = None, q.new_empty(0)
    else:
        k, dk = _dense(k)
    if dout.stride() != out.stride():
        dout = torch.empty_like(out).copy_(dout)
    plan = plan_for(
        q, k, v, shapes, layout_of_out(out), kind, scale, True, causal, dropout
    )
    state = check_state(state, plan)
    if query_lengths is not None:
        query_lengths = lengths_of(query_lengths, q.shape[0], "query_lengths")
    if key_lengths is not None:
        key_lengths = lengths_of(key_lengths, q.shape[0], "key_lengths")
    inputs = Inputs(
        q.data_ptr(),
        pointer(k),
        v.data_ptr(),
        pointer(query_lengths),
        pointer(key_lengths),
        None,
        None,
        None,
        state.data_ptr(),
    )
    kept = set_masks(inputs, shapes, bias, mask, seed)  # alive until the call returns
    whole, of_keys = None, bias is not None and is_of_keys(bias)
    if wants_dbias and bias is not None:
        batch, heads, queries, _ = shapes[0]
        rows = 1 if of_keys else queries
        whole = bias.new_empty(batch, heads, rows, shapes[1][2])
    plan.backward(
        inputs,
        GradientPointers(
            out.data_ptr(),
            dout.data_ptr(),
            dq.data_ptr(),
            None if k is None else dk.data_ptr(),
            dv.data_ptr(),
            None if of_keys else pointer(whole),
            pointer(whole) if of_keys else None,
        ),
    )
    del kept
    return dq, dk, dv, _summed(whole, bias, q)


def _summed(whole: Tensor | None, bias: Tensor | None, q: Tensor) -> Tensor:
    """The gradient of a bias, summed along its broadcast axes."""
    if whole is None or bias is None:
        return q.new_empty(0)
    if whole.shape == bias.shape and bias.is_contiguous():
        return whole
    return torch.empty_like(bias).copy_(whole.sum_to_size(bias.shape))


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
    bias: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Optional[Tensor] = None,
    wants_dbias: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _backward(
        q,
        k,
        v,
        out,
        state,
        dout,
        kind,
        scale,
        query_lengths,
        key_lengths,
        bias,
        mask,
        causal,
        dropout,
        seed,
        wants_dbias,
    )


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
    bias: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Optional[Tensor] = None,
    wants_dbias: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shared = k is None or parse(kind).kind in KEYS_ARE_QUERIES
    dk = q.new_empty(0) if shared else torch.empty_like(k)  # type: ignore[arg-type]
    dbias = q.new_empty(0)
    if bias is not None and wants_dbias:
        dbias = torch.empty_like(bias)
    return torch.empty_like(q), dk, torch.empty_like(v), dbias


def _keep_for_backward(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]
) -> None:
    q, k, v, ctx.kind, ctx.scale, query_lengths, key_lengths, ctx.state_format = inputs[
        :8
    ]
    bias, mask, ctx.causal, ctx.dropout, seed = inputs[8:]
    ctx.save_for_backward(q, k, v, *output, query_lengths, key_lengths, bias, mask, seed)


def _gradient(ctx: Any, dout: Tensor | None, _: Any) -> tuple[Any, ...]:
    nothing = (None,) * 5
    if dout is None:
        return None, None, None, *nothing, *nothing
    if not ctx.state_format:
        raise ShoalError(
            "torch.ops.shoal.attention was called with state_format=0: there is no "
            "state to compute a gradient from"
        )
    dq, dk, dv, dbias = _run_backward(ctx, dout, _attention_backward, 8)
    return dq, dk, dv, *nothing, dbias, None, None, None, None


def _run_backward(ctx: Any, dout: Tensor, run: Any, bias_at: int) -> tuple[Any, ...]:
    """dq, dk, dv, dbias; None for those that do not exist. The bias is input
    `bias_at`."""
    q, k, v, out, state, query_lengths, key_lengths, bias, mask, seed = ctx.saved_tensors
    dq, dk, dv, dbias = run(
        q,
        k,
        v,
        out,
        state,
        dout,
        ctx.kind,
        ctx.scale,
        query_lengths,
        key_lengths,
        bias,
        mask,
        ctx.causal,
        ctx.dropout,
        seed,
        bias is not None and ctx.needs_input_grad[bias_at],
    )
    shared = k is None or dk.shape != k.shape
    unwanted = bias is None or dbias.shape != bias.shape
    return dq, None if shared else dk, dv, None if unwanted else dbias


attend.register_autograd(_gradient, setup_context=_keep_for_backward)


class Direct(torch.autograd.Function):
    """The operator without the dispatcher, for plain tensors that nothing traces: the
    dispatcher would cost more than a small attention.
    """

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
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        seed: Tensor | None = None,
    ) -> Tensor:
        out, state = forward(
            q,
            k,
            v,
            kind,
            scale,
            query_lengths,
            key_lengths,
            exact_state,
            bias,
            mask,
            causal,
            dropout,
            seed,
        )
        ctx.kind, ctx.scale, ctx.causal, ctx.dropout = kind, scale, causal, dropout
        ctx.save_for_backward(
            q, k, v, out, state, query_lengths, key_lengths, bias, mask, seed
        )
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        # With create_graph, use the operator, which rejects a second derivative.
        run = _attention_backward if torch.is_grad_enabled() else _backward
        dq, dk, dv, dbias = _run_backward(ctx, dout, run, 7)
        return dq, dk, dv, None, None, None, None, dbias, None, None, None, None
