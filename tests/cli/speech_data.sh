#!/bin/bash
# Messages of shoal train speech and eval about bad data folders: on tones, for a few
# steps.
. "$(dirname "$0")/lib/helpers.sh"
if ! shoal recognise --help | grep -q beams; then
    echo "ok speech_data # SKIP the program was built without speech"
    exit 77
fi

cat "$lib/tones.py" - <<'PYTHON' | tools
def short(path, count):
    """This many samples of silence."""
    with wave.open(path, "wb") as f:
        f.setparams((1, 2, 16000, 0, "NONE", ""))
        f.writeframes(bytes(2 * int(count)))
def spoil(path, spoiled):
    """A model without its checksum, whose first unit is U+007F."""
    raw = open(path, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + size])
    notes = head["__metadata__"]
    notes.pop("shoal.checksum")
    notes["speech.units"] = "\x7f" + notes["speech.units"][1:]
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(spoiled, "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + size:])
def interrupt_features(*command):
    """Ctrl-C after the second line about features; its lines go to standard output."""
    seen, asked = 0, False
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                           env={**os.environ, "SHOAL_PROGRESS": "0.05"},
                           preexec_fn=lambda: signal.signal(signal.SIGINT,
                                                            signal.SIG_DFL))
    for line in run.stderr:
        print(line, end="")
        seen += "features of " in line
        if seen == 2 and not asked:
            run.send_signal(signal.SIGINT)
            asked = True
    sys.exit(0 if run.wait() == 130 else f"it ended with {run.returncode}")
def done(path, which):
    """Recordings of the first (0) or last (-1) line about features."""
    lines = [line for line in open(path) if "features of " in line]
    return int(lines[int(which)].split(":")[2].split()[0])
def later(before, after):
    first, second = done(before, -1), done(after, 0)
    sys.exit(0 if second > first else f"{second} after {first}")
PYTHON
tool make good/train 9 1
tool make good/dev 3 50
small="--cache cache --threads 1 --set hop=2 --set context=6 --layers 1 --set heads=2
    --set head_dim=8 --set feed_forward=16 --set batch_frames=300 --set convolutions=0
    --set warmup=2 --set speeds=1 --steps 2"
train() { shoal train speech data $small --out "$@"; }
again() { rm -rf data && cp -rp good data; }

# ---- Bad ones --------------------------------------------------------------------------
again
rm data/train/s1-001.wav
head -c 60 good/train/s2-002.wav >data/train/s2-002.wav
sed -i 's/^s0-003 .*/s0-003/' data/train/text
expect "bad data" 3 "3 of 9 utterances cannot be used" train b
check "missing files are named" says "s1-001: "
check "empty transcripts are named" says "s0-003: its transcript is empty"
expect "bad ones are skipped" 0 "2 of 2 steps" train b --skip-bad
expect "eval counts them" 0 '"left_out": 3' shoal eval b --data data/train --cache cache \
    --skip-bad --json
sed -i 's/$/ E/' data/dev/text
expect "unknown units" 3 "E is not a unit of the model" train c --skip-bad

again
for ((i = 100; i < 125; i++)); do
    for list in wav.scp text utt2spk; do echo "s9-$i s9" >>data/train/$list; done
done
expect "those left out are counted" 0 "data/train: 25 of 34 utterances are skipped" \
    train many --skip-bad
check "and how many are named" says "the first 20 are named above"
check "twenty of them" test "$(grep -c ': s9-1' err)" = 20
check "of a good part nothing is said" test "$(grep -c "are skipped" err)" = 1

# ---- Speeds and joins ------------------------------------------------------------------
again
tool short data/train/s1-001.wav 420
expect "too short at a speed" 3 "s1-001: is too short" train v --set speeds=0.9,1,1.1
expect "is left out at all of them" 0 "1 of 9 utterances are skipped" train short \
    --skip-bad --set speeds=0.9,1,1.1
