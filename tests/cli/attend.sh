#!/usr/bin/env bash
# Drives the program given as $1 and compares what it writes with plain Python.
# Prints "ok NAME" or "not ok NAME" per check; the exit code is 1 if any failed.
set -u
[ $# -ge 1 ] || { echo "usage: test_cli.sh PROGRAM"; exit 2; }
program=$(realpath "$1")
corpus=$(dirname "$(realpath "$0")")/corpus/npy
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
unset SHOAL_ISA SHOAL_SLICE_ABOVE
failed=0

cat > tool.py <<'PYTHON'
import json, math, os, random, signal, struct, subprocess, sys, time

def read(path):
    raw = open(path, "rb").read()
    size = struct.unpack("<H", raw[8:10])[0]
    head = eval(raw[10:10 + size])
    letter = head["descr"][1]
    return list(head["shape"]), list(struct.unpack("<%d%s" % ((len(raw) - 10 - size) // 4,
                                                              letter), raw[10 + size:]))

def write(path, shape, values, letter="f"):
    head = ("{'descr': '<%s4', 'fortran_order': False, 'shape': (%s,), }"
            % (letter, ", ".join(map(str, shape)))).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head)
        out.write(struct.pack("<%d%s" % (len(values), letter), *values))

def make(path, shape, seed):
    draw = random.Random(seed)
    shape = [int(n) for n in shape.split(",")]
    write(path, shape, [draw.gauss(0, 1) for _ in range(math.prod(shape))])

def ints(path, shape, values):
    numbers = [[int(n) for n in text.split(",")] for text in (shape, values)]
    write(path, numbers[0], numbers[1], "i")

def zeros(path, shape):
    shape = [int(n) for n in shape.split(",")]
    write(path, shape, [0] * math.prod(shape))

def weights(q, k, scale, live):
    scores = [scale * sum(a * b for a, b in zip(q, row)) for row in k[:live]]
    if not scores:
        return []
    top = max(scores)
    parts = [math.exp(s - top) for s in scores]
    return [p / sum(parts) for p in parts]

# Full attention and the gradient of its values, with lengths and fewer key heads.
def reference(q, k, v, out, query_lengths="", key_lengths="", scale="0", dout="", dv=""):
    (B, H, N, D), q = read(q)
    (_, G, S, _), k = read(k)
    (_, _, _, E), v = read(v)
    nq = read(query_lengths)[1] if query_lengths else [N] * B
    nk = read(key_lengths)[1] if key_lengths else [S] * B
    scale = float(scale) or 1 / math.sqrt(D)
    dout = read(dout)[1] if dout else None
    result, grad = [], [0.0] * len(v)
    for b in range(B):
        for h in range(H):
            g = b * G + h // (H // G)
            keys = [k[(g * S + s) * D:][:D] for s in range(S)]
            for n in range(N):
                row = (b * H + h) * N + n
                a = weights(q[row * D:][:D], keys, scale, nk[b]) if n < nq[b] else []
                result += [sum(w * v[(g * S + s) * E + e] for s, w in enumerate(a))
                           for e in range(E)]
                for s, w in enumerate(a if dout else []):
                    for e in range(E):
                        grad[(g * S + s) * E + e] += w * dout[row * E + e]
    write(out, [B, H, N, E], result)
    if dv:
        write(dv, [B, G, S, E], grad)

def near(a, b, tolerance):
    (sa, a), (sb, b) = read(a), read(b)
    largest = max([abs(x) for x in b] + [1e-30])
    worst = max([abs(x - y) for x, y in zip(a, b)] + [0]) / largest
    good = sa == sb and worst <= float(tolerance)
    sys.exit(0 if good else "%s %s %g" % (sa, sb, worst))

def shape(path, wanted):
    sys.exit(0 if ",".join(map(str, read(path)[0])) == wanted else str(read(path)[0]))

