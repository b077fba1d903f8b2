#!/bin/bash
# Runs one of examples/ and looks at what it prints.
#     example.sh PATTERN PROGRAM [ARGUMENT ...]
# The output must match the extended regular expression, the exit code be 0. An argument
# FILE:PATH is a file that not every machine has: without it the test is skipped.
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
cd "$work" || exit 1 # what an example writes
"${words[@]}" >out.txt 2>&1
code=$?
cat out.txt
[ $code = 0 ] || { echo "not ok: exit code $code"; exit 1; }
grep -qE -e "$pattern" out.txt || { echo "not ok: nothing matches '$pattern'"; exit 1; }
echo ok
