#!/bin/bash
# Runs one of examples/ and checks its output.
#     example.sh PATTERN PROGRAM [ARGUMENT ...]
# The output must match the extended regular expression, and the exit code must be 0. An
# argument FILE:PATH is an optional file: without it the test is skipped.
set -u
pattern=$1
shift
words=()
for word in "$@"; do
    if [[ $word == FILE:* ]]; then
        word=${word#FILE:}
        [ -e "$word" ] || { echo "skipped: there is no $word"; exit 77; }
    fi
    words+=("$word")
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1 # for files written by the example
"${words[@]}" >out.txt 2>&1
code=$?
cat out.txt
[ $code = 0 ] || { echo "not ok: exit code $code"; exit 1; }
grep -qE -e "$pattern" out.txt || { echo "not ok: nothing matches '$pattern'"; exit 1; }
echo ok
