"""MultiheadAttention with a kind, and use_kind, which replaces a model's attention."""

from __future__ import annotations

import copy
import warnings
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._native import ShoalError
from ._torch_functions import attention_without_padding, masking_kinds
from ._torch_functions import padding_lengths, parse_kind, scaled_dot_product_attention
from ._torch_functions import takes_masks, zeros_kept


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with a kind; the same parameters and names.

    >>> import torch, shoal.torch
    >>> layer = shoal.torch.MultiheadAttention(64, 4, batch_first=True,
    ...                                        kind="i-clustered-25")
    >>> x = torch.randn(2, 300, 64)
    >>> layer(x, x, x, need_weights=False)[0].shape
    torch.Size([2, 300, 64])

    Weights are not returned, because no matrix of them exists: need_weights must be
    False. key_padding_mask is True for padding, as in PyTorch, at any position. In
    self-attention (key is query, the same tensor) padded positions are not queries
    either: with every kind their attention is 0 and their output is out_proj's bias,
    unlike in PyTorch. attn_mask, is_causal and dropout need a kind with masks; bias_kv
    and add_zero_attn are not supported.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        kind: str = "auto",
    ) -> None:
        if add_bias_kv or add_zero_attn:
            raise ShoalError(
                "MultiheadAttention: add_bias_kv and add_zero_attn are not supported"
            )
        parse_kind(kind)
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.kind = kind
        self._refuse_fast_path()

    def _refuse_fast_path(self) -> None:
        # Disables the fast path of nn.TransformerEncoderLayer, which bypasses its
        # attention.
        self._qkv_same_embed_dim = False

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, kind: str) -> MultiheadAttention:
        """The same layer with a kind of attention, sharing its parameters."""
        if module.bias_k is not None or module.add_zero_attn:
            raise ShoalError(
                "MultiheadAttention: add_bias_kv and add_zero_attn are not supported"
            )
        parse_kind(kind)
        twin = cls.__new__(cls)
        twin.__dict__.update(module.__dict__)
        twin.__dict__["_modules"] = dict(module._modules)
        twin.kind = kind
        twin._refuse_fast_path()
        return twin

    def extra_repr(self) -> str:
        return f"kind={self.kind}"

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            F.linear(x, weight, bias)
            for x, weight, bias in zip((query, key, value), weights, biases)
        ]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """(output, None); the arguments are those of torch.nn.MultiheadAttention."""
        if need_weights:
            raise ShoalError(
                "need_weights=True: Shoal computes no matrix of weights; pass "
                "need_weights=False"
            )
        masks = takes_masks(self.kind)
        if (attn_mask is not None or is_causal) and not masks:
            raise ShoalError(
                f"{self.kind} does not support attn_mask and is_causal, only key padding "
                f"(key_padding_mask); kinds that support them: {masking_kinds()}"
            )
        if is_causal and attn_mask is None:
            raise ShoalError(
                "is_causal is a hint about attn_mask, which must be given with it"
            )
        alone, itself = query.dim() == 2, query is key
        if alone:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = (
                None if key_padding_mask is None else key_padding_mask[None]
            )
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        if dropout and not masks:
            raise ShoalError(
                f"{self.kind} has no dropout of attention weights ({dropout:g} here): "
                "call eval(), create the layer with dropout=0, or omit it with "
                f"use_kind(..., skip_dropout=True); kinds that have it: {masking_kinds()}"
            )
        keep = mask = query_lengths = None
        if key_padding_mask is not None:
            keep = _kept(key_padding_mask)
            mask = keep[:, None, None]
            if itself and masks and not torch.compiler.is_compiling():
                query_lengths = padding_lengths(mask, *keep.shape)
        if attn_mask is not None:
            mask = _joined(attn_mask, mask, query.shape[0], self.num_heads)
        q, k, v = (
            x.view(
                *x.shape[:-1], self.num_heads, x.shape[-1] // self.num_heads
            ).transpose(1, 2)
            for x in self._project(query, key, value)
        )
        if keep is not None and itself and not masks:
            # In self-attention padding is not a query either, and belongs to no cluster.
            out = attention_without_padding(q, k, v, self.kind, keep)
        else:
            out = scaled_dot_product_attention(
                q, k, v, mask, dropout, kind=self.kind, query_lengths=query_lengths
            )
            if keep is not None and itself and query_lengths is None:
                out = out.masked_fill(~keep[:, None, :, None], 0.0)
        out = self.out_proj(out.transpose(1, 2).flatten(-2))
        if alone:
            return out[0], None
        return (out if self.batch_first else out.transpose(0, 1)), None


