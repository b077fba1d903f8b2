"""The operators, their gradients and the replacements of PyTorch's own attention."""

from __future__ import annotations

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import shoal  # noqa: E402
import shoal.torch  # noqa: E402
from shoal import _torch_functions, _torch_tensors  # noqa: E402
from shoal._engine import Key, NativePlan, _openmp, context_for  # noqa: E402
from shoal.torch import scaled_dot_product_attention as sdpa  # noqa: E402
from conftest import KINDS  # noqa: E402


def tensors(
    batch=2, heads=4, queries=60, keys=50, dim=16, value_dim=12, kv_heads=None, grad=False
):
    torch.manual_seed(0)
    kv_heads = kv_heads or heads
    shapes = (
        (batch, heads, queries, dim),
        (batch, kv_heads, keys, dim),
        (batch, kv_heads, keys, value_dim),
    )
    return [torch.randn(shape, requires_grad=grad) for shape in shapes]


def gradients(function, inputs, dout=None):
    out = function(*inputs)
    torch.manual_seed(5)
    return torch.autograd.grad(
        out, inputs, torch.randn(out.shape) if dout is None else dout
    )


# ---- The operator ----------------------------------------------------------------------


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_opcheck(kind, with_state):
    q, k, v = tensors(grad=with_state)
    lengths = torch.tensor([60, 31]), torch.tensor([50, 20])
    torch.library.opcheck(
        torch.ops.shoal.attention, (q, k, v, kind, 0.0, None, None, with_state)
    )
    turned = q.detach().transpose(1, 2).contiguous().transpose(1, 2)
    turned.requires_grad_(with_state)
    torch.library.opcheck(
        torch.ops.shoal.attention, (turned, k, v, kind, 0.3, *lengths, with_state)
    )


