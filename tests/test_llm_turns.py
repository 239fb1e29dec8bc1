"""The fair lock: one at a time, in the order of asking, and Ctrl-C loses nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from minfer.llm.turns import FairLock


def start(lock: FairLock, done: list[int], number: int) -> threading.Thread:
    def body() -> None:
        with lock:
            done.append(number)

    thread = threading.Thread(target=body)
    thread.start()
    while len(lock._waiting) < number + 1 and thread.is_alive():
        time.sleep(0.001)
    return thread


def test_it_goes_round_in_the_order_of_asking() -> None:
    lock, done = FairLock(), []
    lock.acquire()
    threads = [start(lock, done, n) for n in range(6)]
    assert done == []
    lock.release()
    for thread in threads:
        thread.join()
    assert done == list(range(6))
    assert lock.try_acquire()


def test_the_releasing_thread_does_not_pass_those_who_wait() -> None:
    lock, done = FairLock(), []
    lock.acquire()
    thread = start(lock, done, 0)
    lock.release()
    lock.acquire()  # asks again at once, and comes second
    assert done == [0]
    lock.release()
    thread.join()


def test_many_threads_exclude_each_other() -> None:
    lock, inside, worst = FairLock(), [0], [0]

    def body() -> None:
        for _ in range(200):
            with lock:
                inside[0] += 1
                worst[0] = max(worst[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=body) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (worst, inside) == ([1], [0])


def test_trying_never_waits() -> None:
    lock = FairLock()
    assert lock.try_acquire()
    assert not lock.try_acquire()
    lock.release()
    with lock._guard:  # as in the middle of another's acquire
        assert not lock.try_acquire()
    assert lock.try_acquire()


def test_an_error_inside_releases() -> None:
    lock = FairLock()
    with pytest.raises(ValueError, match="inside"), lock:
        raise ValueError("inside")
    assert lock.try_acquire()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests were started by a shell that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_waiting_gives_the_place_up() -> None:
    lock = FairLock()
    lock.acquire()
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    timer.join()
    assert not lock._waiting
    lock.release()
    assert lock.try_acquire()
