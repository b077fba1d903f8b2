#!/usr/bin/env python3
"""Writes the corpus of fuzz_tokenizer: run it in this directory, it fills tokenizer/.
Names that begin with ok- are valid inputs, those with bad- have one error.
"""
import base64
import json
import os
import struct
from pathlib import Path

RECORDED = Path(__file__).resolve().parent.parent / "models/text/unigram/tokenizer.json"


def save(name, data):
    os.makedirs("tokenizer", exist_ok=True)
    with open(os.path.join("tokenizer", name), "wb") as file:
        file.write(data if isinstance(data, bytes) else json.dumps(data).encode())


def pieces(**more):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "##b", "don", "t"]
    return {"added_tokens": [{"id": 4, "content": "[MASK]", "lstrip": True}],
            "normalizer": {"type": "BertNormalizer"},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3],
                               "cls": ["[CLS]", 2]},
            "model": {"type": "WordPiece", "unk_token": "[UNK]",
                      "vocab": {word: i for i, word in enumerate(words)}}, **more}


def pairs(merges, **more):
    words = ["<s>", "</s>", "<unk>", "<pad>", "a", "b", "aa", "aaaa", "ab", "\u0120", "1"]
    special = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel"},
            "post_processor": {"type": "TemplateProcessing", "single": [special, first],
                               "pair": [special, first, second],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [0]}}},
            "model": {"type": "BPE", "unk_token": "<unk>", "merges": merges,
                      "vocab": {word: i for i, word in enumerate(words)}}, **more}


def table():
    """The recorded table of characters, as bytes."""
    recorded = json.loads(RECORDED.read_text())["normalizer"]["precompiled_charsmap"]
    return base64.b64decode(recorded)


def unigram(charsmap=None, **more):
    words = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "a", "b", "ab", "\u2581a", "fi",
             "<0xCC>", "<0x81>", "<mask>"]
    mapped = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(
        table() if charsmap is None else charsmap).decode()}
    return {"added_tokens": [{"id": 12, "content": "<mask>", "lstrip": True}],
            "normalizer": {"type": "Sequence", "normalizers": [
                mapped, {"type": "Strip", "strip_left": False, "strip_right": True},
                {"type": "Replace", "pattern": {"Regex": " {2,}"},
                 "content": "\u2581"}]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "\u2581"}]},
            "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2],
                               "cls": ["<s>", 0]},
            "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": True,
                      "vocab": [[word, -0.5 * i] for i, word in enumerate(words)]},
            **more}


def unigrams():
    good = table()
    units = struct.unpack_from("<I", good)[0]
    forms = [{"type": name} for name in ("NFKC", "NFD", "NFKD", "Lowercase")]
    save("ok-unigram", unigram())
    save("ok-unigram-forms", unigram(
        normalizer={"type": "Sequence", "normalizers": forms + [
            {"type": "Replace", "pattern": {"String": "a"}, "content": ""}]},
        pre_tokenizer={"type": "Metaspace", "replacement": "_", "split": False,
                       "prepend_scheme": "first"}))
    save("bad-unigram-score", unigram(model={"type": "Unigram", "unk_id": 0,
                                             "vocab": [["a", "x"]]}))
    save("bad-unigram-twice", unigram(model={"type": "Unigram", "unk_id": 0,
                                             "vocab": [["a", 0], ["a", 1]]}))
    save("bad-unigram-unknown", unigram(model={"type": "Unigram", "unk_id": 1,
                                               "vocab": [["a", 0]]}))
    save("bad-metaspace", unigram(pre_tokenizer={"type": "Metaspace",
                                                 "replacement": ""}))
    save("bad-charsmap-cut", unigram(good[:units]))
    save("bad-charsmap-outside", unigram(
        good[:4] + struct.pack("<I", 1 << 30) + good[8:]))
    save("bad-charsmap-size", unigram(struct.pack("<I", 1 << 31) + good[4:]))
    save("bad-charsmap-texts", unigram(good + b"\xff"))


def main():
    save("ok-pieces", pieces())
    save("ok-pairs", pairs(["a a", "aa aa", "a b"]))
    save("ok-pairs-lists", pairs([["a", "a"]]))
    save("ok-words", b"W[CLS]\n[SEP]\n[UNK]\nthe\na\n##b\n")
    words = json.dumps(pairs([])["model"]["vocab"]).encode()
    save("ok-merges", b"P" + words + b"\0#version: 0.2\na a\naa aa\n")
    save("bad-merge-twice", pairs(["a a", "a a"]))
    save("bad-merge-empty", pairs([["", "a"]]))
    save("bad-merge-unknown", pairs(["b b"]))
    save("bad-merge-number", pairs([7]))
    save("bad-merge-line", b"P" + words + b"\0aa\n")
    save("bad-merge-bytes", b"P" + words + b"\0a \xff\n")
    save("bad-words-twice", b"W[CLS]\n[SEP]\n[UNK]\na\na\n")
    save("bad-words-bytes", b"W[CLS]\n[SEP]\n[UNK]\n\xc3\n")
    save("bad-words-long", b"W" + b"a" * 70000)
    save("bad-id-huge", pieces(model={"type": "WordPiece", "vocab": {"[UNK]": 2**40}}))
    save("bad-id-real", pieces(model={"type": "WordPiece", "vocab": {"[UNK]": 0.5}}))
    save("bad-model", pieces(model={"type": "Unigram", "vocab": []}))
    save("bad-normalizer", pieces(normalizer={"type": "Precompiled"}))
    save("bad-template", pieces(post_processor={"type": "TemplateProcessing",
                                                "single": [7]}))
    save("bad-added", pieces(added_tokens=[{"id": 7, "content": "the"}]))
    save("bad-utf8", b'{"model": "\xff"}')
    save("bad-empty", b"")
    unigrams()


if __name__ == "__main__":
    main()
