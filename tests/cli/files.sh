#!/usr/bin/env bash
# Files of the commands of the program given as $1: no output overwrites an input or
# another output under any name; standard output, links, closed pipes, and unwritable
# places.
. "$(dirname "$0")/lib/helpers.sh"

tools <<'PYTHON'
def make(path, shape, seed):
    draw = random.Random(seed)
    shape = [int(n) for n in shape.split(",")]
    write(path, shape, [draw.gauss(0, 1) for _ in range(math.prod(shape))])

def shape(path, wanted):
    sys.exit(0 if ",".join(map(str, read(path)[0])) == wanted else str(read(path)[0]))
PYTHON
tool make q.npy 1,2,9,6 1
tool make k.npy 1,2,7,6 2
tool make v.npy 1,2,7,5 3
mkdir sub real
cp q.npy k.npy v.npy sub
kind="clustered-3"
attend() { shoal attend $kind q.npy k.npy v.npy "$@"; }
same() { cmp "$1" "sub/$1"; } # the input is unchanged
is_link() { [ -L "$1" ]; }

# ---- The same file ---------------------------------------------------------------------
expect "an output over an input" 2 "would overwrite the input q.npy" attend -o q.npy
expect "spelled otherwise" 2 "would overwrite the input k.npy" attend -o ./sub/../k.npy
ln -s v.npy soft.npy
ln q.npy hard.npy
expect "by a soft link" 2 "would overwrite the input v.npy" attend -o soft.npy
expect "by a hard link" 2 "would overwrite the input q.npy" attend -o hard.npy
for one in q k v; do check "$one is as it was" same $one.npy; done
expect "two outputs" 2 "two outputs would be written to o.npy" attend -o o.npy \
    --save-groups o.npy
expect "two outputs, spelled otherwise" 2 "one file: o.npy is ./o.npy" attend -o o.npy \
    --save-groups ./o.npy
ln -s real link
expect "two outputs, by a folder's link" 2 "one file" attend -o real/o.npy \
    --save-groups link/o.npy
ln -s real/o.npy ahead.npy
expect "two outputs, by a link to a file that is not there" 2 "one file" attend \
    -o real/o.npy --save-groups ahead.npy
expect "standard output over an input" 2 "standard output would overwrite the input" \
    sh -c '"$1" attend full q.npy k.npy v.npy --check >>q.npy' - "$program"
check "nothing was written" sh -c '! ls o.npy real/o.npy 2>/dev/null'
check "the same device twice" attend -o /dev/null --save-groups /dev/null
expect "no name" 2 "--output is empty; is an environment variable unset?" attend -o ''
expect "no second name" 2 "--save-groups is empty" attend -o o.npy --save-groups ''
expect "an output twice" 2 "--output is given twice" attend -o o.npy --output p.npy
expect "no instruction set" 2 "--isa is empty" attend -o o.npy --isa=
expect "no input" 2 "an argument is empty" shoal attend full "" k.npy v.npy \
    -o o.npy
expect "no command" 2 "no command" shoal ''

# ---- Links -----------------------------------------------------------------------------
check "through a link that leads nowhere" attend -o ahead.npy
check "the link stays" is_link ahead.npy
check "and the file is there" tool shape real/o.npy 1,2,9,5
ln -s nowhere/o.npy astray.npy
expect "a link into no folder" 4 "astray.npy cannot be written: No such file" attend \
    -o astray.npy
ln -s circle.npy circle.npy
expect "a link to itself" 4 "circle.npy cannot be written: Too many levels" attend \
    -o circle.npy

# ---- Standard output -----------------------------------------------------------------
check "an array into a pipe" bash -c \
    'set -o pipefail; "$1" attend full q.npy k.npy v.npy -o /dev/stdout 2>report |
        cat >piped.npy' - "$program"
attend_full() { shoal attend full q.npy k.npy v.npy "$@"; }
attend_full -o full.npy >/dev/null
check "is the array and nothing else" cmp piped.npy full.npy
check "the report stands on stderr" grep -q "wrote /dev/stdout" report
check "an array into a file" bash -c \
    '{ printf head; "$1" attend full q.npy k.npy v.npy -o /dev/stdout --json; } \
        >appended 2>report' - "$program"
check "goes where the file stood" bash -c 'cmp appended <(printf head; cat full.npy)'
check "the JSON stands on stderr" tool field report "d['outputs'] == ['/dev/stdout']"
check "both into one pipe" bash -c \
    '"$1" attend full q.npy k.npy v.npy -o /dev/stdout 2>&1 | cmp - full.npy' - "$program"
check "the same file as standard output" bash -c \
    '"$1" attend full q.npy k.npy v.npy -o twice.npy >twice.npy 2>/dev/null &&
        cmp twice.npy full.npy' - "$program"
small="--lengths 8 --kinds full --repeats 1 --heads 1 --dim 4 --threads 1"
check "a table into a pipe" bash -c \
    '"$1" bench $2 --csv /dev/stdout 2>report | head -1 | grep -q "^kind\|^length"' - \
    "$program" "$small"
