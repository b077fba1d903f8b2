#!/usr/bin/env bash
# Runs `shoal quality` of the program given as $1 on small folders, and compares its
# figures with plain Python.
. "$(dirname "$0")/lib/helpers.sh"

tools <<'PYTHON'
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

# Everything that the command measures for one layer except time, over all queries.
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

# figures JSON KIND FOLDER LAYER,...: the figures of the kind equal those of the formulas.
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

def names_in(d):
    f = d["folders"][0]
    return {"d": d, "f": f, "k": {k["kind"]: k for k in f["kinds"]}}

# front JSON: exactly the kinds on the Pareto front are marked.
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
PYTHON
quality() { shoal quality "$@"; }

# ---- Folders
tool folder self 0,3 2,2,24,8 2,2,24,8 2,2,24,8
tool folder cross 1 1,4,20,8 1,2,17,8 1,2,17,5
tool folder many 0,1,2,3,4,5,6,7,8,9,10,11 1,1,8,4 1,1,8,4 1,1,8,4
tool folder big 0,1 1,2,256,16 1,2,256,16 1,2,256,16

# ---- The command line
expect help 0 "usage: shoal quality DIR" quality --help
check help-shows-samples says "(default: 256)"
check help-shows-repeats says "(default: 7)"
check help-shows-kinds says "q-clustered-C:topk=32,q-clustered-C,shoal)"
expect no-folder 2 "no folder" quality
expect bad-kind 2 "shoall-4" quality self --kinds shoall-4
expect bad-option-of-kind 2 "topk" quality self --kinds clustered-4:topk=3
expect bad-kind-comes-before-bad-folder 2 "shoall-4" quality nowhere --kinds shoall-4
expect bad-samples 2 "--samples" quality self --samples 0
expect bad-repeats 2 "--repeats" quality self --repeats none
expect bad-clusters 2 "--clusters" quality self --clusters 0
expect bad-layers 2 "--layers" quality self --layers one
expect bad-isa 2 "abacus" quality self --isa abacus
expect unknown-option 2 "did you mean --samples" quality self --sample5 3

# ---- Scores in the thousands: their rounding is not an error. Exact keys that shoal does
# not subtract with the bits that it added would leave twice what is allowed
tool folder steep 0 1,2,300,16 1,2,300,16 1,2,300,16
tool shift steep/layer0_q.npy 4
tool shift steep/layer0_k.npy 8000
expect steep-scores 0 "full" quality steep --layers 0 --repeats 1 \
    --kinds full,shoal-9,q-clustered-9

# ---- Folders that cannot be measured
bad() { rm -rf bad; cp -r self bad; }
expect no-such-folder 3 "cannot open the folder nowhere" quality nowhere
mkdir empty; touch empty/layer0_q.txt empty/layer00_q.npy empty/xlayer0_q.npy
expect no-layers 3 "empty has no layers" quality empty
bad; rm bad/layer3_v.npy
expect no-values 3 "layer3_v.npy is missing" quality bad
bad; rm bad/layer0_q.npy
expect no-queries 3 "layer0_q.npy is missing" quality bad
bad; tool numbers bad/layer0_v.npy 2,2,23,8 1
expect other-length 3 "k and v must have the same length" quality bad
bad; tool numbers bad/layer0_k.npy 2,2,24,6 1
expect other-dim 3 "q and k must have the same dim" quality bad
bad; tool numbers bad/layer0_k.npy 1,2,24,8 1
expect other-batch 3 "the same batch size" quality bad
bad; tool numbers bad/layer0_q.npy 2,3,24,8 1
expect other-heads 3 "divide" quality bad
bad; for c in q k v; do tool numbers bad/layer3_$c.npy 2,2,25,8 1; done
expect layers-differ 3 "layer 3: its shapes differ from those of layer 0" quality bad
bad; tool numbers bad/layer0_q.npy 2,24,8 1
expect three-dimensions 3 "layer0_q.npy must be float32" quality bad
bad; tool numbers bad/layer0_q.npy 2,2,24,8 1 i
expect integers 3 "it is int32" quality bad
bad; head -c 300 self/layer3_k.npy > bad/layer3_k.npy
expect truncated 3 "layer3_k.npy" quality bad
bad; tool put bad/layer3_v.npy 5 nan
expect not-a-number 3 "layer3_v.npy has a NaN or an infinity (element 5)" quality bad
bad; for c in q k v; do tool numbers bad/layer0_$c.npy 2,2,0,8 1; done
expect empty-arrays 3 "empty" quality bad --layers 0
expect second-folder-bad-says-nothing-of-first 3 "nowhere" quality self nowhere
check nothing-measured sh -c '! test -s out'
expect layer-not-there 3 "self has no layer 1, which --layers selects; it has 0, 3" \
    quality self --layers 0..1
expect lsh-on-cross 3 "lsh-2" quality cross --kinds lsh-2

