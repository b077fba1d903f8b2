#!/bin/bash
# Help, manual pages and completion.
. "$(dirname "$0")/lib/helpers.sh"
commands=$(shoal --help | sed -n 's/^  \([a-z]\{3,\}\) .*/\1/p' | grep -vx shoal)
shown() { shoal "$1" --help | grep -o '^  \(-., \|    \)--[a-z-]*' | grep -o -- '--.*'; }

# ---- Help
check "there are commands" [ "$(echo "$commands" | wc -l)" -ge 12 ]
for command in $commands; do
    shoal "$command" --help >asked
    expect "help $command" 0 "usage: shoal $command" shoal help "$command"
    check "help $command is its --help" cmp asked out
    check "help $command leaves exit codes to the general help" \
        bash -c '! grep -q "exit codes:" out'
done
shoal --help >asked
expect "help alone" 0 "exit codes:" shoal help
check "help alone is --help" cmp asked out
expect "help of nothing near" 2 "commands: attend, train" shoal help knitting
expect "help of a misspelt command" 2 "did you mean attend? Commands: attend" \
    shoal help atend
expect "help of two commands" 2 "unexpected argument" shoal help attend bench

# ---- Manual pages and completions
check "pages and completions are made" shoal _manual . 2026-01-02
cat tables.bash "$root/cli/completion.bash" >shoal.bash
expect "_manual without a folder" 2 "_manual DIR DATE" shoal _manual
expect "_manual into nothing" 4 "cannot be written" shoal _manual nowhere 2026-01-02
version_is_one() { # that of the macros, perhaps with a suffix such as rc1
    local numbers
    numbers=$(sed -nE 's/^#define SHOAL_VERSION_(MAJOR|MINOR|PATCH) //p' \
        "$root/include/shoal.h" | paste -sd.)
    [[ $(shoal --version) =~ ^shoal\ ${numbers//./\\.}(rc[0-9]+)?$ ]]
}
check "the version is one" version_is_one
check "CHANGELOG's latest release is it" [ "$(shoal --version)" = \
    "shoal $(sed -n 's/^## \([0-9][^ ]*\).*/\1/p' "$root/CHANGELOG.md" | head -n 1)" ]

# lacks FILE WORD...: the words that are not in the file.
lacks() {
    printf '%s\n' "${@:2}" | grep -vxF -f <(grep -o -- '--[a-z-]*' "$1")
}
for command in $commands; do
    options=$(shown "$command")
    sed 's/\\-/-/g' "shoal-$command.1" >plain
    # shellcheck disable=SC2086 # several words, split on purpose
    report "shoal-$command.1 has every option" "$(lacks plain $options)"
    check "shoal.1 names shoal-$command" grep -qF "shoal\\-$command (1)" shoal.1
done
check "shoal.1 has the exit codes" grep -q "EXIT STATUS" shoal.1
for page in shoal*.1; do
    if command -v groff >/dev/null; then
        report "$page is good groff" \
            "$(groff -man -ww -Tascii -P-bcou "$page" 2>&1 >rendered)"
        check "$page has a text" grep -q SYNOPSIS rendered
    fi
    command -v mandoc >/dev/null &&
        report "$page is good mandoc" "$(mandoc -T lint -W warning "$page")"
done

# ---- bash
# completed WORD...: completions of the last word, one per line.
completed() (
    . ./shoal.bash
    COMP_WORDS=(shoal "$@") COMP_CWORD=$#
    _shoal
    printf '%s\n' "${COMPREPLY[@]}"
)
offers() { completed "${@:2}" | grep -qxF -e "$1"; } # OFFER WORD...
only() { [ "$(completed "${@:2}" | paste -sd' ')" = "$1" ]; } # OFFERS WORD...
for command in $commands; do
    check "bash: shoal $command" offers "$command" "${command::1}"
    report "bash: $command has every option" \
        "$(diff <(shown "$command" | sort) <(completed "$command" -- | sort))"
done
kinds=$(shoal kinds --json | sed -nE 's/.*"name": "([A-Za-z-]+)".*/\1/p' |
    sed 's/-[A-Zk]$//')
for kind in $kinds; do
    check "bash: attend $kind" bash -c \
        'grep -qxE -e "$1(-[0-9]+)?"' - "$kind" < <(completed attend "")
done
mkdir folder
check "bash: files after the kind" offers shoal.1 attend full sho
check "bash: a number is no word" offers full attend --seed 1 fu
check "bash: kinds with commas" offers full,shoal eval --attention full,sho
check "bash: choices" only "srt" transcribe --format s
check "bash: choices after =" only "srt" transcribe --format = s
check "bash: folders" only folder quality ""
check "bash: help" only "attend" help at
check "bash: copy" only copy train c
check "bash: speech" only speech train sp
check "bash: nothing more" only "" bench ""

# ---- fish and zsh, if they are installed
if command -v fish >/dev/null; then
    fish_offers() { # OFFER LINE
        fish -c 'source shoal.fish; complete -C $argv[1]' "$2" | cut -f 1 |
            grep -qxF -e "$1"
    }
    for command in $commands; do
        report "fish: $command has every option" "$(diff <(shown "$command" | sort) \
            <(fish -c 'source shoal.fish; complete -C "shoal $argv[1] --"' "$command" |
                cut -f 1 | sort))"
    done
    check "fish: commands" fish_offers attend "shoal "
    check "fish: kinds" fish_offers shoal "shoal attend "
    check "fish: files" fish_offers shoal.1 "shoal attend full "
    check "fish: kinds with commas" fish_offers full,auto "shoal eval --attention full,"
    check "fish: an apostrophe" bash -c 'fish -c "source shoal.fish
        complete -C \"shoal eval --batc\"" | grep -qF "training'"'"'s size"'
else
    skip fish "it is not installed"
fi
tools <<'PYTHON'
import pty, select
# The completions that an interactive zsh shows for a line contain the word, within a
# minute.
def zsh_offers(word, line):
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="dumb", COLUMNS="200", LINES="80")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    def until(text):
        seen, end = b"", time.time() + 60
        while text.encode() not in seen and time.time() < end:
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 65536)
        return text.encode() in seen
    os.write(terminal, b"fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; "
                       b"LISTMAX=0; echo rea''dy\n")
    good = until("ready") and os.write(terminal, line.encode() + b"\t\t") and until(word)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sys.exit(0 if good else "not offered")
PYTHON
if command -v zsh >/dev/null; then
    check "zsh: it is good zsh" zsh -n _shoal
    for command in $commands; do
        sed -n "/^$command)/,/;;/p" _shoal >plain
        # shellcheck disable=SC2046
        report "zsh: $command has every option" "$(lacks plain $(shown "$command"))"
    done
    check "zsh: commands" tool zsh_offers "attend      --" "shoal "
    check "zsh: kinds" tool zsh_offers i-clustered-100 "shoal attend "
    check "zsh: options" tool zsh_offers "--save-top" "shoal attend --"
    check "zsh: choices" tool zsh_offers "vtt" "shoal transcribe --format "
    check "zsh: an apostrophe" tool zsh_offers "training's size" "shoal eval --batc"
else
    skip zsh "it is not installed"
fi
finish
