#!/bin/bash
# shoal train under mpirun: the curves of 1 to 4 ranks equal those of one process, bits
# are reproducible, a training continues with another number of ranks, and ranks that are
# killed, stopped, interrupted or see other data.
. "$(dirname "$0")/lib/helpers.sh"
. "$root/tests/mpi/launcher.sh"
library=$(ls "$(dirname "$program")"/libshoal-mpi.so.? 2>/dev/null)
if [ -z "$library" ]; then
    echo "ok ranks # SKIP libshoal-mpi was not built"
    exit 77
fi
ranks() { launch "$1" "$program" "${@:2}"; } # COUNT ARGUMENT...

tools <<'PYTHON'
import math, os, random, struct, wave
def lines(path):
    return [line for line in map(json.loads, open(path)) if "step" in line]
def near(path, *others):
    """Losses of the logs to 1e-5 of the first's."""
    wanted = lines(path)
    for other in others:
        found = lines(other)
        if len(found) != len(wanted):
            print(f"{other} has {len(found)} lines, not {len(wanted)}")
            continue
        for a, b in zip(wanted, found):
            for key in ("loss", "validation_loss"):
                if key in a and a[key] != b[key] and (
                        abs(a[key] - b[key]) > 1e-5 * abs(a[key])):
                    print(f"{other}, step {a['step']}: {key} {b[key]}, not {a[key]}")
                    return
def losses(path):
    for line in lines(path):
        line.pop("seconds"), line.pop("loss_seconds", None)
        print(sorted(line.items()))
def learns(path):
    values = [line["loss"] for line in lines(path) if "loss" in line]
    if not sum(values[-5:]) < sum(values[:5]) - 0.5:
        print(values)
def tensors(path):
    data = open(path, "rb").read()
    sys.stdout.buffer.write(data[8 + struct.unpack("<Q", data[:8])[0]:])
def make(folder, count, seed):
    """Utterances of one to three tones, of very different lengths."""
    os.makedirs(folder)
    draw = random.Random(int(seed))
    with open(f"{folder}/wav.scp", "w") as scp, open(f"{folder}/text", "w") as text:
        for n in range(int(count)):
            units = [draw.choice("ABC") for _ in range(draw.randrange(1, 4))]
            samples = []
            for unit in units:
                hertz = 300 * (1 + ord(unit) - ord("A"))
                samples += [0.3 * math.sin(2 * math.pi * hertz * i / 8000) +
                            draw.uniform(-0.02, 0.02)
                            for i in range(draw.randrange(1000, 3000))]
            with wave.open(f"{folder}/u{n:03}.wav", "wb") as f:
                f.setparams((1, 2, 8000, 0, "NONE", ""))
                f.writeframes(struct.pack(f"<{len(samples)}h",
                                          *(int(32767 * s) for s in samples)))
            scp.write(f"u{n:03} u{n:03}.wav\n")
            text.write(f"u{n:03} {' '.join(units)}\n")
def pairs(folder, count):
    """RTE in GLUE's form, and SQuAD: the answer is what follows once."""
    draw = random.Random(5)
    words = "attention in linear time queries huddle into clusters each".split()
    some = lambda: " ".join(draw.choice(words) for _ in range(draw.randint(2, 9)))
    os.makedirs(f"{folder}/RTE")
    for name in ("train", "dev"):
        with open(f"{folder}/RTE/{name}.tsv", "w") as f:
            f.write("sentence1\tsentence2\tlabel\tidx\n")
            for i in range(int(count)):
                f.write(f"{some()}{' once' * (i % 2)}\t{some()}\t{i % 2}\t{i}\n")
        paragraphs = []
        for i in range(int(count)):
            before = some()
            paragraphs.append({"context": f"{before} once huddle {some()}", "qas": [
                {"id": f"q{i}", "question": "once in time", "answers":
                 [{"text": "huddle", "answer_start": len(before) + 6}]}]})
        json.dump({"data": [{"title": "t", "paragraphs": paragraphs}]},
                  open(f"{folder}/{name}.json", "w"))
PYTHON

small="--length 15 --layers 2 --set heads=2 --set head_dim=16 --set feed_forward=48
    --learning-rate 0.001 --set validate_every=25 --set validate_batches=2 --batch 10"
