"""The overhead of a call, counted in function calls; examples/bench_overhead.py measures
the time, on a quiet machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import shoal
from conftest import ROOT


def problem():
    return np.random.default_rng(0).standard_normal((3, 1, 2, 16, 16), np.float32)


def calls_of(function):
    """Functions of Python and of C that run in a repeated call."""
    function()
    names = []

    def note(frame, event, argument):
        if event == "call":
            names.append(frame.f_code.co_name)
        elif event == "c_call":
            names.append(argument.__name__)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


def test_numpy():
    q, k, v = problem()
    names = calls_of(lambda: shoal.attention(q, k, v, "i-clustered-5"))
    assert len(names) <= 36, names


def test_torch():
    torch = pytest.importorskip("torch")
    from shoal.torch import scaled_dot_product_attention

    inputs = [torch.from_numpy(x) for x in problem()]
    names = calls_of(lambda: scaled_dot_product_attention(*inputs, kind="full"))
    assert len(names) <= 44, names
    wanted = [x.clone().requires_grad_() for x in inputs]
    names = calls_of(lambda: scaled_dot_product_attention(*wanted, kind="full"))
    assert len(names) <= 84, names  # a third of them in PyTorch's Function.apply


def test_the_bench_runs():
    """On a busy machine a limit may be exceeded, which is not tested here."""
    command = [sys.executable, ROOT / "python/examples/bench_overhead.py", "--json"]
    command += ["--rounds", 3, "--inner", 2, "--length", 300, "--heads", 1]
    command += ["--long-rounds", 1, "--kinds", "full", "clustered-9"]
    try:
        import torch  # noqa: F401
    except ImportError:
        command.append("--without-torch")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    results = json.loads(done.stdout)
    assert list(results) == ["small", "full", "clustered-9"], done.stderr
    assert {row["call"] for row in results["full"]} >= {"C", "numpy"}
    assert all(row["us"] > 0 for row in results["small"])
