"""PyTorch's attention and ours with every combination of its arguments."""

from __future__ import annotations

import itertools
import re

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import shoal  # noqa: E402
import shoal.torch  # noqa: E402
from shoal._native import lib  # noqa: E402
from shoal.torch import scaled_dot_product_attention as sdpa  # noqa: E402

CLUSTERED = ["clustered-7", "i-clustered-7:topk=9", "shoal-7", "auto"]

# The masks of PyTorch's tests, for queries L and keys S: shapes that broadcast.
MASKS = {
    "none": None,
    "2d": lambda b, h, n, s: (n, s),
    "3d": lambda b, h, n, s: (h, n, s),
    "4d": lambda b, h, n, s: (b, h, n, s),
    "of heads": lambda b, h, n, s: (1, h, n, s),
    "of sequences": lambda b, h, n, s: (b, 1, n, s),
    "of keys": lambda b, h, n, s: (b, 1, 1, s),
    "of queries": lambda b, h, n, s: (b, 1, n, 1),
    "one": lambda b, h, n, s: (1, 1, 1, 1),
}


def make_mask(shape, dtype, batch, heads, queries, keys):
    size = MASKS[shape](batch, heads, queries, keys)
    if dtype is torch.bool:
        mask = torch.rand(size) > 0.3
        return mask if shape != "one" else torch.ones(size, dtype=torch.bool)
    mask = torch.randn(size)
    if shape != "one":
        mask[torch.rand(size) < 0.2] = -torch.inf
    return mask.requires_grad_()


def make_inputs(lead, queries, keys, kv_heads=None, dim=16, value_dim=12):
    lead_kv = lead if kv_heads is None else (*lead[:-1], kv_heads)
    return [
        torch.randn(*lead, queries, dim, requires_grad=True),
        torch.randn(*lead_kv, keys, dim, requires_grad=True),
        torch.randn(*lead_kv, keys, value_dim, requires_grad=True),
    ]


def compare(inputs, mask, leaf=None, *, kind="full", **options):
    """Outputs within 1e-5 and gradients within 1e-4; those of the mask, or of its
    source."""
    ours = sdpa(*inputs, mask, **options, kind=kind)
    theirs = F.scaled_dot_product_attention(*inputs, mask, **options)
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, atol=1e-5)
    wanted = list(inputs)
    if mask is not None and mask.requires_grad:
        wanted.append(mask if leaf is None else leaf)
    dout = torch.randn(ours.shape)
    for got, expected in zip(
        torch.autograd.grad(ours, wanted, dout), torch.autograd.grad(theirs, wanted, dout)
    ):
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("shape", list(MASKS))
def test_masks_equal_pytorch(shape, dtype):
    torch.manual_seed(0)
    sizes, scales = ((60, 50), (33, 130), (1, 70), (64, 64)), (None, 0.3)
    for (queries, keys), scale, gqa in itertools.product(sizes, scales, (False, True)):
        inputs = make_inputs((2, 4), queries, keys, 2 if gqa else None)
        mask = None
        if shape != "none":
            mask = make_mask(shape, dtype, 2, 4, queries, keys)
        compare(inputs, mask, scale=scale, enable_gqa=gqa)


@pytest.mark.parametrize("gqa", [False, True])
def test_causal_equals_pytorch(gqa):
    torch.manual_seed(0)
    sizes = ((60, 60), (60, 50), (33, 130), (1, 7), (7, 1), (300, 300))
    for (queries, keys), scale in itertools.product(sizes, (None, 0.3)):
        inputs = make_inputs((2, 4), queries, keys, 2 if gqa else None)
        compare(inputs, None, is_causal=True, scale=scale, enable_gqa=gqa)


@pytest.mark.parametrize("lead", [(), (4,), (2, 4), (3, 2, 4)])
def test_numbers_of_axes(lead):
    torch.manual_seed(0)
    for causal, masked in ((True, False), (False, True), (False, False)):
        inputs = make_inputs(lead, 30, 40)
        mask = torch.randn(30, 40, requires_grad=True) if masked else None
        compare(inputs, mask, is_causal=causal)
    inputs = make_inputs(lead, 30, 40)
    compare(inputs, torch.randn(*lead, 30, 40, requires_grad=True))


def test_memory_layouts():
    torch.manual_seed(0)
    turned = torch.randn(40, 30, requires_grad=True).t()
    sliced = torch.randn(2, 4, 30, 99)[..., 3:43]
    wide = torch.randn(2, 1, 30, 1).expand(2, 4, 30, 40)
    for mask in (turned, sliced, wide, sliced > 0, turned > 0, sliced[..., ::2]):
        compare(make_inputs((2, 4), 30, mask.shape[-1]), mask.detach())
    q, k, v = make_inputs((2, 4), 30, 30, dim=12)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    compare([q, k, v], None, is_causal=True)
    compare([q, k[:, :, :1].expand_as(k), v], None, is_causal=True)


