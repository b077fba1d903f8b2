#!/bin/bash
# Includes between rooms point in one direction; rooms.sh has the order. exact/ uses only
# public headers; cli/ and lab/ use those and their own, and lab/ may also use exact/ and
# what cli/ shares. A public header uses the standard library and the public headers below
# it.
#     includes.sh ROOT      checks the tree, after checking that it can find errors
. "$(dirname "$0")/../report.sh"
. "$(dirname "$0")/rooms.sh"
shopt -s nullglob
may_use_header() { # the public headers that a file of room $1 may include
    case $1 in
    shoal.h | base | kernels | cluster) echo shoal.h ;;
    shoal_transport.h | shoal_inspect.h) echo shoal.h ;;
    attention) echo shoal.h shoal_transport.h shoal_inspect.h ;;
    shoal_models.h | models/*) echo shoal.h shoal_transport.h shoal_models.h ;;
    exact) echo shoal.h shoal_inspect.h shoal_models.h ;;
    shoal_mpi.h | mpi) echo shoal.h shoal_transport.h shoal_mpi.h ;;
    shoal_speech.h | speech/*) echo shoal.h shoal_models.h shoal_speech.h ;;
    shoal_train.h | train | train/tasks)
        echo shoal.h shoal_transport.h shoal_models.h shoal_speech.h shoal_train.h ;;
    *) echo shoal{,_transport,_inspect,_models,_speech,_train,_mpi}.h ;;
    esac
}

includes() { # "line target" for every #include of file $1, with quotes or brackets
    local start='^[[:space:]]*#[[:space:]]*include[[:space:]]*'
    local target='(["<][^">]*[">]|[A-Za-z_].*)'
    sed -nE "s/$start$target.*/\1/; t found; d; :found; =; p" "$1" | paste -d ' ' - -
}

room_of() { # the room of an included file $1, or nothing
    local room=${1%/*}
    contains "$rooms" "$room" && echo "$room"
}

found_beside() { # is $3 a file of the folder $1, or for lab a header shared by commands?
    [ -e "$1/$3" ] || { [ "$2" = lab ] && [ "$3" = command.h ] && [ -e "$1/../cli/$3" ]; }
}

allowed() { # may a file in folder $1, of room $2, include $3?
    local quoted=$3 target=${3:1:-1} room
    [[ $quoted == [\"\<]* && $target != *..* ]] || return 1
    if [[ $target == shoal*.h ]]; then
        contains "$(may_use_header "$2")" "$target"
        return
    fi
    room=$(room_of "$target")
    if [ -n "$room" ]; then
        contains "$(may_use "$2")" "$room"
    else
        [[ $quoted == \<* ]] ||
            { [[ $target != */* ]] && found_beside "$1" "$2" "$target"; }
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
    local file room
    while read -r file; do
        room=$(room_of_file "${file#"$1"/}")
        if contains "$rooms" "$room"; then
            check_file "$file" "$room"
        else
            echo "$file: lies in no room"
        fi
    done < <(cd "$1" && find $tops -type f -name '*.[ch]' 2>/dev/null | sed "s|^|$1/|")
    for file in "$1"/include/*; do check_file "$file" "$(basename "$file")"; done
}

expect() { # $1 good or bad, $2 file, $3 line: alone in a tree (or beside the empty file
    # $4), it must be judged like that
    local tree=$work/tree verdict=good
    mkdir -p "$tree/$(dirname "$2")" && echo "$3" >"$tree/$2"
    [ -z "${4:-}" ] || { mkdir -p "$tree/$(dirname "$4")" && touch "$tree/$4"; }
    touch "$tree/$(dirname "$2")/own.h"
    [ -n "$(check_tree "$tree")" ] && verdict=bad
    rm -r "$tree"
    [ $verdict = "$1" ] || report "$2: $3 is $1" "it was called $verdict"
}

check_itself() {
    expect good src/kernels/a.c '#include "base/memory.h"'
    expect good src/kernels/a.c '#include "own.h"'
    expect good models/files/a.c '#include "models/nn/model.h"'
    expect good models/nn/a.c '#include "models/kernels/kernels.h"'
    expect bad models/kernels/a.c '#include "models/nn/layers.h"'
    expect bad models/kernels/a.c '#include "attention/attention.h"'
    expect good models/text/a.c '#include "models/files/files.h"'
    expect bad models/files/a.c '#include "models/text/tokenizer.h"'
    expect good speech/audio/a.c '#include "models/nn/encoder.h"'
    expect bad speech/words/a.c '#include "speech/whisper/tokens.h"'
    expect bad speech/words/a.c '#include "speech/recogniser/lfmmi.h"'
    expect good speech/recogniser/a.c '#include "speech/words/lexicon.h"'
    expect good mpi/a.c '#include "attention/attention.h"'
    expect bad mpi/a.c '#include "models/nn/encoder.h"'
    expect good train/a.c '#include "train/tasks/task.h"'
    expect bad train/tasks/a.c '#include "train/train.h"'
    expect bad train/a.c '#include "shoal_mpi.h"'
    expect bad speech/audio/a.c '#include "train/train.h"'
    expect bad mpi/a.c '#include "shoal_models.h"'
    expect bad speech/audio/a.c '#include "shoal_mpi.h"'
    expect good cli/a.c '#include <sys/mman.h>'
    expect good cli/a.c '#include "own.h"'
    expect good lab/a.c '#include "exact/exact.h"'
    expect bad lab/a.c '#include "own_of_cli.h"' cli/own_of_cli.h
    expect bad lab/a.c '#include "cli/train.h"' cli/train.h
    expect good lab/a.c '#include "command.h"' cli/command.h
    expect bad src/base/a.c '#include "kernels/kernels.h"'
    expect bad src/kernels/a.c '  #  include "cluster/kmeans.h"'
    expect bad src/cluster/a.c '#include "attention/auto.h"'
    expect bad models/nn/a.c '#include "models/files/files.h"'
    expect bad models/nn/a.c '#include <models/text/tokenizer.h>'
    expect bad models/nn/a.c '#include "speech/audio/mel.h"'
    expect bad models/nn/a.c '#include "shoal_speech.h"'
    expect bad src/cluster/a.c '#include "../attention/attention.h"'
    expect bad src/cluster/a.c '#include NAME'
    expect bad src/attic/a.c '#include <stdio.h>'
    expect bad speech/a.c '#include <stdio.h>'
    expect bad exact/a.c '#include "base/memory.h"'
    expect bad cli/a.c '#include "models/files/npy.h"'
    expect bad cli/a.c '#include "exact/exact.h"'
    expect bad cli/a.c '#include "elsewhere.h"'
    expect bad include/shoal.h '#include "base/context.h"'
    expect bad include/shoal_models.h '#include "shoal_speech.h"'
}

check_itself
[ $failed = 0 ] && report "the check finds what it should" ""
report "includes point left only" "$(check_tree "$1")"
finish
