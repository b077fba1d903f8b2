#!/usr/bin/env bash
# Runs `shoal transcribe` and `shoal wer` of the program given as $1: a small model with
# random weights, generated sounds and damaged files, and the real model if it is
# available.
. "$(dirname "$0")/lib/helpers.sh"

if shoal transcribe --help 2>&1 | grep -q "built without"; then
    echo "ok transcribe says that it was built without speech"
    finish
fi

cat "$lib/whisper.py" - <<'PYTHON' | tools
def zero_wav(name, seconds):
    raw_wav(name, 1, 1, 16000, 16, bytes(32000 * int(seconds)))

def nan_wav(name):
    raw_wav(name, 3, 1, 16000, 32, struct.pack("<3f", 0.0, math.nan, 0.0) * 2000)

# only FILE KEY: part of its JSON, without times
def only(name, key):
    for one in json.load(open(name))[key]:
        print({k: v for k, v in sorted(one.items()) if "seconds" not in k and
               k != "speed_relative_to_full"})

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

# cues FILE WIDTH LINES: problems of a file of cues; writes their text to FILE.joined
def cues(name, width, lines):
    before, joined = 0.0, []
    seconds = lambda at: sum(60 ** i * float(part) for i, part in enumerate(
        reversed(at.replace(",", ".").split(":"))))
    for cue in open(name).read().strip().split("\n\n"):
        times, *text = [row for row in cue.split("\n") if not row.isdigit()]
        begin, end = map(seconds, times.split(" --> "))
        if not before <= begin <= end:
            print(times, "after", before)
        before = end
        if len(text) > int(lines):
            print(len(text), "lines:", text)
        for row in text:
            if len(row) > int(width) and " " in row:
                print(len(row), "characters:", row)
        joined += text
    open(name + ".joined", "w").write(" ".join(joined))

def cut(name, to, size):
    open(to, "wb").write(open(name, "rb").read()[:int(size)])
PYTHON

tool model small.bin
tool wav talk.wav 4
tool wav other.wav 2.5 2 44100
say() { run transcribe "$@" -m small.bin --no-fallback; }

# ---- The command line ----------------------------------------------------------------
expect "help" 0 "usage: shoal transcribe" shoal transcribe --help
check "help shows the defaults" grep -q "default: full" out
expect "no recording" 2 "no recording" shoal transcribe -m small.bin
expect "no model" 2 "SHOAL_SPEECH_MODEL" shoal transcribe talk.wav
check "which says what one is" says "shoal model whisper-tiny"
expect "misspelt option" 2 "did you mean --language" shoal transcribe talk.wav \
    --langage en
expect "misspelt attention" 2 "clusterd" shoal transcribe talk.wav -m small.bin \
    -a clusterd-4
expect "unknown form" 2 "txt, srt, vtt" shoal transcribe talk.wav -m small.bin -f doc
expect "the format was --output" 2 "no recording" shoal transcribe -m small.bin \
    --output srt
expect "--output is no file here" 2 "--format FORM" shoal transcribe talk.wav \
    -m small.bin --output talk.srt
expect "unknown task" 2 "translate" shoal transcribe talk.wav -m small.bin -t sing
expect "no beams" 2 "beam-size" shoal transcribe talk.wav -m small.bin -b 0
for command in transcribe wer; do
    expect "$command: unknown language" 2 '--language is "elvish"' shoal $command \
        nowhere -m nowhere.bin -l elvish
done
expect "several as srt need a folder" 2 "out DIR" shoal transcribe talk.wav other.wav \
    -m small.bin -f srt
expect "several as json too" 2 "out DIR" shoal transcribe talk.wav other.wav \
    -m small.bin -f json
mkdir -p a && cp talk.wav a/
expect "one name twice" 2 "two outputs" shoal transcribe talk.wav a/talk.wav \
    -m small.bin -o texts

# ---- Nothing is overwritten ----------------------------------------------------------
cp talk.wav speech.txt
mkdir -p beside
ln talk.wav beside/talk.txt
ln -s ../small.bin beside/other.txt
expect "a text over its recording" 2 "would overwrite the input speech.txt" \
    shoal transcribe speech.txt -m small.bin --out .
