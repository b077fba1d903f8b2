#!/bin/bash
# What the program says about itself: help, manual pages, completion.
. "$(dirname "$0")/lib/helpers.sh"
commands=$(shoal --help | sed -n 's/^  \([a-z]\{3,\}\) .*/\1/p' | grep -vx shoal)
shown() { shoal "$1" --help | grep -o '^  \(-., \|    \)--[a-z-]*' | grep -o -- '--.*'; }

# ---- Help
check "there are commands" [ "$(echo "$commands" | wc -l)" -ge 12 ]
for command in $commands; do
    shoal "$command" --help >asked
    expect "help $command" 0 "usage: shoal $command" shoal help "$command"
    check "help $command is its --help" cmp asked out
    check "help $command leaves exit codes to the general help" \
        bash -c '! grep -q "exit codes:" out'
done
shoal --help >asked
expect "help alone" 0 "exit codes:" shoal help
check "help alone is --help" cmp asked out
expect "help of nothing near" 2 "there are attend, train" shoal help knitting
expect "help of a misspelt command" 2 "did you mean attend? There are attend" \
    shoal help atend
expect "help of two commands" 2 "one word too many" shoal help attend bench

finish
