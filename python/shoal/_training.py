"""Shared by training and evaluation: a context, and progress."""

from __future__ import annotations

import math
import operator
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from typing import Any, Union

from . import _checked
from ._native import IO, NO_MEMORY, Options, ShoalError
from ._train_native import CANCEL, CANCELLED, EVENTS, MESSAGE, PROGRESS, Callbacks
from ._train_native import Progress, Score, State

Event = dict[str, Any]
Watching = Union[bool, Callable[[Event], object]]


def setting(name: str, value: Any) -> bytes:
    """The value of a field as text; the library validates it."""
    if isinstance(value, str):
        return _checked.text(name, value)
    if isinstance(value, bool):
        return b"true" if value else b"false"
    try:
        return str(operator.index(value)).encode()
    except TypeError:
        return repr(_checked.number(name, value)).encode()


def score_of(score: Score) -> Event:
    """A score as a dictionary."""
    found = {"loss": score.loss, "accuracy": score.accuracy}
    if score.metric:
        found[score.metric.decode()] = score.accuracy
    if score.second:
        found[score.second.decode()] = score.second_value
    found = {name: value for name, value in found.items() if not math.isnan(value)}
    return {**found, "correct": score.correct, "counted": score.counted}


def state_of(state: State) -> Event:
    return {row[0]: getattr(state, row[0]) for row in State._fields_}


class Session:
    """A context of a library, for one call."""

    def __init__(self, library: Any, threads: int | None) -> None:
        self.lib, self.context = library, c_void_p()
        options = Options(threads=_checked.threads(threads))
        self.check(library.shoal_context_create(byref(options), byref(self.context)))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *what: object) -> None:
        self.lib.shoal_context_destroy(self.context)

    def check(self, status: int) -> None:
        if status == 0:
            return
        message = self.lib.shoal_context_message(self.context) if self.context else b""
        text = (message or b"").decode("utf-8", "replace") or f"status {status}"
        if status == NO_MEMORY:
            raise MemoryError(text)
        raise OSError(text) if status == IO else ShoalError(text)


class Watcher:
    """Progress is shown by tqdm, if it is installed, or passed to the caller's function.
    Ctrl-C and exceptions of that function end the call, and are raised when it is over:
    for a training, after its checkpoint.
    """

    def __init__(self, watching: Watching, name: str) -> None:
        self.tell: Callable[[Event], object] | None = None
        self.bars: Any = None
        if callable(watching):
            self.tell = watching
        elif watching:
            self.bars = _bars()
        self.name = name
        self.label = ""  # of the bar
        self.bar: Any = None
        self.error: BaseException | None = None
        self.interrupted = False
        self._kept = (
            PROGRESS(self._guarded(self._progress)),
            MESSAGE(self._guarded(self._message)),
            CANCEL(self._cancelled),
        )
        self.callbacks = Callbacks(None, *self._kept)

    def _guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """No exception may pass through C."""

        def run(_: object, *arguments: Any) -> None:
            if self.error is None:
                try:
                    call(*arguments)
                except BaseException as error:
                    self.error = error

        return run

    def _cancelled(self, _: object) -> int:
        return int(self.interrupted or self.error is not None)

    def _message(self, text: bytes) -> None:
        warnings.warn(text.decode("utf-8", "replace"), stacklevel=2)

    def _progress(self, pointer: Any) -> None:
        progress: Progress = pointer.contents
        if self.tell is not None:
            self.tell(_event(progress))
        elif self.bars is not None:
            self._show(progress)

    def _show(self, progress: Progress) -> None:
        event = EVENTS[progress.event]
        label = progress.what.decode("utf-8", "replace") if progress.what else self.name
        if event == "end":
            self._end_bar()
        elif progress.all > 0 and event in ("data", "begin", "step", "evaluation"):
            if self.bar is None or self.label != label:
                self._end_bar()
                self.label, self.bar = label, self.bars(total=progress.all, desc=label)
            if event == "step" and progress.step:
                step = progress.step.contents
                self.bar.set_postfix(
                    loss=f"{step.score.loss:.4g}",
                    rate=f"{step.learning_rate:.3g}",
                    refresh=False,
                )
            self.bar.update(progress.done - self.bar.n)

    def _end_bar(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ctrl-C is recorded while C works and raised afterwards."""
        here = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if here else None

        def note(_: int, __: object) -> None:
            self.interrupted = True

        # A handler set by the caller is not replaced.
        ours = before is signal.default_int_handler
        if ours:
            signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            if ours:
                signal.signal(signal.SIGINT, before)
            self._end_bar()

    def check(self, session: Session, status: int) -> None:
        """Raises the exception that ended the call."""
        if self.error is not None:
            raise self.error
        if self.interrupted and status in (0, CANCELLED):
            raise KeyboardInterrupt
        session.check(status)


def _bars() -> Any:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    return tqdm


def _event(progress: Progress) -> Event:
    """The event as a dictionary owned by the caller."""
    found: Event = {"event": EVENTS[progress.event]}
    if progress.what:
        found["what"] = progress.what.decode("utf-8", "replace")
    found.update(done=progress.done, all=progress.all, elapsed=progress.elapsed)
    if progress.state:
        state = progress.state.contents
        found.update(step=state.step, best=state.best, best_step=state.best_step)
    if progress.step and found["event"] == "step":
        step = progress.step.contents
        found.update(
            score_of(step.score),
            gradient_norm=step.gradient_norm,
            learning_rate=step.learning_rate,
        )
    if progress.validation:
        found.update(
            ("validation_" + name, value)
            for name, value in score_of(progress.validation.contents).items()
        )
    return found
