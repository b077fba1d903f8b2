"""One process of the comparison: one number of threads, one setting of the allocator and
of the authors' package. All contenders alternate. Writes a JSON object to stdout; run by
bench/peers/run, which creates the environment.
"""
import argparse
import ctypes
import gc
import json
import re
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

import contenders
import verify
from library import Library

TOLERANCE = 1e-4  # float32 against float32 or double
LONG_CALL = 2.0   # seconds; needs no warm-up
SHORT_CALL = 0.1  # seconds; waking sleeping threads would be part of it
SETTLE = 0.05     # seconds in which threads of the previous contender stop spinning


def say(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def status(name):
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.M)
    return int(found[1]) * 1024 if found else 0


def begin_peak():
    """Resets the peak; None if the kernel does not allow it."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    return status("VmRSS")


def make_data(options, length):
    generator = torch.Generator().manual_seed(options.seed)
    def noise():
        return torch.randn(options.batch, options.heads, length, options.dim,
                           generator=generator)
    return SimpleNamespace(q=noise(), k=noise(), v=noise(), dout=noise())


def one_call(contender, mode, before=0):
    """Seconds of a call, after `before` calls that wake its threads."""
    time.sleep(SETTLE)
    for _ in range(before):
        contender.clear()
        contender.call(mode)
    contender.clear()
    begun = time.perf_counter()
    contender.call(mode)
    return time.perf_counter() - begun


def first_call(contender, data, mode, row):
    """Prepares, calls and, if it is ours, verifies; memory is the growth beyond the
    data."""
    contender.load(data, mode)
    before = begin_peak()
    contender.prepare(mode)
    seconds = one_call(contender, mode)
    if before is not None:
        row["peak_bytes"] = max(0, status("VmHWM") - before)
    if contender.ours:
        row["errors"] = verify.check(contender, data, mode)
        wrong = {k: e for k, e in row["errors"].items() if not e < TOLERANCE}
        if wrong:
            raise RuntimeError(f"{contender.name} is wrong: {wrong}")
    return seconds


def estimate(rows, contender, mode, length):
    """Seconds of a call, from the longest length so far; 0 if there is none."""
    known = [r for r in rows if r["name"] == contender.name and r["mode"] == mode
             and "best" in r]
    if not known:
        return 0
    doublings = length / known[-1]["length"]
    return known[-1]["best"] * doublings ** (2 if contender.growth == 4 else 1)


def measure(options, everyone, mode, length, rows):
    data = make_data(options, length)
    running = []
    for contender in everyone:
        if mode not in contender.modes:
            continue
        row = {"name": contender.name, "mode": mode, "length": length, "seconds": []}
        if estimate(rows, contender, mode, length) > options.limit:
            row["left_out"] = f"a call would take more than {options.limit} s"
            rows.append(row)
            continue
        say(f"{mode}, N = {length}: {contender.name}")
        try:
            seconds = first_call(contender, data, mode, row)
        except MemoryError:
            row["left_out"] = "out of memory"
        except RuntimeError as error:
            if contender.ours:
                raise
            row["left_out"] = str(error).splitlines()[0][:200]
        else:
            if seconds >= LONG_CALL:
                row["seconds"].append(seconds)
            running.append((contender, row, seconds))
        rows.append(row)
    for repeat in range(options.repeats):
        for contender, row, seconds in running:
            if row["seconds"] and seconds * (repeat + 1) > options.limit / 4:
                continue
            say(f"{mode}, N = {length}, repetition {repeat + 1}: {contender.name}")
            calls = 2 if seconds < SHORT_CALL else 0
            row["seconds"].append(one_call(contender, mode, calls))
    for contender, row, _ in running:
        contender.release()
        row["best"] = min(row["seconds"])
        row["median"] = statistics.median(row["seconds"])


def line_up(options):
    library = Library(options.library, options.threads)
    everyone, notes = [], {}
    for kind in options.kinds.split(","):
        shoal = contenders.Shoal(library, kind)
        found = re.match(r"i?-?clustered-(\d+)", kind)
        if found:
            shoal.clusters = int(found[1])
            shoal.topk = 32 if kind.startswith("i-") else 0
        everyone.append(shoal)
    wanted = options.peers.split(",")
    if "sdpa" in wanted:
        everyone.append(contenders.TorchSDPA())
    if "plain" in wanted:
        everyone.append(contenders.TorchPlain())
    for name, make in (("onnxruntime",
                        lambda: [contenders.OnnxRuntime(options.threads)]),
                       ("fast-transformers",
                        lambda: contenders.fast_transformers(options.kinds.split(",")))):
        if name in wanted:
            try:
                everyone += make()
            except ImportError as error:
                notes[name] = f"not here: {error}"
    return library, everyone, notes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--modes", required=True)
    parser.add_argument("--kinds", required=True)
    parser.add_argument("--peers", required=True)
    for name in ("heads", "dim", "batch", "repeats", "seed", "limit"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_num_interop_threads(1)
    library, everyone, notes = line_up(options)
    rows = []
    for mode in options.modes.split(","):
        for length in map(int, options.lengths.split(",")):
            measure(options, everyone, mode, length, rows)
    say("")
    json.dump({"version": library.version, "isa": library.isa, "torch": torch.__version__,
               "torch_cpu": torch.backends.cpu.get_cpu_capability(), "notes": notes,
               "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
