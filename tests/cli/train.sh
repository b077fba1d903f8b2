#!/usr/bin/env bash
# Runs shoal train, eval, plot and repro: PROGRAM is $1.
. "$(dirname "$0")/lib/helpers.sh"
tools <<'PYTHON'
# Changes the result of the grid's first cell.
def accuracy(name, value):
    results = json.load(open(name))
    results["cells"]["full/3"]["accuracy"] = float(value)
    json.dump(results, open(name, "w"))

# Writes a checkpoint again with a field of its configuration changed, or with NaN in a
# tensor; without a checksum.
def remake(old, new, change):
    raw = open(old, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    head, data = json.loads(raw[8:8 + size]), bytearray(raw[8 + size:])
    key, value = change.split("=", 1)
    del head["__metadata__"]["shoal.checksum"]
    if key == "nan":
        struct.pack_into("<f", data, head[value]["data_offsets"][0], math.nan)
    else:
        head["__metadata__"]["config." + key] = value
    text = json.dumps(head).encode()
    open(new, "wb").write(struct.pack("<Q", len(text)) + text + data)

# Whether a table or a file of TensorBoard events has the numbers of a log.
def exported(log, path):
    def crc(data):
        crc = 0xffffffff
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
        return crc ^ 0xffffffff
    assert crc(b"123456789") == 0xe3069283 # the check value of CRC-32C
    def masked(data):
        return ((crc(data) >> 15 | crc(data) << 17) + 0xa282ead8) & 0xffffffff
    def fields(data): # of a message: {number: value}
        found, at = {}, 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte, at = data[at], at + 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value
        while at < len(data):
            key = varint()
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            if key & 7:
                found[key >> 3], at = data[at:at + size], at + size
            else:
                found[key >> 3] = size
        return found
    wanted, got = {}, {}
    for line in map(json.loads, open(log)):
        for name in ("loss", "learning_rate", "validation_loss", "validation_accuracy"):
            if "step" in line and name in line:
                wanted[line["step"], name] = line[name]
    if path.endswith(".csv"):
        rows = [line.rstrip("\n").split(",") for line in open(path)]
        got = {(int(row[0]), name): float(value) for row in rows[1:]
               for name, value in zip(rows[0], row) if value}
    else:
        data, at = open(path, "rb").read(), 0
        while at < len(data):
            size, = struct.unpack("<Q", data[at:at + 8])
            event = data[at + 12:at + 12 + size]
            sums = struct.unpack("<I", data[at + 8:at + 12]) + struct.unpack(
                "<I", data[at + 12 + size:at + 16 + size])
            if sums != (masked(data[at:at + 8]), masked(event)):
                sys.exit("a checksum is wrong")
            event = fields(event)
            if at == 0 and event[3] != b"brain.Event:2":
                sys.exit("no version")
            if at > 0:
                value = fields(fields(event[5])[1])
                name = value[1].decode().replace("train/", "").replace("/", "_")
                got[event[2], name], = struct.unpack("<f", value[2])
            at += size + 16
    wrong = [key for key in wanted if abs(got.get(key, 1e9) - wanted[key]) > 1e-6]
    if wrong or not wanted:
        sys.exit(f"{len(wrong)} of {len(wanted)} are wrong, such as {wrong[:1]}")
PYTHON

small=(--layers 1 --batch 4 --length 5 --set heads=2 --set head_dim=8
    --set feed_forward=16 --set validate_every=10 --set validate_batches=2
    --set dropout=0.1 --set average=0.9)

train() { # $1 folder, then more options
    local folder=$1
    shift
    shoal train copy "${small[@]}" --out "$folder" "$@"
}

steps_of() { grep -c '"step": [0-9]*, "loss"' "$1/log.jsonl"; } # a folder's, in the log
curve() { sed 's/, "seconds": [0-9.e-]*//' "$1/log.jsonl"; } # all but the time
same_curve() { # $1 name, $2 $3 folders
    report "$1" "$(diff <(curve "$2") <(curve "$3") | head -5)"
}

tensors() { # the bytes after the header of a folder's checkpoint
    python3 -c "import struct,sys; b = open('$1/checkpoint.safetensors', 'rb').read()
sys.stdout.buffer.write(b[8 + struct.unpack('<Q', b[:8])[0]:])"
}

# ---- The command line ------------------------------------------------------------------
expect "help" 0 "(default: 0.0002;" shoal train --help
expect "no task" 2 "no task" shoal train
expect "two tasks" 2 "one task" shoal train copy copy
expect "unknown task" 2 'there is no task "fly"; tasks: copy' shoal train fly -o x
expect "no folder" 2 "no folder" shoal train copy
expect "unknown flag" 2 "did you mean --layers?" shoal train copy --lairs 3 -o x
expect "unknown field" 2 "did you mean dropout?" shoal train copy --set drop_out=1 -o x
expect "wrong value" 2 "layers is \"0\"" shoal train copy --layers 0 -o x
expect "wrong kind" 2 "clusterd" shoal train copy --attention clusterd-3 -o x
report "refusals leave no folder" "$([ -e x ] && echo "x is there")"

expect "print-config" 0 '"feed_forward": 768' shoal train copy --print-config
shoal train copy --print-config --layers 3 --attention i-clustered-9:topk=4 >full.json
expect "config file" 0 '"layers": 3' shoal train copy --config full.json --print-config
report "print-config is a config" "$(diff full.json out)"
expect "flags win" 0 '"layers": 2' shoal train copy --layers 2 --config full.json \
    --print-config
echo '{"layers": 2, "lairs": 3}' >wrong.json
expect "unknown key" 3 'wrong.json: there is no field "lairs"' shoal train copy \
    --config wrong.json -o x
echo '{"layers": -2}' >wrong.json
expect "wrong value in a file" 3 'wrong.json: layers is "-2"' shoal train copy \
    --config wrong.json -o x
expect "no such file" 3 "nothere.json: cannot open it: No such file" shoal train copy \
    --config nothere.json -o x
expect "a folder for a file" 3 "is a directory" shoal train copy --config . -o x
echo '{"layers": [2]}' >wrong.json
expect "wrong type" 3 "layers must be" shoal train copy --config wrong.json -o x
echo '{"layers": 2' >wrong.json
expect "not JSON" 3 "wrong.json: line" shoal train copy --config wrong.json -o x

# ---- Training --------------------------------------------------------------------------
expect "trains" 0 "40 of 40 steps" train whole --steps 40 --threads 1
report "a line per step" \
    "$([ "$(steps_of whole)" = 40 ] || echo "not 40 lines")"
report "a line per validation" \
    "$([ "$(grep -c validation_loss whole/log.jsonl)" = 4 ] || echo "not 4 lines")"
expect "does not overwrite" 2 "already contains a training" train whole --steps 40
expect "resuming the finished" 0 "40 of 40 steps" train whole --resume
expect "threads" 0 "test" train threads --steps 40 --threads 3
same_curve "threads change nothing" whole threads
expect "json" 0 '"finished": true' train json --steps 10 --json
check "json is whole" json 'd["test"]["counted"] == 160 and d["config"]["layers"] == 1'
expect "other layers" 3 "the checkpoint has layers = 1" shoal train copy --layers 2 \
    --resume --out whole
expect "longer" 0 "60 of 60 steps" shoal train copy --resume --out whole --steps 60
report "the longer log" \
    "$([ "$(steps_of whole)" = 60 ] || echo "not 60 lines")"

mkdir mine
expect "a refused training" 2 "layers" shoal train copy --out mine --layers 100000
report "leaves a folder that was there" "$([ -d mine ] || echo "it is gone")"
expect "a refused training in new folders" 2 "layers" shoal train copy \
    --out new/er/est --layers 0
report "makes none of them" "$([ -e new ] && echo "new is there")"

# ---- Killed at any moment --------------------------------------------------------------
train straight --steps 60 --attention clustered-3 >/dev/null
killed_to_the_end 100 "$program" train copy "${small[@]}" --steps 60 \
    --attention clustered-3
same_curve "the curve of the killed one" straight killed
touch killed/.shoal-999999999-0.tmp
shoal train copy --resume --out killed >/dev/null
report "nothing is left behind" "$(ls -A killed | grep tmp)"
report "the final weights are the same" "$(cmp <(tensors straight) <(tensors killed))"

# A log that is ahead of its checkpoint, with an incomplete line, is cut back.
cp -r straight ahead
train ahead2 --steps 20 --attention clustered-3 >/dev/null
cp ahead2/checkpoint.safetensors ahead/
printf '{"step": 61, "lo' >>ahead/log.jsonl
expect "an early checkpoint" 0 "60 of 60" shoal train copy --resume --out ahead \
    --steps 60
same_curve "no line twice" straight ahead

# A log that ends before its checkpoint was damaged: nothing after the damage is removed.
cp -r straight damaged
sed -i '11s/.*/{"step": 10, "lo/' damaged/log.jsonl
cp damaged/log.jsonl damaged.jsonl
expect "a damaged log" 3 "log.jsonl: line 11 is damaged" shoal train copy --resume \
    --out damaged --steps 70
report "stays as it is" "$(cmp damaged/log.jsonl damaged.jsonl)"
wrong_log() { # NAME WORDS SED-SCRIPT: a log changed by it is rejected and kept
    sed "$3" straight/log.jsonl >damaged/log.jsonl
    cp damaged/log.jsonl damaged.jsonl
    expect "$1" 3 "$2" shoal train copy --resume --out damaged --steps 70
    check "$1 says what to do" says "repair the log, or move it away"
    report "$1 stays" "$(cmp damaged/log.jsonl damaged.jsonl)"
}
wrong_log "a hole in the log" "line 20 is of step 23: lines before it are missing" 20,25d
wrong_log "one step less" "line 30 is of step 28" 30d
wrong_log "no validation" "comes without the validation of step 20" \
    '/20, "validation_loss/d'
wrong_log "no last validation" "is missing" '/60, "validation_loss/d'
wrong_log "a line twice" "or it is a duplicate" '40{p}'
wrong_log "the last line twice" "or it is a duplicate" '${p}'
wrong_log "a validation twice" "or it is a duplicate" '/30, "validation_loss/p'
wrong_log "no end" "is missing" '50,$d'
wrong_log "no configuration" "line 1 is not the configuration" 1d
wrong_log "two logs in one" "begins another log" '30{r straight/log.jsonl
}'
rm damaged/log.jsonl
expect "without its log" 0 "70 of 70" shoal train copy --resume --out damaged --steps 70
report "begins another" "$([ "$(steps_of damaged)" = 10 ] || echo "not 10 lines")"
expect "the other log goes on" 0 "80 of 80" shoal train copy --resume --out damaged \
    --steps 80
