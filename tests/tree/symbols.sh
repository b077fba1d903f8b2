#!/bin/bash
# Checks the symbols of the libraries (docs/architecture.md, "Libraries"):
#     symbols.sh CC BUILD SOURCE
# Every global symbol begins with shoal_ or sh_, and functions used by one file are
# static. A shared library exports the functions of its header, and of its internals those
# that a library above it uses. The program uses only the headers, and libshoal needs only
# a C library and its mathematics.
. "$(dirname "$0")/../report.sh"
. "$(dirname "$0")/declared.sh"
cc=$1 build=$2 source=$3 include=$3/include

foreign() { # ARCHIVE: global names without either prefix
    nm -g --defined-only "$1" | awk 'NF == 3 { print $3 }' | grep -vE '^(shoal|sh)_'
}

# "NAME VERSION" of the exports of shared library $1.
exported() {
    nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | sed 's/@@*/ /' | sort
}
names() { exported "$1" | awk '{ print $1 }'; }
used() { # undefined symbols of the given files
    nm -D --undefined-only "$@" | awk 'NF == 2 { print $2 }' | sed 's/@.*//' | sort -u
}

off_header() { # HEADER LIBRARY HEADER...: where they differ
    diff <(declared "$cc" "$1" "${@:3}") <(names "$2" | grep '^shoal_')
}

misversioned() { # LIBRARY: names whose version does not match their prefix
    exported "$1" |
        grep -vE '^shoal_[a-z0-9_]+ SHOAL_[0-9.]+$|^sh_[a-z0-9_]+ SHOAL_PRIVATE_[0-9.]+$'
}

