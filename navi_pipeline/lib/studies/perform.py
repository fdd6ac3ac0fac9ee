"""Study run: starts and restarts workers, follows their trials, writes the report."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import NaviError, RunError
from navi_pipeline.lib.studies.page import history_chart, write_study_page
from navi_pipeline.lib.studies.rows import record_study, record_trials, trial_row
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.lib.training.supervised import run_supervised
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings.studies import StudyConfig

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_GRACE = 90.0
"""Time that a worker has to let its trainer checkpoint [s]."""
_RESTARTS = 20


@dataclass(frozen=True)
class StudyResult:
    """What a study showed.

    Attributes:
        row: Its row of `studies`.
        trials: Latest trial of every slot as rows of `trials`, by slot.
        best: The best feasible trial, or the front.
        chart: Value by trial, or the front, SVG.
        report: HTML page.
        reused: Whether nothing had to be trained.
    """

    row: dict[str, Any]
    trials: list[dict[str, Any]]
    best: list[FrozenTrial]
    chart: str
    report: Path
    reused: bool


def perform_study(
    config: StudyConfig,
    *,
    on_line: Callable[[str], None],
    on_trial: Callable[[dict[str, Any]], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> StudyResult:
    """Carry a study to its end, begun or gone on with.

    Args:
        config: Of the study.
        on_line: Called with every line of the workers.
        on_trial: Called in this thread with the row of every slot that is done, also those of earlier sittings.
        stop: Asked once a second; once it answers True, the trainers checkpoint and the study rests.

    Raises:
        ConfigError: A study of this name has other settings, or one of its settings does not exist, or a preset differs
            from when it began.
        RecordError: Its storage cannot be opened.
        RunError: Its workers fail.
    """
    with TrialQueue(config) as queue:
        reported: set[int] = set()
        begun, differing = queue.release_lost(), queue.differing()
        if begun > 0:
            queue.require_same_settings()

        def report() -> None:
            _report_trials(queue, reported, on_trial)

        report()
        status = "stopped"  # what is cancelled from outside goes on another time
        if begun > 0:
            record_study(queue, "running")
        try:
            # A worker that ends while another still trains cannot take up what that one loses.
            for _ in range(_RESTARTS):
                left = queue.release_lost()
                if left <= 0 or stop():
                    break
                _sitting(queue, min(config.workers, left), on_line, stop, report)
                _wait_for_others(queue, on_line, stop, report)
            left = queue.release_lost()
            if left <= 0:
                status = "finished"
            elif not stop():
                raise RunError(f"{left} trials of study {config.name} have no outcome; `navi study resume` goes on")
        except NaviError:
            status = "failed"
            raise
        finally:
            # Rows hold configurations, which are made again from the preset: from another they would be others.
            if not differing:
                record_trials(queue, queue.trials())
            record_study(queue, status)
        return study_result(queue, status, reused=begun <= 0)


def study_result(queue: TrialQueue, status: str, *, reused: bool) -> StudyResult:
    """Write a study's rows and its page, and return what it shows."""
    row = record_study(queue, status)
    Warehouse().ingest()
    rows = [trial_row(queue, trial) for _, trial in sorted(queue.latest().items())]
    page = write_study_page(queue, row, rows)
    return StudyResult(row, rows, queue.best(), history_chart(queue, rows), page, reused)


def _sitting(
    queue: TrialQueue,
    workers: int,
    on_line: Callable[[str], None],
    stop: Callable[[], bool],
    each_second: Callable[[], None],
) -> None:
    """Let workers work until none finds a trial."""
    ending = threading.Event()
    with ThreadPoolExecutor(workers) as pool:
        sitting = [pool.submit(_employ, queue.config.name, on_line, ending) for _ in range(workers)]
        try:
            while wait(sitting, timeout=1.0).not_done:
                if stop():
                    ending.set()
                each_second()
        finally:
            # Cancelled from outside: each worker is stopped and leaves its trial to be taken up.
            ending.set()
        each_second()
        for employed in sitting:
            employed.result()


def _wait_for_others(
    queue: TrialQueue, on_line: Callable[[str], None], stop: Callable[[], bool], each_second: Callable[[], None]
) -> None:
    """Wait while all trials that are left are with the living workers of another command of this study."""
    announced = 0
    while 0 < (left := queue.release_lost()) <= queue.in_living_hands() and not stop():
        if left != announced:
            on_line(f"study {queue.config.name}: waiting for {left} trials that another command of it trains")
            announced = left
        time.sleep(1.0)
        each_second()


def _employ(name: str, on_line: Callable[[str], None], ending: threading.Event) -> None:
    command = [sys.executable, "-m", "navi_pipeline.lib.studies.worker", name]
    for _ in range(_RESTARTS):
        code, _, last = run_supervised(command, on_line=on_line, grace_seconds=_GRACE, stop=ending.is_set)
        if code == 0 or ending.is_set():
            return
        if code > 0:
            raise RunError(f"a worker of study {name} ended with exit code {code}; its last lines:\n" + "\n".join(last))
        on_line(f"a worker of study {name} was killed by signal {-code}; another takes its place")
    raise RunError(f"workers of study {name} were killed {_RESTARTS} times; `navi study resume {name}` goes on")


def _report_trials(queue: TrialQueue, reported: set[int], on_trial: Callable[[dict[str, Any]], None]) -> None:
    for slot, trial in sorted(queue.latest().items()):
        if slot not in reported and trial.state.is_finished() and trial.user_attrs.get("outcome") != "lost":
            reported.add(slot)
            on_trial(trial_row(queue, trial))