sed -i 2d damaged/log.jsonl
expect "the other log with a hole" 3 "line 2 is of step 62" shoal train copy --resume \
    --out damaged --steps 90
cp -r straight half
printf '{"step": 61, "loss"' >>half/log.jsonl
expect "half a line at the end" 0 "70 of 70" shoal train copy --resume --out half \
    --steps 70
report "is cut off" "$([ "$(steps_of half)" = 70 ] || echo "not 70 lines")"

# A log without its checkpoint is neither cut nor continued.
cp -r straight lost
rm lost/checkpoint.safetensors
expect "a lost checkpoint" 3 "checkpoint lost/checkpoint.safetensors is missing" \
    shoal train copy --resume --out lost --steps 60
report "leaves the log" "$(cmp straight/log.jsonl lost/log.jsonl)"
printf 'no newline' >lost/log.jsonl
expect "another file for a log" 3 "is missing" train lost --resume --steps 3
report "is left" "$([ "$(cat lost/log.jsonl)" = "no newline" ] || echo "it is gone")"
printf '{"shoal": "0.' >lost/log.jsonl
expect "a log that hardly began" 0 "3 of 3" train lost --resume --steps 3
rm lost/checkpoint.safetensors
head -1 straight/log.jsonl >lost/log.jsonl
expect "a log that only began" 0 "3 of 3" train lost --resume --steps 3
"$program" train copy "${small[@]}" --out fast --steps 1000000 --save-seconds 1000000 \
    >/dev/null 2>&1 &
