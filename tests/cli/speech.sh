#!/bin/bash
# shoal train speech, eval and recognise, on data folders of tones: training, bitwise
# resumption, error rates and controls. Bad data is in speech_data.sh.
. "$(dirname "$0")/lib/helpers.sh"
if ! shoal recognise --help | grep -q beams; then
    echo "ok speech # SKIP the program was built without speech"
    exit 77
fi

cat "$lib/tones.py" - <<'PYTHON' | tools
def losses(path):
    for line in open(path):
        line = json.loads(line)
        if "step" in line:
            line.pop("seconds"), line.pop("loss_seconds", None)
            print(sorted(line.items()))
def same_as_best(log):
    """Whether the evaluation on dev in `out` is the log's best validation."""
    best = min(100 * (1 - line["validation_accuracy"])
               for line in map(json.loads, open(log)) if "validation_accuracy" in line)
    found = json.load(open("out"))["kinds"][0]["error_rate"]
    if abs(best - found) > 1e-6:
        print(best, "in the log,", found, "evaluated")
def tensors(path):
    data = open(path, "rb").read()
    sys.stdout.buffer.write(data[8 + struct.unpack("<Q", data[:8])[0]:])
PYTHON
tool make data/train 24 1
tool make data/dev 6 100
tool make data/test 6 200
small="--labels phones --cache cache --set hop=2 --set context=6 --layers 1
    --set heads=2 --set head_dim=16 --set feed_forward=32 --set batch_frames=300
    --set speeds=0.9,1 --set mask_after=1 --set validate_every=6 --set warmup=5
    --set convolutions=1"
train() { shoal train speech data $small --out "$@"; }

# ---- The command line ------------------------------------------------------------------
expect "help" 0 "--skip-bad" shoal train --help
expect "no data" 2 "no data folder" shoal train speech -o x
expect "two folders" 2 "one data folder" shoal train speech data data -o x
expect "nothing there" 3 "nowhere/train/wav.scp" shoal train speech nowhere -o x \
    --cache cache
expect "no transcripts" 3 "data/train/said" shoal train speech data -o x --cache cache \
    --labels said
expect "a field of copy" 2 "the task speech has no length" train x --length 3
expect "a field of speech" 2 "the task copy has no bands" shoal train copy -o x \
    --set bands=40
expect "wrong speeds" 2 "speeds is" train x --set speeds=0.9
expect "unknown preset" 2 "no preset" train x --preset none
expect "preset paper" 0 '"layers": 9' shoal train speech --preset paper --print-config
report "refusals leave no folder" "$([ -e x ] && echo "x is there")"

# ---- Training --------------------------------------------------------------------------
expect "trains" 0 "20 of 20 steps" train whole --steps 20 --threads 1
check "keeps the best" test -f whole/best.safetensors
check "features are kept" test "$(ls cache/*.features | wc -l)" = 3
expect "features are used again" 0 "20 of 20 steps" train again --steps 20 --threads 2
report "threads change nothing" "$(cmp <(tool tensors whole/checkpoint.safetensors) \
    <(tool tensors again/checkpoint.safetensors))"
for steps in 4 7 13 20; do
    # the rate decays towards the last of all steps
    train parts --resume --steps $steps --set decay_steps=20 >/dev/null 2>err || cat err
done
report "resumes to the last bit" "$(cmp <(tool tensors whole/checkpoint.safetensors) \
    <(tool tensors parts/checkpoint.safetensors))"
report "the log is the same" "$(diff <(tool losses whole/log.jsonl) \
    <(tool losses parts/log.jsonl | awk '!seen[$0]++') | grep '^<')"
"$program" train speech data $small --out killed --steps 20 --save-seconds 0 \
    >/dev/null 2>&1 &
until [ "$(grep -c loss killed/log.jsonl 2>/dev/null)" -ge 5 ] 2>/dev/null; do
    kill -0 $! 2>/dev/null || break
    sleep 0.02
done
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
expect "goes on after kill -9" 0 "20 of 20" train killed --resume --steps 20
report "killed: the same bits" "$(cmp <(tool tensors whole/checkpoint.safetensors) \
    <(tool tensors killed/checkpoint.safetensors))"
