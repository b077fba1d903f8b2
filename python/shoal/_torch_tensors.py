"""Requirements on tensors that are passed to the C library, and the plan and state of a
call.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from ._arrays import KEYS_ARE_QUERIES, check_shapes
from ._engine import CONTIGUOUS, Key, Layout, NativePlan, context_for, key_of, parse
from ._native import BFLOAT16, FLOAT16, FLOAT32, PairStrides, ShoalError, Strides

ALIGNMENT = 64  # of a state, in bytes
PLAIN = (Tensor, torch.nn.Parameter)
DTYPES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
# Numbers of positions; at the largest ones the rounding of sizes does not matter.
PROBES = tuple(1 << exponent for exponent in range(16))
StateMaker = Optional[Callable[[NativePlan], Tensor]]


# ---- Requirements on tensors ---------------------------------------------------------


def refuse_tensor(tensor: Tensor, name: str) -> None:
    """Raises an error that says why a tensor cannot be used."""
    if tensor.device.type != "cpu":
        raise ShoalError(
            f"{name} is on {tensor.device}: Shoal runs on the CPU; move it with "
            f"{name}.cpu()"
        )
    if tensor.dtype not in DTYPES:
        raise ShoalError(
            f"{name} is {tensor.dtype}: it must be float32, float16 or bfloat16; "
            f"convert it with {name}.float()"
        )
    if tensor.layout != torch.strided or tensor.dim() != 4:
        raise ShoalError(
            f"{name} must be a plain tensor [batch, heads, length, dim], not one "
            f"of {tensor.dim()} axes and layout {tensor.layout}"
        )


def layout(tensor: Tensor, name: str) -> Layout:
    if tensor.is_contiguous():
        return CONTIGUOUS
    shape, strides = tensor.shape, tensor.stride()
    # The stride of an axis of length 1 is irrelevant: use 1, so that not all are zero.
    batch = strides[0] if shape[0] > 1 else 1
    head = strides[1] if shape[1] > 1 else 1
    position = strides[2] if shape[2] > 1 else 1
    if (shape[3] > 1 and strides[3] != 1) or not batch | head | position:
        raise ShoalError(
            f"{name}'s last axis is not contiguous, or {name} is one row expanded "
            f"over every axis (strides {strides}): use {name}.contiguous()"
        )
    return batch, head, position


def check(
    q: Tensor, k: Tensor | None, v: Tensor, kind: str
) -> tuple[torch.Size, torch.Size]:
    """The shapes of q and v; rejects shapes that do not match. Also called with fake
    tensors.
    """
    for tensor, name in ((q, "q"), (k, "k"), (v, "v")):
        if tensor is not None and (
            tensor.dtype not in DTYPES or tensor.dim() != 4 or not tensor.is_cpu
        ):
            refuse_tensor(tensor, name)
    if q.dtype is not v.dtype or (k is not None and k.dtype is not q.dtype):
        of_keys = "" if k is None else f"k {k.dtype}, "
        raise ShoalError(
            f"q is {q.dtype}, {of_keys}v {v.dtype}: they must have the same type"
        )
    if k is None and parse(kind).kind not in KEYS_ARE_QUERIES:
        raise ShoalError(
            f"k is None, but {kind} needs keys: only shared-full and lsh use "
            "the queries as keys"
        )
    of_q, of_v = q.shape, v.shape
    of_k = of_q if k is None else k.shape
    if not (of_q == of_k == of_v):
        check_shapes(tuple(of_q), tuple(of_k), tuple(of_v))
    return of_q, of_v


def plan_for(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    shapes: tuple[torch.Size, torch.Size],
    of_out: Layout,
    kind: str,
    scale: float,
    backward: bool,
    causal: bool = False,
    dropout: float = 0.0,
) -> NativePlan:
    """The plan for tensors that match, given the shapes of q and v."""
    batch, heads, queries, dim = shapes[0]
    _, kv_heads, keys, value_dim = shapes[1]
    of_q = layout(q, "q")
    key = key_of(
        (
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
            of_q if k is None else layout(k, "k"),
            layout(v, "v"),
            of_out,
            causal,
            dropout,
            DTYPES[q.dtype],
        )
    )
    return context_for(torch.get_num_threads(), borrows=True).plan(key)


def out_memory(q: Tensor, shapes: tuple[torch.Size, torch.Size]) -> tuple[Tensor, Layout]:
    """An output [batch, heads, queries, value_dim], stored as [batch][queries][heads]
    [value_dim], and its strides: attention is nearly always followed by concatenation of
    its heads.
    """
    batch, heads, queries, _ = shapes[0]
    dim = shapes[1][3]
    row = heads * dim
    out = q.new_empty_strided((batch, heads, queries, dim), (queries * row, dim, row, 1))
    return out, (queries * row, dim, row)


def layout_of_out(out: Tensor) -> Layout:
    """Strides as made by out_memory, so that backward can use the plan of forward."""
    batch, head, position, feature = out.stride()
    if feature != 1 or not batch | head | position:
        return layout(out, "out")
    return batch, head, position


# ---- The state between forward and backward ------------------------------------------


@lru_cache(maxsize=256)
def state_rate(kind: str, dim: int, value_dim: int) -> tuple[int, int]:
    """Bytes of one head's state: (per position, fixed), both rounded up.

    Taken from plans of several lengths, so that the size of a state is a formula of the
    shapes, which torch.compile can trace if shapes are symbols. The longest two give the
    slope; a kind that changes with the length may need more at a short one.
    """

    def size(positions: int) -> int:
        key = Key(kind, None, 0.0, True, 1, 1, 1, positions, positions, dim, value_dim)
        return NativePlan(context_for(1), key).state_size

    sizes = {positions: size(positions) for positions in PROBES}
    longest = PROBES[-1]
    growth = sizes[longest] - sizes[longest // 2]
    per_position = -(-(growth + 16 * ALIGNMENT) // (longest // 2))
    most = max(bytes_ - per_position * n for n, bytes_ in sizes.items())
    return per_position, max(0, most) + 64 * per_position + 32 * ALIGNMENT


def state_bytes(q: Tensor, v: Tensor, kind: str) -> int:
    """An upper bound on the state of a call, as a formula of its shapes."""
    per_position, fixed = state_rate(kind, int(q.shape[3]), int(v.shape[3]))
    longer = torch.sym_max  # untyped in PyTorch
    positions: int = longer(q.shape[2], v.shape[2])  # type: ignore[no-untyped-call]
    return q.shape[0] * q.shape[1] * (per_position * positions + fixed) + 16 * ALIGNMENT


def state_format(kind: str) -> int:
    """A number that changes with the size of a kind's states. Traced as an argument of
    the operator, it prevents torch.compile from reusing cached code for the states of
    another build of the library.
    """
    per_position, fixed = state_rate(kind, 64, 64)
    return per_position << 40 | fixed


def aligned_state(size: int) -> Tensor:
    """Memory for a state; PyTorch's own memory is nearly always sufficiently aligned."""
    state = torch.empty(size, dtype=torch.uint8, device="cpu")
    if state.data_ptr() % ALIGNMENT:
        state = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device="cpu")
        shift = -state.data_ptr() % ALIGNMENT
        state = state[shift : shift + size]
    return state


