#!/bin/bash
# The wheel of this system, built from the source distribution and installed elsewhere,
# has every part.
#     wheel.sh SOURCE BUILD
. "$(dirname "$0")/../report.sh"
source=$1 build=$2
"$source/tools/wheel" --here --build "$build/wheel-here" >"$work/log" 2>&1
code=$?
if [ $code = 77 ]; then
    skip "the wheel" "pip cannot install what builds it"
    finish
fi
report "the wheel is built" "$([ $code = 0 ] || tail -n 20 "$work/log")"
[ $code = 0 ] || finish
bash "$source/tests/wheel/run.sh" "$source" python3 \
    "$(tail -n 1 "$work/log" | sed 's/ ([0-9.]* MB)$//')" || failed=1
finish
