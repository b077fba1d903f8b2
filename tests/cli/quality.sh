#!/usr/bin/env bash
# Drives `shoal quality` of the program given as $1 on small folders, and compares its
# figures with plain Python. Prints "ok NAME" or "not ok NAME" per check; the exit code is
# 1 if any failed.
set -u
[ $# -ge 1 ] || { echo "usage: test_quality_cli.sh PROGRAM"; exit 2; }
program=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
data=${SHOAL_DATA:-$root/../shared/data}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
unset SHOAL_ISA
# cairo and fontconfig keep caches until the end of the program.
export ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
failed=0

cat > tool.py <<'PYTHON'
import json, math, os, random, signal, struct, subprocess, sys, time

def read(path):
    raw = open(path, "rb").read()
    size = struct.unpack("<H", raw[8:10])[0]
    head = eval(raw[10:10 + size])
    count, letter = (len(raw) - 10 - size) // 4, head["descr"][1]
    return list(head["shape"]), list(struct.unpack("<%d%s" % (count, letter),
                                                   raw[10 + size:]))

def write(path, shape, values, letter="f"):
    head = ("{'descr': '<%s4', 'fortran_order': False, 'shape': (%s,), }"
            % (letter, ", ".join(map(str, shape)))).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head)
        out.write(struct.pack("<%d%s" % (len(values), letter), *values))

def numbers(path, shape, seed, letter="f"):
    draw = random.Random(seed)
    shape = [int(n) for n in shape.split(",")]
    write(path, shape, [draw.gauss(0, 1.5) if letter == "f" else 1
                        for _ in range(math.prod(shape))], letter)

# folder NAME LAYERS Q-SHAPE K-SHAPE V-SHAPE
def folder(name, layers, *shapes):
    os.makedirs(name, exist_ok=True)
    for layer in layers.split(","):
        for letter, shape in zip("qkv", shapes):
            numbers("%s/layer%s_%s.npy" % (name, layer, letter), shape,
                    "%s %s" % (layer, letter))

def put(path, index, value):
    shape, values = read(path)
    values[int(index)] = float(value)
    write(path, shape, values)

# Adds to the first feature of every row.
def shift(path, by):
    shape, values = read(path)
    write(path, shape, [x + (0 if i % shape[-1] else float(by))
                        for i, x in enumerate(values)])

def softmax(scores):
    top = max(scores)
    parts = [math.exp(s - top) for s in scores]
    return [p / sum(parts) for p in parts]

def scored(x, keys):
    return [sum(a * b for a, b in zip(x, key)) / math.sqrt(len(x)) for key in keys]

# The weights of query i of a head, from the formulas. groups: [N]; top: [C][k].
def row(kind, i, q, keys, groups, top):
    own = scored(q[i], keys)
    if kind == "full":
        return softmax(own)
    if kind.startswith("oracle"):
        best = sorted(range(len(own)), key=lambda l: -own[l])[:int(kind.split("-")[-1])]
        return [w / sum(softmax(own)[l] for l in best) if l in best else 0
                for l, w in enumerate(softmax(own))]
    members = [q[m] for m in range(len(q)) if groups[m] == groups[i]]
    shared = scored([sum(column) / len(members) for column in zip(*members)], keys)
    if kind.startswith("clustered"):
        return softmax(shared)
    chosen = {l for l in top[groups[i]] if l >= 0}
    if "normaliser=query" in kind:
        return softmax([own[l] if l in chosen else s for l, s in enumerate(shared)])
    mass = sum(w for l, w in enumerate(softmax(shared)) if l in chosen)
    exact = sum(softmax(own)[l] for l in chosen)
    return [mass * softmax(own)[l] / exact if l in chosen else w
            for l, w in enumerate(softmax(shared))]

# Everything the command measures of one layer but time, over all queries.
def measure(kind, folder, layer, groups, top):
    arrays = {c: read("%s/layer%s_%s.npy" % (folder, layer, c)) for c in "qkv"}
    (B, H, N, D), q = arrays["q"]
    (_, G, S, _), k = arrays["k"]
    (_, _, _, E), v = arrays["v"]
    groups = read(groups)[1] if groups else None
    (_, _, C, K), top = read(top) if top else ([0] * 4, None)
    away = size = distance = same = 0
    for bh in range(B * H):
        g = bh // H * G + bh % H // (H // G)
        cut = lambda a, n, w, at: [a[(at * n + i) * w:][:w] for i in range(n)]
        Q, keys, values = cut(q, N, D, bh), cut(k, S, D, g), cut(v, S, E, g)
        own_groups = groups[bh * N:][:N] if groups else None
        own_top = cut(top, C, K, bh) if top else None
        for i in range(N):
            a = row("full", i, Q, keys, None, None)
            w = row(kind, i, Q, keys, own_groups, own_top)
            distance += sum(abs(x - y) for x, y in zip(a, w))
            same += a.index(max(a)) == w.index(max(w))
            for e in range(E):
                want = sum(x * y[e] for x, y in zip(a, values))
                got = sum(x * y[e] for x, y in zip(w, values))
                away += (got - want) ** 2
                size += want ** 2
    return math.sqrt(away / size), distance / (B * H * N), same / (B * H * N)

