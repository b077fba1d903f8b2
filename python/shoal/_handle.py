"""Base class of objects that own memory of the C library and may be shared.

A C handle is for one thread at a time. Calls on one Python object wait for each other (or
raise an error, if they could wait forever), as does `close`. After a fork the child's
copy is rejected: the threads of its context exist only in the parent.
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
    """An object whose calls exclude each other.

    Subclasses call `_start`, work within `with self._turn()`, and release memory in
    `_free`.
    """

    _what = "the object"  # for messages
    _waits = True  # False: an error is raised if the object is busy
    _busy_message = "it is in use"

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._in_use_by: int | None = None  # a thread
        self._closed = False

    def _after_fork(self) -> None:
        """Called in a forked child for an object of its parent."""
        raise ShoalError(
            f"{self._what} was opened before this process was forked: open it again"
        )

    def _free(self) -> None:
        """Releases memory; called once, when the object is not in use."""

    def _take(self) -> None:
        if self._process != os.getpid():
            self._after_fork()
        if self._in_use_by == threading.get_ident() and self._waits:
            raise ShoalError(
                f"{self._what} is in use by this thread: a callback or signal handler "
                "cannot use it"
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
        """Within the block the object is open and reserved for this thread."""
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def close(self) -> None:
        """Releases memory; later calls raise an error. Waits for calls of other threads.
        A second call does nothing.
        """
        if self._closed or self._process != os.getpid():
            return
        try:
            self._take()
        except ShoalError:
            if self._closed:  # by another thread in the meantime
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
        except ShoalError:  # busy; keeps the exception that ended the block
            if error is None:
                raise

    def __del__(self) -> None:
        # No other thread can have a reference. A forked child does not free the memory.
        if not getattr(self, "_closed", True) and self._process == os.getpid():
            self._closed = True
            self._free()


class LibraryHandle(Handle):
    """Owns a context of a library above libshoal, and the object opened with it."""

    _close_function = ""  # of the library

    def _open(self, library: Any, threads: Any) -> None:
        """Creates the context; the object opened with it is stored in self._native."""
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
        """Raises the error of a status; requires the turn, since the message is the
        context's.
        """
        if status == 0:
            return
        message = self._lib.shoal_context_message(self._context) if self._context else b""
        text = (message or b"").decode("utf-8", "replace") or f"status {status}"
        raise MemoryError(text) if status == NO_MEMORY else ShoalError(text)