pid=$!
for ((i = 0; i < 200; i++)); do
    [ "$(wc -l 2>/dev/null <fast/log.jsonl || echo 0)" -gt 5 ] && break
    sleep 0.05
done
kill -9 $pid
wait $pid 2>/dev/null
expect "killed before it saved" 0 "5 of 5" train fast --resume --steps 5
report "begins again" "$([ "$(steps_of fast)" = 5 ] || echo "not 5 lines")"

# Damage inside the checkpoint.
cp -r straight flipped
python3 - flipped/checkpoint.safetensors <<'PYTHON'
import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(-1001, 2)
    byte = file.read(1)[0]
    file.seek(-1001, 2)
    file.write(bytes([byte ^ 4]))
PYTHON
expect "a flipped bit" 3 "the file is damaged" train flipped --resume --steps 70 \
    --attention clustered-3
expect "a flipped bit: eval" 3 "the file is damaged" shoal eval flipped
tool remake straight/checkpoint.safetensors huge.safetensors heads=1024
expect "a small file of a large model" 3 "embedding.weight' has another shape" \
    limited eval huge.safetensors
tool remake straight/checkpoint.safetensors nan.safetensors nan=output.bias
expect "weights that are no numbers" 3 "tensor 'output.bias' has a NaN" \
    shoal eval nan.safetensors
