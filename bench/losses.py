#!/usr/bin/env python3
"""Search for stretches of speech that a transcription leaves out.

    bench/losses.py DATA... --model MODEL [--joins 200] [--seed 1] --out losses.jsonl
    bench/losses.py --report losses.jsonl...
    bench/losses.py DATA... --model MODEL --seed 1 --show 17

DATA are Kaldi data folders (wav.scp, text, utt2spk). Batches of random utterances are
joined to recordings of 30, 60 or 120 s, of one speaker or of many, with gaps of 0 to 2 s,
and transcribed by `shoal wer --join` with every kind. Words of the reference and of the
text are aligned with the fewest edits and, among these, the fewest gaps; a run of more
than eight reference words that the text lacks is a loss.

Each batch is a function of the seed and its number, and one line of the output file. A
search that was interrupted continues where it was. The report has, for each kind, the
joins with a loss and a 95 % interval (Wilson), and the difference from the first kind in
losses per 100 joins with a 95 % interval (bootstrap over batches, paired). --show
transcribes one batch again and prints what was lost.
"""

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile

LEAST = 9  # words of a loss
DRAWS = 10000
BATCH = 16  # utterances


def table(path):
    """The lines of a Kaldi file: {name: the line's remainder}."""
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file if line.strip()]
    return dict(line.partition(" ")[::2] for line in lines)


def utterances(folders):
    """[(id, speaker, path, text)] of all folders, in the order of their ids."""
    found = []
    for folder in folders:
        paths, texts, speakers = (
            table(os.path.join(folder, name)) for name in ("wav.scp", "text", "utt2spk")
        )
        for name in paths:
            path = os.path.abspath(os.path.join(folder, paths[name]))
            found.append((name, speakers[name], path, texts[name]))
    return sorted(found)


def draw_batch(everything, seed, number):
    """Utterances of a batch, minutes of a recording, and seconds between utterances."""
    draw = random.Random(seed * 1_000_003 + number)
    minutes, gap = draw.choice([0.5, 1, 2]), draw.choice([0, 0.25, 0.5, 1, 2])
    chosen = everything
    if draw.random() < 0.25:
        speaker = draw.choice(sorted({one[1] for one in everything}))
        chosen = [one for one in everything if one[1] == speaker]
    return draw.sample(chosen, min(BATCH, len(chosen))), minutes, gap


def words_of(text):
    return re.sub(r"[^a-z0-9' ]+", " ", text.lower()).split()


def align(reference, text):
    """Edits, and the runs of reference words without a counterpart: [(first, count)].

    States: 0 a pair of words, 1 a word left out, 2 a word too many. The cost of an edit
    is 1, and entering state 1 or 2 costs a little more, so that gaps are few.
    """
    opening, far = 1e-4, float("inf")
    rows = []
    row = [[0.0, far, far] for _ in range(len(text) + 1)]
    for j in range(1, len(text) + 1):
        row[j] = [far, far, j + opening]
    rows.append(row)
    for i, word in enumerate(reference, 1):
        above, row = row, [[far, i + opening, far]]
        for j, other in enumerate(text, 1):
            before, over, left = above[j - 1], above[j], row[j - 1]
            row.append(
                [
                    min(before) + (word != other),
                    min(over[0] + opening, over[1], over[2] + opening) + 1,
                    min(left[0] + opening, left[1] + opening, left[2]) + 1,
                ]
            )
        rows.append(row)
    i, j = len(reference), len(text)
    state = min(range(3), key=lambda s: rows[i][j][s])
    edits, missing = round(rows[i][j][state]), []
    while i > 0 or j > 0:
        if state == 1:
            missing.append(i - 1)
        i, j, came = i - (state != 2), j - (state != 1), state
        if i > 0 or j > 0:
            entry = rows[i][j]
            state = min(range(3), key=lambda s: entry[s] + opening * (s != came > 0))
    runs = []
    for at in reversed(missing):
        if runs and runs[-1][0] + runs[-1][1] == at:
            runs[-1][1] += 1
        else:
            runs.append([at, 1])
    return edits, runs