def field(path, expression):
    d = json.load(open(path))
    sys.exit(0 if eval(expression, {"d": d}) else "not so: %s in %s" % (expression, d))

def holds(path, expression):
    sys.exit(0 if eval(expression, {"a": read(path)[1]}) else "not so: " + expression)

def interrupt(*command):
    child = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT,
                                                                       signal.SIG_DFL))
    time.sleep(0.4)
    child.send_signal(signal.SIGINT)
    sys.exit(child.wait() & 255)

globals()[sys.argv[1]](*sys.argv[2:])
PYTHON
tool() { python3 tool.py "$@"; }

report() { # status name
    if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; failed=1; fi
}
# check NAME COMMAND...: the command succeeds.
check() {
    local name=$1; shift
    "$@" > check.out 2> check.err; local status=$?
    [ $status -eq 0 ] || sed 's/^/# /' check.err
    report $status "$name"
}
# exits NAME CODE WORDS ARGUMENTS...: the program ends with the code, says the words (on
# either stream), and crashes not.
exits() {
    local name=$1 code=$2 words=$3; shift 3
    "$program" "$@" > exits.out 2> exits.err; local got=$?
    if [ $got -ne "$code" ]; then
        echo "# exit code $got, not $code"
        sed 's/^/# /' exits.err
    fi
    [ $got -eq "$code" ] && cat exits.out exits.err | grep -qF -e "$words"
    report $? "$name"
}
attend() { "$program" attend "$@"; }
absent() { [ ! -e "$1" ]; }

# ---- Help, versions, usage
exits help 0 "exit codes" --help
exits version 0 "shoal " --version
exits no-command 2 "--help"
exits unknown-command 2 "did you mean attend" atend
for command in attend kinds info demo; do
    exits "$command-help" 0 "usage: shoal $command" "$command" --help
done
exits help-shows-check-default 0 "256" attend --help
exits kinds 0 "i-clustered-C" kinds
exits info 0 "threads" info
check kinds-json sh -c '"$1" kinds --json > k.json' - "$program"
check kinds-json-rows tool field k.json \
    "len(d['kinds']) >= 6 and d['kinds'][0]['name'] == 'full'"
check info-json sh -c '"$1" info --json > i.json' - "$program"
check info-json-rows tool field i.json \
    "d['isa'] in d['isa_runnable'] and d['threads'] >= 1"

# ---- Arrays
tool make q.npy 2,4,9,6 1; tool make k.npy 2,2,7,6 2; tool make v.npy 2,2,7,5 3
tool make dout.npy 2,4,9,5 4
tool make s.npy 1,2,300,16 5; tool make sv.npy 1,2,300,16 6; tool make sd.npy 1,2,300,16 7
tool make sk.npy 1,2,300,16 8
tool ints ql.npy 2 9,4; tool ints kl.npy 2 3,7; tool ints long.npy 2 9,99
cp s.npy copy.npy

exits unknown-option 2 "did you mean --threads" attend full q.npy k.npy v.npy -o o.npy \
    --thread5 1
exits unknown-letter 2 "unknown option -x" attend full q.npy k.npy v.npy -x
exits value-missing 2 "needs a value" attend full q.npy k.npy v.npy -o
exits words-missing 2 "V.npy is missing" attend full q.npy k.npy -o o.npy
exits words-too-many 2 "one word too many" attend full q.npy k.npy v.npy w.npy -o o.npy
exits nothing-to-do 2 "nothing to do" attend full q.npy k.npy v.npy
exits bad-kind 2 "shoal kinds" attend ful q.npy k.npy v.npy -o o.npy
exits bad-clusters 2 "clustered" attend clustered-0 q.npy k.npy v.npy -o o.npy
exits bad-isa 2 "abacus" attend full q.npy k.npy v.npy -o o.npy --isa abacus
exits bad-threads 2 "--threads" attend full q.npy k.npy v.npy -o o.npy --threads many
exits bad-scale 2 "--scale" attend full q.npy k.npy v.npy -o o.npy --scale nan
exits bad-seed 2 "--seed" attend full q.npy k.npy v.npy -o o.npy --seed -1
exits bad-check 2 "--check" attend full q.npy k.npy v.npy --check=0
exits same-outputs 2 "two outputs" attend full q.npy k.npy v.npy -o o.npy --grad-q o.npy \
    --grad-out dout.npy
