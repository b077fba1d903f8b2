"""MultiheadAttention and use_kind compared with PyTorch's own modules."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import shoal  # noqa: E402
import shoal.torch  # noqa: E402


@pytest.mark.parametrize(
    "settings",
    [
        dict(batch_first=True),
        dict(),
        dict(batch_first=True, bias=False),
        dict(batch_first=True, kdim=20, vdim=28),
    ],
)
def test_multihead_attention_equals_pytorch(settings):
    theirs = torch.nn.MultiheadAttention(32, 4, **settings)
    ours = shoal.torch.MultiheadAttention(32, 4, **settings, kind="full")
    ours.load_state_dict(theirs.state_dict())
    torch.manual_seed(1)
    query = torch.randn(2, 30, 32)
    key = torch.randn(2, 40, settings.get("kdim", 32))
    value = torch.randn(2, 40, settings.get("vdim", 32))
    if not settings.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    padding = torch.arange(40) >= torch.tensor([40, 15])[:, None]
    expected, _ = theirs(query, key, value, key_padding_mask=padding, need_weights=False)
    got, weights = ours(query, key, value, key_padding_mask=padding)
    assert weights is None and torch.allclose(got, expected, atol=1e-5)
    alone = [
        x[0] if settings.get("batch_first") else x[:, 0] for x in (query, key, value)
    ]
    assert torch.allclose(ours(*alone)[0], theirs(*alone)[0], atol=1e-5)


def test_multihead_attention_with_masks():
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    ours = shoal.torch.MultiheadAttention.from_torch(theirs, "full")
    x = torch.randn(2, 30, 32)
    future = torch.ones(30, 30, dtype=torch.bool).triu(1)
    padding = torch.arange(30) >= torch.tensor([30, 13])[:, None]
    added = torch.randn(30, 30)
    for mask, pad, causal in (
        (future, None, True),
        (future, padding, False),
        (torch.rand(8, 30, 30) > 0.7, None, False),
        (added, None, False),
        (None, padding.flip(-1), False),
    ):
        options = dict(attn_mask=mask, key_padding_mask=pad, is_causal=causal)
        expected = theirs(x, x, x, need_weights=False, **options)[0]
        got = ours(x, x, x, **options)[0]
        keep = torch.ones_like(padding) if pad is None else ~pad
        assert torch.allclose(got[keep], expected[keep], atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["full", "local-9", "clustered-5"])
def test_padded_rows_are_zero_wherever_they_lie(kind, compiled):
    layer = shoal.torch.MultiheadAttention(32, 4, batch_first=True, kind=kind).eval()
    torch.nn.init.normal_(layer.out_proj.bias)
    run = torch.compile(layer, backend="eager") if compiled else layer
    x = torch.randn(2, 30, 32)
    right = torch.arange(30) >= torch.tensor([30, 13])[:, None]
    hole = torch.zeros(2, 30, dtype=torch.bool)
    hole[1, 10:20] = True
    with torch.no_grad():
        for padding in (right, right.flip(-1), hole):
            out = run(x, x, x, key_padding_mask=padding)[0]
            assert (out[padding] == layer.out_proj.bias).all()
            assert not (out[~padding] == layer.out_proj.bias).all(-1).any()
            # If the keys are not the queries, every query that reaches one counts.
            other = run(x.clone(), x, x, key_padding_mask=padding)[0]
            zero = (other[padding] == layer.out_proj.bias).all(-1)
            assert not (zero.all() if kind == "local-9" else zero.any())


def test_multihead_attention_refuses():
    layer, x = shoal.torch.MultiheadAttention(32, 4, dropout=0.1), torch.randn(5, 2, 32)
    with pytest.raises(shoal.ShoalError, match="skip_dropout=True"):
        layer(x, x, x)
    layer.eval()
    for options, match in (
        (dict(need_weights=True), "weights"),
        (dict(is_causal=True), "full, shared-full"),
        (dict(attn_mask=torch.zeros(5, 5)), "full, shared-full"),
    ):
        with pytest.raises(shoal.ShoalError, match=match):
            layer(x, x, x, **options)
    exact = shoal.torch.MultiheadAttention(32, 4, kind="full")
    with pytest.raises(shoal.ShoalError, match="hint"):
        exact(x, x, x, is_causal=True)
    with pytest.raises(shoal.ShoalError):
        shoal.torch.MultiheadAttention(32, 4, kind="nonsense")
    with pytest.raises(shoal.ShoalError):
        shoal.torch.MultiheadAttention(32, 4, add_bias_kv=True)


def test_multihead_attention_copies_and_pickles():
    layer, x = (
        shoal.torch.MultiheadAttention(32, 4, kind="clustered-3"),
        torch.randn(9, 2, 32),
    )
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.kind == "clustered-3" and torch.equal(
            twin(x, x, x)[0], layer(x, x, x)[0]
        )


@pytest.mark.filterwarnings("ignore:.*nested tensors.*", "ignore:enable_nested_tensor")
def test_use_kind_on_an_encoder():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 40, 32)
    padding = torch.arange(40) >= torch.tensor([40, 15])[:, None]
    names = list(model.state_dict())
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with shoal.torch.use_kind(model, "full"):
            assert list(model.state_dict()) == names
            full = model(x, src_key_padding_mask=padding)
        with shoal.torch.use_kind(model, "clustered-3"):
            rough = model(x, src_key_padding_mask=padding)
            with shoal.torch.use_kind(model, "full"):
                assert torch.equal(model(x, src_key_padding_mask=padding), full)
        after = model(x, src_key_padding_mask=padding)
    live = ~padding
    assert torch.allclose(full[live], plain[live], atol=1e-5)
    assert not torch.allclose(rough[live], plain[live], atol=1e-3)
    assert torch.equal(after, plain)
    assert type(model.layers[0].self_attn) is torch.nn.MultiheadAttention


def test_use_kind_restores_after_an_error():
    layer = shoal.torch.MultiheadAttention(32, 4, kind="full").eval()
    with pytest.raises(KeyError):
        with shoal.torch.use_kind(layer, "clustered-3"):
            assert layer.kind == "clustered-3"
            raise KeyError
    assert layer.kind == "full"
    with pytest.raises(shoal.ShoalError, match="nonsense"):
        shoal.torch.use_kind(layer, "nonsense")
    assert layer.kind == "full"


@pytest.mark.filterwarnings("ignore:.*nested tensors.*", "ignore:enable_nested_tensor")
def test_use_kind_swaps_at_the_call():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 40, 32)
    padding = torch.arange(40) >= torch.tensor([40, 15])[:, None]
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        swap = shoal.torch.use_kind(model, "clustered-3")
        rough = model(x, src_key_padding_mask=padding)
        assert not torch.allclose(rough[~padding], plain[~padding], atol=1e-3)
        swap.undo()
        swap.undo()
        assert torch.equal(model(x, src_key_padding_mask=padding), plain)
        shoal.torch.use_kind(model, "clustered-3")  # the handle is gone, the kind stays
        assert torch.equal(model(x, src_key_padding_mask=padding), rough)
    assert torch.backends.mha.get_fastpath_enabled()


def test_use_kind_is_undone_in_reverse_order():
    model = torch.nn.Sequential(torch.nn.MultiheadAttention(32, 4)).eval()
    first = shoal.torch.use_kind(model, "clustered-3")
    second = shoal.torch.use_kind(model, "full")
    with pytest.raises(shoal.ShoalError, match="full replaced clustered-3 later"):
        first.undo()
    assert model[0].kind == "full"
    second.undo()
    assert model[0].kind == "clustered-3"
    first.undo()
    assert type(model[0]) is torch.nn.MultiheadAttention


@pytest.mark.parametrize("kind", ["clustered-5", "shoal-5:topk=9"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_padding_joins_no_group(batch_first, left, kind):
    layer = shoal.torch.MultiheadAttention(
        32, 4, batch_first=batch_first, kind=kind
    ).eval()
    x = torch.randn(2, 100, 32)
    padding = torch.arange(100) >= torch.tensor([100, 30])[:, None]
    padding = padding.flip(-1) if left else padding
    x[padding] = float("nan")
    given = x if batch_first else x.transpose(0, 1).contiguous()
    out = layer(given, given, given, key_padding_mask=padding)[0]
    out = out if batch_first else out.transpose(0, 1)
    assert not out[~padding].isnan().any()
    alone = layer.to(x.dtype)(*(x[1:, ~padding[1]],) * 3)[0] if batch_first else None
    assert alone is None or torch.allclose(out[1, ~padding[1]], alone[0], atol=1e-5)


def test_nothing_in_nothing_out():
    layer = shoal.torch.MultiheadAttention(32, 4, batch_first=True, kind="full").eval()
    for shape in ((0, 10, 32), (2, 0, 32)):
        x = torch.zeros(shape)
        assert layer(x, x, x)[0].shape == shape


def test_masks_of_numbers_are_padding_or_refused():
    layer = shoal.torch.MultiheadAttention(32, 4, batch_first=True, kind="full").eval()
    x = torch.randn(1, 60, 32)
    padding = torch.arange(60)[None] >= 50
    numbers = torch.zeros(1, 60).masked_fill(padding, float("-inf"))
    expected = layer(x, x, x, key_padding_mask=padding)[0]
    assert torch.equal(layer(x, x, x, key_padding_mask=numbers)[0], expected)
    with pytest.raises(shoal.ShoalError, match="other than 0"):
        layer(x, x, x, key_padding_mask=torch.zeros(1, 60).masked_fill(padding, -0.5))


def test_what_a_swap_would_lose_is_refused():
    class Shifted(torch.nn.MultiheadAttention):
        def forward(self, query, *others, **options):
            return super().forward(query + 1, *others, **options)

    model = torch.nn.Sequential(Shifted(32, 4)).eval()
    with pytest.raises(shoal.ShoalError, match="overrides forward"):
        with shoal.torch.use_kind(model, "full"):
            pass
    assert type(model[0]) is Shifted
    bare = torch.nn.MultiheadAttention(32, 4).eval()
    with pytest.raises(shoal.ShoalError, match="modules inside"):
        with shoal.torch.use_kind(bare, "full"):
            pass
