#!/usr/bin/env bash
# Runs `shoal embed` and `shoal similar` of the program given as $1, with the small
# recorded models of tests/models/text, and with a real one if SHOAL_TEXT_MODEL names a
# folder.
. "$(dirname "$0")/lib/helpers.sh"
models=$root/tests/models/text

tools <<'PYTHON'
def npy(path):
    raw = open(path, "rb").read()
    size = struct.unpack("<H", raw[8:10])[0]
    rows, columns = eval(raw[10:10 + size].decode(), {"False": False})["shape"]
    values = struct.unpack("<%df" % (rows * columns), raw[10 + size:])
    return [values[i * columns:(i + 1) * columns] for i in range(rows)]

def lines(path):
    return [json.loads(line)["vector"] for line in open(path)]

def near(a, b):
    assert len(a) == len(b), (len(a), len(b))
    for left, right in zip(a, b):
        assert max(abs(x - y) for x, y in zip(left, right)) < 1e-5, (left, right)

# same FILE.npy LINES.json; both FILE.npy A.npy B.npy: A and B concatenated
def same(array, text): near(npy(array), lines(text))
def both(array, first, second): near(npy(array), npy(first) + npy(second))
def differ(a, b): assert max(abs(x - y) for p, q in zip(npy(a), npy(b))
                             for x, y in zip(p, q)) > 1e-3
def shape(array, rows): assert len(npy(array)) == int(rows), len(npy(array))
def unit(array):
    for row in npy(array): assert abs(sum(x * x for x in row) - 1) < 1e-5
PYTHON

printf 'Attention in linear time.\n\na b c\r\nqueries huddle into clusters\n' >texts
printf 'Attention in linear time.\n\n' >first
printf 'a b c\nqueries huddle into clusters' >second
head -c 3000 /dev/zero | tr '\0' '.' >long
for model in bert roberta modern; do
    check "$model: vectors of lines" run embed texts -m "$models/$model" -o all.npy
    check "$model: they are counted" says "4 texts in"
    check "$model: as JSON lines" into all.json shoal embed texts -m "$models/$model" -q
    check "$model: the same" tool same all.npy all.json
    check "$model: some" run embed first -m "$models/$model" -o a.npy
    check "$model: others" run embed second -m "$models/$model" -o b.npy
    check "$model: each text by itself" tool both all.npy a.npy b.npy
    check "$model: a long one, cut and normed" run embed long -m "$models/$model" \
        --long cut --normalize -o long.npy
    check "$model: of length 1" tool unit long.npy
    check "$model: windows of another kind" run embed long texts -m "$models/$model" \
        --attention shoal-3 --window 32 --stride 20 --rows 100 -o long.npy
    check "$model: one row for each text" tool shape long.npy 5
    check "$model: stretched" run embed long -m "$models/$model" --long stretch -o s.npy
done
export SHOAL_MODEL=$models/bert
check "standard input" into in.json shoal embed - -q <texts
check "bert's lines" run embed texts -o all.npy
check "gives the same" tool same all.npy in.json
printf '{"t": "Attention in linear time."}\n{"t": ""}\n{"x": 1, "t": "a b c"}\n' >json
printf '{"t": "queries huddle into clusters"}\n' >>json
check "JSON lines" run embed json --field t -o j.npy
check "give the same" tool same j.npy in.json
check "whole files" run embed first second --whole -o w.npy
check "are a text each" tool shape w.npy 2
: >empty
check "no texts" run embed empty -o e.npy
check "no vectors" tool shape e.npy 0
sed 's/^/query: /' texts >prefixed
check "a text before each" run embed texts --prefix "query: " -o p.npy
check "with it in the file" run embed prefixed -o q.npy
check "gives the same" cmp p.npy q.npy
check "another than without" tool differ p.npy all.npy
check "before an empty file too" run embed empty --whole --prefix "query: " -o p.npy
printf 'query: ' >alone
check "as its only text" run embed alone --whole -o q.npy
check "is the same" cmp p.npy q.npy
printf '\xef\xbb\xbf' | cat - texts >marked
check "a byte order mark" run embed marked -m "$models/roberta" -o m.npy
check "or none" run embed texts -m "$models/roberta" -o r.npy
check "is no part of the text" cmp m.npy r.npy
check "of a whole file neither" run embed marked -m "$models/roberta" --whole -o m.npy
check "as without" run embed texts -m "$models/roberta" --whole -o r.npy
check "the same" cmp m.npy r.npy
(printf '\xef\xbb\xbf'; head -2 json; printf '\n \t\r\n'; tail -2 json) >marked
check "JSON lines with a mark and blank lines" run embed marked --field t -o m.npy
check "are the same" cmp m.npy j.npy
check "in which lines are counted" run similar "a b c" --in marked --field t --json
check "as they are in the file" json 'd["nearest"][0]["line"] == 5'

expect "the nearest is the text itself" 0 "1.0000	3	a b c" \
    shoal similar "a b c" --in texts -n 1
check "no other" [ "$(wc -l <out)" = 1 ]
check "vectors once" run embed texts -o known.npy
check "similar by texts" run similar "a b c" --in texts
mv out by-texts
check "similar by vectors" run similar "a b c" --in texts --vectors known.npy
check "is the same" cmp out by-texts
check "numbers alone" run similar "a b c" --vectors known.npy
check "are the same" cmp <(cut -f 1,2 out) <(cut -f 1,2 by-texts)
check "several" run similar "a b c" "c b" "a b c" --in texts --vectors known.npy
check "the first and the last are the same" cmp <(sed -n 's/^1\t//p' out) \
    <(sed -n 's/^3\t//p' out)