copy() { shoal train copy $small --threads 1 --out "$@"; }
copies() { ranks "$1" train copy $small --out "${@:2}"; } # COUNT FOLDER ...

# ---- Curves ----------------------------------------------------------------------------
# Ten sequences are not a multiple of three or four; dropout is by row of the whole batch.
dropout="--steps 50 --set dropout=0.1"
same() { # NAME FOLDER FOLDER: losses and everything learned, bit for bit
    report "$1" "$(diff <(tool losses "$2/log.jsonl") <(tool losses "$3/log.jsonl")
        cmp <(tool tensors "$2/checkpoint.safetensors") \
            <(tool tensors "$3/checkpoint.safetensors") 2>&1)"
}
check "one process" copy one $dropout
for count in 1 2 3 4; do
    check "$count ranks" copies $count "of$count" $dropout
done
report "their curves are one process's" \
    "$(tool near one/log.jsonl of{1,2,3,4}/log.jsonl)"
same "one rank is one process" one of1
check "three ranks again" copies 3 again $dropout
same "the bits repeat" of3 again
more="--steps 50 --set loss=all --batch 2 --attention i-clustered-4:topk=4"
check "more ranks than sequences" copies 3 few $more
check "as one process" copy few1 $more
report "and their curve" "$(tool near few1/log.jsonl few/log.jsonl)"

# ---- Speech ----------------------------------------------------------------------------
# Utterances of very different lengths, at two speeds, with masks and dropout; some steps
# have fewer utterances than ranks.
if shoal recognise --help | grep -q beams; then
    tool make data/train 16 1
    tool make data/dev 4 2
    tool make data2/train 16 3
    tool make data2/dev 4 2
    speech="--cache cache --steps 20 --layers 1 --set heads=2 --set head_dim=8
        --set feed_forward=16 --set batch_frames=120 --set speeds=0.9,1
        --set mask_after=1 --set validate_every=10 --set warmup=5"
    check "speech" shoal train speech data $speech --threads 1 --out heard
    for count in 2 3; do
        check "speech, $count ranks" ranks $count train speech data $speech \
            --out "heard$count"
    done
    report "their curves" "$(tool near heard/log.jsonl heard{2,3}/log.jsonl)"
    printf 'A A\nB B D\nC C\n' >lexicon
    phones="--loss lf-mmi --lexicon lexicon --set every=3"
    check "LF-MMI" shoal train speech data $speech $phones --threads 1 --out mmi
    check "LF-MMI, 3 ranks" ranks 3 train speech data $speech $phones --out mmi3
    report "its curve" "$(tool near mmi/log.jsonl mmi3/log.jsonl)"
    averaged() { ranks 2 train speech data $speech $phones --threads 1 --out "$@"; }
    check "LF-MMI, averaged" averaged mmi2 --average-every 5
    check "half way" averaged half2 --average-every 5 --steps 10 --set decay_steps=20
    check "and on" averaged half2 --resume
    same "changes nothing" mmi2 half2
    expect "other data" 3 "rank 1 and rank 0 differ in data" launch 1 \
        "$program" train speech data $speech --out other : -n 1 \
        "$program" train speech data2 $speech --out other
fi

# ---- Texts -----------------------------------------------------------------------------
# Seven to a batch, the last of an epoch has two: fewer than three ranks.
models=$root/tests/models/text
tool pairs texts 16
texts="--batch 7 --set max_length=64 --learning-rate 0.001 --steps 12"
rte="train glue RTE --data texts --model $models/roberta $texts"
squad="train squad --data texts/train.json --dev texts/dev.json --model $models/bert
    $texts"
for task in rte squad; do
    check "$task" shoal ${!task} --threads 1 --out "$task"
    check "$task, 3 ranks" ranks 3 ${!task} --out "${task}3"
    report "its curve" "$(tool near $task/log.jsonl ${task}3/log.jsonl)"
done

# ---- Another number of ranks -----------------------------------------------------------
check "two ranks, half way" copies 2 half --steps 25 --set dropout=0.1
check "three go on" copies 3 half --resume --steps 50
report "the curve is one process's" "$(tool near one/log.jsonl half/log.jsonl)"
check "and one does" copy half --resume --steps 60

