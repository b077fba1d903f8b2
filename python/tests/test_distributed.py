"""Processes that each hold a part of the sequences, with gloo, compared with a single
one.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")

import shoal
import shoal.torch
from conftest import ROOT
from shoal import distributed

KINDS = ["full", "clustered-6", "i-clustered-6:topk=4", "q-clustered-6"]
CUTS = {2: [(0, 37, 90), (0, 60, 71)], 3: [(0, 0, 55, 90), (0, 30, 30, 71)]}


def tensors():
    draw = torch.Generator().manual_seed(1)
    shapes = (2, 4, 90, 8), (2, 2, 71, 8), (2, 2, 71, 5), (2, 4, 90, 5)
    return [torch.randn(shape, generator=draw) for shape in shapes]


def whole(kind):
    q, k, v, dout = tensors()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = shoal.torch.attention(q, k, v, kind)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout)]


def part(rank, ranks, folder, kinds):
    """One process: its rows of everything, for each kind, written to a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
    )
    of_queries, of_keys = CUTS[ranks]
    rows = slice(of_queries[rank], of_queries[rank + 1])
    keys = slice(of_keys[rank], of_keys[rank + 1])
    found = {}
    for kind in kinds:
        q, k, v, dout = tensors()
        q, dout = q[:, :, rows].requires_grad_(), dout[:, :, rows]
        k, v = k[:, :, keys].requires_grad_(), v[:, :, keys].requires_grad_()
        try:
            out = distributed.attention(q, k, v, kind)
            found[kind] = [out.detach(), *torch.autograd.grad(out, (q, k, v), dout)]
        except shoal.ShoalError as error:
            found[kind] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def spread(ranks, folder, kinds):
    context = torch.multiprocessing.get_context("spawn")
    started = [
        context.Process(target=part, args=(rank, ranks, str(folder), kinds))
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def near(a, b, tolerance):
    return (a - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("ranks", [2, 3])
def test_it_is_what_one_process_finds(ranks, tmp_path):
    found = spread(ranks, tmp_path, KINDS)
    for kind in KINDS:
        together = [torch.cat(rows, 2) for rows in zip(*(each[kind] for each in found))]
        out, *gradients = whole(kind)
        assert near(together[0], out, 1e-5), kind
        for a, b in zip(together[1:], gradients):
            assert near(a, b, 1e-4), kind


def test_what_cannot_be_is_refused_on_all_ranks(tmp_path):
    for found in spread(2, tmp_path, ["local-4", "shoal-6", "clustered-3"]):
        assert "kinds that do" in found["local-4"]
        assert "q-clustered-C" in found["shoal-6"]
        assert not isinstance(found["clustered-3"], str)  # and the ranks continue


def test_types_are_refused():
    q, k, v, _ = tensors()
    with pytest.raises(shoal.ShoalError, match="float64"):
        distributed.attention(q.double(), k, v)
    with pytest.raises(shoal.ShoalError, match="do not match"):
        distributed.attention(q, k[:, :, :-1], v)


def test_the_structure_is_the_headers(tmp_path):
    header = ROOT / "include" / "shoal_transport.h"
    compiler = shutil.which("cc")
    if not header.exists() or not compiler:
        pytest.skip("no include/shoal_transport.h beside the package, or no C compiler")
    plain = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    (body,) = re.findall(r"struct shoal_transport \{(.*?)\n\};", plain, re.DOTALL)
    names = re.findall(r"\(\*(\w+)\)", body)
    mirrored = [name for name, _ in distributed.Transport._fields_]
    assert mirrored[7:-1] == names
    source = tmp_path / "layout.c"
    lines = [f'printf("%zu\\n", offsetof(shoal_transport, {name}));' for name in mirrored]
    source.write_text(
        "#include <stdio.h>\n#include <shoal_transport.h>\nint main(void) {\n"
        + 'printf("%zu\\n", sizeof(shoal_transport));\n'
        + "\n".join(lines)
        + "\n}\n"
    )
    program = tmp_path / "layout"
    subprocess.run(
        [compiler, f"-I{header.parent}", str(source), "-o", str(program)], check=True
    )
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    size, *offsets = map(int, printed.stdout.split())
    assert size == ctypes.sizeof(distributed.Transport)
    assert offsets == [getattr(distributed.Transport, name).offset for name in mirrored]