def test_broadcast_keys():
    torch.manual_seed(0)
    q, k, v = make_inputs((2, 4), 30, 40)
    k1, v1 = (torch.randn(1, 1, 40, n, requires_grad=True) for n in (16, 12))
    compare([q, k1, v], None)
    compare([q, k1, v1], torch.randn(30, 40))


def test_queries_without_keys_are_0():
    torch.manual_seed(0)
    inputs = make_inputs((2, 4), 30, 40)
    mask = torch.rand(2, 1, 30, 40) > 0.5
    mask[0, 0, 7] = mask[1, 0, 29] = False
    out = sdpa(*inputs, mask, kind="full")
    assert not out[0, :, 7].any() and not out[1, :, 29].any()
    compare(inputs, mask)
    added = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    assert torch.equal(sdpa(*inputs, added, kind="full"), out)
    # If all scores are the lowest number, as in transformers' masks, keys have equal
    # weights.
    compare(inputs, torch.zeros(mask.shape).masked_fill(~mask, torch.finfo().min))


def test_padding_anywhere():
    torch.manual_seed(0)
    inputs = make_inputs((2, 4), 30, 40)
    right = torch.arange(40) < torch.tensor([40, 13])[:, None]
    for keep in (right, right.flip(-1), torch.rand(2, 40) > 0.5, right & False):
        compare(inputs, keep[:, None, None])


def test_scale_of_0():
    inputs = make_inputs((2, 4), 30, 40)
    compare(inputs, None, scale=0.0)


# ---- Dropout ---------------------------------------------------------------------------


def factors_of(rate, seed, batch, heads, queries, keys):
    rows = [
        lib.shoal_dropout_factor(rate, seed, head, i, l)
        for head in range(batch * heads)
        for i in range(queries)
        for l in range(keys)
    ]
    return torch.tensor(rows).view(batch, heads, queries, keys)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_is_pytorchs_with_the_same_mask(causal):
    torch.manual_seed(3)
    q, k, v = make_inputs((2, 2), 30, 30)
    bias = torch.randn(30, 30, requires_grad=True)
    torch.manual_seed(11)
    ours = shoal.torch.attention(
        q, k, v, "full", bias=bias[None, None], causal=causal, dropout=0.3
    )
    torch.manual_seed(11)
    seed = int(torch.randint(-(1 << 63), (1 << 63) - 1, (1,))) & (1 << 64) - 1
    factors = factors_of(0.3, seed, 2, 2, 30, 30)
    scores = q @ k.transpose(-1, -2) / 4 + bias
    if causal:
        scores = scores.masked_fill(~torch.ones(30, 30).tril().bool(), -torch.inf)
    theirs = (scores.softmax(-1) * factors) @ v
    assert torch.allclose(ours, theirs, atol=1e-5)
    wanted = q, k, v, bias
    dout = torch.randn(ours.shape)
    for got, expected in zip(
        torch.autograd.grad(ours, wanted, dout), torch.autograd.grad(theirs, wanted, dout)
    ):
        assert torch.allclose(got, expected, atol=1e-4)


def test_dropout_of_pytorchs_function():
    q, k, v = make_inputs((2, 4), 200, 200)
    torch.manual_seed(1)
    first, second = (sdpa(q, k, v, dropout_p=0.2, kind="full") for _ in range(2))
    torch.manual_seed(1)
    again = sdpa(q, k, v, dropout_p=0.2, kind="full")
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert not sdpa(q, k, v, dropout_p=1.0, kind="full").any()
    many = torch.stack([sdpa(q, k, v, dropout_p=0.2, kind="full") for _ in range(60)])
    exact = F.scaled_dot_product_attention(q, k, v)
    assert (many.mean(0) - exact).abs().max() < 0.2
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        assert torch.equal(sdpa(q, k, v, dropout_p=0.2, kind="full"), first)
    finally:
        torch.set_num_threads(threads)


# ---- Compilers, and kinds that cannot --------------------------------------------------


def test_opcheck_with_masks():
    torch.manual_seed(0)
    q, k, v = make_inputs((2, 4), 30, 40)
    bias = torch.randn(1, 4, 30, 40, requires_grad=True)
    mask = torch.rand(2, 1, 1, 40) > 0.3
    seed = torch.tensor([5])
    for masks in ((bias, mask, True, 0.25, seed), (None, mask), (bias.detach(),)):
        torch.library.opcheck(
            torch.ops.shoal.attention, (q, k, v, "full", 0.0, None, None, 1, *masks)
        )


