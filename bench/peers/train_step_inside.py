"""One process of the comparison of training steps: one number of threads, one setting of
the allocator. Shoal and PyTorch take turns. Writes a JSON object to stdout; run by
bench/peers/train_step.py, which makes the environment."""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from compare import SETTLE, begin_peak, say, status
from train_step_library import HEADS, Error, Trainer, TrainingLibrary
from train_step_model import TorchTrainer, copy_batch

SEED = 1
# With the first batches the two optimizers do the same: PyTorch's R-Adam waits one step
# longer than the published one before it adapts, at the sixth step.
SAME_STEPS = 5
LOSS_TOLERANCE, NORM_TOLERANCE = 1e-5, 1e-4


def difference(a, b):
    return abs(a - b) / max(abs(a), abs(b))


class Side:
    """A trainer with its batches, which are made before the clock runs."""

    def __init__(self, trainer, length, batch, as_wanted):
        self.trainer, self.as_wanted = trainer, as_wanted
        self.length, self.batch, self.number = length, batch, 0
        self.prepare()

    def prepare(self):
        batch = copy_batch(SEED, self.number, self.batch, self.length)
        self.data = [self.as_wanted(part) for part in batch]
        self.number += 1

    def step(self):
        loss, norm = self.trainer.step(*self.data)
        return float(loss), float(norm)


def both_sides(library, kind, length, batch):
    """From the same first weights."""
    ours = Trainer(library, attention=kind, length=length, batch=batch, seed=SEED)
    theirs = TorchTrainer(ours.weights(), HEADS, 2 * (length + 1))
    return (Side(ours, length, batch, lambda part: part.numpy()),
            Side(theirs, length, batch, lambda part: part))


def timed(contender):
    time.sleep(SETTLE)
    begun = time.perf_counter()
    result = contender.step()
    return time.perf_counter() - begun, *result


def verify(library, kind, length, batch):
    """The first steps of both from the same weights; full attention, or a kind that is
    exact at so few positions. Returns the largest differences of loss and norm."""
    ours, theirs = both_sides(library, kind, length, batch)
    worst = [0.0, 0.0]
    for _ in range(SAME_STEPS):
        mine, yours = ours.step(), theirs.step()
        ours.prepare()
        theirs.prepare()
        worst = [max(w, difference(a, b)) for w, a, b in zip(worst, mine, yours)]
    ours.trainer.destroy()
    if not (worst[0] < LOSS_TOLERANCE and worst[1] < NORM_TOLERANCE):
        raise SystemExit(f"train_step: {kind} with {2 * (length + 1)} positions is "
                         f"wrong: losses differ by {worst[0]:.1e}, "
                         f"norms by {worst[1]:.1e}")
    return {"positions": 2 * (length + 1), "steps": SAME_STEPS, "loss": worst[0],
            "gradient_norm": worst[1]}


def compare_case(library, case, repeats):
    kind, positions, batch = case["kind"], case["positions"], case["batch"]
    length = positions // 2 - 1
    row = {**case, "ours": [], "theirs": []}
    say(f"{kind}, N = {positions}: first steps compared")
    exact = kind == "full"
    row["verified"] = verify(library, kind, length if exact else 31,
                             batch if exact else 8)
    ours, theirs = both_sides(library, kind, length, batch)
    for repeat in range(repeats + 1):  # the first one warms up
        say(f"{kind}, N = {positions}, repetition {repeat} of {repeats}")
        mine, yours = timed(ours), timed(theirs)
        ours.prepare()
        theirs.prepare()
        if repeat == 0:
            row["losses"] = [mine[1], yours[1]]
            continue
        row["ours"].append(mine[0])
        row["theirs"].append(yours[0])
    ours.trainer.destroy()
    for side in ("ours", "theirs"):
        row["best_" + side] = min(row[side])
        row["median_" + side] = statistics.median(row[side])
    return row


def memory_of(make_and_step):
    before = begin_peak()
    workspace = make_and_step()
    peak = None if before is None else max(0, status("VmHWM") - before)
    return workspace, peak


def our_memory(library, kind, positions):
    data = [part.numpy() for part in copy_batch(SEED, 0, 1, positions // 2 - 1)]
    def run():
        trainer = Trainer(library, attention=kind, length=positions // 2 - 1, batch=1,
                          seed=SEED)
        trainer.step(*data)
        workspace = trainer.workspace
        trainer.destroy()
        return workspace
    return memory_of(run)


def their_memory(library, positions):
    small = Trainer(library, attention="full", length=positions // 2 - 1, batch=1,
                    seed=SEED)
    weights = small.weights()
    small.destroy()
    data = copy_batch(SEED, 0, 1, positions // 2 - 1)
    def run():
        TorchTrainer(weights, HEADS, positions).step(*data)
        return None
    return memory_of(run)


def memory_table(library, kinds, lengths, quadratic_limit):
    rows = []
    # What a library sets up at its first step is not the step's.
    our_memory(library, kinds[0], lengths[0])
    their_memory(library, lengths[0])
    for kind in [*kinds, "PyTorch full"]:
        for positions in lengths:
            if kind in ("full", "PyTorch full") and positions > quadratic_limit:
                continue
            say(f"memory of a step: {kind}, N = {positions}")
            workspace, peak = (their_memory(library, positions)
                               if kind == "PyTorch full"
                               else our_memory(library, kind, positions))
            rows.append({"kind": kind, "positions": positions, "workspace": workspace,
                         "resident": peak})
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--memory", required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_num_interop_threads(1)
    try:
        library = TrainingLibrary(options.library, options.threads)
    except Error as error:
        raise SystemExit(f"train_step: {error}") from error
    memory = json.loads(options.memory)
    result = {"version": library.version, "isa": library.isa, "torch": torch.__version__,
              "torch_cpu": torch.backends.cpu.get_cpu_capability(),
              "cases": [compare_case(library, case, options.repeats)
                        for case in json.loads(options.cases)],
              "memory": memory_table(library, **memory) if memory else []}
    say("")
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
