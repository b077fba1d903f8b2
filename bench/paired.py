#!/usr/bin/env python3
"""The difference in error of two runs, by a paired bootstrap over sequences.

    shoal eval runs/full --data DATA/test --json > full.json
    shoal eval runs/KIND --data DATA/test --json > kind.json
    bench/paired.py full.json kind.json

The first kind of each file is used, for units and, if there are any, words. Prints the
difference of the second from the first in points, and the 95 % interval of 10,000 draws.
"""

import json
import random
import sys

DRAWS = 10000


def sequences(path):
    """{measure: (errors, lengths)}, both lists by sequence."""
    with open(path) as file:
        found = json.load(file)
    kind = found["kinds"][0]
    counted = {"units": (kind["wrong"], found["labels"])}
    if "words" in kind:
        counted["words"] = (kind["words"]["wrong"], found["words"]["lengths"])
    return counted


def beyond(first, second, lengths):
    """The difference and its 95 % interval, in points."""
    apart, count = [b - a for a, b in zip(first, second)], len(lengths)
    draw = random.Random(1)
    drawn = []
    for _ in range(DRAWS):
        places = draw.choices(range(count), k=count)
        drawn.append(sum(apart[i] for i in places) / sum(lengths[i] for i in places))
    drawn.sort()
    ends = drawn[DRAWS * 25 // 1000], drawn[DRAWS * 975 // 1000]
    return [100 * x for x in (sum(apart) / sum(lengths), *ends)]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    one, other = (sequences(path) for path in sys.argv[1:])
    for measure in [name for name in one if name in other]:
        (first, lengths), (second, others) = one[measure], other[measure]
        if lengths != others:
            sys.exit(f"the two were evaluated on other {measure}")
        print("%s: %+.2f (%+.2f to %+.2f)" % (measure, *beyond(first, second, lengths)))


if __name__ == "__main__":
    main()