def test_compile_with_masks():
    def function(q, k, v, mask, causal):
        return sdpa(q, k, v, mask, is_causal=causal, kind="full").square()

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for length in (30, 41):
        inputs = make_inputs((2, 4), length, length)
        bias = torch.randn(length, length, requires_grad=True)
        for mask, causal in ((bias, False), (bias > 0, False), (None, True)):
            got = compiled(*inputs, mask, causal)
            expected = function(*inputs, mask, causal)
            assert torch.allclose(got, expected, atol=1e-6)
            wanted = [*inputs, bias] if mask is bias else inputs
            for a, b in zip(
                torch.autograd.grad(got.sum(), wanted),
                torch.autograd.grad(expected.sum(), wanted),
            ):
                assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("kind", CLUSTERED)
def test_clustered_kinds_say_which_kinds_can(kind):
    inputs = make_inputs((2, 4), 40, 40)
    for options in (
        dict(is_causal=True),
        dict(dropout_p=0.1),
        dict(attn_mask=torch.ones(40, 40).tril().bool()),
        dict(attn_mask=torch.randn(40, 1)),
    ):
        with pytest.raises(shoal.ShoalError, match="full, shared-full, oracle-top-k"):
            sdpa(*inputs, **options, kind=kind)


# ---- Biases of keys, which clustered kinds take ----------------------------------------

# Kinds that equal full attention: one cluster per query, or every key exact.
ALL_KEYS = ["clustered-99", "i-clustered-7:topk=130", "i-clustered-99:topk=3"]
ALL_KEYS += ["i-clustered-7:topk=130,groups=keys,normaliser=query"]
ALL_KEYS += ["shoal-99", "auto", "q-clustered-99", "shoal-7:topk=130"]
ALL_KEYS += ["q-clustered-7:topk=130"]
KEY_SHAPES = (
    (1, 40),
    (4, 1, 40),
    (2, 1, 1, 40),
    (2, 4, 1, 40),
    (1, 4, 1, 40),
    (1, 1, 1, 1),
)


@pytest.mark.parametrize("kind", ["full", *ALL_KEYS])
def test_biases_of_keys_equal_pytorch(kind):
    torch.manual_seed(0)
    for shape, gqa in itertools.product(KEY_SHAPES, (False, True)):
        inputs = make_inputs((2, 4), 60, 40, 2 if gqa else None)
        mask = torch.randn(shape)
        if mask.numel() > 1:
            mask[torch.rand(shape) < 0.3] = -torch.inf
        compare(inputs, mask.requires_grad_(), enable_gqa=gqa, kind=kind)
        compare(inputs, mask.detach() > 0, enable_gqa=gqa, kind=kind)
        wide = mask.expand(2, 4, 60, 40)  # the same for all queries by its strides
        compare(inputs, wide, mask, enable_gqa=gqa, kind=kind)
        wide = (mask.detach() > 0).expand(2, 4, 60, 40)
        compare(inputs, wide, enable_gqa=gqa, kind=kind)


HIDING = ["clustered-7", "i-clustered-7:topk=9", "i-clustered-7:topk=9,groups=keys"]
HIDING += ["shoal-7:topk=9", "q-clustered-7:topk=9", "auto"]


@pytest.mark.parametrize("kind", HIDING)
def test_hidden_keys_are_as_good_as_absent(kind):
    torch.manual_seed(0)
    q, k, v = make_inputs((2, 4), 90, 70)
    kept = torch.rand(70) > 0.4
    kept[-1] = True
    few = k[:, :, kept], v[:, :, kept]
    wanted = [q, k, v]
    expected = sdpa(q, *few, kind=kind)
    lowest = torch.zeros(70).masked_fill(~kept, torch.finfo().min)
    dout = torch.randn(expected.shape)
    for mask in (kept, kept.expand(2, 4, 90, 70), lowest, lowest.half()):
        got = sdpa(q, k, v, mask, kind=kind)
        assert torch.allclose(got, expected, atol=1e-6)
        for a, b in zip(
            torch.autograd.grad(got, wanted, dout, retain_graph=True),
            torch.autograd.grad(expected, wanted, dout, retain_graph=True),
        ):
            assert torch.allclose(a, b, atol=1e-6)
    nothing = torch.zeros(70, dtype=torch.bool)
    assert not sdpa(q, k, v, nothing, kind=kind).any()


@pytest.mark.parametrize("kind", ["full", "clustered-7", "i-clustered-7:topk=9", "auto"])
def test_padding_of_keys_in_modules(kind):
    torch.manual_seed(0)
    plain = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    layer = shoal.torch.MultiheadAttention.from_torch(plain, kind)
    x, y = torch.randn(2, 60, 32), torch.randn(2, 50, 32)
    kept = torch.arange(50) >= torch.tensor([0, 20])[:, None]
    kept[0, 30] = False
    got = layer(x, y, y, ~kept)[0]
    for b in range(2):
        few = y[b : b + 1, kept[b]]
        expected = layer(x[b : b + 1], few, few)[0]
        assert torch.allclose(got[b : b + 1], expected, atol=1e-5)
        if kind == "full":
            theirs = plain(x, y, y, ~kept)[0]
            assert torch.allclose(got, theirs, atol=1e-5)