def _joined(attn_mask: Tensor, keep: Tensor | None, batch: int, heads: int) -> Tensor:
    """Converts torch.nn.MultiheadAttention's mask, [queries, keys] or [batch x heads,
    queries, keys], True for hidden or numbers to add, and the padding, to attn_mask of
    PyTorch's function.
    """
    if attn_mask.dim() == 3:
        attn_mask = attn_mask.reshape(batch, heads, *attn_mask.shape[1:])
    if attn_mask.dtype is torch.bool:
        return ~attn_mask if keep is None else keep & ~attn_mask
    return attn_mask if keep is None else attn_mask.where(keep, -torch.inf)


def _kept(key_padding_mask: Tensor) -> Tensor:
    """True for keep, from PyTorch's True for padding or from 0 and -inf."""
    if key_padding_mask.dtype is torch.bool:
        return ~key_padding_mask
    if key_padding_mask.is_floating_point():  # as nn.TransformerEncoderLayer passes it
        keep: Tensor = zeros_kept(key_padding_mask)
        return keep
    raise ShoalError(f"key_padding_mask is {key_padding_mask.dtype}: it must be boolean")


class Swap:
    """Result of use_kind: a model whose attention is replaced, and how to undo it.

    In a `with` statement it yields the model and undoes the replacement at the end.
    """

    def __init__(self, model: nn.Module, kind: str, skip_dropout: bool) -> None:
        self.model, self.kind = model, kind
        self._before: list[tuple[Any, str, Any]] = []  # place, name, value
        self._modules: set[int] = set()  # ids of the changed modules
        try:
            self._swap(skip_dropout)
        except BaseException:
            self._restore()
            raise
        _swaps.append(weakref.ref(self, _swaps.remove))

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(self, *what: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        undone = "" if self._before else ", undone"
        return f"<shoal.torch.use_kind: {type(self.model).__name__}, {self.kind}{undone}>"

    def undo(self) -> None:
        """Restores the attention that the model had; a second call does nothing.

        Replacements in one model must be undone in reverse order.
        """
        if not self._before:
            return
        later: list[Swap] = []
        for swap in reversed([reference() for reference in _swaps]):
            if swap is self:
                break
            if swap is not None and swap._before and swap._modules & self._modules:
                later.append(swap)
        if later:
            raise ShoalError(
                f"use_kind: {later[0].kind} replaced {self.kind} later: undo that "
                "first"
            )
        self._restore()

    def _restore(self) -> None:
        for place, name, value in reversed(self._before):
            place[name] = value
        self._before.clear()

    def _set(self, module: nn.Module, place: dict[str, Any], name: str, to: Any) -> None:
        self._before.append((place, name, place[name]))
        self._modules.add(id(module))
        if isinstance(to, nn.Module):  # a later replacement may change it
            self._modules.add(id(to))
        place[name] = to

    def _swap(self, skip_dropout: bool) -> None:
        configs: dict[int, Any] = {}
        nested = []
        for module in list(self.model.modules()):
            own = module.__dict__
            if isinstance(module, MultiheadAttention):
                self._set(module, own, "kind", self.kind)
                if skip_dropout:
                    self._set(module, own, "dropout", 0.0)
            if isinstance(module, nn.TransformerEncoder):
                nested.append(module)
            for name, child in list(module._modules.items()):
                if isinstance(child, nn.MultiheadAttention) and not isinstance(
                    child, MultiheadAttention
                ):
                    self._set(
                        module,
                        module._modules,
                        name,
                        _twin(child, self.kind, skip_dropout),
                    )
            config = own.get("config")
            if hasattr(config, "_attn_implementation_internal"):
                _refuse_own_attention(module)
                twin = _config_with(config, self.kind, skip_dropout, configs)
                self._set(module, own, "config", twin)
        if not self._before:
            raise ShoalError(
                f"use_kind: no attention to replace in {type(self.model).__name__}; it "
                "replaces modules inside the given one; in your own modules call "
                "shoal.torch.scaled_dot_product_attention"
            )
        for module in nested:  # disables the nested tensors of PyTorch's fused layers
            if "use_nested_tensor" in module.__dict__:
                self._set(module, module.__dict__, "use_nested_tensor", False)


_swaps: list[weakref.ref[Swap]] = []  # those that can still be undone, in order


def _twin(
    child: nn.MultiheadAttention, kind: str, skip_dropout: bool
) -> MultiheadAttention:
    if type(child).forward is not nn.MultiheadAttention.forward:
        raise ShoalError(
            f"use_kind: {type(child).__name__} overrides forward, which would be "
            "lost"
        )
    twin = MultiheadAttention.from_torch(child, kind)
    twin.dropout = 0.0 if skip_dropout else child.dropout
    return twin


def use_kind(model: nn.Module, kind: str, *, skip_dropout: bool = False) -> Swap:
    """Replaces a model's attention by that of a kind, until it is undone.

    >>> import torch, shoal.torch
    >>> layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    >>> x = torch.randn(1, 200, 64)
    >>> plain = layer(x)
    >>> swap = shoal.torch.use_kind(layer, "full")
    >>> layer.self_attn.kind
    'full'
    >>> torch.allclose(layer(x), plain, atol=1e-5)
    True
    >>> swap.undo()

    The result can be ignored, undone, or used in a `with` statement, which undoes it at
    the end of the block:

    >>> with torch.no_grad(), shoal.torch.use_kind(layer, "clustered-25"):
    ...     rough = layer(x)
    >>> torch.allclose(rough, plain, atol=1e-5), type(layer.self_attn).__module__
    (False, 'torch.nn.modules.activation')

    Replaces torch.nn.MultiheadAttention, shoal.torch.MultiheadAttention and the attention
    of transformers' models (also of a part of one, such as Whisper's encoder). The
    parameters remain those of the model. Kinds whose queries share keys have no dropout
    of attention weights, of which torch.nn.TransformerEncoderLayer has 0.1 by default: a
    model in training mode with such dropout raises an error, unless skip_dropout=True
    omits it (other dropout stays), with a warning. Not thread-safe for one model.
    """
    parse_kind(kind)
    if model.training and (skip_dropout or not takes_masks(kind)):
        _check_dropout(model, skip_dropout)
    return Swap(model, kind, skip_dropout)


def _refuse_own_attention(model: nn.Module) -> None:
    """Rejects models of transformers that compute their attention themselves."""
    can_set = getattr(model, "_can_set_attn_implementation", None)
    if can_set is not None and not can_set():
        raise ShoalError(
            f"use_kind: {type(model).__name__} computes its attention itself: there is "
            "nothing to replace"
        )


def _dropouts(model: nn.Module) -> list[float]:
    """Rates of attention dropout, of PyTorch's modules and of transformers' models."""
    names = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")
    rates = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            rates.append(float(module.dropout))
        config = module.__dict__.get("config")
        if hasattr(config, "_attn_implementation_internal"):
            rates += [float(getattr(config, name, None) or 0.0) for name in names]
    return [rate for rate in rates if rate > 0]


def _check_dropout(model: nn.Module, skip: bool) -> None:
    rates = _dropouts(model)
    if not rates:
        return
    if not skip:
        raise ShoalError(
            f"use_kind: the model is in training mode and has attention dropout "
            f"({max(rates):g}), which this kind does not support: pass skip_dropout=True "
            "to train without that dropout, or call model.eval(); kinds that support it: "
            f"{masking_kinds()}"
        )
    warnings.warn(
        f"use_kind: attention dropout ({max(rates):g}) is omitted", stacklevel=3
    )


def _config_with(config: Any, kind: str, skip_dropout: bool, made: dict[int, Any]) -> Any:
    """A copy of a transformers configuration with that attention; one copy per
    original."""
    if id(config) not in made:
        from .transformers import make_known

        make_known(kind)
        twin = copy.copy(config)
        twin._attn_implementation_internal = kind
        twin._shoal_skips_dropout = skip_dropout
        made[id(config)] = twin
    return made[id(config)]
