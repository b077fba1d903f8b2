#!/usr/bin/env python3
"""Shoal's full attention with masks beside PyTorch's scaled_dot_product_attention with
the same: causal, a float mask, a boolean one, a bias for each key, and none; and both in
half precision. Every result and gradient of ours is compared with PyTorch's before it is
timed; both take turns. Then what a bias for each key and halves cost in every kind,
beside the same kind without, in turns too. Needs numpy and torch (bench/peers/run makes
an environment with both: build/peers/venv/bin/python bench/peers/masks.py)."""
import argparse
import json
import sys
from ctypes import pointer
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from library import Library, PairStrides, Strides  # noqa: E402

TOLERANCE = {"out": 1e-5, "dq": 1e-4, "dk": 1e-4, "dv": 1e-4}
HALVES = {"float16": (torch.float16, 2), "bfloat16": (torch.bfloat16, 3)}
HALF_TOLERANCE = 4 / 256  # four units of bfloat16's last bit
MASKS = ("none", "causal", "float", "boolean", "keys", *HALVES)
KINDS = "full,clustered-100,i-clustered-100,shoal-100,shoal,lsh-4,local-64,strided-64"
SETTLE = 0.02  # seconds in which the other's threads stop spinning


class Problem:
    def __init__(self, library, options, length, name, train):
        generator = torch.Generator().manual_seed(1)
        shape = 1, options.heads, length, options.dim
        self.dtype, number = HALVES.get(name, (torch.float32, 0))
        self.q, self.k, self.v, self.dout = (
            torch.randn(shape, generator=generator).to(self.dtype) for _ in range(4))
        self.arguments, self.fields = {"is_causal": name == "causal"}, {}
        self.train = train
        if name in ("float", "boolean"):
            mask = torch.randn(length, length, generator=generator)
            strides = pointer(PairStrides(0, 0, length, 1))
            if name == "float":
                self.fields = {"bias": mask.data_ptr(), "bias_strides": strides}
            else:
                mask = mask > 0
                self.fields = {"mask": mask.data_ptr(), "mask_strides": strides}
            self.arguments["attn_mask"] = mask
        elif name == "keys":
            mask = torch.randn(1, 1, 1, length, generator=generator)
            self.fields = {"key_bias": mask.data_ptr(),
                           "key_bias_strides": pointer(Strides(0, 0, 1))}
            self.arguments["attn_mask"] = mask
        self.plan = library.plan("full", *shape, train, causal=int(name == "causal"),
                                 dtype=number)
        self.out = torch.empty(shape, dtype=self.dtype)
        self.gradients = [torch.empty_like(self.out) for _ in range(3)]
        self.leaves = [x.clone().requires_grad_(train) for x in (self.q, self.k, self.v)]

    def ours(self):
        self.plan.forward(self.q.data_ptr(), self.k.data_ptr(), self.v.data_ptr(),
                          self.out.data_ptr(), **self.fields)
        if self.train:
            self.plan.backward(self.out.data_ptr(), self.dout.data_ptr(),
                               *(x.data_ptr() for x in self.gradients))

    def theirs(self):
        for leaf in self.leaves:
            leaf.grad = None
        attend = torch.nn.functional.scaled_dot_product_attention
        with torch.set_grad_enabled(self.train):
            self.result = attend(*self.leaves, **self.arguments)
            if self.train:
                self.result.backward(self.dout)

    def check(self):
        """The largest difference over the largest entry."""
        pairs = {"out": (self.out, self.result.detach())}
        if self.train:
            for name, mine, leaf in zip(("dq", "dk", "dv"), self.gradients, self.leaves):
                pairs[name] = mine, leaf.grad
        errors, is_half = {}, self.dtype is not torch.float32
        for name, (mine, other) in pairs.items():
            mine, other = mine.float(), other.float()
            errors[name] = float((mine - other).abs().max() / other.abs().max())
            if not errors[name] < (HALF_TOLERANCE if is_half else TOLERANCE[name]):
                raise SystemExit(f"masks: {name} is off by {errors[name]:.2g}")
        return errors


def best_times(problem, repeats):
    sides = {"ours": problem.ours, "theirs": problem.theirs}
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(repeats):
        for side, call in sides.items():
            time.sleep(SETTLE)
            for _ in range(2):  # the first one wakes the threads
                begun = time.perf_counter()
                call()
                best[side] = min(best[side], time.perf_counter() - begun)
    return best


def measure(library, options, length, name, train, threads):
    problem = Problem(library, options, length, name, train)
    problem.ours()
    problem.theirs()
    errors = problem.check()
    best = best_times(problem, options.repeats)
    problem.plan.destroy()
    return {"length": length, "mask": name, "train": train, "threads": threads,
            "errors": errors, **best}