unused() { # LIBRARY ABOVE...: exported internals that are not used
    comm -23 <(names "$1" | grep '^sh_') <([ $# = 1 ] || used "${@:2}")
}

could_be_static() { # SOURCE ARCHIVE...: internals that only one file uses, and no test
    comm -23 <(nm -g --defined-only "${@:2}" | awk 'NF == 3 { print $3 }' | grep '^sh_' |
        sort -u) <({
        nm -u "${@:2}" | awk '$1 == "U" { print $2 }'
        grep -rhoE '\bsh_[a-z0-9_]+' "$1"/{tests,bench}
    } 2>/dev/null | sort -u)
}

private_uses() { used "$1" | grep '^sh_'; } # PROGRAM

needs_more() { # LIBRARY: its dependencies besides libc and libm
    readelf -d "$1" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' |
        grep -vE '^(libc|libm|ld-linux.*)\.so'
}

needs_mpi() { # FILE...: those that are linked with MPI, directly or indirectly
    local file
    for file in "$@"; do
        [ ! -e "$file" ] || ! ldd "$file" | grep -qE 'libmpi|libshoal-mpi' ||
            echo "$file"
    done
}

needs_blas() { # FILE...: those that are linked with a BLAS
    local file
    for file in "$@"; do
        [ ! -e "$file" ] ||
            readelf -d "$file" | grep -E 'NEEDED.*(blas|mkl|lapack)' | sed "s|^|$file|"
    done
}

# OBJECT:NAME of what archives take of the C library's memory. All memory is a context's
# (src/base/memory.h); base.c has what a context uses where its caller gave nothing.
plain_memory() { # ARCHIVE...
    local names='(m|c|re|v)alloc|reallocarray|free|aligned_alloc|(posix_)?memalign'
    names+='|strn?dup|v?asprintf|get(line|delim)|open_memstream'
    nm -A -u "$@" 2>/dev/null | sed -nE 's/^[^:]*:([^:]*): *[Uw] ([a-z_]+)$/\1:\2/p' |
        grep -E ":($names)\$" | grep -vE '^base\.c\.o:(malloc|free)$'
}

# ---- The checks find errors in a library that has all of them -------------------------
finds() { # NAME WANTED COMMAND...: the command prints a line with WANTED
    report "the check finds $1" "$("${@:3}" | grep -q -e "$2" || echo "it does not")"
}

echo 'int other(void) { return 0; }' >"$work/other.c"
cat >"$work/bad.c" <<'C'
int other(void);
int fail(void) { return other(); }
int shoal_public(void) { return fail(); }
int shoal_undeclared(void) { return 0; }
int sh_used(void) { return 0; }
int sh_public(void) { return 0; }
char *strdup(const char *);
char *sh_copy(const char *text) { return strdup(text); }
C
cat >"$work/shoal.h" <<'C'
SHOAL_API int shoal_public(void);
SHOAL_API int shoal_missing(const char *text,
                            int (*callback)(int));
C
echo 'int sh_used(void); int main(void) { return sh_used(); }' >"$work/main.c"
echo 'V1 { global: shoal_*; }; SHOAL_0.1 { global: sh_public; };
    SHOAL_PRIVATE_0.1.0 { global: sh_*; local: *; };' >"$work/map"
bad=$work/libbad.so
build_bad() {
    cd "$work" && "$cc" -shared -fPIC other.c -o libother.so &&
        "$cc" -c -fPIC bad.c && ar rc bad.a bad.o &&
        "$cc" -shared -Wl,--version-script=map bad.o ./libother.so -o libbad.so &&
        "$cc" main.c ./libbad.so ./libother.so -o main &&
        "$cc" -shared -fPIC other.c -Wl,-soname,libblas.so.3 -o libblas.so &&
        "$cc" -shared -fPIC bad.c ./libblas.so -o libfast.so
}
if (build_bad); then
    finds "a name without a prefix" '^fail$' foreign "$work/bad.a"
    finds "an export that the header lacks" '> shoal_undeclared' off_header \
        "$work/shoal.h" "$bad"
    finds "a function that the library lacks" '< shoal_missing' off_header \
        "$work/shoal.h" "$bad"
    finds "a public name under another version" '^shoal_public' misversioned "$bad"
    finds "a private name among the public" '^sh_public' misversioned "$bad"
    finds "an internal that nobody uses" '^sh_public$' unused "$bad" "$work/main"
    finds "an internal that may be static" '^sh_public$' could_be_static "$work" \
        "$work/bad.a"
    finds "a program that uses an internal" '^sh_used$' private_uses "$work/main"
    finds "a library too many" 'libother' needs_more "$bad"
    finds "memory that is no context's" '^bad.o:strdup$' plain_memory "$work/bad.a"
    finds "who needs a BLAS" 'libblas' needs_blas "$work/libfast.so"
    [ ! -e "$build/libshoal-mpi.so" ] ||
        finds "who needs MPI" libshoal-mpi needs_mpi "$build/libshoal-mpi.so"
    report "and nothing else" "$(unused "$bad" "$work/main" | grep sh_used
        off_header "$work/shoal.h" "$bad" | grep shoal_public)"
else
    report "a wrong library can be built" "it cannot"
fi

# ---- The libraries ---------------------------------------------------------------------
report "libshoal needs nothing else" "$(needs_more "$build/libshoal.so")"
report "no library needs a BLAS" \
    "$(needs_blas "$build"/libshoal{,-models,-speech,-train,-mpi}.so "$build/shoal")"
mpi=() # not below any other library
if [ -e "$build/libshoal-mpi.so" ]; then
    mpi=("$build/libshoal-mpi.so")
    report "libshoal-mpi.a: prefixes" "$(foreign "$build/libshoal-mpi.a")"
    report "libshoal-mpi exports its header" \
        "$(off_header "$include/shoal_mpi.h" "${mpi[0]}")"
    report "libshoal-mpi: versions" "$(misversioned "${mpi[0]}")"
    report "nobody else needs MPI" \
        "$(needs_mpi "$build"/libshoal{,-models,-speech,-train}.so "$build/shoal")"
else
    skip "libshoal-mpi" "it is not built"
fi
above=()
for name in shoal-train shoal-speech shoal-models shoal; do
    library=$build/lib$name.so
    [ -e "$library" ] || { skip "lib$name" "it is not built"; continue; }
    report "lib$name.a: prefixes" "$(foreign "$build/lib$name.a")"
    more=()
    [ $name != shoal ] || more=("$include"/shoal_{transport,inspect}.h)
    report "lib$name exports its header" \
        "$(off_header "$include/${name/-/_}.h" "$library" "${more[@]}")"
    report "lib$name: versions" "$(misversioned "$library")"
    report "lib$name has no memory but a context's" "$(plain_memory "$build/lib$name.a")"
    if [ ${#above[@]} = 0 ] && [ $name != shoal-train ]; then
        skip "lib$name: internals" "what would use them is not built"
    else
        report "lib$name exports internals that are used" \
            "$(unused "$library" "${above[@]}" "${mpi[@]}")"
    fi
    above+=("$library")
done
[ ${#above[@]} -lt 3 ] || report "internals with one user are static" \
    "$(could_be_static "$source" "${above[@]/%.so/.a}" "${mpi[@]/%.so/.a}")"
[ ! -e "$build/shoal" ] ||
    report "the program uses the headers alone" "$(private_uses "$build/shoal")"
finish
