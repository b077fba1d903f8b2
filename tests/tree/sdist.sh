#!/bin/bash
# The files that pyproject.toml puts into the source distribution are sufficient for CMake
# to configure the wheel's build, with the options set there.
#     sdist.sh CMAKE SOURCE
. "$(dirname "$0")/../report.sh"
cmake=$1 source=$2
folder=$work

unpack() { # copies the files, and prints the options
    python3 - "$source" "$folder/sdist" <<'PYTHON'
import pathlib, shutil, sys, tomllib
source, to = map(pathlib.Path, sys.argv[1:])
settings = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["scikit-build"]
for name in settings["sdist"]["include"]:
    (to / name).parent.mkdir(parents=True, exist_ok=True)
    if (source / name).is_dir():
        shutil.copytree(source / name, to / name)
    else:
        shutil.copy(source / name, to / name)
for name, value in settings["cmake"]["define"].items():
    print(f"-D{name}={value}")
PYTHON
}
configure() {
    "$cmake" -S "$folder/sdist" -B "$folder/build" -DSKBUILD=ON \
        -DSKBUILD_SCRIPTS_DIR=bin -DSKBUILD_METADATA_DIR=info "${options[@]}" >/dev/null
}

if ! python3 -c 'import tomllib' 2>/dev/null; then
    skip "the source distribution" "no Python 3.11 here"
else
    mapfile -t options < <(unpack)
    check "its options are there" test ${#options[@]} -gt 3
    check "it configures by itself" configure
fi
finish
