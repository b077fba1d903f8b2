"""shoal on numpy arrays compared with plain formulas; layouts, errors, corner cases."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest

import shoal
from shoal._engine import PLANS_KEPT, context_for
from conftest import KINDS, LISTED, arrays, data, softmax_attention


# ---- Values ----------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_full_is_softmax(kv_heads):
    q, k, v = arrays(kv_heads=kv_heads)
    assert np.allclose(
        shoal.attention(q, k, v, "full"), softmax_attention(q, k, v), atol=1e-5
    )
    assert np.allclose(
        shoal.attention(q, k, v, "full", scale=0.7),
        softmax_attention(q, k, v, 0.7),
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", KINDS[1:6])
def test_other_kinds_are_near_and_exact_where_they_must_be(kind):
    q, k, v = arrays()
    exact = softmax_attention(q, k, v)
    error = np.linalg.norm(shoal.attention(q, k, v, kind) - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 1
    if "topk" in kind:
        every = kind.replace("topk=9", "topk=50")
        assert np.allclose(shoal.attention(q, k, v, every), exact, atol=1e-5)
    if "-top-" not in kind:
        few = shoal.attention(q[:, :, :7], k, v, kind)
        assert np.allclose(few, exact[:, :, :7], atol=1e-5)


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_fewer_axes(axes):
    q, k, v = (x[(0,) * (4 - axes)] for x in arrays())
    out = shoal.attention(q, k, v, "full")
    assert out.shape == q.shape[:-1] + (12,)
    assert np.allclose(out, softmax_attention(q, k, v), atol=1e-5)
    assert shoal.attention_grad(q, k, v, out, "full").dv.shape == v.shape
    assert shoal.groups(q, k, "clustered-5").shape == q.shape[:-1]
    assert shoal.error_estimate(q, k, v, out).relative_error < 1e-5
    assert shoal.attention(q, k, v, "full", out=np.empty_like(out)).shape == out.shape


def test_lengths_are_padding_on_the_right():
    q, k, v = arrays()
    q[0, :, 33:], k[1, :, 20:], v[1, :, 20:] = np.nan, np.nan, np.nan
    out = shoal.attention(q, k, v, "full", query_lengths=[33, 60], key_lengths=[50, 20])
    assert not out[0, :, 33:].any()
    assert np.allclose(
        out[0, :, :33], softmax_attention(q[0, :, :33], k[0], v[0]), atol=1e-5
    )
    assert np.allclose(
        out[1], softmax_attention(q[1], k[1, :, :20], v[1, :, :20]), atol=1e-5
    )
    assert not shoal.attention(q, k, v, "full", key_lengths=0).any()


def test_shared_kinds_take_no_keys():
    q, _, _ = arrays(queries=64)
    v = np.ascontiguousarray(q[..., :5])
    expected = softmax_attention(q, q, v)
    for k in (None, q):
        assert np.allclose(shoal.attention(q, k, v, "shared-full"), expected, atol=1e-5)
        assert shoal.attention(q, k, v, "lsh-2").shape == v.shape
        gradients = shoal.attention_grad(q, k, v, v, "shared-full")
        assert gradients.dk is None and gradients.dq.shape == q.shape
    with pytest.raises(shoal.ShoalError, match="keys"):
        shoal.attention(q, q.copy(), v, "lsh-2")
    with pytest.raises(shoal.ShoalError, match="k is None"):
        shoal.attention(q, None, v, "full")


def test_keys_that_are_the_queries_have_a_gradient_of_their_own():
    q, _, _ = arrays(queries=20, dim=12)
    both = shoal.attention_grad(q, q, q, q, "full")
    apart = shoal.attention_grad(q, q.copy(), q.copy(), q, "full")
    assert all(np.array_equal(a, b) for a, b in zip(both, apart))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "shoal-7:topk=9"])
def test_gradients_by_differences(kind):
    """Along random directions, with fixed clusters. If a step moves a key into or out of
    the exact keys the output jumps, so most directions must agree, not all. The constants
    of shoal with key clusters cannot be fixed from Python; the C tests do that.
    """
    rng = np.random.default_rng(3)
    q, k, v = arrays(1, 2, 40, 30, 8, 6)
    dout = rng.standard_normal((1, 2, 40, 6), np.float32)
    gradients = shoal.attention_grad(q, k, v, dout, kind)
    groups = (
        shoal.groups(q, k, kind) if kind.startswith(("clus", "i-clus", "shoal")) else None
    )

    def loss(*inputs):
        return float(
            (shoal.attention(*inputs, kind, groups=groups).astype(float) * dout).sum()
        )

    step = 5e-4
    for at, gradient in enumerate(gradients):
        errors = []
        for direction in rng.standard_normal((5, *gradient.shape), np.float32):
            moved = [
                [
                    x + sign * step * direction if i == at else x
                    for i, x in enumerate((q, k, v))
                ]
                for sign in (1, -1)
            ]
            slope = (loss(*moved[0]) - loss(*moved[1])) / (2 * step)
            errors.append(abs(slope - float((gradient * direction).sum())))
        assert np.median(errors) < 0.01 * np.linalg.norm(gradient), (at, errors)


def test_seed_and_groups():
    q, k, v = arrays(queries=300)
    first = shoal.groups(q, k, "clustered-9", seed=1)
    assert np.array_equal(first, shoal.groups(q, k, "clustered-9"))
    assert np.array_equal(
        shoal.groups(q, k, "clustered-9", seed=5),
        shoal.groups(q, k, "clustered-9:seed=5"),
    )
    assert not np.array_equal(first, shoal.groups(q, k, "clustered-9", seed=5))
    out = shoal.attention(q, k, v, "clustered-9")
    assert np.array_equal(out, shoal.attention(q, k, v, "clustered-9", groups=first))
    assert not np.array_equal(
        out, shoal.attention(q, k, v, "clustered-9", groups=first % 3)
    )
    padded = shoal.groups(q, k, "clustered-9", query_lengths=[300, 10])
    assert (padded[1, :, 10:] == -1).all() and (padded[1, :, :10] >= 0).all()


def test_threads_do_not_change_the_result():
    q, k, v = arrays(queries=400, keys=300)
    one, many = (shoal.attention(q, k, v, "i-clustered-20", threads=n) for n in (1, 3))
    assert np.array_equal(one, many)


# ---- Layouts ---------------------------------------------------------------------------


def test_views_go_without_copies():
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal(
        (2, 60, 3, 4, 16), np.float32
    )  # [batch][position][3][head][dim]
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    expected = shoal.attention(*(np.ascontiguousarray(x) for x in (q, k, v)), "full")
    assert np.array_equal(shoal.attention(q, k, v, "full"), expected)
    wide = rng.standard_normal((2, 4, 60, 32), np.float32)
    wide[..., :16] = q
    assert np.array_equal(shoal.attention(wide[..., :16], k, v, "full"), expected)
    every_other = np.zeros((2, 4, 120, 16), np.float32)
    every_other[:, :, ::2] = q
    assert np.array_equal(shoal.attention(every_other[:, :, ::2], k, v, "full"), expected)
    out = np.zeros((2, 60, 4, 16), np.float32)
    assert shoal.attention(q, k, v, "full", out=out.transpose(0, 2, 1, 3)).base is out
    assert np.array_equal(out.transpose(0, 2, 1, 3), expected)


def test_nothing_is_copied():
    """numpy reports every array that it allocates to tracemalloc."""
    qkv = np.zeros((1, 2000, 3, 4, 64), np.float32)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    out = np.empty((1, 2000, 4, 64), np.float32).transpose(0, 2, 1, 3)
    tracemalloc.start()
    try:
        shoal.attention(q, k, v, "clustered-5", out=out)
        most = tracemalloc.get_traced_memory()[1]
        shoal.attention(q, k, v, "clustered-5")
        with_output = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < q.nbytes // 4 < q.nbytes <= with_output < 1.25 * q.nbytes


def test_views_have_gradients_with_their_strides():
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((2, 60, 3, 4, 16), np.float32)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    dout = rng.standard_normal((2, 4, 60, 16), np.float32)
    found = shoal.attention_grad(q, k, v, dout, "i-clustered-9")
    expected = shoal.attention_grad(
        *(np.ascontiguousarray(x) for x in (q, k, v)), dout, "i-clustered-9"
    )
    assert all(np.array_equal(a, b) for a, b in zip(found, expected))
    assert found.dq.strides == q.strides


def test_broadcast_views():
    q, k, v = arrays(batch=3)
    one = np.broadcast_to(k[:1], k.shape)
    assert np.allclose(
        shoal.attention(q, one, v, "full"), softmax_attention(q, one, v), atol=1e-5
    )
    assert (
        shoal.attention_grad(q, one, v, np.ones((3, 4, 60, 12), np.float32)).dk.shape
        == k.shape
    )
    row = np.broadcast_to(k[:1, :1, :1], k.shape)
    with pytest.raises(shoal.ShoalError, match="broadcast"):
        shoal.attention(q, row, v, "full")
    single = np.broadcast_to(k[:1, :1, :1], (1, 1, 50, 16))
    assert np.allclose(
        shoal.attention(q[:1, :1], single, v[:1, :1], "full"),
        softmax_attention(q[:1, :1], single, v[:1, :1]),
        atol=1e-5,
    )


def test_read_only_inputs():
    q, k, v = arrays()
    for x in (q, k, v):
        x.flags.writeable = False
    shoal.attention(q, k, v)


# ---- Corners ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [dict(batch=0), dict(queries=0), dict(keys=0)])
def test_empty(kind, shape):
    q, k, v = arrays(**shape)
    out = shoal.attention(q, k, v, kind)
    assert out.shape == q.shape[:3] + (12,) and not out.any()
    gradients = shoal.attention_grad(q, k, v, out, kind)
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]


def test_one_of_everything():
    one = np.full((1, 1, 1, 1), 3, np.float32)
    assert shoal.attention(one, one, one, "i-clustered-100") == 3


def test_plan():
    q, k, v = arrays()
    plan = shoal.Plan(
        "i-clustered-7:topk=9",
        batch=2,
        heads=4,
        queries=60,
        keys=50,
        dim=16,
        value_dim=12,
        backward=True,
        threads=1,
    )
    with pytest.raises(shoal.ShoalError, match="forward before"):
        plan.backward(np.zeros((2, 4, 60, 12), np.float32))
    with pytest.raises(shoal.ShoalError, match="forward before"):
        plan.groups
    out = plan.forward(q, k, v)
    assert np.array_equal(out, shoal.attention(q, k, v, "i-clustered-7:topk=9"))
    assert np.array_equal(plan.groups, shoal.groups(q, k, "i-clustered-7:topk=9"))
    assert plan.top_keys.shape == (2, 4, 7, 9) and plan.top_keys.max() < 50
    assert 1e-4 < plan.error_estimate(samples=50).relative_error < 1
    expected = shoal.attention_grad(q, k, v, out, "i-clustered-7:topk=9")
    assert all(np.array_equal(a, b) for a, b in zip(plan.backward(out), expected))
    with pytest.raises(shoal.ShoalError, match="do not match the plan"):
        plan.forward(q[:, :, :30], k, v)
    with pytest.raises(shoal.ShoalError, match="Plan.like"):
        plan.forward(q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), k, v)
    with pytest.raises(shoal.ShoalError, match="dout"):
        plan.backward(out[:1])
    assert shoal.Plan("full", batch=1, heads=1, queries=4, keys=4, dim=4).workspace > 0
    forward_only = shoal.Plan.like(q, k, v, "full")
    forward_only.forward(q, k, v)
    assert forward_only.groups is None and forward_only.top_keys is None
    with pytest.raises(shoal.ShoalError, match="BACKWARD"):
        forward_only.backward(out)


def test_pickling():
    q, k, v = arrays()
    plan = shoal.Plan.like(q, k, v, "i-clustered-7", scale=0.3, backward=True)
    out = plan.forward(q, k, v)
    twin = pickle.loads(pickle.dumps(plan))
    assert np.array_equal(twin.forward(q, k, v), out) and repr(twin) == repr(plan)
    error = pickle.loads(pickle.dumps(shoal.ShoalError("no")))
    assert isinstance(error, shoal.ShoalError) and str(error) == "no"


def test_the_store_of_plans_is_bounded():
    for queries in range(1, 3 * PLANS_KEPT):
        q, k, v = arrays(queries=queries)
        shoal.attention(q, k, v, "full", threads=1)
    context = context_for(1)
    assert len(context.plans) == PLANS_KEPT
    assert context.bytes_kept == sum(plan.workspace for plan in context.plans.values())
    assert context.latest == next(reversed(context.plans.items()))
    shoal.clear_cache()
    assert not context.plans and context.bytes_kept == 0
    assert context.latest == (None, None)


def test_error_estimate():
    q, k, v = arrays(queries=500)
    out = shoal.attention(q, k, v, "i-clustered-7")
    exact = softmax_attention(q, k, v)
    true = np.linalg.norm(out - exact) / np.linalg.norm(exact)
    every = shoal.error_estimate(q, k, v, out, samples=10**6)
    assert every.samples == 2 * 4 * 500 and abs(every.relative_error - true) < 1e-5
    assert abs(shoal.error_estimate(q, k, v, out).relative_error - true) < 0.2 * true
    with pytest.raises(shoal.ShoalError, match="samples"):
        shoal.error_estimate(q, k, v, out, samples=-1)
    with pytest.raises(shoal.ShoalError, match="out has shape"):
        shoal.error_estimate(q, k, v, out[:, :, 1:])


@pytest.mark.skipif("auto" not in LISTED, reason="this library has no kind auto")
def test_auto():
    """Short problems are exact; the library parses the options."""
    q, k, v = arrays()
    out = shoal.attention(q, k, v, "auto:tolerance=0.1")
    assert np.allclose(out, softmax_attention(q, k, v), atol=1e-5)
    assert shoal.spelling("auto:tolerance=0.25") == "auto:tolerance=0.25"
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 3000, 64), np.float32)
    plan = shoal.Plan.like(q, k, v, "auto", backward=True)
    with pytest.raises(shoal.ShoalError, match="forward before"):
        plan.picked
    out = plan.forward(q, k, v)
    assert plan.picked.startswith("shoal-")
    assert np.array_equal(out, shoal.attention(q, k, v, plan.picked))
    expected = shoal.attention_grad(q, k, v, out, plan.picked)
    assert all(np.array_equal(a, b) for a, b in zip(plan.backward(out), expected))
    with pytest.raises(shoal.ShoalError, match="tolerance"):
        shoal.attention(q, k, v, "auto:tolerance=-1")


def test_kinds_have_spellings():
    for kind in shoal.kinds():
        assert shoal.spelling(kind.defaults) and kind.cost and kind.summary


def test_real_queries():
    folder = data("qkv", "minilm-l6")
    q, k, v = (np.load(folder / f"layer3_{name}.npy") for name in "qkv")
    exact = softmax_attention(q, k, v)
    errors = [
        np.linalg.norm(shoal.attention(q, k, v, kind) - exact) / np.linalg.norm(exact)
        for kind in ("full", "i-clustered-100:topk=64", "i-clustered-25", "clustered-25")
    ]
    assert errors[0] < 1e-5 and errors == sorted(errors)


def test_a_plan_keeps_the_lengths_of_its_forward():
    n = 300
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, n, 16), np.float32)
    plan = shoal.Plan.like(q, k, v, "clustered-7", backward=True, threads=1)
    lengths = np.array([n, 10])
    plan.forward(q, k, v, query_lengths=lengths, key_lengths=lengths)
    expected = plan.backward(np.ones_like(q))
    lengths[:] = n
    for got, wanted in zip(plan.backward(np.ones_like(q)), expected):
        assert np.array_equal(got, wanted)
