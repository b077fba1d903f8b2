"""A task of libshoal-train on numpy arrays: sequences and their classes."""

from __future__ import annotations

import hashlib
from ctypes import POINTER, addressof, byref, c_void_p, cast, pointer, sizeof
from typing import Any

import numpy as np

from . import _checked
from ._native import INVALID, ShoalError
from ._train_native import BEST, EPOCHS, FOR_MODEL, IGNORED, TASK_BATCH, TASK_CLOSE
from ._train_native import TASK_DEFAULTS, TASK_OPEN, TASK_STEP, TRAIN, VALIDATE_EVERY
from ._train_native import Counts, FieldRow, Loss, ModelInputs, Share, Sizes, Task
from ._train_native import TrainConfig, load_train

EVERY = 0  # of pooling
TEXT = 5  # a shoal_field_type


class Sequences:
    """The rows of all sequences, concatenated."""

    def __init__(self, x: Any, name: str = "x") -> None:
        given = x if isinstance(x, np.ndarray) and x.ndim > 1 else list(x)
        parts = [np.asarray(part) for part in given]
        if not parts or any(part.ndim != parts[0].ndim for part in parts):
            raise ShoalError(
                f"{name} must be at least one sequence, all with the same number of axes"
            )
        axes = parts[0].ndim
        if axes not in (1, 2) or any(len(part) == 0 for part in parts):
            raise ShoalError(
                f"{name} must be nonempty sequences of tokens, [length], or of features, "
                "[length, features]"
            )
        self.is_tokens = axes == 1
        if self.is_tokens:
            self.rows = _int32(np.concatenate(parts), name)
            if self.rows.min() < 0:
                raise ShoalError(f"{name} has a token below 0")
        else:
            if len({part.shape[1] for part in parts}) != 1:
                raise ShoalError(f"{name}'s sequences have different numbers of features")
            self.rows = np.concatenate(parts).astype(np.float32)
            if not np.isfinite(self.rows).all():
                raise ShoalError(f"{name} has values that are not finite")
        lengths = np.array([len(part) for part in parts], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.longest = int(lengths.max())

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def select(self, which: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, offsets, indices of these rows) of some sequences."""
        begins, ends = self.offsets[which], self.offsets[np.asarray(which) + 1]
        numbers = np.concatenate([np.arange(a, b) for a, b in zip(begins, ends)])
        offsets = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64)
        return np.ascontiguousarray(self.rows[numbers]), offsets, numbers

    def fill(self, inputs: ModelInputs, rows: np.ndarray, offsets: np.ndarray) -> None:
        inputs.batch, inputs.offsets = len(offsets) - 1, offsets.ctypes.data
        if self.is_tokens:
            inputs.tokens = rows.ctypes.data
        else:
            inputs.features = rows.ctypes.data


def _int32(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iub":
        raise ShoalError(f"{name} holds {array.dtype}: it must hold integers")
    if array.size and (array.min() < -(1 << 31) or array.max() >= 1 << 31):
        raise ShoalError(f"{name} holds numbers beyond 32 bits")
    return np.ascontiguousarray(array, np.int32)


def classes_of(y: Any, x: Sequences, pooling: int, name: str = "y") -> np.ndarray:
    """int32: a class for every row, or with pooling for every sequence."""
    if pooling != EVERY:
        found = _int32(y, name)
        if found.shape != (len(x),):
            raise ShoalError(f"{name} has shape {found.shape}: it must be ({len(x)},)")
        return found
    parts = [np.asarray(part) for part in y]
    lengths = [len(part) if part.ndim == 1 else -1 for part in parts]
    if lengths != np.diff(x.offsets).tolist():
        raise ShoalError(f"{name} must have one class for every position of x")
    return _int32(np.concatenate(parts), name)


class ArraysTask:
    """The task, and its arrays while it runs. `pointer` is passed to the library."""

    def __init__(
        self,
        x: Any = None,
        y: Any = None,
        validation: Any = 0.1,
        pooling: int = EVERY,
        vocabulary: int | None = None,
        outputs: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self.error: BaseException | None = None
        self.pooling = pooling
        self.lib = load_train("shoal.train.arrays")
        if x is not None:
            self._take(x, y, validation, vocabulary, outputs, max_length)
        self._kept: tuple[Any, ...] = ()  # arrays of the last batch
        self._order: tuple[int, np.ndarray] = -1, np.empty(0, np.int64)
        self._fields = (FieldRow * 2)(  # terminated by a row without a name
            FieldRow(
                name=b"data",
                type=TEXT,
                offset=TrainConfig.data.offset,
                about=b"a fingerprint of the arrays",
            )
        )
        self.task = Task(
            name=b"arrays",
            config_size=sizeof(TrainConfig),
            fields=addressof(self._fields),
            flags=FOR_MODEL | EPOCHS | VALIDATE_EVERY | BEST,
            defaults=TASK_DEFAULTS(self._defaults),
            open=TASK_OPEN(self._open),
            close=TASK_CLOSE(lambda _: None),
            batch=TASK_BATCH(self._batch),
            step=TASK_STEP(self._step),
        )
        self.pointer = pointer(self.task)

    def _take(
        self,
        x: Any,
        y: Any,
        validation: Any,
        vocabulary: int | None,
        outputs: int | None,
        max_length: int | None,
    ) -> None:
        self.x = self.held_x = Sequences(x)
        self.y = self.held_y = classes_of(y, self.x, self.pooling)
        everything = np.arange(len(self.x))
        if isinstance(validation, (tuple, list)):
            self.held_x = Sequences(validation[0], "validation[0]")
            self.held_y = classes_of(
                validation[1], self.held_x, self.pooling, "validation[1]"
            )
            if self.held_x.is_tokens != self.x.is_tokens or (
                self.held_x.rows.shape[1:] != self.x.rows.shape[1:]
            ):
                raise ShoalError("validation[0] must have the same form as x")
            self.own, self.held = everything, np.arange(len(self.held_x))
        else:
            share = _checked.number("validation", validation)
            count = max(1, round(share * len(self.x)))
            if not 0 < share < 1 or count >= len(self.x):
                raise ShoalError(
                    f"validation is {validation!r}: it must be (x, y), or a share of the "
                    "sequences between 0 and 1 that leaves some for training"
                )
            drawn = np.random.RandomState([len(self.x), 7]).permutation(len(self.x))
            self.held, self.own = np.sort(drawn[:count]), np.sort(drawn[count:])
        self.vocabulary = 0
        if self.x.is_tokens:
            highest = max(int(self.x.rows.max()), int(self.held_x.rows.max()))
            self.vocabulary = highest + 1 if vocabulary is None else vocabulary
            if _checked.size("vocabulary", self.vocabulary) <= highest:
                raise ShoalError(f"vocabulary is {vocabulary}, but x has token {highest}")
        highest = max(int(self.y.max()), int(self.held_y.max()))
        lowest = min(int(self.y.min()), int(self.held_y.min()))
        self.outputs = highest + 1 if outputs is None else outputs
        if _checked.size("outputs", self.outputs) <= highest or lowest < IGNORED:
            raise ShoalError(
                f"y has classes from {lowest} to {highest}: they must be below outputs "
                f"({self.outputs}), and -1 is the only negative one"
            )
        longest = max(self.x.longest, self.held_x.longest)
        self.max_length = longest if max_length is None else max_length
        if _checked.size("max_length", self.max_length) < longest:
            raise ShoalError(f"max_length is {max_length}, but x has {longest} positions")

    def _fingerprint(self) -> bytes:
        found = hashlib.sha256(bytes([self.pooling]))
        for part in (self.x.rows, self.x.offsets, self.y, self.held):
            found.update(part.tobytes())
        for part in (self.held_x.rows, self.held_x.offsets, self.held_y):
            found.update(part.tobytes())
        return found.hexdigest()[:32].encode()

    # ---- Callbacks of the library; no exception may pass through it
    # ----------------------

    def _fail(self, error: BaseException) -> int:
        self.error = error
        return INVALID

    def _defaults(self, _: Any, preset: bytes | None, config: int) -> int:
        made = cast(config, POINTER(TrainConfig)).contents
        made.steps, made.epochs = 0, 10
        return int(preset is not None)

    def _open(self, _: Any, opening: Any, config: int, data: Any, sizes: Any) -> int:
        try:
            made: TrainConfig = cast(config, POINTER(TrainConfig)).contents
            self.context = opening.contents.context
            self.seed = int(made.seed)
            self.batch = int(made.batch)
            model = made.model
            model.vocabulary, model.outputs = self.vocabulary, self.outputs
            model.features = 0 if self.x.is_tokens else self.x.rows.shape[1]
            model.max_length, model.pooling = self.max_length, self.pooling
            self.in_epoch = -(-len(self.own) // self.batch)
            if made.steps == 0:
                made.steps = made.epochs * self.in_epoch
            made.data = self._fingerprint()
            room: Sizes = sizes.contents
            room.max_batch = self.batch
            room.max_rows = self.batch * self.max_length
            room.validation_batches = -(-len(self.held) // self.batch)
            data[0] = c_void_p(1)  # any non-NULL value; this object does not use it
        except BaseException as error:
            return self._fail(error)
        return 0

    def _which(self, part: int, number: int) -> np.ndarray:
        """Sequences of a batch; training has another order in every epoch."""
        if part != TRAIN:
            first = number * self.batch
            return self.held[first : first + self.batch]
        epoch, number = divmod(number, self.in_epoch)
        if self._order[0] != epoch:
            # The numbers of RandomState never change, so that a run can continue with any
            # numpy.
            words = [self.seed & 0xFFFFFFFF, self.seed >> 32, epoch]
            self._order = epoch, np.random.RandomState(words).permutation(self.own)
        first = number * self.batch
        return self._order[1][first : first + self.batch]

    def _batch(self, _: Any, part: int, number: int, share: Share, inputs: Any) -> int:
        try:
            which = self._which(part, number)
            x, y = (self.x, self.y) if part == TRAIN else (self.held_x, self.held_y)
            rows, offsets, numbers = x.select(which)
            targets = np.ascontiguousarray(y[numbers if self.pooling == EVERY else which])
            self._kept = rows, offsets, targets
            x.fill(inputs.contents, rows, offsets)
        except BaseException as error:
            return self._fail(error)
        return 0

    def _step(self, _: Any, out: int, gradient: int | None, counts: Any) -> int:
        targets, loss = self._kept[2], Loss()
        status: int = self.lib.shoal_cross_entropy(
            self.context,
            len(targets),
            self.outputs,
            out,
            targets.ctypes.data,
            gradient,
            byref(loss),
        )
        counts[0] = Counts(
            loss=loss.mean,
            weight=loss.counted,
            correct=loss.correct,
            counted=loss.counted,
        )
        return status
