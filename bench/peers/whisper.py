#!/usr/bin/env python3
"""Shoal's Whisper beside two others on the same weights: transformers in PyTorch,
float32, built from the same ggml file, for every number; and whisper.cpp (pywhispercpp)
for time.

  mel      log-mel features of the recordings
  encoder  the encoder's output with full attention, relative to its size
  logits   the decoder's logits along a text
  texts    greedy texts of every utterance, letter by letter
  wer      word error rates of both, utterances packed into windows as `shoal wer` does
  folder   the model saved as a Hugging Face folder and opened again gives the same bits
  time     one encoder run of ours (full, shoal ...) and of whisper.cpp, in turns

It makes a virtual environment of its own. The exit code is 1 when something differs more
than it may."""
import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from environment import run_inside  # noqa: E402
PACKAGES = ["torch==2.13.0", "transformers", "pywhispercpp", "soundfile", "numpy"]
PARTS = "mel,encoder,logits,texts,wer,folder,time"


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data"))
    add = parser.add_argument
    add("--model", type=Path, default=data / "models" / "ggml-tiny.bin",
        help="a ggml file (default: %(default)s)")
    add("--speech", type=Path, default=data / "speech",
        help="recordings with transcripts.txt (default: %(default)s)")
    add("--parts", default=PARTS, help="of %(default)s (default: all)")
    add("--kinds", default="full,shoal", help="timed (default: %(default)s)")
    add("--limit", type=int, default=0, help="only the first utterances (default: all)")
    add("--per-window", type=int, default=2,
        help="utterances per window for wer (default: %(default)s)")
    add("--gap", type=float, default=0.5, help="seconds between them (default: 0.5)")
    add("--threads", type=int, default=2, help="(default: %(default)s)")
    add("--repeats", type=int, default=20, help="timed runs (default: %(default)s)")
    add("--library", type=Path, default=ROOT / "build" / "libshoal-speech.so",
        help="(default: build/libshoal-speech.so)")
    add("--environment", type=Path, default=ROOT / "build" / "peers-whisper",
        help="folder of the virtual environment (default: build/peers-whisper)")
    add("--json", metavar="F", help="write everything there too")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def report(results, name, value, limit, at_least=False):
    """One line, and whether it is within its limit."""
    good = value >= limit if at_least else value <= limit
    results[name] = {"value": value, "limit": limit, "good": bool(good)}
    print(f"{'ok    ' if good else 'NOT OK'} {name}: {value:.3g} "
          f"({'at least' if at_least else 'at most'} {limit:g})", flush=True)


def main():
    options = parse()
    options.library = options.library.resolve()
    options.environment = options.environment.resolve()
    for path in (options.library, options.model, options.speech):
        if not path.exists():
            raise SystemExit(f"bench/peers/whisper.py: no {path}")
    unknown = set(options.parts.split(",")) - set(PARTS.split(","))
    if unknown:
        raise SystemExit(f"bench/peers/whisper.py: no part named {', '.join(unknown)}")
    if not options.inside:
        # Spinning threads would take the processor from the one that is timed.
        return run_inside(options.environment, PACKAGES, __file__,
                          {"OMP_NUM_THREADS": str(options.threads),
                           "OMP_WAIT_POLICY": "passive"})
    import whisper_checks
    results = {}
    whisper_checks.run(options, lambda *a, **k: report(results, *a, **k), results)
    if options.json:
        Path(options.json + ".tmp").write_text(json.dumps(results, indent=1) + "\n")
        os.replace(options.json + ".tmp", options.json)
    failed = any(isinstance(r, dict) and r.get("good") is False for r in results.values())
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
