#!/usr/bin/env bash
# Runs shoal train glue and squad, eval and answer on tiny models: PROGRAM is $1.
. "$(dirname "$0")/lib/helpers.sh"
tools <<'PYTHON'
import random

WORDS = "attention in linear time queries huddle into clusters each once".split()

def sentence(draw, more=()):
    words = [draw.choice(WORDS) for _ in range(draw.randint(2, 9))]
    for word in more:
        words.insert(draw.randrange(len(words) + 1), word)
    return " ".join(words)

# A GLUE folder with tasks of 40 and 20 rows, where the class is whether "once" occurs,
# and the number how often.
def glue(folder):
    draw = random.Random(1)
    def rows(count):
        for i in range(count):
            label = draw.randrange(2)
            text = sentence(draw).replace("once", "time") + " once" * label
            yield i, text, sentence(draw), label
    def write(task, name, header, form, count):
        os.makedirs(f"{folder}/{task}", exist_ok=True)
        with open(f"{folder}/{task}/{name}", "w") as file:
            file.write(header and header + "\n")
            for row in rows(count):
                file.write(form(*row) + "\n")
    for name, count in (("train.tsv", 40), ("dev.tsv", 20)):
        write("RTE", name, "sentence1\tsentence2\tlabel\tidx",
              lambda i, a, b, l: f"{a}\t{b}\t{l}\t{i}", count)
        write("QNLI", name, "index\tquestion\tsentence\tlabel", lambda i, a, b, l:
              f"{i}\t{a}\t{b}\t" + ("not_entailment" if l else "entailment"), count)
        write("CoLA", name, "", lambda i, a, b, l: f"gj04\t{l}\t\t{a}", count)
        write("STS-B", "sts-" + name, "",
              lambda i, a, b, l: f"x\ty\tz\t{i}\t{4.5 * l:.3f}\t{a}\t{b}", count)
    write("QQP", "labelled-23k.tsv", "", lambda i, a, b, l: f"{i}\t1\t2\t{a}\t{b}\t{l}",
          60)

# SQuAD: the answer follows "once".
def squad(path, count):
    draw = random.Random(int(count))
    paragraphs = []
    for i in range(int(count)):
        words = sentence(draw).replace("once", "time").split() + ["é"]
        at = draw.randrange(len(words))
        answer = draw.choice(["clusters", "queries huddle"])
        words[at:at] = ["once", answer]
        context = " ".join(words)
        start = context.index("once") + 5
        paragraphs.append({"context": context, "qas": [
            {"id": f"q{i}", "question": "once in time", "answers":
             [{"text": answer, "answer_start": start}] * (1 + i % 2)}]})
    json.dump({"data": [{"title": "t", "paragraphs": paragraphs}], "version": "1.1"},
              open(path, "w"))
PYTHON
models=$root/tests/models/text
tool glue glue
tool squad train.json 30
tool squad dev.json 12

train() { # $1 folder, then more options
    local folder=$1
    shift
    shoal train glue RTE --data glue --model "$models/roberta" --batch 8 --out "$folder" \
        --learning-rate 0.003 "$@"
}
curve() { sed 's/, "seconds": [0-9.e-]*//' "$1/log.jsonl"; } # all but the time
tensors() { # the bytes after the header of a folder's checkpoint
    python3 -c "import struct,sys; b = open('$1/checkpoint.safetensors', 'rb').read()
sys.stdout.buffer.write(b[8 + struct.unpack('<Q', b[:8])[0]:])"
}

# ---- The command line ------------------------------------------------------------------
expect "no task of GLUE" 2 "no GLUE task" shoal train glue -o x
expect "unknown task of GLUE" 2 "GLUE has no task FLY; tasks: CoLA" \
    shoal train glue FLY -o x
expect "no data" 2 "glue needs --data" shoal train glue RTE -o x
expect "no model" 2 "needs --model" shoal train glue rte --data glue -o x
expect "no dev" 2 "squad needs --data TRAIN.json and --dev" shoal train squad \
    --data train.json --model "$models/bert" -o x
expect "a task that is not there" 3 "glue has no MNLI/train.tsv for the task MNLI" \
    shoal train glue MNLI --data glue --model "$models/roberta" --set max_length=64 -o x
expect "ModernBERT" 3 "can embed but not be trained" shoal train glue RTE --data glue \
    --model "$models/modern" -o x
expect "positions" 2 "the maximum of the model is 64" shoal train glue RTE --data glue \
    --model "$models/bert" -o x
expect "layers are the folder's" 2 "the task glue has no layers" shoal train glue RTE \
    --layers 2 -o x
