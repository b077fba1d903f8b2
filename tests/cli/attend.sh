#!/usr/bin/env bash
# Runs the program given as $1 and compares its output with plain Python.
. "$(dirname "$0")/lib/helpers.sh"
corpus=$root/tests/corpus/npy

tools <<'PYTHON'
# shrink FILE COMMAND...: truncates the file once the command has mapped it; returns its
# exit code
def shrink(path, *command):
    child = subprocess.Popen(command)
    while path not in open("/proc/%d/maps" % child.pid).read() and child.poll() is None:
        time.sleep(0.01)
    os.truncate(path, 1000)
    sys.exit(child.wait() & 255)

def make(path, shape, seed):
    draw = random.Random(seed)
    shape = [int(n) for n in shape.split(",")]
    write(path, shape, [draw.gauss(0, 1) for _ in range(math.prod(shape))])

# The same numbers in half precision, and a half-precision file converted to float32.
def halved(path, to):
    shape, values = read(path)
    write(to, shape, values, "e")

def is_half(path):
    assert b"'<f2'" in open(path, "rb").read(128)

def widened(path, to):
    write(to, *read(path))

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

def holds(path, expression):
    sys.exit(0 if eval(expression, {"a": read(path)[1]}) else "not so: " + expression)
PYTHON
attend() { shoal attend "$@"; }

# ---- Help, versions, usage
expect help 0 "exit codes" shoal --help
check help-has-the-laboratory-apart says "commands that measure:"
expect version 0 "shoal " shoal --version
expect no-command 2 "--help" shoal
expect unknown-command 2 "did you mean attend" shoal atend
for command in attend kinds info demo; do
    expect "$command-help" 0 "usage: shoal $command" shoal "$command" --help
done
expect help-shows-check-default 0 "256" attend --help
expect kinds 0 "i-clustered-C" shoal kinds
expect info 0 "threads" shoal info
check kinds-json into k.json shoal kinds --json
check kinds-json-rows tool field k.json \
    "len(d['kinds']) >= 6 and d['kinds'][0]['name'] == 'full'"
check info-json into i.json shoal info --json
check info-json-rows tool field i.json \
    "d['isa'] in d['isa_runnable'] and d['threads'] >= 1"

# ---- Arrays
tool make q.npy 2,4,9,6 1; tool make k.npy 2,2,7,6 2; tool make v.npy 2,2,7,5 3
tool make dout.npy 2,4,9,5 4
tool make s.npy 1,2,300,16 5; tool make sv.npy 1,2,300,16 6; tool make sd.npy 1,2,300,16 7
tool make sk.npy 1,2,300,16 8
tool ints ql.npy 2 9,4; tool ints kl.npy 2 3,7; tool ints long.npy 2 9,99
cp s.npy copy.npy

expect unknown-option 2 "did you mean --threads" attend full q.npy k.npy v.npy -o o.npy \
    --thread5 1
expect unknown-letter 2 "unknown option -x" attend full q.npy k.npy v.npy -x
expect value-missing 2 "needs a value" attend full q.npy k.npy v.npy -o
expect words-missing 2 "V.npy is missing" attend full q.npy k.npy -o o.npy
expect words-too-many 2 "unexpected argument" attend full q.npy k.npy v.npy w.npy -o o.npy
expect nothing-to-do 2 "nothing to do" attend full q.npy k.npy v.npy
expect bad-kind 2 "shoal kinds" attend ful q.npy k.npy v.npy -o o.npy
expect bad-clusters 2 "clustered" attend clustered-0 q.npy k.npy v.npy -o o.npy
expect bad-isa 2 "abacus" attend full q.npy k.npy v.npy -o o.npy --isa abacus
expect bad-threads 2 "--threads" attend full q.npy k.npy v.npy -o o.npy --threads many
expect bad-scale 2 "--scale" attend full q.npy k.npy v.npy -o o.npy --scale nan
expect bad-seed 2 "--seed" attend full q.npy k.npy v.npy -o o.npy --seed -1
expect bad-check 2 "--check" attend full q.npy k.npy v.npy --check=0
expect same-outputs 2 "two outputs" attend full q.npy k.npy v.npy -o o.npy --grad-q \
    o.npy --grad-out dout.npy
expect grad-without-out 2 "--grad-out" attend full q.npy k.npy v.npy --grad-q g.npy
expect groups-of-full 2 "no clusters of queries" attend full q.npy k.npy v.npy \
    --save-groups g.npy
expect top-of-clustered 2 "no exact keys per cluster" attend clustered-3 q.npy k.npy \
    v.npy --save-top g.npy