expect "a text over its recording, by a link" 2 "would overwrite the input talk.wav" \
    shoal transcribe talk.wav -m small.bin --out beside
expect "a text over the model" 2 "would overwrite the input small.bin" \
    shoal transcribe other.wav -m small.bin --out beside
report "recordings stay" "$(cmp speech.txt talk.wav; cmp beside/talk.txt talk.wav)"
expect "a file for a folder" 4 "is a file; give a folder" shoal transcribe talk.wav \
    -m small.bin --out small.bin
expect "no name for a folder" 2 "--out is empty" shoal transcribe talk.wav -m small.bin \
    --out ''
cp talk.wav silent.wav
tool put silent.wav 24 0
expect "no samples per second" 3 "a sample rate of 0" shoal transcribe silent.wav \
    -m small.bin

# ---- Formats -------------------------------------------------------------------------
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
tool put counted.wav 4 "$(stat -c %s talk.wav)" # the size of the file, not of the audio
check "a size that counts itself" bash -c \
    "'$program' transcribe counted.wav -m small.bin --no-fallback -q | cmp - text"
tool spoil small.bin spoilt.bin encoder.ln_post.weight
expect "an encoder that gives NaN" 3 "NaN" shoal transcribe talk.wav -m spoilt.bin
tool spoil small.bin spoilt.bin decoder.ln.weight
expect "a decoder that gives NaN" 3 "outputs are NaN" shoal transcribe talk.wav \
    -m spoilt.bin
expect "and with beams" 3 "outputs are NaN" shoal transcribe talk.wav -m spoilt.bin -b 3
check "json" say talk.wav -f json -l en
check "json has what it should" json "d['language'] == 'en' and
    abs(d['duration'] - 4) < 1e-6 and d['windows'] >= 1 and d['task'] == 'transcribe' and
    d['text'] == ''.join(s['text'] for s in d['segments']).lstrip() and
    all(s['end'] > s['start'] and s['tokens'] for s in d['segments'])"
check "srt" say talk.wav -f srt
report "srt in lines" "$(tool cues out 42 2)"
expect "no lines at all" 2 "max-line-count" shoal transcribe talk.wav -m small.bin \
    --max-line-count 0
check "srt has times" bash -c "[ ! -s out ] ||
    grep -Eq '^[0-9:]{8},[0-9]{3} --> [0-9:]{8},[0-9]{3}$' out"
check "vtt" say talk.wav -f vtt
check "vtt begins as it must" bash -c "[ \"\$(head -1 out)\" = WEBVTT ]"
check "translation" say talk.wav -t translate
check "beams" say talk.wav -b 3
check "stereo at 44.1 kHz, resampled" say other.wav -a shoal-20 -f json
check "its duration" json "abs(d['duration'] - 2.5) < 0.05 and
    d['attention'] == 'shoal-20'"
check "without timestamps" say talk.wav --no-timestamps
check "fallback" run transcribe other.wav -m small.bin -f json
check "SHOAL_SPEECH_MODEL" env SHOAL_MODEL=nothing SHOAL_SPEECH_MODEL=small.bin \
    "$program" transcribe talk.wav --no-fallback
check "SHOAL_MODEL" env SHOAL_MODEL=small.bin "$program" transcribe talk.wav --no-fallback
check "english only" bash -c "python3 tool.py model english.bin 51864 &&
    '$program' transcribe talk.wav -m english.bin --no-fallback"
expect "english only knows no german" 3 "English only" shoal transcribe talk.wav \
    -m english.bin -l de

# ---- Files ---------------------------------------------------------------------------
check "into a folder" say talk.wav other.wav -o texts
check "the file is what stdout was" cmp texts/talk.txt text
check "nothing else is there" bash -c \
    "[ \"\$(ls texts | xargs)\" = 'other.txt talk.txt' ]"
printf 'this is no sound\n' >fake.wav
expect "a bad recording does not stop the others" 3 "fake.wav" shoal transcribe \
    fake.wav talk.wav -m small.bin --no-fallback -o more
check "only the good one is written" bash -c "[ \"\$(ls more | xargs)\" = talk.txt ]"
expect "one in the middle neither, and is named in its turn" 3 "fake.wav" shoal \
    transcribe talk.wav fake.wav other.wav -m small.bin --no-fallback -o between
