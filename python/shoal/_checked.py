"""Conversion of Python values to C; invalid values raise errors that name the argument.

ctypes silently reduces integers modulo their width and ends strings at a zero byte.
"""

from __future__ import annotations

import math
import operator
import os
from typing import Any

from ._native import ShoalError

INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1
UINT64 = (1 << 64) - 1
THREADS = 4096


def integer(name: str, value: Any, low: int, high: int) -> int:
    """An integer from low to high."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ShoalError(
            f"{name} is {value!r}: it must be an integer from {low} to {_power(high)}"
        ) from None
    if not low <= number <= high:
        raise ShoalError(f"{name} is {number}: it must be from {low} to {_power(high)}")
    return number


def _power(number: int) -> str:
    """2^63 - 1 is more readable than its digits."""
    bits = number.bit_length()
    return f"2^{bits} - 1" if bits > 16 and number == (1 << bits) - 1 else str(number)


def count(name: str, value: Any) -> int:
    """0 or more, within a C int."""
    return integer(name, value, 0, INT32)


def size(name: str, value: Any) -> int:
    """0 or more, within an int64_t."""
    return integer(name, value, 0, INT64)


def seed(name: str, value: Any) -> int:
    """Within a uint64_t."""
    return integer(name, value, 0, UINT64)


def threads(value: Any) -> int:
    """Threads of a context; None and 0 mean one per processor."""
    return 0 if value is None else integer("threads", value, 0, THREADS)


def number(name: str, value: Any) -> float:
    """A finite number."""
    try:
        real = float(value)
    except (TypeError, ValueError, OverflowError):
        real = math.nan
    if not math.isfinite(real) or isinstance(value, (str, bytes)):
        raise ShoalError(f"{name} is {value!r}: it must be a finite number")
    return real


def any_text(name: str, value: Any) -> bytes:
    """A UTF-8 string for functions that take its length; it may contain zero bytes."""
    if not isinstance(value, str):
        raise ShoalError(f"{name} is a {type(value).__name__}: it must be a string")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ShoalError(f"{name} cannot be encoded as UTF-8: {error}") from None


def text(name: str, value: Any) -> bytes:
    """A UTF-8 string terminated by a zero byte, which it must not contain."""
    encoded = any_text(name, value)
    if b"\0" in encoded:
        raise ShoalError(f"{name} contains a zero byte")
    return encoded


def optional_text(name: str, value: Any) -> bytes | None:
    """None and "" become NULL."""
    return text(name, value) if value is not None and value != "" else None


def path(name: str, value: Any) -> bytes:
    """A path."""
    try:
        encoded = os.fsencode(value)
    except TypeError:
        raise ShoalError(
            f"{name} is a {type(value).__name__}: it must be a path"
        ) from None
    if b"\0" in encoded:
        raise ShoalError(f"{name} contains a zero byte")
    return encoded


def choice(name: str, value: Any, words: tuple[str, ...]) -> int:
    """The index of a word."""
    if value not in words:
        raise ShoalError(f"{name} is {value!r}: it must be one of {', '.join(words)}")
    return words.index(value)
