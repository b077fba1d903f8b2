"""Shoal for PyTorch: an operator with gradients, and replacements of PyTorch's own.

>>> import torch, shoal.torch
>>> q = k = v = torch.randn(1, 4, 1000, 64)
>>> shoal.torch.scaled_dot_product_attention(q, k, v, kind="shoal").shape
torch.Size([1, 4, 1000, 64])

The operator ``torch.ops.shoal.attention`` works with autograd and ``torch.compile``, on
CPU tensors. Arguments that a kind does not support (causal and arbitrary masks and
dropout, if queries share keys; other devices) raise an error and are never ignored.
"""

from __future__ import annotations

from ._torch_modules import MultiheadAttention, use_kind
from ._torch_functions import attention, scaled_dot_product_attention

__all__ = ["MultiheadAttention", "attention", "scaled_dot_product_attention", "use_kind"]
