"""The mirror of shoal.h: sizes, offsets, functions, versions."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal import _native
from conftest import ROOT

HEADER = ROOT / "include" / "shoal.h"


def header() -> str:
    if not HEADER.exists():
        pytest.skip("no include/shoal.h beside the package")
    return HEADER.read_text()


def peers():
    """The mirror in the peer comparisons, which load the library themselves."""
    path = ROOT / "bench" / "peers" / "library.py"
    if not path.exists():
        pytest.skip("no bench/peers beside the package")
    specification = importlib.util.spec_from_file_location("peers_library", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.STRUCTURES


def mirrors(which):
    return _native.STRUCTURES if which == "package" else peers()


@pytest.mark.parametrize("which", ["package", "bench/peers"])
def test_structures_match_the_header(which, tmp_path):
    """A program compiled with the header prints sizes and offsets."""
    header()
    structures = mirrors(which)
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    lines = []
    for name, mirror in structures.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in mirror._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <shoal.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\n}\n"
    )
    subprocess.run(
        [compiler, f"-I{HEADER.parent}", str(source), "-o", str(tmp_path / "a")],
        check=True,
    )
    printed = subprocess.run(
        [str(tmp_path / "a")], check=True, capture_output=True, text=True
    )
    expected = dict(line.split() for line in printed.stdout.splitlines())
    for name, mirror in structures.items():
        assert ctypes.sizeof(mirror) == int(expected[name]), name
        for field, _ in mirror._fields_:
            assert getattr(mirror, field).offset == int(expected[f"{name}.{field}"]), (
                field
            )


def fields_of(structure: str) -> list[str]:
    """The names of a structure's fields, as the header declares them."""
    plain = re.sub(r"/\*.*?\*/", "", header(), flags=re.DOTALL)
    (body,) = re.findall(r"typedef struct \{([^{}]*)\} " + structure + ";", plain)
    found = []
    for declaration in filter(str.strip, body.split(";")):
        function = re.search(r"\(\*(\w+)\)", declaration)
        names = [function[0]] if function else declaration.split(",")
        found += [re.findall(r"\w+", name.split("[")[0])[-1] for name in names]
    return found


@pytest.mark.parametrize("which", ["package", "bench/peers"])
def test_no_field_is_missing(which):
    """A new field may occupy former padding, which does not change sizes."""
    for name, mirror in mirrors(which).items():
        assert [field for field, _ in mirror._fields_] == fields_of(name)


def test_every_function_is_in_the_header_and_the_library():
    declared = set(re.findall(r"\b(shoal_\w+)\(", header()))
    for name in _native.SIGNATURES:
        assert name in declared
        assert getattr(_native.lib, name)


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", shoal.__version__)
    assert f'#define SHOAL_VERSION "{shoal.__version__}"' in header()


def test_a_library_that_is_not_there_is_said_at_import():
    program = (
        "import os; os.environ['SHOAL_LIBRARY'] = '/nowhere/libshoal.so'; import shoal"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (
        done.returncode
        and "ImportError" in done.stderr
        and "SHOAL_LIBRARY" in done.stderr
    )


def test_another_version_is_refused_at_import(monkeypatch):
    monkeypatch.setattr(_native, "INTERFACE", (9, 9))
    with pytest.raises(ImportError, match="9.9"):
        _native._check_interface(_native.lib)


def test_import_needs_neither_torch_nor_transformers():
    program = (
        "import sys, shoal; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_an_editable_install(tmp_path):
    """Its modules are in the source tree and the library is elsewhere in the path."""
    installed = tmp_path / "shoal"
    installed.mkdir()
    shutil.copy(_native.library_path(), installed / "libshoal.so")
    program = (
        "import importlib.util as util, sys\n"
        "source, installed = sys.argv[1:]\n"
        "spec = util.spec_from_file_location('shoal', source + '/__init__.py',\n"
        "    submodule_search_locations=[installed, source])\n"
        "sys.modules['shoal'] = shoal = util.module_from_spec(spec)\n"
        "spec.loader.exec_module(shoal)\n"
        "print(sys.modules['shoal._native'].library_path())\n"
    )
    source = tmp_path / "source"
    modules = Path(shoal.__file__).parent
    shutil.copytree(modules, source, ignore=shutil.ignore_patterns("lib*", "__pycache__"))
    environment = {k: v for k, v in os.environ.items() if k != "SHOAL_LIBRARY"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(source), str(installed)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == installed
