"""Trains a recogniser, kills it, resumes it with the same bits, and evaluates it with
other kinds of attention.

DATA has the folders train, dev and test in Kaldi's format (docs/train.md). Two runs are
made in OUT: `whole`, which is not interrupted; and `killed`, first in a separate process
that is ended by SIGKILL, then resumed from its last checkpoint. Settings are fields of
the training: train_speech.py DATA OUT epochs=30
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import shoal


def train(options: argparse.Namespace, out: Path, **more: Any) -> shoal.train.Run:
    settings = dict(pair.split("=", 1) for pair in options.settings)
    return shoal.train.speech(
        options.data,
        out,
        options.kind,
        cache=options.out / "features",
        threads=options.threads,
        **settings,
        **more,
    )


def train_and_kill(options: argparse.Namespace, out: Path) -> int:
    """Kills a training after some of its steps; returns the number in its log."""
    child = subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--only", str(out)]
    )
    log = out / "log.jsonl"
    while child.poll() is None:
        if log.exists() and log.read_text().count('"loss"') >= options.kill_after:
            child.kill()
        time.sleep(0.002)
    return log.read_text().count('"loss"')


def main(options: argparse.Namespace) -> None:
    if options.only:
        train(options, options.only, save_seconds=0, progress=slowly)
        return
    whole = train(options, options.out / "whole", progress=not options.json)
    taken = train_and_kill(options, options.out / "killed")
    resumed = train(
        options, options.out / "killed", resume=True, progress=not options.json
    )
    ours, theirs = (run.weights(best=False) for run in (whole, resumed))
    same = all(np.array_equal(ours[name], theirs[name]) for name in ours)

    rows = resumed.evaluate(
        [options.kind, *options.test],
        data=Path(options.data) / "test",
        cache=options.out / "features",
        controls=True,
        threads=options.threads,
    )
    with shoal.Recogniser(resumed.path, options.test[0]) as recogniser:
        heard = recogniser.recognise(first_recording(Path(options.data) / "test"))
    found = {
        "killed_after": taken,
        "steps": resumed.result["step"],
        "same_bits": same,
        "log": len(resumed.log),
        "error_rates": {row["kind"]: row["error_rate"] for row in rows},
        "heard": heard.text,
    }
    if options.json:
        print(json.dumps(found))
        return
    print(f"killed after {taken} of {found['steps']} steps, and resumed: "
          f"{'the same bits' if same else 'OTHER WEIGHTS'}")  # fmt: skip
    for kind, rate in found["error_rates"].items():
        print(f"{kind:24} {rate:6.2f} % of the units are wrong")
    print(f"the first recording of the test: {heard.text}")


def slowly(event: dict[str, Any]) -> None:
    """Waits after each step, so that SIGKILL arrives in the middle even of a tiny run."""
    if event["event"] == "step":
        time.sleep(0.01)


def first_recording(folder: Path) -> Path:
    return folder / (folder / "wav.scp").read_text().split(maxsplit=2)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("data", help="a data folder with train, dev and test")
    parser.add_argument("out", type=Path, help="a folder for the runs")
    parser.add_argument("settings", nargs="*", help="NAME=VALUE: fields of the training")
    parser.add_argument("--kind", default="i-clustered-100", help="attention in training")
    parser.add_argument("--test", nargs="+", default=["full"], help="and afterwards")
    parser.add_argument("--kill-after", type=int, default=5, metavar="STEPS")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", action="store_true", help="results as JSON")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    try:
        main(parser.parse_intermixed_args())
    except (shoal.ShoalError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
