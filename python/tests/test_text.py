"""TextEncoder, on the small recorded models of tests/models/text."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from conftest import ROOT, needs

MODELS = ROOT / "tests" / "models" / "text"
TEXTS = ["Attention in linear time.", "", "a b c", "queries huddle into clusters " * 30]


@pytest.fixture(autouse=True)
def library():
    needs("models")


@pytest.mark.parametrize("name", ["bert", "roberta", "modern"])
def test_vectors(name):
    with shoal.TextEncoder(MODELS / name) as encoder:
        vectors = encoder.embed(TEXTS)
        alone = [encoder.embed([text])[0] for text in TEXTS]
    assert vectors.dtype == np.float32 and vectors.shape == (4, 16)
    assert np.abs(vectors - alone).max() < 1e-5


def test_options():
    long = TEXTS[3]
    cut = shoal.TextEncoder(MODELS / "bert", window=8, long="cut", normalize=True)
    twice = cut.embed([long, long + "more"])
    assert np.abs(twice[0] - twice[1]).max() < 1e-6
    assert abs(np.linalg.norm(cut.embed([long])) - 1) < 1e-5
    exact = shoal.TextEncoder(MODELS / "bert", "i-clustered-4:topk=512", pooling="first")
    full = shoal.TextEncoder(MODELS / "bert", pooling="first", threads=1)
    assert np.abs(exact.embed(TEXTS) - full.embed(TEXTS)).max() < 1e-5


def test_refusals():
    with pytest.raises(shoal.ShoalError, match="config.json"):
        shoal.TextEncoder(MODELS)
    with pytest.raises(shoal.ShoalError, match="separate keys"):
        shoal.TextEncoder(MODELS / "bert", "lsh-1")
    with pytest.raises(shoal.ShoalError, match="pooling"):
        shoal.TextEncoder(MODELS / "bert", pooling="last")
    encoder = shoal.TextEncoder(MODELS / "bert")
    with pytest.raises(shoal.ShoalError, match="list of strings"):
        encoder.embed("one")
    assert encoder.embed([]).shape == (0, 16)
    encoder.close()
    with pytest.raises(shoal.ShoalError, match="closed"):
        encoder.embed(["a"])


def test_precision():
    with shoal.TextEncoder(MODELS / "bert", precision="float32") as encoder:
        assert encoder.precision == "float32"
        exact = encoder.embed(TEXTS)
    for precision in ("auto", "bfloat16", "int8"):
        with shoal.TextEncoder(MODELS / "bert", precision=precision) as encoder:
            assert encoder.precision in ("float32", "bfloat16", "int8")
            assert np.abs(encoder.embed(TEXTS) - exact).max() < 0.1
    with pytest.raises(shoal.ShoalError, match="precision is 'int4'"):
        shoal.TextEncoder(MODELS / "bert", precision="int4")
