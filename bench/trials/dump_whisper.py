#!/usr/bin/env python3
"""Queries, keys and values of a Whisper encoder on windows of real speech, joined.

usage: dump_whisper.py MODEL.bin SPEECH -o DIR [-n WINDOWS] [-s SKIP] [-l 0 1 2 3]

SPEECH is a Kaldi data folder (wav.scp, utt2spk) or a folder of sound files. Utterances follow
each other until a window of 30 s is full; a window has one speaker where they are known. The
encoder runs on every window alone (1500 positions) and the windows' rows are joined:
DIR/layerL_{q,k,v}.npy, float32 [1, heads, 1500 WINDOWS, 64], before any scaling, as
`shoal quality` reads them. Needs numpy and soundfile."""
import argparse
import struct
from pathlib import Path

import numpy as np
import soundfile

RATE, WINDOW = 16000, 480000


def read_model(path):
    """Sizes, mel filters and tensors of a ggml file as whisper.cpp writes it."""
    raw, at = Path(path).read_bytes(), 4
    names = "vocab audio_ctx width heads layers text_ctx text_width text_heads text_layers mels f16"
    sizes = dict(zip(names.split(), struct.unpack_from("<11i", raw, at)))
    at += 44
    mels, bins = struct.unpack_from("<2i", raw, at)
    filters = np.frombuffer(raw, "<f4", mels * bins, at + 8).reshape(mels, bins)
    at += 8 + 4 * mels * bins
    count, = struct.unpack_from("<i", raw, at)
    at += 4
    for _ in range(count):
        at += 4 + struct.unpack_from("<I", raw, at)[0]
    tensors = {}
    while at < len(raw):
        dims, length, kind = struct.unpack_from("<3i", raw, at)
        shape = struct.unpack_from(f"<{dims}i", raw, at + 12)[::-1]
        at += 12 + 4 * dims
        name = raw[at:at + length].decode()
        at += length
        size = int(np.prod(shape))
        x = np.frombuffer(raw, "<f2" if kind else "<f4", size, at)
        at += size * (2 if kind else 4)
        tensors[name] = x.astype(np.float32).reshape(shape)
    return sizes, filters, tensors


def spectrogram(sound, filters):
    x = np.pad(sound, 200, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(x, 400)[::160][:3000]
    power = np.abs(np.fft.rfft(frames * np.hanning(401)[:-1])) ** 2
    mel = np.log10(np.maximum(filters @ power.T, 1e-10))
    return ((np.maximum(mel, mel.max() - 8) + 4) / 4).astype(np.float32)


def norm(x, w, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * w[name + ".weight"] + w[name + ".bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x ** 3)))


def convolve(x, weight, bias, stride):
    x = np.pad(x, ((0, 0), (1, 1)))
    columns = np.stack([x[:, i:i + x.shape[1] - 2:stride] for i in range(3)], 1)
    return gelu(weight.reshape(len(weight), -1) @ columns.reshape(-1, columns.shape[2])
                + bias.reshape(-1, 1))


def encode(mel, sizes, w, seen):
    e, heads, dim = "encoder.", sizes["heads"], sizes["width"] // sizes["heads"]
    x = convolve(mel, w[e + "conv1.weight"], w[e + "conv1.bias"], 1)
    x = convolve(x, w[e + "conv2.weight"], w[e + "conv2.bias"], 2).T + w[e + "positional_embedding"]
    for layer in range(sizes["layers"]):
        b = f"{e}blocks.{layer}."
        h = norm(x, w, b + "attn_ln")
        q, k, v = (h @ w[f"{b}attn.{n}.weight"].T for n in ("query", "key", "value"))
        q, v = q + w[b + "attn.query.bias"], v + w[b + "attn.value.bias"]
        q, k, v = (t.reshape(len(x), heads, dim).transpose(1, 0, 2) for t in (q, k, v))
        seen(layer, q, k, v)
        s = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(dim))
        s = np.exp(s - s.max(-1, keepdims=True))
        a = (s @ v / s.sum(-1, keepdims=True)).transpose(1, 0, 2).reshape(x.shape)
        x = x + a @ w[b + "attn.out.weight"].T + w[b + "attn.out.bias"]
        h = norm(x, w, b + "mlp_ln")
        h = gelu(h @ w[b + "mlp.0.weight"].T + w[b + "mlp.0.bias"])
        x = x + h @ w[b + "mlp.2.weight"].T + w[b + "mlp.2.bias"]


def windows(folder):
    folder = Path(folder)
    if (folder / "wav.scp").exists():
        who = dict(l.split() for l in (folder / "utt2spk").read_text().splitlines())
        files = [l.split(None, 1) for l in (folder / "wav.scp").read_text().splitlines()]
        files = [(who[u], folder / p) for u, p in files]
    else:
        files = [(p.name.split("-")[0], p) for p in sorted(folder.glob("*.flac"))]
    held, speaker = np.zeros(0, np.float32), None
    for name, path in files:
        if name != speaker:
            held, speaker = np.zeros(0, np.float32), name
        x, rate = soundfile.read(path, dtype="float32")
        if rate != RATE:  # by the spectrum
            n = int(len(x) * RATE / rate)
            spectrum = np.fft.rfft(x)[:n // 2 + 1]
            x = (np.fft.irfft(np.pad(spectrum, (0, n // 2 + 1 - len(spectrum))), n) * n
                 / len(x)).astype(np.float32)
        held = np.concatenate([held, x])
        while len(held) >= WINDOW:
            yield held[:WINDOW]
            held = held[WINDOW:]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model"), p.add_argument("speech")
    p.add_argument("-o", required=True, help="folder for the arrays")
    p.add_argument("-n", type=int, default=1, help="windows")
    p.add_argument("-s", type=int, default=0, help="windows to skip first")
    p.add_argument("-e", type=int, default=1, help="take every E-th window only")
    p.add_argument("-l", type=int, nargs="+", default=[0, 1, 2, 3], help="layers")
    a = p.parse_args()
    sizes, filters, w = read_model(a.model)
    kept = {}

    def seen(layer, *arrays):
        if layer in a.l:
            for name, x in zip("qkv", arrays):
                kept.setdefault((layer, name), []).append(np.ascontiguousarray(x))

    for i, sound in enumerate(windows(a.speech)):
        if i >= a.s and (i - a.s) % a.e == 0:
            encode(spectrogram(sound, filters), sizes, w, seen)
        if len(next(iter(kept.values()), [])) == a.n:
            break
    Path(a.o).mkdir(parents=True, exist_ok=True)
    for (layer, name), parts in kept.items():
        np.save(Path(a.o) / f"layer{layer}_{name}.npy", np.concatenate(parts, 1)[None])
    print(f"{len(parts)} windows")


if __name__ == "__main__":
    main()
