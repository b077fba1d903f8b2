"""STS-B: how well all-MiniLM-L6-v2 ranks sentence pairs with each kind of attention.

Prints Pearson's correlation between the cosine of two sentences' vectors and the human
similarity rating of the pair, on the development set. Sentences are short: --length pads
each to that many tokens, and by default the padding takes part as queries, so that there
is something to cluster.
"""

from __future__ import annotations

import argparse
import csv
import sys
from typing import Any

import torch

from common import data_file, embed, load, minilm_path, run, table, tokenizer_of

FULL, TOLERANCE = 0.870, 0.002  # result of full attention
MOST_LOST = 0.005  # with shoal


def read_pairs(options: argparse.Namespace) -> tuple[list[str], list[str], torch.Tensor]:
    path = data_file(options.data, "glue", "STS-B", "sts-dev.tsv")
    with open(path, encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[
            : options.limit
        ]
    return (
        [row[5] for row in rows],
        [row[6] for row in rows],
        torch.tensor([float(row[4]) for row in rows]),
    )


def pearson(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


def verdict(kind: str, score: float, full: float) -> str:
    if kind == "full":
        good = abs(score - FULL) <= TOLERANCE
        return f"{FULL} +- {TOLERANCE}: {'met' if good else 'missed'}"
    if kind.startswith("shoal"):
        good = full - score <= MOST_LOST
        return f"loses at most {MOST_LOST}: {'met' if good else 'missed'}"
    return ""


def main(options: argparse.Namespace) -> None:
    first, second, gold = read_pairs(options)
    path = options.model or minilm_path()
    tokenizer = tokenizer_of(path)
    padding: dict[str, Any] = dict(padding=True, max_length=options.length or 128)
    if options.length:
        padding["padding"] = "max_length"
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys(["full", *options.kinds]):
        model = load(path, kind, keep_padding=not options.skip_padding)
        vectors = embed(model, tokenizer, first + second, kind, options.batch, **padding)
        ours = (vectors[: len(first)] * vectors[len(first) :]).sum(-1)
        score = pearson(ours, gold)
        full = rows[0]["pearson"] if rows else score
        rows.append(
            {
                "kind": kind,
                "pearson": score,
                "lost": full - score,
                "bar": "" if options.limit else verdict(kind, score, full),
            }
        )
    table(rows, options.json)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "kinds",
        nargs="*",
        default=["q-clustered-25", "shoal", "i-clustered-25"],
        help="kinds of attention, beside full",
    )
    parser.add_argument(
        "--length",
        type=int,
        default=128,
        help="pad every sentence to this many tokens; 0: only as needed",
    )
    parser.add_argument(
        "--skip-padding", action="store_true", help="leave the padding out of the queries"
    )
    parser.add_argument("--batch", type=int, default=32, help="sentences at a time")
    parser.add_argument("--limit", type=int, help="only this many pairs")
    parser.add_argument("--model", help="folder of the model; None is all-MiniLM-L6-v2")
    parser.add_argument("--data", help="folder that has glue/; None is SHOAL_DATA")
    return parser


if __name__ == "__main__":
    sys.exit(run(main, arguments()))