check "and named" says "s1-001: cannot be used at speed 1.1"
rm data/*/utt2spk
expect "nothing is joined" 0 "data/train: nothing is joined" train apart --join 3 \
    --skip-bad

# ---- Transcripts -----------------------------------------------------------------------
again
sed -i '3s/$/ caf\xe9/' data/train/text
expect "latin1 is named" 3 "s2-002: its transcript is not UTF-8" train t
check "nothing is left of it" absent t
expect "latin1 is skipped" 0 "2 of 2 steps" train latin --skip-bad
again
sed -i '3s/$/ \xc2\x92x/' data/train/text
expect "controls are named" 3 "s2-002: its transcript has control characters" train t
expect "controls are skipped" 0 "2 of 2 steps" train controls --skip-bad
expect "such a model can be used" 0 "3 sequences" shoal eval controls --data good/dev \
    --cache cache
tool spoil controls/best.safetensors spoiled.safetensors
expect "units that command a terminal" 3 "its units have control characters" \
    shoal recognise spoiled.safetensors good/dev/s0-000.wav
again
sed -i '3s/ / A_B /' data/train/text
expect "the space's unit is named" 3 's2-002: its transcript has "_"' train t \
    --units characters

# ---- Units -----------------------------------------------------------------------------
again
sed -i 's/$/ AB/' data/train/text
sed -i 's/$/ BA/' data/dev/text
rm -rf cache
expect "words that train has not" 3 "BA is not a unit of the model" train w --units words
check "what chooses units is named" says "--units and --labels"
check "before features are made" absent cache/*.features
expect "letters spell any word" 0 "2 of 2 steps" train w
report "characters of text, without being asked" "$(grep -q '"units": "characters"' \
    w/log.jsonl || head -c 300 w/log.jsonl)"
expect "subwords" 0 "2 of 2 steps" train pieces --units subwords --set pieces=8
expect "and their recogniser" 0 '"error_rate"' shoal eval pieces --data data/dev --json \
    --cache cache
check "has pieces of words" grep -q '_A' pieces/best.safetensors
expect "prints words" 0 "" shoal recognise pieces data/dev/s0-000.wav
report "a space for _" "$(grep _ out)"
mv data/train/text data/train/said && mv data/dev/text data/dev/said
expect "words of another file" 3 "BA is not a unit of the model" train w2 --labels said

# ---- A corpus of LibriSpeech's form ----------------------------------------------------
for part in train-clean-100 dev-clean; do
    mkdir -p libri/$part/s1/7
    for n in 0 3 6; do
        cp good/train/s0-00$n.wav libri/$part/s1/7/s1-7-000$n.wav
        echo "s1-7-000$n $(sed -n "s/^s0-00$n //p" good/train/text)"
    done >libri/$part/s1/7/s1-7.trans.txt
done
prepare="python3 $root/python/examples/prepare_librispeech.py"
expect "prepares a corpus" 0 "data3/dev: 3 utterances of 1 speakers" $prepare libri \
    data3 --test
expect "no such part" 1 "there is no such folder" $prepare libri data4
expect "trains on it" 0 "2 of 2 steps" shoal train speech data3 $small --out prepared

# ---- Small things ----------------------------------------------------------------------
expect "an unknown field" 2 "shoal train speech --print-config lists all" train f \
    --set zzzzzzzz=1
report "lines of help" "$(shoal train --help | awk 'length > 96')"

# ---- Speakers --------------------------------------------------------------------------
again
expect "a training" 0 "2 of 2 steps" train resumed
sed -i 's/ s1$/ s0/' data/train/utt2spk
expect "other speakers are other data" 3 "the checkpoint has data = " train resumed \
    --resume
again
sed -i 's/ A/ E/' data/*/text
expect "weights of other units" 3 "its speech.units differ from those of this training" \
    train from --from resumed

# ---- Rates -----------------------------------------------------------------------------
again
tool sound data/train/s0-000.wav AB 1 8000
expect "one of a low rate is bad" 3 "1 of 9 utterances cannot be used" train r
check "and what takes both is said" says "rate=8000 accepts both"
tool sound data/train/s0-000.wav AB 1 6000
expect "one of 6 kHz too" 3 "1 of 9 utterances cannot be used" train r

# ---- The first checkpoint --------------------------------------------------------------
again
no_room() (trap '' XFSZ && ulimit -f 4 && train full)
expect "no room for a checkpoint" 4 "checkpoint" no_room
check "no log stays without it" absent full

# ---- The cache of features -------------------------------------------------------------
train() { shoal train speech data ${small/--cache cache/--cache $1} --out "${@:2}"; }
no_room() (ulimit -f 8 && train tight full 2>&1 | cat >&2; exit "${PIPESTATUS[0]}")
mkdir -p tight
sleep 0 & gone=$!
wait $gone
touch tight/fbank80-0.features.$gone.tmp tight/.shoal-$gone-0.tmp
expect "no room for features" 4 "tight/fbank" no_room
check "and nothing is left of them" bash -c '[ -z "$(ls -A tight)" ]'
touch taken
expect "no folder for features" 4 "taken" train taken full
check "a run to evaluate" train good-cache evaluated
evaluate() { shoal eval evaluated --data data/dev --cache "$1"; }
no_room() (ulimit -f 1 && evaluate tight 2>&1 | cat >&2; exit "${PIPESTATUS[0]}")
expect "eval: no room for features" 4 "tight/fbank" no_room
check "and nothing is left of them either" bash -c '[ -z "$(ls -A tight)" ]'
expect "eval: no folder for features" 4 "taken" evaluate taken
expect "eval: a folder that cannot be written" 4 "/sys/kernel/fbank" evaluate /sys/kernel
expect "eval: no such run" 3 "nowhere" shoal eval nowhere --data data/dev
expect "eval: no such data" 3 "data/nowhere" shoal eval evaluated --data data/nowhere \
    --cache good-cache

# ---- Interrupted extraction ------------------------------------------------------------
again
for ((i = 1000; i < 6000; i++)); do echo "s9-$i s0-000.wav"; done >data/train/wav.scp
sed 's/ .*/ A B C D/' data/train/wav.scp >data/train/text
sed 's/ .*/ s9/' data/train/wav.scp >data/train/utt2spk
extract() { tool interrupt_features "$program" train speech data \
    ${small/--cache cache/--cache kept} --out stopped >"$1"; }
check "Ctrl-C while features are extracted" extract first
check "says what becomes of them" grep -q "the features so far are kept in kept" first
check "keeps them" bash -c 'ls kept/*.features.part'
check "and no run" absent stopped
check "again" extract second
check "continues from them" tool later first second
finish
