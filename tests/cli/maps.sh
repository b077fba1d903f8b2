#!/usr/bin/env bash
# Runs `shoal maps` of the program given as $1, with the small recorded models.
. "$(dirname "$0")/lib/helpers.sh"
models=$root/tests/models/text
tools <<'PYTHON'
# Every row of every kind sums to 1; the first kind equals itself; the number of tokens is
# right.
def whole(path, kinds):
    d = json.load(open(path))
    begin, end = d["question"]
    assert len(d["kinds"]) == int(kinds) and 0 < begin < end <= d["context"], d
    for kind in d["kinds"]:
        assert len(kind["weights"]) == end - begin and kind["error"] < 1e-5, kind
        for row in kind["weights"]:
            assert len(row) == len(d["tokens"]) and abs(sum(row) - 1) < 1e-5, row
    assert d["kinds"][0]["elsewhere"] == 0

# The mean of all heads is the default.
def mean(path, *heads):
    weights = lambda name: json.load(open(name))["kinds"][0]["weights"]
    parts = [weights(name) for name in heads]
    for i, row in enumerate(weights(path)):
        for j, x in enumerate(row):
            assert abs(sum(p[i][j] for p in parts) / len(parts) - x) < 1e-6
PYTHON
echo "Attention in linear time: queries huddle into clusters, each once." >context
draws=yes
shoal maps "$models/bert" -q time -c context -o try.svg >/dev/null 2>&1 || draws=no
maps() { shoal maps "$models/${model:-bert}" -q "queries once" -c context "$@"; }
for model in bert roberta; do
    expect "$model: words" 0 "each 0.0" maps --threshold 0
    for layer in 1 2 3; do
        expect "$model: layer $layer" 0 '"layer": '$layer maps --layer $layer --json
        check "$model: layer $layer: rows sum to 1" tool whole out 4
    done
done
model=bert
expect "the last layer is the default" 0 '"layer": 3' maps --json -a full
cp out mean.json
maps --json -a full --head 1 >one.json
maps --json -a full --head 2 >two.json
check "the mean over heads" tool mean mean.json one.json two.json
expect "kinds of one's own" 0 "0.0 % of the weight on other tokens than with full" \
    maps --attention full,q-clustered-2 --threshold 1
expect "cut" 0 "tokens of the context are truncated" maps --window 20
maps --window 20 --json >cut.json 2>err
check "cut: rows sum to 1" tool whole cut.json 4
if [ $draws = yes ]; then
    expect "an svg" 0 "full" maps -o map.svg
    check "with words" grep -q "<svg" map.svg
    expect "a png" 0 "full" maps -o map.png
    check "is one" [ "$(head -c 4 map.png | tail -c 3)" = PNG ]
    expect "another ending" 2 "must end in .svg or .png" maps -o map.jpg
    expect "a folder that is not there" 4 "nowhere" maps -o nowhere/map.svg
else
    expect "no cairo" 2 "cannot draw" maps -o map.svg
fi
expect "no layer" 2 "the model has 3 layers" maps --layer 4 -o no.svg
expect "no head" 2 "the model has 2 heads" maps --head 3 -o no.svg
expect "no such kind" 2 "nonsense" maps -a full,nonsense -o no.svg
expect "queries as keys" 2 "separate keys" maps -a lsh-1 -o no.svg
expect "no question" 2 "question is missing" shoal maps "$models/bert" -c context
expect "no context" 2 "context is missing" shoal maps "$models/bert" -q a
expect "no model" 2 "one model" shoal maps -q a -c context
expect "no such model" 3 "nowhere" shoal maps nowhere -q a -c context -o no.svg
expect "no such context" 3 "nowhere" shoal maps "$models/bert" -q a -c nowhere -o no.svg
expect "an empty question" 3 "the question has no tokens" \
    shoal maps "$models/bert" -q " " -c context -o no.svg
: >empty
expect "an empty context" 3 "the context has no tokens" \
    shoal maps "$models/bert" -q a -c empty -o no.svg
expect "a question without room" 3 "too small for this text" \
    shoal maps "$models/bert" -c context -o no.svg \
    -q "$(cat context context context context context context context context)"
expect "ModernBERT" 3 "modernbert" shoal maps "$models/modern" -q a -c context -o no.svg
expect "a threshold" 2 "threshold" maps --threshold 2
check "nothing was written" absent no.svg
check "and nothing is left" [ -z "$(find . -name '.shoal-*' -o -name '*.tmp')" ]
finish
