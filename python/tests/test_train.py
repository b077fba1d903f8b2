"""Training from Python: arrays, speech, text, interruptions, the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
import wave

import numpy as np
import pytest

import shoal
from conftest import ROOT, needs
from shoal._handle import Handle

SMALL = dict(layers=1, heads=2, head_dim=8, feed_forward=32, warmup=5, threads=1)
TONES = {"A": 300, "B": 700, "C": 1500, "D": 3100}


@pytest.fixture(autouse=True)
def libraries():
    needs("models", "speech", "train")


def same_weights(one, other):
    ours, theirs = one.weights(best=False), other.weights(best=False)
    return ours.keys() == theirs.keys() and all(
        np.array_equal(ours[name], theirs[name]) for name in ours
    )


# ---- Arrays --------------------------------------------------------------------------


def sequences(count=90, length=10, seed=0):
    """Tokens; the first one is the class of the sequence."""
    x = np.random.default_rng(seed).integers(5, size=(count, length))
    return x, x[:, 0]


def train_arrays(out, *, epochs=8, data=None, **options):
    x, y = data or sequences()
    settings = {**SMALL, "learning_rate": 0.01, "batch": 20, "validate_every": 10}
    settings |= {"pooling": "first", "progress": False, **options}
    return shoal.train.arrays(x, y, out, "full", epochs=epochs, **settings)


def test_arrays_learn_and_are_used(tmp_path):
    run = train_arrays(tmp_path / "run", epochs=20)
    assert run.task == "arrays" and run.result["finished"]
    steps = [row for row in run.log if "loss" in row]
    assert [row["step"] for row in steps] == list(range(1, 101))
    assert steps[-1]["loss"] < 0.2 < 1 < steps[0]["loss"]
    assert run.config["epochs"] == 20 and run.config["attention"] == "full"
    x, y = sequences(seed=1)
    for attention, least in ((None, 0.9), ("clustered-5", 0.5)):
        with run.open(attention) as model:
            logits = model.predict(x)
            assert logits.shape == (90, 5) and logits.dtype == np.float32
            score = model.score(x, y)
            assert score["correct"] == (logits.argmax(1) == y).sum()
            assert score["counted"] == 90 and score["accuracy"] >= least
    assert isinstance(model, Handle)
    with pytest.raises(shoal.ShoalError, match="score"):
        run.evaluate(["full"])


def test_every_position_lists_and_features(tmp_path):
    rng = np.random.default_rng(0)
    lengths = [3, 9, 5, 7, 4, 8, 6, 2, 9, 5] * 4
    x = [rng.standard_normal((n, 6)) for n in lengths]
    y = [(part[:, 0] > 0).astype(int) for part in x]
    y[3][:2] = -1  # ignored
    run = train_arrays(
        tmp_path / "run",
        epochs=40,
        data=(x, y),
        pooling="every",
        validation=(x[:8], y[:8]),
    )
    model = run.open(rows=16)
    logits = model.predict(x)
    assert [part.shape for part in logits] == [(n, 2) for n in lengths]
    alone = np.concatenate([model.predict([part])[0] for part in x])
    assert np.abs(np.concatenate(logits) - alone).max() < 1e-5
    assert model.score(x, y)["counted"] == sum(lengths) - 2
    assert model.score(x, y)["accuracy"] > 0.8


def test_resuming_gives_the_same_bits(tmp_path):
    whole = train_arrays(tmp_path / "whole", epochs=6, dropout=0.1)

    class Stop(Exception):
        pass

    def stop(event):
        if event["event"] == "step" and event["step"] == 7:
            raise Stop

    with pytest.raises(Stop):
        train_arrays(tmp_path / "parts", epochs=6, dropout=0.1, progress=stop)
    part = shoal.train.Run(tmp_path / "parts")
    assert max(row["step"] for row in part.log) == 7
    with pytest.raises(shoal.ShoalError):  # it exists, and resume was not requested
        train_arrays(tmp_path / "parts", epochs=6, dropout=0.1)
    with pytest.raises(shoal.ShoalError, match="dropout"):
        train_arrays(tmp_path / "parts", epochs=6, dropout=0.2, resume=True)
    other = sequences(seed=3)
    with pytest.raises(shoal.ShoalError, match="data"):
        train_arrays(tmp_path / "parts", epochs=6, dropout=0.1, data=other, resume=True)
    again = train_arrays(tmp_path / "parts", epochs=6, dropout=0.1, resume=True)
    assert same_weights(whole, again)
    losses = [[row.get("loss") for row in run.log] for run in (whole, again)]
    assert losses[0] == losses[1]


def test_control_c_comes_behind_the_checkpoint(tmp_path):
    """In a separate process, whose first Ctrl-C comes in the fifth step."""
    program = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import test_train
def progress(event):
    if event["event"] == "step" and event["step"] == 5:
        os.kill(os.getpid(), signal.SIGINT)
try:
    test_train.train_arrays(sys.argv[1], epochs=6, progress=progress)
except KeyboardInterrupt:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    sys.exit(7)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run"), os.path.dirname(__file__)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr
    assert max(row["step"] for row in shoal.train.Run(tmp_path / "run").log) == 5
    assert same_weights(
        train_arrays(tmp_path / "run", epochs=6, resume=True),
        train_arrays(tmp_path / "whole", epochs=6),
    )


def test_events(tmp_path):
    events = []
    run = train_arrays(tmp_path / "run", epochs=2, progress=events.append)
    names = [event["event"] for event in events]
    assert names[0] == "saving" and names[-1] == "end" and names.count("step") == 10
    steps = [event for event in events if event["event"] == "step"]
    assert steps[3]["step"] == 4 and steps[3]["all"] == 10
    assert [event["loss"] for event in steps] == [
        row["loss"] for row in run.log if "loss" in row
    ]
    assert any("validation_accuracy" in event for event in events)


def test_refusals_of_arrays(tmp_path):
    x, y = sequences()

    def refused(match, x=x, y=y, **options):
        with pytest.raises(shoal.ShoalError, match=match):
            train_arrays(tmp_path / "no", data=(x, y), **options)
        assert not (tmp_path / "no").exists()

    refused("x must be at least one sequence", x=[])
    refused("holds float64", x=[[0.5, 1.5]], y=[0])
    refused("y has shape", y=y[:3])
    refused("classes from -2", y=y - 2)
    refused("one class for every position", pooling="every")
    refused("pooling is 'last'", pooling="last")
    refused("vocabulary is 3", vocabulary=3)
    refused("outputs", outputs=2)
    refused("max_length is 5", max_length=5)
    refused("validation is 2", validation=2)
    refused("nonsense", nonsense=3)
    refused("layers", layers=-1)
    refused("layers", layers=2**64 + 1)
    refused("learning_rate", learning_rate=float("nan"))
    refused("finite", x=np.full((4, 3, 2), np.nan), y=[0, 1, 0, 1])


def test_a_model_shared_by_threads(tmp_path):
    model = train_arrays(tmp_path / "run", epochs=1).open()
    x, _ = sequences()
    expected, wrong = model.predict(x), []

    def run():
        try:
            for _ in range(30):
                if not np.array_equal(model.predict(x), expected):
                    wrong.append("other logits")
        except shoal.ShoalError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    model.close()
    with pytest.raises(shoal.ShoalError, match="closed"):
        model.predict(x)


def test_progress_bars(tmp_path, capsys):
    pytest.importorskip("tqdm")
    train_arrays(tmp_path / "run", epochs=2, progress=True)
    assert "10/10" in capsys.readouterr().err


# ---- Copy ----------------------------------------------------------------------------


def test_copy_is_trained_and_evaluated(tmp_path):
    run = shoal.train.copy(
        tmp_path / "run",
        "i-clustered-4",
        steps=6,
        length=7,
        batch=4,
        progress=False,
        **SMALL,
    )
    rows = run.evaluate(["full", "i-clustered-4"], batches=2, threads=1)
    assert [row["kind"] for row in rows] == ["full", "i-clustered-4"]
    assert rows.info["task"] == "copy" and 0 <= rows[0]["accuracy"] <= 1
    names = {row["name"] for row in shoal.train.fields("copy")}
    assert {"length", "layers", "seed"} <= names


# ---- Speech --------------------------------------------------------------------------


def sound(path, units, seed):
    """A tone of 0.1 s for each unit, with pauses and some noise."""
    rng = np.random.default_rng(seed)
    parts = []
    for unit in units:
        parts.append(0.3 * np.sin(2 * np.pi * TONES[unit] * np.arange(1600) / 16000))
        parts.append(np.zeros(rng.integers(400, 1200)))
    samples = np.concatenate(parts)
    samples += rng.uniform(-0.02, 0.02, samples.size)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((32767 * samples).astype("<i2").tobytes())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder of four tones."""
    base = tmp_path_factory.mktemp("data")
    for part, count, seed in (("train", 24, 1), ("dev", 6, 100), ("test", 6, 200)):
        folder = base / part
        folder.mkdir()
        draw = np.random.default_rng(seed)
        lines = {"wav.scp": [], "text": [], "utt2spk": []}
        for n in range(count):
            units = draw.choice(list(TONES), draw.integers(2, 7))
            name = f"s{n % 3}-{n:03}"
            sound(folder / f"{name}.wav", units, seed + n)
            lines["wav.scp"].append(f"{name} {name}.wav")
            lines["text"].append(f"{name} {' '.join(units)}")
            lines["utt2spk"].append(f"{name} s{n % 3}")
        for file, rows in lines.items():
            (folder / file).write_text("\n".join(rows) + "\n")
    return base


