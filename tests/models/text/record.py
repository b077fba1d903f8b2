#!/usr/bin/env python3
"""Records what the package `tokenizers` says, for test_tokenizer.c: two small tokenizers
trained on this project's pages, in both forms of files, and cases.json with the ids of
awkward texts. Run it with a Python that has the package; the result is checked in."""
import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "peers"))
from tokens import random_strings  # noqa: E402

PAGES = [str(ROOT / name) for name in ("README.md", "CONTRIBUTING.md")]
TEXTS = ["", " ", "a", "Attention in linear time.", "  leading and trailing  ",
         "don't we'll I've he's they're I'm she'd 'S", "Ünïcödé ÀÉÎ straße İstanbul",
         "中文字 and 한국어 and עברית", "tabs\tand\nlines\r\n\r\n  end", "x" * 101,
         "x" * 100, "[CLS] is [MASK] not [mask]", "<s> a <mask> b  <mask></s>",
         "3.14159 1,000,000 ٣٤", "a\u0301\u0323 \u1ea5", "\x00\x01\ufffd\u200b!?",
         "naïve cafe\u0301 — “quotes” … ½", "\U0001f600\U0001f468\u200d\U0001f469"]


def wordpiece():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train(PAGES, trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def byte_pairs():
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train(PAGES, trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"]))
    from tokenizers import AddedToken
    made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


def write_files(made, folder):
    """tokenizer.json, and the older files in a folder beside it."""
    older = HERE / (folder + "-files")
    for path in (HERE / folder, older):
        path.mkdir(exist_ok=True)
    whole = json.loads(made.to_str())
    (HERE / folder / "tokenizer.json").write_text(
        json.dumps(whole, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n")
    vocabulary = made.get_vocab(with_added_tokens=True)
    if folder == "wordpiece":
        words = sorted(vocabulary, key=vocabulary.get)
        (older / "vocab.txt").write_text("".join(word + "\n" for word in words))
        return
    (older / "vocab.json").write_text(
        json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":")) + "\n")
    merges = [" ".join(pair) if isinstance(pair, list) else pair
              for pair in whole["model"]["merges"]]
    (older / "merges.txt").write_text("#version: 0.2\n" +
                                      "".join(merge + "\n" for merge in merges))


def case(made, folder, text, pair=None, most=0, cut="longest_first"):
    made.no_truncation()
    if most:
        made.enable_truncation(most, strategy=cut)
    got = made.encode(text, pair)
    return {"folder": folder, "text": text, "pair": pair, "most": most, "cut": cut,
            "ids": got.ids, "types": got.type_ids}


def main():
    cases = []
    clean = lambda text: text.replace("\x00", "")  # noqa: E731 (JSON readers refuse it)
    texts = [clean(text) for text in TEXTS + list(random_strings(40, 7))]
    for folder, make in (("wordpiece", wordpiece), ("byte-pairs", byte_pairs)):
        made = make()
        write_files(made, folder)
        cases += [case(made, folder, text) for text in texts]
        draw = random.Random(5)
        for cut in ("longest_first", "only_first", "only_second"):
            for _ in range(12):
                first, second = (" ".join(draw.choices("a bb ccc dd12 e.".split(),
                                                       k=draw.randrange(6, 25)))
                                 for _ in range(2))
                try:
                    cases.append(case(made, folder, first, second,
                                      draw.choice([0, 30, 31, 40]), cut))
                except Exception:  # the text that is to be cut is too short for it
                    pass
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
    (HERE / "cases.json").write_text('{"cases": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