tool remake straight/checkpoint.safetensors red.safetensors $'task=\033[31mred\n'
expect "no colours from a file" 3 'task "?[31mred?"' shoal eval red.safetensors

# ---- Interrupted -----------------------------------------------------------------------
python3 tool.py interruptible "$program" train copy "${small[@]}" --out interrupted \
    --steps 1000000 >/dev/null 2>interrupted.err &
pid=$!
for ((i = 0; i < 200; i++)); do
    sleep 0.05
    [ "$(wc -l 2>/dev/null <interrupted/log.jsonl || echo 0)" -gt 20 ] && break
done
expect "one at a time" 4 "another process is training" train interrupted --resume
kill -INT $pid
wait $pid
report "interrupted: 130" "$([ $? = 130 ] || echo "another exit code")"
steps=$(steps_of interrupted)
report "says how to go on" \
    "$(grep -q -- "train copy --resume --out interrupted" interrupted.err ||
        cat interrupted.err)"
more=$((steps + 7))
expect "goes on" 0 "$more of $more steps" shoal train copy --resume \
    --out interrupted --steps $more
report "and misses nothing" "$(diff \
    <(grep -o '"step": [0-9]*, "loss"' interrupted/log.jsonl) \
    <(seq -f '"step": %.0f, "loss"' $more) | head -3)"

# A second signal ends the program at once, but not inside a checkpoint.
cat >twice.py <<'PYTHON'
import os, random, shutil, signal, subprocess, sys, time
for _ in range(5):
    shutil.rmtree("twice", ignore_errors=True)
    run = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, preexec_fn=lambda:
                           signal.signal(signal.SIGINT, signal.SIG_DFL))
    while not os.path.exists("twice/checkpoint.safetensors") and run.poll() is None:
        time.sleep(0.01)
    time.sleep(random.random() / 10)
    run.send_signal(signal.SIGINT)
    time.sleep(random.random() / 50)
    run.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.returncode
    assert not [name for name in os.listdir("twice") if name.endswith(".tmp")]
PYTHON
check "interrupted twice" python3 twice.py "$program" train copy --out twice --layers 2 \
    --length 5 --batch 2 --save-seconds 0 --set feed_forward=3000

# ---- Evaluation and pictures -----------------------------------------------------------
expect "eval" 0 "trained with full" shoal eval whole --attention full,clustered-3
expect "eval json" 0 '"kinds"' shoal eval whole/checkpoint.safetensors --json \
    --attention full,clustered-100,i-clustered-2:topk=1,seed=3 --batches 2
check "eval json is whole" json \
    'len(d["kinds"]) == 3 and abs(d["kinds"][0]["loss"] - d["kinds"][1]["loss"]) < 1e-5'
expect "eval with lsh" 3 "shared_qk" shoal eval whole --attention lsh-1
expect "another spelling of the trained one" 0 "* clustered-3 " shoal eval straight \
    --attention full,clustered-3:bits=63
expect "eval to a full disk" 4 "could not be written" \
    into /dev/full shoal eval straight --batches 1
expect "eval of nothing" 3 "nowhere" shoal eval nowhere
expect "eval of a text" 3 "full.json" shoal eval full.json
expect "misspelt kind" 2 "clusterd" shoal eval whole --attention clusterd-1
expect "misspelt kind, before anything is read" 2 "clusterd" shoal eval nowhere \
    --attention full,clusterd-1
