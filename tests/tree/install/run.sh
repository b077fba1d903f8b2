#!/bin/bash
# Installs the build into a temporary prefix, moves it, and builds and runs programs
# against it as a user would: with find_package and with pkg-config, each library and each
# archive, with every function of its header.
#     run.sh CMAKE CC BUILD SOURCE
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../report.sh"
. "$here/../declared.sh"
cmake=$1 cc=$2 build=$3 source=$4
prefix=$work/moved
version=$(sed -nE 's/^#define SHOAL_VERSION "([0-9]+\.[0-9]+).*/\1/p' \
    "$source/include/shoal.h")

# whole_header NAME: a C function that takes the address of every function of a header.
whole_header() {
    local headers=("$source/include/shoal.h" "$source/include/${1/-/_}.h")
    case $1 in shoal-speech | shoal-train)
        headers+=("$source/include/shoal_models.h")
        ;;
    esac
    printf '#include <%s>\n' "${headers[@]##*/}"
    echo "typedef void function(void);"
    echo "static function *const volatile all[] = {"
    declared "$cc" "${headers[@]}" | sed 's/.*/    (function *)&,/'
    echo "};"
    echo "int whole_header(void);"
    echo "int whole_header(void) {"
    echo "    int there = 0;"
    echo "    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)"
    echo "        there += all[i] != 0;"
    echo "    return there;"
    echo "}"
}

needs() { # PROGRAM: the libraries of Shoal that it links
    readelf -d "$1" | sed -nE 's/.*\(NEEDED\).*\[lib(shoal[a-z-]*)\.so.*/\1/p' | sort
}

runs() { # PROGRAM [shared]: it runs, with Shoal's libraries from the prefix, or static
    if [ -n "${2:-}" ]; then
        [ -n "$(needs "$1")" ] || { echo "it needs no library of Shoal"; return 1; }
        LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libshoal.so)") "$1"
    else
        [ -z "$(needs "$1")" ] || { echo "it needs $(needs "$1")"; return 1; }
        "$1"
    fi
}

with_pkg_config() { # NAME
    local flags
    flags=$(pkg-config --cflags --libs "$1") &&
        # shellcheck disable=SC2086 # several flags, split on purpose
        "$cc" "$here/main.c" "$work/$(whole_of "$1")" $flags -o "$work/piped" &&
        runs "$work/piped" shared
}

# Shoal's libraries as archives; its dependencies are the system's shared ones.
with_pkg_config_static() { # NAME
    local flags
    flags=$(pkg-config --static --cflags --libs "$1" |
        sed -E 's/-lshoal[a-z-]*/-Wl,-Bstatic & -Wl,-Bdynamic/g') &&
        # shellcheck disable=SC2086
        "$cc" "$here/main.c" "$work/$(whole_of "$1")" $flags -o "$work/piped" &&
        runs "$work/piped"
}

whole_of() { local name=${1#shoal-}; echo "whole_$name.c"; } # NAME of a library

configure() { # FOLDER ARGUMENT...
    "$cmake" -S "$here" -B "$work/$1" -DCMAKE_PREFIX_PATH="$prefix" -DWHOLE="$work" \
        -DVERSION="$version" -DCMAKE_C_COMPILER="$cc" "${@:2}"
}

# A missing component is named, and does not prevent the use of others.
a_missing_component() {
    configure missing -DCOMPONENTS="shoal;models" 2>&1 | tr -s ' \n' ' ' |
        grep -q "component models is not installed" &&
        configure present -DCOMPONENTS=shoal
}

# Without a build type, like most new projects.
as_a_part() {
    configure part -DSHOAL_SOURCE="$source" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON &&
        grep -q '"command".*-O3.*src/attention/attention.c' \
            "$work/part/compile_commands.json" &&
        "$cmake" --build "$work/part" -j 2 &&
        "$work/part/user_shoal" && runs "$work/part/user_shoal_static"
}

check "installs" "$cmake" --install "$build" --prefix "$work/first"
mv "$work/first" "$prefix" # a package must not depend on its original location
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name shoal.pc)")
export PKG_CONFIG_PATH

components=()
for library in shoal shoal-models shoal-speech shoal-train shoal-mpi; do
    if [ -z "$(find "$prefix" -name "lib$library.so")" ]; then
        skip "lib$library" "it is not built"
        continue
    fi
    components+=("${library#shoal-}")
    whole_header $library >"$work/$(whole_of $library)"
    if command -v pkg-config >/dev/null; then
        check "$library with pkg-config" with_pkg_config $library
        check "$library.a with pkg-config --static" with_pkg_config_static $library
    fi
done
# README's program, as C and as C++, without a warning.
readme() { # COMPILER OPTION...
    sed -n '/^```c$/,/^```$/{/^```/d;p}' "$source/README.md" >"$work/example.c"
    # shellcheck disable=SC2046
    "$@" -Wall -Wextra -Wpedantic -Werror "$work/example.c" -x none \
        $(pkg-config --cflags --libs shoal) -o "$work/example" &&
        runs "$work/example" shared | grep -q "sees a mean value"
}
if command -v pkg-config >/dev/null; then
    check "README's example" readme "$cc" -std=c11
    if command -v c++ >/dev/null; then
        check "README's example as C++17" readme c++ -std=c++17 -x c++
    fi
fi
list=$(IFS=";"; echo "${components[*]}")
check "find_package" configure user -DCOMPONENTS="$list"
check "programs with find_package are built" "$cmake" --build "$work/user" -j 2
for name in "${components[@]}"; do
    check "shoal::$name" runs "$work/user/user_$name" shared
    check "shoal::${name}_static" runs "$work/user/user_${name}_static"
done
if [ -e "$prefix/bin/shoal" ]; then
    check "the program runs" "$prefix/bin/shoal" --help
    for file in man/man1/shoal.1 man/man1/shoal-attend.1 zsh/site-functions/_shoal \
        bash-completion/completions/shoal fish/vendor_completions.d/shoal.fish; do
        check "share/$file" [ -s "$prefix/share/$file" ]
    done
fi
check "as a part of another project" as_a_part
find "$prefix" -name "modelsTargets*.cmake" -delete
find "$prefix" -name "speechTargets*.cmake" -delete
find "$prefix" -name "trainTargets*.cmake" -delete
find "$prefix" -name "mpiTargets*.cmake" -delete
check "a missing component is named" a_missing_component
finish
