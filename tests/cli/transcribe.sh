#!/usr/bin/env bash
# Drives `shoal transcribe` and `shoal wer` of the program given as $1: a small model with
# random weights, sounds and damaged files that it makes itself, and the real model where
# it is there. Prints "ok - NAME" or "not ok - NAME" per check; the exit code is 1 if any
# failed.
set -u
[ $# -ge 1 ] || { echo "usage: cli_transcribe.sh PROGRAM"; exit 2; }
program=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
data=${SHOAL_DATA:-$root/../shared/data}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
unset SHOAL_ISA SHOAL_MODEL
# cairo and fontconfig keep caches until the end of the program.
export ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export OMP_WAIT_POLICY=passive
failed=0

if "$program" transcribe --help 2>&1 | grep -q "built without"; then
    echo "ok - transcribe says that it was built without models"
    exit 0
fi

cat > tool.py <<'PYTHON'
import json, math, random, struct, sys

WIDTH, HEADS, LAYERS, TEXT, MELS = 8, 2, 1, 24, 80

# model NAME [VOCABULARY]: ggml, halves
def model(name, vocabulary="51865"):
    vocabulary, draw = int(vocabulary), random.Random(3)
    out = open(name, "wb")
    ints = lambda *v: out.write(struct.pack("<%di" % len(v), *v))
    def tensor(key, shape, spread, centre=0.0, half=True):
        ints(len(shape), len(key), int(half), *reversed(shape))
        out.write(key.encode())
        count = math.prod(shape)
        few = [draw.gauss(centre, spread) for _ in range(min(count, 5003))]
        values = (few * (count // len(few) + 1))[:count]
        out.write(struct.pack("<%d%s" % (count, "e" if half else "f"), *values))
    def vector(key, size, centre=0.0):
        tensor(key, [size], 0.1, centre, False)
    def linear(key, inputs, outputs, bias=True):
        tensor(key + ".weight", [outputs, inputs], inputs ** -0.5)
        if bias:
            vector(key + ".bias", outputs)
    def norm(key):
        vector(key + ".weight", WIDTH, 1.0)
        vector(key + ".bias", WIDTH)
    def attention(key):
        for part in ("query", "key", "value", "out"):
            linear("%s.%s" % (key, part), WIDTH, WIDTH, part != "key")
    ints(0x67676d6c, vocabulary, 1500, WIDTH, HEADS, LAYERS, TEXT, WIDTH, HEADS, LAYERS,
         MELS, 1, MELS, 201)
    out.write(struct.pack("<%df" % (MELS * 201),
                          *[0.01 if abs(b - 2 * m) < 3 else 0.0
                            for m in range(MELS) for b in range(201)]))
    words = 50256 + (vocabulary > 51864)
    ints(words)
    for i in range(words):
        text = bytes([i]) if i < 256 else b" w%d" % i
        ints(len(text))
        out.write(text)
    for key, inputs in (("conv1", MELS), ("conv2", WIDTH)):
        tensor("encoder.%s.weight" % key, [WIDTH, inputs, 3], 0.1)
        tensor("encoder.%s.bias" % key, [WIDTH, 1], 0.1, 0.0, False)
    tensor("encoder.positional_embedding", [1500, WIDTH], 0.3, 0.0, False)
    tensor("decoder.positional_embedding", [TEXT, WIDTH], 0.3, 0.0, False)
    tensor("decoder.token_embedding.weight", [vocabulary, WIDTH], 0.5)
    for side in ("encoder", "decoder"):
        for i in range(LAYERS):
            block = "%s.blocks.%d." % (side, i)
            norm(block + "attn_ln")
            attention(block + "attn")
            if side == "decoder":
                norm(block + "cross_attn_ln")
                attention(block + "cross_attn")
            norm(block + "mlp_ln")
            linear(block + "mlp.0", WIDTH, 4 * WIDTH)
            linear(block + "mlp.2", 4 * WIDTH, WIDTH)
    norm("encoder.ln_post")
    norm("decoder.ln")
    out.close()

# wav NAME SECONDS [CHANNELS RATE]: 16-bit
def wav(name, seconds, channels="1", rate="16000"):
    channels, rate = int(channels), int(rate)
    count = int(float(seconds) * rate)
    draw = random.Random(name)
    tone = lambda i: 6000 * math.sin(0.05 * i + 3 * math.sin(0.0007 * i))
    values = [int(tone(i) + draw.gauss(0, 300))
              for i in range(count) for _ in range(max(channels, 1))]
    body = struct.pack("<%dh" % len(values), *values)
    raw_wav(name, 1, channels, rate, 16, body)

def raw_wav(name, form, channels, rate, bits, body):
    block = channels * bits // 8
    head = struct.pack("<HHIIHH", form, channels, rate, rate * block, block, bits)
    with open(name, "wb") as out:
        out.write(b"RIFF" + struct.pack("<I", 36 + len(body)) + b"WAVEfmt " +
                  struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(body)))
        out.write(body)

def nan_wav(name):
    raw_wav(name, 3, 1, 16000, 32, struct.pack("<3f", 0.0, math.nan, 0.0) * 2000)

def put(name, offset, value):
    with open(name, "r+b") as file:
        file.seek(int(offset))
        file.write(struct.pack("<i", int(value)))

# A NaN as the first number of a tensor.
def spoil(name, to, key):
    bytes = bytearray(open(name, "rb").read())
    begin = bytes.index(key.encode()) + len(key)
    bytes[begin:begin + 4] = struct.pack("<f", math.nan)
    open(to, "wb").write(bytes)

def cut(name, to, size):
    open(to, "wb").write(open(name, "rb").read()[:int(size)])

# expect FILE EXPRESSION, where j is the JSON in it
def expect(name, expression):
    j = json.load(open(name))
    if not eval("(" + expression + ")"):
        sys.exit("false: %s\n%s" % (expression, json.dumps(j)[:2000]))

globals()[sys.argv[1]](*sys.argv[2:])
PYTHON
tool() { python3 tool.py "$@"; }

check() { # $1 the name of the case, then a command that must succeed
    local name=$1
    shift
    if "$@" >check.log 2>&1; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        sed 's/^/  /' check.log err 2>/dev/null | head -20
        failed=1
    fi
}

run() { "$program" "$@" >out 2>err; } # the program, with what it says kept

exits() { # $1 the code, then words for the program
    local code=$1
    shift
    run "$@"
    local got=$?
    [ $got = "$code" ] || { echo "exit code $got instead of $code: $*"; return 1; }
}

refuses() { # $1 the code, $2 what the message must have, then words for the program
    local code=$1 text=$2
    shift 2
    exits "$code" "$@" && grep -qi -e "$text" err && ! grep -qi "sanitizer" err
}

tool model small.bin
tool wav talk.wav 4
tool wav other.wav 2.5 2 44100
say() { run transcribe "$@" -m small.bin --no-fallback; }

# ---- The command line ----------------------------------------------------------------
check "help" exits 0 transcribe --help
check "help shows the defaults" grep -q "default: full" out
check "no recording" refuses 2 "no recording" transcribe -m small.bin
check "no model" refuses 2 "SHOAL_MODEL" transcribe talk.wav
check "misspelt option" refuses 2 "did you mean --language" transcribe talk.wav \
    --langage en
check "misspelt attention" refuses 2 "clusterd" transcribe talk.wav -m small.bin \
    -a clusterd-4
check "unknown form" refuses 2 "txt, srt, vtt" transcribe talk.wav -m small.bin -f doc
check "unknown task" refuses 2 "translate" transcribe talk.wav -m small.bin -t sing
check "no beams" refuses 2 "beam-size" transcribe talk.wav -m small.bin -b 0
check "unknown language" refuses 3 "elvish" transcribe talk.wav -m small.bin -l elvish
check "several as srt need a folder" refuses 2 "out DIR" transcribe talk.wav other.wav \
    -m small.bin -f srt
check "several as json too" refuses 2 "out DIR" transcribe talk.wav other.wav \
    -m small.bin -f json
mkdir -p a && cp talk.wav a/
check "one name twice" refuses 2 "both" transcribe talk.wav a/talk.wav -m small.bin \
    -o texts

# ---- Forms ---------------------------------------------------------------------------
check "text" say talk.wav
check "the factor stands on stderr" grep -q "real-time factor" err
cp out text
check "the same again, on one thread" bash -c \
    "'$program' transcribe talk.wav -m small.bin --no-fallback --threads 1 -q |
        cmp - text"
check "quiet" bash -c \
    "! '$program' transcribe talk.wav -m small.bin --no-fallback -q 2>&1 >/dev/null |
        grep ."
check "without a standard error" bash -c \
    "'$program' transcribe talk.wav -m small.bin --no-fallback 2>&- | cmp - text"
cp talk.wav counted.wav
tool put counted.wav 4 "$(stat -c %s talk.wav)" # the whole file, not what is behind it
check "a size that counts itself" bash -c \
    "'$program' transcribe counted.wav -m small.bin --no-fallback -q | cmp - text"
tool spoil small.bin spoilt.bin encoder.ln_post.weight
check "an encoder that gives NaN" refuses 3 "NaN" transcribe talk.wav -m spoilt.bin
check "json" say talk.wav -f json -l en
check "json has what it should" tool expect out "j['language'] == 'en' and
    abs(j['duration'] - 4) < 1e-6 and j['windows'] >= 1 and j['task'] == 'transcribe' and
    j['text'] == ''.join(s['text'] for s in j['segments']).lstrip() and
    all(s['end'] > s['start'] and s['tokens'] for s in j['segments'])"
check "srt" say talk.wav -f srt
check "srt has times" bash -c "[ ! -s out ] ||
    grep -Eq '^[0-9:]{8},[0-9]{3} --> [0-9:]{8},[0-9]{3}$' out"
check "vtt" say talk.wav -f vtt
check "vtt begins as it must" bash -c "[ \"\$(head -1 out)\" = WEBVTT ]"
check "translation" say talk.wav -t translate
check "beams" say talk.wav -b 3
check "stereo at 44.1 kHz, resampled" say other.wav -a shoal-20 -f json
check "its duration" tool expect out "abs(j['duration'] - 2.5) < 0.05 and
    j['attention'] == 'shoal-20'"
check "without timestamps" say talk.wav --no-timestamps
check "fallback" run transcribe other.wav -m small.bin -f json
check "SHOAL_MODEL" env SHOAL_MODEL=small.bin "$program" transcribe talk.wav --no-fallback
check "english only" bash -c "python3 tool.py model english.bin 51864 &&
    '$program' transcribe talk.wav -m english.bin --no-fallback"
check "english only knows no german" refuses 3 "english only" transcribe talk.wav \
    -m english.bin -l de

# ---- Files ---------------------------------------------------------------------------
check "into a folder" say talk.wav other.wav -o texts
check "the file is what stdout was" cmp texts/talk.txt text
check "nothing else is there" bash -c \
    "[ \"\$(ls texts | xargs)\" = 'other.txt talk.txt' ]"
printf 'this is no sound\n' >fake.wav
check "a bad recording does not stop the others" refuses 3 "fake.wav" transcribe \
    fake.wav talk.wav -m small.bin --no-fallback -o more
check "only the good one is written" bash -c "[ \"\$(ls more | xargs)\" = talk.txt ]"
check "a folder that is a file" refuses 4 "text" transcribe talk.wav -m small.bin -o text

# ---- Damaged recordings --------------------------------------------------------------
: >empty.wav
mkdir -p folder.wav
tool nan_wav nan.wav
cp talk.wav silent.wav && tool put silent.wav 22 0     # no channels
tool cut talk.wav header.wav 30
for bad in fake empty folder nan silent header; do
    check "$bad.wav is refused" refuses 3 "$bad.wav" transcribe $bad.wav -m small.bin \
        --no-fallback -o never
done
check "a missing recording" refuses 3 "nowhere" transcribe nowhere.flac -m small.bin
check "nothing was written for any of them" bash -c "[ -z \"\$(ls never)\" ]"

# ---- Damaged models ------------------------------------------------------------------
size=$(stat -c %s small.bin)
for at in 0 3 4 40 57 1000 70000 600000 $((size - 100000)) $((size - 1)); do
    tool cut small.bin cut.bin "$at"
    check "model cut at $at of $size" refuses 3 "cut.bin" transcribe talk.wav -m cut.bin
done
for field in 0 1 2 3 4 5 6 7 8 9 10 11 12 13; do
    for value in -1 0 7 2147483647; do
        cp small.bin bad.bin && tool put bad.bin $((4 * field)) "$value"
        [ "$field" = 11 ] && [ "$value" = 0 ] && continue # "floats": each tensor says
        check "model with field $field = $value" refuses 3 "bad.bin" transcribe talk.wav \
            -m bad.bin
    done
done
check "a missing model" refuses 3 "nowhere" transcribe talk.wav -m nowhere.bin
check "a folder without a model" refuses 3 "a" transcribe talk.wav -m a
check "a recording as the model" refuses 3 "talk.wav" transcribe talk.wav -m talk.wav

# ---- wer -----------------------------------------------------------------------------
mkdir -p spoken/1/2
cp talk.wav spoken/one.wav && cp other.wav spoken/1/2/two.wav
printf 'one Hello there, Mr. Smith\n\n' >spoken/transcripts.txt
printf 'two it is twenty five\n' >spoken/1/2/1-2.trans.txt
heard() { run wer spoken -m small.bin "$@"; }
check "wer: no folder" refuses 2 "no folder" wer -m small.bin
check "wer: no model" refuses 2 "SHOAL_MODEL" wer spoken
check "wer: misspelt kind" refuses 2 "shool" wer spoken -m small.bin -a shool-4
check "wer: gap" refuses 2 "gap" wer spoken -m small.bin --gap -1
check "wer: table" heard -a shoal-20,clustered-4:bits=31
check "wer: full is there" grep -q "^full " out
check "wer: its spelling" grep -q "^clustered-4:bits=31 " out
check "wer: json" heard -a full,shoal-20 --json --texts --plot wer.svg
check "wer: json has what it should" tool expect out "j['windows_done'] == 1 and
    j['utterances'] == 2 and len(j['windows']) == 1 and
    [k['kind'] for k in j['kinds']] == ['full', 'shoal-20'] and
    all(k['words'] == 7 for k in j['kinds']) and j['kinds'][0]['encoder_error'] == 0 and
    0 < j['kinds'][1]['encoder_error'] < 2 and
    j['windows'][0]['reference'] == 'it is twenty five Hello there, Mr. Smith'"
check "wer: picture" bash -c "[ ! -e wer.svg ] || grep -q '</svg>' wer.svg"
check "wer: one per window" heard --json --per-window 1 --limit 2 -a full
check "wer: two windows" tool expect out "j['windows_done'] == 2"
printf 'one a caf\351 au lait\n' >spoken/transcripts.txt
check "wer: a text that is no UTF-8" heard --json --texts --per-window 1 -a full
check "wer: is shown all the same" tool expect out "len(j['windows']) == 2"
mkdir -p long
tool wav long/one.wav 40
printf 'one a long story\n' >long/transcripts.txt
check "wer: beyond a window" run wer long -m small.bin --json -a full
check "wer: all of it counts" tool expect out "abs(j['audio_seconds'] - 40) < 0.1"
check "wer: an empty folder" refuses 3 "transcripts" wer a -m small.bin
printf 'three nothing\n' >>spoken/transcripts.txt
check "wer: a recording is missing" refuses 3 "three" wer spoken -m small.bin

# ---- The real model ------------------------------------------------------------------
if [ -e "$data/models/ggml-tiny.bin" ] && [ -e "$data/speech/transcripts.txt" ]; then
    check "real: wer" run wer "$data/speech" -m "$data/models/ggml-tiny.bin" --limit 2 \
        --per-window 2 --json
    check "real: hardly a word is wrong" tool expect out "all(k['wer_percent'] < 8
        for k in j['kinds']) and j['kinds'][1]['encoder_error'] < 0.3"
else
    echo "ok - real model # skip: $data/models is not here"
fi
exit $failed