# figures JSON KIND FOLDER LAYER,...: the JSON says of the kind what the formulas say.
def figures(path, program, kind, folder, layers):
    result = json.load(open(path))["folders"][0]
    got = next(k for k in result["kinds"] if k["kind"] == kind)
    names = ("relative_error", "row_l1", "strongest_key_agrees")
    totals = [0, 0, 0]
    for at, layer in enumerate(layers.split(",")):
        files = ["%s/layer%s_%s.npy" % (folder, layer, c) for c in "qkv"]
        groups = top = ""
        if "clustered" in kind:
            groups, extra = "g.npy", []
            if kind.startswith("i-"):
                top, extra = "t.npy", ["--save-top", "t.npy"]
            subprocess.run([program, "attend", kind, *files, "--save-groups", "g.npy",
                            *extra], check=True, stdout=subprocess.DEVNULL)
        wanted = measure(kind, folder, layer, groups, top)
        for i, name in enumerate(names):
            found = got[name + "_by_layer"][at]
            if abs(found - wanted[i]) > 2e-5:
                sys.exit("%s, layer %s: %s is %g, not %g"
                         % (kind, layer, name, found, wanted[i]))
            totals[i] += found
    for total, name in zip(totals, names):
        if abs(got[name] - total / len(layers.split(","))) > 1e-7:
            sys.exit("%s: %s is no mean" % (kind, name))

def field(path, expression):
    d = json.load(open(path))
    names = {"d": d, "f": d["folders"][0], "len": len, "all": all,
             "k": {k["kind"]: k for k in d["folders"][0]["kinds"]}}
    sys.exit(0 if eval(expression, names) else "not so: " + expression)

# front JSON: exactly the kinds that nothing beats are marked.
def front(path):
    for f in json.load(open(path))["folders"]:
        points = [(k["relative_error"], k["seconds_per_call"]) for k in f["kinds"]]
        for kind, (e, t) in zip(f["kinds"], points):
            beaten = any(x <= e and y <= t and (x, y) != (e, t) for x, y in points)
            if kind["on_pareto_front"] == beaten:
                sys.exit(kind["kind"])
            speed = f["kinds"][0]["seconds_per_call"] / t
            if abs(kind["speed_relative_to_full"] / speed - 1) > 1e-6:
                sys.exit("speed of " + kind["kind"])

# interrupt OUTPUT COMMAND...: ends it once it is at work.
def interrupt(output, *command):
    with open(output, "w") as out:
        child = subprocess.Popen(command, stdout=out, preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL))
        time.sleep(1.5)
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
# exits NAME CODE WORDS ARGUMENTS...: the command ends with the code and says the words.
exits() {
    local name=$1 code=$2 words=$3; shift 3
    "$program" quality "$@" > exits.out 2> exits.err; local got=$?
    if [ $got -ne "$code" ]; then
        echo "# exit code $got, not $code"
        sed 's/^/# /' exits.err
    fi
    [ $got -eq "$code" ] && cat exits.out exits.err | grep -qF -e "$words"
    report $? "$name"
}
says() { grep -qF -e "$1" exits.out exits.err; }
absent() { [ ! -e "$1" ]; }
quality() { "$program" quality "$@"; }
as_json() { local into=$1; shift; quality "$@" --json > "$into"; }

# ---- Folders
tool folder self 0,3 2,2,24,8 2,2,24,8 2,2,24,8
tool folder cross 1 1,4,20,8 1,2,17,8 1,2,17,5
tool folder many 0,1,2,3,4,5,6,7,8,9,10,11 1,1,8,4 1,1,8,4 1,1,8,4
tool folder big 0,1 1,2,256,16 1,2,256,16 1,2,256,16

# ---- The command line
exits help 0 "usage: shoal quality DIR" --help
check help-shows-samples says "(default: 256)"
check help-shows-repeats says "(default: 7)"
check help-shows-kinds says "shoal-C:topk=32,shoal-C)"
exits no-folder 2 "no folder"
exits bad-kind 2 "shoall-4" self --kinds shoall-4
exits bad-option-of-kind 2 "topk" self --kinds clustered-4:topk=3
exits bad-kind-comes-before-bad-folder 2 "shoall-4" nowhere --kinds shoall-4
exits bad-samples 2 "--samples" self --samples 0
exits bad-repeats 2 "--repeats" self --repeats none
exits bad-clusters 2 "--clusters" self --clusters 0
exits bad-layers 2 "--layers" self --layers one
exits bad-isa 2 "abacus" self --isa abacus
exits unknown-option 2 "did you mean --samples" self --sample5 3

