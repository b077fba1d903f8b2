"""Trains a small transformer from scratch, in PyTorch, with clustered attention.

Each sequence has one marked position, and its class is the symbol at that position. The
classifier reads only the first position, so the symbol has to get there by attention.
Afterwards the same weights are tested with other kinds of attention.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
import shoal.torch

SYMBOLS = 10


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and added to its input."""

    def __init__(self, size: int, heads: int, kind: str) -> None:
        super().__init__()
        # The parameters and names of torch.nn.MultiheadAttention. Its dropout is 0 by
        # default; kinds whose queries share keys do not support dropout of weights.
        self.attention = shoal.torch.MultiheadAttention(
            size, heads, batch_first=True, kind=kind
        )
        self.forward_layers = nn.Sequential(
            nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(size), nn.LayerNorm(size)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.forward_layers(self.norms[1](x))


class Classifier(nn.Module):
    def __init__(self, size: int, heads: int, layers: int, kind: str) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, size)
        self.marks = nn.Embedding(3, size)  # nothing, marked, the position that is read
        self.blocks = nn.Sequential(*(Block(size, heads, kind) for _ in range(layers)))
        self.out = nn.Linear(size, SYMBOLS)

    def forward(self, symbols: Tensor, marks: Tensor) -> Tensor:
        x = self.blocks(self.symbols(symbols) + self.marks(marks))
        return self.out(x[:, 0])


def draw(batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """(symbols [batch, length], marks [batch, length], classes [batch])."""
    symbols = torch.randint(SYMBOLS, (batch, length), generator=generator)
    place = torch.randint(1, length, (batch,), generator=generator)
    marks = torch.zeros(batch, length, dtype=torch.int64)
    marks[:, 0] = 2
    marks[torch.arange(batch), place] = 1
    return symbols, marks, symbols[torch.arange(batch), place]


@torch.no_grad()
def accuracy(model: nn.Module, length: int) -> float:
    """Accuracy on 512 sequences that are not used in training."""
    generator = torch.Generator().manual_seed(1 << 40)
    right = 0
    for _ in range(16):
        symbols, marks, classes = draw(32, length, generator)
        right += int((model(symbols, marks).argmax(-1) == classes).sum())
    return right / 512


def main(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    model = Classifier(64, 4, options.layers, options.kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(options.seed)
    for step in range(1, options.steps + 1):
        symbols, marks, classes = draw(32, options.length, generator)
        loss = F.cross_entropy(model(symbols, marks), classes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 and not options.json:
            print(f"step {step}: loss {loss:.3f}", file=sys.stderr)
    model.eval()
    found = {options.kind: accuracy(model, options.length)}
    for kind in options.test:
        with shoal.torch.use_kind(model, kind):
            found[kind] = accuracy(model, options.length)
    if options.json:
        print(json.dumps(found))
    else:
        for kind, share in found.items():
            print(f"{kind:24} {100 * share:5.1f} % right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--kind", default="i-clustered-25", help="attention in training")
    parser.add_argument("--test", nargs="*", default=["full"], help="and afterwards")
    parser.add_argument("--length", type=int, default=256, help="symbols of a sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="results as JSON")
    try:
        main(parser.parse_args())
    except shoal.ShoalError as error:
        sys.exit(f"{parser.prog}: {error}")
