"""Shoal for Hugging Face transformers.

    import shoal.transformers
    shoal.transformers.register()
    model = AutoModel.from_pretrained(path, attn_implementation="shoal-25")

Kinds whose queries do not share keys (full, local-W, strided-W, oracle-top-k) run all
models: encoders, decoders with caches, and both together; with masks, sliding windows,
position biases and dropout. The other kinds are for encoders, with padding on either
side; unsupported arguments raise an error. Soft caps and sinks are not supported.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function
from transformers.masking_utils import sdpa_mask

from ._arrays import KEYS_ARE_QUERIES
from ._engine import parse
from ._native import ShoalError
from ._numpy import kinds, spelling
from ._torch_functions import attention, attention_without_padding, key_padding
from ._torch_functions import masking_kinds, padding_lengths, takes_masks

CLUSTERS = (25, 50, 100, 200)  # registered for every kind with a number of clusters

# Arguments of attention functions that change the result, and their names.
REFUSED = {
    "softcap": "soft caps of the scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "cache": "paged caches",
}

_known: set[str] = set()

__all__ = ["names", "register"]


def names() -> list[str]:
    """The kinds that register() registers: all that can replace full attention.

    >>> import shoal.transformers
    >>> shoal.transformers.names()[:3]
    ['full', 'clustered-25', 'clustered-50']
    """
    found = []
    for kind in kinds():
        stem, _, number = kind.name.rpartition("-")
        if kind.keys_are_queries:
            continue
        default = kind.defaults.partition(":")[0]
        if number != "C" or default == stem:  # shoal chooses the number from the sizes
            found.append(default)
        if number == "C":
            found += [f"{stem}-{clusters}" for clusters in CLUSTERS]
    return found


class Choices(NamedTuple):
    """Arguments of register()."""

    leave_windows: bool  # leave layers with sliding windows to PyTorch
    keep_padding: bool  # treat padding like all other queries
    skip_dropout: bool  # omit attention dropout in training


def register(
    *spellings: str,
    sliding_window: str = "refuse",
    keep_padding: bool = False,
    skip_dropout: bool = False,
) -> list[str]:
    """Registers kinds of attention with transformers; returns their names.

    Without arguments, registers those of names(); any other spelling must be given, as in
    ``register("i-clustered-25:topk=64")``. Pass the name as attn_implementation.

    sliding_window  layers with a sliding window (as in ModernBERT), if the kind has no
                    masks: "refuse", or "sdpa", which leaves those layers to PyTorch
    keep_padding    output at padded positions: False, 0; True, the attention of the
                    padding as in PyTorch. True is slower and makes clusters coarser,
                    since the padding belongs to them
    skip_dropout    attention dropout in training: False, kinds without dropout raise an
                    error; True, it is omitted

    >>> import shoal.transformers
    >>> shoal.transformers.register("i-clustered-25:topk=64")
    ['i-clustered-25:topk=64']
    """
    if sliding_window not in ("refuse", "sdpa"):
        raise ShoalError(
            f'sliding_window is {sliding_window!r}: it must be "refuse" or "sdpa"'
        )
    registered = list(spellings) or names()
    for name in registered:
        spelling(name)
        if parse(name).kind in KEYS_ARE_QUERIES:
            raise ShoalError(
                f"{name} uses the queries as keys: it cannot replace the attention of "
                "a model with separate keys"
            )
        choices = Choices(sliding_window == "sdpa", keep_padding, skip_dropout)
        AttentionInterface.register(name, partial(_attend, name, choices))
        AttentionMaskInterface.register(name, partial(_mask, name, choices))
        _known.add(name)
    return registered


def make_known(name: str) -> None:
    """Registers a kind, unless the user has registered it with other choices."""
    if name not in _known:
        register(name)


def _mask(
    name: str,
    choices: Choices,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = bidirectional_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """The padding, bool [batch, keys] with True for keep, or None; for kinds with masks
    the mask of PyTorch's attention, unless it is only padding.
    """
    if takes_masks(name) and mask_function is not bidirectional_mask_function:
        masked: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            **kwargs,
        )
        return masked
    if mask_function is not bidirectional_mask_function:
        if kwargs.get("local_size") is None:
            raise ShoalError(
                f"{name} has no causal or other structured masks: use it for encoders; "
                f"kinds that have them: {masking_kinds()}"
            )
        if not choices.leave_windows:
            # Models create this mask even if no layer uses it; the layer raises the
            # error.
            return torch.empty(0, dtype=torch.bool, device=kwargs.get("device"))
        whole: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            **kwargs,
        )
        return whole
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ShoalError(
            f"attention_mask has {attention_mask.dim()} axes: {name} needs the "
            "padding mask [batch, length]"
        )
    return attention_mask[:, -kv_length:].to(torch.bool)


def _attend(
    name: str,
    choices: Choices,
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One layer: [batch, heads, length, dim] -> [batch, length, heads, dim]."""
    if kwargs.get("output_attentions"):
        raise ShoalError(
            f"{name} computes no matrix of weights: output_attentions must be False"
        )
    for argument, what in REFUSED.items():
        if kwargs.get(argument) is not None:
            raise ShoalError(f"{name} does not support {what} ({argument})")
    if takes_masks(name):
        if sliding_window is not None and attention_mask is None:
            if key.shape[2] > sliding_window:  # otherwise omitted, as it hides nothing
                raise ShoalError(
                    f"{name}: a sliding window of {sliding_window} has no mask"
                )
        if _skips_dropout(module, choices):
            dropout = 0.0
        if is_causal is None:
            is_causal = bool(getattr(module, "is_causal", True))
        return _attend_masked(
            name,
            choices,
            module,
            (query, key, value),
            attention_mask,
            kwargs.get("position_bias"),
            dropout,
            scaling,
            is_causal,
        )
    if kwargs.get("position_bias") is not None:
        raise ShoalError(
            f"{name} does not support position biases; kinds that do: {masking_kinds()}"
        )
    if is_causal if is_causal is not None else getattr(module, "is_causal", False):
        raise ShoalError(
            f"{name} has no causal attention: use it for encoders "
            f"({type(module).__name__} is causal); kinds that have: {masking_kinds()}"
        )
    if sliding_window is not None:
        if not choices.leave_windows:
            raise ShoalError(
                f"{name}: a layer of this model has a sliding window of "
                f"{sliding_window}, which this kind does not support; "
                'register(..., sliding_window="sdpa") leaves such layers to PyTorch'
            )
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=False,
            **kwargs,
        )
        return result
    if dropout and not _skips_dropout(module, choices):
        raise ShoalError(
            f"{name} has no dropout of attention weights: call model.eval(), set the "
            "configuration's attention dropout to 0, or omit it with "
            "register(..., skip_dropout=True) or use_kind(..., skip_dropout=True)"
        )
    keep = _kept(name, attention_mask, query.shape[0], key.shape[2])
    if keep is None:
        out = attention(query, key, value, name, scale=scaling)
    elif _skips_padding(module, choices, query, key):
        out = attention_without_padding(query, key, value, name, keep, scaling)
    else:
        batch, keys = keep.shape
        bias, lengths = key_padding(keep[:, None, None], batch, keys, name)
        out = attention(
            query, key, value, name, scale=scaling, key_lengths=lengths, bias=bias
        )
    return out.transpose(1, 2), None


