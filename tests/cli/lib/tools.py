import csv, json, math, os, random, signal, struct, subprocess, sys, time

# ---- .npy files: a shape and a flat list of numbers; type letters of struct
def described(letter):
    return "<f2" if letter == "e" else "<%s4" % letter

def read(path):
    raw = open(path, "rb").read()
    size = struct.unpack("<H", raw[8:10])[0]
    head = eval(raw[10:10 + size])
    letter = "e" if head["descr"] == "<f2" else head["descr"][1]
    count = (len(raw) - 10 - size) // struct.calcsize("<" + letter)
    return list(head["shape"]), list(struct.unpack("<%d%s" % (count, letter),
                                                   raw[10 + size:]))

def write(path, shape, values, letter="f"):
    head = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }"
            % (described(letter), ", ".join(map(str, shape)))).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head)
        out.write(struct.pack("<%d%s" % (len(values), letter), *values))

# ---- JSON
def names_in(d):
    return {"d": d}

# field FILE EXPRESSION: it is true for d, the file's JSON, or for the names of names_in.
def field(path, expression):
    d = json.load(open(path))
    if not eval("(" + expression + ")", names_in(d)):
        sys.exit("not so: %s in %s" % (expression, json.dumps(d)[:2000]))

# ---- Signals
# A shell starts background processes with interrupts ignored; this restores them.
def interruptible(*command):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(command[0], command)

# Interrupts the command after some seconds, and returns its exit code.
def interrupt(seconds, *command):
    child = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT,
                                                                       signal.SIG_DFL))
    time.sleep(float(seconds))
    child.send_signal(signal.SIGINT)
    sys.exit(child.wait() & 255)

