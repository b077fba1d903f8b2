#!/usr/bin/env python3
"""Shoal's LF-MMI beside k2: the objective and its gradient for some utterances of a data
folder, whose graphs k2 gets from the n-gram that Shoal made. k2 has no leak, so it is as
small here as Shoal allows.

usage: lfmmi.py LIBSHOAL-SPEECH.so LEXICON TEXT [--order 3] [--steps 200] [--first 3]

Needs Python 3.10 with torch==1.13.1, k2==1.23.4 and numpy<2 (k2's last wheels are of
those): python3.10 -m venv V; V/bin/pip install torch==1.13.1 k2==1.23.4 'numpy<2'."""
import argparse
import ctypes
import struct
import tempfile
import time
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64
from ctypes import c_size_t, c_void_p
from pathlib import Path

import k2
import numpy as np
import torch


class Sized(ctypes.Structure):
    """A configuration struct, whose first field is its size."""

    def __init__(self, *values, **fields):
        super().__init__(ctypes.sizeof(self), *values, **fields)


class Options(Sized):
    _fields_ = [("size", c_size_t),
                ("topology", c_int32), ("order", c_int32), ("extra", c_int64),
                ("whole", c_int32), ("leak", c_float), ("l2", c_float),
                ("range", c_float), ("cache", c_char_p)]


class Batch(Sized):
    _fields_ = [("size", c_size_t),
                ("batch", c_int64), ("offsets", c_void_p), ("word_offsets", c_void_p),
                ("words", c_void_p)]


class Result(ctypes.Structure):
    _fields_ = [("sum", c_double), ("steps", c_int64), ("utterances", c_int64),
                ("impossible", c_int64), ("broken", c_int64)]


class Shoal:
    """A lexicon, and the loss of the transcripts' n-gram."""

    def __init__(self, path, lexicon, texts, order):
        self.c = ctypes.CDLL(path)
        self.c.shoal_context_message.restype = c_char_p
        self.c.shoal_lexicon_find.restype = c_int64
        self.c.shoal_lexicon_pronunciation.restype = c_int64
        self.context, self.lexicon, self.loss = c_void_p(), c_void_p(), c_void_p()
        self.check(self.c.shoal_context_create(None, byref(self.context)))
        paths = (c_char_p * 1)(lexicon.encode())
        self.check(self.c.shoal_lexicon_open(self.context, paths, c_int64(1), None,
                                             byref(self.lexicon)))
        self.words = [[self.find(word) for word in text] for text in texts]
        flat = np.array([w for text in self.words for w in text], np.int32)
        offsets = np.cumsum([0] + [len(text) for text in self.words]).astype(np.int64)
        options = Options(order=order, extra=0, whole=1, leak=1e-8, l2=0, range=0)
        self.check(self.c.shoal_lfmmi_create(
            self.context, byref(options), self.lexicon, c_int64(len(texts)),
            c_void_p(offsets.ctypes.data), c_void_p(flat.ctypes.data), byref(self.loss)))

    def check(self, status):
        if status != 0:
            raise SystemExit(self.c.shoal_context_message(self.context).decode())

    def find(self, word):
        found = self.c.shoal_lexicon_find(self.lexicon, word.encode())
        if found < 0:
            raise SystemExit(f"{word} has no pronunciation")
        return found

    def phones(self, word):
        """All pronunciations."""
        index, found = 0, []
        phones = POINTER(c_int32)()
        while count := self.c.shoal_lexicon_pronunciation(
                self.lexicon, c_int64(word), c_int64(index), byref(phones)):
            found.append([phones[i] for i in range(count)])
            index += 1
        return found

    def run(self, y, words):
        """The objective and its gradient."""
        steps = np.array([0, len(y)], np.int64)
        count = np.array([0, len(words)], np.int64)
        flat, gradient = np.array(words, np.int32), np.zeros_like(y)
        result = Result()
        batch = Batch(1, steps.ctypes.data, count.ctypes.data, flat.ctypes.data)
        self.check(self.c.shoal_lfmmi_loss(
            self.loss, byref(batch), c_void_p(y.ctypes.data), c_double(-1),
            c_void_p(gradient.ctypes.data), None, byref(result)))
        if result.utterances != 1 or result.broken:
            raise SystemExit("an utterance cannot be aligned")
        return -result.sum, gradient

    def model(self):
        """The n-gram: last phones, arcs of each state as {phone: (next, log p)}, ends."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "phones.graph"
            self.check(self.c.shoal_lfmmi_save(self.loss, str(path).encode()))
            data = path.read_bytes()
        phones, _, states, arcs = struct.unpack_from("<4i", data, 24)
        ints = np.frombuffer(data, np.int32, 2 * states + 1 + 2 * arcs, 40)
        reals = np.frombuffer(data, np.float64, arcs + states, 40 + 4 * len(ints))
        last, first = ints[:states], ints[states:2 * states + 1]
        phone, to = ints[2 * states + 1:][:arcs], ints[2 * states + 1 + arcs:]
        out = [{int(phone[a]): (int(to[a]), float(np.log(reals[a])))
                for a in range(first[s], first[s + 1])} for s in range(states)]
        with np.errstate(divide="ignore"):
            return phones, last, out, np.log(reals[arcs:])


def make_fsa(arcs, ends, states):
    """k2's: sorted arcs, one end state. Output n has the label n + 1."""
    arcs = arcs + [(s, states, -1, score) for s, score in ends]
    lines = [f"{a} {b} {label} {score}" for a, b, label, score in sorted(arcs)]
    return k2.arc_sort(k2.Fsa.from_str("\n".join(lines + [str(states)]), acceptor=True))


