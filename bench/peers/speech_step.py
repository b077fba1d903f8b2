#!/usr/bin/env python3
"""A training step of the paper's recogniser beside the same in PyTorch: 40 bands, 9
layers, 6 heads of 32, feed-forward 768, CTC with 39 phones, clipping and R-Adam, from the
same weights on the same batches. The losses and gradient norms of the first steps must
agree within 1e-4: with full attention at the size itself, with other kinds at 96 frames,
where no more queries than clusters make them exact. Then both take turns, with a pause
before each step in which the other's threads stop spinning. Needs numpy and torch:
bench/peers/run speech-step installs them. The exit code is 1 where a bar is missed; times
mean something on a quiet machine only, and the load is printed."""
import argparse
import os
import statistics
import sys
import time
from ctypes import byref, c_double, c_void_p
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from compare import SETTLE, say  # noqa: E402
from ctc import Batch, Ctc, Result, pack  # noqa: E402
from train_step_library import Config, ModelInputs, Parameter  # noqa: E402
from train_step_library import TrainingLibrary  # noqa: E402
from train_step_model import Layer, sinusoids  # noqa: E402

BANDS, UNITS, LAYERS, HEADS, WIDE = 40, 39, 9, 6, 768
RATE, CLIP, SAME_STEPS, TOLERANCE = 1e-4, 10, 3, 1e-4
# bar: the best time of ours over that of PyTorch, which is always full attention.
CASES = [("full", 1500, 8, 0.9), ("i-clustered-100", 3000, 4, 0.35)]
WITH_BACKWARD = 1


class Ours:
    """The model of `shoal train speech --preset paper`."""

    def __init__(self, library, kind, frames, batch, labels):
        self.library, self.batch = library, batch
        self.offsets = numpy.arange(batch + 1, dtype=numpy.int64) * frames
        config = Config(features=BANDS, outputs=UNITS + 1, max_length=frames,
                        layers=LAYERS, heads=HEADS, head_dim=32, feed_forward=WIDE)
        library.check(library.c.shoal_attention_parse(
            library.context, kind.encode(), byref(config.attention)))
        self.model, self.optimizer = c_void_p(), c_void_p()
        library.check(library.c.shoal_model_create(
            library.context, byref(config), 1, batch, batch * frames, WITH_BACKWARD,
            byref(self.model)))
        library.check(library.c.shoal_optimizer_create(self.model, None,
                                                       byref(self.optimizer)))
        self.ctc = Ctc(library, UNITS + 1, batch, frames, labels)

    def weights(self):
        found, parameter = {}, Parameter()
        while self.library.c.shoal_model_parameter(self.model, len(found),
                                                   byref(parameter)):
            shape = tuple(parameter.shape[:parameter.rank])
            found[parameter.name.decode()] = numpy.ctypeslib.as_array(
                parameter.values, shape).copy()
        return found

    def step(self, features, targets):
        c, check = self.library.c, self.library.check
        labels, label_offsets = targets
        inputs = ModelInputs(batch=self.batch, offsets=self.offsets.ctypes.data,
                             features=features.ctypes.data, training=1)
        batch = Batch(self.batch, self.offsets.ctypes.data, labels.ctypes.data,
                      label_offsets.ctypes.data)
        out, result, norm = c_void_p(), Result(), c_double()
        check(c.shoal_model_forward(self.model, byref(inputs), byref(out)))
        check(c.shoal_ctc_loss(self.ctc.handle, byref(batch), out, 1 / len(labels), out,
                               None, byref(result)))
        check(c.shoal_model_backward(self.model, byref(inputs), out, None))
        check(c.shoal_gradients_clip(self.model, CLIP, byref(norm)))
        check(c.shoal_optimizer_step(self.optimizer, RATE))
        return result.sum / len(labels), norm.value

    def destroy(self):
        self.ctc.destroy()
        self.library.c.shoal_optimizer_destroy(self.optimizer)
        self.library.c.shoal_model_destroy(self.model)


class Recogniser(nn.Module):
    """Features [B][N][bands] to logits [B][N][units + 1], with our weights."""

    def __init__(self, weights, frames):
        super().__init__()
        size = len(weights["input.bias"])
        self.input, self.output = nn.Linear(BANDS, size), nn.Linear(size, UNITS + 1)
        self.layers = nn.ModuleList(Layer(size, HEADS, WIDE) for _ in range(LAYERS))
        self.final_norm = nn.LayerNorm(size)
        self.register_buffer("positions", sinusoids(frames, size))
        self.take({name: torch.from_numpy(value) for name, value in weights.items()})

    @torch.no_grad()
    def take(self, weights):
        def fill(module, name, parts=("weight", "bias")):
            module.weight.copy_(weights[f"{name}.{parts[0]}"])
            module.bias.copy_(weights[f"{name}.{parts[1]}"])
        norm = ("scale", "shift")
        for i, layer in enumerate(self.layers):
            prefix = f"encoder.layers.{i}."
            for part in ("weight", "bias"):
                getattr(layer.projections, part).copy_(torch.cat(
                    [weights[f"{prefix}attention.{name}.{part}"]
                     for name in ("query", "key", "value")]))
            fill(layer.output, prefix + "attention.output")
            fill(layer.widen, prefix + "feed_forward.widen")
            fill(layer.narrow, prefix + "feed_forward.narrow")
            fill(layer.attention_norm, prefix + "attention_norm", norm)
            fill(layer.forward_norm, prefix + "forward_norm", norm)
        fill(self.final_norm, "encoder.final_norm", norm)
        fill(self.input, "input")
        fill(self.output, "output")

    def forward(self, features):
        x = self.input(features) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.output(self.final_norm(x))


