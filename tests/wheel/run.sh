#!/bin/bash
# Installs a wheel into a new virtual environment and runs every part of it there, in a
# folder of its own, with an empty environment and nothing of the tree but copies.
#     run.sh SOURCE PYTHON WHEEL [--strict] [PACKAGE...]
# PACKAGEs are installed too, such as torch==2.13.0. --strict: see parts.py.
. "$(dirname "$0")/../report.sh"
source=$1 python=$2 wheel=$(realpath "$3")
shift 3
strict=()
if [ "${1:-}" = --strict ]; then strict=(--strict); shift; fi
home=$work/home
mkdir "$home" "$home/data"
cd "$home" || exit 1
clean() { env -i PATH="$home/venv/bin:/usr/bin:/bin" HOME="$home" "$@"; }

make_data() {
    cat "$source/tests/cli/lib/tools.py" "$source/tests/cli/lib/whisper.py" \
        >"$home/data/tool.py"
    echo 'globals()[sys.argv[1]](*sys.argv[2:])' >>"$home/data/tool.py"
    cp -r "$source/tests/models/text/bert" "$source/tests/wheel/parts.py" data/ &&
        python3 data/tool.py model data/small.bin &&
        python3 data/tool.py wav data/talk.wav 2
}
# pip's own settings are kept: it may have no other way to packages.
install() {
    "$python" -m venv venv && venv/bin/python -m pip install --quiet "$wheel" "$@"
}
# The scripts of tests/cli beside the models that they use, and no library or source.
every_command() {
    mkdir -p tree/tests/models && cp -r "$source/tests/cli" "$source/tests/report.sh" \
        tree/tests && cp -r "$source/tests/models/text" tree/tests/models &&
        clean bash tree/tests/cli/every_command.sh venv/bin/shoal
}

check "data is made" make_data
check "$(basename "$wheel") installs" install "$@"
clean venv/bin/python data/parts.py data "${strict[@]}" || failed=1
every_command | sed 's/^\(not \)\?ok /&shoal /'
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
finish
