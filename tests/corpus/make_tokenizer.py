#!/usr/bin/env python3
"""Writes the corpus of fuzz_tokenizer: run it in this directory, it fills tokenizer/.
Names that begin with ok- are sound inputs, those with bad- have one thing wrong."""
import json
import os


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


if __name__ == "__main__":
    main()
