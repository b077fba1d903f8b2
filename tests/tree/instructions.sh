#!/bin/bash
# Counts the instructions of a few small fixed problems (tests/tree/instructions.c) under
# callgrind and compares them with tests/tree/instructions.txt: a change that makes the
# library do much more work is detected without timing.
#     instructions.sh PROGRAM             compares; more than the margin is a failure
#     instructions.sh --record PROGRAM    writes the file, after a change that
#                                         intentionally changes the work
# PROGRAM is tests/instructions in the build directory. The margin allows for another
# compiler or C library; far fewer instructions than recorded is a failure too, since the
# figures are then outdated: record them.
set -u
margin=15 # per cent
figures=$(dirname "$(realpath "$0")")/instructions.txt
record=no
[ "${1:-}" = --record ] && { record=yes; shift; }
if [ $# -ne 1 ] || [ ! -x "$1" ]; then
    echo "usage: instructions.sh [--record] PROGRAM"
    exit 2
fi
program=$(realpath "$1")

skip() { echo "ok instructions # SKIP $1"; exit 77; }
command -v valgrind >/dev/null || skip "valgrind is not installed"
case $(uname -m) in
x86_64) sets="scalar avx2" ;;
*) skip "figures are recorded for x86_64 only" ;;
esac
grep -qw avx2 /proc/cpuinfo || sets=scalar

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset OMP_NUM_THREADS

count() { # "SET PROBLEM INSTRUCTIONS" for every problem under instruction set $1
    SHOAL_ISA=$1 valgrind --tool=callgrind --callgrind-out-file="$work/out" \
        --toggle-collect='measured_*' "$program" >"$work/log" 2>&1 &&
        callgrind_annotate --inclusive=yes --auto=no --threshold=100 "$work/out" \
            >"$work/costs" 2>>"$work/log" || { sed 's/^/# /' "$work/log"; return 1; }
    # "  2,494,546 ( 7.97%)  tests/tree/instructions.c:measured_full [...]"
    sed -nE "s/^ *([0-9,]+) .*:measured_([a-z_]+) .*/$1 \2 \1/p" "$work/costs" | tr -d ,
}

failed=0 counted=0
: >"$work/new"
for set in $sets; do
    if count "$set" >"$work/counted"; then
        cat "$work/counted" >>"$work/new"
    else
        cat "$work/counted"
        echo "not ok instructions $set: callgrind failed"
        failed=1
    fi
done

if [ $record = yes ]; then
    [ $failed = 0 ] && [ -s "$work/new" ] || exit 1
    {
        echo "# Instructions by callgrind: set, problem, count. Made by"
        echo "#     tests/tree/instructions.sh --record build/tests/instructions"
        sort -k1,1 -k2,2 "$work/new"
    } >"$figures.tmp" && mv "$figures.tmp" "$figures" && cat "$figures"
    exit
fi

while read -r set name recorded; do
    [[ $set == \#* ]] || [[ " $sets " != *" $set "* ]] && continue
    now=$(awk -v s="$set" -v n="$name" '$1 == s && $2 == n { print $3 }' "$work/new")
    counted=$((counted + 1))
    if [ -z "$now" ]; then
        echo "not ok $set $name: not counted"
        failed=1
        continue
    fi
    change=$(((now - recorded) * 1000 / recorded)) # per mille
    text=$(awk -v n="$now" -v r="$recorded" \
        'BEGIN { printf "%.2f million, recorded %.2f: %+.1f %%", n / 1e6, r / 1e6,
                 100 * (n / r - 1) }')
    if [ $change -gt $((margin * 10)) ] || [ $change -lt $((-margin * 10)) ]; then
        echo "not ok $set $name: $text, more than $margin % apart;" \
            "if that is meant, tests/tree/instructions.sh --record"
        failed=1
    else
        echo "ok $set $name: $text"
    fi
done <"$figures"
[ $counted -gt 0 ] || { echo "not ok instructions: no figures in $figures"; failed=1; }
exit $failed
