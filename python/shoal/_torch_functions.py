"""Functions on tensors: attention, and PyTorch's own function with a kind."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._arrays import KEYS_ARE_QUERIES
from ._call import scale_for
from ._engine import parse, refuse_kind
from ._native import ShoalError, kind_rows
from ._torch_ops import Direct, attend, forward
from ._torch_tensors import nothing_traces, state_format

HALF_TYPES = (torch.bfloat16, torch.float16)


def _from_half(tensor: Tensor) -> Tensor:
    """Other types are unchanged and rejected later by name."""
    return tensor.float() if tensor.dtype in HALF_TYPES else tensor


def _refuse_tangents(*tensors: Tensor | None) -> None:
    """Rejects forward-mode derivatives, which would silently be 0."""
    unpack = forward_ad.unpack_dual  # untyped in PyTorch
    for tensor in tensors:
        if tensor is None:
            continue
        if unpack(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            raise ShoalError(
                "forward-mode derivatives (torch.func.jvp, dual tensors) are not "
                "supported; use torch.autograd.grad or backward"
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
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of tensors [batch, heads, length, dim], with gradients.

    >>> import torch, shoal.torch
    >>> q, k, v = torch.randn(3, 1, 2, 200, 16, requires_grad=True)
    >>> out = shoal.torch.attention(q, k, v, "i-clustered-25:topk=16,seed=3")
    >>> torch.autograd.grad(out.sum(), q)[0].shape
    torch.Size([1, 2, 200, 16])

    The number of heads of k and v must divide that of q. Lengths are int64 [batch]: later
    positions are padding. k is None (or q itself) for shared-full and lsh. float16 and
    bfloat16 are computed in float32 without copies. The number of threads is PyTorch's.

    A bias, float32 [batch, heads, queries, keys] with broadcasting, is added to the
    scores and has a gradient; -inf hides a key. Kinds whose queries share keys
    (clustered-C, i-clustered-C, shoal-C, lsh-R, auto) accept a bias that is the same for
    all queries, [batch, heads, 1, keys]. The other kinds (full, shared-full, local-W,
    strided-W, oracle-top-k) accept any bias, and a bool mask of such a shape, True for
    keep; causal, where fewer queries than keys are at the last positions; and dropout of
    the weights, drawn from PyTorch's generator.
    """
    if type(kind) is not str:
        refuse_kind(kind)
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        _refuse_tangents(q, k, v, bias)
    bias = None if bias is None else _from_half(bias)
    if k is q and parse_kind(kind) in KEYS_ARE_QUERIES:
        k = None
    needs_gradient = torch.is_grad_enabled() and (
        q.requires_grad
        or v.requires_grad
        or (k is not None and k.requires_grad)
        or (bias is not None and bias.requires_grad)
    )
    masks = bias, mask, causal, dropout, _seed_for(dropout)
    factor = 0.0 if scale is None else scale_for(scale)
    out: Tensor
    if torch.compiler.is_compiling() or not nothing_traces(q, k, v):
        state = format_for(kind) if needs_gradient else 0
        out = attend(q, k, v, kind, factor, query_lengths, key_lengths, state, *masks)[0]
    elif needs_gradient:
        out = Direct.apply(  # type: ignore[no-untyped-call]
            q, k, v, kind, factor, query_lengths, key_lengths, *masks
        )
    else:
        out = forward(q, k, v, kind, factor, query_lengths, key_lengths, None, *masks)[0]
    return out


def _seed_for(dropout: float) -> Tensor | None:
    """Drawn from PyTorch's generator, so that torch.manual_seed makes runs
    reproducible."""
    if not dropout:
        return None
    return torch.randint(-(1 << 63), (1 << 63) - 1, (1,), device="cpu")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def takes_masks(kind: str) -> bool:
    """Whether the kind supports causal order, biases, masks and dropout."""
    refuse_kind(kind)
    return bool(kind_rows()[parse(kind).kind].has_masks)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def masking_kinds() -> str:
    """ "full, shared-full ...", for messages."""
    return ", ".join(row.name.decode() for row in kind_rows() if row.has_masks)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def parse_kind(kind: str) -> int:
    """Number of the kind in a spelling."""
    refuse_kind(kind)
    return int(parse(kind).kind)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def format_for(kind: str) -> int:
    return state_format(kind)


@torch.library.custom_op("shoal::zeros_kept", mutates_args=())
def zeros_kept(mask: Tensor) -> Tensor:
    """True where a mask of numbers is 0; the other elements must hide their keys."""
    keep = mask == 0
    if not (keep | (mask <= torch.finfo(mask.dtype).min)).all():
        raise ShoalError(
            "key_padding_mask has numbers other than 0 and -inf; use "
            "scaled_dot_product_attention, which adds any numbers to the scores"
        )
    return keep


@zeros_kept.register_fake
def _(mask: Tensor) -> Tensor:
    return torch.empty_like(mask, dtype=torch.bool)