SPEECH = dict(
    hop=2, context=6, batch_frames=300, convolutions=1, speeds="1", units="words"
)
SPEECH |= dict(
    layers=1, heads=2, head_dim=16, feed_forward=32, warmup=5, validate_every=6
)


def test_a_recogniser(data, tmp_path):
    options = dict(cache=tmp_path / "cache", threads=1, progress=False, **SPEECH)
    run = shoal.train.speech(
        data, tmp_path / "run", "full", steps=150, learning_rate=0.005, **options
    )
    rows = run.evaluate(
        ["full", "i-clustered-8"],
        data=data / "test",
        cache=tmp_path / "cache",
        controls=True,
        threads=1,
    )
    assert [row["kind"] for row in rows][:2] == ["full", "i-clustered-8"]
    assert len(rows) + len(rows.info.get("controls", [])) > 2
    assert rows[0]["error_rate"] < 40
    with shoal.Recogniser(run.path, threads=1) as recogniser:
        assert recogniser.rate == 16000 and recogniser.trained_with == "full"
        name, path = (data / "test" / "wav.scp").read_text().split()[:2]
        heard = recogniser.recognise(data / "test" / path)
        with wave.open(str(data / "test" / path)) as file:
            raw = np.frombuffer(file.readframes(1 << 20), "<i2")
        again = recogniser.recognise(raw / np.float32(32768))
        assert heard.text == again.text == " ".join(unit.text for unit in heard.units)
        assert all(0 <= unit.begin <= heard.seconds for unit in heard.units)
        with pytest.raises(shoal.ShoalError, match="dimensions"):
            recogniser.recognise(np.zeros((2, 100)))
    with pytest.raises(shoal.ShoalError, match="data folder|data"):
        run.evaluate(["full"])
    with pytest.raises(shoal.ShoalError, match="list of kinds"):
        run.evaluate("full")


