#!/bin/bash
# shoal attend under mpirun: with any number of ranks, the files are those of one process.
. "$(dirname "$0")/lib/helpers.sh"
. "$root/tests/mpi/launcher.sh"
library=$(ls "$(dirname "$program")"/libshoal-mpi.so.? 2>/dev/null)
if [ -z "$library" ]; then
    echo "ok attend_ranks # SKIP libshoal-mpi was not built"
    exit 77
fi
ranks() { launch "$1" "$program" "${@:2}"; } # COUNT ARGUMENT...

tools <<'PYTHON'
import math, random
def make(path, shape, seed):
    draw = random.Random(seed)
    shape = [int(n) for n in shape.split(",")]
    write(path, shape, [draw.gauss(0, 1) for _ in range(math.prod(shape))])
def ints(path, *values):
    write(path, [len(values)], [int(v) for v in values], "i")
def near(a, b, tolerance):
    (shape, x), (other, y) = read(a), read(b)
    apart = math.sqrt(sum((p - q) ** 2 for p, q in zip(x, y)))
    if shape != other or not apart <= float(tolerance) * math.sqrt(sum(p * p for p in x)):
        print(f"{a} {shape} and {b} {other} are {apart} apart")
PYTHON

tool make q.npy 2,4,90,8 1
tool make k.npy 2,2,71,8 2
tool make v.npy 2,2,71,5 3
tool make g.npy 2,4,90,5 4
tool ints nq.npy 90 13
tool ints nk.npy 71 30
lengths="--query-lengths nq.npy --key-lengths nk.npy"
gradients() { # NAME
    echo "--grad-out g.npy --grad-q $1.dq.npy --grad-k $1.dk.npy --grad-v $1.dv.npy"
}
attended() { # NAME KIND: the same command for one process and for several
    local save=
    case $2 in
        i-* | shoal-*) save="--save-groups $1.groups.npy --save-top $1.top.npy" ;;
        clustered-*) save="--save-groups $1.groups.npy" ;;
    esac
    echo "attend $2 q.npy k.npy v.npy -o $1.out.npy $lengths $(gradients "$1") $save"
}
for kind in full clustered-6 i-clustered-6:topk=4 q-clustered-6; do
    check "$kind" shoal $(attended one $kind)
    for count in 2 $([ $kind = i-clustered-6:topk=4 ] && echo 3 5); do
        check "$kind, $count ranks" ranks $count $(attended many $kind)
        report "the output" "$(tool near one.out.npy many.out.npy 1e-5)"
        for what in dq dk dv; do
            report "$what" "$(tool near one.$what.npy many.$what.npy 1e-4)"
        done
        for what in groups top; do
            if [ -e one.$what.npy ]; then
                report "$what" "$(cmp one.$what.npy many.$what.npy 2>&1)"
            fi
        done
    done
    rm -f ./*.groups.npy ./*.top.npy
done
check "without gradients, more ranks than positions" \
    ranks 7 attend i-clustered-6 q.npy k.npy v.npy -o many.out.npy --json
check "one process" shoal attend i-clustered-6 q.npy k.npy v.npy -o one.out.npy
report "the output" "$(tool near one.out.npy many.out.npy 1e-5)"

# Errors are printed once, or by each rank with its number.
rm -f no.npy
expect "a kind that cannot" 3 "kinds that do: full, clustered-C, i-clustered-C" \
    ranks 2 attend local-4 q.npy k.npy v.npy -o no.npy
expect "no such file" 3 "none.npy" ranks 2 attend full q.npy none.npy v.npy -o no.npy
expect "no check" 2 "neither --check" ranks 2 attend full q.npy k.npy v.npy --check
# Rank 0 runs the program with "$1", the others with "$2".
each() {
    # shellcheck disable=SC2016
    launch 2 bash -c \
        '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] && exec $0 $1; exec $2' \
        "$program" "$1" "$2"
}
attend="attend full q.npy k.npy v.npy -o no.npy"
expect "a rank with another command" 2 "rank 1 has another command than rank 0" \
    each "$attend" "$program bench --quick --kinds full"
tool make other.npy 2,4,95,8 1
expect "a rank with another shape" 2 "rank 1 has other arrays than rank 0" \
    each "$attend" "$program attend full other.npy k.npy v.npy -o no.npy"
tool make other.npy 2,4,90,8 9
expect "a rank with other numbers" 2 "rank 1 has other arrays than rank 0" \
    each "$attend" "$program attend full other.npy k.npy v.npy -o no.npy"
export SHOAL_MPI_PATIENCE=5
expect "a rank that does something else" 4 "not all processes started within 5 s" \
    each "$attend" true
unset SHOAL_MPI_PATIENCE
report "and nothing is written" "$(ls no.npy 2>/dev/null)"
finish
