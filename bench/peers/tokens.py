#!/usr/bin/env python3
"""Our tokens beside those of the package `tokenizers`, id for id: every sentence of GLUE
and SQuAD, pairs of them, truncation, and random Unicode strings. Run it with a Python
that has the package.

    tokens.py FOLDER... [--build build] [--data ../shared/data] [--random 10000]
    tokens.py --unigram NEW             # Unigram as XLM-R has it, in six settings

FOLDER is a model's, with tokenizer.json. --unigram trains tokenizers on a part of the
sentences (with the package sentencepiece) and writes their folders below NEW first."""
import argparse
import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer as Theirs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
from text_library import TextLibrary, Tokenizer  # noqa: E402

TRICKY = (" \t\n\r\x00\x0b\x0c\x85\xa0\u2028\u3000\u200b\ufeff\ufffd'\"-_#[]<>/"
          "\u0301\u0308\u0130\u1e9e\u00df\u03a3\u4e2d\uac00\u1100\u1161\u11a8"
          "\U0001f600\u200d\u00ad\u0345\u1ac0\u302e\U0001d165")
WORDS = ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "<s>", "</s>", "<mask>", " <mask>", "'s",
         "'ll", "don't", "Naïve", "ÉCOLE", "the", "  ", "\n\n", "123", "x" * 120]
PIECES = ["\u2581", "\u2581the", "School", "school", "\u2581of  ", "<unk>", "<pad>", "''",
          "\u2122\u0301", "\ufb01\u0308", "\u00bd", "\u0958", "\r\n", "ing", "\xa8"]


def sentences(data):
    """Every field of every row that is text."""
    for path in sorted(data.glob("glue/*/*.tsv")):
        for line in path.read_text(encoding="utf-8").split("\n"):
            yield from (field for field in line.split("\t") if field)
    for path in sorted(data.glob("squad/*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                yield paragraph["context"]
                for question in paragraph["qas"]:
                    yield question["question"]


def any_character(draw, words):
    kind = draw.randrange(6)
    if kind == 0:
        return chr(draw.randrange(0x20, 0x7f))
    if kind == 1:
        return draw.choice(TRICKY)
    if kind == 2:
        return draw.choice(words)
    limit = {3: 0x800, 4: 0x10000, 5: 0x110000}[kind]
    code = draw.randrange(limit)
    while 0xd800 <= code < 0xe000:
        code = draw.randrange(limit)
    return chr(code)


def random_strings(count, seed=1, words=tuple(WORDS)):
    draw = random.Random(seed)
    for _ in range(count):
        yield "".join(any_character(draw, words) for _ in range(draw.randrange(60)))


class Comparison:
    def __init__(self, folder, library):
        self.folder = folder
        self.theirs = Theirs.from_file(str(Path(folder) / "tokenizer.json"))
        self.theirs.no_padding()
        self.theirs.no_truncation()
        self.ours = Tokenizer(library, folder)
        self.compared = self.wrong = self.tokens = 0

    def one(self, text, ours, theirs):
        self.compared += 1
        self.tokens += len(theirs.ids)
        if ours[0] == theirs.ids and ours[1] == theirs.type_ids:
            return
        self.wrong += 1
        if self.wrong <= 5:
            print(f"  {text!r}\n    ours   {ours[0]}\n    theirs {theirs.ids}")

    def many(self, texts):
        block = []
        for text in texts:
            block.append(text)
            if len(block) == 1000:
                self.block(block)
                block = []
        self.block(block)

    def block(self, texts):
        for text, theirs in zip(texts, self.theirs.encode_batch(texts)):
            self.one(text, self.ours.encode(text), theirs)

    def pairs(self, texts, draw):
        """Neighbours as pairs, cut in each of the ways, at odd limits."""
        for first, second in zip(texts[::2], texts[1::2]):
            most = draw.choice([0, 3, 4, 7, 16, 33, 128])
            for cut in ("longest_first", "only_first", "only_second"):
                self.theirs.no_truncation()
                if most:
                    self.theirs.enable_truncation(most, strategy=cut)
                try:
                    theirs = self.theirs.encode(first, second)
                    if most and len(theirs.ids) > most:
                        continue  # too small a limit, which we refuse
                except Exception:  # too small a limit
                    continue
                try:
                    ours = self.ours.encode(first, second, most, cut)
                except Exception as error:  # pylint: disable=broad-except
                    ours = (str(error), None)
                self.one((first, second, most, cut), ours, theirs)
        self.theirs.no_truncation()

    def report(self, what):
        print(f"{self.folder}: {what}: {self.compared - self.wrong} of {self.compared} "
              f"the same ({self.tokens} tokens)")
        wrong, self.compared, self.wrong, self.tokens = self.wrong, 0, 0, 0
        return wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--unigram", type=Path, metavar="NEW")
    parser.add_argument("--build", default=ROOT / "build", type=Path)
    parser.add_argument("--data", default=ROOT / ".." / "shared" / "data", type=Path)
    parser.add_argument("--random", default=10000, type=int)
    parser.add_argument("--every", default=1, type=int, help="only every Nth sentence")
    given = parser.parse_args()
    words, wrong = WORDS, 0
    if given.unigram:
        import unigram
        texts = [text for i, text in enumerate(sentences(given.data)) if i % 20 == 0]
        given.folders += unigram.make(texts, given.unigram)
        words = WORDS + PIECES
    for folder in given.folders:
        compare = Comparison(folder, TextLibrary(given.build, 1))
        compare.many(text for i, text in enumerate(sentences(given.data))
                     if i % given.every == 0)
        wrong += compare.report("sentences")
        compare.many(random_strings(given.random, words=words))
        wrong += compare.report("random strings")
        draw = random.Random(2)
        some = [text for i, text in enumerate(sentences(given.data))
                if i % (50 * given.every) == 0]
        compare.pairs(some + list(random_strings(given.random // 5, 3, words)), draw)
        wrong += compare.report("pairs and limits")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
