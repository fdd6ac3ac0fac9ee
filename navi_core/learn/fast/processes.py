"""Several processes of the fast path: each has its rows, and the mean of their gradients makes every step.

Processes, not threads: the loops between the matrix products are too short to be shared, and Python has one
interpreter each. Gradients lie in shared memory and are added in the order of the ranks, so that all processes
take the same step and their weights stay equal to the last bit. Each brings the advantages of its own rows to mean 0
and deviation 1, so the steps are not those of one process with all rows.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from queue import Empty
from threading import BrokenBarrierError
from typing import Any

import numpy as np

from navi_core.config.fast import FastPPOConfig
from navi_core.errors import ConfigError, NaviError
from navi_core.learn.fast.ppo import FastPPO, Team

__all__ = ["Member", "ProcessResult", "train_together"]

_LOOK = 1.0
"""Seconds between two looks whether all processes live; a run may take as long as it takes."""
_LEFT = "left alone"
"""What a process says that was waiting for one that failed."""


@dataclass(frozen=True)
class ProcessResult:
    """What one process did.

    Attributes:
        steps: Decisions of all processes.
        cpu_seconds: Its CPU time [s].
        seconds: Its wall time [s].
        peak_mb: Its largest resident memory [MB].
        mean_return: Mean return of its last 100 training episodes.
        params: (P,) its weights at the end.
    """

    steps: int
    cpu_seconds: float
    seconds: float
    peak_mb: float
    mean_return: float
    params: np.ndarray


class Member(Team):
    """One of several processes.

    Args:
        rank: Which one.
        size: How many.
        gradients: (size, P) float32 in shared memory.
        barrier: Met by all of them.
    """

    def __init__(self, rank: int, size: int, gradients: np.ndarray, barrier: Any) -> None:
        self.rank, self.size, self._gradients, self._barrier = rank, size, gradients, barrier

    def sum(self, gradient: np.ndarray) -> None:
        """Replace a gradient by the mean over the processes."""
        self._gradients[self.rank] = gradient
        self._barrier.wait()
        np.add.reduce(self._gradients, axis=0, out=gradient)
        gradient *= np.float32(1.0 / self.size)
        # Nobody writes the next gradient before everybody has read this one.
        self._barrier.wait()


def train_together(config: FastPPOConfig, processes: int) -> list[ProcessResult]:
    """Train in several processes; return what each did, in the order of their ranks.

    Args:
        config: Settings; rows and minibatches are shared out.
        processes: How many.

    Raises:
        ConfigError: The rows cannot be shared out evenly.
        NaviError: A process failed or was killed; why the first of them did is told.
    """
    if processes < 1 or config.rows % processes:
        raise ConfigError(f"rows {config.rows} cannot be shared by {processes} processes; use a multiple of them")
    spawn = multiprocessing.get_context("spawn")
    example = FastPPO(config.model_copy(update={"rows": processes}))
    shape = (processes, len(example.network.params))
    memory = SharedMemory(create=True, size=int(np.prod(shape)) * 4)
    barrier, queue = spawn.Barrier(processes), spawn.Queue()
    members = [
        spawn.Process(target=_member, args=(config, rank, shape, memory.name, barrier, queue), daemon=True)
        for rank in range(processes)
    ]
    try:
        for member in members:
            member.start()
        found = _gather(members, queue)
        failure = _failure(found)
        if failure is not None:
            raise NaviError(f"a process of the fast path failed: {failure}")
        return [what for _, what in sorted(found, key=lambda pair: pair[0])]
    finally:
        for member in members:
            member.join(5.0)
            # Nothing of it is worth an orderly end, and it may have inherited that SIGTERM is ignored.
            member.kill()
            member.join()
        memory.close()
        memory.unlink()


def _gather(members: Sequence[Any], queue: Any) -> list[tuple[int, Any]]:
    """Return what the processes say, in the order in which it came; end them where one was killed."""
    found: list[tuple[int, Any]] = []
    silent: set[int] = set()
    while len(found) < len(members):
        try:
            found.append(queue.get(timeout=_LOOK))
        except Empty:
            heard = {rank for rank, _ in found}
            gone = {rank for rank, member in enumerate(members) if rank not in heard and not member.is_alive()}
            # What one says as it ends is on its way for a moment; at the second look there is nothing to come.
            lost = sorted(gone & silent)
            if lost:
                for member in members:
                    member.kill()
                return found + [(n, f"it ended with exit code {members[n].exitcode} and said nothing") for n in lost]
            silent = gone
    return found


def _failure(found: Sequence[tuple[int, Any]]) -> str | None:
    """Return why the first process failed; None where none did. To be left alone is a consequence, not a cause."""
    failed = [(what == _LEFT, f"process {rank}: {what}") for rank, what in found if isinstance(what, str)]
    return min(failed, key=lambda one: one[0])[1] if failed else None


def _end_with_parent() -> None:
    """End this process when its parent is gone: it would wait at the barrier for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _member(config: FastPPOConfig, rank: int, shape: tuple[int, int], name: str, barrier: Any, queue: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    memory = SharedMemory(name=name)
    try:
        # In a function of its own: the mapping cannot be closed while an array lies in it.
        queue.put((rank, _trained(config, rank, shape, memory, barrier)))
    except BrokenBarrierError:
        queue.put((rank, _LEFT))
    except Exception as error:
        queue.put((rank, f"{type(error).__name__}: {error}"))
        barrier.abort()
    finally:
        memory.close()


def _trained(
    config: FastPPOConfig, rank: int, shape: tuple[int, int], memory: SharedMemory, barrier: Any
) -> ProcessResult:
    gradients = np.ndarray(shape, dtype=np.float32, buffer=memory.buf)
    _warm(config)
    trainer = FastPPO(config, Member(rank, shape[0], gradients, barrier))
    barrier.wait()
    start = time.perf_counter()
    result = trainer.train()
    params = trainer.network.params.copy()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - start
    return ProcessResult(result.steps, result.cpu_seconds, seconds, peak, result.mean_return, params)


def _warm(config: FastPPOConfig) -> None:
    """Compile the loops, or read them from the cache."""
    trainer = FastPPO(config.model_copy(update={"rows": 1, "epochs": 1}))
    trainer.collect()
    trainer.update()
