"""Training: recognisers, text models, and transformers on numpy arrays.

    run = shoal.train.speech("data", "runs/i100", attention="i-clustered-100", epochs=30)
    run.log[-1]                                     # a dict; pandas.DataFrame(run.log)
    run.evaluate(["full", "i-clustered-100"], data="data/test", controls=True)
    shoal.Recogniser("runs/i100").recognise("talk.flac").text

A training is a run in a folder, with a checkpoint, the best weights and a log. Ctrl-C
ends it after the current step and raises KeyboardInterrupt after saving a checkpoint; the
same call with ``resume=True`` continues, with the same bits as an uninterrupted training.
The library is libshoal-train; ``fields`` lists its fields.
"""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import byref, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from . import _checked
from ._engine import parse, refuse_kind
from ._native import Attention, ShoalError
from ._train_arrays import ArraysTask
from ._train_native import TEXT_SIZE, VALUE_SIZE, CopyConfig, EvaluationOptions
from ._train_native import GlueConfig, RecogniserOptions, RunOptions, RunResult, Setting
from ._train_native import SpeechTrainConfig, SquadConfig, TrainConfig, load_train
from ._training import Event, Session, Watcher, Watching, score_of, setting, state_of

__all__ = ["Evaluation", "Run", "arrays", "copy", "fields", "glue", "speech", "squad"]

CONFIGS: dict[str, Any] = {
    "copy": CopyConfig,
    "speech": SpeechTrainConfig,
    "glue": GlueConfig,
    "squad": SquadConfig,
    "arrays": TrainConfig,
}
FIELDS_SIZE = 1 << 14  # enough bytes for the JSON of any configuration


def _task(library: Any, name: str) -> Any:
    task = library.shoal_task_find(name.encode())
    if not task:
        raise ShoalError(f"libshoal-train was built without the task {name}")
    return task


def _as_dict(library: Any, task: Any, config: Any) -> dict[str, Any]:
    text = create_string_buffer(FIELDS_SIZE)
    library.shoal_config_json(task, byref(config), text, FIELDS_SIZE)
    found: dict[str, Any] = json.loads(text.value)
    return found


def fields(task: str, preset: str | None = None) -> list[dict[str, Any]]:
    """Fields of a task ("copy", "speech", "glue", "squad"): name, default, and a short
    description.
    """
    library = load_train("shoal.train")
    with Session(library, 1) as session:
        found, config = _task(library, task), CONFIGS[task]()
        rows: list[dict[str, Any]] = []
        _defaults(session, found, preset, config)
        text = create_string_buffer(VALUE_SIZE)
        while row := library.shoal_task_field(found, len(rows)):
            name = row.contents.name
            library.shoal_config_get(found, byref(config), name, text, VALUE_SIZE)
            rows.append(
                {
                    "name": name.decode(),
                    "default": text.value.decode(),
                    "about": (row.contents.about or b"").decode(),
                }
            )
    return rows[1:]  # the first is the name of the task


def _defaults(session: Session, task: Any, preset: str | None, config: Any) -> None:
    session.check(
        session.lib.shoal_config_init(
            session.context,
            task,
            _checked.optional_text("preset", preset),
            byref(config),
            ctypes.sizeof(config),
        )
    )


class Evaluation(list[dict[str, Any]]):
    """A row for each kind, then the controls, as dictionaries. `info` describes model and
    data; `predictions` are those of the first kind, for glue and squad.
    """

    info: dict[str, Any]
    predictions: str | None


