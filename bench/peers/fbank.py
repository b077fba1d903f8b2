#!/usr/bin/env python3
"""Shoal's filter banks compared with the package kaldi-native-fbank, on recordings: every
frame, 40 and 80 bands, snip-edges on and off, at the original rate and every second
sample as 8 kHz; all within 1e-3. Needs numpy, soundfile and kaldi-native-fbank:
bench/peers/run fbank installs them. With --record it prints the small cases of
tests/speech.
"""
import argparse
import ctypes
import sys
from ctypes import byref, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

import kaldi_native_fbank
import numpy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from library import Library, Sized  # noqa: E402


SETTINGS = [(rate, bands, snip) for rate in (16000, 8000) for bands in (40, 80)
            for snip in (True, False)]


class Options(Sized):
    _fields_ = [("size", c_size_t),
                ("bands", c_int32), ("centred", c_int32), ("rate", c_int32),
                ("reserved", c_int32 * 5)]


def ours(library, samples, rate, bands, snip):
    c = library.c
    c.shoal_fbank_frames.restype = c_int64
    c.shoal_fbank_frames.argtypes = [c_void_p, c_int64]
    c.shoal_fbank.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]
    options = Options(bands, not snip, rate)
    frames = c.shoal_fbank_frames(byref(options), len(samples))
    out = numpy.zeros((frames, bands), numpy.float32)
    library.check(c.shoal_fbank(library.context, byref(options), samples.ctypes.data,
                                len(samples), out.ctypes.data))
    return out


def theirs(samples, rate, bands, snip):
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = snip
    options.frame_opts.samp_freq = rate
    options.mel_opts.num_bins = bands
    bank = kaldi_native_fbank.OnlineFbank(options)
    bank.accept_waveform(rate, (samples * 32768).tolist())
    bank.input_finished()
    return numpy.array([bank.get_frame(i) for i in range(bank.num_frames_ready)],
                       numpy.float32)


def difference(library, samples, setting):
    mine, other = ours(library, samples, *setting), theirs(samples, *setting)
    if mine.shape != other.shape:
        raise SystemExit(f"{mine.shape} and {other.shape} values")
    return numpy.abs(mine - other).max()


def record(library):
    """1,000 samples of a tone in noise, and of a pure tone, whose other bands are
    rounding errors of the transform: some values for each setting.
    """
    state, noisy = 1, numpy.empty(1000, numpy.float32)
    for i in range(1000):
        state = (state * 1103515245 + 12345) % 2**31
        noisy[i] = 0.3 * numpy.sin(0.05 * i) + 0.2 * ((state >> 16) / 32768 - 0.5)
    alone = (0.9 * numpy.sin(2.5 * numpy.arange(1000.) + 1)).astype(numpy.float32)
    for name, samples in (("noisy", noisy), ("alone", alone)):
        for setting in SETTINGS:
            rate, bands, snip = setting
            expected = theirs(samples, *setting)
            error = difference(library, samples, setting)
            print(f"{name} rate {rate} bands {bands} snip {snip} frames {len(expected)} "
                  f"error {error:.1e}")
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
    worst = {setting: 0 for setting in SETTINGS}
    for path in options.files:
        import soundfile
        samples, rate = soundfile.read(path, dtype="float32")
        if rate != 16000:
            raise SystemExit(f"{path}: {rate} samples per second")
        for setting in SETTINGS:
            part = numpy.ascontiguousarray(samples[::16000 // setting[0]])
            worst[setting] = max(worst[setting], difference(library, part, setting))
    for (rate, bands, snip), error in worst.items():
        if options.files:
            print(f"{len(options.files)} recordings, {rate} samples per second, {bands} "
                  f"bands, snip-edges {'on' if snip else 'off'}: within {error:.1e}")
    return 0 if max(worst.values()) <= 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
