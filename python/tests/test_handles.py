"""Objects shared by threads, and values that C cannot represent."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import shoal
from conftest import ROOT, arrays, data, needs
from shoal import _checked
from shoal._handle import Handle

TEXTS = ["Attention in linear time.", "a b c", "queries huddle into clusters " * 30]


@pytest.fixture
def encoder():
    needs("models")
    with shoal.TextEncoder(ROOT / "tests" / "models" / "text" / "bert") as opened:
        yield opened


@pytest.fixture
def speech():
    needs("speech")
    with shoal.Speech(data("models", "ggml-tiny.bin")) as opened:
        yield opened


# ---- Threads -------------------------------------------------------------------------


class Slow(Handle):
    """Counts the threads that are inside at once."""

    _what = "the slow one"

    def __init__(self):
        self.inside = self.most = self.freed = 0
        self._start()

    def work(self, seconds=0.002):
        with self._turn():
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(seconds)
            assert not self.freed
            self.inside -= 1

    def _free(self):
        self.freed += 1


def test_calls_take_turns():
    slow = Slow()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: slow.work(), range(40)))
    assert slow.most == 1


def test_close_waits_and_frees_once():
    slow = Slow()
    thread = threading.Thread(target=slow.work, args=(0.2,))
    thread.start()
    while not slow.inside:
        time.sleep(0.001)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: slow.close(), range(8)))
    thread.join()
    assert slow.inside == 0 and slow.freed == 1
    with pytest.raises(shoal.ShoalError, match="the slow one is closed"):
        slow.work()
    slow.close()


def test_a_callback_cannot_wait_for_itself():
    slow = Slow()
    with slow._turn():
        for call in (slow.work, slow.close):
            with pytest.raises(shoal.ShoalError, match="by this thread"):
                call()
    slow.work()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_is_told():
    slow = Slow()
    with slow._lock:  # another thread is inside
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                slow.work()
            except shoal.ShoalError as error:
                slow.close()
                os._exit(0 if "forked" in str(error) and not slow.freed else 1)
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_every_handle_has_the_base():
    assert all(
        issubclass(x, Handle) for x in (shoal.Plan, shoal.Speech, shoal.TextEncoder)
    )


def test_one_encoder_for_two_threads(encoder):
    expected = [encoder.embed([text]) for text in TEXTS]

    def run(i):
        return np.array_equal(encoder.embed([TEXTS[i % 3]]), expected[i % 3])

    with ThreadPoolExecutor(2) as pool:
        wrong = [good for good in pool.map(run, range(300)) if not good]
    assert not wrong


def test_closing_an_encoder_that_embeds(encoder):
    """Every call either succeeds or raises an error."""
    expected, said = encoder.embed(TEXTS), []

    def run():
        try:
            while True:
                assert np.array_equal(encoder.embed(TEXTS), expected)
        except shoal.ShoalError as error:
            said.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    encoder.close()
    for thread in threads:
        thread.join()
    assert said == ["the encoder is closed"] * 3


def test_closing_a_model_that_transcribes(speech):
    talk = data("speech", "1088-134315-0043.flac")
    begun = threading.Event()

    def run():
        found = []
        for segment in speech.transcribe(talk, language="en"):
            begun.set()
            time.sleep(0.05)
            found.append(segment)
        return shoal.join_text(found)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        assert begun.wait(60)
        with pytest.raises(shoal.ShoalError, match="busy: it is transcribing"):
            speech.close()
        assert "Fisher went back to the library" in running.result()
    segments = speech.transcribe(talk)
    speech.close()
    with pytest.raises(shoal.ShoalError, match="closed"):
        next(segments)


def test_a_closed_plan():
    q, k, v = arrays()
    with shoal.Plan.like(q, k, v, "full") as plan:
        plan.forward(q, k, v)
    for use in (lambda: plan.forward(q, k, v), lambda: plan.workspace):
        with pytest.raises(shoal.ShoalError, match="the plan is closed"):
            use()


# ---- Values --------------------------------------------------------------------------


def refused(match, call, *arguments, **options):
    with pytest.raises(shoal.ShoalError, match=match):
        call(*arguments, **options)


def test_integers_do_not_wrap():
    q, k, v = arrays()
    plan = dict(batch=1, heads=1, queries=8, keys=8, dim=4)
    for name in plan:
        for wrong in (2**64 + 8, -1, 8.0, "8", None):
            refused(f"^{name} is ", shoal.Plan, "full", **{**plan, name: wrong})
    for wrong in (-1, 2**64, 1.5, "1"):
        refused("^seed is ", shoal.attention, q, k, v, "clustered-7", seed=wrong)
        refused("^seed is ", shoal.Plan.like, q, k, v, "clustered-7", seed=wrong)
        refused("^seed is ", shoal.spelling, "clustered-7", wrong)
    for wrong in (2**32 + 2, -1, 1.5, "2"):
        refused("^threads is ", shoal.attention, q, k, v, "full", threads=wrong)
        refused("^threads is ", shoal.Plan, "full", **plan, threads=wrong)
    out = shoal.attention(q, k, v, "full")
    for wrong in (-1, 2**64 + 3, 2.0):
        refused("^samples is ", shoal.error_estimate, q, k, v, out, samples=wrong)
        refused("^sample_seed is ", shoal.error_estimate, q, k, v, out, sample_seed=wrong)
    assert shoal.spelling("clustered-7", np.uint64(2**64 - 1)).endswith(str(2**64 - 1))


def test_options_of_an_encoder(encoder):
    folder = ROOT / "tests" / "models" / "text" / "bert"
    for name, wrong in (
        ("window", 2**64 + 8),
        ("stride", -1),
        ("rows", 1.5),
        ("threads", 2**32 + 2),
        ("attention", "full\0nonsense"),
        ("attention", None),
    ):
        refused(f"^{name} ", shoal.TextEncoder, folder, **{name: wrong})
    refused("^folder contains a zero byte", shoal.TextEncoder, str(folder) + "\0x")
    refused(r"^texts\[1\] is a int", encoder.embed, ["a", 7])
    refused(r"^texts\[0\] cannot be encoded", encoder.embed, ["\ud800"])
    assert encoder.embed(["a\0b"]).shape == (1, 16)  # given lengths: no truncation


def test_options_of_speech(speech):
    model = data("models", "ggml-tiny.bin")
    for name, wrong in (
        ("beams", 2**32 + 1),
        ("batch", -1),
        ("threads", 2**32 + 2),
        ("attention", "full\0x"),
    ):
        refused(f"^{name} ", shoal.Speech, model, **{name: wrong})
    for name, wrong in (
        ("beams", 2**32 + 1),
        ("seed", -1),
        ("seed", 2**64),
        ("prompt", "one\0two"),
        ("language", "en\0"),
        ("language", 7),
        ("offset", float("nan")),
        ("duration", "3"),
    ):
        refused(f"^{name} ", speech.transcribe, np.zeros(100), **{name: wrong})
    refused("^sound contains a zero byte", speech.transcribe, "talk.flac\0x")


def test_conversions_name_their_argument():
    assert _checked.integer("x", np.int8(3), 0, 5) == 3
    refused(r"^x is 6: it must be from 0 to 5$", _checked.integer, "x", 6, 0, 5)
    refused(r"to 2\^63 - 1$", _checked.size, "x", 2**63)
    refused(r"^x is '5': it must be a finite number$", _checked.number, "x", "5")
    refused(r"^x is 'c': it must be one of a, b$", _checked.choice, "x", "c", ("a", "b"))
    refused("^x is a float: it must be a path", _checked.path, "x", 1.5)


# ---- What a kind has -----------------------------------------------------------------


def test_top_keys_whose_numbers_follow_from_the_sizes():
    q, k, v = arrays(queries=300, keys=300)
    for kind in ("q-clustered-10", "i-clustered-10:topk=64"):
        plan = shoal.Plan.like(q, k, v, kind)
        plan.forward(q, k, v)
        assert plan.top_keys.shape == (2, 4, 10, 64)
        assert -1 <= plan.top_keys.min() and plan.top_keys.max() < 300
    plan = shoal.Plan.like(q, k, v, "shoal")
    plan.forward(q, k, v)
    assert plan.groups.shape == (2, 4, 300) and plan.top_keys is None


def test_groups_are_refused_before_any_work(monkeypatch):
    q, k, _ = arrays()
    monkeypatch.setattr(shoal.Plan, "forward", None)
    refused("full has no clusters of queries", shoal.groups, q, k, "full")
