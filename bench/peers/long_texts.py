#!/usr/bin/env python3
"""One long text through ModernBERT of the published size (22 layers of 768, random
weights), with full attention and with another kind on the global layers, beside
transformers with PyTorch's SDPA.

    long_texts.py [--work DIR] [--lengths 8192] [--engines full,shoal-100,transformers]
        [--most transformers=8192] [--table lengths.tsv] [--plot lengths.svg]

An engine has a process of its own; at each length they take turns, and the best of
--repeats counts. Hidden states with full attention must be transformers' (1e-4 of the
largest) before a time is printed; of another kind the error is. Memory: what the encoder
reserves beside the weights, and the peak of transformers' process less that before the
text. --plot draws the table (matplotlib). Needs torch and transformers, and a quiet
machine. The exit code is 1 where a bar at 8,192 tokens is missed."""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
WORDS, POSITIONS = 1000, 32768
BARS = {"transformers / full": 1.5, "full / other": 1.5, "megabytes": 400}


def prepare(work, layers):
    """The folder with random weights; a small table of words, which costs no time."""
    if (work / "modern" / "model.safetensors").exists():
        return
    import torch
    import transformers
    torch.manual_seed(1)
    config = transformers.ModernBertConfig(
        num_hidden_layers=layers, vocab_size=WORDS,
        max_position_embeddings=POSITIONS, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    model = transformers.ModernBertModel(config)
    with torch.no_grad():  # larger than the small first weights: attention has peaks
        for name, parameter in model.named_parameters():
            if "Wqkv" in name:
                parameter.mul_(3)
    model.save_pretrained(work / "modern")


def text_of(length):
    import numpy as np
    return np.random.default_rng(length).integers(3, WORDS, length)


def ours(given, length):
    from text_library import TextEncoder, TextLibrary
    encoder = TextEncoder(TextLibrary(given.build, given.threads), given.work / "modern",
                          attention=given.worker.encode(), window=length, rows=length)
    return (lambda: encoder.forward([text_of(length)])), encoder.info.workspace / 1e6


def transformers_of(given, length):
    import torch
    import transformers
    torch.set_num_threads(given.threads)
    model = transformers.ModernBertModel.from_pretrained(
        given.work / "modern", dtype=torch.float32, attn_implementation="sdpa").eval()

    def run(count=length):
        with torch.no_grad():
            ids = torch.tensor([text_of(length)[:count].tolist()])
            return model(input_ids=ids).last_hidden_state[0].numpy()
    run(16)  # the weights are in memory now
    return run, None


def megabytes(field):
    for line in Path("/proc/self/status").read_text().split("\n"):
        if line.startswith(field):
            return int(line.split()[1]) / 1000
    return float("nan")


def work_off(given):
    """A line says a length; the answer is a line of JSON."""
    import numpy as np
    made, length, run, memory = None, None, None, None
    for line in sys.stdin:
        if length != int(line):
            length = int(line)
            run = made = None
            make = transformers_of if given.worker == "transformers" else ours
            run, memory = make(given, length)
        before = megabytes("VmRSS")
        begun = time.perf_counter()
        made = run()
        seconds = time.perf_counter() - begun
        np.save(given.work / f"{given.worker}-{length}.npy", made)
        print(json.dumps({"seconds": seconds, "megabytes":
                          memory or megabytes("VmHWM") - before}), flush=True)


class Worker:
    def __init__(self, engine):
        variables = dict(os.environ, OMP_NUM_THREADS=str(GIVEN.threads))
        self.engine = engine
        self.process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--worker", engine],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)

    def run(self, length):
        time.sleep(0.2)  # the other's threads stop spinning
        self.process.stdin.write(f"{length}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"an engine ended: {self.engine}")


def difference(engine, base, length):
    import numpy as np
    a, b = (np.load(GIVEN.work / f"{name}-{length}.npy") for name in (engine, base))
    return (float(np.abs(a - b).max() / np.abs(b).max()),
            float(np.linalg.norm(a - b) / np.linalg.norm(b)))


def longest_of(engine):
    limits = dict(part.split("=") for part in GIVEN.most.split(",") if part)
    return int(limits.get(engine, POSITIONS))


def measure(workers, length, table):
    best = {}
    for turn in range(GIVEN.repeats):
        for engine, worker in workers.items():
            if length > longest_of(engine):
                continue
            one = worker.run(length)
            old = best.get(engine, one)
            best[engine] = {"seconds": min(one["seconds"], old["seconds"]),
                            "megabytes": old["megabytes"]}
    good = True
    for engine, one in best.items():
        words = ""
        if engine == "transformers" and "full" in best:
            found = difference("full", "transformers", length)[0]
            good &= found < 1e-4
            words = f", full differs from it by {found:.1e} of the largest"
        elif engine != "full" and "full" in best:
            words = f", error {difference(engine, 'full', length)[1]:.3f}"
        print(f"{length} tokens: {engine}: {one['seconds']:.3f} s, "
              f"{one['megabytes']:.0f} MB{words}", flush=True)
        table.append((length, engine, one["seconds"], one["megabytes"]))
    return good, best


def check_bars(best):
    good = True
    full = best.get("full")
    for engine, one in best.items():
        if not full or engine == "full":
            continue
        peer = engine == "transformers"
        name = "transformers / full" if peer else "full / other"
        ratio = (one["seconds"] / full["seconds"] if peer
                 else full["seconds"] / one["seconds"])
        print(f"{name}: {engine}: {ratio:.2f} (bar {BARS[name]})")
        good &= ratio >= BARS[name]
        good &= peer or one["megabytes"] < BARS["megabytes"]
    return good


def draw(table, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plots
    figure, axes = plots.subplots(figsize=(6, 4))
    for engine, marker in zip(dict.fromkeys(row[1] for row in table), "osD^v"):
        rows = sorted(row for row in table if row[1] == engine)
        axes.plot([row[0] for row in rows], [row[2] for row in rows], marker + "-",
                  label=engine)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens of one text")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main():
    GIVEN.work.mkdir(parents=True, exist_ok=True)
    prepare(GIVEN.work, GIVEN.layers)
    workers = {engine: Worker(engine) for engine in GIVEN.engines.split(",")}
    good, table = True, []
    for length in map(int, GIVEN.lengths.split(",")):
        same, best = measure(workers, length, table)
        good &= same
        if length == 8192:
            good &= check_bars(best)
        if GIVEN.table:
            GIVEN.table.write_text("".join("\t".join(map(str, row)) + "\n"
                                           for row in table))
    for worker in workers.values():
        worker.process.stdin.close()
        worker.process.wait()
    if GIVEN.plot:
        draw(table, GIVEN.plot)
    sys.exit(0 if good else 1)


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--build", type=Path, default=ROOT / "build")
    add("--work", type=Path, default=Path("/tmp/shoal-peers"))
    add("--lengths", default="8192", help="(default: %(default)s)")
    add("--engines", default="full,shoal-100,transformers",
        help="kinds of ours, and transformers (default: %(default)s)")
    add("--layers", type=int, default=22, help="of a model that is not in --work yet "
        "(default: %(default)s)")
    add("--most", default="transformers=8192",
        help="the longest text of an engine, with commas between (default: %(default)s)")
    add("--threads", type=int, default=2, help="(default: %(default)s)")
    add("--repeats", type=int, default=1, help="(default: %(default)s)")
    add("--table", type=Path, help="a row for each length and engine, tabs between")
    add("--plot", type=Path, help="a picture of the table")
    add("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    GIVEN = options()
    if GIVEN.worker:
        work_off(GIVEN)
    else:
        main()
