#!/usr/bin/env python3
"""Scores of `shoal eval` beside those of scikit-learn, scipy and SQuAD's own rules, on
the predictions of a run:

    text_scores.py RUN [--data DATA] [--attention KIND]

runs the program with --json and --predictions and computes every metric again from the
file. Run it with a Python that has scikit-learn and scipy. The exit code is 1 when one
differs by more than 1e-9."""
import argparse
import collections
import csv
import json
import re
import string
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy import stats
from sklearn import metrics

ROOT = Path(__file__).resolve().parent.parent.parent


def normal(text):
    """As SQuAD's evaluation says: lower case, no punctuation, no articles, one space."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def overlap(predicted, wanted):
    first, second = normal(predicted).split(), normal(wanted).split()
    common = sum((collections.Counter(first) & collections.Counter(second)).values())
    return 2 * common / (len(first) + len(second)) if common else 0.0


def squad_scores(path, answers):
    exact = f1 = count = 0
    for article in json.loads(Path(path).read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                wanted = [answer["text"] for answer in question["answers"]]
                given = answers[question["id"]]
                exact += max(normal(given) == normal(text) for text in wanted)
                f1 += max(overlap(given, text) for text in wanted)
                count += 1
    return {"exact_match": exact / count, "f1": f1 / count}


def glue_scores(path, names):
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    predicted = [float(row["prediction"]) for row in rows]
    wanted = [float(row["label"]) for row in rows]
    known = {"accuracy": metrics.accuracy_score, "f1": metrics.f1_score,
             "matthews": metrics.matthews_corrcoef,
             "pearson": lambda a, b: stats.pearsonr(a, b).statistic,
             "spearman": lambda a, b: stats.spearmanr(a, b).statistic}
    return {name: float(known[name](wanted, predicted))
            for name in names if name in known}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path, help="folder of shoal train glue or squad")
    add("--data", help="as shoal eval has it; of squad dev.json, which is needed here")
    add("--attention", default="full", help="(default: %(default)s)")
    add("--program", default=str(ROOT / "build" / "shoal"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions"
        command = [options.program, "eval", str(options.run), "--json", "--attention",
                   options.attention, "--predictions", str(path)]
        command += ["--data", options.data] if options.data else []
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        ours = json.loads(done.stdout)["kinds"][0]
        if "exact_match" in ours:
            theirs = squad_scores(options.data, json.loads(path.read_text()))
        else:
            theirs = glue_scores(path, ours)
    wrong = 0
    for name, value in theirs.items():
        same = abs(value - ours[name]) <= 1e-9
        wrong += not same
        print(f"{name}: ours {ours[name]:.10f}, theirs {value:.10f}"
              f"{'' if same else '  DIFFERENT'}")
    sys.exit(1 if wrong or not theirs else 0)


if __name__ == "__main__":
    main()