expect "one kind that cannot be" 3 "shared_qk" shoal eval whole --attention full,lsh-1 \
    --batches 1000000
expect "no picture" 2 "output is missing" shoal plot whole
expect "no log" 3 "nowhere" shoal plot nowhere -o x.svg
check "a table" shoal plot whole -o curve.csv
check "has the log's numbers" tool exported whole/log.jsonl curve.csv
check "events for TensorBoard" shoal plot whole/log.jsonl -o events.out.tfevents.1
check "have the log's numbers" tool exported whole/log.jsonl events.out.tfevents.1
expect "a table of no log" 3 "nowhere" shoal plot nowhere -o x.csv
expect "a table of what is no log" 3 "line 1 is damaged" shoal plot full.json -o x.csv
expect "log is no log" 3 "line 1" shoal plot full.json -o x.svg
if shoal plot whole killed -o curves.svg 2>err; then
    report "plot svg" "$(grep -q "<svg" curves.svg || echo "no svg")"
    shoal plot whole -o curves.png
    report "plot png" "$(head -c 4 curves.png | grep -q PNG || echo "no png")"
    # Pipes and links are kept, and permissions too.
    mkfifo pipe.svg
    timeout 20 cat pipe.svg >piped.svg & # a pipe that is gone has no writer
    shoal plot whole -o pipe.svg
    wait $!
    report "plot to a pipe" \
        "$([ -p pipe.svg ] && grep -q "<svg" piped.svg || echo "no svg")"
    touch mine/real.svg
    chmod 600 mine/real.svg
    ln -s mine/real.svg link.svg
    shoal plot whole -o link.svg
    report "plot through a link" "$([ -L link.svg ] && grep -q "<svg" mine/real.svg &&
        [ "$(stat -c %a mine/real.svg)" = 600 ] || ls -l link.svg mine)"
    printf '{"step": %s, "loss": %s, "accuracy": 0}\n' 100000000000000000 1 \
        100000000000000016 1.7e308 100000000000000032 -1.7e308 >huge.jsonl
    timeout 60 "$program" plot huge.jsonl -o huge.svg
    report "numbers beyond measure" "$([ $? = 0 ] || echo "exit code or timeout")"
    report "are not drawn" "$(grep -i "[^a-z]nan\|[^a-z]inf" huge.svg | head -1)"
else
    report "plot without cairo says so" "$(grep -q cairo err || cat err)"
fi

# ---- The grid --------------------------------------------------------------------------
repro() {
    shoal repro copy --out grid --set layers=1 --set heads=2 --set head_dim=8 \
        --set feed_forward=16 --set batch=4 --set validate_every=5 \
        --set validate_batches=1 --kinds full,clustered-2,clustered-4,lsh-1 \
        --lengths 5,3 "$@"
}
expect "nothing yet" 3 "grid" repro --show
expect "no experiment" 2 "no experiment" shoal repro --out grid
expect "another experiment" 2 "experiments are copy, speech, lf-mmi and text" \
    shoal repro fly --out grid
expect "part of the grid" 0 '"finished": true' shoal repro copy --out grid --steps 8 \
    --set layers=1 --set heads=2 --set head_dim=8 --set feed_forward=16 --set batch=4 \
    --set validate_every=5 --set validate_batches=1 --kinds full --lengths 3,5 --json
check "part: json" json 'all(c["finished"] and c["steps"] == 8 for c in d["cells"])'
expect "the grid" 0 "all steps" repro --steps 8
cp grid/results.json first.json
expect "again does nothing" 0 "all steps" repro --steps 8
report "results stay" "$(cmp grid/results.json first.json)"
expect "markdown" 0 "| clustered-2 |" repro --show --markdown
expect "grid json" 0 '"stopped_early"' repro --show --json
check "grid json is whole" json \
    'len(d["cells"]) == 8 and [c["positions"] for c in d["cells"]] == [8] * 4 + [12] * 4'
expect "another seed" 3 "another seed" repro --steps 8 --seed 9
expect "the grid's own fields" 2 "use --lengths" repro --set length=3
expect "wrong field" 2 "steps is" shoal repro copy --out other --set steps=abc
report "wrong field: no folder" "$([ -e other ] && echo "other is there")"
for cell in 5 '{}' '{"accuracy": 5}'; do
    echo "{\"cells\": {\"full/3\": $cell}}" >mine/results.json
    expect "a damaged result: $cell" 3 'cell "full/3" is not a valid result' \
        shoal repro copy --out mine --show