class Theirs:
    """precise: CTC in double precision, since that of float32 loses three digits of the
    gradient at 1,500 frames."""

    def __init__(self, weights, frames, batch, precise):
        self.precise = precise
        self.model, self.shape = Recogniser(weights, frames), (batch, frames, BANDS)
        self.lengths = torch.full((batch,), frames)
        self.optimizer = torch.optim.RAdam(
            self.model.parameters(), lr=RATE, weight_decay=0.01,
            decoupled_weight_decay=True, foreach=True)

    def step(self, features, targets):
        labels, label_offsets = targets
        self.optimizer.zero_grad()
        logits = self.model(torch.from_numpy(features).view(self.shape))
        logits = logits.double() if self.precise else logits
        loss = F.ctc_loss(logits.log_softmax(2).transpose(0, 1),
                          torch.from_numpy(labels).long(), self.lengths,
                          torch.from_numpy(numpy.diff(label_offsets)),
                          reduction="sum") / len(labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=True)
        self.optimizer.step()
        return float(loss.detach()), float(norm)


def batches(frames, batch):
    """A label for every ten frames."""
    random = numpy.random.default_rng(1)
    while True:
        targets = pack([random.integers(1, UNITS + 1, frames // 10).astype(numpy.int32)
                        for _ in range(batch)])
        features = random.standard_normal((batch * frames, BANDS))
        yield features.astype(numpy.float32), targets


def both(library, kind, frames, batch, precise):
    ours = Ours(library, kind, frames, batch, frames // 10)
    return ours, Theirs(ours.weights(), frames, batch, precise)


def verify(library, kind, frames, batch):
    """The largest differences of loss and norm, relative, over the first steps."""
    ours, theirs = both(library, kind, frames, batch, True)
    worst = [0.0, 0.0]
    for _, data in zip(range(SAME_STEPS), batches(frames, batch)):
        mine, yours = ours.step(*data), theirs.step(*data)
        worst = [max(w, abs(a - b) / abs(b)) for w, a, b in zip(worst, mine, yours)]
    ours.destroy()
    if max(worst) > TOLERANCE:
        raise SystemExit(f"speech_step: {kind} at {frames} frames is wrong: losses "
                         f"differ by {worst[0]:.1e}, norms by {worst[1]:.1e}")
    print(f"{kind}, {batch} x {frames} frames: {SAME_STEPS} steps, losses within "
          f"{worst[0]:.1e}, norms within {worst[1]:.1e}")


def measure(library, kind, frames, batch, bar, repeats):
    """Whether the bar is kept."""
    sides, times = both(library, kind, frames, batch, False), ([], [])
    for number, data in zip(range(repeats + 1), batches(frames, batch)):
        say(f"{kind}, {frames} frames, repetition {number} of {repeats}")
        for side, found in zip(sides, times):
            time.sleep(SETTLE)
            begun = time.perf_counter()
            side.step(*data)
            found.append(time.perf_counter() - begun)
    say("")
    sides[0].destroy()
    ours, theirs = times[0][1:], times[1][1:]  # the first ones warm up
    ratio = min(ours) / min(theirs)
    print(f"{kind}, {batch} x {frames} frames, {torch.get_num_threads()} threads, "
          f"{library.isa}: {min(ours):.3f} s, PyTorch (full) {min(theirs):.3f} s; ratio "
          f"{ratio:.3f} best, "
          f"{statistics.median(ours) / statistics.median(theirs):.3f} median; at most "
          f"{bar}: {'ok' if ratio <= bar else 'NOT OK'}; load {os.getloadavg()[0]:.1f}")
    return ratio <= bar


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path,
                        default=HERE.parent.parent / "build" / "libshoal-models.so")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="compare, time nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    library = TrainingLibrary(options.library.resolve(), options.threads)
    good = True
    for kind, frames, batch, bar in CASES:
        verify(library, kind, frames if kind == "full" else 96, batch)
        if not options.check:
            good = measure(library, kind, frames, batch, bar, options.repeats) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
