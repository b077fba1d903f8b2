"""The text part of libshoal-models through ctypes: only what the comparisons need. The
structures are those of include/shoal_models.h, field by field."""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path

from library import Error, Options

CUTS = {"longest_first": 0, "only_first": 1, "only_second": 2}


class Text(ctypes.Structure):
    _fields_ = [("text", c_char_p), ("size", c_int64), ("pair", c_char_p),
                ("pair_size", c_int64), ("most", c_int64), ("cut", c_int32),
                ("bare", c_int32)]


class Tokens(ctypes.Structure):
    _fields_ = [("count", c_int64), ("ids", POINTER(c_int32)),
                ("types", POINTER(c_int32)), ("texts", POINTER(c_int32)),
                ("spans", POINTER(c_int64)), ("left_out", c_int64)]


class TextLibrary:
    """One context with a number of threads."""

    def __init__(self, build: Path, threads: int):
        self.c = ctypes.CDLL(str(Path(build) / "libshoal-models.so"))
        self.c.shoal_context_message.restype = c_char_p
        self.c.shoal_context_message.argtypes = [c_void_p]
        self.context = c_void_p()
        self.check(self.c.shoal_context_create(byref(Options(threads=threads)),
                                               byref(self.context)))

    def check(self, status):
        if status != 0:
            message = self.c.shoal_context_message(self.context) if self.context else b""
            raise Error(message.decode() or f"status {status}")


class Tokenizer:
    def __init__(self, library, folder):
        self.library = library
        self.handle = c_void_p()
        library.check(library.c.shoal_tokenizer_open(
            library.context, str(folder).encode(), byref(self.handle)))

    def encode(self, text, pair=None, most=0, cut="longest_first", bare=False):
        """(ids, types, spans in bytes)"""
        first = text.encode()
        second = None if pair is None else pair.encode()
        given = Text(first, len(first), second, len(second or b""), most, CUTS[cut], bare)
        tokens = Tokens()
        self.library.check(self.library.c.shoal_tokenizer_encode(
            self.handle, byref(given), byref(tokens)))
        n = tokens.count
        return tokens.ids[:n], tokens.types[:n], tokens.spans[:2 * n]
