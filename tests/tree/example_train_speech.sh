#!/bin/bash
# examples/train_speech.c on a tiny data folder: interrupted, killed and restarted it
# gives the bits of an uninterrupted training, and is evaluated with two kinds. Then
# examples/recognise.c, in the same folder, uses the model.
#     example_train_speech.sh PROGRAM
. "$(dirname "$0")/../report.sh"
program=$(realpath "$1")
lib=$(realpath "$(dirname "$0")/../cli/lib")
cd "$work" || exit 1
python3 - "$lib" <<'PYTHON' || exit 1
import sys
sys.path.insert(0, sys.argv[1])
import tones
for part, count, seed in (("train", 24, 1), ("dev", 6, 100), ("test", 6, 200)):
    tones.make(f"data/{part}", count, seed)
PYTHON
train() { # FOLDER
    exec "$program" data "$1" labels=phones hop=2 context=6 layers=1 heads=2 head_dim=16 \
        feed_forward=32 convolutions=1 batch_frames=300 warmup=5 validate_every=10 \
        steps=600
}
curve() { sed -E 's/"(loss_)?seconds": [0-9.e-]+,? ?//g' "$1/log.jsonl"; }
tensors() { # FOLDER FILE: the bytes after the header
    local size
    size=$(od -An -tu8 -N8 "$1/$2" | tr -d ' ')
    tail -c +$((size + 9)) "$1/$2"
}
steps() { # FOLDER: number of steps in its log
    local count=0
    [ ! -e "$1/log.jsonl" ] || count=$(grep -c '"gradient_norm"' "$1/log.jsonl")
    echo "$count"
}
stop_after() { # SIGNAL STEPS: the result of `pieces` when it is ended there
    (train pieces) >out 2>&1 &
    local child=$!
    while kill -0 $child 2>/dev/null && [ "$(steps pieces)" -lt "$2" ]; do
        sleep 0.01
    done
    kill -s "$1" $child 2>/dev/null
    wait $child 2>/dev/null
}

check "trains and evaluates" eval '(train whole) >whole.txt 2>&1'
report "with two kinds" "$([ "$(grep -c 'error rate .*%$' whole.txt)" -ge 62 ] &&
    grep -q '^i-clustered-8 ' whole.txt && grep -q '^full ' whole.txt || cat whole.txt)"
stop_after INT 15
report "an interrupt is said" "$(grep -q 'cancelled after step' out || cat out)"
report "in the middle" "$([ "$(steps pieces)" -ge 15 ] && [ "$(steps pieces)" -lt 600 ] ||
    echo "after $(steps pieces) steps")"
stop_after KILL 120
report "and a kill" "$([ "$(steps pieces)" -ge 120 ] && [ "$(steps pieces)" -lt 600 ] ||
    echo "after $(steps pieces) steps")"
check "goes on" eval '(train pieces) >pieces.txt 2>&1'
report "the same curve" "$(diff <(curve whole) <(curve pieces))"
for file in checkpoint best; do
    report "the same bits of $file" "$(cmp <(tensors whole $file.safetensors) \
        <(tensors pieces $file.safetensors) 2>&1)"
done
report "the same errors" "$(diff <(tail -2 whole.txt) <(tail -2 pieces.txt))"
"$(dirname "$program")/recognise" whole data/test/s0-000.wav >units.txt 2>&1
report "recognise prints units" "$(grep -qE '^ +[0-9]+\.[0-9]{2} [ABCD]$' units.txt ||
    cat units.txt)"
finish