def test_opcheck_shared_and_masks():
    q, _, _ = tensors(grad=True)
    v = torch.randn(2, 4, 60, 5, requires_grad=True)
    for kind in ("shared-full", "lsh-2"):
        torch.library.opcheck(
            torch.ops.shoal.attention, (q, None, v, kind, 0.0, None, None, True)
        )
    mask = torch.zeros(3, 9).masked_fill(torch.rand(3, 9) > 0.5, -torch.inf)
    torch.library.opcheck(torch.ops.shoal.zeros_kept, (mask,))


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_full_equals_pytorch(kv_heads):
    inputs = tensors(kv_heads=kv_heads, grad=True)

    def theirs(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def ours(q, k, v):
        return sdpa(q, k, v, enable_gqa=True, kind="full")

    assert torch.allclose(ours(*inputs), theirs(*inputs), atol=1e-5)
    for got, expected in zip(gradients(ours, inputs), gradients(theirs, inputs)):
        assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_the_library(kind):
    inputs = tensors(grad=True)
    torch.manual_seed(5)
    dout = torch.randn(2, 4, 60, 12)
    plain = [x.detach().numpy() for x in inputs]
    expected = shoal.attention_grad(*plain, dout.numpy(), kind)
    for path in (
        lambda *x: shoal.torch.attention(*x, kind),
        lambda *x: torch.ops.shoal.attention(*x, kind, 0.0, None, None, True)[0],
    ):
        for got, want in zip(gradients(path, inputs, dout), expected):
            assert np.allclose(got.numpy(), want, atol=1e-6)


@pytest.mark.parametrize("kind", ["shared-full", "lsh-2"])
def test_shared_gradients(kind):
    q, _, _ = tensors(grad=True)
    v = torch.randn(2, 4, 60, 5, requires_grad=True)
    expected = shoal.attention_grad(
        q.detach().numpy(),
        None,
        v.detach().numpy(),
        np.ones((2, 4, 60, 5), np.float32),
        kind,
    )
    for k in (None, q):
        dq, dv = torch.autograd.grad(shoal.torch.attention(q, k, v, kind).sum(), (q, v))
        assert np.allclose(dq, expected.dq, atol=1e-6)
        assert np.allclose(dv, expected.dv, atol=1e-6)


def test_requires_grad_in_odd_places():
    inputs = tensors()
    whole = gradients(
        lambda *x: shoal.torch.attention(*x), [x.clone().requires_grad_() for x in inputs]
    )
    for at in range(3):
        some = [x.clone().requires_grad_(i == at) for i, x in enumerate(inputs)]
        out = shoal.torch.attention(*some)
        torch.manual_seed(5)
        out.backward(torch.randn(out.shape))
        assert torch.equal(some[at].grad, whole[at])
        assert all(x.grad is None for i, x in enumerate(some) if i != at)
    with torch.no_grad():
        assert not shoal.torch.attention(*some).requires_grad
    with torch.inference_mode():
        shoal.torch.attention(*some)
    assert shoal.torch.attention(*[torch.nn.Parameter(x) for x in inputs]).requires_grad
    direct = torch.ops.shoal.attention(*some, "full", 0.0, None, None, False)[0]
    with pytest.raises(shoal.ShoalError, match="state_format"):
        direct.sum().backward()


def test_second_derivatives_are_refused():
    inputs = tensors(grad=True)
    first = torch.autograd.grad(
        shoal.torch.attention(*inputs, "full").sum(), inputs[0], create_graph=True
    )[0]
    with pytest.raises(RuntimeError):
        first.sum().backward()
    # Also beside a loss that can be differentiated.
    out = shoal.torch.attention(*inputs, "full")
    first = torch.autograd.grad(out.sum(), inputs[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="autograd"):
        torch.autograd.grad(out.square().mean() + first.square().sum(), inputs[0])


def test_forward_derivatives_are_refused():
    q, k, v = tensors()
    with pytest.raises(shoal.ShoalError, match="forward-mode"):
        torch.func.jvp(
            lambda x: shoal.torch.attention(x, k, v, "full"), (q,), (torch.ones_like(q),)
        )
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(shoal.ShoalError, match="forward-mode"):
            shoal.torch.attention(dual, k, v, "full")
        shoal.torch.attention(q, k, v, "full")


def test_the_default_device_does_not_matter():
    q, k, v = tensors(grad=True)

    def gradient(device):
        with torch.device(device):
            first = shoal.torch.attention(q, k, v, "clustered-7")
            second = shoal.torch.attention(-q, k, v, "clustered-7")
        return torch.autograd.grad(first.sum() + second.square().sum(), q)[0]

    assert torch.equal(gradient("cpu"), gradient("meta"))


def test_halves_beside_other_types_are_refused():
    q, k, v = tensors()
    with pytest.raises(shoal.ShoalError, match="float64"):
        shoal.torch.attention(q.bfloat16(), k.double(), v.bfloat16(), "full")
    for wrong in ((q.half(), k, v), (q, k, v.half()), (q.half(), k.bfloat16(), v.half())):
        with pytest.raises(shoal.ShoalError, match="the same type"):
            shoal.torch.attention(*wrong, "full")


def test_layouts_and_expanded_tensors():
    qkv = torch.randn(2, 60, 3, 4, 16, requires_grad=True)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    for kind, reference in (
        ("full", F.scaled_dot_product_attention),
        (
            "clustered-7",
            lambda *x: shoal.torch.attention(*(y.contiguous() for y in x), "clustered-7"),
        ),
    ):
        got = torch.autograd.grad(
            shoal.torch.attention(q, k, v, kind).square().sum(), qkv, retain_graph=True
        )[0]
        expected = torch.autograd.grad(
            reference(q, k, v).square().sum(), qkv, retain_graph=True
        )[0]
        assert torch.allclose(got, expected, atol=1e-4)
    one = torch.randn(1, 1, 50, 16, requires_grad=True)
    wide = one.expand(2, 4, 50, 16)
    q = torch.randn(2, 4, 60, 16)
    found, wanted = (
        torch.autograd.grad(f(q, wide, wide).sum(), one)[0]
        for f in (
            lambda *x: shoal.torch.attention(*x, "full"),
            F.scaled_dot_product_attention,
        )
    )
    assert torch.allclose(found, wanted, atol=1e-4)
    joined = shoal.torch.attention(q, wide, wide, "full").transpose(1, 2)
    assert joined.is_contiguous()


@pytest.mark.parametrize(
    "shape", [dict(batch=1), dict(heads=1), dict(queries=1), dict(batch=1, heads=1)]
)
def test_axes_of_one_element(shape):
    """Their strides are irrelevant, and one plan serves forward and backward."""
    shoal.clear_cache()
    inputs = tensors(**shape, grad=True)
    found = gradients(lambda *x: shoal.torch.attention(*x, "full"), inputs)
    assert len(context_for(torch.get_num_threads(), borrows=True).plans) == 1
    for got, expected in zip(found, gradients(F.scaled_dot_product_attention, inputs)):
        assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    "kind", [kind.defaults for kind in shoal.kinds()] + ["auto:tolerance=0.1"]
)
def test_states_are_as_large_as_the_formula_says(kind):
    """torch.compile must know their size if lengths are symbols."""
    for dims in ((64, 64), (3, 5)):
        for length in (1, 2, 7, 50, 333, 1500, 5000, 12345, 40001):
            q, v = (torch.empty(2, 3, length, dim, device="meta") for dim in dims)
            key = Key(kind, None, 0.0, True, 2, 3, 3, length, length, *dims)
            needed = NativePlan(context_for(1), key).state_size
            assert needed <= _torch_tensors.state_bytes(q, v, kind), length


# ---- torch.compile ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "i-clustered-7:topk=9"])
def test_compile_without_graph_breaks(kind):
    def function(q, k, v, mask):
        return sdpa(q * 2, k, v, mask, kind=kind).transpose(1, 2).flatten(2).square()

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for length in (50, 51, 64, 90, 33):  # symbolic from the second on
        inputs = tensors(keys=length, queries=length, grad=True)
        mask = (torch.arange(length) < torch.tensor([length, 20])[:, None])[:, None, None]
        expected = function(*inputs, mask)
        got = compiled(*inputs, mask)
        assert torch.allclose(got, expected, atol=1e-5)
        for a, b in zip(
            torch.autograd.grad(got.sum(), inputs),
            torch.autograd.grad(expected.sum(), inputs),
        ):
            assert torch.allclose(a, b, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3
    left = mask.flip(-1)
    assert torch.allclose(compiled(*inputs, left), function(*inputs, left), atol=1e-5)


@pytest.mark.parametrize("kind", ["shoal-7:topk=9", "auto", "i-clustered-7:topk=9"])
def test_compile_with_padding_anywhere(kind):
    def function(q, k, v, mask):
        return sdpa(q, k, v, mask, kind=kind)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    inputs = tensors(grad=True)
    numbers = torch.randn(50).masked_fill(torch.arange(50) % 7 == 0, -torch.inf)
    for mask in (torch.arange(50) > 20, torch.arange(50) % 3 > 0, numbers):
        got, expected = compiled(*inputs, mask), function(*inputs, mask)
        assert torch.allclose(got, expected, atol=1e-5)
        for a, b in zip(
            torch.autograd.grad(got.sum(), inputs),
            torch.autograd.grad(expected.sum(), inputs),
        ):
            assert torch.allclose(a, b, atol=1e-5)


def test_compile_refuses_what_the_kind_cannot():
    def function(q, k, v, mask):
        return sdpa(q, k, v, mask, kind="shoal-7:topk=9")

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="supports masks of keys only"):
        compiled(*tensors(), torch.ones(60, 50).tril().bool())


def test_compile_with_inductor(monkeypatch):
    layer = shoal.torch.MultiheadAttention(64, 4, kind="i-clustered-7", batch_first=True)
    x = torch.randn(2, 60, 64)
    try:
        compiled = torch.compile(layer, fullgraph=True)
        got = compiled(x, x, x)[0]
    except Exception as error:
        if "compiler" in str(error).lower():
            pytest.skip(f"inductor has no C++ compiler here: {error}"[:200])
        raise
    assert torch.allclose(got, layer(x, x, x)[0], atol=1e-5)
    got.sum().backward()
    assert layer.in_proj_weight.grad is not None
    # Another build with larger states must not use the code cached for this one.
    rate = _torch_tensors.state_rate
    monkeypatch.setattr(
        _torch_tensors, "state_rate", lambda *x: (rate(*x)[0] + 1, rate(*x)[1])
    )
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(layer, fullgraph=True)(x, x, x)[0], got)


