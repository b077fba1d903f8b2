# Shared by the test scripts. A script prints a line "ok NAME" or "not ok NAME" per case,
# and details of failures on lines that begin with #; `finish` is its last line. $work is
# a temporary folder, which is removed at the end.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

finish() { exit $failed; }
skip() { echo "ok $1 # SKIP $2"; } # NAME WHY

# report NAME PROBLEM: the case passes if the problem is empty.
report() {
    if [ -z "$2" ]; then echo "ok $1"; return; fi
    echo "not ok $1"
    head -n 20 <<<"$2" | cut -c 1-500 | sed 's/^/# /'
    failed=1
}

# check NAME COMMAND...: the command succeeds.
check() {
    local name=$1 code
    shift
    "$@" >"$work/check.log" 2>&1
    code=$?
    [ $code = 0 ] || echo "exit code $code" >>"$work/check.log"
    report "$name" "$([ $code = 0 ] || tail -n 20 "$work/check.log")"
}
