#!/bin/bash
# The progress line on a terminal: its seconds count up, and it is never longer than the
# terminal is wide.
. "$(dirname "$0")/lib/helpers.sh"
tools <<'PYTHON'
import fcntl, pty, re, select, termios

# Output of a command on a terminal of 60 columns until `enough` returns true, or a minute
# has passed; then it is interrupted, again if it continues.
def on_terminal(command, enough):
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        os.execv(command[0], command)
    seen, begun, asked = b"", time.time(), 0
    while True:
        late = enough(seen.decode(errors="replace")) or time.time() > begun + 60
        if late and time.time() > asked + 5:
            os.kill(child, signal.SIGINT)
            asked = time.time()
        try:
            if select.select([terminal], [], [], 0.2)[0]:
                seen += os.read(terminal, 65536)
        except OSError:  # the other side is closed
            os.waitpid(child, 0)
            return seen.decode(errors="replace")

def frames(text):
    return re.findall(r"\r\x1b\[K([^\r\n\x1b]*) \((\d+) s\)", text)

def counts_up(words, *command):
    text = on_terminal(command, lambda text: len({s for _, s in frames(text)}) >= 3
                       and any(words in a for a, _ in frames(text)))
    seconds = [int(s) for _, s in frames(text)]
    problems = [why for why, wrong in (
        ("fewer than three counts", len(set(seconds)) < 3),
        ("it falls", seconds != sorted(seconds)),
        ("a line of 60 columns", any(len(a) + len(b) + 5 >= 60 for a, b in frames(text))),
        ("a line without a text", any(not a for a, _ in frames(text))),
        ("no " + words, not any(words in a for a, _ in frames(text)))) if wrong]
    sys.exit("\n".join(problems + [text[-2000:]]) if problems else 0)

def make(path, shape, seed):
    random.seed(int(seed))
    shape = [int(n) for n in shape.split(",")]
    write(path, shape, [random.gauss(0, 1) for _ in range(math.prod(shape))])
PYTHON

check "train" tool counts_up "step " "$program" train copy --out run --steps 1000000
check "training for eval" shoal train copy --out short --steps 2 --length 7 --layers 1
check "eval" tool counts_up "full, 1 of 1" "$program" eval short --batches 1000000
check "repro" tool counts_up "1/52 full" "$program" repro copy --out grid
check "bench" tool counts_up "N = " "$program" bench --lengths 256..65536 --repeats 100
check "demo" tool counts_up "length " "$program" demo --max-length 65536
mkdir qkv
for array in q k v; do tool make qkv/layer0_$array.npy 1,2,1100,16 1; done
check "quality" tool counts_up "timing" "$program" quality qkv --repeats 1000
expect "lines without a terminal" 0 "shoal train: step " env SHOAL_PROGRESS=0.3 \
    "$program" train copy --out lines --steps 100
check "more than one" test "$(grep -c "^shoal train: step .* s)$" err)" -ge 2
expect "none where they are not wanted" 0 "" env SHOAL_PROGRESS=0 "$program" train copy \
    --out none --steps 100
check "not one" bash -c '! grep -q "step .* s)$" err'
check "no line without a terminal" bash -c \
    '"$1" train copy --out quiet --steps 3 2>&1 | grep -q "$(printf "\r")" && exit 1
    exit 0' - "$program"
if shoal transcribe --help | grep -q "built without"; then
    skip "transcribe and wer" "there is no speech"
elif [ -e "$data/models/ggml-tiny.bin" ]; then
    recordings=("$data"/speech/*.flac)
    check "transcribe" tool counts_up "2 of " "$program" transcribe "${recordings[@]}" \
        -m "$data/models/ggml-tiny.bin" -o texts
    check "wer" tool counts_up "window " "$program" wer "$data/speech" \
        -m "$data/models/ggml-tiny.bin"
else
    skip "transcribe and wer" "there is no model"
fi
finish
