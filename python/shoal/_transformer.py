"""A plain transformer trained on arrays: its logits and its score."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ctypes import byref, c_float, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from . import _checked
from ._engine import parse, refuse_kind, spell
from ._handle import LibraryHandle
from ._native import ShoalError, load_part
from ._train_arrays import EVERY, Sequences, classes_of
from ._train_native import OF_MODELS, POOLING, Loss, ModelConfig, ModelInputs

BATCH = 64  # maximum number of sequences per batch


class Transformer(LibraryHandle):
    """A transformer encoder from a run (shoal.train.arrays), or from a file of its
    weights.

    >>> import numpy as np, shoal, tempfile
    >>> tokens = np.random.default_rng(0).integers(5, size=(200, 12))
    >>> # The class of a sequence is its first token.
    >>> with tempfile.TemporaryDirectory() as out:  # doctest: +SKIP
    ...     model = shoal.Transformer.fit(tokens, tokens[:, 0], out, pooling="first")
    ...     model.predict(tokens).shape
    (200, 5)

    `attention` selects another kind than the one used in training; `rows` is the number
    of positions per batch. Threads that share a model wait for each other.
    """

    __module__ = "shoal"
    _what = "the model"
    _close_function = "shoal_model_destroy"

    def __init__(
        self,
        path: str | os.PathLike[str],
        attention: str | None = None,
        *,
        rows: int = 8192,
        threads: int | None = None,
    ) -> None:
        if attention is not None:
            refuse_kind(attention)
        file = Path(path)
        if file.is_dir():
            best = file / "best.safetensors"
            file = best if best.exists() else file / "checkpoint.safetensors"
        encoded = _checked.path("path", file)
        rows = _checked.integer("rows", rows, 1, 1 << 40)
        self._open(load_part("models", "shoal.Transformer", OF_MODELS), threads)
        config, seed, checkpoint = ModelConfig(), c_uint64(), c_void_p()
        library = self._lib
        self._check(
            library.shoal_checkpoint_open(self._context, encoded, byref(checkpoint))
        )
        try:
            self._check(
                library.shoal_checkpoint_config(checkpoint, byref(config), byref(seed))
            )
            if attention is not None:
                config.attention = parse(attention)
            self._rows = max(rows, config.max_length)
            self._check(library.shoal_checkpoint_fits(checkpoint, byref(config)))
            self._check(
                library.shoal_model_create(
                    self._context,
                    byref(config),
                    seed,
                    BATCH,
                    self._rows,
                    0,
                    byref(self._native),
                )
            )
            self._check(library.shoal_checkpoint_load_average(checkpoint, self._native))
        finally:
            library.shoal_checkpoint_destroy(checkpoint)
        self.attention = spell(config.attention)
        self.outputs: int = config.outputs
        self.max_length: int = config.max_length
        self.pooling = POOLING[config.pooling]
        self._config = config

    @classmethod
    def fit(
        cls, x: Any, y: Any, out: str | os.PathLike[str], *arguments: Any, **options: Any
    ) -> Transformer:
        """Trains on arrays in the folder `out`, like shoal.train.arrays, and opens the
        result.
        """
        from .train import arrays

        run = arrays(x, y, out, *arguments, **options)
        return cls(run.path, threads=options.get("threads"))

    def _batches(self, x: Sequences) -> Iterator[tuple[np.ndarray, ModelInputs, Any]]:
        """(sequences, their inputs, indices of their rows)."""
        if x.is_tokens == (self._config.features > 0):
            wanted = "features" if self._config.features > 0 else "tokens"
            raise ShoalError(f"x has no {wanted}, which the model needs")
        if not x.is_tokens and x.rows.shape[1] != self._config.features:
            raise ShoalError(
                f"x has {x.rows.shape[1]} features: the model needs "
                f"{self._config.features}"
            )
        first = 0
        while first < len(x):
            last = int(np.searchsorted(x.offsets, x.offsets[first] + self._rows, "right"))
            last = max(first + 1, min(last - 1, first + BATCH))
            which = np.arange(first, last)
            rows, offsets, numbers = x.select(which)
            inputs = ModelInputs()
            x.fill(inputs, rows, offsets)
            yield which, inputs, (rows, offsets, numbers)
            first = last

    def _forward(self, inputs: ModelInputs) -> c_void_p:
        out = c_void_p()
        self._check(
            self._lib.shoal_model_forward(self._native, byref(inputs), byref(out))
        )
        return out

    def predict(self, x: Any) -> Any:
        """Logits: [sequences, outputs] with pooling; else [sequences, length, outputs],
        or if x is a list, a list of [length, outputs].
        """
        packed = Sequences(x)
        pooled = self._config.pooling != EVERY
        rows = len(packed) if pooled else int(packed.offsets[-1])
        found = np.empty((rows, self.outputs), np.float32)
        with self._turn():
            for which, inputs, (_, _, numbers) in self._batches(packed):
                out = self._forward(inputs)
                own = which if pooled else numbers
                room = (c_float * (len(own) * self.outputs)).from_address(out.value or 0)
                found[own] = np.ctypeslib.as_array(room).reshape(len(own), self.outputs)
        if pooled:
            return found
        if isinstance(x, np.ndarray):
            return found.reshape(len(packed), -1, self.outputs)
        return np.split(found, packed.offsets[1:-1])

    def score(self, x: Any, y: Any) -> dict[str, float]:
        """loss (mean cross-entropy), accuracy, correct and counted; y as in training."""
        packed = Sequences(x)
        pooling = self._config.pooling
        classes = classes_of(y, packed, pooling)
        total, counted, correct = 0.0, 0, 0
        with self._turn():
            for which, inputs, (_, _, numbers) in self._batches(packed):
                out = self._forward(inputs)
                targets = np.ascontiguousarray(
                    classes[numbers if pooling == EVERY else which]
                )
                loss = Loss()
                self._check(
                    self._lib.shoal_cross_entropy(
                        self._context,
                        len(targets),
                        self.outputs,
                        out,
                        targets.ctypes.data,
                        None,
                        byref(loss),
                    )
                )
                total += loss.mean * loss.counted
                counted, correct = counted + loss.counted, correct + loss.correct
        nothing = float("nan")
        return {
            "loss": total / counted if counted else nothing,
            "accuracy": correct / counted if counted else nothing,
            "correct": correct,
            "counted": counted,
        }
