#!/usr/bin/env python3
"""Records results of the package `tokenizers` for test_tokenizer.c: small tokenizers
trained on this project's pages, two of them in both file formats, and cases.json with the
ids of awkward texts. Run it with a Python that has the packages tokenizers and
sentencepiece; the result is checked in.

    record.py [NAME...]     # wordpiece, byte-pairs, unigram, unigram-bytes
"""
import json
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "peers"))
from tokens import PIECES, WORDS, random_strings  # noqa: E402
import unigram as peers  # noqa: E402

PAGES = [str(ROOT / name) for name in ("README.md", "CONTRIBUTING.md")]
TEXTS = ["", " ", "a", "Attention in linear time.", "  leading and trailing  ",
         "don't we'll I've he's they're I'm she'd 'S", "Ünïcödé ÀÉÎ straße İstanbul",
         "中文字 and 한국어 and עברית", "tabs\tand\nlines\r\n\r\n  end", "x" * 101,
         "x" * 100, "[CLS] is [MASK] not [mask]", "<s> a <mask> b  <mask></s>",
         "3.14159 1,000,000 ٣٤", "a\u0301\u0323 \u1ea5", "\x00\x01\ufffd\u200b!?",
         "naïve cafe\u0301 — “quotes” … ½", "\U0001f600\U0001f468\u200d\U0001f469"]

# Grapheme clusters, and sequences that are none, by the rules of the newest Unicode.
CLUSTERS = ["\u2122\u0301", "\U0001f600\u200d\u2122\u0301", "\u2605\u200d\u2122\u0301",
            "\u0915\u094d\u0959\u0301", "\u0915\u094d\u200d\u0959\u0301",
            "\u0915\u094d\u200c\u0959\u0301", "\u0915\u0903\u0959\u0301",
            "\u0915\u0959\u0301", "\u2122\u1acf", "\u0600\u2122\u0301", "\r\n\u0301"]


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
    made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


# Replacements of a small character table: several characters by one, one by several, by
# none, and by an entry that is a prefix of another.
REPLACED = ([(chr(0xff01 + i), chr(0x21 + i)) for i in range(94)] +
            [(space, " ") for space in "\t\n\r\xa0\u2003\u3000"] +
            [("\r\n", "\u2581"), ("\ufb01", "fi"), ("\ufb02", "fl"),
             ("\u00bd", "1\u20442"), ("\u2122", "TM"), ("e\u0301", "\xe9"),
             ("E\u0301", "\xc9"), ("\xa8", " \u0308"), ("\u200b", ""), ("\ufeff", ""),
             ("\x01", ""), ("\x7f", ""), ("\u2026", "..."),
             ("\u0958", "\u0915\u093c"), ("\u0959", "kh"), ("\u201c", '"'),
             ("\u201d", '"'),
             ("\xc5", "A\u030a"), ("\xc5\u0301", "\u01fa"),
             ("\u1100\u1161", "\uac00"), ("\u0130", "i\u0307")])


def with_own_table(size, byte_fallback):
    """(tokenizer, its table of characters)"""
    texts = [line for page in PAGES
             for line in Path(page).read_text().split("\n") if line]
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.tsv"
        numbers = [["".join(f"{ord(c):X} " for c in side) for side in pair]
                   for pair in REPLACED]
        rules.write_text("".join("\t".join(pair) + "\n" for pair in numbers))
        pieces, table = peers.train_sentencepiece(texts, size, None, byte_fallback, rules)
    return peers.like_xlm_roberta(pieces, byte_fallback), table


def unigram():
    made, table = with_own_table(400, False)
    made.normalizer = normalizers.Precompiled(table)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return made


def unigram_bytes():
    made, table = with_own_table(500, True)
    made.normalizer = normalizers.Sequence([
        normalizers.Replace("''", '"'), normalizers.NFKC(), normalizers.Lowercase(),
        peers.converted(table)])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.add_tokens([AddedToken("School", normalized=True),
                     AddedToken("\u2581of", normalized=False, rstrip=True)])
    return made


def write_files(made, folder):
    """tokenizer.json, and the older files in another folder."""
    older = HERE / (folder + "-files")
    (HERE / folder).mkdir(exist_ok=True)
    whole = json.loads(made.to_str())
    (HERE / folder / "tokenizer.json").write_text(
        json.dumps(whole, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n")
    if whole["model"]["type"] == "Unigram":
        return
    older.mkdir(exist_ok=True)
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


MAKERS = {"wordpiece": wordpiece, "byte-pairs": byte_pairs, "unigram": unigram,
          "unigram-bytes": unigram_bytes}


def main():
    wanted = sys.argv[1:] or list(MAKERS)
    cases = [case for case in json.loads((HERE / "cases.json").read_text())["cases"]
             if case["folder"] not in wanted]
    clean = lambda text: text.replace("\x00", "")  # noqa: E731 (JSON readers refuse it)
    for folder in wanted:
        made = MAKERS[folder]()
        words, more = ((WORDS + PIECES, CLUSTERS) if folder.startswith("unigram")
                       else (WORDS, []))
        texts = [clean(text)
                 for text in TEXTS + more + list(random_strings(40, 7, words))]
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
                except Exception:  # the text to be truncated is too short
                    pass
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
    (HERE / "cases.json").write_text('{"cases": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
