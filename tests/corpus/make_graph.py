#!/usr/bin/env python3
"""Writes the corpus of the fuzz target of LF-MMI graphs: valid ones, with unreachable
states and states without a way out, and invalid ones.

Run it in this directory; it fills graph/. Checksums are 0; the target sets them.
"""
import os
import struct

# Phones A, B and the silence. Each state: its last phone, arcs of (phone, to, weight),
# and the probability of ending.
CHAIN = [(-1, [(0, 1, 0.5), (2, 3, 0.5)], 0), (0, [(1, 2, 0.6), (2, 3, 0.2)], 0.2),
         (1, [(0, 1, 1)], 0), (2, [(0, 1, 0.3)], 0.7)]
NOWHERE = CHAIN[:3] + [(2, [], 0)]
UNREACHED = CHAIN + [(0, [(1, 2, 0.5), (2, 3, 0.5)], 0), (1, [(1, 5, 1)], 0)]


def graph(states, count=None, phones=3, order=2, first=0):
    arcs = [arc for _, own, _ in states for arc in own]
    begins = [sum(len(own) for _, own, _ in states[:i]) for i in range(len(states) + 1)]
    begins[0] = first
    count = len(states) if count is None else count
    head = b"shoalpl1" + struct.pack("<QQiiii", 0, 0, phones, order, count, len(arcs))
    ints = [s[0] for s in states] + begins + [a[0] for a in arcs] + [a[1] for a in arcs]
    doubles = [a[2] for a in arcs] + [s[2] for s in states]
    return head + struct.pack(f"<{len(ints)}i{len(doubles)}d", *ints, *doubles)


def changed(state, **change):
    last, arcs, end = CHAIN[state]
    own = (change.get("last", last), change.get("arcs", arcs), change.get("end", end))
    return graph(CHAIN[:state] + [own] + CHAIN[state + 1:])


CASES = {
    "ok-chain": b"\0" + graph(CHAIN),
    "ok-whole": b"\4" + graph(CHAIN),
    "ok-blank": b"\2" + graph(CHAIN),
    "ok-nowhere": b"\5" + graph(NOWHERE),
    "ok-start-alone": b"\1" + graph([(-1, [], 1)]),
    "ok-unreached": b"\0" + graph(UNREACHED),
    "bad-arc-to-the-start": b"\0" + changed(1, arcs=[(0, 0, 1)]),
    "bad-beyond": b"\0" + changed(1, arcs=[(1, 4, 1)]),
    "bad-cut": b"\0" + graph(CHAIN)[:-8],
    "bad-end": b"\0" + changed(1, end=float("nan")),
    "bad-falling": b"\0" + graph(CHAIN, first=3),
    "bad-no-states": b"\0" + graph(CHAIN, count=0),
    "bad-order": b"\0" + graph(CHAIN, order=77),
    "bad-other-phone": b"\0" + changed(1, arcs=[(1, 3, 1)]),
    "bad-phones": b"\0" + graph(CHAIN, phones=2),
    "bad-states": b"\0" + graph(CHAIN, count=-1),
    "bad-twice": b"\0" + changed(1, arcs=[(1, 2, 0.5), (1, 2, 0.5)]),
    "bad-weight": b"\0" + changed(1, arcs=[(1, 2, float("inf"))]),
}

os.makedirs("graph", exist_ok=True)
for name, data in CASES.items():
    with open(f"graph/{name}", "wb") as file:
        file.write(data)
