"""What people call on tensors: attention, and PyTorch's own function by a kind."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._arrays import KEYS_ARE_QUERIES
from ._call import scale_for
from ._engine import parse, refuse_kind
from ._native import ShoalError
from ._torch_ops import Direct, attend, forward
from ._torch_tensors import nothing_traces, state_format

HALVES = (torch.bfloat16, torch.float16)

_said: set[torch.dtype] = set()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _say_converted(dtype: torch.dtype) -> bool:
    """Once for each type."""
    if dtype not in _said:
        _said.add(dtype)
        warnings.warn(
            f"shoal computes in float32: {dtype} inputs are converted, and the "
            "output back",
            stacklevel=4,
        )
    return True


def _from_half(tensor: Tensor) -> Tensor:
    """Other types stay as they are, to be refused by name."""
    return tensor.float() if tensor.dtype in HALVES else tensor


def _refuse_tangents(*tensors: Tensor | None) -> None:
    """Forward-mode derivatives, which would be 0 without a word."""
    unpack = forward_ad.unpack_dual  # untyped in PyTorch
    for tensor in tensors:
        if tensor is None:
            continue
        if unpack(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            raise ShoalError(
                "forward-mode derivatives (torch.func.jvp, dual tensors) are not "
                "supported: Shoal has gradients (torch.autograd.grad, backward)"
            )


def attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    kind: str = "auto",
    *,
    scale: float | None = None,
    query_lengths: Tensor | None = None,
    key_lengths: Tensor | None = None,
) -> Tensor:
    """Attention of tensors [batch, heads, length, dim], with gradients.

    >>> import torch, shoal.torch
    >>> q, k, v = torch.randn(3, 1, 2, 200, 16, requires_grad=True)
    >>> out = shoal.torch.attention(q, k, v, "i-clustered-25:topk=16,seed=3")
    >>> torch.autograd.grad(out.sum(), q)[0].shape
    torch.Size([1, 2, 200, 16])

    k and v may have fewer heads than q. The lengths are int64 [batch]: positions from
    there on are padding. k is None (or q itself) for shared-full and lsh. float16 and
    bfloat16 are converted to float32 and back, with a warning; the number of threads is
    PyTorch's.
    """
    if type(kind) is not str:
        refuse_kind(kind)
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        _refuse_tangents(q, k, v)
    dtype = q.dtype
    if dtype in HALVES:
        _say_converted(dtype)
        shared = k is q
        q, v = q.float(), _from_half(v)
        k = q if shared else None if k is None else _from_half(k)
    if k is q and parse_kind(kind) in KEYS_ARE_QUERIES:
        k = None
    needs_gradient = torch.is_grad_enabled() and (
        q.requires_grad or v.requires_grad or (k is not None and k.requires_grad)
    )
    factor = 0.0 if scale is None else scale_for(scale)
    out: Tensor
    if torch.compiler.is_compiling() or not nothing_traces(q, k, v):
        state = format_for(kind) if needs_gradient else 0
        out = attend(q, k, v, kind, factor, query_lengths, key_lengths, state)[0]
    elif needs_gradient:
        out = Direct.apply(  # type: ignore[no-untyped-call]
            q, k, v, kind, factor, query_lengths, key_lengths
        )
    else:
        out = forward(q, k, v, kind, factor, query_lengths, key_lengths, None)[0]
    return out if dtype is out.dtype else out.to(dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def parse_kind(kind: str) -> int:
    """The number of a spelling's kind."""
    refuse_kind(kind)
    return int(parse(kind).kind)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def format_for(kind: str) -> int:
    return state_format(kind)


@torch.library.custom_op("shoal::prefix_lengths", mutates_args=())
def prefix_lengths(mask: Tensor) -> Tensor:
    """bool [batch, positions], True for keep -> int64 [batch]; refuses holes."""
    lengths = mask.sum(-1, dtype=torch.int64)
    positions = torch.arange(mask.shape[-1], device=mask.device)
    wrong = (mask != (positions < lengths[:, None])).any(-1)
    if wrong.any():
        row = int(wrong.nonzero()[0, 0])
        raise ShoalError(
            f"the mask of sequence {row} is not padding on the right (True up to a "
            "length, then False): Shoal takes key padding on the right only; right-pad "
            'the batch (tokenizer.padding_side = "right")'
        )
    return lengths