expect "a kind that takes queries as keys" 2 "lsh-1 uses the queries as keys" \
    shoal train glue RTE --data glue --model "$models/roberta" --set max_length=64 \
    --attention lsh-1 -o x
report "refusals leave no folder" "$([ -e x ] && echo "x is there")"
expect "print-config" 0 '"dataset": "RTE"' shoal train glue RTE --print-config
cp out text.json
expect "print-config is a config" 0 '"max_length": 128' shoal train glue RTE \
    --config text.json --print-config

# ---- Rows that are wrong ---------------------------------------------------------------
bad() { # NAME WORDS ROW: the fourth line of train.tsv is rejected by its number
    cp -r glue wrong
    sed -i "4s/.*/$3/" wrong/RTE/train.tsv
    expect "$1" 3 "wrong/RTE/train.tsv: line 4: $2" shoal train glue RTE --data wrong \
        --model "$models/roberta" --set max_length=64 -o x
    rm -r wrong
}
bad "three columns" "it has 3 columns instead of 4" 'a\tb\t1'
bad "another class" 'the label is "2"' 'a\tb\t2\t3'
words='it must be entailment, not_entailment or a class from 0 to 1'
bad "another word" 'the label is "x"; '"$words" 'a\tb\tx\t3'
bad "no class" 'the label is ""' 'a\tb\t\t3'
bad "no UTF-8" "the text is not UTF-8" 'a\xff\tb\t1\t3'
cp -r glue wrong
sed -i '4s/.*/a/' wrong/RTE/train.tsv
expect "bad rows are left out" 0 "1 rows were skipped" shoal train glue RTE \
    --data wrong --model "$models/roberta" --set max_length=64 -o skipped --skip-bad \
    --steps 1
sed -i 1d wrong/RTE/train.tsv
expect "no header" 3 "needs a header with the columns sentence1, sentence2 and label" \
    shoal train glue RTE --data wrong --model "$models/roberta" --set max_length=64 -o x
: >wrong/RTE/train.tsv
expect "no rows" 3 "has no rows" shoal train glue RTE --data wrong \
    --model "$models/roberta" --set max_length=64 -o x
sed 's/"answer_start": [0-9]*/"answer_start": 0/' train.json >wrong.json
expect "answers elsewhere" 3 "question q0: its answer is not at answer_start" \
    shoal train squad --data wrong.json --dev dev.json --model "$models/bert" \
    --set max_length=64 -o x
echo '{"data": [{"paragraphs": [{"context": "a"}]}]}' >wrong.json
expect "no questions" 3 "a paragraph has no context or no qas" shoal train squad \
    --data wrong.json --dev dev.json --model "$models/bert" --set max_length=64 -o x
python3 -c "
import json
d = json.load(open('train.json'))
at = d['data'][0]['paragraphs']
at[2]['qas'][0].update(answers=[], is_impossible=True)
json.dump(d, open('v2.json', 'w'))
at[4]['qas'][0]['answers'][0]['answer_start'] = 0
at[7]['qas'][0]['question'] = 'once ' * 80
json.dump(d, open('wrong.json', 'w'))"
expect "SQuAD 2" 3 "v2.json: question q2: it has no answer; only SQuAD 1.1 is supported" \
    shoal train squad --data v2.json --dev dev.json --model "$models/bert" \
    --set max_length=64 -o x
expect "SQuAD 2 as dev" 3 "v2.json: question q2: it has no answer" \
    shoal train squad --data train.json --dev v2.json --model "$models/bert" \
    --set max_length=64 -o x
expect "questions are left out" 0 "wrong.json: 3 questions were skipped; the first: " \
    shoal train squad --data wrong.json --dev v2.json --model "$models/bert" \
    --set max_length=64 -o squad-skipped --skip-bad --steps 1
check "of dev too" says "v2.json: 1 question was skipped; the first: question q2: it has"

# ---- Training --------------------------------------------------------------------------
small=(--set max_length=64)
expect "trains" 0 "best" train whole "${small[@]}" --epochs 12
check "learns" python3 -c "
import json
lines = [json.loads(line) for line in open('whole/log.jsonl')]
best = max(line.get('validation_accuracy', 0) for line in lines)
assert best > 0.8, best"
expect "threads" 0 "best" train threads "${small[@]}" --epochs 12 --threads 3
report "threads change nothing" "$(diff <(curve whole) <(curve threads) | head -5)"
expect "the folder is one of Hugging Face" 0 "" shoal embed train.json \
    --model whole -o whole.npy