def test_bad_data_is_warned_about(data, tmp_path):
    import shutil

    spoiled = shutil.copytree(data, tmp_path / "data")
    next((spoiled / "train").glob("*.wav")).unlink()
    options = dict(cache=tmp_path / "cache", threads=1, progress=False, steps=2, **SPEECH)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with pytest.raises(shoal.ShoalError, match="cannot be used"):
            shoal.train.speech(spoiled, tmp_path / "no", "full", **options)
    with pytest.warns(UserWarning, match="s0-000|skipped|cannot"):
        shoal.train.speech(spoiled, tmp_path / "run", "full", skip_bad=True, **options)


def test_the_example(data, tmp_path):
    settings = [f"{name}={value}" for name, value in SPEECH.items()]
    done = subprocess.run(
        [sys.executable, ROOT / "python" / "examples" / "train_speech.py", data, tmp_path]
        + [*settings, "steps=20", "--kind", "i-clustered-8", "--threads", "1", "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["same_bits"] and 5 <= found["killed_after"] < found["steps"] == 20
    assert {"full", "i-clustered-8"} <= found["error_rates"].keys()


# ---- Text ----------------------------------------------------------------------------

WORDS = "attention in linear time queries huddle into clusters each".split()
MODELS = ROOT / "tests" / "models" / "text"


def write_glue(folder):
    """RTE, where the class is whether "once" is in the first sentence."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(1)
    for name, count in (("train.tsv", 40), ("dev.tsv", 20)):
        lines = ["sentence1\tsentence2\tlabel\tidx"]
        for i in range(count):
            label = int(draw.integers(2))
            first, second = (" ".join(draw.choice(WORDS, 5)) for _ in range(2))
            lines.append(f"{first}{' once' * label}\t{second}\t{label}\t{i}")
        (folder / name).write_text("\n".join(lines) + "\n")


def test_a_text_model_that_classifies(tmp_path):
    write_glue(tmp_path / "glue" / "RTE")
    options = dict(batch=8, learning_rate=0.003, max_length=64, epochs=3, threads=1)
    arguments = "RTE", tmp_path / "glue", MODELS / "roberta"
    whole = shoal.train.glue(
        *arguments, tmp_path / "run", "full", progress=False, **options
    )
    rows = whole.evaluate(["full", "i-clustered-8"], controls=True, threads=1)
    assert [row["kind"] for row in rows][:2] == ["full", "i-clustered-8"]
    assert rows.predictions.startswith("index\tprediction") and rows[0]["accuracy"] >= 0
    with whole.open(threads=1) as model:
        assert isinstance(model, shoal.TextModel) and isinstance(model, Handle)
        assert model.dataset == "RTE" and len(model.classes) == 2
        pairs = [("attention once", "in time"), ("attention", "in time")]
        logits = model.logits(pairs)
        assert logits.shape == (2, 2)
        assert model.classify(pairs) == [model.classes[i] for i in logits.argmax(1)]
        with pytest.raises(shoal.ShoalError, match="use classify"):
            model.answer("a", "b")

    def interrupt(event):
        if event["event"] == "step" and event["step"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shoal.train.glue(
            *arguments, tmp_path / "parts", "full", progress=interrupt, **options
        )
    again = shoal.train.glue(
        *arguments, tmp_path / "parts", "full", progress=False, resume=True, **options
    )
    assert same_weights(whole, again)


def write_squad(path, count):
    """The answer follows "once"."""
    draw, paragraphs = np.random.default_rng(count), []
    for i in range(count):
        answer = str(draw.choice(["clusters", "queries huddle"]))
        context = f"é {' '.join(draw.choice(WORDS, 3))} once {answer} in time"
        answers = [{"text": answer, "answer_start": context.index("once") + 5}]
        asked = {"id": f"q{i}", "question": "once in time", "answers": answers}
        paragraphs.append({"context": context, "qas": [asked]})
    text = {"data": [{"title": "t", "paragraphs": paragraphs}], "version": "1.1"}
    path.write_text(json.dumps(text))


def test_a_text_model_that_answers(tmp_path):
    for name, count in (("train.json", 30), ("dev.json", 12)):
        write_squad(tmp_path / name, count)
    files = tmp_path / "train.json", tmp_path / "dev.json"
    options = dict(batch=8, learning_rate=0.003, max_length=48, stride=16, threads=1)
    run = shoal.train.squad(
        *files, MODELS / "bert", tmp_path / "run", progress=False, epochs=1, **options
    )
    assert run.evaluate(threads=1)[0]["kind"]
    with shoal.TextModel(run.path, "i-clustered-8", threads=1) as model:
        context = "é attention once clusters in time"
        answer = model.answer("once in time", context)
        assert context[answer.begin : answer.end] == answer.text
        with pytest.raises(shoal.ShoalError, match="zero byte"):
            model.answer("a\0b", context)
        with pytest.raises(shoal.ShoalError, match="use answer"):
            model.classify(["a"])


def test_signal_handlers_of_the_caller_stay(tmp_path):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        train_arrays(tmp_path / "run", epochs=1)
        os.kill(os.getpid(), signal.SIGINT)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGINT, before)