class Run:
    """A training in a folder: started by the functions of shoal.train, or opened later.

    `result` is the result of the call that trained it, None if it was only opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.result: dict[str, Any] | None = None
        library = load_train("shoal.train.Run")
        name = create_string_buffer(TEXT_SIZE)
        with Session(library, 1) as session:
            session.check(
                library.shoal_run_task(session.context, _checked.path("path", path), name)
            )
        self.task = name.value.decode()

    def __repr__(self) -> str:
        return f"<shoal.train.Run {self.task}: {self.path}>"

    @property
    def log(self) -> list[dict[str, Any]]:
        """A dictionary for every step and every validation, in order."""
        lines = (self.path / "log.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if "step" in row]

    @property
    def config(self) -> dict[str, Any]:
        """Every field of the configuration."""
        library = load_train("shoal.train.Run")
        if self.task not in CONFIGS:
            raise ShoalError(f"{self.path} is a run of the task {self.task}")
        own = ArraysTask() if self.task == "arrays" else None
        with Session(library, 1) as session:
            task = _task(library, self.task) if own is None else own.pointer
            config = CONFIGS[self.task]()
            _defaults(session, task, None, config)
            session.check(
                library.shoal_run_config(
                    session.context, task, os.fsencode(self.path), byref(config)
                )
            )
            return _as_dict(library, task, config)

    def weights(self, *, best: bool = True) -> dict[str, np.ndarray]:
        """The weights by name: the best ones if the run has them, otherwise (or with
        best=False) those of the checkpoint.
        """
        path = self.path / "best.safetensors"
        if not best or not path.exists():
            path = self.path / "checkpoint.safetensors"
        return read_safetensors(path)

    def open(self, attention: str | None = None, **options: Any) -> Any:
        """The trained model: shoal.Recogniser, shoal.TextModel or shoal.Transformer."""
        from ._recogniser import Recogniser
        from ._text_model import TextModel
        from ._transformer import Transformer

        classes = {"speech": Recogniser, "glue": TextModel, "squad": TextModel}
        return classes.get(self.task, Transformer)(self.path, attention, **options)

    def evaluate(
        self,
        kinds: Sequence[str] = (),
        *,
        data: str | os.PathLike[str] | None = None,
        controls: bool = False,
        skip_bad: bool = False,
        batches: int = 20,
        labels: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        join: float | None = None,
        beams: int = 0,
        lexicon: str | None = None,
        lm: str | os.PathLike[str] | None = None,
        tune: str | os.PathLike[str] | None = None,
        progress: Watching = False,
        threads: int | None = None,
    ) -> Evaluation:
        """Evaluates the trained model with other kinds of attention, all on the same
        data.

        `data` is a data folder for speech; for glue and squad it defaults to the dev data
        of the training. `controls` adds uniform attention, no attention, and clustered-1:
        if these are not much worse, the model hardly uses its attention. copy uses
        `batches` new batches. With a lexicon and a language model (`lm`) word errors are
        counted, too; `tune` is a data folder on which their weights are fitted. Use
        shoal.Transformer.score to evaluate a model trained on arrays.
        """
        if self.task == "arrays":
            raise ShoalError(
                "a run on arrays does not store them: use "
                "shoal.Transformer(path, kind).score(x, y)"
            )
        if isinstance(kinds, str):
            raise ShoalError("kinds is one string: it must be a list of kinds")
        for kind in kinds:
            refuse_kind(kind)
        watcher = Watcher(progress, str(self.path))
        options = EvaluationOptions()
        library = load_train("shoal.train.Run.evaluate")
        library.shoal_evaluation_options_init(byref(options), ctypes.sizeof(options))
        chosen = (Attention * len(kinds))(*(parse(kind) for kind in kinds))
        options.attention, options.kinds = chosen, len(kinds)
        options.controls, options.skip_bad = bool(controls), bool(skip_bad)
        options.data = None if data is None else _checked.path("data", data)
        options.batches = _checked.size("batches", batches)
        options.labels = _checked.optional_text("labels", labels)
        options.cache = None if cache is None else _checked.path("cache", cache)
        if join is not None:
            options.join = _checked.number("join", join)
        options.tune = None if tune is None else _checked.path("tune", tune)
        if beams or lexicon or lm:
            heard = recogniser_options(library, None, beams, 0.0, lexicon, lm)
            options.recogniser = ctypes.pointer(heard)
        options.callbacks = watcher.callbacks
        with Session(library, threads) as session:
            made = c_void_p()
            with watcher.watching():
                status = library.shoal_evaluation_create(
                    session.context, os.fsencode(self.path), byref(options), byref(made)
                )
            try:
                watcher.check(session, status)
                whole = json.loads(library.shoal_evaluation_json(made))
                predictions = library.shoal_evaluation_predictions(made)
            finally:
                library.shoal_evaluation_destroy(made)
        found = Evaluation(whole.pop("kinds"))
        found.info = whole
        found.predictions = predictions.decode() if predictions else None
        return found


def recogniser_options(
    library: Any,
    attention: str | None,
    beams: int,
    piece: float,
    lexicon: str | None,
    lm: str | os.PathLike[str] | None,
) -> RecogniserOptions:
    options = RecogniserOptions()
    library.shoal_recogniser_options_init(byref(options), ctypes.sizeof(options))
    options.attention = _checked.optional_text("attention", attention)
    options.beams = _checked.size("beams", beams)
    options.piece = _checked.number("piece", piece)
    options.lexicon = _checked.optional_text("lexicon", lexicon)
    options.lm = None if lm is None else _checked.path("lm", lm)
    return options


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The float32 arrays of a file, by name."""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for name, row in json.loads(raw[8:begin]).items():
        if name != "__metadata__" and row["dtype"] == "F32":
            first, last = (begin + offset for offset in row["data_offsets"])
            found[name] = np.frombuffer(raw[first:last], "<f4").reshape(row["shape"])
    return found


