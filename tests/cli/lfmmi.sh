#!/bin/bash
# shoal train speech --loss lf-mmi and eval, on data folders of tones: lexicons, words
# without a pronunciation, resume to the last bit, outputs at every third position.
. "$(dirname "$0")/lib/helpers.sh"
if ! shoal recognise --help | grep -q beams; then
    echo "ok lfmmi # SKIP the program was built without speech"
    exit 77
fi

tools <<'PYTHON'
import json, math, os, random, wave, struct
TONES = {"A": 300, "B": 700, "C": 1500, "D": 3100}
WORDS = {"ab": "AB", "c": "C", "dac": "DAC", "bd": "BD"}
def sound(path, words, seed):
    """A tone of 0.1 s for each phone, with pauses between words and some noise."""
    noise, samples = random.Random(int(seed)), []
    for word in words:
        for phone in WORDS[word]:
            for i in range(1600):
                tone = math.sin(2 * math.pi * TONES[phone] * i / 16000)
                samples.append(0.3 * tone + noise.uniform(-0.02, 0.02))
        pause = noise.randrange(400, 1200)
        samples += [noise.uniform(-0.02, 0.02) for _ in range(pause)]
    with wave.open(path, "wb") as f:
        f.setparams((1, 2, 16000, 0, "NONE", ""))
        f.writeframes(struct.pack(f"<{len(samples)}h",
                                  *(int(32767 * s) for s in samples)))
def make(folder, count, seed):
    os.makedirs(folder)
    draw = random.Random(int(seed))
    lists = {name: open(f"{folder}/{name}", "w") for name in ("wav.scp", "text", "phones",
                                                              "utt2spk")}
    for n in range(int(count)):
        words = [draw.choice(sorted(WORDS)) for _ in range(draw.randrange(2, 5))]
        name = f"s{n % 3}-{n:03}"
        sound(f"{folder}/{name}.wav", words, n + int(seed))
        lists["wav.scp"].write(f"{name} {name}.wav\n")
        lists["text"].write(f"{name} {' '.join(words)}\n")
        phones = " ".join(phone for word in words for phone in WORDS[word])
        lists["phones"].write(f"{name} {phones}\n")
        lists["utt2spk"].write(f"{name} s{n % 3}\n")
def epochs(path, wanted):
    """How many different losses there are."""
    losses = [line["loss"] for line in map(json.loads, open(path)) if "loss" in line]
    found = len({round(loss, 5) for loss in losses})
    if found != int(wanted):
        sys.exit(f"{found} of {losses}")
def tensors(path):
    data = open(path, "rb").read()
    sys.stdout.buffer.write(data[8 + struct.unpack("<Q", data[:8])[0]:])
PYTHON
tool make data/train 24 1
tool make data/dev 6 100
tool make data/test 6 200
printf 'AB A B\nC  C\nDAC D A C\nBD B D\nBD(2) B B D\n' >lexicon.txt
small="--loss lf-mmi --cache cache --set hop=3 --set context=9 --layers 1 --set heads=2
    --set head_dim=16 --set feed_forward=32 --set batch_frames=300 --set speeds=0.9,1
    --set validate_every=6 --set warmup=5 --set convolutions=0
    --set dropout=0"
train() { shoal train speech data $small --lexicon lexicon.txt --out "$@"; }
same() { cmp <(tool tensors "$1/checkpoint.safetensors") \
    <(tool tensors "$2/checkpoint.safetensors"); }

# ---- Lexicons --------------------------------------------------------------------------
expect "no lexicon" 3 "needs transcripts of words, and --lex" shoal train speech data \
    $small --out x
expect "letters" 3 "needs transcripts of words" train x --units characters
expect "no such lexicon" 3 "nowhere" shoal train speech data $small --lexicon nowhere -o x
grep -v 'AB\|DAC' lexicon.txt >short.txt
expect "words are missing" 3 "ab dac" shoal train speech data $small \
    --lexicon short.txt --out x
check "before features are made" absent cache
expect "of both parts" 3 "data/dev: 2 words have no" shoal train speech data $small \
    --lexicon short.txt --out x
grep 'AB\|DAC' lexicon.txt >rest.txt
expect "two files" 0 "1 of 1 steps" shoal train speech data $small --steps 1 \
    --lexicon short.txt,rest.txt --out two
printf 'A B\nc C\nd\n' >bad.txt
expect "too many files" 3 "more than 16" shoal train speech data $small \
    --lexicon "$(printf 'lexicon.txt,%.0s' {1..17})" --out x
expect "no file" 3 "no file" shoal train speech data $small --lexicon , --out x
expect "a bad line" 3 "bad.txt: line 3: d has no phones" shoal train speech data $small \
    --lexicon bad.txt --out x
