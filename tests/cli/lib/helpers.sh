# Every script of tests/cli begins with: . "$(dirname "$0")/lib/helpers.sh"
# The script gets the program as $1 and runs in $work; its cases use `check` and `expect`.
[ $# -ge 1 ] || { echo "usage: $(basename "$0") PROGRAM"; exit 2; }
program=$(realpath "$1")
lib=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$lib/../../report.sh"
root=$(dirname "$(dirname "$(dirname "$lib")")")
data=${SHOAL_DATA:-$root/../shared/data}
cd "$work" || exit 1
unset SHOAL_ISA SHOAL_SLICE_ABOVE SHOAL_MODEL SHOAL_SPEECH_MODEL SHOAL_TEXT_MODEL
# cairo and fontconfig keep caches until the end of the program; other leaks count.
printf 'leak:libfontconfig\nleak:libcairo\n' >leaks
LSAN_OPTIONS=suppressions=$work/leaks:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}
export LSAN_OPTIONS

shoal() { "$program" "$@"; }
into() { "${@:2}" >"$1"; } # FILE COMMAND...
sanitized=no
ldd "$program" | grep -q libasan && sanitized=yes
# limited ARGUMENT...: the program with 2 GB of memory; a sanitizer needs more addresses.
limited() {
    if [ $sanitized = yes ]; then shoal "$@"; return; fi
    (ulimit -v 2000000 && exec "$program" "$@")
}
absent() { [ ! -e "$1" ]; }

# run ARGUMENT...: the program; its output is left in `out` and `err`.
run() {
    local code
    shoal "$@" >out 2>err
    code=$?
    [ $code = 0 ] || cat err
    return $code
}
says() { grep -qF -e "$1" out err; } # WORDS: whether they are in that output

# expect NAME CODE WORDS COMMAND...: the command exits with the code and prints the words,
# on standard error if the code is not 0. Its output is left in `out` and `err`.
expect() {
    local name=$1 code=$2 words=$3 got heard=err problem=""
    shift 3
    "$@" >out 2>err
    got=$?
    [ "$code" = 0 ] && heard="out err"
    if [ $got != "$code" ]; then
        problem="exit code $got, not $code"
    elif grep -q "Sanitizer:\|runtime error:" err; then
        problem="a sanitizer speaks"
    elif ! cat $heard | grep -qF -e "$words"; then
        problem="\"$words\" is not there"
    fi
    report "$name" "${problem:+$(echo "$problem"; head -n 9 err out)}"
}

# killed_to_the_end MOST COMMAND...: a training in the folder `killed`, killed at random
# moments and resumed with --resume until it ends.
killed_to_the_end() {
    local most=$1 kills=0 code=1 before pid
    shift
    mkdir killed && touch killed/log.jsonl
    for ((i = 0; i < most; i++)); do
        before=$(wc -l <killed/log.jsonl)
        "$@" --out killed --resume --save-seconds 0 >out 2>&1 &
        pid=$!
        # Until it has written something new, or earlier, and a moment more.
        for ((j = 0; j < 1000 && RANDOM % 50; j++)); do
            [ "$(wc -l <killed/log.jsonl)" -le "$before" ] || break
            kill -0 $pid 2>/dev/null || break
            sleep 0.005
        done
        sleep "0.0$((RANDOM % 30 + 10))"
        if kill -9 $pid 2>/dev/null; then kills=$((kills + 1)); fi
        wait $pid 2>/dev/null
        code=$?
        [ $code = 137 ] || break
    done
    report "killed and resumed to the end ($kills times)" \
        "$([ $code = 0 ] || { echo "exit code $code:"; head -c 300 out; })"
}

# tools <<'PYTHON': adds functions of the script to those of tools.py, for tool FUNCTION
# ARGUMENT...
tools() {
    { cat "$lib/tools.py" -; echo 'globals()[sys.argv[1]](*sys.argv[2:])'; } >tool.py
}
tool() { python3 tool.py "$@"; }
json() { tool field out "$1"; } # EXPRESSION of d, the JSON of the last command