# ---- Scores in the thousands: their rounding is no mistake
cp -r big steep
tool shift steep/layer0_q.npy 4
tool shift steep/layer0_k.npy 8000
exits steep-scores 0 "full" steep --layers 0 --kinds full,shoal-9 --repeats 1

# ---- Folders that cannot be measured
bad() { rm -rf bad; cp -r self bad; }
exits no-such-folder 3 "nowhere cannot be opened" nowhere
mkdir empty; touch empty/layer0_q.txt empty/layer00_q.npy empty/xlayer0_q.npy
exits no-layers 3 "empty has no layers" empty
bad; rm bad/layer3_v.npy
exits no-values 3 "layer3_v.npy is missing" bad
bad; rm bad/layer0_q.npy
exits no-queries 3 "layer0_q.npy is missing" bad
bad; tool numbers bad/layer0_v.npy 2,2,23,8 1
exits other-length 3 "k and v must have one length" bad
bad; tool numbers bad/layer0_k.npy 2,2,24,6 1
exits other-dim 3 "q and k must have one dim" bad
bad; tool numbers bad/layer0_k.npy 1,2,24,8 1
exits other-batch 3 "one batch size" bad
bad; tool numbers bad/layer0_q.npy 2,3,24,8 1
exits other-heads 3 "divisor" bad
bad; for c in q k v; do tool numbers bad/layer3_$c.npy 2,2,25,8 1; done
exits layers-differ 3 "layer 3: its shapes differ from layer 0's" bad
bad; tool numbers bad/layer0_q.npy 2,24,8 1
exits three-dimensions 3 "layer0_q.npy must be float32" bad
bad; tool numbers bad/layer0_q.npy 2,2,24,8 1 i
exits integers 3 "it is int32" bad
bad; head -c 300 self/layer3_k.npy > bad/layer3_k.npy
exits truncated 3 "layer3_k.npy" bad
bad; tool put bad/layer3_v.npy 5 nan
exits not-a-number 3 "layer3_v.npy has a NaN or an infinity (element 5)" bad
bad; for c in q k v; do tool numbers bad/layer0_$c.npy 2,2,0,8 1; done
exits empty-arrays 3 "empty" bad --layers 0
exits second-folder-bad-says-nothing-of-first 3 "nowhere" self nowhere
check nothing-measured sh -c '! test -s exits.out'
exits layer-not-there 3 "self has no layer 1, which --layers asks for; it has 0, 3" self \
    --layers 0..1
exits lsh-on-cross 3 "lsh-2" cross --kinds lsh-2

