"""Shoal: attention whose cost is linear in the sequence length.

Queries are clustered, each cluster attends once, and the most important keys are exact.
This package makes the C library available for numpy; ``shoal.torch`` is for PyTorch and
``shoal.transformers`` for transformers.

>>> import numpy as np, shoal
>>> q = k = v = np.random.default_rng(0).standard_normal((1, 4, 2048, 64), np.float32)
>>> shoal.attention(q, k, v, "shoal").shape
(1, 4, 2048, 64)
"""

from ._engine import clear_cache
from ._native import ShoalError, version as __version__
from ._numpy import (
    Kind,
    attention,
    attention_grad,
    error_estimate,
    groups,
    kinds,
    spelling,
)
from ._plan import ErrorEstimate, Gradients, Plan
from ._recogniser import Recogniser, Recognition
from ._speech import Segment, Speech, Word, join_text
from ._text import TextEncoder
from ._text_model import Answer, TextModel
from ._transformer import Transformer
from . import train

__all__ = [
    "Answer",
    "ErrorEstimate",
    "Gradients",
    "Kind",
    "Plan",
    "Recogniser",
    "Recognition",
    "Segment",
    "ShoalError",
    "Speech",
    "TextEncoder",
    "TextModel",
    "Transformer",
    "Word",
    "__version__",
    "attention",
    "attention_grad",
    "clear_cache",
    "error_estimate",
    "groups",
    "join_text",
    "kinds",
    "spelling",
    "train",
]