check "what it stands between is the same" diff -r between texts
check "several to standard output" say talk.wav other.wav
check "in their order" bash -c \
    "{ echo talk.wav:; cat texts/talk.txt; echo other.wav:; cat texts/other.txt; } |
    cmp - out"
expect "a folder that is a file" 4 "text" shoal transcribe talk.wav -m small.bin -o text

# ---- Damaged recordings --------------------------------------------------------------
: >empty.wav
mkdir -p folder.wav
tool nan_wav nan.wav
cp talk.wav silent.wav && tool put silent.wav 22 0     # no channels
tool cut talk.wav header.wav 30
for bad in fake empty folder nan silent header; do
    expect "$bad.wav is refused" 3 "$bad.wav" shoal transcribe $bad.wav -m small.bin \
        --no-fallback -o never
done
expect "a missing recording" 3 "nowhere" shoal transcribe nowhere.flac -m small.bin
check "nothing was written for any of them" bash -c "[ -z \"\$(ls never)\" ]"

cp talk.wav claims.wav && tool put claims.wav 40 256000 # twice the actual size
expect "a WAV that announces more than it has" 3 "4.00 of the 8.00 seconds" \
    shoal transcribe claims.wav -m small.bin --no-fallback -o never
check "is taken as it is when asked" bash -c \
    "'$program' transcribe claims.wav -m small.bin --no-fallback -q --partial |
        cmp - text"
cp talk.wav piped.wav && tool put piped.wav 4 -1 && tool put piped.wav 40 -1
check "a WAV of unknown length" bash -c \
    "'$program' transcribe piped.wav -m small.bin --no-fallback -q | cmp - text"

# ---- Silence -------------------------------------------------------------------------
tool zero_wav zero.wav 33
json_of_silence() {
    run transcribe zero.wav -m small.bin -f json --no-vad "$@" &&
        json "d['text'] == '' and d['silent_windows'] == d['windows'] == 2 and
            d['language'] is None"
}
for more in "" --no-fallback --no-timestamps; do
    check "silence $more" run transcribe zero.wav -m small.bin -f json $more
    check "has no words $more" json "d['text'] == '' and not d['segments'] and
        d['windows'] == 0 and d['language'] is None"
    check "nor without a search $more" json_of_silence $more
done
check "its summary" grep -q "no speech" err

# ---- Words, formats, parts, standard input -------------------------------------------
check "words in json" run transcribe talk.wav -m small.bin -f json --words
check "have times and probabilities" json "all('words' in s for s in d['segments']) and
    all(0 <= w['start'] <= w['end'] <= 4.1 and 0 < w['probability'] <= 1 and w['word']
        for s in d['segments'] for w in s['words']) and
    all(''.join(w['word'] for w in s['words']) == s['text'] for s in d['segments'])"
for form in srt vtt csv lrc; do
    check "words in $form" run transcribe talk.wav -m small.bin -f $form --words
    cp out "words.$form"
    check "none in $form" run transcribe talk.wav -m small.bin -f $form
    check "is another" bash -c "! cmp -s out words.$form && [ -s out ]"
done
check "csv has a header" grep -qx "start,end,text,probability" words.csv
check "and milliseconds" grep -qE '^[0-9]+,[0-9]+,".*",[01]\.[0-9]{4}$' words.csv
check "lrc has times" grep -qE '^\[00:0[0-9]\.[0-9]{2}\]<00:0[0-9]\.[0-9]{2}> ' words.lrc
check "vtt too" grep -qE '<00:00:0[0-9]\.[0-9]{3}><c>' words.vtt
check "no colours in a file" run transcribe talk.wav -m small.bin --print-colors
check "as without" bash -c "! grep -q $'\033' out"
check "standard input" bash -c "'$program' transcribe - -m small.bin <talk.wav >piped &&
    '$program' transcribe talk.wav -m small.bin >named && cmp piped named"
check "raw samples" bash -c "tail -c +45 talk.wav |
    '$program' transcribe - --rate 16000 -m small.bin >raw && cmp raw named"
