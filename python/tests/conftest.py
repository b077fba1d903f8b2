"""Shared by the tests: paths of data, and arrays with their exact attention."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal._native import load_part

LISTED = [kind.name for kind in shoal.kinds()]
KINDS = ["full", "clustered-7", "i-clustered-7:topk=9", "oracle-top-9", "shoal-7:topk=9"]
KINDS += ["q-clustered-7:topk=9"]
KINDS += ["auto"] * ("auto" in LISTED)
ROOT = Path(__file__).resolve().parent.parent.parent
DATA = Path(os.environ.get("SHOAL_DATA") or ROOT.parent / "shared" / "data")


def needs(*parts: str) -> None:
    """A skip that says why, where the package was built without one of its libraries."""
    for part in parts:
        try:
            load_part(part, "this test", {})
        except ImportError as error:
            pytest.skip(str(error))


def data(*parts: str) -> Path:
    """A file of the shared data, or a skip that names its path."""
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path}: set SHOAL_DATA to the folder that has it")
    return path


def softmax_attention(q, k, v, scale=None):
    """In double precision."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if k.shape[:-2] != q.shape[:-2]:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (scale or 1 / np.sqrt(q.shape[-1]))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def arrays(
    batch=2, heads=4, queries=60, keys=50, dim=16, value_dim=12, kv_heads=None, seed=0
):
    rng = np.random.default_rng(seed)
    kv_heads = kv_heads or heads
    return (
        rng.standard_normal((batch, heads, queries, dim), np.float32),
        rng.standard_normal((batch, kv_heads, keys, dim), np.float32),
        rng.standard_normal((batch, kv_heads, keys, value_dim), np.float32),
    )