sed 's/ A/ B/' data/train/phones >changed
cp -r data data2 && cp changed data2/train/phones
expect "other data" 3 "the checkpoint has data = " shoal train speech data2 --resume \
    --out whole $small --steps 30
expect "steps behind the fall of the rate" 3 "decays to 0 at step 20" train whole \
    --resume --steps 30
expect "nothing can be aligned" 3 "every utterance has more labels than positions" \
    train x --steps 2 --set hop=64
expect "some cannot be" 0 "utterances have more labels than positions" train few \
    --steps 2 --set hop=16 --set context=16
expect "joins" 0 "3 of 3 steps" train joined --steps 3 --join 3
expect "joins later" 0 "9 of 9 steps" train later --steps 9 --join 3 --set join_after=1
train apart --steps 9 >/dev/null 2>&1
report "the first epoch is not joined" "$(diff <(tool losses later/log.jsonl | head -3) \
    <(tool losses apart/log.jsonl | head -3))"
report "later ones are" "$(cmp -s <(tool losses later/log.jsonl) \
    <(tool losses apart/log.jsonl) && echo "no difference")"
expect "other weights first" 0 "2 of 2 steps" train from --steps 2 \
    --from whole/best.safetensors --learning-rate 1e-4
expect "those of a folder" 0 "2 of 2 steps" train from2 --steps 2 --from whole \
    --learning-rate 1e-4
report "are its best" "$(cmp <(tool tensors from/checkpoint.safetensors) \
    <(tool tensors from2/checkpoint.safetensors))"
expect "letters" 0 "2 of 2 steps" train letters --steps 2 --units characters

# ---- Learning, eval and recognise ------------------------------------------------------
expect "learns" 0 "of 240 steps" train good --steps 240 --learning-rate 0.01 \
    --set validate_every=60
expect "eval" 0 "uniform attention" shoal eval good --data data/test --cache cache \
    --controls --attention full,clustered-3
expect "eval json" 0 '"error_rate"' shoal eval good --data data/test --cache cache --json
check "it has learnt" json 'd["kinds"][0]["error_rate"] < 30'
expect "eval with beams" 0 "full" shoal eval good --data data/test --cache cache --beams 8
expect "eval joined" 0 "full" shoal eval good --data data/test --cache cache --join 4
expect "eval one by one" 0 "6 sequences" shoal eval joined --data data/test \
    --cache cache --join 0
expect "eval needs data" 2 "needs --data" shoal eval good
train averaged --steps 60 --learning-rate 0.01 --set average=0.9 >/dev/null 2>&1
shoal eval averaged --data data/dev --cache cache --json >out
report "averaged weights are what is evaluated" "$(tool same_as_best averaged/log.jsonl)"
expect "recognise" 0 "data/test/s0-000.wav:" shoal recognise good data/test/s0-000.wav
expect "recognise json" 0 '"begin"' shoal recognise good data/test/s0-000.wav \
    data/test/s1-001.wav --json --beams 4
check "two files" json 'len(d["files"]) == 2 and len(d["files"][0]["units"]) > 0'
tool sound long.wav "$(printf 'ABCDDCBACA%.0s' {1..30})" 9
shoal recognise good long.wav >whole.txt
expect "recognise in pieces" 0 "long.wav:" shoal recognise good long.wav --piece 3
report "pieces are heard as the whole" "$(tr ' ' '\n' <whole.txt | diff - \
    <(tr ' ' '\n' <out) | grep -c '^[<>]' | awk '$1 > 30')"
expect "no recording" 3 "nothing.wav" shoal recognise good nothing.wav
expect "one recording of two" 3 "nothing.wav" shoal recognise good nothing.wav \
    data/test/s0-000.wav
check "the other is heard" grep -q "data/test/s0-000.wav: [A-D]" out
expect "one of two as JSON" 3 "nothing.wav" shoal recognise good nothing.wav \
    data/test/s0-000.wav --json
check "has the other" json 'len(d["files"]) == 1'
shoal train copy --out copied --steps 1 --layers 1 --length 5 >/dev/null 2>&1
expect "no recogniser" 3 "is not a recogniser" shoal recognise copied data/test/s0-000.wav

