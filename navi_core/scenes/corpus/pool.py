"""Process pool for parallel scene compilation; a failure is reported and stops no other scene.

Processes and not threads, started fresh (`spawn`): kernels, their thread pools and half of the work's memory cannot be
shared safely. A worker that the system kills costs its scene only. A worker stops by itself when its parent is gone.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from navi_core.config import CompileConfig
from navi_core.errors import NaviError, SceneError
from navi_core.machine import chosen_threads, usable_cores
from navi_core.scenes.memory import CompileEstimate, available_memory

_GRACE = 10.0
"""Seconds a worker has to remove its temporary file before it is killed."""
_POLL = 0.2
_WORTH_IT = 15.0
"""Seconds of work below which processes are not started: each takes a few to begin."""
_PROCESS = 400 << 20
"""Memory of a fresh process with its libraries [bytes]."""


@dataclass(frozen=True)
class Job:
    """Compilation job of one scene for the process pool."""

    source: Any
    """The `SceneSource`."""
    out: Path
    """Folder of the result."""
    config: CompileConfig
    """How to compile."""


Work = Callable[[Job, Callable[[str, float], None]], Any]
"""Does one job; must be importable by a new process."""


def default_jobs(estimates: Sequence[CompileEstimate]) -> int:
    """Return the default number of parallel compilations, limited by cores, scenes and available memory.

    Small jobs stay in this process: starting workers would take longer.

    Args:
        estimates: What each scene will take.
    """
    if sum(estimate.seconds for estimate in estimates) < _WORTH_IT:
        return 1
    cores, have = usable_cores(), available_memory()
    # A process needs its libraries besides; a fifth of the memory is left to everybody else.
    largest = max(estimate.memory for estimate in estimates) + _PROCESS
    fitting = cores if have is None else int(0.8 * have / largest)
    return max(1, min(cores, fitting, len(estimates)))


def run_jobs(
    jobs: Sequence[Job], work: Work, count: int, progress: Callable[[dict[str, str], float], None]
) -> Generator[tuple[int, Any], None, None]:
    """Run jobs in a process pool and yield (index, result or `NaviError`) on completion; in-process below two workers.

    Closing the iterator, or an interruption, stops the workers; none leaves half a file.

    Args:
        jobs: What to do.
        work: Does one of them.
        count: Workers.
        progress: Called with the stage of every scene being compiled, and the share of all that is done.
    """
    if count < 2:
        yield from _run_here(jobs, work, progress)
        return
    context = multiprocessing.get_context("spawn")
    waiting = deque(range(len(jobs)))
    threads = max(1, usable_cores() // count)
    workers: list[_Worker] = []
    done = 0
    try:
        while waiting or workers:
            while waiting and len(workers) < count and not any(worker.job is None for worker in workers):
                workers.append(_Worker(context, work, threads))
                workers[-1].give(waiting.popleft(), jobs)
            for worker in [w for w in workers if w.job is None]:
                if waiting:
                    worker.give(waiting.popleft(), jobs)
                else:
                    worker.pipe.close()
                    worker.process.join(_GRACE)
                    workers.remove(worker)
            ready = wait([worker.pipe for worker in workers], _POLL)
            for worker in [w for w in workers if w.pipe in ready]:
                ended = worker.hear(jobs)
                if ended is not None:
                    done += 1
                    yield ended
                if worker.lost:
                    workers.remove(worker)
            stages = {jobs[w.job].source.name: w.stage for w in workers if w.job is not None}
            share = done + sum(worker.share for worker in workers if worker.job is not None)
            progress(stages, share / len(jobs))
    finally:
        _stop(workers)


def _run_here(
    jobs: Sequence[Job], work: Work, progress: Callable[[dict[str, str], float], None]
) -> Iterator[tuple[int, Any]]:
    for index, job in enumerate(jobs):

        def report(stage: str, share: float, index: int = index, name: str = job.source.name) -> None:
            progress({name: stage}, (index + min(max(share, 0.0), 1.0)) / len(jobs))

        report("starting", 0.0)
        try:
            yield index, work(job, report)
        except NaviError as error:
            yield index, error


class _Worker:
    """Worker process of the pool with its pipe, current job and progress."""

    def __init__(self, context: multiprocessing.context.SpawnContext, work: Work, threads: int) -> None:
        self.pipe, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(other, work), daemon=True)
        with _threads_for_children(threads):
            self.process.start()
        other.close()
        self.job: int | None = None
        self.stage, self.share, self.lost = "starting", 0.0, False

    def give(self, job: int, jobs: Sequence[Job]) -> None:
        self.job, self.stage, self.share = job, "starting", 0.0
        # A worker that is already gone shows as the end of its pipe.
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            self.pipe.send(jobs[job])

    def hear(self, jobs: Sequence[Job]) -> tuple[int, Any] | None:
        """Receive one message from the worker; return (job, result) if the job has ended, None for progress."""
        job = self.job
        assert job is not None
        try:
            kind, *content = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.lost = True
            self.process.join(_GRACE)
            code = self.process.exitcode
            why = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            hint = "; that is what happens when memory runs out: retry with --jobs 1" if code == -signal.SIGKILL else ""
            return job, SceneError(f"{jobs[job].source.origin}: its process ended early ({why}){hint}")
        if kind == "stage":
            self.stage, self.share = content
            return None
        self.job, self.share = None, 0.0
        return job, content[0]


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
        worker.pipe.close()
    for worker in workers:
        worker.process.join(_GRACE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


@contextlib.contextmanager
def _threads_for_children(threads: int) -> Iterator[None]:
    """Context manager that limits OMP and numba threads of child processes started inside it."""
    names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    # User-set variables stay.
    chosen = chosen_threads()
    os.environ.update({name: str(threads) for name in names if name not in chosen})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(pipe: Connection, work: Work) -> None:
    """Main loop of a worker process: run the jobs from the pipe until it closes."""
    # The terminal sends Ctrl-C to every process; the parent decides. SystemExit lets files be cleaned up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    while True:
        try:
            job = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            result: Any = work(job, lambda stage, share: pipe.send(("stage", stage, share)))
        except NaviError as error:
            result = error
        except MemoryError:
            result = SceneError(f"{job.source.origin}: not enough memory; choose a lower resolution or --jobs 1")
        except Exception as error:
            result = SceneError(f"{job.source.origin}: {type(error).__name__}: {error}")
        # Without the parent there is no next job either.
        with contextlib.suppress(ConnectionError):
            pipe.send(("result", result))