for task in CoLA STS-B QNLI QQP; do
    expect "$task" 0 "best" shoal train glue $task --data glue --model "$models/bert" \
        --out "run-$task" "${small[@]}" --epochs 1 --attention i-clustered-3:topk=4
done
expect "radam" 0 "best" train radam "${small[@]}" --epochs 1 --set optimizer=radam \
    --set average=0.9
expect "begins with a run" 0 "best" shoal train glue QNLI --data glue --model whole \
    --out again "${small[@]}" --epochs 1
expect "does not overwrite" 2 "already contains a training" train whole "${small[@]}"
cp -r glue changed
sed -i '$s/^/huddle /' changed/RTE/train.tsv
expect "other data" 3 "the checkpoint has data = " shoal train glue RTE --data changed \
    --out whole --resume

# ---- Killed at any moment --------------------------------------------------------------
train straight "${small[@]}" --epochs 3 >/dev/null
killed_to_the_end 60 "$program" train glue RTE --data glue --model "$models/roberta" \
    --batch 8 --learning-rate 0.003 "${small[@]}" --epochs 3
report "the curve of the killed one" \
    "$(diff <(curve straight) <(curve killed) | head -5)"
report "the final weights are the same" "$(cmp <(tensors straight) <(tensors killed))"
check "the best weights are the same" cmp straight/model.safetensors \
    killed/model.safetensors

# ---- Evaluation ------------------------------------------------------------------------
expect "eval" 0 "uniform attention" shoal eval whole --controls \
    --attention full,clustered-3,i-clustered-4:topk=512 --predictions p.tsv
expect "eval json" 0 '"kinds"' shoal eval whole --json \
    --attention full,i-clustered-4:topk=512
check "eval json is whole" json \
    'd["metric"] == "accuracy" and len(d["kinds"]) == 2 and d["texts"] == 20'
check "as many keys as there are is full" json \
    'd["kinds"][0]["accuracy"] == d["kinds"][1]["accuracy"]'
check "predictions" [ "$(wc -l <p.tsv)" = 21 ]
mv glue elsewhere
expect "data that moved" 3 "has no RTE/dev.tsv" shoal eval whole
mv elsewhere/RTE/train.tsv .
expect "--data, the dev part alone" 0 "accuracy" shoal eval whole --data elsewhere
expect "training needs both" 3 "has no RTE/train.tsv" shoal train glue RTE \
    --data elsewhere --model "$models/roberta" "${small[@]}" -o x
mv train.tsv elsewhere/RTE/
mv elsewhere glue
expect "eval with lsh" 3 "lsh-1" shoal eval whole --attention lsh-1
expect "averaged weights" 0 "accuracy" shoal eval radam

# ---- SQuAD -----------------------------------------------------------------------------
expect "squad" 0 "f1" shoal train squad --data train.json --dev dev.json \
    --model "$models/bert" --out squad "${small[@]}" --epochs 25 --learning-rate 0.005 \
    --set stride=8
check "finds answers" python3 -c "
import json
lines = [json.loads(line) for line in open('squad/log.jsonl')]
best = max(line.get('validation_accuracy', 0) for line in lines)
assert best > 0.5, best"
expect "eval squad" 0 "exact_match" shoal eval squad --predictions answers.json \
    --attention full,clustered-2
check "all are answered" python3 -c "
import json
assert len(json.load(open('answers.json'))) == 12"
echo "linear time once clusters in time" >context.txt
expect "answer" 0 "" shoal answer squad --question "once in time" --context context.txt
check "what follows once" [ "$(cat out)" = clusters ]
expect "answer json" 0 '"windows": 1' shoal answer squad --question "once in time" \
    --context context.txt --json
check "where it is" json '(d["answer"], d["begin"], d["end"]) == ("clusters", 17, 25)'
expect "the best weights, silently" 0 "" shoal answer squad -q "once" -c context.txt
check "no word" [ ! -s err ]
rm -f squad-skipped/best.safetensors
expect "weights that are not the best" 0 "there is no best.safetensors; using" \
    shoal answer squad-skipped -q "once" -c context.txt
for ((i = 0; i < 40; i++)); do cat context.txt; done >long.txt
expect "answer in windows" 0 '"answer"' shoal answer squad -q "once in time" \
    -c - --json --attention clustered-3 <long.txt
mkdir halves
cp "$models"/roberta/{model.safetensors,tokenizer.json} halves
python3 -c "
import json
d = json.load(open('$models/roberta/config.json'))
d.update(id2label={'0': 'a', '1': 'b', '2': 'c'}, label2id={'a': 0, 'b': 1, 'c': 2},
         num_labels=3, problem_type='x', dtype='float16', torch_dtype='float16')
