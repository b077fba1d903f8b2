#!/usr/bin/env python3
"""Shoal's CTC compared with torch.nn.functional.ctc_loss: loss and gradient of a thousand
random cases (PyTorch in double precision), then, with --time, the time of both at T =
1500, 150 labels, 40 units, batch 8. Needs numpy and torch: bench/peers/run ctc installs
them in its own environment and runs this.
"""
import argparse
import ctypes
import sys
import time
from ctypes import POINTER, byref, c_double, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from library import Library, Sized  # noqa: E402


class Batch(Sized):
    _fields_ = [("size", c_size_t),
                ("batch", c_int64), ("offsets", c_void_p), ("labels", c_void_p),
                ("label_offsets", c_void_p)]


class Result(ctypes.Structure):
    _fields_ = [("sum", c_double), ("sequences", c_int64), ("labels", c_int64),
                ("impossible", c_int64)]


class Ctc:
    """The loss for batches with at most these numbers of sequences, rows and labels."""

    def __init__(self, library, classes, batch, rows, labels):
        self.library, self.c = library, library.c
        self.c.shoal_ctc_create.argtypes = [c_void_p, *[c_int64] * 4, POINTER(c_void_p)]
        self.c.shoal_ctc_loss.argtypes = [c_void_p, POINTER(Batch), c_void_p, c_double,
                                          c_void_p, c_void_p, POINTER(Result)]
        self.c.shoal_ctc_workspace.restype = c_size_t
        self.c.shoal_ctc_workspace.argtypes = [c_void_p]
        self.c.shoal_ctc_destroy.argtypes = [c_void_p]
        self.c.shoal_ctc_destroy.restype = None
        self.handle = c_void_p()
        library.check(self.c.shoal_ctc_create(library.context, classes, batch, rows,
                                              labels, byref(self.handle)))

    def run(self, logits, offsets, labels, label_offsets, gradient, losses):
        batch = Batch(len(offsets) - 1, offsets.ctypes.data, labels.ctypes.data,
                      label_offsets.ctypes.data)
        result = Result()
        self.library.check(self.c.shoal_ctc_loss(
            self.handle, byref(batch), logits.ctypes.data, 1.0, gradient.ctypes.data,
            losses.ctypes.data, byref(result)))
        return result

    def destroy(self):
        self.c.shoal_ctc_destroy(self.handle)


def pack(sequences):
    offsets = numpy.cumsum([0] + [len(s) for s in sequences], dtype=numpy.int64)
    return numpy.ascontiguousarray(numpy.concatenate(sequences)), offsets


def random_case(random, number):
    """Lengths of a batch: mostly ordinary, with occasional corner cases."""
    classes = int(random.integers(2, 50))
    batch = int(random.integers(1, 5))
    rows = random.integers(1, 120, batch)
    labels = numpy.array([random.integers(0, max(1, r // 2) + 1) for r in rows])
    if number % 10 == 0:
        rows[0] = 1
        labels[0] = random.integers(0, 3)
    if number % 10 == 1:
        labels[0] = rows[0] + random.integers(0, 5)
    if number % 10 == 2:
        labels[0] = 0
    if number % 100 == 3:
        rows[0], labels[0] = 5000, random.integers(0, 400)
    spread = [0.1, 1, 5, 30][number % 4]
    logits = [(spread * random.standard_normal((r, classes))).astype(numpy.float32)
              for r in rows]
    targets = [random.integers(1, classes, n).astype(numpy.int32) for n in labels]
    return classes, logits, targets


def theirs(logits, targets, dtype):
    """Losses and the gradient of their sum, without padding."""
    rows = torch.tensor([len(x) for x in logits])
    padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(x) for x in logits])
    padded = padded.to(dtype).requires_grad_(True)
    labels = torch.from_numpy(numpy.concatenate(targets)).long()
    losses = torch.nn.functional.ctc_loss(
        padded.log_softmax(2), labels, rows, torch.tensor([len(t) for t in targets]),
        reduction="none", zero_infinity=True)
    losses.sum().backward()
    gradient = [padded.grad[:len(x), b].numpy() for b, x in enumerate(logits)]
    return losses.detach().numpy(), numpy.concatenate(gradient)


def compare(library, cases):
    random = numpy.random.default_rng(1)
    worst_loss = worst_gradient = impossible = 0
    for number in range(cases):
        classes, sequences, targets = random_case(random, number)
        logits, offsets = pack(sequences)
        labels, label_offsets = pack(targets)
        gradient, losses = numpy.empty_like(logits), numpy.empty(len(sequences))
        ctc = Ctc(library, classes, len(sequences), int(numpy.diff(offsets).max()),
                  int(numpy.diff(label_offsets).max()))
        result = ctc.run(logits, offsets, labels, label_offsets, gradient, losses)
        ctc.destroy()
        impossible += result.impossible
        expected, slope = theirs(sequences, targets, torch.float64)
        worst_loss = max(worst_loss, numpy.max(
            numpy.abs(losses - expected) / numpy.maximum(1, numpy.abs(expected))))
        worst_gradient = max(worst_gradient, numpy.max(numpy.abs(gradient - slope)))
    print(f"{cases} cases, {impossible} impossible sequences: loss within "
          f"{worst_loss:.1e} (relative), gradient within {worst_gradient:.1e}")
    return worst_loss <= 1e-5 and worst_gradient <= 1e-5


def best_of(repeats, run):
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)


def measure(library, threads, repeats):
    random = numpy.random.default_rng(2)
    sequences = [random.standard_normal((1500, 40)).astype(numpy.float32)
                 for _ in range(8)]
    targets = [random.integers(1, 40, 150).astype(numpy.int32) for _ in range(8)]
    logits, offsets = pack(sequences)
    labels, label_offsets = pack(targets)
    gradient, losses = numpy.empty_like(logits), numpy.empty(8)
    ctc = Ctc(library, 40, 8, 1500, 150)
    ours = lambda: ctc.run(logits, offsets, labels, label_offsets, gradient, losses)
    torch.set_num_threads(threads)
    stacked = torch.from_numpy(numpy.stack(sequences, 1))
    theirs_labels = torch.from_numpy(numpy.stack(targets)).long()
    lengths = (torch.full((8,), 1500), torch.full((8,), 150))
    def peer():
        x = stacked.detach().requires_grad_(True)
        torch.nn.functional.ctc_loss(x.log_softmax(2), theirs_labels, *lengths,
                                     reduction="sum").backward()
    ours(), peer()
    pairs = [(best_of(1, ours), best_of(1, peer)) for _ in range(repeats)]
    mine, other = (min(p[i] for p in pairs) for i in range(2))
    print(f"T 1500, 150 labels, 40 units, batch 8, {threads} threads: "
          f"{mine * 1e3:.1f} ms, PyTorch {other * 1e3:.1f} ms, "
          f"ratio {mine / other:.3f}; workspace "
          f"{ctc.c.shoal_ctc_workspace(ctc.handle) / 2**20:.1f} MiB")
    ctc.destroy()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path,
                        default=HERE.parent.parent / "build" / "libshoal-models.so")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time", action="store_true", help="on a quiet machine only")
    options = parser.parse_args()
    library = Library(options.library.resolve(), options.threads)
    good = compare(library, options.cases)
    if options.time:
        measure(library, options.threads, 10)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
