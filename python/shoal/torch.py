"""Shoal for PyTorch: an operator with gradients, and what stands in for PyTorch's own.

>>> import torch, shoal.torch
>>> q = k = v = torch.randn(1, 4, 1000, 64)
>>> shoal.torch.scaled_dot_product_attention(q, k, v, kind="shoal").shape
torch.Size([1, 4, 1000, 64])

The operator ``torch.ops.shoal.attention`` works under autograd and ``torch.compile``, on
float32 tensors of the CPU. What a kind cannot honour (causal and arbitrary masks and
dropout, where queries share keys; other devices) is refused, never ignored.
"""

from __future__ import annotations

from ._torch_modules import MultiheadAttention, use_kind
from ._torch_functions import attention, scaled_dot_product_attention

__all__ = ["MultiheadAttention", "attention", "scaled_dot_product_attention", "use_kind"]