def print_row(row, none):
    mode = "train" if row["train"] else "forward"
    share = row["ours"] / none["ours"]
    print(f"{row['threads']:7} {mode:8} {row['length']:6} {row['mask']:8} "
          f"{row['ours'] * 1e3:9.2f} {row['theirs'] * 1e3:9.2f} "
          f"{row['theirs'] / row['ours']:7.2f} {share:9.2f}", flush=True)


# ---- What it costs in every kind -----------------------------------------------------


class Variant:
    """One kind as it is, with a bias for each key, or in half precision."""

    def __init__(self, library, options, kind, length, name, train):
        generator = torch.Generator().manual_seed(1)
        shape = 1, options.heads, length, options.dim
        dtype, number = HALVES.get(name, (torch.float32, 0))
        self.arrays = [torch.randn(shape, generator=generator).to(dtype)
                       for _ in range(4)]
        self.written = [torch.empty(shape, dtype=dtype) for _ in range(4)]
        self.train, self.fields = train, {}
        self.keys = not kind.startswith(("lsh", "shared"))
        if name == "keys":
            self.bias = torch.randn(length, generator=generator)
            self.fields = {"key_bias": self.bias.data_ptr(),
                           "key_bias_strides": pointer(Strides(0, 0, 1))}
        self.plan = library.plan(kind, *shape, train, dtype=number)

    def run(self):
        q, k, v, dout = (x.data_ptr() for x in self.arrays)
        out, *gradients = (x.data_ptr() for x in self.written)
        self.plan.forward(q, k if self.keys else None, v, out, **self.fields)
        if self.train:
            self.plan.backward(out, dout, *gradients)


def measure_costs(library, options, kind, length, train, threads):
    variants = {}
    for name in ("none", "keys", *HALVES):
        variants[name] = Variant(library, options, kind, length, name, train)
        variants[name].run()
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(3 * options.repeats):
        for name, variant in variants.items():
            begun = time.perf_counter()
            variant.run()
            best[name] = min(best[name], time.perf_counter() - begun)
    for variant in variants.values():
        variant.plan.destroy()
    return {"kind": kind, "length": length, "train": train, "threads": threads, **best}


def print_costs(row):
    mode = "train" if row["train"] else "forward"
    shares = (f"{100 * (row[name] / row['none'] - 1):+8.1f} %"
              for name in ("keys", *HALVES))
    print(f"{row['threads']:7} {mode:8} {row['length']:6} {row['kind']:16} "
          f"{row['none'] * 1e3:9.2f} {' '.join(shares)}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--lengths", default="512,1024,2048,4096,8192", help="(default: %(default)s)")
    add("--masks", default=",".join(MASKS), help="(default: %(default)s)")
    add("--threads", default="1,2", help="(default: %(default)s)")
    add("--heads", type=int, default=4, help="(default: %(default)s)")
    add("--dim", type=int, default=64, help="(default: %(default)s)")
    add("--repeats", type=int, default=5, help="(default: %(default)s)")
    add("--library", type=Path, default=HERE.parent.parent / "build" / "libshoal.so",
        help="(default: build/libshoal.so)")
    add("--kinds", default=KINDS, help="what the second table is about; none: no such "
        "table (default: %(default)s)")
    add("--json", metavar="F", help="also write everything there")
    options = parser.parse_args()
    wanted = ["none", *options.masks.split(",")]
    options.masks = [name for name in MASKS if name in wanted]
    return options


def compare_masks(options):
    print("threads mode          N mask      ours, ms  torch, ms   ratio  of none's")
    for threads in map(int, options.threads.split(",")):
        torch.set_num_threads(threads)
        library = Library(options.library.resolve(), threads)
        for train in (False, True):
            for length in map(int, options.lengths.split(",")):
                for name in options.masks:
                    row = measure(library, options, length, name, train, threads)
                    if name == "none":
                        none = row
                    print_row(row, none)
                    yield row


def compare_kinds(options):
    print("threads mode          N kind               ms   a key's bias    float16 "
          "  bfloat16")
    for threads in map(int, options.threads.split(",")):
        library = Library(options.library.resolve(), threads)
        for train in (False, True):
            for length in map(int, options.lengths.split(",")):
                for kind in options.kinds.split(","):
                    row = measure_costs(library, options, kind, length, train, threads)
                    print_costs(row)
                    yield row


def main():
    options = parse()
    rows = list(compare_masks(options))
    if options.kinds != "none":
        rows += compare_kinds(options)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