# ---- Words -----------------------------------------------------------------------------
printf '%s\n' 'a A' 'b B' 'c C' 'see C' 'd D' 'nobody A B' >lexicon
printf '%s\n' '\data\' 'ngram 1=7' 'ngram 2=2' '' '\1-grams:' '-1 <s> 0' '-1 </s>' \
    '-0.6 a 0' '-0.6 b' '-0.6 c' '-3 see' '-0.6 d' '' '\2-grams:' '-0.6 <s> a' \
    '-0.6 a b' '' '\end\' >lm.arpa
gzip -k lm.arpa
words="--lexicon lexicon --lm lm.arpa.gz --cache cache"
expect "words need both" 2 "need both --lexicon and --lm" shoal recognise good \
    data/test/s0-000.wav --lm lm.arpa
expect "tune needs words" 2 "--tune needs words" shoal eval good --data data/test \
    --tune data/dev
expect "a damaged language model" 3 "duplicate" shoal recognise good \
    data/test/s0-000.wav --lexicon lexicon --lm <(sed 's/-3 see/-3 b/' lm.arpa)
sed 's/b B/b Q/' lexicon >lexicon2
expect "phones of another model" 3 "lexicon2" shoal recognise good \
    data/test/s0-000.wav --lm lm.arpa --lexicon lexicon2
expect "words" 0 "data/test/s0-000.wav: " shoal recognise good data/test/s0-000.wav \
    --lexicon lexicon --lm lm.arpa --nbest 3
check "three strings" test "$(sort -u out | wc -l)" = 3
sed 1,2d lexicon >some && head -n 2 lexicon >others && cp out before
expect "a lexicon in parts" 0 "data/test/s0-000.wav: " shoal recognise good \
    data/test/s0-000.wav --lexicon some,others --lm lm.arpa --nbest 3
check "is the same" cmp before out
expect "words as JSON" 0 '"confidence"' shoal recognise good data/test/s0-000.wav \
    --lexicon lexicon --lm lm.arpa --json
check "with times" json 'all(w["begin"] < w["end"] <= d["files"][0]["seconds"] and
    0 < w["confidence"] <= 1 for w in d["files"][0]["strings"][0]["words"])'
expect "errors of words" 0 "is not documented" shoal eval good --data data/test $words
expect "tuned" 0 '"tuned_on": "data/dev"' shoal eval good --data data/test $words --json \
    --tune data/dev --attention full,clustered-3
check "words are heard" json 'd["kinds"][0]["words"]["error_rate"] < 30 and
    d["words"]["missing"] == 0 and len(d["kinds"]) == 2'
cp -r data/test said && sed -i '1s/^/\xef\xbb\xbf/' said/text
expect "a mark before what was said" 0 "full" shoal eval good --data said $words
sed -i 1d said/text
expect "what was said is missing" 3 "there is no line for s0-000" shoal eval good \
    --data said $words

# ---- Telephone speech ------------------------------------------------------------------
tool make low/train 12 1 8000
tool make low/dev 3 100 8000
expect "8 kHz" 0 "3 of 3 steps" shoal train speech low $small --out low8 --steps 3
expect "a model of 8 kHz hears 16" 0 "s0-000.wav:" shoal recognise low8 \
    data/test/s0-000.wav
expect "one of 16 kHz does not hear 8" 3 "has 8000 samples per second; at least 16000" \
    shoal recognise good low/dev/s0-000.wav
cp low/train/s1-001.wav data2/train/
expect "a folder has one rate" 3 "1 of 24 utterances cannot be used" \
    shoal train speech data2 $small --out x --steps 3
expect "or is told one" 0 "3 of 3 steps" shoal train speech data2 $small --out told \
    --steps 3 --set rate=8000