exits grad-without-out 2 "--grad-out" attend full q.npy k.npy v.npy --grad-q g.npy
exits groups-of-full 2 "no groups" attend full q.npy k.npy v.npy --save-groups g.npy
exits top-of-clustered 2 "no top keys" attend clustered-3 q.npy k.npy v.npy --save-top \
    g.npy
exits dash-for-full 2 "needs a file" attend full q.npy - v.npy -o o.npy
check no-output-after-usage absent o.npy

# ---- Full attention against Python
tool reference q.npy k.npy v.npy want.npy "" "" 0 dout.npy wantdv.npy
exits full 0 "workspace" attend full q.npy k.npy v.npy -o o.npy
check full-is-right tool near o.npy want.npy 1e-5
check full-scalar attend full q.npy k.npy v.npy -o o.npy --isa scalar --threads 1
check full-scalar-is-right tool near o.npy want.npy 1e-5
tool reference q.npy k.npy v.npy scaled.npy "" "" 0.9
check scale attend full q.npy k.npy v.npy -o o.npy --scale 0.9
check scale-is-right tool near o.npy scaled.npy 1e-5
tool reference q.npy k.npy v.npy padded.npy ql.npy kl.npy
check lengths attend full q.npy k.npy v.npy -o o.npy --query-lengths ql.npy \
    --key-lengths kl.npy
check lengths-are-right tool near o.npy padded.npy 1e-5
check gradients attend full q.npy k.npy v.npy -o o.npy --grad-out dout.npy --grad-q \
    gq.npy --grad-k gk.npy --grad-v gv.npy
check gradient-of-values tool near gv.npy wantdv.npy 1e-4
check gradient-of-queries-shape tool shape gq.npy 2,4,9,6
check gradient-of-keys-shape tool shape gk.npy 2,2,7,6
rm o.npy
check through-a-pipe sh -c \
    'cat q.npy | "$1" attend full /dev/stdin k.npy v.npy -o o.npy' - "$program"
check through-a-pipe-is-right tool near o.npy want.npy 1e-5
check own-group-each attend clustered-100 q.npy k.npy v.npy -o o.npy
check own-group-each-is-full tool near o.npy want.npy 1e-5
check all-keys-on-top attend i-clustered-3:topk=7 q.npy k.npy v.npy -o o.npy
check all-keys-on-top-is-full tool near o.npy want.npy 1e-5

# ---- Kinds whose keys are the queries
for kind in shared-full lsh-2; do
    check "$kind-dash" attend $kind s.npy - sv.npy -o dash.npy
    check "$kind-copy" attend $kind s.npy copy.npy sv.npy -o copied.npy
    check "$kind-same" cmp dash.npy copied.npy
    exits "$kind-other-keys" 3 "not equal" attend $kind s.npy sk.npy sv.npy -o other.npy
    exits "$kind-other-shape" 3 "do not fit" attend $kind s.npy q.npy sv.npy -o other.npy
    check "$kind-wrote-nothing" absent other.npy
done

# ---- Groups, top keys, seeds, threads
check groups attend i-clustered-20:topk=8 s.npy sk.npy sv.npy -o a.npy --save-groups \
    g1.npy --save-top t1.npy
check groups-shape tool shape g1.npy 1,2,300
check groups-range tool holds g1.npy "min(a) == 0 and max(a) <= 19"
check top-shape tool shape t1.npy 1,2,20,8
check top-range tool holds t1.npy "min(a) >= -1 and max(a) <= 299"
check groups-given attend i-clustered-20:topk=8 s.npy sk.npy sv.npy -o b.npy --groups \
    g1.npy --save-groups g2.npy
