"""libshoal-speech through ctypes; structures as in include/shoal_speech.h."""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint64, c_void_p

import numpy

from library import Library, Sized


class SpeechOptions(Sized):
    _fields_ = [("size", c_size_t),
                ("attention", c_char_p), ("beams", c_int), ("force", c_int),
                ("batch", c_int), ("precision", c_int)]


class Info(ctypes.Structure):
    _fields_ = [(name, c_int32) for name in
                ("mels", "frames", "positions", "width", "heads", "layers",
                 "text_positions", "text_layers", "vocabulary", "multilingual")] + [
                     ("bytes", c_size_t)]


class Recording(Sized):
    _fields_ = [("size", c_size_t),
                ("paths", c_void_p), ("files", c_int), ("gap", c_double),
                ("samples", POINTER(c_float)), ("sample_count", c_int64),
                ("partial", c_int), ("offset", c_double), ("duration", c_double)]


class TranscribeOptions(Sized):
    _fields_ = [("size", c_size_t),
                ("language", c_char_p), ("translate", c_int), ("beams", c_int),
                ("no_timestamps", c_int), ("no_vad", c_int), ("published", c_int),
                ("no_context", c_int), ("no_fallback", c_int), ("seed", c_uint64),
                ("words", c_int), ("prompt", c_char_p), ("progress", c_void_p)]


class Segment(ctypes.Structure):
    _fields_ = [("begin", c_double), ("end", c_double), ("text", c_char_p),
                ("tokens", POINTER(c_int32)), ("token_count", c_int64),
                ("temperature", c_double), ("mean_logprob", c_double),
                ("no_speech", c_double), ("compression", c_double),
                ("words", c_void_p), ("word_count", c_int64)]


class WordErrors(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in
                ("words", "substitutions", "insertions", "deletions")]


SEGMENT_FUNCTION = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(Segment))


class Speech(Library):
    """One model on one context."""

    def __init__(self, path, threads, model, attention="full"):
        super().__init__(path, threads)
        self.c.shoal_speech_describe.restype = POINTER(Info)
        self.c.shoal_speech_describe.argtypes = [c_void_p]
        for name in ("set_attention", "features", "encode", "logits", "transcribe"):
            getattr(self.c, "shoal_speech_" + name).restype = c_int
        self.speech = c_void_p()
        options = SpeechOptions(attention=attention.encode(), precision=1)
        self.check(self.c.shoal_speech_open(self.context, str(model).encode(),
                                             byref(options), byref(self.speech)))
        self.info = self.c.shoal_speech_describe(self.speech).contents

    def close(self):
        self.c.shoal_speech_destroy.restype = None
        self.c.shoal_speech_destroy(self.speech)

    def set_attention(self, kind):
        self.check(self.c.shoal_speech_set_attention(self.speech, kind.encode()))

    @staticmethod
    def recording(samples):
        """The array must live as long as the recording."""
        return Recording(samples=samples.ctypes.data_as(POINTER(c_float)),
                         sample_count=len(samples))

    def features(self, samples):
        out = numpy.empty((self.info.mels, self.info.frames), numpy.float32)
        self.check(self.c.shoal_speech_features(
            self.speech, byref(self.recording(samples)), c_double(0),
            c_void_p(out.ctypes.data), None))
        return out

    def encode(self, features, out=None):
        if out is None:
            out = numpy.empty((self.info.positions, self.info.width), numpy.float32)
        self.check(self.c.shoal_speech_encode(
            self.speech, c_void_p(features.ctypes.data), c_void_p(out.ctypes.data)))
        return out

    def logits(self, encoded, tokens):
        tokens = numpy.asarray(tokens, numpy.int32)
        out = numpy.empty((len(tokens), self.info.vocabulary), numpy.float32)
        self.check(self.c.shoal_speech_logits(
            self.speech, c_void_p(encoded.ctypes.data), c_void_p(tokens.ctypes.data),
            c_int64(len(tokens)), c_void_p(out.ctypes.data)))
        return out

    def greedy(self, samples):
        """Token ids of the greedy text without timestamps."""
        ids = []

        def take(_, segment):
            s = segment.contents
            ids.extend(s.tokens[:s.token_count])
            return 0
        options = TranscribeOptions(language=b"en", no_timestamps=1, published=1,
                                    no_fallback=1)
        self.check(self.c.shoal_speech_transcribe(
            self.speech, byref(self.recording(samples)), byref(options),
            SEGMENT_FUNCTION(take), None, None))
        return ids

    def word_errors(self, reference, text):
        errors = WordErrors()
        self.check(self.c.shoal_count_word_errors(
            self.context, reference.encode(), text.encode(), byref(errors)))
        return errors