# ---- Figures compared with Python, on every query
kinds=full,clustered-4,i-clustered-4:topk=5,i-clustered-4:topk=5,groups=keys
kinds=$kinds,i-clustered-4:topk=5,normaliser=query
kinds=$kinds,i-clustered-4:topk=5,groups=keys,normaliser=query,oracle-top-6
for folder in self:0,3 cross:1; do
    layers=${folder#*:} folder=${folder%:*}
    check "$folder-runs" into "$folder.json" quality --json "$folder" --kinds $kinds \
        --samples 100000 --repeats 2
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
check sample into a.json quality --json self --samples 10 --repeats 1 --kinds \
    i-clustered-4:topk=5
check sample-size tool field a.json "f['samples'] == 10"
check sample-error-is-of-all tool field a.json "abs(k['i-clustered-4:topk=5']\
['relative_error'] - $(python3 -c 'import json
kinds = json.load(open("self.json"))["folders"][0]["kinds"]
print(next(k["relative_error"] for k in kinds
           if k["kind"] == "i-clustered-4:topk=5"))')) < 1e-6"
check full-is-added tool field a.json "[k['kind'] for k in f['kinds']][0] == 'full'"
check seed into b.json quality --json self --samples 10 --repeats 1 --kinds \
    clustered-4,full --seed 9
check seed-reaches-kinds tool field b.json "f['kinds'][0]['kind'] == 'clustered-4:seed=9'"
check seed-spelled into c.json quality --json self --samples 10 --repeats 1 --seed 9 \
    --kinds clustered-4:seed=3
check seed-spelled-stays tool field c.json "f['kinds'][1]['kind'] == 'clustered-4:seed=3'"
check one-thread into d.json quality --json self --samples 10 --repeats 1 --threads 1 \
    --isa scalar
check one-thread-says tool field d.json "d['threads'] == 1 and d['isa'] == 'scalar'"

# ---- Kinds
check default-kinds tool field d.json "[k['kind'] for k in f['kinds']] == ['full', \
'clustered-25', 'i-clustered-25', 'i-clustered-25:groups=keys', \
'i-clustered-25:normaliser=query', 'q-clustered-25:topk=32', \
'q-clustered-25', 'shoal']"
check own-group-each-is-full tool field d.json \
    "all(k['relative_error'] < 1e-5 for k in f['kinds'])"
check clusters into e.json quality --json self --clusters 7 --repeats 1 --kinds \
    shoal-C:topk=3,clustered-C,clustered-5
check clusters-spelled tool field e.json \
    "[k['kind'] for k in f['kinds']][1:] == ['shoal-7:topk=3', 'clustered-7', \
'clustered-5'] and f['clusters'] == 7"
check other-kinds into f.json quality --json self --repeats 1 --kinds \
    lsh-2,shared-full,shoal-4:topk=3
check lsh-has-no-rows tool field f.json "k['lsh-2']['row_l1'] is None and \
k['lsh-2']['strongest_key_agrees'] is None and k['lsh-2']['relative_error'] > 0"
check shared-full-has-rows tool field f.json "k['shared-full']['row_l1'] > 0"
expect table 0 "speed" quality self --repeats 1 --kinds lsh-2,clustered-4
check dash-for-lsh grep -qE '^. lsh-2 +[0-9.]+ +[0-9.]+ +- +- +[0-9.]+ +[0-9.]+$' out
check front-is-marked grep -qE '^\* (full|clustered|lsh)' out
check full-has-no-error grep -qE '^. full +0\.0000 +0\.0000 +0\.0000 +1\.000 ' out
check progress-is-silent sh -c '! test -s err'
expect layers 0 "1 layer," quality self --layers 3 --repeats 1
expect many-layers 0 "12 layers" quality many --repeats 1
check many-layers-wrap grep -qE '^ +10 +11$' out
expect two-folders 0 "self/: 2 layers" quality self/ cross --repeats 1
check second-folder-too says "cross: 1 layer,"

# ---- Pictures
if quality self --layers 0 --repeats 1 --kinds clustered-4 --plot p.svg > /dev/null \
    2> plot.err; then
    check svg grep -q "<svg" p.svg
    check three-in-a-row quality self self self self self --layers 0 --repeats 1 \
        --kinds clustered-4 --plot rows.svg
    check three-in-a-row-is-wide grep -qE 'svg .*width="990(pt)?" height="6' rows.svg
    check png quality self cross --repeats 1 --plot p.png
    check png-signature sh -c 'head -c 4 p.png | grep -q PNG'
    expect other-picture 2 ".svg or .png" quality self --plot p.pdf
    expect no-place 4 "cannot be written" quality self --plot nowhere/p.png
    check no-leftovers sh -c '! ls | grep -q "\.tmp$"'
else
    check without-cairo grep -q "without cairo" plot.err
    skip pictures "this build has no cairo"
fi

# ---- Interrupts keep what is done
folders=$(for _ in $(seq 200); do echo big; done)
tool interrupt 1.5 "$program" quality $folders --repeats 300 --json >stopped.json
report interrupted "$([ $? = 130 ] || echo "another exit code")"
check interrupted-json tool field stopped.json \
    "d['interrupted'] and len(d['folders']) == 200 and not d['folders'][199]['complete']"
check interrupted-means tool field stopped.json \
    "all(k['relative_error'] >= 0 for x in d['folders'] for k in x['kinds'])"

# ---- Real queries, keys and values
if [ -d "$data/qkv/minilm-l6" ]; then
    check real into real.json quality --json "$data/qkv/minilm-l6" --repeats 1 --samples \
        64 --kinds i-clustered-25,q-clustered-25:topk=32
    check real-half-the-error tool field real.json \
        "k['q-clustered-25:topk=32']\
['relative_error'] <= 0.65 * k['i-clustered-25']['relative_error']"
    check real-rows tool field real.json \
        "k['q-clustered-25:topk=32']['row_l1'] < \
k['i-clustered-25']['row_l1']"
else
    skip real "no $data/qkv/minilm-l6; set SHOAL_DATA"
fi
finish
