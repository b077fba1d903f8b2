"""What bench/peers/whisper.py compares, part by part."""
import json
import tempfile
import time
from pathlib import Path

import numpy
import soundfile
import torch

from whisper_library import Speech
from whisper_model import Peer

MATCHING = 1e-3  # relative, for encoder and logits
FEATURES = 1e-3  # of the largest feature
TEXTS = 0.95     # identical
POINTS = 0.3     # of word error rate
CLOSE_CALL = 0.02  # logits this near each other may rank either way


def relative(ours, theirs):
    """|ours - theirs| / |theirs|, each as one long vector."""
    return float(numpy.linalg.norm((ours - theirs).astype(numpy.float64)) /
                 numpy.linalg.norm(theirs.astype(numpy.float64)))


class Utterances:
    def __init__(self, folder, limit):
        lines = (folder / "transcripts.txt").read_text().splitlines()
        self.names, self.texts = zip(*(line.split(" ", 1)
                                       for line in lines[:limit or None]))
        self.samples = []
        for name in self.names:
            samples, rate = soundfile.read(folder / f"{name}.flac", dtype="float32")
            assert rate == 16000 and samples.ndim == 1
            self.samples.append(samples)

    def windows(self, most, gap):
        """Lists of indices, packed in order as `shoal wer` packs them."""
        packed, seconds = [], 0
        for i, samples in enumerate(self.samples):
            length = len(samples) / 16000
            if packed and len(packed[-1]) < most and seconds + gap + length <= 30:
                packed[-1].append(i)
                seconds += gap + length
            else:
                packed.append([i])
                seconds = length
        return packed

    def join(self, indices, gap):
        parts = []
        for i in indices:
            parts += [numpy.zeros(int(gap * 16000), numpy.float32)] * bool(parts)
            parts.append(self.samples[i])
        return numpy.ascontiguousarray(numpy.concatenate(parts))


