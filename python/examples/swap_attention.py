"""Replaces the attention of a model at inference, and prints error and time.

The text is repeated up to --length tokens, as far as the model's positions allow.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import shoal.torch
from common import Missing, load, minilm_path, run, table, tokenizer_of

TEXT = (
    "Herring swim in shoals of millions. No fish sees the whole; each watches its "
    "neighbours, and the shoal turns as one. "
)


@torch.no_grad()
def run_model(model: Any, inputs: Any, repeats: int) -> tuple[torch.Tensor, float]:
    """(hidden states, median milliseconds)."""
    hidden = model(**inputs).last_hidden_state
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        model(**inputs)
        times.append(1000 * (time.perf_counter() - started))
    return hidden, statistics.median(times)


def main(options: argparse.Namespace) -> None:
    path = options.model or minilm_path()
    model = load(path, "sdpa")
    positions = getattr(model.config, "max_position_embeddings", options.length)
    text = TEXT
    if options.text:
        if not Path(options.text).exists():
            raise Missing(f"no {options.text}")
        text = Path(options.text).read_text(encoding="utf-8")
    inputs = tokenizer_of(path)(
        [text * (1 + options.length // 8)],
        return_tensors="pt",
        truncation=True,
        max_length=min(options.length, positions),
    )
    exact, milliseconds = run_model(model, inputs, options.repeats)
    tokens = int(inputs["input_ids"].shape[1])
    rows = [
        {
            "attention": "PyTorch's own",
            "tokens": tokens,
            "relative error": 0.0,
            "cosine": 1.0,
            "ms": milliseconds,
        }
    ]
    for kind in options.kinds:
        with shoal.torch.use_kind(model, kind):
            hidden, milliseconds = run_model(model, inputs, options.repeats)
        error = float((hidden - exact).norm() / exact.norm())
        cosine = float(torch.cosine_similarity(hidden.mean(1), exact.mean(1)).mean())
        rows.append(
            {
                "attention": kind,
                "tokens": tokens,
                "relative error": error,
                "cosine": cosine,
                "ms": milliseconds,
            }
        )
    table(rows, options.json)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "kinds",
        nargs="*",
        help="kinds of attention",
        default=["full", "i-clustered-25", "shoal"],
    )
    parser.add_argument("--model", help="folder of a model; None is all-MiniLM-L6-v2")
    parser.add_argument("--text", help="file of text; None is a sentence about herring")
    parser.add_argument("--length", type=int, default=512, help="tokens")
    parser.add_argument("--repeats", type=int, default=5, help="runs that are timed")
    return parser


if __name__ == "__main__":
    sys.exit(run(main, arguments()))
