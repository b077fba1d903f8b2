#!/usr/bin/env bash
# A short run of every command of the program given as $1, on three threads and on data
# that it makes itself. It is meant for programs built with the thread sanitizer, which
# ends a program with a race by exit code 66, and for installed programs; what commands
# compute is checked by the other scripts.
. "$(dirname "$0")/lib/helpers.sh"
export OMP_NUM_THREADS=3
models=$root/tests/models/text
cat "$lib/tones.py" "$lib/whisper.py" - <<'PYTHON' | tools
def arrays(folder, length, heads, dim):
    os.makedirs(folder)
    draw, shape = random.Random(1), [1, int(heads), int(length), int(dim)]
    for name in "qkv":
        values = [draw.gauss(0, 1) for _ in range(math.prod(shape))]
        write(f"{folder}/layer0_{name}.npy", shape, values)

def squad(path, count):
    draw, paragraphs = random.Random(1), []
    for i in range(int(count)):
        words = ["time"] * draw.randint(2, 9) + ["once", "clusters"]
        context = " ".join(words)
        paragraphs.append({"context": context, "qas": [
            {"id": f"q{i}", "question": "once in time", "answers":
             [{"text": "clusters", "answer_start": context.index("clusters")}]}]})
    json.dump({"data": [{"title": "t", "paragraphs": paragraphs}], "version": "1.1"},
              open(path, "w"))
PYTHON

# every ARGUMENT...: the program succeeds.
commands=()
every() {
    commands+=("$1")
    check "$1 $2" shoal "$@"
}

# ---- Attention -------------------------------------------------------------------------
tool arrays folder 300 2 16
qkv=(folder/layer0_{q,k,v}.npy)
every kinds --json
every model --json
every info --json
for kind in shoal i-clustered-9:topk=8 q-clustered-9 full local-16; do
    every attend $kind "${qkv[@]}" -o out.npy
done
every attend lsh-2 "${qkv[0]}" - "${qkv[2]}" -o out.npy
every demo --max-length 256
every bench --lengths 64..128 --heads 2 --dim 16 --repeats 1 --kinds full,shoal-8 \
    --threads 3
every bench --mode train --lengths 64 --heads 2 --dim 16 --repeats 1 \
    --kinds full,shoal-8 --threads 3
every quality folder --kinds shoal-8,clustered-8 --samples 8 --repeats 1

# ---- Training and text -----------------------------------------------------------------
small=(--layers 1 --set heads=2 --set head_dim=8 --set feed_forward=16)
every train copy "${small[@]}" --set batch=4 --length 8 --steps 6 \
    --set validate_every=3 --set validate_batches=1 --attention shoal-4 --out copied
every eval copied --attention full,clustered-4
every repro copy --out grid "${small[@]:2}" --set layers=1 --set batch=4 \
    --set validate_every=5 --set validate_batches=1 --kinds full,clustered-2 --lengths 5 \
    --steps 5
if shoal plot copied -o curve.svg 2>&1 | grep -q "without cairo"; then
    skip "plot" "the program was built without cairo"
    commands+=(plot)
else
    every plot copied -o curve.svg
fi
printf 'a b\nc b a\nattention in linear time\n' >texts
every embed texts -m "$models/bert" -o vectors.npy
every similar "a b" --in texts -m "$models/bert"
every maps "$models/bert" -q time -c texts
tool squad squad.json 12
every train squad --data squad.json --dev squad.json --model "$models/bert" --batch 4 \
    --set max_length=64 --set stride=16 --steps 3 --out squad
every answer squad -q "once in time" -c texts

# ---- Speech ----------------------------------------------------------------------------
if shoal transcribe --help 2>&1 | grep -q "built without"; then
    skip "speech" "the program was built without it"
    commands+=(transcribe recognise wer)
else
    tool model small.bin
    tool wav talk.wav 2
    every transcribe talk.wav -m small.bin --no-fallback --attention shoal
    tool make data/train 8 1
    tool make data/dev 3 100
    every train speech data --labels phones --cache cache --set hop=2 --set context=6 \
        "${small[@]}" --set batch_frames=300 --set validate_every=3 --steps 4 --out heard
    every recognise heard data/dev/s0-000.wav
    every wer data/dev -m small.bin --attention full,shoal --no-time
fi

# ---- That was all ----------------------------------------------------------------------
listed=$(shoal --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p' | grep -v '^shoal$' |
    sort -u)
report "every command ran" "$(comm -23 <(echo "$listed") \
    <(printf '%s\n' "${commands[@]}" | sort -u))"
finish