def exact_state(plan: NativePlan) -> Tensor:
    """Exactly the size that a plan needs, for calls that nothing traces."""
    return aligned_state(plan.state_size)


def formula_state(q: Tensor, v: Tensor, kind: str) -> StateMaker:
    """The size of the operator's fake kernel, zeroed where forward does not write, so
    that two runs give the same.
    """

    def make(plan: NativePlan) -> Tensor:
        size = state_bytes(q, v, kind)
        if size < plan.state_size:
            raise RuntimeError(
                f"shoal: the state of {kind} needs {plan.state_size} bytes, "
                f"but {size} were expected"
            )
        return aligned_state(size).zero_()

    return make


def check_state(state: Tensor, plan: NativePlan) -> Tensor:
    if state.numel() < plan.state_size:
        raise ShoalError(
            "this output was computed without the state for its gradient: call "
            "shoal.torch.attention with gradients enabled"
        )
    if state.data_ptr() % ALIGNMENT:
        state = aligned_state(state.numel()).copy_(state)
    return state


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def broadcasts(tensor: Tensor, shape: tuple[int, int, int, int], name: str) -> Tensor:
    """Expands a bias or mask to all axes, or rejects it."""
    wanted = torch.bool if name == "mask" else torch.float32
    if tensor.dtype is not wanted or tensor.dim() != 4 or not tensor.is_cpu:
        raise ShoalError(
            f"{name} is {tensor.dtype} with {tensor.dim()} axes on {tensor.device}: it "
            f"must be {wanted} [batch, heads, queries, keys] on the CPU"
        )
    if any(size not in (1, whole) for size, whole in zip(tensor.shape, shape)):
        raise ShoalError(
            f"{name} has shape {tuple(tensor.shape)}, which does not broadcast to {shape}"
        )
    wide = tensor.expand(shape)
    if not any(wide.stride()):  # all zero would mean contiguous
        wide = wide[:1, :1, :1].contiguous().expand(shape)
    return wide


def pairs_of(
    tensor: Tensor, shape: tuple[int, int, int, int], name: str
) -> tuple[Tensor, Any]:
    """A bias or mask [batch, heads, queries, keys], with broadcasting, and its
    strides."""
    wide = broadcasts(tensor, shape, name)
    return wide, ctypes.pointer(PairStrides(*wide.stride()))


def is_of_keys(bias: Tensor) -> bool:
    """Whether a bias is the same for every query."""
    return bias.dim() == 4 and bias.shape[2] == 1


def key_bias_of(bias: Tensor, shape: tuple[int, int, int, int]) -> tuple[Tensor, Any]:
    """A bias [batch, heads, 1, keys], with broadcasting, and its strides."""
    batch, heads, _, keys = shape
    wide = broadcasts(bias, (batch, heads, 1, keys), "bias")[:, :, 0]
    if not any(wide.stride()):  # all zero would mean contiguous
        wide = wide.contiguous()
    return wide, ctypes.pointer(Strides(*wide.stride()))


def lengths_of(lengths: Tensor, batch: int, name: str) -> Tensor:
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


def nothing_traces(q: Tensor, k: Tensor | None, v: Tensor) -> bool:
    """Whether the tensors are plain and no mode or transformation is active."""
    return (
        type(q) in PLAIN
        and type(v) in PLAIN
        and (k is None or type(k) in PLAIN)
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )
