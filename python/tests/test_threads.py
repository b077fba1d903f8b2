"""Several threads at once, the GIL, and forks after use."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import shoal
from shoal._engine import context_for

KIND = "i-clustered-20:topk=8"


def problem(seed, length=300):
    return np.random.default_rng(seed).standard_normal((3, 2, 4, length, 16), np.float32)


def test_many_threads_agree_with_one():
    expected = [shoal.attention(*problem(i), KIND) for i in range(8)]

    def run(i):
        for _ in range(5):
            assert np.array_equal(shoal.attention(*problem(i % 8), KIND), expected[i % 8])
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(32)))


def test_each_thread_has_its_own_context():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(context_for, 1).result() is not context_for(1)
    assert context_for(1) is context_for(1)


def test_one_plan_from_many_threads():
    plan = shoal.Plan(KIND, batch=2, heads=4, queries=300, keys=300, dim=16)
    expected = [plan.forward(*problem(i)) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: plan.forward(*problem(i % 4)), range(40)))
    assert all(np.array_equal(x, expected[i % 4]) for i, x in enumerate(found))


def test_the_gil_is_released():
    """Another thread counts while a long call runs."""
    q, k, v = problem(0, 6000)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    time.sleep(0.01)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        before = counted[0]
        started = time.monotonic()
        shoal.attention(q, k, v, "full", threads=1)
        elapsed, ticks = time.monotonic() - started, counted[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        counter.join()
    assert ticks > 5, f"{ticks} ticks in {elapsed:.2f} s"


fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def in_child(function, seconds=60):
    """The result of a forked child; a child that hangs is killed and fails."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(function()))
    child.start()
    try:
        assert ours.poll(seconds), "the child hangs"
        return ours.recv()
    finally:
        if child.is_alive() and child.pid:
            child.join(5)
            if child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
        child.join()


@fork
def test_fork_after_use():
    inputs = problem(0, 600)
    expected = shoal.attention(*inputs, KIND, threads=4)
    plan = shoal.Plan.like(*inputs, KIND, threads=4)
    plan.forward(*inputs)

    def child():
        with pytest.raises(shoal.ShoalError, match="forward before"):
            plan.groups
        nested = in_child(lambda: np.array_equal(plan.forward(*inputs), expected))
        return (
            nested,
            np.array_equal(shoal.attention(*inputs, KIND), expected),
            np.array_equal(shoal.attention(*inputs, KIND, threads=4), expected),
            np.array_equal(plan.forward(*inputs), expected),
        )

    assert in_child(child) == (True,) * 4
    assert np.array_equal(shoal.attention(*inputs, KIND, threads=4), expected)


@fork
def test_data_loader_workers():
    torch = pytest.importorskip("torch")
    import shoal.torch

    inputs = [torch.from_numpy(x) for x in problem(0, 600)]
    expected = shoal.torch.attention(*inputs, KIND)

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return shoal.torch.attention(*inputs, KIND)

    loader = torch.utils.data.DataLoader(
        Rows(), num_workers=2, timeout=60, multiprocessing_context="fork"
    )
    assert all(torch.equal(rows[0], expected) for rows in loader)


def test_spawned_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        inputs = tuple(problem(0))
        assert np.array_equal(
            pool.apply(shoal.attention, (*inputs, KIND)), shoal.attention(*inputs, KIND)
        )


def test_threads_that_end_leave_nothing():
    contexts = []

    def run():
        shoal.attention(*problem(0), KIND, threads=1)
        contexts.append(context_for(1))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not contexts[0].plans


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_while_a_plan_is_running():
    """The lock was copied while another thread held it."""
    plan = shoal.Plan(KIND, batch=2, heads=4, queries=300, keys=300, dim=16)
    expected = plan.forward(*problem(0))
    with plan._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if np.array_equal(plan.forward(*problem(0)), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