@prefix_lengths.register_fake
def _(mask: Tensor) -> Tensor:
    return mask.new_empty(mask.shape[0], dtype=torch.int64)


@torch.library.custom_op("shoal::zeros_kept", mutates_args=())
def zeros_kept(mask: Tensor) -> Tensor:
    """True where a mask of numbers has 0; what is not 0 must be as low as can be."""
    keep = mask == 0
    if not (keep | (mask <= torch.finfo(mask.dtype).min)).all():
        raise ShoalError(
            "the mask adds numbers other than 0 and -inf to the scores: Shoal takes "
            "padding only, no biases"
        )
    return keep


@zeros_kept.register_fake
def _(mask: Tensor) -> Tensor:
    return torch.empty_like(mask, dtype=torch.bool)


def key_padding(mask: Tensor, batch: int, keys: int) -> Tensor:
    """A mask for PyTorch's attention as key lengths, where that is all that it says."""
    if mask.is_floating_point():
        mask = zeros_kept(mask)
    if mask.dtype is not torch.bool:
        raise ShoalError(
            f"attn_mask is {mask.dtype}: it must be boolean (True for keep), or numbers "
            "that are 0 or -inf"
        )
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    # Expanded axes repeat one row.
    for axis in (1, 2):
        if mask.shape[axis] != 1 and mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    if (
        mask.dim() > 4
        or mask.shape[1] != 1
        or mask.shape[2] != 1
        or mask.shape[3] not in (1, keys)
    ):
        raise ShoalError(
            f"attn_mask has shape {tuple(mask.shape)}: Shoal takes key padding "
            f"only, [batch, 1, 1, {keys}]; masks that differ between queries or "
            "heads cannot be honoured"
        )
    lengths: Tensor = prefix_lengths(mask.expand(batch, 1, 1, keys)[:, 0, 0])
    return lengths


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    kind: str = "auto",
    query_lengths: Tensor | None = None,
) -> Tensor:
    """PyTorch's function, by a kind of attention; refuses what the kind cannot honour.

    >>> import torch, shoal.torch
    >>> q = k = v = torch.randn(2, 4, 300, 32)
    >>> keep = torch.arange(300) < torch.tensor([300, 120])[:, None]     # right padding
    >>> mask = keep[:, None, None]
    >>> out = shoal.torch.scaled_dot_product_attention(q, k, v, mask, kind="full")
    >>> exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    >>> torch.allclose(out, exact, atol=1e-5)
    True

    attn_mask must be key padding on the right, [batch, 1, 1, keys] or what broadcasts
    to it: True for keep, or 0 for keep and -inf (or the type's lowest number) for not.
    Dropout, causal and other masks raise ShoalError.
    """
    if is_causal:
        raise ShoalError("is_causal=True: Shoal has no causal attention")
    if dropout_p:
        raise ShoalError(
            f"dropout_p={dropout_p}: Shoal has no dropout; call .eval() or set "
            "the attention's dropout to 0"
        )
    lead, alone = query.shape[:-3], query.dim() == 2
    if query.dim() != 4:
        query, key, value = (_as_four(x) for x in (query, key, value))
    if key.shape[1] != query.shape[1] and not enable_gqa:
        raise ShoalError(
            f"key has {key.shape[1]} heads and query {query.shape[1]}: "
            "enable_gqa=True lets heads share keys"
        )
    key_lengths = None
    if attn_mask is not None:
        key_lengths = key_padding(attn_mask, query.shape[0], key.shape[2])
    out = attention(
        query,
        key,
        value,
        kind,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    if len(lead) == 1:
        return out
    if alone:
        return out[0, 0]
    return out.reshape(lead + out.shape[1:]) if lead else out[0]


def _as_four(tensor: Tensor) -> Tensor:
    """[..., heads, length, dim] -> [batch, heads, length, dim]."""
    if tensor.dim() < 2:
        raise ShoalError(f"query, key and value need at least 2 axes, not {tensor.dim()}")
    if tensor.dim() == 2:
        return tensor[None, None]
    return tensor[None] if tensor.dim() == 3 else tensor.flatten(0, -4)
