"""The text part of libshoal-models through ctypes, as far as the comparisons need it. The
structures mirror include/shoal_models.h field by field.
"""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

from library import Error, Options, Sized

PRECISIONS = ("auto", "float32", "bfloat16", "int8")  # shoal_precision
CUTS = {"longest_first": 0, "only_first": 1, "only_second": 2}


class Text(Sized):
    _fields_ = [("size", c_size_t),
                ("text", c_char_p), ("bytes", c_int64), ("pair", c_char_p),
                ("pair_bytes", c_int64), ("most", c_int64), ("cut", c_int32),
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


class TextOptions(Sized):
    _fields_ = [("size", c_size_t),
                ("attention", c_char_p), ("rows", c_int64), ("window", c_int64),
                ("stride", c_int64), ("long_texts", c_int32), ("pooling", c_int32),
                ("normalize", c_int32), ("precision", c_int32)]


class TextInfo(ctypes.Structure):
    _fields_ = [("type", c_char_p), ("layers", c_int64), ("heads", c_int64),
                ("width", c_int64), ("feed_forward", c_int64), ("vocabulary", c_int64),
                ("positions", c_int64), ("window", c_int64), ("rows", c_int64),
                ("pooling", c_int32), ("precision", c_int32),
                ("workspace", ctypes.c_size_t)]


class TextEncoder:
    def __init__(self, library, folder, **options):
        import numpy
        self.numpy, self.library = numpy, library
        self.handle = c_void_p()
        c = library.c
        c.shoal_text_encoder_describe.restype = POINTER(TextInfo)
        c.shoal_text_encoder_describe.argtypes = [c_void_p]
        c.shoal_text_encoder_destroy.argtypes = [c_void_p]
        c.shoal_text_encoder_destroy.restype = None
        library.check(c.shoal_text_encoder_open(
            library.context, str(folder).encode(), byref(TextOptions(**options)),
            byref(self.handle)))
        self.info = c.shoal_text_encoder_describe(self.handle).contents

    def forward(self, sequences, types=None):
        """Hidden states of lists of ids, as one array [rows][size]."""
        np = self.numpy
        offsets = np.cumsum([0] + [len(ids) for ids in sequences]).astype(np.int64)
        ids = np.concatenate(sequences).astype(np.int32)
        types = None if types is None else np.concatenate(types).astype(np.int32)
        hidden = POINTER(ctypes.c_float)()
        self.library.check(self.library.c.shoal_text_encoder_forward(
            self.handle, c_int64(len(sequences)), offsets.ctypes.data_as(c_void_p),
            ids.ctypes.data_as(c_void_p),
            None if types is None else types.ctypes.data_as(c_void_p), byref(hidden)))
        return np.ctypeslib.as_array(hidden, (int(offsets[-1]), self.info.width)).copy()

    def embed(self, texts):
        np = self.numpy
        encoded = [text.encode() for text in texts]
        array = (c_char_p * len(encoded))(*encoded)
        sizes = np.array([len(text) for text in encoded], np.int64)
        vectors = np.empty((len(encoded), self.info.width), np.float32)
        self.library.check(self.library.c.shoal_text_encoder_embed(
            self.handle, c_int64(len(encoded)), array, sizes.ctypes.data_as(c_void_p),
            vectors.ctypes.data_as(c_void_p)))
        return vectors

    def close(self):
        self.library.c.shoal_text_encoder_destroy(self.handle)
        self.handle = None