# ---- Averages --------------------------------------------------------------------------
average="--average-every 5 --threads 1"
check "averaged weights" copies 2 averaged $average --steps 50
check "again" copies 2 averaged2 $average --steps 50
same "their bits repeat" averaged averaged2
check "half way" copies 2 averaged3 $average --steps 25
check "and on" copies 2 averaged3 --resume --steps 50
same "an interruption at an average changes nothing" averaged averaged3
report "they learn" "$(tool learns averaged/log.jsonl)"

# ---- Errors at the start --------------------------------------------------------------
# differ PROGRAM ARGUMENT...: rank 1 has other arguments, or is another program.
differ() {
    launch 1 "$program" train copy $small --steps 5 --out other : \
        -n 1 "$@"
}
expect "another configuration" 3 "rank 1 and rank 0 differ in batch" \
    differ "$program" train copy $small --steps 5 --out other --batch 11
check "leaves no folder" absent other
expect "another instruction set" 3 "rank 1 and rank 0 differ in the instruction set" \
    differ "$program" train copy $small --steps 5 --out other --isa scalar
{ cat "$program"; echo; } >another && chmod +x another
expect "another build" 3 "rank 1 and rank 0 differ in the build" \
    differ ./another train copy $small --steps 5 --out other
expect "a folder that is taken" 2 "add --resume" copies 2 of2 $dropout
report "is said once" "$([ "$(grep -c "add --resume" err)" = 1 ] || cat err)"
expect "a launcher of another MPI" 2 "built with another MPI" \
    env PMI_SIZE=3 "$program" train copy $small --out other
mkdir broken && cp "$(dirname "$library")/libshoal.so".? broken
echo >"broken/$(basename "$library")"
expect "a library that cannot be loaded" 4 "build Shoal with MPI installed" \
    env PMI_SIZE=3 LD_LIBRARY_PATH="$work/broken" "$program" train copy $small --out other

# ---- Lost ranks ------------------------------------------------------------------------
below() { # PROCESS: its children, and theirs
    local one
    for one in $(pgrep -P "$1"); do echo "$one"; below "$one"; done
}
process_of() { # RANK of the job
    local one
    for one in $(below $job); do
        [ "$(readlink "/proc/$one/exe")" = "$program" ] &&
            tr '\0' '\n' <"/proc/$one/environ" |
            grep -qxE "(OMPI_COMM_WORLD|PMI)_RANK=$1" && echo "$one" && return
    done
}
launcher() { pgrep -P "$(pgrep -P $job timeout || echo $job)" '^mpi'; }
steps_of() { grep -c '"gradient_norm"' "$1/log.jsonl" 2>/dev/null; }
begin() { # FOLDER: a long training with two ranks, until it has made some steps
    copies 2 "$1" --steps 1000000 --save-seconds 0 >out 2>err &
    job=$!
    for _ in $(seq 600); do
        [ "$(steps_of "$1")" -gt 5 ] 2>/dev/null && return
        sleep 0.1
    done
    echo "it does not begin"
    return 1
}
ended() { # WORDS: the job has failed with these words, within a minute
    local began=$SECONDS code
    wait $job
    code=$?
    [ $code != 0 ] && [ $((SECONDS - began)) -lt 60 ] && grep -qE "$1" out err && return
    echo "exit code $code after $((SECONDS - began)) s"
    cat err
    return 1
}
export OMPI_MCA_odls_base_sigkill_timeout=5
check "a training begins" begin killed
kill -9 "$(process_of 1)"
# MPICH's launcher kills the others before they notice, and reports it.
check "a killed rank ends it" ended "has ended; this rank stops too|BAD TERMINATION"
check "and it goes on" copies 3 killed --resume --steps $(($(steps_of killed) + 5))
check "no leftovers" [ -z "$(find killed -name '*.tmp')" ]
SHOAL_MPI_PATIENCE=4 check "another begins" begin stopped
stopped=$(process_of 1)
kill -STOP "$stopped"
check "a stopped rank ends it" ended "has not responded for"
check "and it goes on too" copies 2 stopped --resume --steps \
    $(($(steps_of stopped) + 5))
OMPI_MCA_odls_base_sigkill_timeout=4 check "a third begins" begin interrupted
kill -INT "$(launcher)"
check "an interrupt ends it" ended "the checkpoint is written. To resume"
report "after the last step of the log" \
    "$(says "interrupted after step $(steps_of interrupted);" || cat err)"
