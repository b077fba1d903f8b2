#!/usr/bin/env bash
# Runs `shoal bench` of the program given as $1 on tiny problems: its output, wrong
# results without a time, and interrupts, which keep the results so far.
. "$(dirname "$0")/lib/helpers.sh"
bench() { shoal bench "$@"; }

small="--lengths 40..160 --heads 2 --dim 16 --repeats 2 --threads 2"
kinds=full,shared-full,clustered-9,i-clustered-9:topk=8,bits=31,lsh-1,lsh-3,oracle-top-5

tools <<'PYTHON'
def rows_of(path):
    with open(path) as file:
        return json.load(file)

def everything(path, mode, scope="attention"):
    d = rows_of(path)
    rows = d["rows"]
    assert len(rows) == 3 * 7, len(rows)
    assert d["settings"]["mode"] == mode and not d["interrupted"]
    assert d["settings"]["scope"] == scope
    least = {"attention": (1, 3), "layer": (2, 8)}[scope][mode == "train"]
    assert d["machine"]["threads"] == 2 and d["machine"]["cpu"]
    assert d["reference"]["triad_bytes_per_second"] > 0
    for r in rows:
        assert r["measured"] and r["verified"], r
        assert len(r["seconds"]) == 2 and 0 < r["best_seconds"] <= r["median_seconds"]
        assert r["plan_bytes"] > 0 and r["ops_per_second"] > 0
        assert len(r["checks"]) >= least, r
        for c in r["checks"]:
            assert 0 <= c["error"] < c["tolerance"] <= 5e-3, c
    assert {r["kind"] for r in rows} >= {"full", "lsh-3", "i-clustered-9:topk=8,bits=31"}
    assert "full" not in d["faster_than_full_from"]

def table(path, columns):
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 21, len(rows)
    assert all(len(r) == int(columns) and None not in r.values() for r in rows)
    assert all(float(r["best_seconds"]) > 0 and r["measured"] == "1" for r in rows)
    assert [r["length"] for r in rows[::7]] == ["40", "80", "160"]

def png(path):
    raw = open(path, "rb").read()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n" and raw[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", raw[16:24])
    assert width > 1000 and height > 500 and len(raw) > 20000

def svg(path):
    import xml.etree.ElementTree as tree
    root = tree.parse(path).getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter())) > 100

def estimated(path):
    rows = rows_of(path)["rows"]
    left = [r for r in rows if not r["measured"]]
    assert left and all(r["estimated_seconds"] > 0 and r["length"] == 60000000
                        for r in left), left
    assert "best_seconds" not in left[0]

def wrong(path):
    rows = rows_of(path)["rows"]
    assert rows and not any(r["measured"] or r["verified"] for r in rows)
    assert not any("best_seconds" in r for r in rows)

# Interrupts it when the shorter lengths are done; their results must be printed.
def interrupt(program, *arguments):
    run = subprocess.Popen([program, "bench", *arguments], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, preexec_fn=lambda:
                           signal.signal(signal.SIGINT, signal.default_int_handler))
    seen = ""
    while "    256  lsh-4" not in seen:
        line = run.stdout.readline()
        assert line, run.stderr.read()
        seen += line
    time.sleep(0.2)
    begun = time.monotonic()
    run.send_signal(signal.SIGINT)
    rest, errors = run.communicate(timeout=60)
    assert run.returncode == 130, (run.returncode, errors)
    assert time.monotonic() - begun < 30
    assert "Interrupted" in rest, rest
    with open("stopped.csv") as file:
        lengths = {r["length"] for r in csv.DictReader(file) if r["measured"] == "1"}
    assert {"128", "256"} <= lengths, lengths
    if "--plot" in arguments:
        png("stopped.png")

PYTHON

# ---- What it prints and writes  --------------------

plots=no
bench --lengths 8 --kinds full --repeats 1 --heads 1 --dim 4 --plot probe.svg \
    >/dev/null 2>probe.txt && plots=yes
plot() { [ $plots = no ] || echo "--plot $1"; }