def test_fake_tensors_and_modes_see_the_operator():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = tensors()
        assert shoal.torch.attention(q, k, v).shape == (2, 4, 60, 12)
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    q, k, v = tensors()
    with Watch():
        shoal.torch.attention(q, k, v)
    assert "shoal.attention.default" in seen


# ---- scaled_dot_product_attention ------------------------------------------------------


def test_key_padding():
    q, k, v = tensors()
    keep = torch.arange(50) < torch.tensor([50, 20])[:, None]
    expected = F.scaled_dot_product_attention(q, k, v, keep[:, None, None])
    shared = keep[1].expand(60, 50)
    for mask in (keep[:, None, None], keep[:, None, None].expand(2, 4, 60, 50)):
        assert torch.allclose(sdpa(q, k, v, mask, kind="full"), expected, atol=1e-5)
    for mask in (keep[1], keep[1:2], shared, keep[1][None, None, None]):
        assert torch.allclose(
            sdpa(q, k, v, mask, kind="full"),
            F.scaled_dot_product_attention(q, k, v, keep[1][None]),
            atol=1e-5,
        )


@pytest.mark.parametrize("shape", [(60, 16), (4, 60, 16), (3, 2, 4, 60, 16)])
def test_other_numbers_of_axes(shape):
    q, k, v = torch.randn(3, *shape)
    out = sdpa(q, k, v, kind="full", scale=0.4)
    exact = F.scaled_dot_product_attention(q, k, v, scale=0.4)
    assert out.shape == exact.shape and torch.allclose(out, exact, atol=1e-5)