check "nothing is left of it" bash -c "mkdir -p spool &&
    TMPDIR=spool '$program' transcribe - -m small.bin <talk.wav &&
    [ -z \"\$(ls spool)\" ]"
check "into a folder" bash -c "'$program' transcribe - -m small.bin -o texts <talk.wav &&
    [ -e texts/stdin.txt ]"
expect "empty standard input" 3 "samples" bash -c \
    "'$program' transcribe - --rate 16000 -m small.bin </dev/null"
expect "standard input that is no sound" 3 "standard input: is not a readable" bash -c \
    "'$program' transcribe - -m small.bin <small.bin"
check "in one sentence, of a name" bash -c \
    "! grep -F -e '.;' -e /proc/ err && grep -qF 'ffmpeg -i - -ar' err"
expect "a full disk" 4 "cannot be written" bash -c "ulimit -f 16; TMPDIR=spool \
    '$program' transcribe - -m small.bin <talk.wav"
expect "a disk that is not there" 4 "nowhere/shoal-" bash -c \
    "TMPDIR=nowhere '$program' transcribe - -m small.bin <talk.wav"
expect "a stream without an end" 4 "standard input has more than 1 MiB" bash -c \
    "head -c 9000000 /dev/zero |
        SHOAL_STDIN_MIB=1 '$program' transcribe - --rate 16000 -m small.bin"
check "its beginning" bash -c "{ tail -c +45 talk.wav; head -c 9000000 /dev/zero &&
    touch drained; } |
    '$program' transcribe - --rate 16000 -m small.bin --duration 4 | cmp - named"
check "of which no more was read" absent drained
check "and nothing is left of any" bash -c "[ -z \"\$(ls spool)\" ]"
expect "a text beyond a limit of size" 4 "File too large" bash -c \
    "{ ulimit -f 0; '$program' transcribe talk.wav -m small.bin -o limited; } 2>&1 |
        cat >&2; exit \${PIPESTATUS[0]}"
check "leaves nothing" bash -c "[ -z \"\$(ls -A limited)\" ]"
expect "a rate without samples" 2 "standard input" shoal transcribe talk.wav \
    -m small.bin --rate 8000
expect "standard input twice" 2 "given twice" shoal transcribe - - -m small.bin
check "a part" run transcribe talk.wav -m small.bin -f json --offset 1 --duration 2
check "lies there" json "abs(d['duration'] - 2) < 0.02 and
    all(1 <= s['start'] <= s['end'] <= 3.01 for s in d['segments'])"
check "a part without a search" run transcribe talk.wav -m small.bin -f json --offset 1 \
    --duration 2 --no-vad
check "lies there too" json "abs(d['duration'] - 2) < 0.02 and
    all(1 <= s['start'] <= s['end'] <= 3.01 for s in d['segments'])"
check "beyond the end" run transcribe talk.wav -m small.bin -f json --offset 100
check "is nothing" json "not d['segments']"
expect "no seconds" 2 "offset" shoal transcribe talk.wav -m small.bin --offset -1
check "a prompt" run transcribe talk.wav -m small.bin --prompt "Ishmael, and the whale"
printf 'no sound' >talk.xyz
expect "a format that is not read" 3 "ffmpeg -i talk.xyz -ar 16000 -ac 1 out.wav" \
    shoal transcribe talk.xyz -m small.bin

# ---- Kinds that use the queries as keys -----------------------------------------------
for kind in lsh-4 shared-full; do
    expect "$kind is refused" 2 "separate keys" shoal transcribe talk.wav \
        -m small.bin -a $kind
    expect "$kind is refused by wer" 2 "separate keys" shoal wer a -m small.bin \
        -a full,$kind
    check "$kind can be forced" say talk.wav -a $kind --force
done
expect "what makes sense is said" 2 "shoal or auto" \
    shoal transcribe talk.wav -m small.bin \
    -a lsh-4

# ---- Damaged models ------------------------------------------------------------------
size=$(stat -c %s small.bin)
for at in 0 3 4 40 57 1000 70000 600000 $((size - 100000)) $((size - 1)); do
    tool cut small.bin cut.bin "$at"
    expect "model cut at $at of $size" 3 "cut.bin" shoal transcribe talk.wav -m cut.bin
