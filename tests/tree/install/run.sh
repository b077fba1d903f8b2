#!/bin/bash
# Installs the build into a temporary prefix, and builds and runs main.c against it as two
# strangers would: with find_package and with pkg-config.
#     run.sh CMAKE CC BUILD
set -u
cmake=$1 cc=$2 build=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

check() { # $1 the name of the case, then the command
    local name=$1 log
    shift
    if log=$("$@" 2>&1); then
        echo "ok - $name"
    else
        failures=$((failures + 1))
        echo "not ok - $name"
        echo "$log"
    fi
}

with_find_package() {
    "$cmake" -S "$here" -B "$work/user" -DCMAKE_PREFIX_PATH="$work/moved" \
        -DCMAKE_C_COMPILER="$cc" &&
        "$cmake" --build "$work/user" && "$work/user/user"
}

with_pkg_config() {
    local flags library
    PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name shoal.pc)")
    export PKG_CONFIG_PATH
    flags=$(pkg-config --cflags --libs shoal) &&
        library=$(pkg-config --variable=libdir shoal) &&
        # shellcheck disable=SC2086 # several flags, split on purpose
        "$cc" "$here/main.c" $flags -o "$work/piped" &&
        LD_LIBRARY_PATH=$library "$work/piped"
}

# Public names only: what is for Shoal's own libraries has another prefix and version.
exported_names() { nm -D --defined-only "$1" | awk '{ print $3 }' | sed 's/@.*//' |
    grep '^shoal_' | sort; }
declared_names() { grep -A1 '^SHOAL_API' "$1" | grep -oE '\bshoal_[a-z_]+\(' | tr -d '(' |
    sort -u; }

interface_is_header() { # $1 the library's name
    local library
    library=$(find "$work/moved" -name "lib$1.so" | head -1)
    diff <(declared_names "$work/moved/include/${1/-/_}.h") <(exported_names "$library")
}

header_is_cplusplus() {
    local file=$work/moved/include/shoal.h
    c++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only -x c++ "$file"
}

program_runs() { "$work/moved/bin/shoal" --help; }

check "installs" "$cmake" --install "$build" --prefix "$work/first"
mv "$work/first" "$work/moved" # a package must not remember where it was put
for library in shoal shoal-models shoal-speech; do
    [ -n "$(find "$work/moved" -name "lib$library.so")" ] || continue
    check "lib$library exports what its header declares" interface_is_header $library
done
check "find_package" with_find_package
if command -v pkg-config >/dev/null; then check "pkg-config" with_pkg_config; fi
if command -v c++ >/dev/null; then check "the header is C++ too" header_is_cplusplus; fi
if [ -e "$work/moved/bin/shoal" ]; then check "the program runs" program_runs; fi
[ $failures = 0 ]