check groups-given-same cmp g1.npy g2.npy
check groups-given-result tool near b.npy a.npy 1e-6
check seed attend i-clustered-20:topk=8 s.npy sk.npy sv.npy -o c.npy --seed 7 \
    --save-groups g7.npy
check seed-spelled attend i-clustered-20:topk=8,seed=7 s.npy sk.npy sv.npy -o d.npy
check seed-same cmp c.npy d.npy
check seed-differs sh -c '! cmp -s g1.npy g7.npy'
check one-thread attend i-clustered-20:topk=8 s.npy sk.npy sv.npy -o e.npy --threads 1
check one-thread-same cmp a.npy e.npy
head -c -4 g1.npy > gbad.npy
printf '\024\0\0\0' >> gbad.npy # 20, one too many
exits groups-out-of-range 3 "group" attend i-clustered-20:topk=8 s.npy sk.npy sv.npy -o \
    bad.npy --groups gbad.npy
check groups-out-of-range-wrote-nothing absent bad.npy

# ---- The real error, JSON
check check-only sh -c '"$1" attend full q.npy k.npy v.npy --check --json > c.json' - \
    "$program"
check check-of-full tool field c.json \
    "d['relative_error'] < 1e-5 and d['samples'] == 72 and d['kind'] == 'full'"
check check-samples sh -c \
    '"$1" attend clustered-20 s.npy sk.npy sv.npy --check=50 --json > c.json' - \
    "$program"
check check-of-clustered tool field c.json \
    "0 < d['relative_error'] < 10 and d['samples'] == 50"
check kind-in-full tool field c.json \
    "d['kind'] == 'clustered-20:bits=63,iterations=10,seed=1'"
exits check-in-words 0 "relative error" attend full q.npy k.npy v.npy --check

# ---- In slices
everything() { # kind q k v dout prefix [groups and top keys too]
    attend "$1" "$2" "$3" "$4" -o "$6-out.npy" --grad-out "$5" --grad-q "$6-gq.npy" \
        --grad-k "$6-gk.npy" --grad-v "$6-gv.npy" \
        ${7:+--save-groups "$6-groups.npy" --save-top "$6-top.npy"} --json > "$6.json"
}
sliced() { SHOAL_SLICE_ABOVE=0 everything "$@"; }
compare_slices() { # prefixes
    local part
    for part in "$1"-*.npy; do cmp "$part" "$2${part#"$1"}" || return 1; done
}
check whole everything i-clustered-4:topk=3 q.npy k.npy v.npy dout.npy w yes
check sliced sliced i-clustered-4:topk=3 q.npy k.npy v.npy dout.npy p yes
check sliced-same compare_slices w p
check sliced-count tool field p.json "d['slices'] == 4"
check whole-count tool field w.json "d['slices'] == 1"
check whole-lsh everything lsh-2 s.npy copy.npy sv.npy sd.npy wl
check sliced-lsh sliced lsh-2 s.npy copy.npy sv.npy sd.npy pl
check sliced-lsh-same compare_slices wl pl
check sliced-lengths env SHOAL_SLICE_ABOVE=0 "$program" attend full q.npy k.npy v.npy -o \
    o.npy --query-lengths ql.npy --key-lengths kl.npy
check sliced-lengths-are-right tool near o.npy padded.npy 1e-5
check sliced-check sh -c \
    'SHOAL_SLICE_ABOVE=0 "$1" attend full q.npy k.npy v.npy --check --json > c.json' - \
    "$program"
check sliced-check-samples tool field c.json \
    "d['relative_error'] < 1e-5 and d['samples'] == 72"