done
for field in 0 1 2 3 4 5 6 7 8 9 10 11 12 13; do
    for value in -1 0 7 2147483647; do
        cp small.bin bad.bin && tool put bad.bin $((4 * field)) "$value"
        # Valid types of files: each tensor has its own.
        case $field.$value in 11.0 | 11.7) continue ;; esac
        expect "model with field $field = $value" 3 "bad.bin" shoal transcribe talk.wav \
            -m bad.bin
    done
done
expect "a missing model" 3 "nowhere" shoal transcribe talk.wav -m nowhere.bin
expect "a folder without a model" 3 "a" shoal transcribe talk.wav -m a
expect "a recording as the model" 3 "talk.wav" shoal transcribe talk.wav -m talk.wav

# ---- wer -----------------------------------------------------------------------------
mkdir -p spoken/1/2
cp talk.wav spoken/one.wav && cp other.wav spoken/1/2/two.wav
printf 'one Hello there, Mr. Smith\n\n' >spoken/transcripts.txt
printf 'two it is twenty five\n' >spoken/1/2/1-2.trans.txt
heard() { run wer spoken -m small.bin "$@"; }
expect "wer: no folder" 2 "no folder" shoal wer -m small.bin
expect "wer: no model" 2 "SHOAL_SPEECH_MODEL" shoal wer spoken
expect "wer: misspelt kind" 2 "shool" shoal wer spoken -m small.bin -a shool-4
expect "wer: gap" 2 "gap" shoal wer spoken -m small.bin --gap -1
check "wer: table" heard -a shoal-20,clustered-4:bits=31
check "wer: full is there" grep -q "^full " out
check "wer: its spelling" grep -q "^clustered-4:bits=31 " out
check "wer: json" heard -a full,shoal-20 --json --texts --plot wer.svg
check "wer: json has what it should" json "d['windows_done'] == 1 and
    d['utterances'] == 2 and len(d['windows']) == 1 and
    [k['kind'] for k in d['kinds']] == ['full', 'shoal-20'] and
    all(k['words'] == 7 for k in d['kinds']) and d['kinds'][0]['encoder_error'] == 0 and
    0 < d['kinds'][1]['encoder_error'] < 2 and
    d['windows'][0]['references'] == ['it is twenty five', 'Hello there, Mr. Smith']"
check "wer: rates have intervals" json "all(k['wer_interval'][0] <= k['wer_percent'] <=
    k['wer_interval'][1] and len(k['difference_interval']) == 2 for k in d['kinds']) and
    d['kinds'][0]['difference_interval'] == [0, 0]"
check "wer: picture" bash -c "[ ! -e wer.svg ] || grep -q '</svg>' wer.svg"
check "wer: one per window" heard --json --per-window 1 --limit 2 -a full
check "wer: two windows" json "d['windows_done'] == 2"
check "wer: arrangements" heard --json --texts --arrangements 4 -a full,shoal-20
check "wer: each has every utterance once" json "len(d['arrangements']) == 4 and
    [a['per_window'] for a in d['arrangements']] == [2, 1, 2, 2] and
    [a['gap'] for a in d['arrangements']] == [0.5, 0.5, 0, 0.25] and
    d['utterances'] == 2 and d['kinds'][0]['words'] == 4 * 7 and
    all(sorted(f for w in d['windows'] if w['arrangement'] == i for f in w['files']) ==
        sorted(d['windows'][0]['files']) for i in range(4))"
tool only out kinds >first
check "wer: again" heard --json --texts --arrangements 4 -a full,shoal-20 --threads 1
tool only out kinds >second
check "wer: with the same rates and intervals" cmp first second
check "wer: the table of arrangements" heard --arrangements 2 -a full,shoal-20
check "wer: has a line for each" grep -q "^1 per window" out
check "wer: another order" heard --json --texts --shuffle --seed 2 -a full
check "wer: is another" json "len(d['windows']) == 1 and
    d['arrangements'][0]['shuffled']"
mkdir -p kaldi/sounds
cp talk.wav kaldi/sounds/
printf 'b sounds/talk.wav\na ../other.wav\n' >kaldi/wav.scp
printf 'a it is twenty five\nb hello there\n' >kaldi/text
check "wer: Kaldi's lists" run wer kaldi -m small.bin --json --texts -a full
check "wer: in the order of wav.scp" json "d['windows'][0]['references'] ==
    ['hello there', 'it is twenty five']"
