#!/bin/bash
# Every relative link in a page (*.md) leads to an existing file, and so does every path
# of the tree that a page names in its text; every function that it names is in the code.
# docs/notebook/ and CHANGELOG.md describe earlier code: in the former only links are
# checked, in the latter links and paths.
#     links.sh ROOT      checks the tree, after checking that it can find errors
. "$(dirname "$0")/../report.sh"
folders="bench cli cmake docs exact examples include lab models mpi python"
folders+=" speech src tests tools train"

pages() { # the pages of the tree $1, without built ones and those of editors
    find "$1" \( -name 'build*' -o -name '.?*' \) -prune -o -name '*.md' -print
}

links() { # targets of the links of page $1, without anchors and external links
    grep -oE '\]\([^)[:space:]]+' "$1" | sed -E 's/^\]\(//; s/#.*//' |
        grep -vE '^$|^[a-z]+:' | sort -u
}

# A name in capitals is a placeholder (src/kernels/table_NAME.c), unless it is a page.
named() { # the paths from the root that page $1 names
    grep -oE "(^|[^A-Za-z0-9_./-])(${folders// /|})/[A-Za-z0-9_./-]+\.[a-z]+" "$1" |
        sed -E 's/^[^A-Za-z]//' |
        grep -E '\.(md|c|h|sh|py|txt|json|png|svg|cmake)$' |
        grep -E '\.md$|CMakeLists\.txt$|^[^A-Z]*$' | sort -u
}

functions() { # names in backticks of page $1 that have a prefix of Shoal's functions
    grep -oE '`sh(oal)?_[a-z0-9_]*[a-z0-9](\([^`]*)?`' "$1" | tr -d '`' | sed 's/(.*//' |
        sort -u
}

known() { # all such names in the code of tree $1
    # shellcheck disable=SC2086 # several folders, split on purpose
    (cd "$1" && find $folders \( -name '*.[ch]' -o -name '*.py' -o -name '*.cmake' \) \
        -print0 2>/dev/null) | (cd "$1" && xargs -0r grep -ohE '\bsh(oal)?_[a-z0-9_]+') |
        sort -u
}

check_page() { # $1 the root, $2 the page; prints what is wrong
    local target
    while read -r target; do
        [ -e "$(dirname "$2")/$target" ] || echo "$2: the link to $target leads nowhere"
    done < <(links "$2")
    [[ $2 == */docs/notebook/* ]] && return
    while read -r target; do
        [ -e "$1/$target" ] || echo "$2: there is no $target"
    done < <(named "$2")
    [[ $2 == */CHANGELOG.md ]] && return
    while read -r target; do
        echo "$2: the code has no $target"
    done < <(functions "$2" | comm -23 - "$work/known")
}

check_tree() { # $1 the root; prints what is wrong
    local page
    known "$1" >"$work/known"
    while read -r page; do check_page "$1" "$page"; done < <(pages "$1" | sort)
}

expect() { # $1 good or bad, $2 page, $3 text: its verdict beside src/a.c
    local tree=$work/tree verdict=good
    mkdir -p "$tree/src" "$tree/$(dirname "$2")"
    echo 'int sh_here(void);' >"$tree/src/a.c"
    echo "$3" >"$tree/$2"
    [ -n "$(check_tree "$tree")" ] && verdict=bad
    rm -r "$tree"
    [ $verdict = "$1" ] || report "$2: $3 is $1" "it was called $verdict"
}

check_itself() {
    expect good A.md '[one](src/a.c), [two](https://nowhere.example/b.c), [3](#here)'
    expect good docs/A.md '![a](../src/a.c#L3), `src/a.c`, src/a_NAME.c, other/src/b.c'
    expect good docs/notebook/A.md 'src/b.c was there then'
    expect good build/A.md '[one](src/b.c)'
    expect good A.md '`sh_here`, `shoal_some_*`, sh_gone without ticks'
    expect good CHANGELOG.md '`sh_gone`'
    expect bad docs/A.md 'calls `sh_gone`'
    expect bad docs/A.md 'calls `sh_gone(1)`'
    expect bad A.md 'text [one](src/b.c)'
    expect bad docs/A.md '[one](src/a.c)'
    expect bad docs/notebook/A.md '[one](B.md)'
    expect bad docs/A.md '(docs/B.md)'
    expect bad docs/A.md 'src/b.c'
}

check_itself
[ $failed = 0 ] && report "the check finds what it should" ""
report "links, paths and functions in pages are there" "$(check_tree "$1")"
finish
