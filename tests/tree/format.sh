#!/bin/bash
# C is formatted by clang-format, and no line of code, scripts or pages has more than 90
# columns. Exceptions: tables, links and commands in pages; the notebook and its trials.
#     format.sh ROOT      checks the tree, after checking that it can find errors
. "$(dirname "$0")/../report.sh"
wanted=14 # the version of Debian 12; other versions break lines differently
formatter=clang-format

sources() { # ROOT PATTERN...: files of the tree, without built ones
    local root=$1 names=()
    shift
    for pattern in "$@"; do names+=(-o -name "$pattern"); done
    find "$root" -mindepth 1 \( -name 'build*' -o -name '.?*' \) ! -name .ci -prune -o \
        -type f \( "${names[@]:1}" \) -print | sort
}

unformatted() { # ROOT
    sources "$1" '*.[ch]' |
        xargs $formatter -style=file:"$tree/.clang-format" --dry-run -Werror 2>&1 |
        grep 'error:'
}

long_lines() { # of the files named on standard input: "FILE:LINE:TEXT"
    LC_ALL=C.UTF-8 xargs grep -HnE '^.{91,}' /dev/null
}

too_long() { # ROOT
    {
        {
            sources "$1" '*.[ch]' '*.sh' '*.py' '*.cmake' CMakeLists.txt Makefile
            find "$1/tools" "$1/.ci" -type f 2>/dev/null
        } | long_lines
        sources "$1" '*.md' | long_lines | grep -vE ':[0-9]+:(\||    |`)|\]\(|https?:'
    } | sed -E 's/(:[0-9]+):.*/\1/' | grep -vE '/docs/notebook/|/bench/trials/'
}

finds() { # NAME FILE TEXT COMMAND: the command reports a tree with that file
    local root=$work/tree
    mkdir -p "$root/$(dirname "$2")"
    printf '%s\n' "$3" >"$root/$2"
    report "the check finds $1" "$([ -n "$("$4" "$root")" ] || echo "it does not")"
    rm -r "$root"
}

tree=$1
long=$(printf 'word %.0s' {1..19})
finds "a long line" src/a.c "/* $long */" too_long
finds "a long line of a script" tools/a "# $long" too_long
finds "a long line of prose" A.md "$long" too_long
report "columns" "$(too_long "$1")"

command -v clang-format-$wanted >/dev/null && formatter=clang-format-$wanted
version=$($formatter --version 2>/dev/null | sed -nE 's/.*version ([0-9]+).*/\1/p')
if [ "$version" = $wanted ]; then
    finds "C that is formatted otherwise" src/a.c 'int f( void ) {return 0;}' unformatted
    report "clang-format" "$(unformatted "$1")"
else
    skip "clang-format" "it needs clang-format $wanted, here is ${version:-none}"
fi
finish