printf 'c talk.wav |\n' >>kaldi/wav.scp
expect "wer: commands are not run" 3 "line 3" shoal wer kaldi -m small.bin -a full
printf 'b sounds/talk.wav\nc ../other.wav\n' >kaldi/wav.scp
expect "wer: a text is missing" 3 "no line for c" shoal wer kaldi -m small.bin -a full
printf 'one a caf\351 au lait\n' >spoken/transcripts.txt
check "wer: a text that is no UTF-8" heard --json --texts --per-window 1 -a full
check "wer: is shown all the same" json "len(d['windows']) == 2"
mkdir -p long
tool wav long/one.wav 40
printf 'one a long story\n' >long/transcripts.txt
check "wer: beyond a window" run wer long -m small.bin --json -a full
check "wer: all of it counts" json "abs(d['audio_seconds'] - 40) < 0.1"
check "wer: as transcribe does" run wer spoken -m small.bin --json --vad --limit 2 -a full
check "wer: has no error of the encoder" json "d['kinds'][0]['encoder_error'] is None"
check "wer: joined, in two modes" run wer spoken -m small.bin --json --texts --join 1 \
    -a full@published,full,shoal-20@no-vad --limit 2
check "wer: is one recording" json "d['windows_done'] == 1 and d['join_minutes'] == 1 and
    [k['kind'] for k in d['kinds']] == ['full@published', 'full', 'shoal-20@no-vad'] and
    d['kinds'][0]['difference_interval'] == [0, 0]"
check "wer: timestamps, no times" run wer spoken -m small.bin --json --timestamps \
    --no-time --limit 2 -a full,full@vad
check "wer: are not there" json "d['kinds'][0]['encoder_seconds_median'] is None"
expect "wer: a mode that there is not" 2 "published" shoal wer spoken -m small.bin \
    -a full@fast
expect "wer: join" 2 "minutes" shoal wer spoken -m small.bin --join x
expect "wer: an empty folder" 3 "transcripts" shoal wer a -m small.bin
printf 'three nothing\n' >>spoken/transcripts.txt
expect "wer: a recording is missing" 3 "three" shoal wer spoken -m small.bin

# ---- The real model ------------------------------------------------------------------
if [ -e "$data/models/ggml-tiny.bin" ] && [ -e "$data/speech/transcripts.txt" ]; then
    fisher=$data/speech/1088-134315-0043.flac
    hear() { shoal transcribe "$fisher" -m "$data/models/ggml-tiny.bin" -l en -q "$@"; }
    expect "real: an attention that is far off is told" 0 \
        "shoal or auto, which keep the words" hear -a i-clustered-100
    hear -f srt >two.srt
    hear -f srt --max-line-width 25 --max-line-count 1 >one.srt
    hear -f srt --max-line-width 0 >long.srt
    report "real: cues of 42 x 2" "$(tool cues two.srt 42 2)"
    report "real: cues of 25 x 1" "$(tool cues one.srt 25 1)"
    report "real: cues without a limit" "$(tool cues long.srt 1000 1)"
    check "real: the same words" cmp two.srt.joined long.srt.joined
    check "real: whatever the lines" cmp one.srt.joined long.srt.joined
    check "real: lines end at marks" grep -qx "I am afraid Miss Holland," two.srt
    hear -f vtt --words >words.vtt
    check "real: times in lines" grep -qE "^<00:00:06.*>Holland,</c>$" words.vtt
    for kind in q-clustered-100 shoal full; do
        expect "real: no warning of $kind" 0 "Fisher went back" hear -a $kind
        check "real: nothing on stderr" bash -c "[ ! -s err ]"
    done
    check "real: wer" run wer "$data/speech" -m "$data/models/ggml-tiny.bin" --limit 2 \
        --per-window 2 --json
    check "real: hardly a word is wrong" json "all(k['wer_percent'] < 8
        for k in d['kinds']) and d['kinds'][1]['encoder_error'] < 0.3"
else
    skip "real model" "$data/models is not here"
fi
finish