json.dump(d, open('halves/config.json', 'w'))"
mkdir halves/1_Pooling
echo '{"pooling_mode": "cls"}' >halves/1_Pooling/config.json
echo '[{"path": "", "type": "models.Transformer"}, {"path": "1_Pooling", "type":
    "models.Pooling"}, {"path": "", "type": "models.Normalize"}]' >halves/modules.json
expect "RoBERTa" 0 "f1" shoal train squad --data train.json --dev dev.json \
    --model halves --out halved "${small[@]}" --epochs 1
expect "its answer" 0 "" shoal answer halved -q "once in time" -c context.txt --json
check "begins with no space" python3 -c "
import json
d, text = json.load(open('out')), open('context.txt', 'rb').read()
assert d['answer'] and d['answer'] == d['answer'].strip(), d
assert text[d['begin']:d['end']].decode() == d['answer'], d"
check "its config.json has a head of two, in single precision" python3 -c "
import json
d = json.load(open('halved/config.json'))
assert not {'id2label', 'label2id', 'problem_type', 'num_labels'} & set(d), d
assert d['dtype'] == d['torch_dtype'] == 'float32', d"
check "it is pooled as before" run embed context.txt --model halved -o own.npy
check "by the first token" run embed context.txt --model halved -o first.npy \
    --pooling first --normalize
check "and of length 1" cmp own.npy first.npy
: >empty.txt
expect "an empty context" 0 "" shoal answer squad -q "once" -c empty.txt
expect "no question" 2 "question is missing" shoal answer squad -c long.txt
expect "no context" 3 "nowhere.txt" shoal answer squad -q a -c nowhere.txt
expect "a run of GLUE" 3 "trained on RTE" shoal answer whole -q a -c long.txt
expect "no run" 3 "nowhere" shoal answer nowhere -q a -c long.txt
for ((i = 0; i < 80; i++)); do printf 'once '; done >question.txt
expect "a long question" 3 "leave no room" shoal answer squad -q "$(cat question.txt)" \
    -c long.txt

# ---- The table -------------------------------------------------------------------------
mkdir -p all/squad
cp -r glue all/glue
cp train.json all/squad/train-v1.1.json
cp dev.json all/squad/dev-v1.1.json
repro() {
    shoal repro text all --out table --model "$models/bert" --set max_length=64 \
        --epochs 1 --evaluate full,clustered-2 "$@"
}
expect "no model for the table" 2 "text needs --model" shoal repro text all --out x
expect "no data for the table" 2 "text needs one data folder" shoal repro text --out x
expect "no such task for the table" 2 "there is no task FLY" repro --tasks RTE,FLY
expect "the table" 0 "uniform attention" repro --tasks RTE,SQuAD
expect "one task more" 0 "STS-B, pearson" repro --tasks RTE,STS-B,SQuAD --markdown
check "a column for each metric" grep -qF \
    "| RTE, accuracy | STS-B, pearson | STS-B, spearman | SQuAD, f1 | SQuAD, exact_" out
check "beside the paper" grep -q "| paper: clustered-25 | .498 | .789 |   | .006 |" out
expect "what was not run" 0 "not run" repro --tasks RTE,MRPC --show
expect "data that is missing" 3 "1 cell failed" repro --tasks MNLI,RTE
expect "the table as JSON" 0 '"experiment": "text"' repro --show --json --tasks RTE
check "all kinds and controls" json 'len(d["tasks"]["RTE"]["kinds"]) == 5'
cp table/cells/RTE/result.json before.json
expect "a kind more" 0 "i-clustered-2" repro --tasks RTE --evaluate i-clustered-2,full
check "is evaluated, and no other again" python3 -c "
import json
old, new = (json.load(open(f))['kinds'] for f in ('before.json',
                                                  'table/cells/RTE/result.json'))
assert new[:-1] == old and new[-1]['kind'] == 'i-clustered-2', new"
expect "a table of another kind" 3 "RTE was made with the attention full, not clust" \
    repro --tasks RTE --kinds clustered-2
expect "of other settings" 3 "RTE was made with epochs 1, not 2" repro --tasks RTE \
    --epochs 2
expect "of another model" 3 "was made with the model " shoal repro text all --out table \
    --model "$models/roberta" --set max_length=64 --epochs 1 --tasks RTE,CoLA
check "which trains nothing" absent table/cells/CoLA
rm -r all/glue/{QQP,CoLA,QNLI,STS-B}
expect "no task by name" 0 "MNLI, accuracy" repro
check "what has no data says so" grep -q "^full.* no data " out
finish
