#!/bin/bash
# No function of a room uses a function or data defined in a room above it, whichever
# header declares it: checked with nm on the object files of the libraries. rooms.sh has
# the order.
#     links_rooms.sh CC BUILD ROOT    after checking that it can find errors
. "$(dirname "$0")/../report.sh"
. "$(dirname "$0")/rooms.sh"
cc=$1 build=$2 root=$3

allowed_pairs() { # "USER USED" for every room and the rooms that it may use
    local room used
    for room in $rooms; do
        for used in $(may_use "$room"); do echo "$room $used"; done
    done
}

# Objects below $1, except those of moved or deleted sources of tree $2, such as
# .../shoal_models_objects.dir/models/nn/loss.c.o
objects() {
    local object source
    find "$1" -path '*_objects.dir/*' -name '*.o' -print0 |
        while IFS= read -r -d '' object; do
            source=${object##*_objects.dir/}
            [ -n "$2" ] && [ ! -e "$2/${source%.o}" ] || printf '%s\0' "$object"
        done
}

check_objects() { # $1 a build directory, $2 its tree or ""; prints what is wrong
    objects "$1" "$2" |
        xargs -0 nm -AgP 2>/dev/null |
        awk -v pairs="$(allowed_pairs)" '
            BEGIN {
                count = split(pairs, lines, "\n")
                for (i = 1; i <= count; i++) allowed[lines[i]] = 1
            }
            {
                file = $1; sub(/:$/, "", file); sub(/.*_objects\.dir\//, "", file)
                room = file; sub(/\/[^\/]*$/, "", room); sub(/^src\//, "", room)
                if ($3 != "U") { home[$2] = room; next }
                users[++used] = room; names[used] = $2; files[used] = file
            }
            END {
                for (i = 1; i <= used; i++) {
                    there = home[names[i]]
                    if (there != "" && !((users[i] " " there) in allowed))
                        printf "%s: %s is defined in %s, which %s may not use\n", \
                            files[i], names[i], there, users[i]
                }
                if (!used) print "no object files"
            }' | sort -u
}

expect() { # $1 good or bad, then FILE CODE pairs: compiled as objects of one library
    local verdict=good what=$2 tree=$work/objects
    local expected=$1 folder=$tree/x_objects.dir
    shift
    while [ $# -gt 0 ]; do
        mkdir -p "$folder/$(dirname "$1")"
        echo "$2" | "$cc" -x c -c - -o "$folder/$1.o" || report "$1 compiles" "no"
        shift 2
    done
    [ -n "$(check_objects "$tree" "")" ] && verdict=bad
    rm -r "$tree"
    [ $verdict = "$expected" ] || report "$what is $expected" "it was called $verdict"
}

expect good src/cluster/a.c 'void low(void); void high(void) { low(); }' \
    src/base/b.c 'void low(void) {}'
expect good src/base/a.c '#include <stdlib.h>
    void *block(void) { return malloc(1); }'
expect bad src/kernels/a.c 'void high(void); void low(void) { high(); }' \
    src/cluster/b.c 'void high(void) {}'
expect bad models/nn/a.c 'extern int high; int *low(void) { return &high; }' \
    models/text/b.c 'int high = 1;'
expect bad src/base/a.c 'void high(void); void (*low)(void) = high;' \
    models/nn/b.c 'void high(void) {}'
expect bad empty/a.txt ''
[ $failed = 0 ] && report "the check finds what it should" ""
report "links point left only" "$(check_objects "$build" "$root")"
finish
