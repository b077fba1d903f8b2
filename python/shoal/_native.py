"""The C library through ctypes: structures, functions, errors.

Every structure mirrors include/shoal.h field by field; tests/test_native.py compiles the
header and compares sizes and offsets.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

INTERFACE = (1, 0)  # major and minor version of the mirrored shoal.h

OK, INVALID, BAD_FILE, IO, NO_MEMORY, CANCELLED = range(6)  # shoal_status
FLOAT32, INT32, FLOAT16, BFLOAT16 = range(4)  # shoal_dtype
WITH_BACKWARD = 1


class ShoalError(ValueError):
    """Invalid arguments: shapes, types, spellings, ranges."""

    __module__ = "shoal"


class Sized(ctypes.Structure):
    """A configuration struct, whose first field is its size."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(self), *values, **fields)


class Options(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int),
        ("isa", c_char_p),
        ("allocate", c_void_p),
        ("release", c_void_p),
        ("user", c_void_p),
        ("crossover", c_int),
    ]


class Attention(ctypes.Structure):
    _fields_ = [
        ("kind", c_int),
        ("clusters", c_int32),
        ("topk", c_int32),
        ("bits", c_int32),
        ("iterations", c_int32),
        ("rounds", c_int32),
        ("window", c_int32),
        ("rank", c_int32),
        ("clustering", c_int),
        ("normaliser", c_int),
        ("keyclusters", c_int32),
        ("block", c_int32),
        ("pool", c_int32),
        ("near", c_int32),
        ("form", c_int32),
        ("tolerance", c_float),
        ("seed", c_uint64),
        ("reserved", c_int32 * 8),
    ]


class KindRow(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("cost", c_char_p),
        ("summary", c_char_p),
        ("number", c_char_p),
        ("defaults", Attention),
        ("exact", c_int),
        ("keys_are_queries", c_int),
        ("unit_keys", c_int),
        ("has_clusters", c_int),
        ("has_top_keys", c_int),
        ("has_seed", c_int),
        ("has_tolerance", c_int),
        ("picks", c_int),
        ("has_masks", c_int),
    ]


class Strides(ctypes.Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("position", c_int64)]


class PairStrides(ctypes.Structure):
    _fields_ = [
        ("batch", c_int64),
        ("head", c_int64),
        ("query", c_int64),
        ("key", c_int64),
    ]


class Problem(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("batch", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("queries", c_int64),
        ("keys", c_int64),
        ("dim", c_int64),
        ("value_dim", c_int64),
        ("scale", c_float),
        ("packed", c_int),
        ("causal", c_int),
        ("dropout", c_float),
        ("dtype", c_int),
        ("q_strides", POINTER(Strides)),
        ("k_strides", POINTER(Strides)),
        ("v_strides", POINTER(Strides)),
        ("out_strides", POINTER(Strides)),
    ]


class Inputs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("query_lengths", c_void_p),
        ("key_lengths", c_void_p),
        ("query_offsets", c_void_p),
        ("key_offsets", c_void_p),
        ("clusters", c_void_p),
        ("state", c_void_p),
        ("key_bias", c_void_p),
        ("key_bias_strides", POINTER(Strides)),
        ("bias", c_void_p),
        ("mask", c_void_p),
        ("bias_strides", POINTER(PairStrides)),
        ("mask_strides", POINTER(PairStrides)),
        ("dropout_seed", c_uint64),
    ]


class GradientPointers(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("out", c_void_p),
        ("dout", c_void_p),
        ("dq", c_void_p),
        ("dk", c_void_p),
        ("dv", c_void_p),
        ("dbias", c_void_p),
        ("dkey_bias", c_void_p),
    ]


class Error(ctypes.Structure):
    _fields_ = [
        ("samples", c_int64),
        ("relative_error", c_double),
        ("largest_error", c_double),
        ("centred_error", c_double),
    ]


STRUCTURES = {
    "shoal_options": Options,
    "shoal_attention": Attention,
    "shoal_kind_info": KindRow,
    "shoal_strides": Strides,
    "shoal_pair_strides": PairStrides,
    "shoal_problem": Problem,
    "shoal_inputs": Inputs,
    "shoal_gradients": GradientPointers,
    "shoal_error": Error,
}

