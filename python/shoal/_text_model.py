"""Text models fine-tuned on GLUE or SQuAD (libshoal-train)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Union

import numpy as np

from . import _checked
from ._engine import parse, refuse_kind, spell
from ._handle import LibraryHandle
from ._native import ShoalError
from ._train_native import AnswerParts, TextParts, load_train

Text = Union[str, tuple[str, str]]


@dataclass
class Answer:
    """Characters begin to end of a context, which answer a question; "" if there is no
    answer. Scores are comparable within one model.
    """

    text: str
    score: float
    begin: int
    end: int


class TextModel(LibraryHandle):
    """A BERT or RoBERTa from a run of shoal.train.glue or squad.

    >>> model = shoal.TextModel("runs/rte")  # doctest: +SKIP
    >>> model.classify([("It rains.", "The streets are wet.")])  # doctest: +SKIP
    ['entailment']
    >>> shoal.TextModel("runs/squad").answer("Who?", "It was Ann.")  # doctest: +SKIP

    `attention` selects another kind than the one used in training. Threads that share a
    model wait for each other.
    """

    __module__ = "shoal"
    _what = "the model"
    _close_function = "shoal_finetuned_destroy"

    def __init__(
        self,
        path: str | os.PathLike[str],
        attention: str | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        if attention is not None:
            refuse_kind(attention)
        encoded = _checked.path("path", path)
        self._open(load_train("shoal.TextModel"), threads)
        kind = None if attention is None else byref(parse(attention))
        self._check(
            self._lib.shoal_finetuned_open(
                self._context, encoded, kind, byref(self._native)
            )
        )
        info = self._lib.shoal_finetuned_describe(self._native).contents
        self.task: str = info.task.decode()
        self.dataset: str = info.dataset.decode()
        self.path = os.fsdecode(info.path)
        self.step: int = info.step
        self.trained_with = spell(info.attention)
        # : Names of the classes; empty for a regression model (STS-B).
        self.classes: list[str] = []
        if self.task == "glue" and info.classes > 1:
            self.classes = [
                self._lib.shoal_finetuned_class(self._native, i).decode()
                for i in range(info.classes)
            ]
        self._outputs: int = max(info.classes, 1)

    def logits(self, texts: Sequence[Text]) -> np.ndarray:
        """float32 [texts, classes] for texts, or for pairs if the dataset has pairs."""
        if self.task != "glue":
            raise ShoalError(f"a model of {self.dataset} answers questions: use answer")
        if isinstance(texts, (str, bytes)):
            raise ShoalError("texts is one string: it must be a list")
        rows = (TextParts * len(texts))()
        for i, text in enumerate(texts):
            pair = (text,) if isinstance(text, str) else tuple(text)
            if len(pair) not in (1, 2):
                raise ShoalError(f"texts[{i}] has {len(pair)} parts: it must be a pair")
            encoded = [_checked.any_text(f"texts[{i}]", part) for part in pair]
            rows[i].size = ctypes.sizeof(TextParts)
            rows[i].text, rows[i].bytes = encoded[0], len(encoded[0])
            if len(encoded) == 2:
                rows[i].pair, rows[i].pair_bytes = encoded[1], len(encoded[1])
        found = np.empty((len(texts), self._outputs), np.float32)
        with self._turn():
            self._check(
                self._lib.shoal_finetuned_classify(
                    self._native, len(texts), rows, found.ctypes.data
                )
            )
        return found

    def classify(self, texts: Sequence[Text]) -> list[str] | list[float]:
        """The most probable class of each text or pair; for STS-B a number."""
        logits = self.logits(texts)
        if not self.classes:
            return [float(x) for x in logits[:, 0]]
        return [self.classes[i] for i in logits.argmax(axis=1)]

    def answer(self, question: str, context: str) -> Answer:
        """Finds the part of the context that answers the question."""
        if self.task != "squad":
            raise ShoalError(f"a model of {self.dataset} classifies: use classify")
        asked = _checked.text("question", question)
        encoded = _checked.text("context", context)
        found = AnswerParts()
        with self._turn():
            self._check(
                self._lib.shoal_finetuned_answer(
                    self._native, asked, encoded, byref(found)
                )
            )
            text = (found.text or b"").decode("utf-8", "replace")
        begin = len(encoded[: found.begin].decode("utf-8", "replace"))
        end = len(encoded[: found.end].decode("utf-8", "replace"))
        return Answer(text, found.score, begin, end)
