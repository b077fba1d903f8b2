#!/usr/bin/env python3
"""What attention over ranks takes elsewhere: the model of docs/notebook/SCALE.md.

    bench/scale.py                # both tables, with the constants of that page
    bench/scale.py --position 2e-6 --groups 0.03     # with those of your machine

A forward of one layer, heads of 64 features in float32. Constants of a rank: seconds for
each position and head, seconds for what every rank does for all groups, operations per
second of exact attention; measure them with `mpirun -n 2 shoal bench`. Those of a
network: bytes per second, and seconds that a message costs beside its bytes.
"""

import argparse

GROUPS, TOP, BITS, ITERATIONS, DIM, FLOAT = 100, 32, 31, 10, 64, 4
NETWORKS = {"10 Gbit/s": (1.25e9, 3e-6), "100 Gbit/s": (12.5e9, 1e-6)}


def clustered(a, ranks):
    """Bytes that a rank sends, and messages, for i-clustered-100."""
    groups, others = GROUPS * a.heads, ranks - 1
    merged = groups * (8 * DIM + 8 * TOP + 12 + FLOAT * DIM)
    counted = ITERATIONS * groups * FLOAT * (BITS + 1)
    rows = a.different * groups * TOP * 2 * DIM * FLOAT
    sums, others_calls = ITERATIONS + 2, 6
    return (
        (2 * merged + 2 * counted + rows) * others / ranks,
        (2 * sums + others_calls) * others,
    )


def clustered_seconds(a, n, ranks, network):
    sent, messages = clustered(a, ranks)
    travel = sent / network[0] + messages * network[1] if ranks > 1 else 0
    return a.position * n * a.heads / ranks + a.groups + travel


def exact_seconds(a, n, ranks):
    return 4 * n * n * DIM * a.heads / ranks / a.rate


def ring_seconds(a, n, ranks, network):
    """Keys and values go around while they are used."""
    sent = 2 * n * DIM * a.heads * FLOAT * (ranks - 1) / ranks
    return max(exact_seconds(a, n, ranks), sent / network[0] + 2 * ranks * network[1])


def ulysses_seconds(a, n, ranks, network):
    """Each rank has whole heads; no more ranks than heads can work."""
    working = min(ranks, a.heads)
    sent = 4 * n * DIM * a.heads * FLOAT / ranks * (ranks - 1) / ranks
    return exact_seconds(a, n, working) + sent / network[0] + 4 * ranks * network[1]


def text(seconds):
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{1e3 * seconds:.3g} ms"


def measured_table(a):
    here = (a.bandwidth, 0)
    print("| N | one rank | two ranks |\n|---|---|---|")
    for n in a.lengths:
        one, two = (clustered_seconds(a, n, ranks, here) for ranks in (1, 2))
        print(f"| {n:,} | {text(one)} | {text(two)} |")


def elsewhere_table(a, n):
    print(f"\nN = {n:,}: i-clustered-100 / ring / Ulysses\n")
    names = " | ".join(NETWORKS)
    print(
        f"| ranks | i-clustered-100 sends | {names} |\n|---|---|{'---|' * len(NETWORKS)}"
    )
    for ranks in (16, 256, 4096):
        sent, messages = clustered(a, ranks)
        cells = [
            " / ".join(
                text(seconds(a, n, ranks, network))
                for seconds in (clustered_seconds, ring_seconds, ulysses_seconds)
            )
            for network in NETWORKS.values()
        ]
        size = f"{1e-6 * sent:.1f} MB in {messages:,} messages"
        print(f"| {ranks:,} | {size} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--heads", type=int, default=6)
    add("--position", type=float, default=0.80e-6, help="seconds (%(default)s)")
    add("--groups", type=float, default=0.0045, help="seconds (%(default)s)")
    add("--rate", type=float, default=8.7e10, help="operations a second (%(default)s)")
    add(
        "--bandwidth",
        type=float,
        default=1.1e9,
        help="bytes a second between two processes of one machine (%(default)s)",
    )
    add(
        "--different",
        type=float,
        default=0.9,
        help="part of the top keys that groups do not share (%(default)s)",
    )
    add(
        "--lengths",
        type=int,
        nargs="+",
        default=[8192, 16384, 32768, 65536, 131072],
        metavar="N",
    )
    add("--long", type=int, nargs="+", default=[131072, 1048576], metavar="N")
    a = parser.parse_args()
    measured_table(a)
    for n in a.long:
        elsewhere_table(a, n)


if __name__ == "__main__":
    main()