class Checks:
    def __init__(self, options, say, results):
        self.options, self.say, self.results = options, say, results
        self.peer = Peer(options.model)
        self.ours = Speech(options.library, options.threads, options.model)
        self.spoken = Utterances(options.speech, options.limit)
        self.some = range(0, len(self.spoken.names), max(1, len(self.spoken.names) // 8))
        torch.set_num_threads(options.threads)

    def mel(self):
        worst = 0
        for i in self.some:
            theirs = self.peer.features(self.spoken.samples[i])[0].numpy()
            ours = self.ours.features(self.spoken.samples[i])
            away = numpy.abs(ours - theirs).max() / numpy.abs(theirs).max()
            worst = max(worst, float(away))
        self.say("mel, largest difference", worst, FEATURES)

    def encoder(self):
        worst = 0
        for i in self.some:
            features = self.ours.features(self.spoken.samples[i])
            theirs = self.peer.encode(torch.from_numpy(features)[None])[0].numpy()
            worst = max(worst, relative(self.ours.encode(features), theirs))
        self.say("encoder output, relative difference", worst, MATCHING)

    def prompt(self):
        s = self.peer.special
        named = [s.first_language, s.transcribe] if s.multilingual else []
        return [s.start, *named, s.no_timestamps]

    def logits(self):
        worst = 0
        for i in self.some:
            features = self.ours.features(self.spoken.samples[i])
            encoded = self.peer.encode(torch.from_numpy(features)[None])
            tokens = self.prompt() + self.peer.greedy(torch.from_numpy(features)[None])
            theirs = self.peer.logits(encoded, tokens).numpy()
            ours = self.ours.logits(numpy.ascontiguousarray(encoded[0].numpy()), tokens)
            worst = max(worst, relative(ours, theirs))
        self.say("decoder logits, relative difference", worst, MATCHING)

    def explain(self, i, ours, theirs):
        """Where two texts part, and how near the two tokens' logits are there."""
        at = next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b),
                  min(len(ours), len(theirs)))
        end = self.peer.special.end
        pair = [(ours + [end])[at], (theirs + [end])[at]]
        encoded = self.peer.encode(self.peer.features(self.spoken.samples[i]))
        logits = self.peer.logits(encoded, self.prompt() + theirs[:at])[-1]
        margin = float(logits[pair[1]] - logits[pair[0]])
        print(f"       {self.spoken.names[i]}: they part at token {at}: ours "
              f"{self.peer.text([t for t in pair[:1] if t < end])!r}, theirs "
              f"{self.peer.text([t for t in pair[1:] if t < end])!r}; "
              f"logits {margin:.4f} apart"
              f"{' (a tie to rounding)' if abs(margin) < CLOSE_CALL else ''}")

    def texts(self):
        same = 0
        for i, samples in enumerate(self.spoken.samples):
            theirs = self.peer.greedy(self.peer.features(samples))
            ours = self.ours.greedy(samples)
            if ours == theirs:
                same += 1
            else:
                self.explain(i, ours, theirs)
        self.say("greedy texts identical, share", same / len(self.spoken.samples), TEXTS,
                 at_least=True)

    def wer(self):
        rates = {"ours": [0, 0], "theirs": [0, 0]}
        for window in self.spoken.windows(self.options.per_window, self.options.gap):
            samples = self.spoken.join(window, self.options.gap)
            reference = " ".join(self.spoken.texts[i] for i in window)
            heard = {"ours": self.ours.greedy(samples),
                     "theirs": self.peer.greedy(self.peer.features(samples))}
            for who, ids in heard.items():
                e = self.ours.word_errors(reference, self.peer.text(ids))
                rates[who][0] += e.substitutions + e.insertions + e.deletions
                rates[who][1] += e.words
        percent = {who: 100 * wrong / words for who, (wrong, words) in rates.items()}
        self.results["word error rates, percent"] = percent
        print(f"       word error rate: ours {percent['ours']:.2f} %, "
              f"theirs {percent['theirs']:.2f} % of {rates['ours'][1]} words")
        self.say("word error rate, points apart",
                 abs(percent["ours"] - percent["theirs"]), POINTS)

    def save_folder(self, folder):
        self.peer.model.save_pretrained(folder)
        table = byte_letters()
        vocabulary = {"".join(table[b] for b in text): i
                      for i, text in reversed(list(enumerate(
                          self.peer.file.vocabulary[:self.peer.special.end])))}
        (folder / "vocab.json").write_text(json.dumps(vocabulary))

    def folder(self):
        features = self.ours.features(self.spoken.samples[0])
        with tempfile.TemporaryDirectory() as name:
            self.save_folder(Path(name))
            other = Speech(self.options.library, self.options.threads, name)
            differs = float(numpy.abs(other.encode(features) -
                                      self.ours.encode(features)).max())
            texts = [model.greedy(self.spoken.samples[0]) for model in (self.ours, other)]
            other.close()
        self.say("Hugging Face folder, encoder's largest difference", differs, 1e-5)
        self.say("Hugging Face folder, texts that differ", int(texts[0] != texts[1]), 0)

    def time(self):
        """Everyone warm, then in turns; the best counts, and the middle is shown."""
        samples = self.spoken.join(self.spoken.windows(2, 0.5)[0], 0.5)
        features = self.ours.features(samples)
        out = numpy.empty((self.ours.info.positions, self.ours.info.width), numpy.float32)
        runs = {"whisper.cpp": whisper_cpp(self.options, samples)}
        for kind in self.options.kinds.split(","):
            model = Speech(self.options.library, self.options.threads, self.options.model,
                           kind)
            runs[f"shoal {kind}"] = lambda model=model: model.encode(features, out)
        seconds = {name: [] for name in runs}
        for turn in range(self.options.repeats + 2):
            for name, run in runs.items():
                time.sleep(0.05)  # until the threads of the one before stop spinning
                run()             # and its own are awake
                begun = time.perf_counter()
                run()
                if turn >= 2:
                    seconds[name].append(time.perf_counter() - begun)
        self.results["encoder seconds"] = seconds
        theirs = seconds["whisper.cpp"]
        for name, own in seconds.items():
            print(f"       {name}: best {1e3 * min(own):.2f} ms, median "
                  f"{1e3 * numpy.median(own):.2f} ms; whisper.cpp takes "
                  f"{min(theirs) / min(own):.2f} times its best, "
                  f"{numpy.median(theirs) / numpy.median(own):.2f} times its median")


def byte_letters():
    """GPT-2's letters for bytes: printable ones stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain},
            **{b: chr(256 + n) for n, b in enumerate(others)}}


def whisper_cpp(options, samples):
    """One encoder run of whisper.cpp on the same 30 seconds."""
    import _pywhispercpp as cpp
    context = cpp.whisper_init_from_file_with_params(str(options.model),
                                                     cpp.whisper_context_default_params())
    padded = numpy.zeros(480000, numpy.float32)
    padded[:len(samples)] = samples[:480000]
    if cpp.whisper_pcm_to_mel(context, padded, len(padded), options.threads) != 0:
        raise SystemExit("whisper.cpp made no features")

    def run():
        if cpp.whisper_encode(context, 0, options.threads) != 0:
            raise SystemExit("whisper.cpp did not encode")
    return run


def run(options, say, results):
    checks = Checks(options, say, results)
    for part in options.parts.split(","):
        getattr(checks, part)()
