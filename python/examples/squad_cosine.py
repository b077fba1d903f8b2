"""SQuAD: similarity of the vectors of long texts when the attention is replaced.

For every context of the development set with 200 tokens or more, the cosine between
all-MiniLM-L6-v2's vector with full attention and with each kind.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import shoal
from common import Missing, data_file, embed, load, minilm_path, run, table, tokenizer_of

BAR_KIND, BAR = "q-clustered-25", 0.997  # minimum mean cosine


def read_contexts(options: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Distinct contexts that are long enough, shortest first, so that batches have little
    padding.
    """
    path = data_file(options.data, "squad", "dev-v1.1.json")
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    texts = list(
        dict.fromkeys(
            paragraph["context"]
            for article in articles
            for paragraph in article["paragraphs"]
        )
    )
    lengths = [
        len(ids)
        for ids in tokenizer(texts, truncation=True, max_length=options.longest)[
            "input_ids"
        ]
    ]
    found = [
        text for length, text in sorted(zip(lengths, texts)) if length >= options.shortest
    ]
    if not found:
        raise Missing(f"no context of {options.shortest} tokens or more in {path}")
    step = max(1, len(found) // options.limit) if options.limit else 1
    return found[::step]


def main(options: argparse.Namespace) -> None:
    path = options.model or minilm_path()
    tokenizer = tokenizer_of(path)
    texts = read_contexts(options, tokenizer)
    tokens: dict[str, Any] = dict(padding=True, max_length=options.longest)
    full = embed(load(path, "full"), tokenizer, texts, "full", options.batch, **tokens)
    rows = []
    for kind in options.kinds:
        vectors = embed(load(path, kind), tokenizer, texts, kind, options.batch, **tokens)
        cosine = (vectors * full).sum(-1)
        mean, least = float(cosine.mean()), float(cosine.min())
        judged = not options.limit and shoal.spelling(kind) == shoal.spelling(BAR_KIND)
        note = f"mean {BAR}: {'met' if mean >= BAR else 'missed'}" if judged else ""
        rows.append(
            {
                "kind": kind,
                "contexts": len(texts),
                "mean cosine": mean,
                "least": least,
                "bar": note,
            }
        )
    table(rows, options.json)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "kinds",
        nargs="*",
        help="kinds of attention",
        default=["q-clustered-25", "shoal", "i-clustered-25"],
    )
    parser.add_argument(
        "--shortest", type=int, default=200, help="tokens a context must have"
    )
    parser.add_argument("--longest", type=int, default=512, help="tokens it is cut to")
    parser.add_argument("--batch", type=int, default=8, help="contexts at a time")
    parser.add_argument("--limit", type=int, help="number of contexts, evenly chosen")
    parser.add_argument("--model", help="folder of the model; None is all-MiniLM-L6-v2")
    parser.add_argument("--data", help="folder that has squad/; None is SHOAL_DATA")
    return parser


if __name__ == "__main__":
    sys.exit(run(main, arguments()))
