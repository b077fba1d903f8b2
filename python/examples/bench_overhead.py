"""Overhead of a call compared with the C library, and its limits.

Small problem: the time of a call through numpy and PyTorch, minus the time of the C
function for the same arrays. That one is called through ctypes with everything prepared,
and the time of ctypes itself (an empty call) is subtracted. Long problem: the time of a
call compared with the C function and, with --program, with `shoal bench`. Compared calls
alternate, and results are compared first. Run it alone on the machine. Exits with 1 if a
limit is exceeded.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

from shoal import _engine, _native
import shoal

MOST_NUMPY, MOST_TORCH = 30.0, 60.0  # microseconds of a small call
MOST_LONG = 0.03  # relative to the C program's time
LONG_KINDS = ["full", "i-clustered-100", "shoal"]
Calls = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]


class CCall:
    """shoal_forward (and shoal_backward) with plan, inputs and outputs prepared."""

    def __init__(
        self, kind: str, arrays: Any, threads: int, backward: bool = False
    ) -> None:
        self.arrays = q, _, v = [np.ascontiguousarray(x) for x in arrays]
        batch, heads, queries, dim = q.shape
        key = _engine.Key(
            kind,
            None,
            0.0,
            backward,
            batch,
            heads,
            heads,
            queries,
            v.shape[2],
            dim,
            v.shape[3],
        )
        self.plan = _engine.NativePlan(_engine.Context(threads), key)
        self.out = np.empty((batch, heads, queries, v.shape[3]), np.float32)
        self.gradients = [np.empty_like(x) for x in self.arrays]
        self.dout = np.ones_like(self.out)
        self.inputs = _native.Inputs(*(x.ctypes.data for x in self.arrays))
        pointers = _native.GradientPointers(
            *(x.ctypes.data for x in (self.out, self.dout, *self.gradients))
        )
        self.by_reference = ctypes.byref(self.inputs)
        self.gradients_by_reference = ctypes.byref(pointers)
        self.pointers = pointers
        self.target = self.out.ctypes.data

    def forward(self) -> None:
        if _native.lib.shoal_forward(self.plan.handle, self.by_reference, self.target):
            raise RuntimeError("shoal_forward failed")

    def both(self) -> None:
        self.forward()
        if _native.lib.shoal_backward(
            self.plan.handle, self.by_reference, self.gradients_by_reference
        ):
            raise RuntimeError("shoal_backward failed")

    def nothing(self) -> None:
        """The time of ctypes: a function that returns a number."""
        _native.lib.shoal_plan_workspace(self.plan.handle)


def take_turns(calls: Calls, rounds: int, inner: int) -> Times:
    """Seconds per call: `rounds` samples of `inner` calls each."""
    times: Times = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(inner):
                call()
            times[name].append((time.perf_counter() - started) / inner)
    return times


def check_equal(name: str, got: Any, expected: np.ndarray[Any, Any]) -> None:
    if not np.allclose(got, expected, atol=1e-5):
        raise RuntimeError(f"{name} gives another result than the C function")


# ---- The small problem -----------------------------------------------------------------


def small_calls(
    options: argparse.Namespace,
) -> tuple[Calls, dict[str, tuple[str, float]]]:
    """Timed calls, and (C call, limit) of each that is limited."""
    arrays = noise(options.small, options.small_heads, options.small_dim)
    kind, threads = options.small_kind, options.threads
    c = CCall(kind, arrays, threads)
    both = CCall(kind, arrays, threads, True)
    q, k, v = c.arrays
    plan = shoal.Plan.like(q, k, v, kind, threads=threads)
    calls: Calls = {
        "ctypes alone": c.nothing,
        "C forward": c.forward,
        "C forward and backward": both.both,
        "numpy": lambda: shoal.attention(q, k, v, kind, threads=threads),
        "numpy, a Plan": lambda: plan.forward(q, k, v),
    }
    judged = {
        "numpy": ("C forward", MOST_NUMPY),
        "numpy, a Plan": ("C forward", MOST_NUMPY),
    }
    c.forward()
    check_equal("numpy", calls["numpy"](), c.out)
    if options.without_torch:
        return calls, judged
    import torch

    from shoal.torch import scaled_dot_product_attention as scaled

    torch.set_num_threads(threads)
    a, b, d = (torch.from_numpy(x) for x in c.arrays)
    x, y, z = (torch.from_numpy(x).requires_grad_() for x in both.arrays)
    dout = torch.from_numpy(both.dout)
    check_equal("torch", scaled(a, b, d, kind=kind), c.out)

    def with_gradient() -> None:
        out = scaled(x, y, z, kind=kind)
        out.backward(dout)  # type: ignore[no-untyped-call]
        x.grad = y.grad = z.grad = None

    def own_with_gradient() -> None:
        out = torch.nn.functional.scaled_dot_product_attention(x, y, z)
        out.backward(dout)  # type: ignore[no-untyped-call]
        x.grad = y.grad = z.grad = None

    calls["torch"] = lambda: scaled(a, b, d, kind=kind)
    calls["torch, gradient wanted"] = lambda: scaled(x, y, z, kind=kind)
    calls["torch, forward and backward"] = with_gradient
    judged["torch"] = judged["torch, gradient wanted"] = ("C forward", MOST_TORCH)
    # The engine of autograd is PyTorch's: its own function is timed too.
    calls["PyTorch's own, forward and backward"] = own_with_gradient
    for name in ("torch, forward and backward", "PyTorch's own, forward and backward"):
        judged[name] = ("C forward and backward", math.inf)
    return calls, judged


def small(options: argparse.Namespace) -> list[dict[str, Any]]:
    calls, judged = small_calls(options)
    times = take_turns(calls, options.rounds, options.inner)
    rows = []
    for how, measure in (("median", statistics.median), ("best", min)):
        taken = {name: 1e6 * measure(samples) for name, samples in times.items()}
        for name, (c_name, bar) in judged.items():
            calls_of_c = 2 if "backward" in c_name else 1
            c_time = taken[c_name] - calls_of_c * taken["ctypes alone"]
            overhead = taken[name] - c_time
            rows.append(
                {
                    "call": name,
                    "of samples": how,
                    "us": round(taken[name], 2),
                    "C us": round(c_time, 2),
                    "overhead us": round(overhead, 2),
                    "bar": f"below {bar:g}" if bar < math.inf else "",
                    "met": overhead < bar if bar < math.inf else "",
                }
            )
    return rows


# ---- The long problem ------------------------------------------------------------------


def noise(length: int, heads: int, dim: int) -> Any:
    rng = np.random.default_rng(1)
    return rng.standard_normal((3, 1, heads, length, dim), np.float32)


def program_seconds(options: argparse.Namespace, kind: str) -> float:
    """The time of `shoal bench` for the same shapes; its data is noise too."""
    command = [options.program, "bench", "--json", "--kinds", kind]
    command += ["--lengths", options.length, "--heads", options.heads]
    command += ["--dim", options.dim, "--threads", options.long_threads]
    command += ["--repeats", options.program_repeats]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{options.program} bench failed: {done.stderr.strip()}")
    (row,) = json.loads(done.stdout)["rows"]
    return float(row["best_seconds"])


def long_calls(options: argparse.Namespace, kind: str) -> Calls:
    threads = options.long_threads
    c = CCall(kind, noise(options.length, options.heads, options.dim), threads)
    q, k, v = c.arrays
    calls: Calls = {
        "C": c.forward,
        "numpy": lambda: shoal.attention(q, k, v, kind, threads=threads),
    }
    c.forward()
    check_equal("numpy", calls["numpy"](), c.out)
    if not options.without_torch:
        import torch

        from shoal.torch import attention

        torch.set_num_threads(_native.lib.shoal_context_threads(c.plan.context.handle))
        a, b, d = (torch.from_numpy(x) for x in c.arrays)
        calls["torch"] = lambda: attention(a, b, d, kind)
        check_equal("torch", calls["torch"](), c.out)
    return calls


def long(options: argparse.Namespace, kind: str) -> list[dict[str, Any]]:
    """Best and median of each, relative to the C function's and to the program's."""
    calls, times = long_calls(options, kind), {}
    if options.program:
        times["program"] = [program_seconds(options, kind)]
    for _ in range(options.long_rounds):
        for name, samples in take_turns(calls, 3, 1).items():
            times.setdefault(name, []).extend(samples)
        if options.program:
            times["program"].append(program_seconds(options, kind))
    base = "program" if options.program else "C"
    rows = []
    for name, samples in times.items():
        best, middle = min(samples), statistics.median(samples)
        more = best / min(times[base]) - 1
        row: dict[str, Any] = {
            "call": name,
            "kind": kind,
            "best ms": round(1e3 * best, 3),
        }
        row["median ms"] = round(1e3 * middle, 3)
        row[f"best over {base}"] = f"{100 * more:+.2f} %"
        judged = name in ("numpy", "torch")
        row["bar"] = f"within {MOST_LONG:.0%}" if judged else ""
        row["met"] = more <= MOST_LONG if judged else ""
        rows.append(row)
    return rows


# ---- Printing --------------------------------------------------------------------------


def table(title: str, rows: list[dict[str, Any]]) -> None:
    text = [
        [
            ("met" if x else "MISSED") if isinstance(x, bool) else str(x)
            for x in row.values()
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(rows[0], *text)]
    print(title)
    for line in (list(rows[0]), *text):
        print("  " + "  ".join(x.ljust(w) for x, w in zip(line, widths)).rstrip())
    sys.stdout.flush()


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=str(__doc__).splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--small-kind", default="full", help="kind of the small problem")
    add("--small", type=int, default=16, help="its positions")
    add("--small-heads", type=int, default=2, help="its heads")
    add("--small-dim", type=int, default=16, help="its dim")
    add("--threads", type=int, default=1, help="for the small problem")
    add("--rounds", type=int, default=1000, help="samples of the small problem")
    add("--inner", type=int, default=10, help="calls in a sample")
    add("--kinds", nargs="+", default=LONG_KINDS, help="of the long problem")
    add("--length", type=int, default=8192, help="its positions; 0 leaves it out")
    add("--heads", type=int, default=6, help="its heads")
    add("--dim", type=int, default=64, help="its dim")
    add("--long-threads", type=int, default=len(os.sched_getaffinity(0)),
        help="its threads")
    add("--long-rounds", type=int, default=3, help="rounds of three calls of each")
    add("--program", type=Path, help="the program shoal, to compare with shoal bench")
    add("--program-repeats", type=int, default=5, help="of shoal bench, each round")
    add("--without-torch", action="store_true", help="numpy alone")
    add("--json", action="store_true", help="results as JSON")
    return parser


def main() -> int:
    options = arguments().parse_args()
    results = {"small": small(options)}
    if not options.json:
        shape = f"{options.small_heads} x {options.small} x {options.small_dim}"
        table(
            f"{options.small_kind}, {shape}, {options.threads} thread(s)",
            results["small"],
        )
    if options.length:
        for kind in options.kinds:
            results[kind] = long(options, kind)
            if not options.json:
                shape = f"{options.heads} x {options.length} x {options.dim}"
                table(f"{kind}, {shape}", results[kind])
    if options.json:
        print(json.dumps(results, indent=2))
    missed = sum(row["met"] is False for rows in results.values() for row in rows)
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, shoal.ShoalError) as error:
        print(f"bench_overhead.py: {error}", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)
