#!/usr/bin/env python3
"""A training step of Shoal beside one of PyTorch: forward, backward, clipping and R-Adam
of the paper's model (4 layers, 6 heads of 32, feed-forward 768) on its masked copy, from
the same weights and on the same batches. They take turns in one process, with a pause
before each step in which the other's threads stop spinning; there is one process for each
number of threads and each setting:
  shipped   malloc as it is
  kept      malloc told to keep what is freed, which spares PyTorch its page faults

Before anything is timed the losses and gradient norms of the first five steps must agree
with PyTorch's: at the size itself for full attention; for other kinds at 64 positions,
where no more queries than clusters make them exact.

Then the memory of a step, batch 1: what the trainer holds, and how much the process grew.
The exit code is 1 when a bar is missed."""
import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = ["torch==2.13.0", "numpy"]
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
        "MALLOC_TOP_PAD_": str(1 << 26)}
# bar: the best time of ours over that of PyTorch, which is always full attention.
CASES = [{"kind": "full", "positions": 512, "batch": 32, "bar": 0.9},
         {"kind": "i-clustered-100", "positions": 2048, "batch": 8, "bar": 1 / 2.5}]
QUICK = [{"kind": "full", "positions": 64, "batch": 4, "bar": None},
         {"kind": "i-clustered-100", "positions": 256, "batch": 2, "bar": None}]
MEMORY = {"kinds": ["clustered-100", "i-clustered-100", "shoal", "full"],
          "lengths": [512 << i for i in range(7)], "quadratic_limit": 8192}
QUICK_MEMORY = {"kinds": ["i-clustered-100"], "lengths": [128, 256],
                "quadratic_limit": 128}


def parse():
    parser = argparse.ArgumentParser(
        prog="train_step.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    add("--settings", default="shipped,kept", help="(default: %(default)s)")
    add("--repeats", type=int, default=7, help="timed steps (default: %(default)s)")
    add("--quick", action="store_true",
        help="small sizes, no bars: does it work? (seconds)")
    add("--parts", default="time,memory", help="(default: %(default)s)")
    add("--library", type=Path, default=ROOT / "build" / "libshoal-models.so",
        help="(default: build/libshoal-models.so)")
    add("--environment", type=Path, default=ROOT / "build" / "peers-train",
        help="folder of the virtual environment; one that bench/peers/run made will do "
             "(default: build/peers-train)")
    add("--json", metavar="F", help="also write everything there")
    return parser.parse_args()


def python_of(folder):
    """The environment's Python, with what is needed; installed where it is not."""
    python = folder / "venv" / "bin" / "python"
    wanted = "import numpy, torch; assert torch.__version__.startswith('2.13.')"
    if python.exists() and subprocess.run([python, "-c", wanted], check=False,
                                          stderr=subprocess.DEVNULL).returncode == 0:
        return python
    print(f"making the virtual environment in {folder} (once, some minutes)",
          file=sys.stderr)
    venv.create(folder / "venv", with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def run_process(options, python, setting, threads, cases, memory):
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": ""}
    variables.pop("SHOAL_ISA", None)
    if setting == "kept":
        variables.update(KEPT)
    done = subprocess.run(
        [python, HERE / "train_step_inside.py", "--library", options.library,
         "--threads", str(threads), "--repeats", str(options.repeats),
         "--cases", json.dumps(cases), "--memory", json.dumps(memory)],
        env=variables, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"train_step: setting {setting}, {threads} threads failed")
    return {**json.loads(done.stdout), "setting": setting, "threads": threads}


def print_times(result):
    """Returns how many bars were missed."""
    missed = 0
    for row in result["cases"]:
        ratio = row["best_ours"] / row["best_theirs"]
        median = row["median_ours"] / row["median_theirs"]
        verdict = ""
        if row["bar"]:
            good = ratio <= row["bar"]
            missed += not good
            verdict = f"; at most {row['bar']:.2f}: {'ok' if good else 'NOT OK'}"
        checked = row["verified"]
        print(f"  {row['kind']}, N = {row['positions']}, batch {row['batch']}: "
              f"{row['best_ours']:.3f} s, PyTorch (full) {row['best_theirs']:.3f} s; "
              f"ours / PyTorch {ratio:.3f} best, {median:.3f} median; "
              f"{1 / ratio:.2f} times as fast{verdict}\n"
              f"    verified at N = {checked['positions']}: {checked['steps']} steps, "
              f"losses within {checked['loss']:.1e}, norms within "
              f"{checked['gradient_norm']:.1e}; first losses here "
              f"{row['losses'][0]:.6f} and {row['losses'][1]:.6f}")
    return missed


def print_memory(rows):
    lengths = sorted({row["positions"] for row in rows})
    by = {(row["kind"], row["positions"]): row for row in rows}
    def line(name, values):
        print(f"  {name:<34}" + "".join(f"{value:>9}" for value in values))
    print("\nmemory of a training step, batch 1, KiB per position (weights, gradients "
          "and moments\nincluded); workspace: what the trainer holds; resident: growth "
          "of the process at its peak")
    line("N", lengths)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for what in ("workspace", "resident"):
            found = [by.get((kind, n), {}).get(what) for n in lengths]
            if any(found):
                line(f"{kind}, {what}", [f"{v / n / 1024:.1f}" if v else "-"
                                         for v, n in zip(found, lengths)])


def save(path, everything):
    """After every process, so that an interrupt keeps the ones before it."""
    if path:
        Path(path + ".tmp").write_text(json.dumps(everything, indent=1) + "\n")
        os.replace(path + ".tmp", path)


def main():
    options = parse()
    options.library = options.library.resolve()
    if not options.library.exists():
        raise SystemExit(f"train_step: no {options.library}; run make first")
    unknown = ((set(options.settings.split(",")) - {"shipped", "kept"}) |
               (set(options.parts.split(",")) - {"time", "memory"}))
    if unknown:
        raise SystemExit(f"train_step: nothing is named {', '.join(sorted(unknown))}")
    python = python_of(options.environment.resolve())
    cases = (QUICK if options.quick else CASES) if "time" in options.parts else []
    memory = QUICK_MEMORY if options.quick else MEMORY
    everything, missed = {"runs": [], "memory": []}, 0
    for threads in map(int, options.threads.split(",")) if cases else ():
        for setting in options.settings.split(","):
            result = run_process(options, python, setting, threads, cases, {})
            everything["runs"].append(result)
            print(f"\nshoal {result['version']} {result['isa']}, torch {result['torch']} "
                  f"{result['torch_cpu']}; {threads} thread{'s' * (threads > 1)}, "
                  f"setting {setting}")
            missed += print_times(result)
            sys.stdout.flush()
            save(options.json, everything)
    if "memory" in options.parts:
        result = run_process(options, python, "shipped", 1, [], memory)
        everything["memory"] = result["memory"]
        print_memory(result["memory"])
        save(options.json, everything)
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
