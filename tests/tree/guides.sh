#!/bin/bash
# The commands of README and of the guides in docs/ are run, on tiny data that this script
# generates, or `reason` says why they are not. A new command of a page is run unless it
# is listed there.
#     guides.sh CMAKE CC BUILD SOURCE
# A command is a line of a code block (indented by four, or fenced without a language)
# that begins with one of the programs used in guides; \ continues it, and # begins a
# comment. docs/benchmarks.md and docs/results.md are not included: their commands take
# minutes to hours.
cmake=$1 cc=$2 build=$(realpath "$3") source=$(realpath "$4")
. "$source/tests/report.sh"
pages="README.md docs/install.md docs/kinds.md docs/c.md docs/python.md"
pages+=" docs/transcribe.md docs/embed.md docs/train.md docs/scale.md"
data=${SHOAL_DATA:-$source/../shared/data}
speech_model=$data/models/ggml-tiny.bin
programs='shoal [a-z]+|mpirun\S* |cc |cmake |make\b|pip |python3? |bash |sudo |apt'
programs+='|ffmpeg |export |[A-Z_]+=\S|(bench|build|tools|tests)/\S+|\./\S+|tar |git '

commands() { # PAGE
    awk '/^```/ { fenced = !fenced; plain = fenced && $0 == "```"; next }
        fenced ? plain : /^    / { sub(/^ +/, "")
            line = line $0
            if (sub(/\\$/, "", line)) next
            sub(/ +# .*/, "", line); print line; line = "" }' "$1" |
        grep -E "^($programs)" | grep -vE '^shoal [a-z]+:'
}

reason() { # COMMAND: why it is not run; empty if it is
    case $1 in
    make* | sudo* | pip* | tools/* | apt*) echo "builds or installs; CI does";;
    cmake* | *build/mpich*) echo "builds; tree_install, cli_ranks";;
    bench/* | "shoal bench"* | "shoal demo"*) echo "measures";;
    export*shoal/* | *'$HOME/shoal'*) echo "a prefix of the user's; tree_install";;
    ffmpeg*) echo "needs ffmpeg and a film";;
    ./train_task* | "./train model"*) echo "example_train_task and example_train run it";;
    "cc example.c"*) echo "the program is README's; headers and examples are compiled";;
    "shoal quality"*) echo "needs dumps of a model; cli_quality";;
    "shoal plot"* | "shoal maps"*) [ $plots = yes ] || echo "this build has no cairo";;
    "shoal repro"*) echo "takes hours; cli_train and others run small ones";;
    *--lm*) echo "needs English phones; cli_speech has words of its own";;
    "shoal wer"*--arr* | "shoal wer librispeech"* | "shoal wer"*q-clustered* | \
        "shoal wer"*--limit* | "shoal wer DIR"*) echo "takes minutes; cli_transcribe";;
    mpirun*--hostfile*) echo "needs several machines";;
    mpirun*bench*) echo "measures";;
    "mpirun -n "*) [ $mpi = yes ] || echo "this build has no MPI";;
    esac
    [[ $1 == *ggml-tiny.bin* && ! -e $speech_model ]] && echo "there is no $speech_model"
    [[ $speech == no && $1 =~ speech|transcribe|recognise|\ wer\  ]] &&
        echo "this build has no speech"
}

run_page() { # PAGE
    local command why problem=""
    while IFS= read -r command; do
        why=$(reason "$command")
        if [ -n "$why" ]; then
            echo "# not run: $command ($why)"
        elif ! { eval "$command"; } </dev/null >"$work/log" 2>&1; then
            problem+="$command: $(tail -n 3 "$work/log")"$'\n'
        fi
    done < <(commands "$source/$1")
    report "$1" "$problem"
}

made() { # prepares the folder in which the commands are run
    mkdir bin long speech runs
    ln -s "$source/examples" .
    for name in MODEL DIR all-MiniLM-L6-v2 minilm; do
        ln -s "$source/tests/models/text/bert" $name
    done
    # Limits trainings to a few steps, with features in this folder.
    cat >bin/shoal <<END
#!/bin/bash
few=()
[ "\$1" = train ] && few=(--steps 2)
case "\$1 \$2" in
"train speech" | "eval runs/i100" | "eval runs/mmi") few+=(--cache "$work/cache");;
"train glue" | "train squad") few+=(--set max_length=32);;
esac
[ "\$2" = squad ] && few+=(--set stride=8)
exec "$build/shoal" "\$@" "\${few[@]}"
END
    chmod +x bin/shoal
    printf 'a b c\nqueries huddle into clusters\n' |
        tee texts.txt context.txt long/a.txt >long/b.txt
    printf '{"text": "a b"}\n' >rows.jsonl
    printf 'A A\nB B\nC C\nD D\n' >LEXICON
    python3 - "$source/tests/cli/lib" <<'PYTHON'
import json, os, random, sys
sys.path.insert(0, sys.argv[1])
import tones, tools
for part, count, seed in (("train", 24, 1), ("dev", 6, 100), ("test", 6, 200)):
    tones.make(f"DATA/{part}", count, seed)
for name in ("talk.wav", "talk.flac", "talk.mp3", "speech/one.wav"):
    tones.sound(name, "ABCDABCDABCD", 1)
open("speech/transcripts.txt", "w").write("one A B C D\n")
draw = random.Random(1)
for name in "qkv":
    tools.write(f"{name}.npy", [1, 2, 300, 8], [draw.gauss(0, 1) for _ in range(4800)])
os.makedirs("glue/RTE")
for name in ("train", "dev"):
    rows = "".join(f"{i}\ta b\tc d\t{('not_' * (i % 2))}entailment\n" for i in range(20))
    open(f"glue/RTE/{name}.tsv", "w").write("index\tsentence1\tsentence2\tlabel\n" + rows)
    answers = [{"text": "queries", "answer_start": 0}]
    paragraph = {"context": "queries huddle once",
                 "qas": [{"id": "q", "question": "who", "answers": answers}]}
    json.dump({"data": [{"title": "t", "paragraphs": [paragraph]}], "version": "1.1"},
              open(f"{name}.json", "w"))
PYTHON
    [ ! -e "$speech_model" ] || ln -s "$speech_model" ggml-tiny.bin
    "$cmake" --install "$build" --prefix prefix >/dev/null
    libraries=$(dirname "$(find "$work/prefix" -name libshoal.so)")
    ln -s "$(command -v "$cc")" bin/cc
    export PATH=$work/bin:$PATH LD_LIBRARY_PATH=$libraries
    export PKG_CONFIG_PATH=$libraries/pkgconfig
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1
}

speech=no mpi=no plots=no
[ -e "$build/libshoal-speech.so" ] && speech=yes
[ -e "$build/libshoal-mpi.so" ] && command -v mpirun >/dev/null && mpi=yes
ldd "$build/shoal" | grep -q libcairo && plots=yes
cd "$work" || exit 1
printf '%s\n' text "" '    shoal x \' "        -y  # why" "    ok: 3" "" \
    '```c' "shoal z" '```' >page.md
report "commands are found" "$([ "$(commands page.md)" = "shoal x -y" ] ||
    commands page.md)"
made || exit 1
for page in $pages; do
    [ ! -e "$source/$page" ] || run_page "$page"
done
finish