# ---- Bad input
exits missing-file 3 "nowhere.npy" attend full nowhere.npy k.npy v.npy -o bad.npy
exits directory-as-file 3 "directory" attend full . k.npy v.npy -o bad.npy
exits wrong-rank 3 "ql.npy is int32 [2]; it must be float32" attend full ql.npy k.npy \
    v.npy -o bad.npy
exits dims-differ 3 "sk.npy [1, 2, 300, 16] and q.npy [2, 4, 9, 6]" attend full q.npy \
    sk.npy v.npy -o bad.npy
exits values-differ 3 "every key needs one value" attend full q.npy k.npy q.npy -o bad.npy
exits heads-do-not-divide 3 "must divide" attend full k.npy q.npy v.npy -o bad.npy
exits length-too-long 3 "length 99 of sequence 1" attend full q.npy k.npy v.npy -o \
    bad.npy --query-lengths long.npy
exits grad-out-shape 3 "output's shape" attend full q.npy k.npy v.npy --grad-out q.npy \
    --grad-q bad.npy
exits groups-shape 3 "one group per query" attend clustered-20 q.npy k.npy v.npy \
    --groups g1.npy -o bad.npy
wrong=0
for file in "$corpus"/bad-*.npy; do
    "$program" attend full "$file" k.npy v.npy -o bad.npy > /dev/null 2> corpus.err
    [ $? -eq 3 ] && grep -qF "$file" corpus.err || { echo "# $file"; wrong=1; }
done
report $wrong corpus-is-refused
check bad-input-wrote-nothing absent bad.npy
tool zeros e1.npy 1,2,0,4; tool zeros e2.npy 1,2,3,4
check no-queries attend i-clustered-100 e1.npy e2.npy e2.npy -o o.npy
check no-queries-shape tool shape o.npy 1,2,0,4
check no-keys attend i-clustered-100 e2.npy e1.npy e1.npy -o o.npy
check no-keys-gives-zero tool holds o.npy "len(a) == 24 and not any(a)"

# ---- Outputs that cannot be written, and interrupts
exits no-such-place 4 "no/such/o.npy" attend full q.npy k.npy v.npy -o no/such/o.npy
exits directory-as-output 4 "directory" attend full q.npy k.npy v.npy -o .
if [ -c /dev/full ]; then
    check full-output sh -c '"$1" kinds > /dev/full 2> full.err; [ $? = 4 ]' - "$program"
    exits disk-full 4 "No space" attend full q.npy k.npy v.npy -o /dev/full
    exits second-output-fails 4 "were written" attend clustered-4 q.npy k.npy v.npy -o \
        first.npy --save-groups /dev/full
    check first-output-is-there tool shape first.npy 2,4,9,5
fi
cp q.npy over.npy
check output-over-input attend full over.npy k.npy v.npy -o over.npy
check output-over-input-is-right tool near over.npy want.npy 1e-5
python3 - <<'PYTHON'
header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 200000, 64), }"
header += b" " * (-(len(header) + 11) % 64) + b"\n"
with open("big.npy", "wb") as out:
    out.write(b"\x93NUMPY\x01\0" + bytes([len(header), 0]) + header)
    out.truncate(10 + len(header) + 200000 * 64 * 4)
PYTHON
tool interrupt "$program" attend full big.npy big.npy big.npy -o interrupted.npy --isa \
    scalar 2> /dev/null
report $(( $? != 130 )) interrupt-is-130
check interrupt-wrote-nothing absent interrupted.npy
check no-temporary-files sh -c '! ls -a | grep -q "^\.shoal"'

# ---- The demonstration, at its shortest
check demo sh -c '"$1" demo --max-length 256 > demo.out' - "$program"
check demo-says-where grep -q "than full" demo.out
check demo-json sh -c '"$1" demo --max-length 256 --json > demo.json' - "$program"
check demo-json-rows tool field demo.json \
    "len(d['lengths']) == 1 and d['lengths'][0]['full']['relative_error'] < 1e-5"

exit $failed