check "its report stands on stderr" grep -q "All times are of verified" report

# ---- Readers who leave, pictures, logs ----------------------------------------------
mkdir dumps
cp q.npy dumps/layer0_q.npy
cp k.npy dumps/layer0_k.npy
cp v.npy dumps/layer0_v.npy
printf '{"config": {}}\n{"step": 1, "loss": 1, "accuracy": 0}\n' >log.jsonl
if shoal plot log.jsonl -o curve.svg 2>plot.err; then
    # Writes to a closed pipe: COMMAND...
    unread() { python3 -c 'import os, subprocess, sys
ours, theirs = os.pipe()
os.close(ours)
sys.exit(subprocess.call(sys.argv[1:], stdout=theirs) != -13)' "$program" "$@"; }
    check "quality without a reader" unread quality dumps dumps --json --repeats 1 \
        --plot unread.svg
    check "leaves its picture" grep -q "<svg" unread.svg
    check "bench without a reader" unread bench $small --plot bench.svg --csv bench.csv
    check "leaves its files" grep -q "<svg" bench.svg
    check "both" grep -q full bench.csv
    check "kinds without a reader end at once" unread kinds
    ln -s real/new.svg ahead.svg
    check "a picture through a link that leads nowhere" shoal plot log.jsonl -o ahead.svg
    check "the picture's link stays" is_link ahead.svg
    check "and the picture is there" grep -q "<svg" real/new.svg
    ln -s log.jsonl log.svg
    expect "a picture over its log" 2 "would overwrite the input log.jsonl" \
        shoal plot log.jsonl -o log.svg
    ln -s dumps/layer0_k.npy array.png
    expect "a picture over an array" 2 "would overwrite the input dumps/layer0_k.npy" \
        shoal quality dumps --plot array.png
    check "the array is as it was" cmp dumps/layer0_k.npy k.npy
    expect "a log without an end" 3 "line 1 is not a JSON object" \
        limited plot /dev/zero -o zero.svg
    cp log.jsonl $'caf\351.jsonl'
    check "a name that is no UTF-8" shoal plot $'caf\351.jsonl' -o latin.svg
    printf '{"config": {"attention": "a%s"}}\n' "$(printf '\303\251%.0s' {1..99})" |
        cat - log.jsonl >long.jsonl
    check "a name that is cut" shoal plot long.jsonl -o long.svg
    check "a picture that is only an ending" shoal plot log.jsonl -o .svg
    expect "a picture over a table" 2 "two outputs" shoal bench --csv b.svg --plot ./b.svg
else
    skip "pictures" "this build has no cairo"
fi

# ---- Names that command a terminal --------------------------------------------------
red=$'red\033[31m\302\233\n.npy'
expect "an input's name" 3 'red?[31m???.npy: cannot open it' attend -o o.npy \
    --groups "$red"
expect "an output's name" 4 'red?[31m???.npy/x cannot' attend -o "$red/x"
expect "a word" 2 '?[31m' shoal $'\033[31m'

# ---- Places that cannot be written to -----------------------------------------------
expect "no such folder" 4 "nowhere/o.npy cannot be written" attend -o nowhere/o.npy
expect "a folder" 4 "is a directory" attend -o sub
expect "a folder that is a file" 4 "Not a directory" attend -o q.npy/o.npy
expect "a name beyond measure" 4 "File name too long" attend \
    -o "$(printf 'x%.0s' {1..300}).npy"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    chmod 777 . && chmod 755 "$work"
    nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
    if nobody "$program" --version >/dev/null 2>&1; then
        mkdir closed && cp full.npy closed && chmod 555 closed
        expect "a closed folder" 4 "closed/o.npy cannot be written: Permission" \
            nobody "$program" attend full q.npy k.npy v.npy -o closed/o.npy
        cp full.npy locked.npy && chmod 444 locked.npy && chmod 777 .
        expect "a locked file" 4 "locked.npy cannot be written: Permission" \
            nobody "$program" attend full q.npy k.npy v.npy -o locked.npy
        check "is as it was" cmp locked.npy full.npy
    fi
fi
if [ "$(id -u)" = 0 ] && mkdir full && mount -t tmpfs -o size=16k none full 2>/dev/null
then
    tool make large.npy 1,1,4096,2 5
    expect "a full disk" 4 "full/o.npy: cannot write it: No space" \
        shoal attend full large.npy large.npy large.npy -o full/o.npy
    expect "a full disk: train" 4 "No space" shoal train copy --layers 1 --steps 3 \
        --out full/run
    expect "a full disk: bench" 4 "No space" shoal bench $small --csv full/b.csv \
        --plot full/b.png
    report "leaves nothing half written" "$(find full -name '*.npy' -o -name '*.tmp')"
    umount full
else
    skip "a full disk" "no tmpfs can be mounted here"
fi
finish