# ---- The grid --------------------------------------------------------------------------
folder=grid
grid() {
    shoal repro speech data --out $folder --kinds full,lsh-1,full@2,full+clustered-3 \
        --evaluate full,lsh-1,clustered-3,shoal-3 --cache cache --labels phones \
        --epochs 2 --join 2 --set hop=2 --set context=6 --set layers=1 --set heads=2 \
        --set head_dim=16 --set feed_forward=32 --set batch_frames=300 --set speeds=1 \
        --set validate_every=6 --set warmup=5 --set average=0.9 --minutes 0.002 "$@"
}
expect "repro needs data" 2 "one data folder" shoal repro speech --out grid
expect "not a cell" 2 "a cell is KIND" grid --kinds full@x
expect "from nothing" 2 "continues a cell that must come before it" grid \
    --kinds lsh-1,full+clustered-3
expect "no such cell" 2 "there is no cell lsh-4" grid --only lsh-4
expect "one cell of the grid" 0 "hours to full" grid --only lsh-1
check "no other was trained" test "$(ls grid/cells)" = lsh-1
expect "a cell waits" 0 "full+clustered-3 waits for full" grid --only full+clustered-3
expect "repro" 0 "in the paper's order" grid
check "every cell has a result" test "$(ls grid/cells/*/result.json | wc -l)" = 4
cp grid/cells/full/checkpoint.safetensors before
expect "nothing is done again" 0 "After the same minutes" grid
check "no step more" cmp before grid/cells/full/checkpoint.safetensors
rm grid/cells/lsh-1/result.json
expect "a cell is evaluated again" 0 "uniform attention" grid
expect "other settings" 3 "was done with another epochs" grid --epochs 3
expect "any other setting" 3 "was done with another dropout" grid --set dropout=0.3
cp -r data data3 && rm -r data3/test
expect "a grid without test" 3 "data3/test/wav.scp" shoal repro speech data3 --out grid3 \
    --labels phones --cache cache --set speeds=1
report "is refused before its first cell" "$(ls grid3 2>/dev/null)"
expect "show as Markdown" 0 "| cell | layers | test % |" grid --show --markdown
report "the tables are kept" "$(shoal repro speech data --out grid --show --markdown \
    --kinds full,lsh-1,full@2,full+clustered-3 --cache cache \
    --evaluate full,lsh-1,clustered-3,shoal-3 | diff - grid/tables.md)"
expect "show as JSON" 0 '"experiment": "speech"' grid --show --json
check "cells" json '[c["name"] for c in d["cells"]] == ["full", "lsh-1", "full@2",
    "full+clustered-3"]'
check "kinds that the weights can do with" json \
    '[len(c["result"]["epochs"]["test"]["kinds"]) for c in d["cells"]] == [6, 7, 6, 6]'
check "depth, and weights to go on from" json \
    '[c["result"]["layers"] for c in d["cells"]] == [1, 1, 2, 1] and
     ["minutes" in c["result"] for c in d["cells"]] == [True, True, True, False] and
     abs(d["cells"][3]["result"]["config"]["learning_rate"] - 1.5e-4) < 1e-9'
check "errors of every sequence" json \
    'all(len(c["result"]["epochs"]["test"]["labels"]) ==
         len(c["result"]["epochs"]["test"]["kinds"][0]["wrong"]) for c in d["cells"])'
folder=moved
mkdir moved && cp grid/results.json moved
expect "results alone, on another machine" 0 "4 done, 0 running, 0 left" grid --status
grid >out 2>&1
check "give the same tables" diff moved/tables.md grid/tables.md
check "nothing is trained again" absent moved/cells/full/checkpoint.safetensors
folder=budget
python3 - <<'PYTHON'
import json, os
os.mkdir("budget")
json.dump({"seconds_per_step": {"full": 0.01}}, open("budget/calibration.json", "w"))
PYTHON
expect "minutes as steps" 0 "After the same minutes" grid --only full
check "by calibration" python3 -c 'import json
assert json.load(open("budget/cells/full/result.json"))["minutes"]["steps"] == 13'
folder=grid
check "picture of a run" shoal plot grid/cells/full -o curve.svg
if [ -e grid/matrix.svg ]; then
    rm grid/*.svg grid/*.png
    check "pictures of the grid" shoal plot grid
    check "all of them" test "$(ls grid/*.svg grid/*.png | wc -l)" = 6
fi

finish