# shellcheck disable=SC2046,SC2086
{
    check "bench forward runs" into forward.json bench $small --kinds $kinds --json \
        --csv forward.csv $(plot forward.png)
    check "bench forward: every row verified" tool everything forward.json \
        forward
    check "bench csv has its columns" tool table forward.csv 15
    check "bench train runs" into train.json bench $small --kinds $kinds --mode train \
        --json --value-dim 24 --batch 2 $(plot train.svg)
    check "bench train: gradients verified" tool everything train.json train
    check "bench train: shoal's rest that follows each query" into tilted.json \
        bench --lengths 300 --heads 2 --dim 16 --repeats 1 --kinds shoal --mode train \
        --json
    check "bench layer forward runs" into layer.json bench $small --kinds $kinds --json \
        --scope layer --csv layer.csv $(plot layer.svg)
    check "bench layer: every row verified" tool everything layer.json \
        forward layer
    check "bench layer csv" tool table layer.csv 15
    check "bench layer train runs" into layers.json bench $small --kinds $kinds --json \
        --scope layer --mode train --batch 2 --feed-forward 40
    check "bench layer train: gradients verified" tool everything \
        layers.json train layer
}
if [ $plots = yes ]; then
    check "bench png" tool png forward.png
    check "bench svg" tool svg train.svg
else
    check "bench without cairo says so" grep -q "without cairo" probe.txt
    skip "bench png and svg" "this build has no cairo"
fi
text_mode() {
    into table.txt bench --lengths 64,100 --heads 1 --dim 8 --kinds full,clustered-5 \
        --repeats 1 &&
        grep -qE '^ +64  full ' table.txt && grep -qE '^ +100  clustered-5 ' table.txt &&
        grep -q 'All times are of verified results' table.txt
}
check "bench table" text_mode
check "bench estimates what exceeds the budget" into estimate.json bench --lengths \
    64,60000000 --kinds full --heads 1 --dim 1 --repeats 1 --budget 600 --json
# The long one would take weeks on any machine: it is estimated, and its large inputs are
# not even created.
check "bench estimate is marked" tool estimated estimate.json

# ---- A wrong result gets no time  --------------------

cat >spoil.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
/* Makes the array that SPOIL names (o, q, k or v; of a layer O, or F for the features'
   gradient) wrong by a thousandth, or a gradient by a hundredth; 32 positions of 8 in one
   head. W: the gradient of the layer's first weight. */
static void spoil(char what, float *array, float factor) {
    for (int i = 0; i < 32 * 8 && array && getenv("SPOIL")[0] == what; i++)
        array[i] *= factor;
}
int shoal_forward(void *plan, const void *inputs, float *out) {
    typedef int function(void *, const void *, float *);
    function *real = (function *)dlsym(RTLD_NEXT, "shoal_forward");
    int status = real(plan, inputs, out);
    spoil('o', out, 1.001f);
    return status;
}
struct gradients { unsigned long size; const float *out, *dout; float *dq, *dk, *dv; };
int shoal_backward(void *plan, const void *inputs, const struct gradients *g) {
    typedef int function(void *, const void *, const struct gradients *);
    function *real = (function *)dlsym(RTLD_NEXT, "shoal_backward");
    int status = real(plan, inputs, g);
    spoil('q', g->dq, 1.01f);
    spoil('k', g->dk, 1.01f);
    spoil('v', g->dv, 1.01f);
    return status;
}
int shoal_model_forward(void *model, const void *inputs, float **out) {
    typedef int function(void *, const void *, float **);
    function *real = (function *)dlsym(RTLD_NEXT, "shoal_model_forward");
    int status = real(model, inputs, out);
    spoil('O', *out, 1.001f);
    return status;
}
struct parameter {
    const char *name;
    int rank;
    int64_t shape[8];
    float *values, *slopes;
};
int shoal_model_parameter(void *model, int index, struct parameter *parameter);
int shoal_model_backward(void *model, const void *inputs, float *dout, float *dfeatures) {
    typedef int function(void *, const void *, float *, float *);
    function *real = (function *)dlsym(RTLD_NEXT, "shoal_model_backward");
    struct parameter first;
    int status = real(model, inputs, dout, dfeatures);
    spoil('F', dfeatures, 1.01f);
    if (getenv("SPOIL")[0] == 'W' && shoal_model_parameter(model, 0, &first))
        for (int i = 0; i < 64; i++)
            first.slopes[i] *= 1.01f;
    return status;
}
C
spoiled() { # WHAT KINDS ARGUMENTS...
    SPOIL=$1 LD_PRELOAD=$work/spoil.so "$program" bench --lengths 64 --heads 1 --dim 8 \
        --json --kinds "$2" "${@:3}" >spoiled.json 2>err
    [ $? = 1 ] && grep -q "a result is wrong" err &&
        tool wrong spoiled.json
}
if [ $sanitized = no ] && cc -shared -fPIC -o spoil.so spoil.c -ldl 2>/dev/null; then
    check "bench: a wrong result gets no time" spoiled o \
        full,shared-full,clustered-9,i-clustered-9,lsh-2,oracle-top-5
    for what in q k v; do
        own_keys=full,clustered-9,i-clustered-9,oracle-top-5
        [ $what = k ] || own_keys=$own_keys,shared-full,lsh-2
        check "bench: a wrong d$what gets no time" spoiled $what $own_keys --mode train
    done
    everyone=full,shared-full,clustered-9,i-clustered-9,lsh-2,oracle-top-5
    everyone+=,q-clustered-9
    check "bench layer: a wrong output gets no time" spoiled O \
        $everyone --scope layer
    for what in F W; do
        check "bench layer: a wrong gradient ($what) gets no time" \
            spoiled $what $everyone --scope layer --mode train
    done
