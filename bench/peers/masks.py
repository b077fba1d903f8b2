#!/usr/bin/env python3
"""Shoal's full attention with masks beside PyTorch's scaled_dot_product_attention with
the same: causal, a float mask, a boolean one, a bias for each key, and none. Every result
and gradient of ours is compared with PyTorch's before it is timed; both take turns. Needs
numpy and torch (bench/peers/run makes an environment with both:
build/peers/venv/bin/python bench/peers/masks.py)."""
import argparse
import json
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from library import Library, PairStrides  # noqa: E402

TOLERANCE = {"out": 1e-5, "dq": 1e-4, "dk": 1e-4, "dv": 1e-4}
MASKS = ("none", "causal", "float", "boolean", "keys")
SETTLE = 0.02  # seconds in which the other's threads stop spinning


class Problem:
    def __init__(self, library, options, length, name, train):
        generator = torch.Generator().manual_seed(1)
        shape = 1, options.heads, length, options.dim
        self.q, self.k, self.v, self.dout = (torch.randn(shape, generator=generator)
                                             for _ in range(4))
        self.arguments, self.fields = {"is_causal": name == "causal"}, {}
        self.train = train
        if name in ("float", "boolean"):
            mask = torch.randn(length, length, generator=generator)
            strides = PairStrides(0, 0, length, 1)
            if name == "float":
                self.fields = {"bias": mask.data_ptr(), "bias_strides": strides}
            else:
                mask = mask > 0
                self.fields = {"mask": mask.data_ptr(), "mask_strides": strides}
            self.arguments["attn_mask"] = mask
        elif name == "keys":
            mask = torch.randn(1, 1, 1, length, generator=generator)
            self.fields = {"bias": mask.data_ptr(),
                           "bias_strides": PairStrides(0, 0, 0, 1)}
            self.arguments["attn_mask"] = mask
        self.plan = library.plan("full", *shape, train, causal=int(name == "causal"))
        self.out = torch.empty(shape)
        self.gradients = [torch.empty(shape) for _ in range(3)]
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
        errors = {}
        for name, (mine, other) in pairs.items():
            errors[name] = float((mine - other).abs().max() / other.abs().max())
            if not errors[name] < TOLERANCE[name]:
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
    add("--json", metavar="F", help="also write everything there")
    options = parser.parse_args()
    wanted = ["none", *options.masks.split(",")]
    options.masks = [name for name in MASKS if name in wanted]
    return options


def main():
    options, rows = parse(), []
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
                    rows.append(row)
                    print_row(row, none)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