expect top-of-shoal 2 "shoal has no exact keys per cluster" attend shoal q.npy k.npy \
    v.npy -o o.npy --save-top g.npy
expect number-missing 2 \
    "lacks a number: the spelling is i-clustered-C, such as i-clustered-100" \
    attend i-clustered q.npy k.npy v.npy -o o.npy
expect number-missing-with-options 2 "lacks a number: the spelling is lsh-R" \
    attend lsh:seed=3 q.npy - v.npy -o o.npy
long=$(printf '%0100000d' 0 | tr 0 9)
for word in --$long --threads=$long --scale=$long --isa=$long; do
    expect "cut-${word:0:9}" 2 "shoal attend: " attend full q.npy k.npy v.npy -o o.npy \
        $word
    check "cut-${word:0:9}-short" test "$(wc -c <err)" -lt 300
done
expect cut-command 2 "unknown command 999" shoal "$long"
check cut-command-short test "$(wc -c <err)" -lt 400
expect dash-for-full 2 "needs a file" attend full q.npy - v.npy -o o.npy
check no-output-after-usage absent o.npy

# ---- Full attention against Python
tool reference q.npy k.npy v.npy want.npy "" "" 0 dout.npy wantdv.npy
expect full 0 "workspace" attend full q.npy k.npy v.npy -o o.npy
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

# ---- Kinds that use the queries as keys
for kind in shared-full lsh-2; do
    check "$kind-dash" attend $kind s.npy - sv.npy -o dash.npy
    check "$kind-copy" attend $kind s.npy copy.npy sv.npy -o copied.npy
    check "$kind-same" cmp dash.npy copied.npy
    expect "$kind-other-keys" 3 "differs from" attend $kind s.npy sk.npy sv.npy \
        -o other.npy
    expect "$kind-other-shape" 3 "do not fit" attend $kind s.npy q.npy sv.npy -o other.npy
    check "$kind-wrote-nothing" absent other.npy
done

# ---- Clusters, exact keys, seeds, threads
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
expect groups-out-of-range 3 "group" attend i-clustered-20:topk=8 s.npy sk.npy sv.npy -o \
    bad.npy --groups gbad.npy
check groups-out-of-range-wrote-nothing absent bad.npy

# ---- The error check, JSON
check check-only into c.json attend full q.npy k.npy v.npy --check --json
check check-of-full tool field c.json \
    "d['relative_error'] < 1e-5 and d['samples'] == 72 and d['kind'] == 'full'"
check check-samples into c.json attend clustered-20 s.npy sk.npy sv.npy --check=50 --json
check check-of-clustered tool field c.json \
    "0 < d['relative_error'] < 10 and d['samples'] == 50"
check kind-in-full tool field c.json \
    "d['kind'] == 'clustered-20:bits=63,iterations=10,seed=1'"
expect check-in-words 0 "relative error" attend full q.npy k.npy v.npy --check

# ---- In slices
everything() { # kind q k v dout prefix [groups and top keys too]
    attend "$1" "$2" "$3" "$4" -o "$6-out.npy" --grad-out "$5" --grad-q "$6-gq.npy" \
        --grad-k "$6-gk.npy" --grad-v "$6-gv.npy" \
        ${7:+--save-groups "$6-groups.npy" --save-top "$6-top.npy"} --json > "$6.json"
}
for value in garbage -1 1e9 99999999999999999999; do
    expect "slices-above-$value" 2 "SHOAL_SLICE_ABOVE is" env SHOAL_SLICE_ABOVE=$value \
        "$program" attend full q.npy k.npy v.npy -o o.npy
done
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
check sliced-check into c.json env SHOAL_SLICE_ABOVE=0 "$program" attend full q.npy \
    k.npy v.npy --check --json
check sliced-check-samples tool field c.json \
    "d['relative_error'] < 1e-5 and d['samples'] == 72"

# ---- Bad input
expect missing-file 3 "nowhere.npy" attend full nowhere.npy k.npy v.npy -o bad.npy
expect directory-as-file 3 "directory" attend full . k.npy v.npy -o bad.npy
expect wrong-rank 3 "ql.npy is int32 [2]; it must be float32" attend full ql.npy k.npy \
    v.npy -o bad.npy
expect dims-differ 3 "sk.npy [1, 2, 300, 16] and q.npy [2, 4, 9, 6]" attend full q.npy \
    sk.npy v.npy -o bad.npy
expect values-differ 3 "keys and values must be equal" attend full q.npy k.npy q.npy -o \
    bad.npy
expect heads-do-not-divide 3 "must divide" attend full k.npy q.npy v.npy -o bad.npy
expect length-too-long 3 "length 99 of sequence 1" attend full q.npy k.npy v.npy -o \
    bad.npy --query-lengths long.npy
