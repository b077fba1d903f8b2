#!/bin/bash
# No private words in text that users read: pages (*.md), public headers, and string
# literals of C code (messages and help); and fewer still in code, comments included.
# docs/style.md has the terms and the style.
#     words.sh ROOT      checks the tree, after checking that it can find errors
# Exempt are docs/style.md, which quotes such words, and docs/notebook and CHANGELOG.md,
# which keep their original text.
. "$(dirname "$0")/../report.sh"

# An extended regular expression, case-insensitive, a tab, and a replacement. Keep the
# list short: words that came back, or that only the project's authors understand.
words="\
\\bbrains\\b	bfloat16 or bf16: the established name of the format
of two the even one	ties to even: the established term
(it )?knows why	say where the reason is: 'see its message'
none of its enumeration	'invalid value for NAME': a message names what was wrong
what stands	name the thing: 'the text in brackets', 'the code around'
(first|second) (form|generation) of .?shoal	q-clustered or shoal: a kind has one name
the first form\\b	q-clustered: a kind has one name
nobody links	'Link only what you use.'
what (is|there is) to know about	'Properties of'
was run are	a sentence has a noun for its subject: 'We ran'
rest follows	'the corrected remainder': the glossary's term
who(ever)? (types|wants|links|builds|includes) 	'if you ...': address the reader
side-by-side windows|windows side by side	'windows processed in parallel'"

# The same for code, in the rooms whose comments are plain already (add the others when
# they are): descriptions in place of terms.
code_words="\
\\bso many\\b	'number of windows', 'at most 64': name the quantity
side by side	'in parallel' or 'concatenated': the two are different things
(^|[^a-z])(dies|die) (of|where)\\b	'exits if': the established term
(gives?|given|giving) back	'frees', 'returns' or 'restores'
there twice	'duplicate': the established term
at the most	'at most'
the inside of	'internals of'
NULL: (none|no )	'NULL if there is none'
NULL is legal	'NULL is allowed'
as (they|it) lies?\\b	'in the order of the file', 'in place'
whoever|who (has|wants|asks)\\b	name the caller, the thread or the user
\\b(in|of|are) halves\\b	half precision: the established term
[^e] (is|are) no (number|utf-8|language model|recording|unit|recogniser)	'is not ...'
groups? of queries	clusters of queries: the glossary's term"
plain_rooms="cli lab train exact models/text models/files speech/words speech/audio
    speech/recogniser src/base src/cluster mpi tests/core tests/models tests/speech
    tests/train examples python/shoal"

pages() { # of the tree $1, without what was built or belongs to an editor
    find "$1" \( -name 'build*' -o -name '.?*' \) ! -path "$1" -prune -o \
        -name '*.md' -print |
        grep -vE '/docs/style\.md$|/docs/notebook/|/CHANGELOG\.md$'
}

# What users read of the tree $1, as lines "FILE:LINE:TEXT"; of C code only the literals.
texts() {
    { pages "$1"; find "$1/include" -name '*.h' 2>/dev/null; } | xargs grep -Hn ''
    (cd "$1" && find src models speech train mpi cli lab -name '*.c' 2>/dev/null) |
        sed "s|^|$1/|" | xargs -r grep -Hn '"' | grep -vE ':[0-9]+: *(#|/?\*)' |
        sed -E 's/^([^:]*:[0-9]+:)[^"]*("([^"\\]|\\.)*").*/\1\2/'
}

# All text of the rooms of tree $1 that have plain comments.
code() {
    # shellcheck disable=SC2086 # several folders, split on purpose
    (cd "$1" && find $plain_rooms -name '*.[ch]' -o -name '*.py') 2>/dev/null |
        sed "s|^|$1/|" | xargs -r grep -Hn ''
}

check_list() { # LIST FILE: prints lines of the file that have words of the list
    local pattern reason
    while IFS=$'\t' read -r pattern reason; do
        grep -iE "^[^:]*:[0-9]+:.*($pattern)" "$2" |
            sed -E "s/^([^:]*:[0-9]+):.*/\1: private words. Instead: ${reason//\//\\/}/"
    done <<<"$1"
}

check_tree() { # $1 the root; prints what is wrong
    texts "$1" >"$work/texts"
    code "$1" >"$work/code"
    check_list "$words" "$work/texts"
    check_list "$words"$'\n'"$code_words" "$work/code"
}

expect() { # $1 good or bad, $2 file, $3 its text: it must be judged so
    local tree=$work/tree verdict=good
    mkdir -p "$tree/$(dirname "$2")"
    echo "$3" >"$tree/$2"
    [ -n "$(check_tree "$tree")" ] && verdict=bad
    rm -r "$tree"
    [ $verdict = "$1" ] || report "$2: $3 is $1" "it was called $verdict"
}

check_itself() {
    expect bad README.md 'Arrays may be Brains.'
    expect bad docs/kinds.md 'rounded, of two the even one'
    expect bad include/shoal.h '/* What stands here */'
    expect bad src/a.c '    return fail("rank 3 refused; it knows why");'
    expect good src/a.c '    x = 1; /* what stands here is for developers */'
    expect bad cli/a.c '    x = 1; /* what stands here is checked too */'
    expect bad cli/a.c '/* NULL is legal. */'
    expect bad exact/a.h '/* so many beams, side by side */'
    expect bad python/shoal/a.py '    # gives back its memory'
    expect good cli/a.c '/* NULL is allowed; frees what it returns. */'
    expect good docs/style.md 'instead of: it knows why'
    expect good docs/notebook/A.md 'the first form of shoal'
    expect good CHANGELOG.md 'brains'
    expect good README.md 'bfloat16, brainstorm, ties to even'
}

check_itself
[ $failed = 0 ] && report "the check finds what it should" ""
report "pages, headers, messages and comments have no private words" \
    "$(check_tree "$1")"
finish
