# declared CC HEADER...: the functions that public headers declare, without those of
# included headers.
declared() {
    local cc=$1
    shift
    sed '/^#include/d' "$@" |
        "$cc" -E -P -w -D'SHOAL_API=__attribute__((visibility("default")))' -x c - |
        tr '\n' ' ' | tr ';' '\n' |
        sed -nE 's/.*visibility\("default"\)\)\)[^(]*\b(shoal_[a-z0-9_]+) ?\(.*/\1/p' |
        sort -u
}
