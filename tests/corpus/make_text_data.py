#!/usr/bin/env python3
"""Writes the corpus of fuzz_text_data: run it in this directory, it fills text_data/.
Names that begin with ok- are valid inputs, those with bad- have one error.
"""
import json
import os

TASKS = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"]


def save(name, data):
    os.makedirs("text_data", exist_ok=True)
    with open(os.path.join("text_data", name), "wb") as file:
        file.write(data)


def glue(name, task, text):
    first = bytes([TASKS.index(task)])
    save(name, first + (text if isinstance(text, bytes) else text.encode()))


def squad(name, value):
    save(name, b"S" + (value if isinstance(value, bytes) else json.dumps(value).encode()))


def articles(context="a b once 1 b", start=4, text="once", **more):
    question = {"id": "q", "question": "a b", "answers":
                [{"text": text, "answer_start": start}], **more}
    return {"data": [{"paragraphs": [{"context": context, "qas": [question]}]}]}


def main():
    pair = "sentence1\tsentence2\tlabel\n"
    glue("ok-cola", "CoLA", "gj04\t1\t\ta b\ngj04\t0\t*\tb\n")
    glue("ok-sst", "SST-2", "sentence\tlabel\na b once\t1\nb\t0\n")
    glue("ok-mrpc", "MRPC", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
         "1\t1\t2\ta b\tb a\n")
    glue("ok-sts", "STS-B", "x\ty\tz\t1\t4.5\ta\tb\nx\ty\tz\t1\t0\tb\tb\n")
    glue("ok-qqp", "QQP", "".join(f"{i}\t1\t2\ta\tb\t{i % 2}\n" for i in range(20)))
    glue("ok-mnli", "MNLI", "sentence1\tsentence2\tgold_label\na\tb\tneutral\n")
    glue("ok-qnli", "QNLI", "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n")
    glue("ok-rte-crlf", "RTE", "index\t" + pair.replace("\n", "\r\n") +
         "0\ta\tb\tentailment\r\n")
    glue("ok-wnli", "WNLI", "index\t" + pair + "0\ta\tb\t1\n\n1\tb\ta\t0")
    glue("bad-columns", "WNLI", "index\t" + pair + "0\ta\n")
    glue("bad-label", "WNLI", "index\t" + pair + "0\ta\tb\t1.5\n")
    glue("bad-number", "STS-B", "x\ty\tz\t1\tnan\ta\tb\n")
    glue("bad-header", "RTE", "a\tb\n")
    glue("bad-bytes", "WNLI", b"index\t" + pair.encode() + b"0\t\xff\tb\t1\n")
    glue("bad-zero", "WNLI", b"index\t" + pair.encode() + b"0\ta\0\tb\t1\n")
    glue("bad-many-fields", "WNLI", "\t" * 300 + "\n")
    glue("bad-empty", "CoLA", "")
    squad("ok", articles())
    squad("ok-windows", articles("a b once " * 20, 4))
    squad("ok-letters", articles("\u00e9\u4e2d once \U0001f600", 3))
    squad("bad-no-answer", articles(answers=[]))
    squad("bad-start", articles(start=5))
    squad("bad-start-huge", articles(start=1 << 62))
    squad("bad-start-negative", articles(start=-1))
    squad("bad-start-real", articles(start=4.5))
    squad("bad-answer", articles(text=7))
    squad("bad-question-long", articles(question="a " * 40))
    squad("bad-nothing", {"data": []})
    squad("bad-paragraphs", {"data": [{"paragraphs": 1}]})
    squad("bad-deep", b"[" * 5000)
    squad("bad-cut", json.dumps(articles()).encode()[:-3])
    squad("bad-json-bytes", b'{"data": "\xff"}')


if __name__ == "__main__":
    main()
