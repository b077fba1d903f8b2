#!/usr/bin/env python3
"""Dumps the binary interface of the public headers, and compares it with the dump in the
tree: exported functions with their versions and prototypes, sizes and offsets of public
structs, values of enumerators and macros.

    abi.py --check CC BUILD SOURCE     fails if a line of abi.txt is gone or changed
    abi.py --update CC BUILD SOURCE    writes abi.txt

Lines may be added in a minor version. A line that changes or goes breaks programs that
were built before; that is allowed only before 1.0.0, with the reason in the commit.
Layouts are those of 64-bit systems.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEADERS = {  # header: its library
    "shoal.h": "shoal",
    "shoal_transport.h": "shoal",
    "shoal_inspect.h": "shoal",
    "shoal_models.h": "shoal-models",
    "shoal_speech.h": "shoal-speech",
    "shoal_train.h": "shoal-train",
    "shoal_mpi.h": "shoal-mpi",
}


def plain(header):
    """The header without comments and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.DOTALL)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\bstatic inline [^;{]*\{.*?^\}", "", text, flags=re.S | re.M)


def fields_of(body):
    for declaration in filter(str.strip, body.split(";")):
        function = re.search(r"\(\*(\w+)\)\s*\(", declaration)
        if function:
            yield function[1], squeeze(declaration)
            continue
        kind = re.match(r"\s*((?:const |unsigned |struct )*\w+)", declaration)[1]
        for part in declaration[len(kind) + 1 :].split(","):
            name = re.findall(r"\w+(?=\s*(?:\[|$))", part.strip())[0]
            stars = "*" * part.count("*")
            array = "".join(re.findall(r"\[[^]]*\]", part))
            yield name, squeeze(f"{kind} {stars}{name}{array}")


def squeeze(text):
    return re.sub(r"\s+", " ", text).strip()


def structs(text):
    for body, name in re.findall(r"typedef struct \{([^{}]*)\} (\w+);", text):
        yield name, body
    for name, body in re.findall(r"^struct (\w+) \{([^{}]*)\};", text, flags=re.M):
        yield name, body


def layout_program(source):
    """A C program that prints every layout and value."""
    lines = []
    for name in HEADERS:
        text = plain(source / "include" / name)
        for struct, body in structs(text):
            lines.append(f'printf("size {struct} %zu\\n", sizeof({struct}));')
            for field, declared in fields_of(body):
                lines.append(
                    f'printf("field {struct} %zu %s\\n", offsetof({struct}, {field}), '
                    f'"{declared}");'
                )
        for body in re.findall(r"enum \{([^{}]*)\}", text):
            for constant in re.findall(r"\bSHOAL_\w+(?=\s*(?:[,=}]|$))", body):
                lines.append(f'printf("value {constant} %d\\n", (int){constant});')
        for kind in re.findall(r"typedef enum \{[^{}]*\} (\w+);", text):
            lines.append(f'printf("size {kind} %zu\\n", sizeof({kind}));')
    includes = "".join(f'#include "{name}"\n' for name in HEADERS)
    body = "\n".join(lines)
    return f"#include <stdio.h>\n{includes}int main(void) {{\n{body}\n}}\n"


def layouts(cc, source):
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "layout.c"
        program.write_text(layout_program(source))
        binary = Path(folder) / "layout"
        subprocess.run(
            [cc, "-w", f"-I{source / 'include'}", str(program), "-o", str(binary)],
            check=True,
        )
        return subprocess.check_output([str(binary)], text=True).splitlines()


def functions(build, source):
    """(lines, libraries that are not built)"""
    lines, missing = [], set()
    for header, library in HEADERS.items():
        shared = build / f"lib{library}.so"
        text = plain(source / "include" / header)
        prototypes = re.findall(r"SHOAL_API ([^;]*?\b(shoal_\w+)\([^;]*\))[^;)]*;", text)
        versions = {}
        if shared.exists():
            command = ["nm", "-D", "--defined-only", str(shared)]
            symbols = subprocess.check_output(command, text=True)
            versions = dict(re.findall(r" (\w+)@@(\S+)$", symbols, flags=re.MULTILINE))
        else:
            missing.add(library)
        for prototype, name in prototypes:
            version = versions.get(name, "" if library in missing else "missing")
            lines.append(f"function {library} {version} {squeeze(prototype)}")
        for callback in re.findall(r"typedef [^;{}]*\(\*\w+\)\([^;]*\);", text):
            lines.append(squeeze(callback))
    return lines, missing


def without_version(line):
    return re.sub(r"^(function \S+) \S*", r"\1", line)


def main():
    mode, cc, build, source = sys.argv[1], sys.argv[2], *map(Path, sys.argv[3:5])
    found, missing = functions(build, source)
    found += layouts(cc, source)
    kept = Path(__file__).with_name("abi.txt")
    if mode == "--update":
        if missing:
            sys.exit(f"build {', '.join(sorted(missing))} first")
        kept.write_text("\n".join(found) + "\n")
        return
    wanted = kept.read_text().splitlines()
    if missing:  # their functions are compared without the versions of symbols
        print("not built:", ", ".join(sorted(missing)))
        found = [without_version(line) for line in found]
        wanted = [without_version(line) for line in wanted]
    gone = [line for line in wanted if line not in set(found)]
    added = [line for line in found if line not in set(wanted)]
    for line in gone:
        print("- " + line)
    for line in added:
        print("+ " + line)
    if gone or added:
        sys.exit(
            "The binary interface differs from tests/tree/abi/abi.txt. Lines with '-'\n"
            "break programs that were built before: that needs a reason in the commit,\n"
            "and from 1.0.0 on a new major version. Update by\n"
            f"    python3 tests/tree/abi/abi.py --update {cc} {build} {source}"
        )
    print(f"{len(found)} lines as in tests/tree/abi/abi.txt")


main()
