#!/bin/bash
# Each public header compiles alone, as C11 and as C++17, without a warning, and so do the
# examples of README and of the headers; the first two are run too.
#     headers.sh CC BUILD SOURCE
. "$(dirname "$0")/../report.sh"
cc=$1 build=$2 source=$3
strict="-Wall -Wextra -pedantic -Werror -I$source/include"

alone() { # COMPILER LANGUAGE STANDARD HEADER
    # shellcheck disable=SC2086 # several flags, split on purpose
    "$1" $strict -x "$2" -std="$3" -fsyntax-only - <<<"#include <$(basename "$4")>"
}

for compiler in "$cc c c11" "clang c c11" "c++ c++ c++17" "clang++ c++ c++17"; do
    read -r name language standard <<<"$compiler"
    if ! command -v "$name" >/dev/null; then
        skip "headers as $standard, $name" "no $name here"
        continue
    fi
    for header in "$source"/include/*.h; do
        check "$(basename "$header") is $standard for $(basename "$name")" \
            alone "$name" "$language" "$standard" "$header"
    done
done

readme_example() {
    sed -n '/^```c$/,/^```$/p' "$source/README.md" | sed '1d; /^```$/,$d'
}
header_example() { # the program in the comment at the start of HEADER, by default shoal.h
    sed -n '/A COMPLETE PROGRAM/,/^ \* [A-Z]/p' "$source/include/${1:-shoal.h}" |
        sed -n 's/^ \*     //p'
}

runs() { # COMMAND that prints a program
    "$1" >"$work/example.c"
    grep -q main "$work/example.c" || { echo "there is no program"; return 1; }
    # shellcheck disable=SC2086
    "$cc" $strict -std=c11 "$work/example.c" -L"$build" -lshoal -o "$work/example" &&
        LD_LIBRARY_PATH=$build "$work/example"
}
on_library() { # LIBRARY: other libraries to link with
    [ "$1" != shoal-train ] || [ ! -e "$build/libshoal-speech.so" ] ||
        echo -lshoal-speech
}
# The examples of the other headers need data or files: they are compiled and linked.
links() { # HEADER LIBRARY
    header_example "$1" >"$work/example.c"
    grep -q main "$work/example.c" || { echo "there is no program"; return 1; }
    # shellcheck disable=SC2086
    "$cc" $strict -std=c11 "$work/example.c" -L"$build" "-l$2" \
        $(on_library "$2") -lshoal-models -lshoal -o "$work/example"
}
is_cpp() { # README's example as C++17
    # shellcheck disable=SC2086
    readme_example | c++ $strict -x c++ -std=c++17 -fsyntax-only -
}
check "README's example compiles and runs" runs readme_example
if command -v c++ >/dev/null; then
    check "README's example is C++17" is_cpp
else
    skip "README's example is C++17" "there is no c++ here"
fi
check "shoal.h's example compiles and runs" runs header_example
for library in shoal-models shoal-speech shoal-train; do
    header=${library//-/_}.h
    if [ -e "$build/lib$library.so" ]; then
        check "$header's example compiles" links "$header" "$library"
    else
        skip "$header's example" "there is no lib$library here"
    fi
done
finish
