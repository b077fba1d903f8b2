#!/usr/bin/env python3
"""Makes a data folder for `shoal train speech` from LibriSpeech, or from a corpus with
its layout: PART/SPEAKER/CHAPTER/*.flac (or .wav) beside SPEAKER-CHAPTER.trans.txt, whose
lines are "UTTERANCE WORD WORD ...".

    prepare_librispeech.py LibriSpeech data
    prepare_librispeech.py LibriSpeech data --train train-clean-100 train-clean-360
    shoal train speech data --out recogniser --attention i-clustered-100

data/train, data/dev and data/test get wav.scp, text and utt2spk; recordings are not
copied. Needs only Python.
"""

import argparse
import sys
from pathlib import Path


def utterances(folder):
    """(utterance, recording, words, speaker) of one part of the corpus."""
    for transcripts in sorted(folder.glob("*/*/*.trans.txt")):
        speaker = transcripts.parent.parent.name
        for line in transcripts.read_text(encoding="utf-8").splitlines():
            if not line.strip():
                continue
            name, _, words = line.partition(" ")
            found = [transcripts.parent / (name + end) for end in (".flac", ".wav")]
            recording = next((path for path in found if path.exists()), None)
            if recording is None:
                sys.exit(f"{transcripts}: {found[0].name} is not beside it")
            yield name, recording.resolve(), words.strip(), speaker


def write_part(corpus, parts, out):
    rows = []
    for part in parts:
        if not (corpus / part).is_dir():
            sys.exit(f"{corpus / part}: there is no such folder")
        rows += utterances(corpus / part)
    if not rows:
        sys.exit(f"{corpus}: {', '.join(parts)} has no *.trans.txt two folders down")
    rows.sort()
    out.mkdir(parents=True, exist_ok=True)
    for name, column in (("wav.scp", 1), ("text", 2), ("utt2spk", 3)):
        lines = (f"{row[0]} {row[column]}\n" for row in rows)
        (out / name).write_text("".join(lines), encoding="utf-8")
    print(f"{out}: {len(rows)} utterances of {len({row[3] for row in rows})} speakers")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="the folder that has the parts")
    parser.add_argument("out", type=Path, help="the data folder to be made")
    parser.add_argument("--train", nargs="+", default=["train-clean-100"])
    parser.add_argument("--dev", nargs="+", default=["dev-clean"])
    parser.add_argument("--test", nargs="*", default=["test-clean"])
    given = parser.parse_args()
    for name in ("train", "dev", "test"):
        if getattr(given, name):
            write_part(given.corpus, getattr(given, name), given.out / name)


if __name__ == "__main__":
    main()
