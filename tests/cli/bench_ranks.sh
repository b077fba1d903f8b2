#!/bin/bash
# shoal bench under mpirun: the results of ranks equal those of one process, and bytes are
# counted.
. "$(dirname "$0")/lib/helpers.sh"
. "$root/tests/mpi/launcher.sh"
library=$(ls "$(dirname "$program")"/libshoal-mpi.so.? 2>/dev/null)
if [ -z "$library" ]; then
    echo "ok bench_ranks # SKIP libshoal-mpi was not built"
    exit 77
fi
ranks() { launch "$1" "$program" "${@:2}"; } # COUNT ARGUMENT...

tools <<'PYTHON'
def rows(path, ranks, scope, mode, batch):
    with open(path) as file:
        d = json.load(file)
    assert (d["ranks"], d["scope"], d["mode"]) == (int(ranks), scope, mode), d
    assert [(r["length"], r["kind"]) for r in d["rows"]] == [
        (n, k) for n in (5, 130) for k in
        ("full", "clustered-6", "i-clustered-6:topk=4", "q-clustered-6")]
    for r in d["rows"]:
        assert r["verified"] and r["same_groups"], r
        assert r["relative_error"] < 1e-5 and r["gradient_error"] < 1e-4, r
        assert r["gradient_error"] > 0 or mode == "forward" or r["length"] == 5, r
        assert r["seconds"] > 0 and r["alone_seconds"] > 0, r
        assert r["sent_bytes"] > 0 and r["workspace_bytes"] > 0, r
    sent = {r["kind"]: r["sent_bytes"] for r in d["rows"] if r["length"] == 130}
    # A ring sends (P - 1) / P of all keys and values, and their gradients back.
    P, features = int(ranks), int(batch) * 2 * 2 * 8
    whole = 4 * features * 130 * (P - 1) / P * (3 if mode == "train" else 1)
    assert 0.8 * whole < sent["full"] < 1.5 * whole + 1000, (sent, whole)
PYTHON

kinds=full,clustered-6,i-clustered-6:topk=4,q-clustered-6
few="--kinds $kinds --lengths 5,130 --heads 2 --dim 8 --repeats 1"
expect "attention, two ranks" 0 same_groups ranks 2 bench $few --json
report "its rows" "$(tool rows out 2 attention forward 1 2>&1)"
expect "a layer with gradients, seven ranks" 0 same_groups \
    ranks 7 bench $few --scope layer --mode train --batch 2 --json
report "its rows" "$(tool rows out 7 layer train 2 2>&1)"
expect "the table" 0 "2 ranks" ranks 2 bench $few --mode train
report "has a line for each" "$([ "$(grep -c ' full ' out)" = 2 ] || cat out)"
expect "no picture" 2 "csv and --plot are not available" ranks 2 bench $few --plot no.svg
expect "a kind that cannot" 2 "kinds that do" ranks 2 bench --kinds lsh-1 --lengths 5
finish