def test_refusals():
    q, k, v = tensors()
    keep = torch.arange(50) < 20
    cases = [
        (dict(is_causal=True), "causal"),
        (dict(dropout_p=0.1), "dropout"),
        (
            dict(attn_mask=torch.ones(60, 50, dtype=torch.bool).tril()),
            "masks of keys only",
        ),
        (dict(attn_mask=torch.zeros(2, 1, 1, 50, dtype=torch.int32)), "boolean"),
        (dict(attn_mask=torch.ones(2, 1, 1, 49, dtype=torch.bool)), "broadcast"),
        (dict(kind="nonsense"), "nonsense"),
        (dict(query_lengths=torch.tensor([61, 3])), "query_lengths"),
        (dict(query_lengths=torch.tensor([1, 3], dtype=torch.int32)), "int64"),
    ]
    for options, match in cases:
        with pytest.raises(shoal.ShoalError, match=match):
            sdpa(q, k, v, **options)
    with pytest.raises(shoal.ShoalError, match="enable_gqa"):
        sdpa(q, k[:, :2], v[:, :2])
    with pytest.raises(shoal.ShoalError, match="divide"):
        sdpa(q, k[:, :3], v[:, :3], enable_gqa=True)
    with pytest.raises(shoal.ShoalError, match="kind is a"):
        sdpa(q, k, v, kind=None)


@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min])
def test_float_masks_that_are_padding(low):
    q, k, v = tensors()
    keep = torch.arange(50) < torch.tensor([50, 20])[:, None, None, None]
    mask = torch.zeros(2, 1, 1, 50).masked_fill(~keep, low)
    exact = F.scaled_dot_product_attention(q, k, v, keep)
    assert torch.allclose(sdpa(q, k, v, mask, kind="full"), exact, atol=1e-5)
    whole = sdpa(q, k, v, mask, kind="clustered-60")  # every query is its own cluster
    assert torch.allclose(whole, exact, atol=1e-5)
    left = sdpa(q, k.flip(2), v.flip(2), mask.flip(-1), kind="shoal-60")
    assert torch.allclose(left, exact, atol=1e-5)


def test_wrong_tensors():
    q, k, v = tensors()
    for wrong, match in (
        (q.double(), r"float\(\)"),
        (q.int(), "float32"),
        (q.to("meta"), "CPU"),
        (q[..., :8], "dim"),
        (q[:1], "batch"),
        (q.repeat_interleave(2, -1)[..., ::2], "contiguous"),
        (q.transpose(2, 3).contiguous().transpose(2, 3), "contiguous"),
        (q[0], "axes"),
    ):
        with pytest.raises(shoal.ShoalError, match=match):
            shoal.torch.attention(wrong, k, v, "full")
    with pytest.raises(shoal.ShoalError, match="k is None"):
        shoal.torch.attention(q, None, v, "full")


def test_empty_tensors():
    for shape in (dict(batch=0), dict(queries=0), dict(keys=0)):
        inputs = tensors(**shape, grad=True)
        out = shoal.torch.attention(*inputs)
        assert not out.any()
        out.sum().backward()
        assert all(x.grad.shape == x.shape and not x.grad.any() for x in inputs)


def test_threads_are_pytorchs():
    """Contexts for tensors borrow OpenMP's threads, with the same bits."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 3, 700, 16, generator=generator) for _ in range(3))
    kind = "i-clustered-20:topk=8"
    expected = shoal.attention(q.numpy(), k.numpy(), v.numpy(), kind, threads=1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        found = shoal.torch.attention(q, k, v, kind)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(found.numpy(), expected)
    if sys.platform == "linux":
        assert _openmp() is not None
    assert context_for(3, borrows=True) is not context_for(3)
