"""The one base of everything that owns memory of the C library and may be shared.

A C handle is for one thread at a time. Calls on one Python object take turns (or are
refused, where waiting could be for ever), `close` takes its turn too, and after a fork
the child's copy is refused: the threads of its context stayed with the parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from typing import Any

from . import _checked
from ._native import NO_MEMORY, Options, ShoalError


class Handle:
    """An object whose calls take turns.

    Subclasses call `_start`, work within `with self._turn()`, and give memory back in
    `_free`.
    """

    _what = "the object"  # for messages
    _waits = True  # for its turn; False: a busy object refuses
    _busy_message = "it is in use"

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._in_use_by: int | None = None  # a thread
        self._closed = False

    def _after_fork(self) -> None:
        """What a forked child does with its parent's object."""
        raise ShoalError(
            f"{self._what} was opened before this process was forked: open it again here"
        )

    def _free(self) -> None:
        """Gives memory back; called once, when nothing is in use."""

    def _take(self) -> None:
        if self._process != os.getpid():
            self._after_fork()
        if self._in_use_by == threading.get_ident() and self._waits:
            raise ShoalError(
                f"{self._what} is in use by this very thread: a callback or signal "
                "handler cannot use it"
            )
        if not self._lock.acquire(blocking=self._waits):
            raise ShoalError(f"{self._what} is busy: {self._busy_message}")
        if self._closed:
            self._lock.release()
            raise ShoalError(f"{self._what} is closed")
        self._in_use_by = threading.get_ident()

    def _give_back(self) -> None:
        self._in_use_by = None
        self._lock.release()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Within the block the object is open, and this thread's."""
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def close(self) -> None:
        """Gives memory back; afterwards every call is refused. Waits for calls of other
        threads. A second call does nothing."""
        if self._closed or self._process != os.getpid():
            return
        try:
            self._take()
        except ShoalError:
            if self._closed:  # by another thread, meanwhile
                return
            raise
        try:
            self._closed = True
            self._free()
        finally:
            self._give_back()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, error: object, *what: object) -> None:
        try:
            self.close()
        except ShoalError:  # busy: not instead of what ended the block
            if error is None:
                raise

    def __del__(self) -> None:
        # No other thread can have it any more. A child of a fork leaves the memory alone.
        if not getattr(self, "_closed", True) and self._process == os.getpid():
            self._closed = True
            self._free()


class LibraryHandle(Handle):
    """Owns a context of a library that stands on libshoal, and what it opened."""

    _close_function = ""  # of the library

    def _open(self, library: Any, threads: Any) -> None:
        """Makes the context; what is opened with it goes to self._native."""
        self._lib = library
        self._context, self._native = c_void_p(), c_void_p()
        count = _checked.threads(threads)
        self._start()
        self._check(
            self._lib.shoal_context_create(
                byref(Options(threads=count)), byref(self._context)
            )
        )

    def _free(self) -> None:
        if self._native:
            getattr(self._lib, self._close_function)(self._native)
        if self._context:
            self._lib.shoal_context_destroy(self._context)
        self._native, self._context = c_void_p(), c_void_p()

    def _check(self, status: int) -> None:
        """Raises what a status means; in a turn, since the message is the context's."""
        if status == 0:
            return
        message = self._lib.shoal_context_message(self._context) if self._context else b""
        text = (message or b"").decode("utf-8", "replace") or f"status {status}"
        raise MemoryError(text) if status == NO_MEMORY else ShoalError(text)
