#!/usr/bin/env python3
"""What a kind of attention costs and spoils in an embedding: vectors of SQuAD's contexts,
the paragraphs of an article joined and cut at a number of tokens, beside full's.

    text_kinds.py FOLDER... [--lengths 128,256,512] [--kinds full,clustered-25,...]

The kinds take turns; the best time of --repeats counts. Error: the length of the
difference over that of full's vector, mean over the texts, and the mean cosine. Beside
it, how often the nearest other text is the one that full finds. Needs numpy."""
import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from text_library import TextEncoder, TextLibrary  # noqa: E402


def joined(data, count):
    """Every article gives texts of ten paragraphs: longer than any window here."""
    articles = json.loads((data / "squad/dev-v1.1.json").read_text())["data"]
    texts = []
    for article in articles:
        contexts = [one["context"] for one in article["paragraphs"]]
        texts += [" ".join(contexts[at:at + 10])
                  for at in range(0, len(contexts) - 9, 10)]
    return texts[:count]


def nearest(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    return cosines.argmax(1)


def compare(folder, length, given):
    library = TextLibrary(given.build, given.threads)
    texts = joined(given.data, given.texts)
    kinds = given.kinds.split(",")
    encoders = {kind: TextEncoder(library, folder, attention=kind.encode(),
                                  window=length, long_texts=1) for kind in kinds}
    vectors, best = {}, {}
    for _ in range(given.repeats):
        for kind, encoder in encoders.items():
            begun = time.perf_counter()
            vectors[kind] = encoder.embed(texts)
            best[kind] = min(best.get(kind, 1e9), time.perf_counter() - begun)
    full = vectors[kinds[0]].astype(np.float64)
    for kind in kinds:
        own = vectors[kind].astype(np.float64)
        norms = np.linalg.norm(full, axis=1)
        error = np.linalg.norm(own - full, axis=1) / norms
        cosine = (own * full).sum(1) / norms / np.linalg.norm(own, axis=1)
        same = (nearest(own) == nearest(full)).mean()
        print(f"{Path(folder).name}, {length} tokens: {kind}: "
              f"{1000 * best[kind] / len(texts):.1f} ms a text, "
              f"error {error.mean():.4f}, cosine {cosine.mean():.5f}, "
              f"same nearest {100 * same:.0f} %", flush=True)
    for encoder in encoders.values():
        encoder.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folders", nargs="+", type=Path, help="Hugging Face folders")
    add("--build", type=Path, default=ROOT / "build")
    add("--data", type=Path, default=ROOT.parent / "shared" / "data")
    add("--lengths", default="128,256,512", help="(default: %(default)s)")
    add("--kinds", default="full,clustered-25,i-clustered-25,shoal-25",
        help="the first is what the others are compared with (default: %(default)s)")
    add("--texts", type=int, default=100, help="(default: %(default)s)")
    add("--threads", type=int, default=2, help="(default: %(default)s)")
    add("--repeats", type=int, default=3, help="(default: %(default)s)")
    given = parser.parse_args()
    for folder in given.folders:
        for length in map(int, given.lengths.split(",")):
            compare(folder, length, given)


if __name__ == "__main__":
    main()
