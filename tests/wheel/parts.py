"""Every part of the installed package, with numpy alone: python parts.py DATA [--strict]

DATA has a folder bert, a Whisper model small.bin and a recording talk.wav. Prints a line
"ok NAME" or "not ok NAME" for each part. With --strict every library but those of the C
compiler's system must come out of the package, as in wheels for other systems.
"""

import ctypes
import os
import subprocess
import sys
import sysconfig
import traceback
from pathlib import Path

import numpy as np

DATA = Path(sys.argv[1])
STRICT = "--strict" in sys.argv
PREFIX = Path(np.__file__).resolve().parents[1]  # where packages are installed
SYSTEM = ("libc.", "libm.", "libpthread.", "libdl.", "librt.", "ld-linux")
failed = []


def part(test):
    name = test.__name__.replace("_", " ")
    try:
        skipped = test()
        print("ok", name, f"# SKIP {skipped}" if skipped else "", flush=True)
    except Exception:
        failed.append(name)
        print("not ok", name)
        for line in traceback.format_exc().splitlines():
            print("#", line)


def arrays(*shape):
    draw = np.random.default_rng(1)
    return [draw.standard_normal(shape).astype(np.float32) for _ in range(3)]


@part
def attention_in_numpy():
    import shoal

    q, k, v = arrays(1, 2, 100, 16)
    # Not q @ k: under qemu the BLAS of numpy's wheel for Arm gives NaN.
    scores = np.einsum("bhid,bhjd->bhij", q, k) / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhij,bhjd->bhid", weights, v)
    assert np.abs(shoal.attention(q, k, v, "full") - expected).max() < 1e-5
    for kind in ("shoal", "i-clustered-9:topk=8", "clustered-9"):
        out = shoal.attention(q, k, v, kind, threads=2)
        assert np.isfinite(out).all() and out.shape == q.shape
    gradients = shoal.attention_grad(q, k, v, np.ones_like(q), "full")
    assert np.abs(gradients.dv.sum() - q.size) < 1e-2 * q.size


@part
def attention_in_PyTorch():
    try:
        import torch
    except ImportError:
        return "no PyTorch here"
    import shoal
    import shoal.torch

    q, k, v = (torch.tensor(x, requires_grad=True) for x in arrays(1, 2, 50, 8))
    out = shoal.torch.attention(q, k, v, "full")
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert (out - wanted).abs().max() < 1e-5
    out.sum().backward()
    assert torch.isfinite(q.grad).all()


@part
def text_encoder():
    import shoal

    with shoal.TextEncoder(DATA / "bert") as encoder:
        vectors = encoder.embed(["a b c", "attention in linear time"])
    assert vectors.shape == (2, 16) and np.isfinite(vectors).all()


@part
def training():
    import shoal

    x = np.random.default_rng(0).integers(5, size=(90, 10))
    settings = dict(layers=1, heads=2, head_dim=8, feed_forward=32, warmup=5, threads=1)
    settings |= dict(learning_rate=0.01, batch=20, pooling="first", progress=False)
    model = shoal.train.arrays(x, x[:, 0], "run", "full", epochs=8, **settings)
    assert Path("run/checkpoint.safetensors").exists() and model


@part
def speech():
    import shoal

    with shoal.Speech(DATA / "small.bin", "shoal") as recogniser:
        recogniser.transcribe(DATA / "talk.wav", fallback=False)


def loaded():
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if ".so" in line}
    return [Path(path) for path in sorted(paths) if path.startswith("/")]


class SoundInfo(ctypes.Structure):
    _fields_ = [("frames", ctypes.c_int64)] + [
        (name, ctypes.c_int)
        for name in ("samplerate", "channels", "format", "sections", "seekable")
    ]


FORMATS = {"flac": 0x170002, "vorbis": 0x200060, "opus": 0x200064, "mp3": 0x230082}


@part
def formats_of_recordings():
    """FLAC, Vorbis, Opus and MP3, written by the same libsndfile, are read."""
    import shoal

    path = next(path for path in loaded() if path.name.startswith("libsndfile"))
    sndfile = ctypes.CDLL(str(path))
    sndfile.sf_open.restype = ctypes.c_void_p
    sndfile.sf_writef_float.restype = ctypes.c_int64
    sndfile.sf_writef_float.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64]
    sndfile.sf_close.argtypes = [ctypes.c_void_p]
    sound = np.sin(np.arange(32000) * 0.05).astype(np.float32)
    with shoal.Speech(DATA / "small.bin") as recogniser:
        for name, number in FORMATS.items():
            info = SoundInfo(0, 16000, 1, number, 0, 0)
            file = sndfile.sf_open(f"x.{name}".encode(), 0x20, ctypes.byref(info))
            assert file, f"{name} cannot be written"
            sndfile.sf_writef_float(file, sound.ctypes.data, len(sound))
            sndfile.sf_close(file)
            recogniser.transcribe(f"x.{name}", fallback=False)


@part
def libraries_of_the_package():
    """Shoal's libraries are the package's; in a strict wheel so are all others."""
    for path in loaded():
        inside = PREFIX in path.resolve().parents
        assert inside or not path.name.startswith("libshoal"), path
        python = Path(sysconfig.get_config_var("LIBDIR") or "/").resolve()
        other = path.name.startswith(SYSTEM) or python in path.resolve().parents
        audio = ("libsnd", "libsox", "libFLAC", "libjansson", "libutf8proc")
        assert inside or other or not STRICT or not path.name.startswith(audio), path


@part
def program_on_the_path():
    scripts = Path(sysconfig.get_path("scripts"))
    program = os.environ.get("SHOAL_PROGRAM") or scripts / "shoal"
    environment = {"PATH": os.environ.get("PATH", "")}
    run = subprocess.run(
        [program, "--version"], env=environment, capture_output=True, text=True
    )
    import shoal

    assert run.stdout.split() == ["shoal", shoal.__version__], run


sys.exit(bool(failed))