done
pair() {
    shoal repro copy --out pair --set layers=1 --set heads=2 --set head_dim=8 \
        --set feed_forward=16 --set batch=4 --kinds full,clustered-2,lsh-1 --lengths 3,5 \
        --steps 30 "$@"
}
pair --seed 123456789 >/dev/null 2>&1 &
other=$!
pair --seed 123456789 >/dev/null 2>&1
code=$?
wait $other || code=$?
report "two processes share a grid" "$([ $code = 0 ] || echo "exit code $code")"
expect "the shared grid is whole" 0 '"finished"' pair --show --json
check "the shared grid: all cells" json 'all(c["finished"] for c in d["cells"])'
expect "seeds that are one float" 3 "another seed" pair --seed 123456790
rm pair/results.json
expect "a cell of another seed" 3 "has seed = 123456789, but this training has 1" pair
expect "is not taken over" 0 '"finished": false' pair --show --json
echo no checkpoint >pair/cells/full_L3/checkpoint.safetensors
expect "a damaged cell" 3 "1 cell failed" pair --seed 123456789
expect "and the others go on" 0 '"finished"' pair --show --json
check "all but the damaged one" json 'sum(c["finished"] for c in d["cells"]) == 5'
expect "more steps" 0 "all steps" repro --steps 12
expect "more steps: json" 0 '"steps": 12' repro --show --json
report "cells go on where they were" \
    "$([ "$(steps_of grid/cells/full_L3)" = 12 ] || echo "not 12 lines")"
mv grid/results.json finished.json
expect "cells without a result say how far they are" 0 "not finished: last validation" \
    repro --show
expect "unfinished: markdown" 0 "| unfinished: " repro --show --markdown
expect "unfinished: json" 0 '"validation_accuracy"' repro --show --json
check "unfinished: none finished" json \
    'not any(c["finished"] or "accuracy" in c for c in d["cells"])'
mv finished.json grid/results.json
cat >own.json <<'JSON'
{"task": "copy", "result": "test", "name": "{attention}-{seed:0}",
 "axes": [{"field": "seed", "values": [1, 2]},
          {"field": "attention", "values": ["full", "clustered-2"]}],
 "settings": {"layers": 1, "heads": 2, "head_dim": 8, "feed_forward": 16, "batch": 4,
              "length": 3, "validate_every": 4, "validate_batches": 1},
 "show": [{"columns": [["right", "{correct:0} of {counted:0}"], ["ended", "{state}"]]}]}
JSON
expect "a table of one's own, one cell" 0 " of " shoal repro own.json --out own \
    --steps 8 --only clustered-2-2
expect "its status" 0 "1 done, 0 running, 3 left; 0.0 hours" shoal repro own.json \
    --out own --steps 8 --status
check "trains nothing" test "$(ls own/cells)" = clustered-2-2
expect "all of it" 0 "clustered-2-1" shoal repro own.json --out own --steps 8
check "both seeds" test "$(ls own/cells | wc -l)" = 4
expect "calibration" 0 "per step" shoal repro own.json --out own --calibrate
check "is kept" python3 -c 'import json; d = json.load(open("own/calibration.json"))
assert len(d["seconds_per_step"]) == 4 and d["commit"] is not None and d["machine"]'
expect "a misspelt field of a table" 2 "did you mean layers" shoal repro own.json \
    --out own --set layer=2
echo '{"axes": []}' >none.json
expect "no table" 3 'a table needs "task" and "axes"' shoal repro none.json --out none
if [ -e curves.svg ]; then
    report "heatmaps" \
        "$(grep -q "<svg" grid/copy.svg && [ -s grid/copy.png ] || echo "none")"
    glyphs() { # ACCURACY: letters in the picture if the first cell has it
        tool accuracy grid/results.json "$1"
        repro --show >/dev/null && grep -o "<use" grid/copy.svg | wc -l
    }
    report "99.99 is neither 99.9 nor 100 in them" \
        "$([ $(($(glyphs 0.9999) - $(glyphs 1.0))) = 2 ] || echo "it is")"
fi
finish