# ---- Figures against Python, on every query
kinds=full,clustered-4,i-clustered-4:topk=5,i-clustered-4:topk=5,groups=keys
kinds=$kinds,i-clustered-4:topk=5,normaliser=query
kinds=$kinds,i-clustered-4:topk=5,groups=keys,normaliser=query,oracle-top-6
for folder in self:0,3 cross:1; do
    layers=${folder#*:} folder=${folder%:*}
    check "$folder-runs" as_json "$folder.json" "$folder" --kinds $kinds --samples 100000 \
        --repeats 2
    for kind in full clustered-4 i-clustered-4:topk=5 i-clustered-4:topk=5,groups=keys \
        i-clustered-4:topk=5,normaliser=query oracle-top-6 \
        i-clustered-4:topk=5,groups=keys,normaliser=query; do
        check "$folder-figures-of-$kind" tool figures "$folder.json" "$program" "$kind" \
            "$folder" "$layers"
    done
    check "$folder-front" tool front "$folder.json"
    check "$folder-rows-checked" tool field "$folder.json" \
        "all(0 <= c < 1e-4 for k in f['kinds'] for c in k['row_check_by_layer'])"
done
check all-queries tool field self.json "f['samples'] == 96 and f['layers'] == [0, 3]"
check shape tool field cross.json \
    "(f['heads'], f['kv_heads'], f['keys'], f['value_dim']) == (4, 2, 17, 5)"

# ---- Samples, seeds, threads
check sample as_json a.json self --samples 10 --repeats 1 --kinds i-clustered-4:topk=5
check sample-size tool field a.json "f['samples'] == 10"
check sample-error-is-of-all tool field a.json "abs(k['i-clustered-4:topk=5']\
['relative_error'] - $(python3 -c 'import json
print(next(k["relative_error"] for k in json.load(open("self.json"))["folders"][0]["kinds"]
           if k["kind"] == "i-clustered-4:topk=5"))')) < 1e-6"
check full-is-added tool field a.json "[k['kind'] for k in f['kinds']][0] == 'full'"
check seed as_json b.json self --samples 10 --repeats 1 --kinds clustered-4,full --seed 9
check seed-reaches-kinds tool field b.json "f['kinds'][0]['kind'] == 'clustered-4:seed=9'"
check seed-spelled as_json c.json self --samples 10 --repeats 1 --seed 9 --kinds \
    clustered-4:seed=3
check seed-spelled-stays tool field c.json "f['kinds'][1]['kind'] == 'clustered-4:seed=3'"
check one-thread as_json d.json self --samples 10 --repeats 1 --threads 1 --isa scalar
check one-thread-says tool field d.json "d['threads'] == 1 and d['isa'] == 'scalar'"

# ---- Kinds
check default-kinds tool field d.json "[k['kind'] for k in f['kinds']] == ['full', \
'clustered-25', 'i-clustered-25', 'i-clustered-25:groups=keys', \
'i-clustered-25:normaliser=query', 'shoal-25:topk=32', 'shoal-25']"
check own-group-each-is-full tool field d.json \
    "all(k['relative_error'] < 1e-5 for k in f['kinds'])"
check clusters as_json e.json self --clusters 7 --repeats 1 --kinds \
    shoal-C:topk=3,clustered-C,clustered-5
check clusters-spelled tool field e.json \
    "[k['kind'] for k in f['kinds']][1:] == ['shoal-7:topk=3', 'clustered-7', \
'clustered-5'] and f['clusters'] == 7"
check other-kinds as_json f.json self --repeats 1 --kinds lsh-2,shared-full,shoal-4:topk=3
check lsh-has-no-rows tool field f.json "k['lsh-2']['row_l1'] is None and \
k['lsh-2']['strongest_key_agrees'] is None and k['lsh-2']['relative_error'] > 0"
check shared-full-has-rows tool field f.json "k['shared-full']['row_l1'] > 0"
exits table 0 "speed" self --repeats 1 --kinds lsh-2,clustered-4
check dash-for-lsh grep -qE '^. lsh-2 +[0-9.]+ +[0-9.]+ +- +- +[0-9.]+ +[0-9.]+$' exits.out
check front-is-marked grep -qE '^\* (full|clustered|lsh)' exits.out
check full-has-no-error grep -qE '^. full +0\.0000 +0\.0000 +0\.0000 +1\.000 ' exits.out
check progress-is-silent sh -c '! test -s exits.err'
exits layers 0 "1 layer," self --layers 3 --repeats 1
exits many-layers 0 "12 layers" many --repeats 1
check many-layers-wrap grep -qE '^ +10 +11$' exits.out
exits two-folders 0 "self/: 2 layers" self/ cross --repeats 1
check second-folder-too says "cross: 1 layer,"

# ---- Pictures
if quality self --layers 0 --repeats 1 --kinds clustered-4 --plot p.svg > /dev/null \
    2> plot.err; then
    check svg grep -q "<svg" p.svg
    check png quality self cross --repeats 1 --plot p.png
    check png-signature sh -c 'head -c 4 p.png | grep -q PNG'
    exits other-picture 2 ".svg or .png" self --plot p.pdf
    exits no-place 4 "cannot be written" self --plot nowhere/p.png
    check no-leftovers sh -c '! ls | grep -q "\.tmp$"'
else
    check without-cairo grep -q "without cairo" plot.err
    echo "ok pictures # SKIP this build has no cairo"
fi

# ---- Interrupts keep what is done
folders=$(for _ in $(seq 200); do echo big; done)
tool interrupt stopped.json "$program" quality $folders --repeats 300 --json
report $(($? != 130)) interrupted
check interrupted-json tool field stopped.json \
    "d['interrupted'] and len(d['folders']) == 200 and not d['folders'][199]['complete']"
check interrupted-means tool field stopped.json \
    "all(k['relative_error'] >= 0 for x in d['folders'] for k in x['kinds'])"

# ---- Real queries, keys and values
if [ -d "$data/qkv/minilm-l6" ]; then
    check real as_json real.json "$data/qkv/minilm-l6" --repeats 1 --samples 64 \
        --kinds i-clustered-25,shoal-25:topk=32
    check real-half-the-error tool field real.json "k['shoal-25:topk=32']\
['relative_error'] <= 0.65 * k['i-clustered-25']['relative_error']"
    check real-rows tool field real.json "k['shoal-25:topk=32']['row_l1'] < \
k['i-clustered-25']['row_l1']"
else
    echo "ok real # SKIP no $data/qkv/minilm-l6; set SHOAL_DATA"
fi
exit $failed