report "refusals leave no folder" "$([ -e x ] && echo "x is there")"
grep -v DAC lexicon.txt >some.txt
expect "utterances are skipped" 0 "2 of 2 steps" shoal train speech data $small \
    --lexicon some.txt --skip-bad --steps 2 --out some

# ---- Training --------------------------------------------------------------------------
expect "defaults" 0 '"clip": 1,' shoal train speech --loss lf-mmi --print-config
expect "defaults of the paper" 0 '"every": 3,' shoal train speech --preset paper \
    --loss lf-mmi --print-config
expect "a loss of copy" 2 "loss is" shoal train copy --loss lf-mmi --out x
expect "trains" 0 "16 of 16 steps" train whole --steps 16 --threads 1
check "and says how long the loss took" says "% of the steps' time"
check "keeps the n-grams" test -f whole/phones.graph
check "and has them in the cache" test "$(ls cache/phones3-*.ngrams | wc -l)" -ge 1
train again --steps 16 --threads 3 >/dev/null 2>&1
report "threads change nothing" "$(same whole again)"
for steps in 5 9 16; do
    train parts --resume --steps $steps --set decay_steps=16 >/dev/null 2>err || cat err
done
report "resumes to the last bit" "$(same whole parts)"
sed 's/DAC D A C/DAC D A/' lexicon.txt >other.txt
cp whole/phones.graph before
expect "another lexicon" 3 "the checkpoint has data = " shoal train speech data $small \
    --lexicon other.txt --resume --out whole --steps 30
check "leaves the n-grams as they were" cmp before whole/phones.graph
full="--set hop=1 --set context=1 --set every=3"
expect "every third frame" 0 "9 of 9 steps" train third --steps 9 $full
for steps in 4 9; do
    train thirds --resume --steps $steps --set decay_steps=9 $full >/dev/null 2>err ||
        cat err
done
report "resumes too" "$(same third thirds)"
# The same utterances in every step, and no learning: losses of epochs differ only because
# the first position with an output is drawn anew.
still="--steps 4 --set batch_frames=100000 --set speeds=1 --learning-rate 1e-12"
train drawn $still $full >/dev/null 2>&1 && train fixed $still >/dev/null 2>&1
check "outputs begin elsewhere in every epoch" tool epochs drawn/log.jsonl 4
check "those of all positions do not" tool epochs fixed/log.jsonl 1
check "how long the loss took" grep -q '"loss_seconds": 0\.' fixed/log.jsonl
expect "joins" 0 "4 of 4 steps" train joined --steps 4 --join 4
report "joined ones can be aligned" "$(grep impossible joined/log.jsonl | grep loss |
    grep -v validation)"
for topology in one blank; do
    expect "topology $topology" 0 "3 of 3 steps" train $topology --steps 3 \
        --set topology=$topology --set order=3 --set extra=0 --set whole=true
done

# ---- Learning and eval -----------------------------------------------------------------
expect "learns" 0 "of 150 steps" train good --steps 150 --learning-rate 0.01 \
    --set validate_every=50
expect "eval" 0 '"error_rate"' shoal eval good --data data/test --cache cache \
    --labels phones --json
check "it has learnt" json 'd["kinds"][0]["error_rate"] < 30'
cp out phones.json
cp -r data/test data/words && rm data/words/phones
expect "eval by the lexicon" 0 '"error_rate"' shoal eval good --data data/words \
    --cache cache --lexicon lexicon.txt --json
report "the same phones" "$(diff <(grep '"error_rate"' phones.json) \
    <(grep '"error_rate"' out))"
expect "other kinds" 0 "uniform attention" shoal eval good --data data/test --controls \
    --cache cache --labels phones --attention full,clustered-3
expect "eval joined" 0 "full" shoal eval good --data data/test --cache cache --join 4 \
    --labels phones
expect "words are no phones" 3 "is not a unit" shoal eval good --data data/test \
    --cache cache --labels text
expect "neither phones nor words" 3 "data/words/phones" shoal eval good \
    --data data/words --cache cache
expect "eval of every third frame" 0 "full" shoal eval third --data data/test \
    --cache cache --join 2
for topology in one blank; do
    expect "eval of $topology" 0 "full" shoal eval $topology --data data/test \
        --cache cache --labels phones
done
expect "recognise" 0 "s0-000.wav: " shoal recognise good data/test/s0-000.wav
report "the phones that were said" "$(diff -w <(sed 's/^[^ ]* //' out) \
    <(sed -n 's/^s0-000 //p' data/test/phones) | head -3)"
expect "recognise every third frame" 0 '"begin"' shoal recognise third --json \
    data/test/s0-000.wav data/test/s1-001.wav
