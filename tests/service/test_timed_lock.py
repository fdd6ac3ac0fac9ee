"""TimedLock measures its holders."""

import gc
import threading
import time
from contextlib import contextmanager

import pytest

from navi_core.service.timed_lock import TimedLock


@contextmanager
def collecting(threshold: int):
    """Collect garbage that often; gives the rounds that have begun."""
    rounds, before = [], gc.get_threshold()
    gc.callbacks.append(notice := lambda phase, info: rounds.append(phase))
    gc.set_threshold(threshold)
    try:
        yield rounds
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(notice)


def test_lock_counts_work_time_without_sleep() -> None:
    lock = TimedLock()
    for _ in range(3):
        with lock.held():
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
            time.sleep(0.05)
    assert lock.holders == lock.long == 3 and 0.06 <= lock.work < 0.15 and 0.02 <= lock.longest_work < 0.07
    assert (lock.holds() >= 0.07).all() and len(lock.holds()) == 3


def litter() -> list[list[int]]:
    return [[n] for n in range(1_000)]


def test_garbage_is_collected_only_outside_the_lock() -> None:
    lock = TimedLock()
    with collecting(10) as rounds:
        with lock.held():
            rounds.clear()
            litter()
            assert not rounds
        litter()
        assert rounds and gc.isenabled()
        with pytest.raises(ValueError, match="inside"), lock.held():
            raise ValueError("inside")
        rounds.clear()
        litter()
        assert rounds


def test_garbage_waits_for_the_last_of_two_holders() -> None:
    one, two = TimedLock(), TimedLock()
    first, second, over = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with one.held():
            first.set()
            assert second.wait(30)
        over.set()

    thread = threading.Thread(target=hold)
    thread.start()
    with collecting(10) as rounds:
        assert first.wait(30)
        with two.held():
            second.set()
            assert over.wait(30)
            rounds.clear()
            litter()
            assert not rounds
        litter()
        assert rounds
    thread.join()


def test_lock_keeps_a_disabled_collector_off() -> None:
    lock, other = TimedLock(), TimedLock()
    with lock.held(), lock.held(timeout=0.01) as held:
        assert not held
    assert gc.isenabled()
    with lock.held(), other.held():
        pass
    assert gc.isenabled()
    gc.disable()
    try:
        with lock.held():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
