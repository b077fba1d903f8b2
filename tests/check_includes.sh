#!/bin/bash
# Rooms of src/ may look one way only (docs/ARCHITECTURE.md):
#     base <- kernels <- cluster <- attention <- nn <- model      base <- data <- model
# The program uses shoal.h and its own headers, and shoal.h uses the standard library.
#     check_includes.sh ROOT      checks the tree, after checking that it can find errors
set -u
shopt -s nullglob
rooms="base kernels cluster attention nn data model"

may_use() { # the rooms that a file of room $1 may include from
    case $1 in
    base) echo base ;;
    kernels) echo base kernels ;;
    cluster) echo base kernels cluster ;;
    attention) echo base kernels cluster attention ;;
    nn) echo base kernels cluster attention nn ;;
    data) echo base data ;;
    model) echo "$rooms" ;;
    esac
}

contains() { [[ " $1 " == *" $2 "* ]]; }

includes() { # "line target" for every #include of file $1; the quotes or brackets stay on
    local start='^[[:space:]]*#[[:space:]]*include[[:space:]]*'
    sed -nE "s/$start([\"<][^\">]*[\">]|[A-Za-z_].*).*/\1/; t found; d; :found; =; p" "$1" |
        paste -d ' ' - -
}

allowed() { # may a file that lies in folder $1, of room $2, include $3?
    local quoted=$3 target=${3:1:-1}
    [[ $quoted == [\"\<]* && $target != *..* ]] || return 1
    [ "$target" = shoal.h ] && return 0
    if [[ $target == */* ]] && contains "$rooms" "${target%%/*}"; then
        contains "$(may_use "$2")" "${target%%/*}"
    else
        [[ $quoted == \<* ]] || [[ $target != */* && -e $1/$target ]]
    fi
}

check_file() { # $1 the file, $2 its room; prints what is wrong
    local line target
    while read -r line target; do
        allowed "$(dirname "$1")" "$2" "$target" ||
            echo "$1:$line: a file of '$2' may not include $target"
    done < <(includes "$1")
}

check_tree() { # $1 the root; prints what is wrong
    local file room folder
    for folder in "$1"/src/*/; do
        room=$(basename "$folder")
        contains "$rooms" "$room" || echo "$folder: no such room"
        while read -r file; do
            check_file "$file" "$room"
        done < <(find "$folder" -type f)
    done
    for file in "$1"/src/*.*; do echo "$file: lies in no room"; done
    for file in "$1"/cli/*; do check_file "$file" cli; done
    for file in "$1"/include/*; do check_file "$file" shoal.h; done
}

number=0 failures=0
report() { # $1 the name of the case, $2 what is wrong with it, if anything
    number=$((number + 1))
    if [ -z "$2" ]; then
        echo "ok $number - $1"
    else
        failures=$((failures + 1))
        echo "not ok $number - $1"
        echo "$2"
    fi
}

expect() { # $1 good or bad, $2 file, $3 line: alone in a tree, it must be judged so
    local tree verdict=good
    tree=$(mktemp -d)
    mkdir -p "$tree/$(dirname "$2")" && echo "$3" >"$tree/$2"
    touch "$tree/$(dirname "$2")/own.h"
    [ -n "$(check_tree "$tree")" ] && verdict=bad
    rm -r "$tree"
    [ $verdict = "$1" ] || report "$2: $3 is $1" "it was called $verdict"
}

check_itself() {
    expect good src/kernels/a.c '#include "base/memory.h"'
    expect good src/kernels/a.c '#include "own.h"'
    expect good src/model/a.c '#include "data/text.h"'
    expect good cli/a.c '#include <sys/mman.h>'
    expect good cli/a.c '#include "own.h"'
    expect bad src/base/a.c '#include "kernels/kernels.h"'
    expect bad src/kernels/a.c '  #  include "cluster/hash.h"'
    expect bad src/data/a.c '#include "kernels/kernels.h"'
    expect bad src/nn/a.c '#include <model/train.h>'
    expect bad src/cluster/a.c '#include "../attention/plan.h"'
    expect bad src/cluster/a.c '#include NAME'
    expect bad src/attic/a.c '#include <stdio.h>'
    expect bad cli/a.c '#include "base/npy.h"'
    expect bad cli/a.c '#include "elsewhere.h"'
    expect bad include/shoal.h '#include "base/context.h"'
}

check_itself
[ $failures = 0 ] && report "the check finds what it should" ""
report "includes point left only" "$(check_tree "$1")"
[ $failures = 0 ]