def test_lsh_with_hidden_keys():
    """Positions that no query sees do not matter."""
    torch.manual_seed(0)
    q, v = torch.randn(2, 2, 2, 300, 16)
    kept = torch.rand(300) > 0.4
    other = torch.where(kept[:, None], v, torch.randn(v.shape))
    for kind in ("lsh-1", "lsh-8"):
        out = sdpa(q, q, v, kept, kind=kind)
        assert torch.equal(out, sdpa(q, q, other, kept, kind=kind))
        assert not torch.equal(out, sdpa(q, q, v, kind=kind))


def test_opcheck_with_biases_of_keys():
    q, k, v = make_inputs((2, 4), 30, 40)
    for kind in ("full", "i-clustered-7:topk=9"):
        for shape in ((2, 1, 1, 40), (1, 4, 1, 40)):
            bias = torch.randn(shape, requires_grad=True)
            torch.library.opcheck(
                torch.ops.shoal.attention, (q, k, v, kind, 0.0, None, None, 1, bias)
            )


@pytest.mark.parametrize("kind", ["local-16", "strided-16", "oracle-top-8"])
def test_other_kinds_with_masks(kind):
    """The weights that a sliding window or the best keys leave, by plain PyTorch."""
    torch.manual_seed(0)
    q, k, v = make_inputs((2, 2), 50, 50)
    bias = torch.randn(50, 50)
    ours = shoal.torch.attention(q, k, v, kind, bias=bias[None, None], causal=True)
    apart = torch.arange(50)[:, None] - torch.arange(50)
    scores = (q @ k.transpose(-1, -2) / 4 + bias).masked_fill(apart < 0, -torch.inf)
    if kind == "oracle-top-8":
        least = scores.topk(8).values[..., -1:]
        hidden = scores < least
    else:
        hidden = apart > 8
        if kind == "strided-16":
            hidden = hidden & (apart % 16 != 0)
    theirs = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_wrong_masks():
    q, k, v = make_inputs((2, 4), 30, 40)
    bias, mask = torch.zeros(1, 1, 30, 40), torch.ones(1, 1, 30, 40, dtype=torch.bool)
    for options, match in (
        (dict(attn_mask=mask[..., :39]), "broadcast"),
        (dict(attn_mask=bias.double()), "float32"),
        (dict(attn_mask=bias.int()), "boolean"),
        (dict(attn_mask=mask, is_causal=True), "exclude"),
        (dict(dropout_p=1.5), "dropout"),
    ):
        with pytest.raises(shoal.ShoalError, match=match):
            sdpa(q, k, v, **options, kind="full")


@pytest.mark.parametrize("kind", ["full", "clustered-7:iterations=3"])
def test_five_axes_and_fewer_of_the_mask(kind):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 4, 20, 16)
    rows = 1 if kind != "full" else 20
    sdpa = shoal.torch.scaled_dot_product_attention
    for shape in ((3, 4, rows, 20), (3, 1, rows, 20), (1, 4, rows, 20), (2, 1, 1, 1, 20)):
        mask = torch.rand(shape) > 0.3
        got = sdpa(q, k, v, mask, kind=kind)
        for i in range(2):
            whole = mask.expand(2, 3, -1, -1, -1)[i]
            alone = sdpa(q[i], k[i], v[i], whole, kind=kind)
            assert torch.allclose(got[i], alone, atol=1e-5)
        if kind == "full":
            theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
            assert torch.allclose(got, theirs, atol=1e-5)


def test_messages_show_the_shape_that_was_given():
    q = torch.randn(2, 3, 4, 20, 16)
    sdpa = shoal.torch.scaled_dot_product_attention
    scores = r"\(2, 3, 4, 20, 20\)"
    for shape in ((2, 4, 1, 20), (2, 2, 4, 20, 20), (19,), (1, 1, 2, 3, 4, 20, 21)):
        given = re.escape(str(tuple(shape)))
        with pytest.raises(shoal.ShoalError, match=f"{given}, .* {scores}"):
            sdpa(q, q, q, torch.ones(shape, dtype=torch.bool), kind="full")
    for query, shape in ((q, (2, 1, 4, 20, 20)), (q[0], (20, 20)), (q[0, 0], (20, 20))):
        with pytest.raises(shoal.ShoalError, match=re.escape(f"has shape {shape}:")):
            mask = torch.ones(shape, dtype=torch.bool)
            sdpa(query, query, query, mask, kind="clustered-7")
