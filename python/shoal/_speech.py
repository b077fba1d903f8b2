"""Recordings become text: Whisper through libshoal-speech.

The wheel carries libshoal alone; libshoal-speech is looked for where SHOAL_SPEECH_LIBRARY
says, beside libshoal, and among the system's libraries.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64
from ctypes import c_uint64, c_void_p
from dataclasses import dataclass, field

import numpy as np

from ._native import NO_MEMORY, Options, ShoalError, load_part

RATE = 16000


class SpeechOptions(ctypes.Structure):
    _fields_ = [
        ("attention", c_char_p),
        ("beams", c_int),
        ("force", c_int),
        ("batch", c_int),
        ("exact", c_int),
    ]


class RecordingParts(ctypes.Structure):
    _fields_ = [
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


class TranscribeOptions(ctypes.Structure):
    _fields_ = [
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
    "shoal_speech_close": (None, [c_void_p]),
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
    """A word with its leading space, when it was said (seconds), and how sure it is."""

    text: str
    begin: float
    end: float
    probability: float


@dataclass
class Segment:
    """What was said from `begin` to `end` (seconds); `words` where they are asked for.

    `temperature`, `mean_logprob`, `no_speech` and `compression` are those of the window
    that it comes from.
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


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _segment(parts: SegmentParts) -> Segment:
    words = [
        Word(_text(word.text), word.begin, word.end, word.probability)
        for word in parts.words[: parts.word_count]
    ]
    return Segment(
        parts.begin,
        parts.end,
        _text(parts.text),
        parts.tokens[: parts.token_count],
        parts.temperature,
        parts.mean_logprob,
        parts.no_speech,
        parts.compression,
        words,
    )


def _samples(sound: np.ndarray) -> np.ndarray:
    samples = np.ascontiguousarray(sound, np.float32)
    if samples.ndim != 1:
        raise ShoalError(
            f"sound has {samples.ndim} dimensions: it must be a path, or samples of one "
            "channel at 16 kHz"
        )
    return samples


class Speech:
    """A Whisper model: a ggml file or a Hugging Face folder, with any kind of attention.

    >>> speech = shoal.Speech("ggml-tiny.bin")  # doctest: +SKIP
    >>> for segment in speech.transcribe("talk.flac"):  # doctest: +SKIP
    ...     print(segment.begin, segment.text)

    `batch` windows are heard side by side (0: chosen by memory). One model is for one
    transcription at a time.
    """

    __module__ = "shoal"

    def __init__(
        self,
        model: str | os.PathLike[str],
        attention: str = "full",
        *,
        beams: int = 0,
        batch: int = 0,
        exact: bool = False,
        threads: int = 0,
    ) -> None:
        self._context, self._speech = c_void_p(), c_void_p()
        self._busy = threading.Lock()
        self._lib = load_part("speech", "shoal.Speech", SIGNATURES)
        options = SpeechOptions(
            attention=attention.encode(), beams=beams, batch=batch, exact=bool(exact)
        )
        self._check(
            self._lib.shoal_context_create(
                byref(Options(threads=threads)), byref(self._context)
            )
        )
        self._check(
            self._lib.shoal_speech_open(
                self._context, os.fsencode(model), byref(options), byref(self._speech)
            )
        )
        #: What the last transcription that came to its end found: code of the language.
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

        `sound` is a file, or samples of one channel at 16 kHz. Without `vad` speech is
        not looked for first. `offset` and `duration` (0: to the end) are seconds. A
        caller who leaves the loop ends the work.
        """
        if not self._speech:
            raise ShoalError("the model is closed")
        recording = RecordingParts(
            offset=offset, duration=duration, partial=bool(partial)
        )
        held: object
        if isinstance(sound, (str, os.PathLike)):
            paths = held = (c_char_p * 1)(os.fsencode(sound))
            recording.paths, recording.files = paths, 1
        else:
            samples = held = _samples(sound)
            recording.samples, recording.sample_count = samples.ctypes.data, samples.size
        options = TranscribeOptions(
            language=language.encode() if language else None,
            translate=bool(translate),
            beams=beams,
            no_timestamps=not timestamps,
            no_vad=not vad,
            no_fallback=not fallback,
            seed=seed,
            words=bool(words),
            prompt=prompt.encode() if prompt else None,
        )
        return self._run(recording, options, held)

    def _run(
        self, recording: RecordingParts, options: TranscribeOptions, held: object
    ) -> Iterator[Segment]:
        """The library calls back from a thread of its own; segments pass by a queue."""
        if not self._busy.acquire(blocking=False):
            raise ShoalError("the model is transcribing: one recording at a time")
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
                self._speech,
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
            self._busy.release()

    def close(self) -> None:
        """Gives memory back; no more recordings then."""
        if self._speech:
            self._lib.shoal_speech_close(self._speech)
        if self._context:
            self._lib.shoal_context_destroy(self._context)
        self._speech, self._context = c_void_p(), c_void_p()

    def __enter__(self) -> Speech:
        return self

    def __exit__(self, *what: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_lib", None):
            self.close()

    def _check(self, status: int) -> None:
        if status == 0:
            return
        message = self._lib.shoal_context_message(self._context) if self._context else b""
        text = (message or b"").decode() or f"status {status}"
        raise MemoryError(text) if status == NO_MEMORY else ShoalError(text)