def _train(
    task: Any,
    config: Any,
    preset: str | None,
    out: str | os.PathLike[str],
    settings: dict[str, Any],
    *,
    paths: dict[str, Any],
    resume: bool,
    start: str | os.PathLike[str] | None,
    progress: Watching,
    save_seconds: float,
    stop_seconds: float,
    threads: int | None,
) -> Run:
    """Starts or continues a run."""
    library = load_train("shoal.train")
    folder = _checked.path("out", out)
    rows = [
        (_checked.text("setting", name), setting(name, value))
        for name, value in settings.items()
        if value is not None
    ]
    watcher = Watcher(progress, os.fspath(out))
    options, result = RunOptions(), RunResult()
    library.shoal_run_options_init(byref(options), ctypes.sizeof(options))
    options.folder, options.resume = folder, bool(resume)
    setattr(options, "from", None if start is None else _checked.path("start", start))
    said = (Setting * len(rows))(*(Setting(*row) for row in rows))
    options.settings, options.setting_count = said, len(rows)
    options.save_seconds = _checked.number("save_seconds", save_seconds)
    options.stop_seconds = _checked.number("stop_seconds", stop_seconds)
    options.callbacks = watcher.callbacks
    with Session(library, threads) as session:
        _defaults(session, task, preset, config)
        for name, value in rows:
            session.check(
                library.shoal_config_set(
                    session.context, task, byref(config), name, value
                )
            )
        for path, given in paths.items():
            setattr(config, path, given)
        with watcher.watching():
            status = library.shoal_train_run(
                session.context, task, byref(config), byref(options), byref(result)
            )
        watcher.check(session, status)
    run = Run(out)
    run.result = _result_of(result)
    return run


def _result_of(result: RunResult) -> Event:
    found = state_of(result.state)
    found.update(finished=bool(result.finished), timed=bool(result.timed))
    for name, there in (("validation", result.validated), ("test", result.tested)):
        if there:
            found[name] = score_of(getattr(result, name))
    return found


def _known(name: str) -> Any:
    return _task(load_train(f"shoal.train.{name}"), name)


def speech(
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    attention: str | None = None,
    *,
    preset: str | None = None,
    resume: bool = False,
    start: str | os.PathLike[str] | None = None,
    lexicon: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    progress: Watching = True,
    save_seconds: float = 60.0,
    stop_seconds: float = 0.0,
    threads: int | None = None,
    **settings: Any,
) -> Run:
    """Trains a recogniser on a data folder with the folders train and dev in Kaldi's
    format (docs/train.md).

    `settings` are fields of the task, such as epochs=30, units="characters", layers=4:
    ``fields("speech")`` lists them. `preset` is "default", "paper", "lf-mmi" or
    "paper-lf-mmi"; the last two need a `lexicon`. `start` is a run whose weights are the
    initial ones.

    out           folder of the run, created if it is missing
    resume        continue from the folder's checkpoint, or start if there is none;
                  without it, an existing training raises an error
    progress      True: a progress bar, if tqdm is installed; or a function that is
                  called with a dictionary for every step, validation and so on. An
                  exception ends the training after its checkpoint
    save_seconds  between checkpoints; 0: after every step
    stop_seconds  total duration of the training; 0: no limit
    """
    options = {
        "folder": _checked.path("data", data),
        "cache": None if cache is None else _checked.path("cache", cache),
        "lexicon": _checked.optional_text("lexicon", lexicon),
        "skip_bad": bool(skip_bad),
    }
    return _train(
        _known("speech"),
        SpeechTrainConfig(),
        preset,
        out,
        {"attention": attention, **settings},
        paths=options,
        resume=resume,
        start=start,
        progress=progress,
        save_seconds=save_seconds,
        stop_seconds=stop_seconds,
        threads=threads,
    )