printf '\\data\\\nngram 1=6\n\n\\1-grams:\n-1 </s>\n-99 <s>\n' >words.arpa
printf -- '-0.7 %s\n' ab bd c dac >>words.arpa
printf '\n\\end\\\n' >>words.arpa
expect "recognise words" 0 "s0-000.wav: " shoal recognise good data/test/s0-000.wav \
    --lexicon lexicon.txt --lm words.arpa
report "the words that were said" "$(diff -iw <(sed 's/^[^ ]* //' out) \
    <(sed -n 's/^s0-000 //p' data/test/text) | head -3)"
expect "eval of words" 0 '"word' shoal eval good --data data/test --cache cache --json \
    --lexicon lexicon.txt --lm words.arpa
words="--lexicon lexicon.txt --lm words.arpa"
expect "words of every third frame" 0 '"whole": true' shoal recognise third \
    data/test/s0-000.wav $words --json
check "times are within the recording" json '0.3 < d["files"][0]["seconds"] < 3 and
    all(0 <= w["begin"] < w["end"] <= f["seconds"] and 0 < w["confidence"] <= 1
        for f in d["files"] for w in f["strings"][0]["words"])'
expect "tuned" 0 '"tuned_on": "data/dev"' shoal eval good --data data/test --json \
    --cache cache --labels phones $words --tune data/dev
check "few words are wrong" json 'd["kinds"][0]["words"]["error_rate"] < 30'
expect "tuned, by the lexicon" 0 "is not documented" shoal eval good --data data/words \
    --cache cache $words --tune data/dev
for topology in one blank; do
    expect "words of $topology" 0 "words %" shoal eval $topology --data data/test \
        --cache cache --labels phones $words
done

# ---- The paper's table -----------------------------------------------------------------
cells() { # EXPERIMENT FOLDER ...
    shoal repro "$1" data --out "$2" --cache cache --epochs 2 --join 2 --minutes 0.002 \
        ${small#--loss lf-mmi --cache cache --set hop=3 --set context=9 --layers 1} \
        --set hop=3 --set context=9 --set layers=1 --set speeds=1 --set average=0.9 \
        "${@:3}"
}
grid() {
    cells lf-mmi grid --kinds full,i-clustered-100,full@2,full+clustered-3 \
        --evaluate full,clustered-3,shoal-3 "$@"
}
expect "repro needs words" 2 "need both --lexicon and --lm" grid
expect "both of them" 2 "need both --lexicon and --lm" grid --lexicon lexicon.txt
expect "nor half of them with CTC" 2 "need both" shoal repro speech data --out x --lm y
expect "another loss" 2 "use shoal repro lf-mmi" shoal repro speech data --out x \
    --set loss=lf-mmi
expect "one cell" 0 "test words %" grid $words --only i-clustered-100
check "no other was trained" test "$(ls grid/cells)" = i-clustered-100
expect "all cells" 0 "Words wrong on test with another kind" grid $words
check "the paper's order" says "of 1 pairs of kinds are in the paper's order"
check "the language model is named" says "Words by lexicon.txt and words.arpa"
check "each has a result" test "$(ls grid/cells/*/result.json | wc -l)" = 4
cp grid/cells/full/checkpoint.safetensors before
expect "nothing is done again" 0 "After the same minutes" grid $words
check "no step more" cmp before grid/cells/full/checkpoint.safetensors
expect "show needs no words" 0 '"experiment": "lf-mmi"' grid --show --json
check "phones and words of every kind" json \
    'all(len(k["wrong"]) == len(c["result"][when]["test"]["labels"]) and
         len(k["words"]["wrong"]) == len(c["result"][when]["test"]["words"]["lengths"])
         for c in d["cells"] for when in ("epochs", "minutes") if when in c["result"]
         for k in c["result"][when]["test"]["kinds"])'
check "tuned on dev" json 'all(c["result"]["epochs"]["test"]["words"]["tuned_on"] ==
    "data/dev" and c["result"]["config"]["loss"] == "lf-mmi" for c in d["cells"])'
expect "not in the folder of another loss" 3 "another loss" cells speech grid \
    --kinds full --labels phones
expect "words by CTC" 0 "test words %" cells speech ctc --kinds full --evaluate full \
    --labels phones $words --lm-weight 1 --insertion 0
check "with the weights that were given" grep -q '"tuned_on": null' ctc/results.json
if [ -e grid/matrix.svg ]; then
    grid --show >/dev/null && rm grid/*.svg grid/*.png
    check "pictures of the grid" shoal plot grid
    check "all of them" test "$(ls grid/*.svg grid/*.png | wc -l)" = 6
fi
mkdir moved && cp good/best.safetensors moved
expect "the graph is missing" 3 "moved/phones.graph" shoal eval moved/best.safetensors \
    --data data/test --cache cache --labels phones
printf x >>good/phones.graph
expect "a damaged graph" 3 "good/phones.graph" shoal eval good --data data/test \
    --cache cache --labels phones
finish
