"""The mirror of shoal_train.h and of the structures that it uses."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

from conftest import ROOT
from shoal import _train_native


def test_structures_match_the_headers(tmp_path):
    compiler = shutil.which("cc")
    if not compiler or not (ROOT / "include" / "shoal_train.h").exists():
        pytest.skip("no C compiler, or no include/shoal_train.h")
    lines = []
    for name, mirror in _train_native.STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in mirror._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    lines += [
        f'printf("SHOAL_{name} %d\\n", SHOAL_{name});'
        for name in ("TEXT_SIZE", "VALUE_SIZE", "CANCELLED", "IGNORED", "TASK_MODEL")
        + ("TASK_EPOCHS", "TASK_VALIDATE_EVERY", "TASK_BEST", "TRAIN_EVENT_EVALUATION")
    ]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <shoal_train.h>\n"
        "int main(void) {\n" + "\n".join(lines) + "\n}\n"
    )
    program = str(tmp_path / "a")
    # shoal_train.h calls the library in inline functions, which are not called here.
    subprocess.run(
        [compiler, "-O1", f"-I{ROOT / 'include'}", str(source), "-o", program], check=True
    )
    printed = subprocess.run([program], check=True, capture_output=True, text=True)
    expected = dict(line.split() for line in printed.stdout.splitlines())
    for name, mirror in _train_native.STRUCTURES.items():
        assert ctypes.sizeof(mirror) == int(expected[name]), name
        for field, _ in mirror._fields_:
            offset = getattr(mirror, field).offset
            assert offset == int(expected[f"{name}.{field}"]), (name, field)
    numbers = {
        "TEXT_SIZE": _train_native.TEXT_SIZE,
        "VALUE_SIZE": _train_native.VALUE_SIZE,
        "CANCELLED": _train_native.CANCELLED,
        "IGNORED": _train_native.IGNORED,
        "TASK_MODEL": _train_native.FOR_MODEL,
        "TASK_EPOCHS": _train_native.EPOCHS,
        "TASK_VALIDATE_EVERY": _train_native.VALIDATE_EVERY,
        "TASK_BEST": _train_native.BEST,
        "TRAIN_EVENT_EVALUATION": len(_train_native.EVENTS) - 1,
    }
    for name, number in numbers.items():
        assert number == int(expected["SHOAL_" + name]), name
