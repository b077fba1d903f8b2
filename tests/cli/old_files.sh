# Checkpoints of earlier versions: each file is named after the attention that it spells,
# and gives the loss printed by the version that wrote it (topk=1 in all of them).
. "$(dirname "$0")/lib/helpers.sh"
files=$root/tests/cli/old

# means FILE KIND LOSS: the kind used in training, under its current name, and its loss to
# six digits, which differ between the two kinds.
means() {
    run eval "$files/$1.safetensors" --batches 2 --json &&
        python3 - "$2" "$3" <<'P'
import json, sys
found = json.load(open("out"))
row, = found["kinds"]
assert found["trained"] == row["kind"] == sys.argv[1], row
assert abs(row["loss"] - float(sys.argv[2])) < 3e-6, row
P
}
check "before shoal had key clusters" means shoal-3 q-clustered-3:topk=1 2.32329946
check "shoal without key clusters" \
    means shoal-3_keyclusters=0 q-clustered-3:topk=1 2.32329946
check "shoal before its third form" \
    means shoal-3_keyclusters=auto shoal-3:topk=1,form=2 2.30171297

# A training continues from the file, with the kind that the file means.
goes_on() {
    mkdir "$1" && cp "$files/$1.safetensors" "$1/checkpoint.safetensors" &&
        run train copy --resume --out "$1" --steps 601 &&
        run eval "$1" --batches 1 --json && says "\"trained\": \"$2\""
}
for file in shoal-3 shoal-3_keyclusters=0; do
    check "$file is resumed" goes_on $file q-clustered-3:topk=1
done
check "the second form is resumed" \
    goes_on shoal-3_keyclusters=auto shoal-3:topk=1,form=2

expect typed 2 "is now called q-clustered-3:topk=1" \
    shoal train copy --attention shoal-3:topk=1,keyclusters=0 --out typed
finish
