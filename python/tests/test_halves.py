"""Arrays in half precision: no conversion of whole arrays, and one rounding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import shoal
from conftest import KINDS, arrays


# ---- numpy -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_float16_is_float32_rounded(kind):
    halves = [x.astype(np.float16) for x in arrays(kv_heads=2)]
    floats = [x.astype(np.float32) for x in halves]
    out = shoal.attention(*halves, kind)
    assert out.dtype == np.float16
    assert np.array_equal(out, shoal.attention(*floats, kind).astype(np.float16))
    turned = [x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in halves]
    assert np.array_equal(shoal.attention(*turned, kind), out)
    room = np.empty_like(out)
    assert shoal.attention(*halves, kind, out=room) is room
    assert np.array_equal(room, out)
    assert shoal.error_estimate(*halves, out, kind).relative_error < 1


def test_float16_gradients():
    halves = [x.astype(np.float16) for x in arrays()]
    floats = [x.astype(np.float32) for x in halves]
    plan = shoal.Plan.like(*halves, "full", backward=True)
    out = plan.forward(*halves)
    dout = np.ones_like(out)
    for got, expected in zip(
        plan.backward(dout),
        shoal.attention_grad(*floats, dout.astype(np.float32), "full"),
    ):
        assert got.dtype == np.float16
        assert np.allclose(got, expected, atol=2e-3)
    size = dict(batch=2, heads=4, queries=60, keys=50, dim=16, value_dim=12)
    again = shoal.Plan("full", dtype=np.float16, **size).forward(*halves)
    assert np.array_equal(again, out)
    with pytest.raises(shoal.ShoalError, match="dtype"):
        shoal.Plan("full", dtype=np.float64, **size)


# ---- PyTorch ---------------------------------------------------------------------------

torch = pytest.importorskip("torch")
F = torch.nn.functional

import shoal.torch  # noqa: E402
from shoal.torch import scaled_dot_product_attention as sdpa  # noqa: E402

HALVES = [torch.float16, torch.bfloat16]


def make(dtype, lead=(2, 4), queries=60, keys=50, kv_heads=None, dim=16, value_dim=12):
    lead_kv = lead if kv_heads is None else (*lead[:-1], kv_heads)
    shapes = (*lead, queries, dim), (*lead_kv, keys, dim), (*lead_kv, keys, value_dim)
    return [torch.randn(x).to(dtype).requires_grad_() for x in shapes]


def run(function, inputs, dout, *arguments, **options):
    """Output and gradients, in float64."""
    out = function(*inputs, *arguments, **options)
    gradients = torch.autograd.grad(out, inputs, dout.to(out.dtype))
    assert all(x.dtype is y.dtype for x, y in zip(gradients, inputs))
    return [x.double() for x in (out, *gradients)]


@pytest.mark.parametrize("value_dim", [16, 12])
@pytest.mark.parametrize("dtype", HALVES)
def test_error_is_no_larger_than_pytorchs(dtype, value_dim):
    """Compared with attention of the same half-precision values in float64. If values
    have another dimension than keys, PyTorch keeps all weights in float32, and its
    gradients of queries and keys do not come from rounded outputs; otherwise they do too.
    """
    torch.manual_seed(0)
    masks = None, torch.rand(60, 50) > 0.3, torch.randn(2, 1, 60, 50)
    most = [1.001] * 4 if value_dim == 16 else [1.001, 1.3, 1.3, 1.001]
    for mask, causal, gqa in itertools.product(masks, (False, True), (False, True)):
        if causal and mask is not None:
            continue
        inputs = make(dtype, kv_heads=2 if gqa else None, value_dim=value_dim)
        dout = torch.randn(2, 4, 60, value_dim).to(dtype)
        options = dict(is_causal=causal, enable_gqa=gqa)
        wide = [x.detach().double().requires_grad_() for x in inputs]
        exact_mask = mask
        if mask is not None and mask.is_floating_point():
            mask = mask.to(dtype)
            exact_mask = mask.double()
        exact = run(F.scaled_dot_product_attention, wide, dout, exact_mask, **options)
        theirs = run(F.scaled_dot_product_attention, inputs, dout, mask, **options)
        ours = run(sdpa, inputs, dout, mask, **options, kind="full")
        for right, their, our, bound in zip(exact, theirs, ours, most):
            assert (our - right).norm() <= bound * (their - right).norm()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "kind", [*KINDS, "local-16", "strided-16", "shared-full", "lsh-2"]
)
def test_halves_are_floats_rounded(kind, dtype):
    torch.manual_seed(0)
    shared = kind in ("shared-full", "lsh-2")
    q, k, v = make(dtype, keys=60) if shared else make(dtype, kv_heads=2)
    inputs = (q, v) if shared else (q, k, v)

    def call(*tensors):
        k = tensors[0] if shared else tensors[1]
        return shoal.torch.attention(tensors[0], k, tensors[-1], kind)

    out = call(*inputs)
    wide = [x.detach().float().requires_grad_() for x in inputs]
    floats = call(*wide)
    assert out.dtype is dtype and torch.equal(out, floats.to(dtype))
    dout = torch.randn(out.shape).to(dtype)
    got = torch.autograd.grad(out, inputs, dout)
    expected = torch.autograd.grad(floats, wide, dout.float())
    for a, b in zip(got, expected):
        assert a.dtype is dtype
        assert torch.allclose(a.float(), b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", HALVES)
def test_biases_have_gradients(dtype):
    torch.manual_seed(0)
    inputs = make(dtype)
    wide = [x.detach().float().requires_grad_() for x in inputs]
    for shape, kinds in (
        ((60, 50), ["full"]),
        ((2, 1, 1, 50), ["full", "i-clustered-7:topk=50", "clustered-99"]),
    ):
        bias = torch.randn(shape).to(dtype).requires_grad_()
        dout = torch.randn(2, 4, 60, 12).to(dtype)
        theirs = F.scaled_dot_product_attention(*wide, bias.float())
        (expected,) = torch.autograd.grad(theirs, bias, dout.float())
        for kind in kinds:
            ours = sdpa(*inputs, bias, kind=kind)
            (got,) = torch.autograd.grad(ours, bias, dout)
            assert got.dtype is dtype
            assert torch.allclose(ours.float(), theirs, atol=1e-2, rtol=1e-2)
            assert torch.allclose(got.float(), expected.float(), atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("dtype", HALVES)
def test_compiled_and_checked(dtype):
    torch._dynamo.reset()
    inputs = make(dtype)

    def function(q, k, v):
        return sdpa(q, k, v, kind="i-clustered-7:topk=9").square()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), function(*inputs))
    arguments = (*inputs, "clustered-7", 0.0, None, None, 1)
    torch.library.opcheck(torch.ops.shoal.attention, arguments)


@pytest.mark.parametrize("dtype", HALVES)
def test_modules_in_half_precision(dtype):
    torch.manual_seed(0)
    plain = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=dtype).eval()
    x = torch.randn(2, 60, 32).to(dtype)
    padding = torch.arange(60) >= torch.tensor([60, 41])[:, None]
    expected = plain.float()(*(x.float(),) * 3, padding)[0]
    layer = shoal.torch.MultiheadAttention.from_torch(plain.to(dtype), "full")
    got = layer(x, x, x, padding)[0]
    assert got.dtype is dtype
    kept = ~padding
    assert torch.allclose(got.float()[kept], expected[kept], atol=2e-2)