def denominator(last, out, end):
    arcs = [(s, to, 2 * x + 1, score) for s, row in enumerate(out)
            for x, (to, score) in row.items()]
    arcs += [(s, s, 2 * int(last[s]) + 2, 0.0) for s in range(1, len(out))]
    ends = [(s, float(end[s])) for s in range(len(out)) if np.isfinite(end[s])]
    return make_fsa(arcs, ends, len(out))


def acceptor(words, silence):
    """Nodes' arcs (phone, node) of words, silences between where they like; ends."""
    nodes, at = [[]], 0
    for word in words + [None]:
        nodes.append([])
        quiet = len(nodes) - 1
        nodes[at].append((silence, quiet))
        if word is None:
            return nodes, {at, quiet}
        nodes.append([])
        done = len(nodes) - 1
        for phones in word:
            before = [at, quiet]
            for i, phone in enumerate(phones):
                to = done
                if i + 1 < len(phones):
                    nodes.append([])
                    to = len(nodes) - 1
                for node in before:
                    nodes[node].append((phone, to))
                before = [to]
        at = done
    return nodes, set()


def numerator(words, last, out, end, silence):
    nodes, ends = acceptor(words, silence)
    numbers, queue, arcs = {(0, 0): 0}, [(0, 0)], []
    for node, state in queue:
        own = numbers[node, state]
        for phone, to in nodes[node]:
            if phone in out[state]:
                after, score = out[state][phone]
                if (to, after) not in numbers:
                    numbers[to, after] = len(numbers)
                    queue.append((to, after))
                arcs.append((own, numbers[to, after], 2 * phone + 1, score))
        if own:
            arcs.append((own, own, 2 * int(last[state]) + 2, 0.0))
    good = [(number, float(end[state])) for (node, state), number in numbers.items()
            if node in ends and np.isfinite(end[state]) and number]
    return k2.connect(make_fsa(arcs, good, len(numbers)))


def score(fsa, y):
    """The sum over all paths."""
    padded = torch.cat([torch.full((1, len(y), 1), -1e30), y[None]], 2)
    dense = k2.DenseFsaVec(padded, torch.tensor([[0, 0, len(y)]], dtype=torch.int32))
    lattice = k2.intersect_dense(k2.create_fsa_vec([fsa]), dense, output_beam=1e6)
    return lattice.get_tot_scores(log_semiring=True, use_double_scores=True).sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library"), parser.add_argument("lexicon")
    parser.add_argument("text")
    parser.add_argument("--order", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--first", type=int, default=3)
    options = parser.parse_args()
    texts = [line.split()[1:] for line in open(options.text, encoding="utf-8")]
    shoal = Shoal(options.library, options.lexicon, texts, options.order)
    phones, last, out, end = shoal.model()
    torch.set_num_threads(1)
    den, worst = denominator(last, out, end), 0
    for words in sorted(shoal.words, key=len)[:options.first]:
        t, n = np.meshgrid(range(options.steps), range(2 * phones), indexing="ij")
        y = (2 * np.sin(0.37 * t + 1.13 * n)).astype(np.float32)
        begun = time.perf_counter()
        ours, gradient = shoal.run(y, words)
        middle = time.perf_counter()
        leaf = torch.tensor(y, requires_grad=True)
        num = numerator([shoal.phones(w) for w in words], last, out, end, phones - 1)
        theirs = score(num, leaf) - score(den, leaf)
        theirs.backward()
        ended = time.perf_counter()
        off = np.abs(leaf.grad.numpy() - gradient).max()
        worst = max(worst, off, abs(ours - theirs.item()) / 100)
        print(f"{len(words)} words: {ours:.4f}, k2 {theirs.item():.4f}; gradients differ "
              f"by {off:.1e}; {middle - begun:.3f} s, k2 {ended - middle:.3f} s")
    if worst > 1e-4:
        raise SystemExit("they differ")


if __name__ == "__main__":
    main()
