"""Units or words of recordings by a trained recogniser (libshoal-speech)."""

from __future__ import annotations

import os
from ctypes import byref
from dataclasses import dataclass, field

import numpy as np

from . import _checked
from ._engine import spell
from ._handle import LibraryHandle
from ._native import load_part
from ._speech import samples_of
from ._train_native import OF_RECOGNISERS, RecognitionParts


@dataclass
class Unit:
    """A unit (character, subword, word or phone) and its start in seconds."""

    text: str
    begin: float


@dataclass
class SpokenWord:
    """A word, its times in seconds, and its confidence, if requested."""

    text: str
    begin: float
    end: float
    confidence: float


@dataclass
class Recognition:
    """A transcript: the text, and its units, or its words if there is a lexicon."""

    text: str
    seconds: float
    units: list[Unit] = field(default_factory=list)
    words: list[SpokenWord] = field(default_factory=list)
    log_probability: float = 0.0


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


class Recogniser(LibraryHandle):
    """A recogniser from a run (shoal.train.speech, `shoal train speech`), or from a file
    of its weights.

    >>> heard = shoal.Recogniser("runs/i100").recognise("talk.flac")  # doctest: +SKIP
    >>> heard.text  # doctest: +SKIP

    `attention` selects another kind than the one used in training. The result is the most
    probable unit of each step or, with `beams`, that of a beam search; with a `lexicon`
    and a language model (`lm`) words are found instead. `piece` is the length in seconds
    of the pieces in which a recording is processed. Threads that share a recogniser wait
    for each other.
    """

    __module__ = "shoal"
    _what = "the recogniser"
    _close_function = "shoal_recogniser_destroy"

    def __init__(
        self,
        path: str | os.PathLike[str],
        attention: str | None = None,
        *,
        beams: int = 0,
        piece: float = 0.0,
        lexicon: str | None = None,
        lm: str | os.PathLike[str] | None = None,
        threads: int | None = None,
    ) -> None:
        from .train import recogniser_options

        library = load_part("speech", "shoal.Recogniser", OF_RECOGNISERS)
        encoded = _checked.path("path", path)
        options = recogniser_options(library, attention, beams, piece, lexicon, lm)
        self._open(library, threads)
        self._check(
            library.shoal_recogniser_open(
                self._context, encoded, byref(options), byref(self._native)
            )
        )
        info = library.shoal_recogniser_describe(self._native).contents
        self.path = os.fsdecode(info.path)
        self.step: int = info.step
        self.rate: int = info.features.rate
        self.trained_with = spell(info.attention)
        self._characters = bool(info.unit_type)
        self._step_seconds: float = info.step_seconds

    def recognise(self, sound: str | os.PathLike[str] | np.ndarray) -> Recognition:
        """Transcribes a file, or samples of one channel at `rate` per second."""
        parts = RecognitionParts()
        with self._turn():
            if isinstance(sound, (str, os.PathLike)):
                path = _checked.path("sound", sound)
                status = self._lib.shoal_recogniser_recognise_file(
                    self._native, path, byref(parts)
                )
            else:
                samples = samples_of(sound, self.rate)
                status = self._lib.shoal_recogniser_recognise(
                    self._native, samples.ctypes.data, samples.size, byref(parts)
                )
            self._check(status)
            return self._recognition(parts)

    def _recognition(self, parts: RecognitionParts) -> Recognition:
        second = self._step_seconds
        units = [
            Unit(_text(unit.text), unit.begin * second)
            for unit in parts.units[: parts.count]
        ]
        words = []
        if parts.spoken.count > 0:
            best = parts.spoken.strings[0]
            words = [
                SpokenWord(_text(w.text), w.begin * second, w.end * second, w.confidence)
                for w in best.words[: best.count]
            ]
        if self._characters and not words:
            text = "".join(unit.text for unit in units).replace("_", " ").strip()
        else:
            text = " ".join(part.text for part in words or units)
        return Recognition(text, parts.seconds, units, words, parts.log_probability)
