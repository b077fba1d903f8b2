#!/bin/bash
# Number of files that a call passes through: .c files with a function that ran, counted
# by gcov in a separate build, BUILD/paths.
#     paths.sh CMAKE COMPILER BUILD SOURCE
# attend counts the whole process. A training step and a transcription count what one more
# of them runs, without the files of src/, which attend counts.
set -u
limits="attend-i-clustered 16
attend-shoal 18
train-speech-step 20
transcribe 24"
[ $# = 4 ] || { echo "usage: paths.sh CMAKE COMPILER BUILD SOURCE"; exit 2; }
cmake=$1 compiler=$2 build=$(realpath "$3")/paths source=$(realpath "$4")
. "$(dirname "$(realpath "$0")")/../report.sh"
for tool in gcov python3; do
    command -v $tool >/dev/null || { skip paths "$tool is not installed"; exit 77; }
done
case $(basename "$compiler") in
*clang*) skip paths "gcov reads what gcc writes"; exit 77 ;;
esac
data=${SHOAL_DATA:-$source/../shared/data}
unset SHOAL_ISA

if ! { "$cmake" -S "$source" -B "$build" -DCMAKE_C_COMPILER="$compiler" \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="--coverage -O0" -DSHOAL_BUILD_TESTS=OFF \
    -DSHOAL_BUILD_BENCH=OFF -DSHOAL_INSTALL=OFF -DSHOAL_WERROR=OFF &&
    "$cmake" --build "$build" --target shoal_program -j2; } >"$work/log" 2>&1; then
    report "build with gcov" "$(tail -n 20 "$work/log")"
    finish
fi
program=$(realpath "$build/shoal")
cd "$work" || exit 1

cat >count.py <<'P'
"""count.py BUILD SOURCE OUT: a line "FILE FUNCTION TIMES" for every function that ran."""
import json, os, subprocess, sys

build, source, out = sys.argv[1:]
counts = [os.path.join(folder, name) for folder, _, names in os.walk(build)
          for name in names if name.endswith(".gcda")]
told = subprocess.run(["gcov", "-j", "-t"] + counts, capture_output=True, check=True)
with open(out, "w") as to:
    for line in told.stdout.splitlines():
        unit = json.loads(line) if line.strip() else {"files": []}
        for file in unit["files"]:
            path = os.path.join(unit["current_working_directory"], file["file"])
            path = os.path.relpath(os.path.realpath(path), os.path.realpath(source))
            for function in file["functions"]:
                if path.endswith(".c") and function["execution_count"]:
                    print(path, function["name"], function["execution_count"], file=to)
P
# ran OUT ARGUMENT...: the functions that the program ran.
ran() {
    find "$build" -name '*.gcda' -delete
    "$program" "${@:2}" >out 2>err || { cat err; return 1; }
    python3 count.py "$build" "$source" "$1"
}
# within NAME FILES: at most as many as in the table; lists them.
within() {
    local limit count
    limit=$(sed -n "s/^$1 //p" <<<"$limits")
    count=$(wc -l <"$2")
    sed "s/^/# $1: /" "$2"
    echo "# $1: $count files, at most $limit"
    report "$1" "$([ "$count" -gt 0 ] && [ "$count" -le "$limit" ] ||
        echo "$count files: at most $limit")"
}
# more LESS MORE TIMES: files outside src/ with a function that ran that much more often.
more() {
    awk -v times="$3" 'NR == FNR { before[$1 " " $2] += $3; next }
        { after[$1 " " $2] += $3 }
        END { for (f in after) if (after[f] - before[f] >= times) print f }' "$1" "$2" |
        cut -d' ' -f1 | grep -v '^src/' | sort -u
}

python3 - "$source/tests/cli/lib/tones.py" <<'P'
import random, struct, sys
exec(open(sys.argv[1]).read())
make("data/train", 6, 1)
make("data/dev", 2, 100)
draw = random.Random(1)
for name in "qkv": # [1, 2, 1300, 16]: more queries than clusters
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 1300, 16), }"
    head = head.ljust(117) + "\n"
    values = [draw.gauss(0, 1) for _ in range(2 * 1300 * 16)]
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
    open(name + ".npy", "wb").write(start + struct.pack("<%df" % len(values), *values))
P
for kind in i-clustered-100 shoal; do
    name=attend-${kind%-100}
    if ran functions attend $kind q.npy k.npy v.npy -o o.npy; then
        cut -d' ' -f1 functions | sort -u >files
        within "$name" files
    else
        report "$name" "$(cat err)"
    fi
done

if "$program" transcribe --help 2>&1 | grep -q "built without"; then
    skip "train-speech-step, transcribe" "the program was built without speech"
    finish
fi
train() {
    ran "$1" train speech data --labels phones --cache cache --set hop=2 --set context=6 \
        --layers 1 --set heads=2 --set head_dim=16 --set feed_forward=32 \
        --set batch_frames=300 --threads 1 --out "run$2" --steps "$2"
}
# The first run computes the features; the text of a checkpoint varies by less than forty
# calls.
if train functions 1 && train less 2 && train more 42; then
    more less more 40 >files
    within train-speech-step files
else
    report train-speech-step "$(cat err)"
fi

model=$data/models/ggml-tiny.bin
recordings=("$data"/speech/1088-134315-00{20,43}.flac)
if [ ! -e "$model" ] || [ ! -e "${recordings[1]}" ]; then
    skip transcribe "no $model, or no recordings beside it"
    finish
fi
transcribe() { ran "$1" transcribe --model "$model" --language en "${@:2}"; }
if transcribe less "${recordings[0]}" && transcribe more "${recordings[@]}"; then
    more less more 1 >files
    within transcribe files
else
    report transcribe "$(cat err)"
fi
finish