expect grad-out-shape 3 "shape of the output" attend full q.npy k.npy v.npy \
    --grad-out q.npy --grad-q bad.npy
expect groups-shape 3 "one cluster per query" attend clustered-20 q.npy k.npy v.npy \
    --groups g1.npy -o bad.npy
wrong=
for file in "$corpus"/bad-*.npy; do
    attend full "$file" k.npy v.npy -o bad.npy > /dev/null 2> corpus.err
    [ $? -eq 3 ] && grep -qF "$file" corpus.err || wrong+="$file "
done
report corpus-is-refused "$wrong"
check bad-input-wrote-nothing absent bad.npy
tool zeros e1.npy 1,2,0,4; tool zeros e2.npy 1,2,3,4
check no-queries attend i-clustered-100 e1.npy e2.npy e2.npy -o o.npy
check no-queries-shape tool shape o.npy 1,2,0,4
check no-keys attend i-clustered-100 e2.npy e1.npy e1.npy -o o.npy
check no-keys-gives-zero tool holds o.npy "len(a) == 24 and not any(a)"

# ---- Half precision: the attention of the same numbers in float32, rounded once
for name in q k v dout; do
    tool halved $name.npy $name.half.npy && tool widened $name.half.npy $name.wide.npy
done
for kind in full i-clustered-4 local-4; do
    check "$kind-halves" shoal attend $kind q.half.npy k.half.npy v.half.npy -o o.npy \
        --grad-out dout.half.npy --grad-v gv.npy --check
    check "$kind-halves-in-floats" shoal attend $kind q.wide.npy k.wide.npy v.wide.npy \
        -o want.half.npy
    check "$kind-halves-are-halves" tool is_half o.npy
    check "$kind-gradient-is-half" tool is_half gv.npy
    tool halved want.half.npy rounded.npy
    check "$kind-halves-are-rounded" tool near o.npy rounded.npy 0
done
check halves-sliced env SHOAL_SLICE_ABOVE=1 "$program" attend full q.half.npy k.half.npy \
    v.half.npy -o sliced.npy
check halves-whole shoal attend full q.half.npy k.half.npy v.half.npy -o o.npy
check halves-sliced-same cmp sliced.npy o.npy
expect halves-and-floats 3 "use one type" attend full q.half.npy k.npy v.npy -o o.npy

# ---- Outputs that cannot be written, and interrupts
expect no-such-place 4 "no/such/o.npy" attend full q.npy k.npy v.npy -o no/such/o.npy
expect directory-as-output 4 "directory" attend full q.npy k.npy v.npy -o .
if [ -c /dev/full ]; then
    check full-output sh -c '"$1" kinds > /dev/full 2> full.err; [ $? = 4 ]' - "$program"
    expect disk-full 4 "No space" attend full q.npy k.npy v.npy -o /dev/full
    expect second-output-fails 4 "were written" attend clustered-4 q.npy k.npy v.npy -o \
        first.npy --save-groups /dev/full
    check first-output-is-there tool shape first.npy 2,4,9,5
fi
python3 - <<'PYTHON'
header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 200000, 64), }"
header += b" " * (-(len(header) + 11) % 64) + b"\n"
with open("big.npy", "wb") as out:
    out.write(b"\x93NUMPY\x01\0" + bytes([len(header), 0]) + header)
    out.truncate(10 + len(header) + 200000 * 64 * 4)
PYTHON
tool interrupt 0.4 "$program" attend full big.npy big.npy big.npy -o interrupted.npy \
    --isa scalar 2> /dev/null
report interrupt-is-130 "$([ $? = 130 ] || echo "another exit code")"
check interrupt-wrote-nothing absent interrupted.npy
if [ -r /proc/self/maps ]; then
    expect shrunk-while-in-use 3 "truncated" tool shrink big.npy "$program" attend \
        full big.npy big.npy big.npy -o interrupted.npy --isa scalar
    check shrunk-wrote-nothing absent interrupted.npy
fi
check no-temporary-files sh -c '! ls -a | grep -q "^\.shoal"'

# ---- The demonstration, at its shortest
check demo into demo.out shoal demo --max-length 256
check demo-says-where grep -q "than full" demo.out
check demo-json into demo.json shoal demo --max-length 256 --json
check demo-json-rows tool field demo.json \
    "len(d['lengths']) == 1 and d['lengths'][0]['full']['relative_error'] < 1e-5"
check demo-shows-the-kinds tool field demo.json \
    "list(d['lengths'][0]) == \
        ['length', 'full', 'shoal', 'i-clustered-100', 'clustered-100']"

finish
