"""Transcription with Whisper models through libshoal-speech.

libshoal-speech is looked for where SHOAL_SPEECH_LIBRARY says, beside libshoal, where the
wheel has it, and among the system's libraries.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Iterable, Iterator
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field

import numpy as np

from . import _checked
from ._handle import LibraryHandle
from ._native import Options, ShoalError, Sized, load_part
from ._text import PRECISION

RATE = 16000


class SpeechOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("attention", c_char_p),
        ("beams", c_int),
        ("force", c_int),
        ("batch", c_int),
        ("precision", c_int),
    ]


class RecordingParts(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("paths", POINTER(c_char_p)),
        ("files", c_int),
        ("gap", c_double),
        ("samples", c_void_p),
        ("sample_count", c_int64),
        ("partial", c_int),
        ("offset", c_double),
        ("duration", c_double),
    ]


PROGRESS = CFUNCTYPE(None, c_void_p, c_double, c_double)


class TranscribeOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("language", c_char_p),
        ("translate", c_int),
        ("beams", c_int),
        ("no_timestamps", c_int),
        ("no_vad", c_int),
        ("published", c_int),
        ("no_context", c_int),
        ("no_fallback", c_int),
        ("seed", c_uint64),
        ("words", c_int),
        ("prompt", c_char_p),
        ("progress", PROGRESS),
    ]


class WordParts(ctypes.Structure):
    _fields_ = [
        ("begin", c_double),
        ("end", c_double),
        ("text", c_char_p),
        ("probability", c_double),
    ]


class SegmentParts(ctypes.Structure):
    _fields_ = [
        ("begin", c_double),
        ("end", c_double),
        ("text", c_char_p),
        ("tokens", POINTER(c_int32)),
        ("token_count", c_int64),
        ("temperature", c_double),
        ("mean_logprob", c_double),
        ("no_speech", c_double),
        ("compression", c_double),
        ("words", POINTER(WordParts)),
        ("word_count", c_int64),
    ]


class SummaryParts(ctypes.Structure):
    _fields_ = [
        ("language", ctypes.c_char * 16),
        ("language_probability", c_double),
        ("seconds", c_double),
        ("encoder_seconds", c_double),
        ("decoder_seconds", c_double),
        ("windows", c_int64),
        ("fallbacks", c_int64),
        ("silent", c_int64),
        ("tokens", c_int64),
        ("reserved", c_int64 * 4),
    ]


STRUCTURES = {
    "shoal_speech_options": SpeechOptions,
    "shoal_recording": RecordingParts,
    "shoal_transcribe_options": TranscribeOptions,
    "shoal_word": WordParts,
    "shoal_segment": SegmentParts,
    "shoal_transcription": SummaryParts,
}

SEGMENT = CFUNCTYPE(c_int, c_void_p, POINTER(SegmentParts))

SIGNATURES = {
    "shoal_context_create": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "shoal_context_destroy": (None, [c_void_p]),
    "shoal_context_message": (c_char_p, [c_void_p]),
    "shoal_speech_open": (
        c_int,
        [c_void_p, c_char_p, POINTER(SpeechOptions), POINTER(c_void_p)],
    ),
    "shoal_speech_destroy": (None, [c_void_p]),
    "shoal_speech_transcribe": (
        c_int,
        [
            c_void_p,
            POINTER(RecordingParts),
            POINTER(TranscribeOptions),
            SEGMENT,
            c_void_p,
            POINTER(SummaryParts),
        ],
    ),
}


@dataclass
class Word:
    """A word with its leading space, its times in seconds, and its probability."""

    text: str
    begin: float
    end: float
    probability: float


@dataclass
class Segment:
    """Text from `begin` to `end` (seconds), with `words` if requested.

    `text` begins with its first word; the `space` before it, which Whisper writes in most
    languages, is separate. shoal.join_text returns the text of all segments.
    `temperature`, `mean_logprob`, `no_speech` and `compression` are those of its window.
    """

    begin: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    mean_logprob: float
    no_speech: float
    compression: float
    words: list[Word] = field(default_factory=list)
    space: str = ""


def join_text(segments: Iterable[Segment]) -> str:
    """The concatenated text of segments, exactly as the model wrote it.

    >>> import shoal
    >>> first = shoal.Segment(0, 2, "Hello.", [], 0, 0, 0, 1, space=" ")
    >>> shoal.join_text([first, shoal.Segment(2, 4, "Again.", [], 0, 0, 0, 1, space=" ")])
    ' Hello. Again.'
    """
    return "".join(segment.space + segment.text for segment in segments)


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _segment(parts: SegmentParts) -> Segment:
    words = [
        Word(_text(word.text), word.begin, word.end, word.probability)
        for word in parts.words[: parts.word_count]
    ]
    whole = _text(parts.text)
    text = whole.lstrip()
    return Segment(
        parts.begin,
        parts.end,
        text,
        parts.tokens[: parts.token_count],
        parts.temperature,
        parts.mean_logprob,
        parts.no_speech,
        parts.compression,
        words,
        whole[: len(whole) - len(text)],
    )


def samples_of(sound: np.ndarray, rate: int = RATE) -> np.ndarray:
    samples = np.ascontiguousarray(sound, np.float32)
    if samples.ndim != 1:
        raise ShoalError(
            f"sound has {samples.ndim} dimensions: it must be a path, or samples of one "
            f"channel at {rate // 1000} kHz"
        )
    return samples


class Speech(LibraryHandle):
    """A Whisper model: a ggml file or a Hugging Face folder, with any kind of attention.

    >>> speech = shoal.Speech("ggml-tiny.bin")  # doctest: +SKIP
    >>> for segment in speech.transcribe("talk.flac"):  # doctest: +SKIP
    ...     print(segment.begin, segment.text)

    `batch` is the number of windows processed in parallel (0: chosen by memory).
    `precision` of the matrices is "float32" (as is `exact`), "bfloat16", "int8" or
    "auto".
    A model has one transcription at a time: starting another one, and close(), raise an
    error until the iterator of the first is exhausted or closed.
    """

    __module__ = "shoal"
    _what = "the model"
    _waits = False  # an iterator may never be finished
    _busy_message = (
        "it is transcribing, one recording at a time; finish or close that iterator first"
    )
    _close_function = "shoal_speech_destroy"

    def __init__(
        self,
        model: str | os.PathLike[str],
        attention: str = "full",
        *,
        beams: int = 0,
        batch: int = 0,
        precision: str = "auto",
        exact: bool = False,
        threads: int = 0,
    ) -> None:
        options = SpeechOptions(
            attention=_checked.text("attention", attention),
            beams=_checked.count("beams", beams),
            batch=_checked.count("batch", batch),
            precision=_checked.choice(
                "precision", "float32" if exact else precision, PRECISION
            ),
        )
        path = _checked.path("model", model)
        self._open(load_part("speech", "shoal.Speech", SIGNATURES), threads)
        self._check(
            self._lib.shoal_speech_open(
                self._context, path, byref(options), byref(self._native)
            )
        )
        # : Language code found by the last complete transcription.
        self.language = ""

    def transcribe(
        self,
        sound: str | os.PathLike[str] | np.ndarray,
        *,
        language: str | None = None,
        translate: bool = False,
        beams: int = 1,
        words: bool = False,
        prompt: str | None = None,
        timestamps: bool = True,
        vad: bool = True,
        fallback: bool = True,
        offset: float = 0.0,
        duration: float = 0.0,
        partial: bool = False,
        seed: int = 0,
    ) -> Iterator[Segment]:
        """The segments of a recording as they come.

        `sound` is a file, or samples of one channel at 16 kHz. `vad` detects speech
        first. `offset` and `duration` (0: to the end) are in seconds. Leaving the loop
        stops the transcription.
        """
        if self._closed:
            raise ShoalError("the model is closed")
        recording = RecordingParts(
            offset=_checked.number("offset", offset),
            duration=_checked.number("duration", duration),
            partial=bool(partial),
        )
        held: object
        if isinstance(sound, (str, os.PathLike)):
            paths = held = (c_char_p * 1)(_checked.path("sound", sound))
            recording.paths, recording.files = paths, 1
        else:
            samples = held = samples_of(sound)
            recording.samples, recording.sample_count = samples.ctypes.data, samples.size
        options = TranscribeOptions(
            language=_checked.optional_text("language", language),
            translate=bool(translate),
            beams=_checked.count("beams", beams),
            no_timestamps=not timestamps,
            no_vad=not vad,
            no_fallback=not fallback,
            seed=_checked.seed("seed", seed),
            words=bool(words),
            prompt=_checked.optional_text("prompt", prompt),
        )
        return self._run(recording, options, held)

    def _run(
        self, recording: RecordingParts, options: TranscribeOptions, held: object
    ) -> Iterator[Segment]:
        """The library calls back from its own thread; segments are passed through a
        queue.
        """
        self._take()
        found: queue.Queue[Segment | None] = queue.Queue(maxsize=64)
        left, status, summary = threading.Event(), [0], SummaryParts()

        def take(_: object, parts: ctypes._Pointer[SegmentParts]) -> int:
            segment = _segment(parts.contents)
            while not left.is_set():
                try:
                    found.put(segment, timeout=0.1)
                    break
                except queue.Full:
                    pass
            return int(left.is_set())

        def work() -> None:
            status[0] = self._lib.shoal_speech_transcribe(
                self._native,
                byref(recording),
                byref(options),
                callback,
                None,
                byref(summary),
            )
            while not left.is_set():
                try:
                    found.put(None, timeout=0.1)
                    break
                except queue.Full:
                    pass

        callback = SEGMENT(take)
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
            while (segment := found.get()) is not None:
                yield segment
            thread.join()
            self._check(status[0])
            self.language = summary.language.decode()
        finally:
            left.set()
            thread.join()
            del held
            self._give_back()