def transcribe(options, everything, number):
    """The recordings of a batch with what each kind wrote, as `shoal wer` prints them."""
    chosen, minutes, gap = draw_batch(everything, options.seed, number)
    with tempfile.TemporaryDirectory() as folder:
        for name, column in (("wav.scp", 2), ("text", 3)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.writelines(f"{one[0]} {one[column]}\n" for one in chosen)
        printed = subprocess.run(
            [options.shoal, "wer", folder, "--model", options.model]
            + ["--attention", ",".join(options.kinds), "--join", str(minutes)]
            + ["--gap", str(gap), "--shuffle", "--seed", str(number)]
            + ["--no-time", "--json", "--texts"],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    found = json.loads(printed)
    return found["windows"], [kind["kind"] for kind in found["kinds"]], minutes, gap


def search_batch(options, everything, number):
    joins, names, minutes, gap = transcribe(options, everything, number)
    line = {"seed": options.seed, "batch": number, "minutes": minutes, "gap": gap}
    line["joins"] = []
    for join in joins:
        reference = words_of(" ".join(join["references"]))
        one = {"words": len(reference), "seconds": round(join["seconds"], 2)}
        one["ids"] = [os.path.splitext(os.path.basename(f))[0] for f in join["files"]]
        one["edits"], one["losses"] = {}, {}
        for name, kind in zip(names, options.kinds):
            edits, runs = align(reference, words_of(join["texts"][name]))
            one["edits"][kind] = edits
            one["losses"][kind] = [run for run in runs if run[1] >= LEAST]
        line["joins"].append(one)
    return line


def show(options, everything):
    joins, names, minutes, gap = transcribe(options, everything, options.show)
    print(f"batch {options.show}: recordings of {minutes:g} min, gaps of {gap:g} s")
    for number, join in enumerate(joins):
        reference = words_of(" ".join(join["references"]))
        for name, kind in zip(names, options.kinds):
            _, runs = align(reference, words_of(join["texts"][name]))
            for at, count in runs:
                if count >= LEAST:
                    print(f"\njoin {number}, {kind} lost {count} words from word {at}:")
                    print(" ".join(reference[max(0, at - 8) : at]), end=" [")
                    print(" ".join(reference[at : at + count]), end="] ")
                    print(" ".join(reference[at + count : at + count + 8]))
                    print("text:", join["texts"][name])


def read(paths):
    lines = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            lines += [json.loads(line) for line in file if line.endswith("\n")]
    return lines


def wilson(count, of):
    z = 1.96
    centre = (count + z * z / 2) / (of + z * z)
    half = z / (of + z * z) * math.sqrt(count * (of - count) / of + z * z / 4)
    return 100 * max(0, centre - half), 100 * (centre + half)


def difference(batches, kinds, first):
    """Losses per 100 joins of the kinds' mean minus the first's, and its interval.

    batches: [(joins, {kind: losses})], which are drawn with replacement."""
    apart = [
        (n, sum(lost[kind] for kind in kinds) / len(kinds) - lost[first])
        for n, lost in batches
    ]
    draw = random.Random(1)
    drawn = []
    for _ in range(DRAWS):
        some = draw.choices(apart, k=len(apart))
        drawn.append(sum(x for _, x in some) / sum(n for n, _ in some))
    drawn.sort()
    mean = sum(x for _, x in apart) / sum(n for n, _ in apart)
    ends = drawn[DRAWS * 25 // 1000], drawn[DRAWS * 975 // 1000]
    return [100 * x for x in (mean, *ends)]


def report(lines):
    joins = [join for line in lines for join in line["joins"]]
    if not joins:
        sys.exit("no batch is finished yet")
    kinds = list(joins[0]["losses"])
    first, words = kinds[0], sum(join["words"] for join in joins)
    hours = sum(join["seconds"] for join in joins) / 3600
    print(f"{len(joins)} joins, {hours:.2f} h, {words} words, runs of {LEAST} and more\n")
    print("| kind | word errors % | losses | words lost | joins with a loss |", end="")
    print(f" % of joins (interval) | losses per 100 joins minus {first}'s (interval) |")
    print("|---|---|---|---|---|---|---|")
    batches = [
        (
            len(line["joins"]),
            {kind: sum(len(j["losses"][kind]) for j in line["joins"]) for kind in kinds},
        )
        for line in lines
        if line["joins"]
    ]
    for kind in kinds:
        edits = sum(join["edits"][kind] for join in joins)
        runs = [run for join in joins for run in join["losses"][kind]]
        having = sum(bool(join["losses"][kind]) for join in joins)
        low, high = wilson(having, len(joins))
        text = f"| `{kind}` | {100 * edits / words:.2f} | {len(runs)} "
        text += f"| {sum(run[1] for run in runs)} | {having} "
        text += f"| {100 * having / len(joins):.2f} ({low:.2f} to {high:.2f}) | "
        if kind != first:
            text += "%+.2f (%+.2f to %+.2f)" % tuple(difference(batches, [kind], first))
        print(text + " |")
    if len(kinds) > 2:
        print(f"\nMean of the kinds after {first}, minus {first}: ", end="")
        print("%+.2f (%+.2f to %+.2f)" % tuple(difference(batches, kinds[1:], first)))
    print("\nLosses: seed/batch/join, with words of each kind:")
    for line in lines:
        for number, join in enumerate(line["joins"]):
            lost = {k: [run[1] for run in join["losses"][k]] for k in kinds}
            if any(lost.values()):
                place = f"{line['seed']}/{line['batch']}/{number}"
                print(place, {k: v for k, v in lost.items() if v})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*")
    parser.add_argument("--model")
    parser.add_argument("--shoal", default="build/shoal", help="the program")
    parser.add_argument("--kinds", default="full,shoal:seed=1,shoal:seed=2,shoal:seed=3")
    parser.add_argument("--joins", type=int, default=200, help="recordings at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out")
    parser.add_argument("--show", type=int, metavar="BATCH")
    parser.add_argument("--report", nargs="+", metavar="FILE")
    options = parser.parse_args()
    options.kinds = options.kinds.split(",")
    if options.report:
        return report(read(options.report))
    aimless = not options.out and options.show is None
    if not options.data or not options.model or aimless:
        parser.error("DATA, --model and --out (or --show) are needed")
    everything = utterances(options.data)
    if options.show is not None:
        return show(options, everything)
    lines = read([options.out]) if os.path.exists(options.out) else []
    done = {line["batch"] for line in lines if line["seed"] == options.seed}
    joins, number = sum(len(line["joins"]) for line in lines), 0
    while joins < options.joins:
        if number not in done:
            line = search_batch(options, everything, number)
            with open(options.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            joins += len(line["joins"])
            lost = {kind: sum(len(join["losses"][kind]) for join in line["joins"])
                    for kind in options.kinds}
            print(f"batch {number}: {joins} of {options.joins} joins; losses {lost}",
                  file=sys.stderr, flush=True)
        number += 1
    return report(read([options.out]))


if __name__ == "__main__":
    main()