else
    skip "bench: a wrong result gets no time" "needs cc and no sanitizer"
fi

# Gradients near 0 are compared with the rounding error of the loss.
check "bench train on few positions" bench --mode train --lengths 1,2,33,64 \
    --repeats 1 --threads 1 \
    --kinds full,shared-full,lsh-1,lsh-4,shoal-5,q-clustered-5
check "bench train of a layer on few positions" bench \
    --scope layer --mode train --lengths 1,2,3 --repeats 1 --threads 1 --heads 2 --dim \
        16 --kinds full,lsh-1

# ---- Interrupts  --------------------

# shellcheck disable=SC2046
check "bench interrupted keeps what is measured" tool interrupt "$program" \
    --lengths 128,256,16384 --heads 2 --dim 16 --repeats 1 --threads 1 --csv stopped.csv \
    --kinds full,lsh-4,oracle-top-32 $(plot stopped.png)

# Nothing reads the pipe: the second signal ends it, even if the first is printing a
# report.
unread_pipe() {
    mkfifo pipe.csv
    "$program" bench --lengths 64 --kinds full --repeats 1 --threads 1 --csv pipe.csv \
        >pipe.txt 2>&1 &
    local pid=$! code
    for ((i = 0; i < 300; i++)); do # until the table stands there
        grep -q "full" pipe.txt && break
        sleep 0.1
    done
    sleep 0.5
    kill -TERM $pid
    sleep 1
    kill -TERM $pid 2>/dev/null
    sleep 1
    kill -KILL $pid 2>/dev/null
    wait $pid
    code=$?
    [ $code = 143 ] || { echo "exit code $code"; cat pipe.txt; return 1; }
}
check "bench ends before a pipe that nobody reads" unread_pipe

# ---- Refusals  --------------------

expect "bench --help" 0 "usage: shoal bench" bench --help
check "bench shows shoal by default" says "full,shoal,clustered-100"
expect "bench refuses a kind" 2 "clusterd-9" bench --kinds clusterd-9
expect "bench refuses a length" 2 "--lengths" bench --lengths 12,x
expect "bench refuses lengths that shrink" 2 "must increase" bench --lengths 64,32
expect "bench refuses a mode" 2 "forward or train" bench --mode backward
expect "bench refuses a scope" 2 "must be attention or layer" bench --scope model
expect "bench refuses a feed-forward without a layer" 2 "needs --scope layer" bench \
    --feed-forward 64
expect "bench refuses values of another size in a layer" 2 \
    "needs --value-dim equal to --dim" bench --scope layer --value-dim 32
expect "bench refuses repeats" 2 "--repeats" bench --repeats 0
expect "bench refuses an instruction set" 2 "isa" bench --isa sse9
expect "bench refuses an option" 2 "did you mean --kinds" bench --knds full
expect "bench refuses a word" 2 "unexpected argument" bench full
expect "bench refuses a folder that is not there" 4 "nowhere/x.csv" bench \
    --csv nowhere/x.csv
[ $plots = no ] || expect "bench refuses other pictures" 2 ".svg or .png" bench \
    --plot x.pdf
finish
