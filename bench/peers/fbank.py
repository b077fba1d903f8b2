#!/usr/bin/env python3
"""Shoal's filter banks beside those of the package kaldi-native-fbank, on recordings:
every frame, snip-edges on and off, 40 bands within 1e-3 and 80 within 1e-2 (narrow bands
of silence: there the package itself, in float32, is 2e-3 from the formula in double).
Needs numpy, soundfile and kaldi-native-fbank: bench/peers/run fbank installs them. With
--record it prints the small case of tests/speech."""
import argparse
import ctypes
import sys
from ctypes import byref, c_int32, c_int64, c_void_p
from pathlib import Path

import kaldi_native_fbank
import numpy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from library import Library  # noqa: E402


class Options(ctypes.Structure):
    _fields_ = [("bands", c_int32), ("centred", c_int32)]


def ours(library, samples, bands, snip):
    c = library.c
    c.shoal_fbank_frames.restype = c_int64
    c.shoal_fbank_frames.argtypes = [c_void_p, c_int64]
    c.shoal_fbank.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]
    options = Options(bands, not snip)
    frames = c.shoal_fbank_frames(byref(options), len(samples))
    out = numpy.zeros((frames, bands), numpy.float32)
    library.check(c.shoal_fbank(library.context, byref(options), samples.ctypes.data,
                                len(samples), out.ctypes.data))
    return out


def theirs(samples, bands, snip):
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = snip
    options.mel_opts.num_bins = bands
    bank = kaldi_native_fbank.OnlineFbank(options)
    bank.accept_waveform(16000, (samples * 32768).tolist())
    bank.input_finished()
    return numpy.array([bank.get_frame(i) for i in range(bank.num_frames_ready)],
                       numpy.float32)


def record(library):
    """A tone in noise, 1,000 samples: some values of each setting."""
    state, samples = 1, numpy.empty(1000, numpy.float32)
    for i in range(1000):
        state = (state * 1103515245 + 12345) % 2**31
        samples[i] = 0.3 * numpy.sin(0.05 * i) + 0.2 * ((state >> 16) / 32768 - 0.5)
    for bands in (40, 80):
        for snip in (True, False):
            expected = theirs(samples, bands, snip)
            error = numpy.abs(ours(library, samples, bands, snip) - expected).max()
            print(f"bands {bands} snip {snip} frames {len(expected)} error {error:.1e}")
            for frame in (0, len(expected) - 1):
                row = expected[frame][::bands // 8]
                print("   ", frame, ", ".join(f"{value:.5f}f" for value in row))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="recordings of 16 kHz")
    parser.add_argument("--library", type=Path,
                        default=HERE.parent.parent / "build" / "libshoal-speech.so")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    library = Library(options.library.resolve(), 1)
    if options.record:
        record(library)
    worst = {40: 0, 80: 0}
    for path in options.files:
        import soundfile
        samples, rate = soundfile.read(path, dtype="float32")
        if rate != 16000:
            raise SystemExit(f"{path}: {rate} samples per second")
        samples = numpy.ascontiguousarray(samples)
        for bands in (40, 80):
            for snip in (True, False):
                mine, other = ours(library, samples, bands, snip), theirs(samples, bands,
                                                                          snip)
                if mine.shape != other.shape:
                    raise SystemExit(f"{path}: {mine.shape} and {other.shape}")
                worst[bands] = max(worst[bands], numpy.abs(mine - other).max())
    if options.files:
        print(f"{len(options.files)} recordings: 40 bands within {worst[40]:.1e}, 80 "
              f"within {worst[80]:.1e}")
    return 0 if worst[40] <= 1e-3 and worst[80] <= 1e-2 else 1


if __name__ == "__main__":
    sys.exit(main())