def _attend_masked(
    name: str,
    choices: Choices,
    module: torch.nn.Module,
    inputs: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool,
) -> tuple[Tensor, None]:
    """A layer with a kind that supports its mask and bias."""
    query, key, value = inputs
    batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    lengths = query_lengths = padded = None
    if mask is None:  # PyTorch's convention: a square causal mask, or none
        causal = is_causal and queries > 1
    elif mask.dim() == 2:
        causal = False
        if mask.shape != (batch, keys):
            raise ShoalError(
                f"{name}: a mask of shape {tuple(mask.shape)} reached the attention "
                f"for {batch} sequences of {keys} keys"
            )
        mask = mask.to(torch.bool)[:, None, None]
        skips_padding = _skips_padding(module, choices, query, key)
        if not torch.compiler.is_compiling():
            lengths = padding_lengths(mask, batch, keys)
        if skips_padding and lengths is None:
            padded = ~mask.transpose(2, 3)
        if lengths is not None:
            mask = None
            query_lengths = lengths if skips_padding else None
    else:
        causal = False
        if mask.is_floating_point():
            bias = mask if bias is None else bias + mask
            mask = None
    if causal and queries < keys:
        key, value = key[:, :, :queries], value[:, :, :queries]
        bias = None if bias is None else bias[..., :queries]
    out = attention(
        query,
        key,
        value,
        name,
        scale=scaling,
        key_lengths=lengths,
        query_lengths=query_lengths,
        bias=bias,
        mask=None if mask is None else mask[..., :keys],
        causal=causal,
        dropout=dropout,
    )
    if padded is not None:
        out = out.masked_fill(padded, 0.0)
    return out.transpose(1, 2), None


def _skips_padding(
    module: torch.nn.Module, choices: Choices, query: Tensor, key: Tensor
) -> bool:
    """In self-attention a position that is not a key is not a query either: it belongs to
    no cluster, and its output is 0.
    """
    return (
        not choices.keep_padding
        and query.shape[2] == key.shape[2]
        and not _is_cross(module)
    )


def _skips_dropout(module: torch.nn.Module, choices: Choices) -> bool:
    """By register(), or by use_kind, which marks the configuration."""
    config = getattr(module, "config", None)
    return choices.skip_dropout or getattr(config, "_shoal_skips_dropout", False)


def _kept(name: str, mask: Tensor | None, batch: int, keys: int) -> Tensor | None:
    """bool [batch, keys], False for padding; None if there is none."""
    if mask is None:
        return None
    if mask.dim() == 1:
        raise ShoalError(
            f"{name}: this layer's mask is a sliding window, which this kind does not "
            "support"
        )
    if mask.dim() != 2 or mask.shape != (batch, keys):
        raise ShoalError(
            f"{name}: a mask of shape {tuple(mask.shape)} reached the attention; "
            f"only padding, [{batch}, {keys}], is supported"
        )
    return mask.to(torch.bool)


def _is_cross(module: torch.nn.Module) -> bool:
    return bool(
        "Cross" in type(module).__name__
        or getattr(module, "is_decoder", False)
        or getattr(module, "is_cross_attention", False)
    )