def _key_mask(mask: Tensor, keys: int, kind: str, given: tuple[int, ...]) -> Tensor:
    """attn_mask for a kind that needs the same mask for all queries: [batch or 1, heads
    or 1, 1, keys or 1]. The caller passed it with the shape `given`.
    """
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    # Expanded axes repeat one row; not if each element needs its own gradient.
    for axis in (1, 2):
        if mask.shape[axis] != 1 and mask.stride(axis) == 0 and not _is_parameter(mask):
            mask = mask.narrow(axis, 0, 1)
    if mask.dim() > 4 or mask.shape[2] != 1 or mask.shape[3] not in (1, keys):
        raise ShoalError(
            f"attn_mask has shape {given}: {kind} supports masks of keys only, "
            f"[batch, heads, 1, {keys}]; kinds with masks that differ between "
            f"queries: {masking_kinds()}"
        )
    return mask


def _is_parameter(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


def key_padding(
    mask: Tensor, batch: int, keys: int, kind: str, given: tuple[int, ...] | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Converts PyTorch's mask, the same for all queries, to a key bias and key lengths,
    for kinds without masks.
    """
    mask = _key_mask(mask, keys, kind, tuple(mask.shape) if given is None else given)
    if mask.is_floating_point():
        keep = _where_0(mask)
        if keep is None:
            return _from_half(mask), None
        mask = keep
    if mask.dtype is not torch.bool:
        raise ShoalError(
            f"attn_mask is {mask.dtype}: it must be boolean (True for keep), or numbers "
            "to add to the scores"
        )
    return kept_keys(mask, batch, keys)


def attention_without_padding(
    q: Tensor, k: Tensor, v: Tensor, kind: str, keep: Tensor, scale: float | None = None
) -> Tensor:
    """Self-attention in which positions with False in keep, bool [batch, positions], are
    neither keys nor queries, and thus belong to no cluster. They are moved to the end,
    and back, if they are not there.
    """
    lengths = keep.sum(-1, dtype=torch.int64)
    moved = torch.compiler.is_compiling() or not torch.equal(
        keep, torch.arange(keep.shape[-1]) < lengths[:, None]
    )
    if moved:
        order = (~keep).to(torch.uint8).argsort(dim=1, stable=True)
        q, k, v = (_in_order(x, order) for x in (q, k, v))
    out = attention(
        q, k, v, kind, scale=scale, query_lengths=lengths, key_lengths=lengths
    )
    return _in_order(out, order.argsort(dim=1)) if moved else out


def _in_order(tensor: Tensor, order: Tensor) -> Tensor:
    """Permutes [batch, heads, positions, dim] by order [batch, positions]."""
    index = order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return tensor.gather(2, index)


def _where_0(mask: Tensor) -> Tensor | None:
    """True where a mask of numbers is 0, if all other elements hide their keys; else
    None.
    """
    if mask.requires_grad or torch.compiler.is_compiling():
        return None
    if type(mask) is not Tensor or not nothing_traces(mask, None, mask):
        return None
    keep = mask == 0
    hidden = mask <= torch.finfo(mask.dtype).min
    return keep if bool((keep | hidden).all()) else None


def last_kept(keep: Tensor) -> Tensor:
    """bool [batch, keys] -> int64 [batch]: all later keys are hidden."""
    if keep.shape[-1] == 0:
        return keep.new_zeros(keep.shape[0], dtype=torch.int64)
    return (keep * torch.arange(1, keep.shape[-1] + 1)).amax(-1)


def kept_keys(mask: Tensor, batch: int, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """Converts a mask [batch, heads, 1, keys], with broadcasting, to a bias of 0 and -inf
    and to lengths, which skip the hidden keys at the end. There is no bias if the lengths
    are enough.
    """
    lengths = None
    if mask.shape[1] == 1:
        rows = mask.expand(batch, 1, 1, keys)[:, 0, 0]
        lengths = last_kept(rows)
        if not torch.compiler.is_compiling() and nothing_traces(mask, None, mask):
            if torch.equal(rows, torch.arange(keys) < lengths[:, None]):
                return None, lengths
    bias = torch.zeros(mask.shape, dtype=torch.float32).masked_fill(~mask, -torch.inf)
    return bias, lengths


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
    """PyTorch's function with a kind of attention; rejects unsupported arguments.

    >>> import torch, shoal.torch
    >>> q = k = v = torch.randn(2, 4, 300, 32)
    >>> keep = torch.arange(300) < torch.tensor([300, 120])[:, None]     # right padding
    >>> mask = keep[:, None, None]
    >>> out = shoal.torch.scaled_dot_product_attention(q, k, v, mask, kind="full")
    >>> exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    >>> torch.allclose(out, exact, atol=1e-5)
    True

    With full, shared-full, local-W, strided-W and oracle-top-k every argument has
    PyTorch's meaning: any mask that broadcasts, True for keep or numbers to add, with its
    gradient; is_causal, aligned at the first query and key; dropout_p, from PyTorch's
    generator but with other random numbers. For the other kinds the mask must be the same
    for all queries, [batch, heads, 1, keys] or broadcast to it: padding on any side,
    gaps, numbers to add. Everything else raises ShoalError, which names kinds that
    support it.
    """
    if is_causal and attn_mask is not None:
        raise ShoalError("attn_mask and is_causal=True exclude each other")
    lead, alone = query.shape[:-3], query.dim() == 2
    given: tuple[int, ...] = ()
    if attn_mask is not None:
        given = tuple(attn_mask.shape)
        _check_mask(given, (*query.shape[:-1], key.shape[-2]))
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        query, key, value, attn_mask = _all_four(query, key, value, attn_mask)
    if key.shape[:2] != query.shape[:2] or value.shape[:2] != query.shape[:2]:
        key, value = _shared_heads(query, key, value, enable_gqa)
    bias = mask = key_lengths = None
    if attn_mask is not None:
        bias, mask, key_lengths = _sort_mask(attn_mask, query, key, kind, given)
    if is_causal and query.shape[2] < key.shape[2]:  # later keys are after all queries
        key, value = (x.narrow(2, 0, query.shape[2]) for x in (key, value))
    if scale is not None and scale == 0:  # the library uses 0 for 1/sqrt(dim)
        query, scale = query * 0, 1.0
    out = attention(
        query,
        key,
        value,
        kind,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
        bias=bias,
        mask=mask,
        causal=is_causal,
        dropout=dropout_p,
    )
    if len(lead) == 1:
        return out
    if alone:
        return out[0, 0]
    return out.reshape(lead + out.shape[1:]) if lead else out[0]


def _check_mask(given: tuple[int, ...], scores: tuple[int, ...]) -> None:
    """Rejects a mask that does not broadcast; the message has the caller's shapes."""
    extra = len(given) - len(scores)
    fits = all(size == 1 for size in given[: max(extra, 0)]) and all(
        size in (1, whole) for size, whole in zip(reversed(given), reversed(scores))
    )
    if not fits:
        raise ShoalError(
            f"attn_mask has shape {given}, which does not broadcast to the scores' "
            f"{scores}"
        )


def _sort_mask(
    attn_mask: Tensor, query: Tensor, key: Tensor, kind: str, given: tuple[int, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Converts PyTorch's mask to a bias, a mask or key lengths. The caller passed it with
    the shape `given`.
    """
    batch, keys = query.shape[0], key.shape[2]
    if not takes_masks(kind):
        bias, lengths = key_padding(attn_mask, batch, keys, kind, given)
        return bias, None, lengths
    while attn_mask.dim() < 4:
        attn_mask = attn_mask.unsqueeze(0)
    if attn_mask.is_floating_point():
        return _from_half(attn_mask), None, None
    if attn_mask.dtype is not torch.bool:
        raise ShoalError(
            f"attn_mask is {attn_mask.dtype}: it must be boolean (True for keep), or "
            "numbers of the query's type"
        )
    if not torch.compiler.is_compiling() and nothing_traces(query, key, attn_mask):
        lengths = padding_lengths(attn_mask, batch, keys)
        if lengths is not None:  # skips the padding
            return None, None, lengths
    return None, attn_mask, None


def padding_lengths(mask: Tensor, batch: int, keys: int) -> Tensor | None:
    """Key lengths if a mask is only padding on the right, else None."""
    for axis in (1, 2):  # expanded axes repeat one row
        if mask.shape[axis] != 1 and mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    if mask.shape[1:] != (1, 1, keys) or mask.shape[0] not in (1, batch):
        return None
    rows = mask[:, 0, 0]
    lengths = rows.sum(-1, dtype=torch.int64)
    if not torch.equal(rows, torch.arange(keys) < lengths[:, None]):
        return None
    return lengths.expand(batch)


def _shared_heads(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor]:
    """Keys and values for the query's batch and heads: broadcast, or with fewer heads."""
    batch, heads = query.shape[:2]
    if not enable_gqa:
        for tensor, name in ((key, "key"), (value, "value")):
            if tensor.shape[1] not in (1, heads):
                raise ShoalError(
                    f"{name} has {tensor.shape[1]} heads and query {heads}: pass "
                    "enable_gqa=True to share keys between heads"
                )
        return key.expand(batch, heads, -1, -1), value.expand(batch, heads, -1, -1)
    if key.shape[1] != value.shape[1]:
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    return key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)


def _all_four(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """[..., heads, length, dim] -> [batch, heads, length, dim], also for the mask."""
    axes = query.dim()
    if axes > 4:
        lead = query.shape[:-3]
        key, value = (x.expand(lead + x.shape[-3:]) for x in (key, value))
        if mask is not None and mask.dim() > 3:  # its axes are the last of the query's
            mask = mask.expand(lead + mask.shape[-3:]).flatten(0, -4)
    return _as_four(query), _as_four(key), _as_four(value), mask


def _as_four(tensor: Tensor) -> Tensor:
    """[..., heads, length, dim] -> [batch, heads, length, dim]."""
    if tensor.dim() < 2:
        raise ShoalError(f"query, key and value need at least 2 axes, not {tensor.dim()}")
    if tensor.dim() == 2:
        return tensor[None, None]
    return tensor[None] if tensor.dim() == 3 else tensor.flatten(0, -4)
