#!/usr/bin/env python3
"""Whether auto:tolerance=E is kept: the table of docs/kinds.md.

    tolerance.py SHOAL E SEEDS FOLDER...

For every layer of the folders (layerL_{q,k,v}.npy) and seeds 1 to SEEDS: what was picked
and the relative error of the whole output; at the end how many calls were above E."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def attend(program, kind, layer, out):
    paths = [str(layer).replace("_q.npy", f"_{x}.npy") for x in "qkv"]
    said = subprocess.run([program, "attend", kind, *paths, "-o", out], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    picked = re.search(r"picked ([a-z]+(?:-\d+)?)", said)
    return np.load(out), picked.group(1) if picked else kind


def main(program, tolerance, seeds, *folders):
    calls, errors, full = 0, [], 0
    with tempfile.TemporaryDirectory() as work:
        out = str(Path(work) / "out.npy")
        for layer in sorted(q for f in folders for q in Path(f).glob("layer*_q.npy")):
            right, _ = attend(program, "full", layer, out)
            for seed in range(1, int(seeds) + 1):
                got, kind = attend(program, f"auto:tolerance={tolerance},seed={seed}", layer, out)
                errors.append(np.linalg.norm(got - right) / np.linalg.norm(right))
                full += kind == "full"
                calls += 1
                print(layer.parent.name, layer.stem, seed, kind, f"{errors[-1]:.4f}")
    above = sum(e > float(tolerance) for e in errors)
    print(f"{calls} calls, {above} above, largest {max(errors) / float(tolerance):.2f} E, "
          f"{full} picked full")


main(*sys.argv[1:])
