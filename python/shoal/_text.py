"""Vectors of texts by BERT, RoBERTa and ModernBERT models through libshoal-models.

libshoal-models is looked for where SHOAL_MODELS_LIBRARY says, beside libshoal, where the
wheel has it, and among the system's libraries.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p

import numpy as np

from . import _checked
from ._handle import LibraryHandle
from ._native import Options, ShoalError, Sized, load_part

LONG = ("windows", "cut", "stretch")  # shoal_long_texts
POOLING = ("own", "mean", "first", "max")  # shoal_text_pooling
PRECISION = ("auto", "float32", "bfloat16", "int8")  # shoal_precision


class TextOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("attention", c_char_p),
        ("rows", c_int64),
        ("window", c_int64),
        ("stride", c_int64),
        ("long_texts", c_int32),
        ("pooling", c_int32),
        ("normalize", c_int32),
        ("precision", c_int32),
    ]


class TextInfo(ctypes.Structure):
    _fields_ = [
        ("type", c_char_p),
        ("layers", c_int64),
        ("heads", c_int64),
        ("width", c_int64),
        ("feed_forward", c_int64),
        ("vocabulary", c_int64),
        ("positions", c_int64),
        ("window", c_int64),
        ("rows", c_int64),
        ("pooling", c_int32),
        ("precision", c_int32),
        ("workspace", c_size_t),
    ]


SIGNATURES = {
    "shoal_context_create": (ctypes.c_int, [POINTER(Options), POINTER(c_void_p)]),
    "shoal_context_destroy": (None, [c_void_p]),
    "shoal_context_message": (c_char_p, [c_void_p]),
    "shoal_text_encoder_open": (
        ctypes.c_int,
        [c_void_p, c_char_p, POINTER(TextOptions), POINTER(c_void_p)],
    ),
    "shoal_text_encoder_destroy": (None, [c_void_p]),
    "shoal_text_encoder_describe": (POINTER(TextInfo), [c_void_p]),
    "shoal_text_encoder_embed": (
        ctypes.c_int,
        [c_void_p, c_int64, c_void_p, c_void_p, c_void_p],
    ),
}


class TextEncoder(LibraryHandle):
    """A BERT, RoBERTa or ModernBERT of a Hugging Face folder, with any kind of attention.

    >>> encoder = shoal.TextEncoder("all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> encoder.embed(["a text", "another"]).shape  # doctest: +SKIP
    (2, 384)

    `long` selects how texts longer than `window` tokens (0: the maximum of the model) are
    processed: "windows" every `stride` tokens (0: half a window), "cut", or "stretch".
    `pooling` is "own" (as the folder specifies), "mean", "first" or "max". `rows` is the
    number of tokens per batch. `precision` of the matrices is "float32", "bfloat16",
    "int8" or "auto"; the attribute says what was chosen. Threads that share an encoder
    wait for each other.
    """

    __module__ = "shoal"
    _what = "the encoder"
    _close_function = "shoal_text_encoder_destroy"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        attention: str = "full",
        *,
        window: int = 0,
        stride: int = 0,
        long: str = "windows",
        pooling: str = "own",
        normalize: bool = False,
        rows: int = 0,
        precision: str = "auto",
        threads: int = 0,
    ) -> None:
        options = TextOptions(
            attention=_checked.text("attention", attention),
            rows=_checked.size("rows", rows),
            window=_checked.size("window", window),
            stride=_checked.size("stride", stride),
            long_texts=_checked.choice("long", long, LONG),
            pooling=_checked.choice("pooling", pooling, POOLING),
            normalize=bool(normalize),
            precision=_checked.choice("precision", precision, PRECISION),
        )
        path = _checked.path("folder", folder)
        self._open(load_part("models", "shoal.TextEncoder", SIGNATURES), threads)
        self._check(
            self._lib.shoal_text_encoder_open(
                self._context, path, byref(options), byref(self._native)
            )
        )
        info = self._lib.shoal_text_encoder_describe(self._native).contents
        self.type: str = info.type.decode()
        self.size: int = info.width
        self.positions: int = info.positions
        self.window: int = info.window
        self.precision: str = PRECISION[info.precision]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """One vector per text: float32 [texts, size]."""
        if isinstance(texts, (str, bytes)):
            raise ShoalError("texts is one string: it must be a list of strings")
        encoded = [_checked.any_text(f"texts[{i}]", x) for i, x in enumerate(texts)]
        vectors = np.empty((len(encoded), self.size), np.float32)
        with self._turn():
            self._check(
                self._lib.shoal_text_encoder_embed(
                    self._native,
                    len(encoded),
                    (c_char_p * len(encoded))(*encoded),
                    (c_int64 * len(encoded))(*map(len, encoded)),
                    vectors.ctypes.data,
                )
            )
        return vectors