def glue(
    dataset: str,
    data: str | os.PathLike[str],
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    attention: str | None = None,
    *,
    resume: bool = False,
    skip_bad: bool = False,
    progress: Watching = True,
    save_seconds: float = 60.0,
    stop_seconds: float = 0.0,
    threads: int | None = None,
    **settings: Any,
) -> Run:
    """Fine-tunes a BERT or RoBERTa folder (`model`) on a dataset of GLUE ("RTE"), whose
    files are in the folder `data`. Other arguments are those of speech.
    """
    options = {
        "folder": _checked.path("data", data),
        "model_folder": _checked.path("model", model),
        "skip_bad": bool(skip_bad),
    }
    return _train(
        _known("glue"),
        GlueConfig(),
        None,
        out,
        {"dataset": dataset, "attention": attention, **settings},
        paths=options,
        resume=resume,
        start=None,
        progress=progress,
        save_seconds=save_seconds,
        stop_seconds=stop_seconds,
        threads=threads,
    )


def squad(
    data: str | os.PathLike[str],
    dev: str | os.PathLike[str],
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    attention: str | None = None,
    *,
    resume: bool = False,
    skip_bad: bool = False,
    progress: Watching = True,
    save_seconds: float = 60.0,
    stop_seconds: float = 0.0,
    threads: int | None = None,
    **settings: Any,
) -> Run:
    """Fine-tunes a BERT or RoBERTa folder (`model`) to answer questions: `data` is
    SQuAD's train.json and `dev` its dev.json. Other arguments are those of speech.
    """
    options = {
        "folder": _checked.path("data", data),
        "dev": _checked.path("dev", dev),
        "model_folder": _checked.path("model", model),
        "skip_bad": bool(skip_bad),
    }
    return _train(
        _known("squad"),
        SquadConfig(),
        None,
        out,
        {"attention": attention, **settings},
        paths=options,
        resume=resume,
        start=None,
        progress=progress,
        save_seconds=save_seconds,
        stop_seconds=stop_seconds,
        threads=threads,
    )


def copy(
    out: str | os.PathLike[str],
    attention: str | None = None,
    *,
    resume: bool = False,
    progress: Watching = True,
    save_seconds: float = 60.0,
    stop_seconds: float = 0.0,
    threads: int | None = None,
    **settings: Any,
) -> Run:
    """Trains the masked copy task, whose data is generated (docs/train.md)."""
    return _train(
        _known("copy"),
        CopyConfig(),
        None,
        out,
        {"attention": attention, **settings},
        paths={},
        resume=resume,
        start=None,
        progress=progress,
        save_seconds=save_seconds,
        stop_seconds=stop_seconds,
        threads=threads,
    )


def arrays(
    x: Any,
    y: Any,
    out: str | os.PathLike[str],
    attention: str | None = None,
    *,
    validation: Any = 0.1,
    pooling: str = "every",
    vocabulary: int | None = None,
    outputs: int | None = None,
    max_length: int | None = None,
    resume: bool = False,
    start: str | os.PathLike[str] | None = None,
    progress: Watching = True,
    save_seconds: float = 60.0,
    stop_seconds: float = 0.0,
    threads: int | None = None,
    **settings: Any,
) -> Run:
    """Trains a plain transformer encoder to predict classes.

    x is [sequences, length] integers (tokens) or [sequences, length, features] numbers,
    or a list of such sequences of different lengths. y has a class for every position,
    [sequences, length] (or such a list), where -1 is ignored; with pooling "mean" or
    "first" one for every sequence, [sequences].

    `validation` is (x, y) in the same form, or the share of the sequences to use for it.
    vocabulary, outputs and max_length are taken from the data unless they are given.
    `settings` are the fields of a model and its training: epochs (10), batch (32),
    layers, heads, head_dim, feed_forward, dropout, learning_rate, warmup, seed ...; other
    arguments are those of speech. ``Run.open`` returns the shoal.Transformer.
    """
    task = ArraysTask(
        x,
        y,
        validation,
        _checked.choice("pooling", pooling, ("every", "mean", "first")),
        vocabulary,
        outputs,
        max_length,
    )
    try:
        return _train(
            task.pointer,
            TrainConfig(),
            None,
            out,
            {"attention": attention, **settings},
            paths={},
            resume=resume,
            start=start,
            progress=progress,
            save_seconds=save_seconds,
            stop_seconds=stop_seconds,
            threads=threads,
        )
    except ShoalError:
        if task.error is not None:
            raise task.error from None
        raise
