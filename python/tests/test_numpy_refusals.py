"""Rejected numpy arrays and options, and their messages."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from conftest import arrays


def refused(match, *inputs, kind="full", **options):
    with pytest.raises(shoal.ShoalError, match=match) as caught:
        shoal.attention(*inputs, kind, **options)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.complex64, ">f4", ">f2"])
def test_wrong_types(dtype):
    q, k, v = arrays()
    refused(r"q is .*astype", q.astype(dtype), k, v)
    refused(r"v is .*astype", q, k, v.astype(dtype))
    refused("must be a numpy array", q.tolist(), k, v)


def test_halves_beside_floats():
    q, k, v = arrays()
    half = np.float16
    refused("the same type", q.astype(half), k, v)
    refused("the same type", q, k.astype(half), v)
    refused("the same type", q.astype(half), k.astype(half), v)
    refused(
        "float16", *(x.astype(half) for x in (q, k, v)), out=np.zeros_like(q[..., :12])
    )
    plan = shoal.Plan.like(q, k, v, "full")
    with pytest.raises(shoal.ShoalError, match="float16"):
        plan.forward(*(x.astype(half) for x in (q, k, v)))


def test_wrong_shapes():
    q, k, v = arrays()
    refused("dim", q, k[..., :8], v)
    refused("positions", q, k[:, :, :30], v)
    refused("batch", q, k[:1], v[:1])
    refused("divide", q, k[:, :3], v[:, :3])
    refused("axes", q[0], k, v)
    refused("axes", q[None], k[None], v[None])
    refused("axes", q[0, 0, 0], k[0, 0, 0], v[0, 0, 0])
    refused("dim", q[..., :0], k[..., :0], v)


def test_wrong_strides():
    q, k, v = arrays()
    refused("q's last axis is not contiguous", np.repeat(q, 2, axis=-1)[..., ::2], k, v)
    refused("negative", q[:, :, ::-1], k, v)
    refused("last axis", q[..., ::-1], k, v)
    raw = np.zeros(q.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(q.shape)
    refused("not aligned to float32", raw, k, v)


def test_wrong_outputs():
    q, k, v = arrays(value_dim=16)
    refused("out has shape", q, k, v, out=np.empty((2, 4, 60, 9), np.float32))
    refused("out", q, k, v, out=np.empty((2, 4, 60, 16)))
    refused("overlaps q", q, k, v, out=q)
    refused(
        "overlap",
        q,
        k,
        v,
        out=np.lib.stride_tricks.as_strided(
            np.empty(4 * 60 * 16, np.float32), (2, 4, 60, 16), (0, 3840, 64, 4)
        ),
    )
    locked = np.empty((2, 4, 60, 16), np.float32)
    locked.flags.writeable = False
    refused("read-only", q, k, v, out=locked)


def test_wrong_options():
    q, k, v = arrays()
    refused("nonsense", q, k, v, kind="nonsense")
    refused("kind is a", q, k, v, kind=["full"])
    refused("zero byte", q, k, v, kind="full\0")
    refused("scale", q, k, v, scale=0)
    refused("scale", q, k, v, scale=float("nan"))
    refused("seed", q, k, v, seed=-1)
    refused("threads", q, k, v, threads=-3)
    refused("threads", q, k, v, threads=1.5)
    refused("key_lengths", q, k, v, key_lengths=[1, 51])
    refused("query_lengths", q, k, v, query_lengths=[1, 2, 3])
    refused("integers", q, k, v, query_lengths=[1.5, 2])
    refused("groups", q, k, v, kind="clustered-7", groups=np.full((2, 4, 60), 7))
    refused("groups", q, k, v, kind="clustered-7", groups=np.zeros((2, 4, 59), int))
    refused("groups", q, k, v, groups=np.zeros((2, 4, 60), int))
    with pytest.raises(shoal.ShoalError, match="no clusters of queries"):
        shoal.groups(q, k, "full")


def test_no_memory_is_a_memory_error():
    with pytest.raises(MemoryError, match="memory"):
        shoal.Plan(
            "clustered-65535",
            batch=1 << 15,
            heads=1 << 10,
            queries=1 << 10,
            keys=10,
            dim=64,
        )


def test_what_would_be_taken_for_something_else():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 30, 16), np.float32)
    with pytest.raises(shoal.ShoalError, match="0 in float32"):
        shoal.attention(q, k, v, "full", scale=1e-50)
    with pytest.raises(shoal.ShoalError, match="groups has shape"):
        shoal.attention(q, k, v, "clustered-3", groups=np.zeros((4, 2, 30), int))
    with pytest.raises(shoal.ShoalError, match="MaskedArray"):
        shoal.attention(np.ma.masked_array(q, q > 0), k, v, "full")
    with pytest.raises(shoal.ShoalError, match="matrix"):
        shoal.attention(np.matrix(q[0, 0]), k[0, 0], v[0, 0], "full")
