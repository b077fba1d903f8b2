#!/usr/bin/env python3
"""Whole recordings, whole programs: `shoal transcribe` beside faster-whisper, batched
(8 windows, speech found first, int8 and float32), on the same weights. Recordings are
utterances of --speech joined with pauses of 0.2 to 1 s of faint noise; programs take
turns, and the best of --repeats runs counts, model loading included. Also the word error
rate of each text and the most memory that each program took.

faster-whisper reads a model of CTranslate2's, which is made of the ggml file here
(transformers in between). It makes a virtual environment of its own."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from environment import run_inside  # noqa: E402
PACKAGES = ["torch==2.13.0", "transformers", "faster-whisper", "soundfile", "numpy"]
THEIRS = """
import sys
from faster_whisper import BatchedInferencePipeline, WhisperModel
sound, folder, kind, threads = sys.argv[1:]
model = WhisperModel(folder, device="cpu", compute_type=kind, cpu_threads=int(threads))
segments, _ = BatchedInferencePipeline(model).transcribe(
    sound, language="en", batch_size=8, beam_size=1)
print(" ".join(s.text for s in segments))
"""


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data"))
    add = parser.add_argument
    add("--model", type=Path, default=data / "models" / "ggml-tiny.bin",
        help="a ggml file (default: %(default)s)")
    add("--speech", type=Path, default=data / "speech",
        help="recordings with transcripts.txt (default: %(default)s)")
    add("--seconds", default="60,600", help="of the recordings (default: %(default)s)")
    add("--kinds", default="full,shoal", help="of our encoder (default: %(default)s)")
    add("--threads", type=int, default=2, help="(default: %(default)s)")
    add("--repeats", type=int, default=3, help="(default: %(default)s)")
    add("--program", action="append", type=Path,
        help="a shoal program, may be given again (default: build/shoal)")
    add("--environment", type=Path, default=ROOT / "build" / "peers-recordings",
        help="folder of the virtual environment (default: build/peers-recordings)")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def join(options, seconds, folder):
    """A WAV file of about this many seconds, and its transcript."""
    import numpy
    import soundfile
    draw, sound, said, length = numpy.random.default_rng(1), [], [], 0
    lines = (options.speech / "transcripts.txt").read_text().splitlines()
    for i in draw.permutation(len(lines)):
        name, text = lines[i].split(" ", 1)
        samples, rate = soundfile.read(options.speech / f"{name}.flac", dtype="float32")
        if length + len(samples) > seconds * rate:
            continue
        pause = draw.normal(0, 3e-4, int(rate * draw.uniform(0.2, 1)))
        sound += [samples, pause.astype("float32")]
        said.append(text)
        length += len(samples) + len(pause)
    path = folder / f"{seconds}.wav"
    soundfile.write(path, numpy.concatenate(sound), 16000, subtype="PCM_16")
    return path, " ".join(said)


def halves_of(ranks, text):
    """The two tokens that byte pair encoding merges to `text`, by their ranks."""
    parts, most = [text[i:i + 1] for i in range(len(text))], ranks[text]
    while len(parts) > 2:
        joined = [ranks.get(a + b, most) for a, b in zip(parts, parts[1:])]
        at = joined.index(min(joined))
        if joined[at] >= most:
            return None
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts if len(parts) == 2 else None


def convert(options, folder):
    """Converts the ggml file to CTranslate2's format."""
    import ctranslate2
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers.models.whisper.tokenization_whisper import LANGUAGES
    from whisper_model import Peer
    peer = Peer(options.model)
    peer.model.save_pretrained(folder / "hf")
    peer.extractor.save_pretrained(folder / "hf")
    special, plain = peer.special, list(range(33, 127)) + list(range(161, 173)) + list(
        range(174, 256))
    spelled = {b: chr(b) for b in plain}
    spelled |= {b: chr(256 + n) for n, b in
                enumerate(b for b in range(256) if b not in plain)}
    ranks = {text: i for i, text in enumerate(peer.file.vocabulary[:special.end])}
    spell = lambda text: "".join(spelled[b] for b in text)
    merges = [tuple(map(spell, pair)) for pair in
              (halves_of(ranks, text) for text in ranks) if pair]
    tokenizer = Tokenizer(models.BPE(vocab={spell(t): i for t, i in ranks.items()},
                                     merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    languages = list(LANGUAGES)[:special.translate - special.first_language]
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in [
        "endoftext", "startoftranscript", *languages, "translate", "transcribe",
        "startoflm", "startofprev", "nospeech", "notimestamps"]])
    tokenizer.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>") for i in range(1501)])
    tokenizer.save(str(folder / "hf" / "tokenizer.json"))
    (folder / "hf" / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "WhisperTokenizer", "bos_token": "<|endoftext|>",
         "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}))
    ctranslate2.converters.TransformersConverter(
        str(folder / "hf"), copy_files=["tokenizer.json", "preprocessor_config.json"]
    ).convert(str(folder / "ct2"), quantization="float16")
    return folder / "ct2"


# A small process between: the memory of a child includes that of its parent at the start.
MEASURE = """
import json, resource, subprocess, sys, time
begun = time.monotonic()
text = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=True).stdout
seconds = time.monotonic() - begun
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
                  text]))
"""


def run(command, threads):
    """Seconds, megabytes and text of one run."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *map(str, command)],
                          stdout=subprocess.PIPE, text=True, check=True,
                          env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    return json.loads(done.stdout)


def commands(options, sound, theirs):
    programs = options.program or [ROOT / "build" / "shoal"]
    for program in programs:
        for kind in options.kinds.split(","):
            label = kind if len(programs) == 1 else f"{program} {kind}"
            yield f"shoal {label}", [program, "transcribe", sound, "-m", options.model,
                                     "-l", "en", "-a", kind, "-q", "--threads",
                                     str(options.threads)]
    for kind in ("int8", "float32"):
        yield f"faster-whisper batched {kind}", [
            sys.executable, "-c", THEIRS, sound, theirs, kind, str(options.threads)]


def compare(options, sound, said, theirs, speech):
    best = {}
    for _ in range(options.repeats):
        for label, command in commands(options, sound, theirs):
            seconds, megabytes, text = run(command, options.threads)
            before = best.get(label, (seconds, 0, ""))
            best[label] = (min(seconds, before[0]), max(megabytes, before[1]), text)
    print(f"\n{sound.stem} s, {options.threads} threads")
    for label, (seconds, megabytes, text) in best.items():
        e = speech.word_errors(said, text)
        wrong = e.substitutions + e.insertions + e.deletions
        print(f"{label:32} {seconds:7.2f} s {megabytes:6.0f} MB "
              f"{100 * wrong / e.words:6.2f} % of {e.words} words wrong "
              f"({e.deletions} left out)")


def main():
    options = parse()
    if not options.inside:
        return run_inside(options.environment, PACKAGES, __file__)
    from whisper_library import Speech
    speech = Speech(ROOT / "build" / "libshoal-speech.so", 1, options.model)
    with tempfile.TemporaryDirectory() as name:
        theirs = convert(options, Path(name))
        for seconds in options.seconds.split(","):
            sound, said = join(options, int(seconds), Path(name))
            compare(options, sound, said, theirs, speech)
    return 0


if __name__ == "__main__":
    sys.exit(main())