SIGNATURES = {
    "shoal_version": (c_char_p, []),
    "shoal_status_text": (c_char_p, [c_int]),
    "shoal_context_create": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "shoal_context_destroy": (None, [c_void_p]),
    "shoal_context_message": (c_char_p, [c_void_p]),
    "shoal_context_threads": (c_int, [c_void_p]),
    "shoal_context_borrow_threads": (c_int, [c_void_p, c_void_p, c_void_p]),
    "shoal_context_isa": (c_char_p, [c_void_p]),
    "shoal_kind_describe": (POINTER(KindRow), [c_int]),
    "shoal_attention_parse": (c_int, [c_void_p, c_char_p, POINTER(Attention)]),
    "shoal_attention_print": (c_size_t, [POINTER(Attention), c_char_p, c_size_t]),
    "shoal_attention_print_all": (c_size_t, [POINTER(Attention), c_char_p, c_size_t]),
    "shoal_plan_create": (
        c_int,
        [c_void_p, POINTER(Problem), POINTER(Attention), c_uint, POINTER(c_void_p)],
    ),
    "shoal_plan_destroy": (None, [c_void_p]),
    "shoal_plan_workspace": (c_size_t, [c_void_p]),
    "shoal_plan_state_size": (c_size_t, [c_void_p]),
    "shoal_forward": (c_int, [c_void_p, POINTER(Inputs), c_void_p]),
    "shoal_dropout_factor": (c_float, [c_float, c_uint64, c_int64, c_int64, c_int64]),
    "shoal_backward": (c_int, [c_void_p, POINTER(Inputs), POINTER(GradientPointers)]),
    "shoal_plan_clusters": (c_void_p, [c_void_p, c_void_p]),
    "shoal_plan_top_keys": (c_void_p, [c_void_p, c_void_p]),
    "shoal_plan_picked": (c_int, [c_void_p, c_void_p, POINTER(Attention)]),
    "shoal_error_estimate": (
        c_int,
        [c_void_p, POINTER(Inputs), c_void_p, c_int64, c_uint64, POINTER(Error)],
    ),
}


def library_path() -> Path:
    """The library that came in the wheel, the one that SHOAL_LIBRARY names, or, where
    the package carries none, the system's."""
    chosen = os.environ.get("SHOAL_LIBRARY")
    if chosen:
        return Path(chosen)
    suffix = "dylib" if sys.platform == "darwin" else "so"
    beside = Path(__file__).parent / f"libshoal.{suffix}"
    # In an editable install this file is in the source tree and the library where
    # packages are installed; the package's path has both.
    folders = map(Path, sys.modules[__package__].__path__)
    found = (folder / beside.name for folder in (beside.parent, *folders))
    return next((path for path in found if path.exists()), Path(system_name("libshoal")))


def system_name(library: str) -> str:
    """How the dynamic linker knows an installed library."""
    return f"{library}.so.{INTERFACE[0]}"


def _set_signatures(library: ctypes.CDLL, signatures: dict[str, Any]) -> None:
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"shoal: cannot load {path} ({error}); install the package with "
            "`pip install .`, or set SHOAL_LIBRARY to a built libshoal"
        ) from error
    _set_signatures(library, SIGNATURES)
    return library


def load_part(part: str, who: str, signatures: dict[str, Any]) -> ctypes.CDLL:
    """Loads libshoal-PART, which depends on libshoal: the one named by
    SHOAL_PART_LIBRARY, the one beside libshoal, or the system's; `who` needs it.
    """
    variable = f"SHOAL_{part.upper()}_LIBRARY"
    chosen = os.environ.get(variable)
    beside = str(library_path().with_name(f"libshoal-{part}.so"))
    system = system_name(f"libshoal-{part}")
    why = ""
    for path in [chosen] if chosen else [beside, system]:
        try:
            library = ctypes.CDLL(path)
            break
        except OSError as error:
            why = str(error)
    else:
        raise ImportError(
            f"{who} needs libshoal-{part} ({why}): install it, or set {variable} to a "
            f"built libshoal-{part}.so"
        )
    _set_signatures(library, signatures)
    return library


def _check_interface(library: ctypes.CDLL) -> str:
    """Checks that the library has the version and structure sizes of this package."""
    version: str = library.shoal_version().decode()
    if tuple(int(part) for part in version.split(".")[:2]) != INTERFACE:
        raise ImportError(
            f"shoal: {library_path()} is version {version}, but this package needs "
            f"{INTERFACE[0]}.{INTERFACE[1]}: install both from the same source"
        )
    room = ctypes.create_string_buffer(b"\xaa" * 256, 256)
    parsed = ctypes.cast(room, POINTER(Attention)).contents
    text = b"i-clustered-7:topk=5,seed=9"
    status = library.shoal_attention_parse(None, text, ctypes.byref(parsed))
    untouched = room.raw[ctypes.sizeof(Attention) :].strip(b"\xaa") == b""
    if (
        status != OK
        or not untouched
        or (parsed.clusters, parsed.topk, parsed.seed) != (7, 5, 9)
    ):
        raise ImportError(
            f"shoal: {library_path()} does not have the structures of this "
            "package: install both from the same source"
        )
    return version


lib = _load()
version = _check_interface(lib)


def kind_rows() -> list[KindRow]:
    """Properties of all kinds, in the order of shoal_kind."""
    rows: list[KindRow] = []
    while row := lib.shoal_kind_describe(len(rows)):
        rows.append(row.contents)
    return rows


def raise_status(status: int, context: int | None) -> None:
    """Raises the error of a status that is not OK, with the context's message."""
    message = lib.shoal_context_message(context).decode() if context else ""
    message = message or lib.shoal_status_text(status).decode()
    if status == NO_MEMORY:
        raise MemoryError(f"shoal: {message}")
    if status == IO:
        raise OSError(f"shoal: {message}")
    raise ShoalError(message)
