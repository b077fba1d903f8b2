#!/usr/bin/env python3
"""Times of words: `shoal transcribe --words` beside openai-whisper on the same weights.

Both hear the same recordings; words that both heard are compared by when they begin and
end. It makes a virtual environment of its own. The exit code is 1 when fewer than
--share of the words are within --within seconds at both ends."""
import argparse
import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from environment import run_inside  # noqa: E402
PACKAGES = ["torch==2.13.0", "transformers", "openai-whisper", "soundfile", "numpy"]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data"))
    add = parser.add_argument
    add("--model", type=Path, default=data / "models" / "ggml-tiny.bin",
        help="a ggml file (default: %(default)s)")
    add("--size", default="tiny",
        help="its name, which says whose alignment heads it has (default: %(default)s)")
    add("--speech", type=Path, default=data / "speech",
        help="recordings, 16 kHz (default: %(default)s)")
    add("--limit", type=int, default=10, help="recordings (default: %(default)s)")
    add("--within", type=float, default=0.15, help="seconds (default: %(default)s)")
    add("--share", type=float, default=0.9, help="of the words (default: %(default)s)")
    add("--options", default="", help="more options of shoal transcribe")
    add("--program", type=Path, default=ROOT / "build" / "shoal",
        help="(default: build/shoal)")
    add("--environment", type=Path, default=ROOT / "build" / "peers-words",
        help="folder of the virtual environment (default: build/peers-words)")
    add("--json", metavar="F", help="write every word there")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def open_peer(options):
    """openai-whisper's model with the ggml file's weights."""
    import torch
    paths = sys.path  # whisper.py of this folder is another
    sys.path = [path for path in paths if Path(path).resolve() != HERE]
    import whisper
    sys.path = paths
    from whisper_model import GgmlFile
    file = GgmlFile(options.model)
    sizes = {name: size for name, size in file.sizes.items() if name != "ftype"}
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**sizes))
    model.load_state_dict({name: torch.from_numpy(
        values.reshape(-1) if name.endswith(".bias") else values.copy())
        for name, values in file.tensors.items()}, strict=True)
    model.set_alignment_heads(whisper._ALIGNMENT_HEADS[options.size])
    return model.eval()


def their_words(model, path):
    import soundfile
    samples, rate = soundfile.read(path, dtype="float32")
    if rate != 16000:
        sys.exit(f"{path} has {rate} samples a second, not 16000")
    heard = model.transcribe(samples, language="en", word_timestamps=True, fp16=False)
    return [word for segment in heard["segments"] for word in segment["words"]]


def our_words(options, path):
    command = [options.program, "transcribe", path, "--model", options.model,
               "--language", "en", "--words", "--format", "json", "--quiet",
               *options.options.split()]
    heard = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [word for segment in heard["segments"] for word in segment["words"]]


def plain(word):
    return re.sub(r"[^a-z0-9']", "", word["word"].lower())


def compare(ours, theirs):
    """Pairs of words that both heard."""
    matcher = difflib.SequenceMatcher(None, list(map(plain, ours)),
                                      list(map(plain, theirs)), autojunk=False)
    for block in matcher.get_matching_blocks():
        for i in range(block.size):
            yield ours[block.a + i], theirs[block.b + i]


def main():
    options = parse()
    if not options.inside:
        return run_inside(options.environment, PACKAGES, __file__)
    model, pairs, rows = open_peer(options), [], []
    for path in sorted(options.speech.rglob("*.flac"))[:options.limit]:
        ours, theirs = our_words(options, path), their_words(model, path)
        found = list(compare(ours, theirs))
        rows.append([path.name, len(ours), len(theirs), len(found)])
        pairs += found
        off = [max(abs(a["start"] - b["start"]), abs(a["end"] - b["end"]))
               for a, b in found]
        print(f"{path.name}: {len(ours)} words, {len(theirs)} theirs, {len(found)} of "
              f"both, {sum(o <= options.within + 1e-6 for o in off)} within "
              f"{options.within} s", flush=True)
    starts = sorted(abs(a["start"] - b["start"]) for a, b in pairs)
    ends = sorted(abs(a["end"] - b["end"]) for a, b in pairs)
    off = [max(abs(a["start"] - b["start"]), abs(a["end"] - b["end"])) for a, b in pairs]
    share = sum(o <= options.within + 1e-6 for o in off) / max(1, len(off))
    if options.json:
        Path(options.json).write_text(json.dumps({"recordings": rows, "words": pairs}))
    for name, list_ in (("begin", starts), ("end", ends)):
        print(f"{name}: median {list_[len(list_) // 2]:.3f} s, 90 % within "
              f"{list_[len(list_) * 9 // 10]:.3f} s")
    good = share >= options.share
    print(f"{'ok    ' if good else 'NOT OK'} {100 * share:.1f} % of {len(off)} words "
          f"have both ends within {options.within} s (at least "
          f"{100 * options.share:g} %)")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