check "as one alone" cmp <(sed -n 's/^1\t//p' out) by-texts
check "several as JSON" run similar "a b c" "c b" --in texts --vectors known.npy --json
check "in their order" json '[q["question"] for q in d["questions"]] == ["a b c", "c b"]'
check "with their nearest" json 'd["questions"][0]["nearest"][0]["line"] == 3'
head -2 texts >fewer
expect "vectors of other texts" 3 "fewer texts" \
    shoal similar a --in fewer --vectors known.npy
cat texts fewer >more
expect "or of fewer" 3 "more texts" shoal similar a --in more --vectors known.npy
expect "vectors that are none" 3 "texts" shoal similar a --in texts --vectors texts
expect "no JSON" 3 "line 1: is not a JSON object: '[' or '{' expected near 'A" \
    shoal similar a --in texts --field t
check "nearest of JSON" run similar "a b c" --in json --field t --json
check "its line" json 'd["nearest"][0]["line"] == 3'

printf '{"t": "a b\\tc\\n\\u001b[31m\\u009b \\u00e9"}\n' >controls
expect "controls are spelled" 0 'a b\tc\n\x1b[31m\x9b é' shoal similar "a b c" \
    --in controls --field t
check "in one line" [ "$(wc -l <out)" = 1 ]

expect "standard output is closed" 4 "standard output cannot be written" bash -c \
    '"$0" embed texts >&-' "$program"
cp -r "$SHOAL_MODEL" loop && ln -sf modules.json loop/modules.json
expect "modules.json is a loop" 3 "modules.json" shoal embed texts -m loop
ln -sf nowhere loop/modules.json
expect "modules.json leads nowhere" 3 "modules.json" shoal embed texts -m loop
expect "no file" 2 "no file was given" shoal embed
check "a variable for text models" env SHOAL_MODEL=nothing \
    SHOAL_TEXT_MODEL="$SHOAL_MODEL" "$program" embed texts -o no.npy
rm no.npy
expect "no model" 2 "all-MiniLM-L6-v2 (91 MB)" env -u SHOAL_MODEL "$program" embed texts
expect "no such file" 3 "No such file" shoal embed nothing -o no.npy
expect "no such folder" 3 "has no config.json" shoal embed texts -m nothing -o no.npy
expect "no such kind" 2 "nonsense" shoal embed texts -a nonsense -o no.npy
expect "a kind with shared keys" 2 "separate keys" shoal embed texts -a lsh-1 -o no.npy
expect "too large a window" 2 "64 positions" shoal embed texts --window 65 -o no.npy
expect "a stride with gaps" 2 "stride" shoal embed texts --window 9 --stride 10 -o no.npy
expect "too long to stretch" 3 "long: line 1: it has 3002 tokens, more than the" \
    shoal embed texts long --long stretch --rows 100 -o no.npy
expect "no windows to stretch" 2 "stretched texts have no window" \
    shoal embed long --long stretch --window 32 -o no.npy
expect "no stride to stretch" 2 "stretched texts have no window" \
    shoal embed long --long stretch --stride 9 -o no.npy
expect "a stream for .npy" 2 "omit -o to print vectors" \
    shoal embed texts -o -
check "makes no file of that name" absent ./-
printf 'a\nbc\377\n' >bytes
expect "no UTF-8" 3 "bytes: line 2: is not UTF-8: byte 3 is invalid" \
    shoal embed texts bytes --prefix "query: " -o no.npy
for bad in '\300\200' '\355\240\200' '\364\220\200\200' '\342\202' '\200'; do
    printf "x$bad" >bytes
    expect "no UTF-8: $bad" 3 "bytes: is not UTF-8: byte 2 is invalid" \
        shoal embed bytes --whole -o no.npy
done
printf '\302\200 \337\277 \340\240\200 \355\237\277 \364\217\277\277' >bytes
check "UTF-8 of all lengths" run embed bytes -o yes.npy
for bad in '"t": "a' '{"t": "\u0000"}' '7'; do
    echo "$bad" >number
    expect "no object: $bad" 3 "number: line 1: is not a JSON object" \
        shoal embed number --field t -o no.npy
done
check "an array at most" says "'[' or '{' expected near '7'"
printf '\n{"t": 7}\n' >number
expect "a field without text" 3 "line 2: has no string in the field t" \
    shoal embed number --field t -o no.npy
head -c 20000000 /dev/zero | tr '\0' 'a' >huge
expect "a huge line" 3 "longer than 16 MiB" shoal embed huge -o no.npy
expect "a pipe as output" 2 "not a regular file" shoal embed texts -o /dev/full
expect "an input as output" 2 "texts" shoal embed texts -o texts
mkfifo never
exec 9<>never # keeps the pipe open for writing
timeout -k 20 1 "$program" embed never -o no.npy --threads 1 >out 2>err
check "ended while waiting for texts" [ $? = 124 ]
exec 9>&-
check "nothing was written" absent no.npy
check "and nothing is left" [ -z "$(find . -name '.shoal-*' -o -name '*.tmp')" ]
expect "similar to nothing" 2 "no text was given" shoal similar --in texts
expect "similar in nothing" 2 "give --in FILE" shoal similar a

if [ -n "${SHOAL_TEXT_MODEL:-}" ]; then
    check "a real model" run similar "a man plays music" -m "$SHOAL_TEXT_MODEL" --in texts
fi
finish
