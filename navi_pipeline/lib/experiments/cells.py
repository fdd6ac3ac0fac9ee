"""Runner of the cells (variant × seed) of an experiment: each in child processes, each once, several at a time.

Out of memory, crash and timeout are outcomes of a cell. A stopped or hindered cell has no outcome, and the experiment
goes on with it the next time. A lock lets one process measure a cell, so experiments that share cells may run
concurrently; the outcome document is written last.
"""

import errno
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from navi_core.errors import RunError
from navi_core.machine import thread_variables
from navi_core.machine.file_lock import wait_for_lock
from navi_pipeline.lib.records import BenchmarkLog, read_document, write_document
from navi_pipeline.lib.records import Outcome as Status
from navi_pipeline.lib.training.supervised import interruption, run_supervised

UNITS = {
    "steps_per_second": "1/s",
    "steps_per_2_cpu_seconds": "1/s",
    "forward_ms": "ms",
    "update_ms": "ms",
    "wall_seconds": "s",
    "cpu_minutes": "min",
    "peak_memory_mb": "MB",
    "mrays_per_cpu_second": "Mrays/s",
    "error_p99": "voxel",
    "disagreement": "share",
    "c_vis_auc": "%",
    "c_vis_final": "%",
    "collisions_per_minute": "1/min",
}
"""Units of the figures by the last part of their names; 1 for those not listed."""
_STATUS: dict[int, Status] = {errno.ENOMEM: "out_of_memory", 124: "timeout"}
"""Exit code → outcome other than a crash; `navi bench` exits with 124 if its time limit allowed no measurement."""

Answer = TypeVar("Answer")
Curve = list[list[float]]
"""(decisions, smoothed reward) pairs."""


class CellError(Exception):
    """Failure of a `navi` command that is recorded as its cell's outcome.

    Args:
        status: Outcome of the cell.
        detail: Reason.
    """

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass
class Measurement:
    """Measurement of a cell under way: runs its `navi` commands, and fills its outcome in.

    Attributes:
        cell: The cell.
        outcome: Its outcome so far.
        timeout: Wall time after which a command is ended [s].
        stop: Polled twice a second; True ends the command, whose trainer then writes a checkpoint.
    """

    cell: "Cell"
    outcome: "Outcome"
    timeout: float
    stop: Callable[[], bool]

    def run(
        self,
        *arguments: str,
        read: Callable[[dict[str, Any]], Answer],
        stage: str | None = None,
        grace_seconds: float = 30.0,
    ) -> Answer:
        """Run a `navi` command in a child process, and parse the JSON document that it prints.

        Args:
            arguments: Command-line arguments of `navi`.
            read: Reader of the document.
            stage: Name of the command in messages; None for a cell of one command.
            grace_seconds: Time between SIGTERM and SIGKILL [s].

        Raises:
            CellError: It failed, which is an outcome: out of memory, crash, timeout.
            RunError: It was stopped, or the disk is full; there is no outcome yet.
        """
        self.outcome.commands.append(" ".join(("navi", *arguments)))
        where, kills = f"{stage}: " if stage else "", _kernel_kills()
        try:
            code, output, last = run_supervised(
                [sys.executable, "-m", "navi_core.cli.main", *arguments],
                on_line=lambda _: None,
                timeout=self.timeout,
                grace_seconds=grace_seconds,
                stop=self.stop,
                on_device=True,
                on_end=self._spent,
            )
        except TimeoutError as error:
            raise CellError("timeout", f"{where}{error}") from None
        why = interruption(code, last) or ("was stopped" if self.stop() else None)
        if why:
            cell = f"cell {self.cell.name} of {self.cell.benchmark}"
            raise RunError(f"{where}{cell} {why}; the same command goes on with it")
        last_line = f"{where}{last[-1] if last else 'no output'}"
        if code < 0 and _kernel_kills() > kills:
            raise CellError("out_of_memory", f"killed by the kernel: {last_line}")
        if code in _STATUS:
            raise CellError(_STATUS[code], last_line)
        if code != 0:
            raise CellError("crash", f"{f'exit code {code}' if code > 0 else f'signal {-code}'}: {last_line}")
        try:
            return read(json.loads(output))
        except (ValueError, KeyError, TypeError) as error:
            raise CellError("crash", f"{where}its answer cannot be read: {type(error).__name__} {error}") from error

    def _spent(self, cpu_seconds: float) -> None:
        self.outcome.metrics["cpu_minutes"] += cpu_seconds / 60.0


@dataclass(frozen=True)
class Cell:
    """Cell of an experiment: one variant with one seed.

    Attributes:
        factors: Factor name → level; includes the seed if there are repeats.
        file: Document of its outcome, named by the content of all that decides it.
        measure: Function that runs its commands and fills the measurement in.
        benchmark: Benchmark of its rows.
        run_id: Run of its rows.
        profile: Size of the cell in its rows; means are over cells of one profile.
        parameters: Settings in its rows.
        config_hash: Hash of the measured configuration.
    """

    factors: dict[str, Any]
    file: Path
    measure: Callable[[Measurement], None]
    benchmark: str
    run_id: str
    profile: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    config_hash: str | None = None

    @property
    def name(self) -> str:
        """Name of the cell within the experiment, such as gru/seed1."""
        return "/".join(f"seed{value}" if key == "seed" else str(value) for key, value in self.factors.items())

    @property
    def level(self) -> str:
        """Name of the cell without the seed; cells of one level are repeats."""
        return "/".join(str(value) for key, value in self.factors.items() if key != "seed")


@dataclass
class Outcome:
    """Outcome of one cell of an experiment.

    Attributes:
        cell: Name of the cell.
        level: Name of the cell without the seed.
        factors: Factor name → level.
        status: ok, out_of_memory, crash or timeout; each is a result.
        detail: Last line of output, if the status is not ok.
        metrics: Figures by name; `wall_seconds` and `cpu_minutes` always.
        curve: Reward curve; empty where none was measured.
        run_id: Run id of its rows in the warehouse.
        measured_at: Time of the measurement, ISO 8601 in UTC.
        result: File of the evaluation; empty where there is none.
        checkpoint: Evaluated checkpoint.
        commands: Commands of the cell, to be repeated by hand.
        reused: Whether the outcome was loaded from an earlier run.
    """

    cell: str
    level: str
    factors: dict[str, Any]
    status: Status = "ok"
    detail: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    curve: Curve = field(default_factory=list)
    run_id: str = ""
    measured_at: str = ""
    result: str = ""
    checkpoint: str = ""
    commands: list[str] = field(default_factory=list)
    reused: bool = field(default=False, compare=False)

    @property
    def seed(self) -> int:
        """Seed of the cell; 0 if it has none."""
        return int(self.factors.get("seed", 0))

    @property
    def summary(self) -> str:
        """Outcome in a line, with its first figures."""
        if self.status != "ok":
            return f"{self.status} after {self.metrics.get('wall_seconds', 0.0):.0f} s ({self.detail})"
        names = ("wall_seconds", "cpu_minutes", "c_vis_auc", "collisions_per_minute", "reward_ema",
                 "steps_per_second", "forward_ms")  # fmt: skip
        return ", ".join(f"{name} {self.metrics[name]:.4g}" for name in names if name in self.metrics)


def known_outcome(cell: Cell) -> Outcome | None:
    """Load the recorded outcome of a cell, whichever experiment measured it; None if it was not measured."""
    if not cell.file.exists():
        return None
    document = read_document(cell.file, made_by=cell.benchmark)
    minutes = document.get("cpu_minutes")
    if isinstance(minutes, dict):  # of an ablation of an older Navi, by command
        document["metrics"]["cpu_minutes"] = sum(minutes.values())
    kept = {one.name: document[one.name] for one in fields(Outcome) if one.name in document}
    return Outcome(**kept | {"cell": cell.name, "level": cell.level, "factors": cell.factors, "reused": True})


def failure_reasons(outcomes: Iterable[Outcome]) -> str:
    """Return why cells failed, the most frequent reason first, such as `2 timeout (not one update …)`; empty if none.

    Args:
        outcomes: Outcomes of the cells of an experiment.
    """
    reasons = Counter(f"{o.status} ({o.detail})" if o.detail else o.status for o in outcomes if o.status != "ok")
    return "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())


def run_cells(
    cells: Sequence[Cell],
    *,
    timeout: float,
    on_outcome: Callable[[Outcome], None],
    jobs: int = 1,
    again: bool = False,
) -> RunError | None:
    """Measure the cells that have no outcome, `jobs` at a time.

    Args:
        cells: Cells to measure.
        timeout: Wall time of a command [s].
        on_outcome: Called in this thread with every outcome when it is there.
        jobs: Cells at the same time.
        again: Measure all cells again; earlier rows stay in the history.

    Returns:
        Why the first cell ended that has no outcome; the others were stopped then, and go on another time.

    Raises:
        RecordError: Rows could not be written.
    """
    # An experiment that was interrupted goes on as the same run; one that is measured again is another.
    suffix = f"-{time.time_ns()}" if again else ""
    ending = threading.Event()
    failure: RunError | None = None

    def measure(cell: Cell) -> Outcome | None:
        try:
            return None if ending.is_set() else _outcome(cell, suffix, timeout, ending.is_set)
        except BaseException:
            ending.set()  # here: the thread goes on with the next cell at once
            raise

    with ThreadPoolExecutor(jobs, initializer=thread_variables()) as pool:
        try:
            for done in as_completed([pool.submit(measure, cell) for cell in cells]):
                try:
                    outcome = done.result()
                except RunError as error:
                    failure = failure or error
                else:
                    if outcome is not None:
                        on_outcome(outcome)
        finally:
            # Interrupted: what is under way is stopped, too.
            ending.set()
            pool.shutdown(cancel_futures=True)
    return failure


def _outcome(cell: Cell, suffix: str, timeout: float, stop: Callable[[], bool]) -> Outcome:
    with wait_for_lock(cell.file.with_suffix(".lock"), stop=stop):
        known = None if suffix else known_outcome(cell)
        if known is not None:
            return known
        outcome = _measured(cell, cell.run_id + suffix, timeout, stop)
        _record(cell, outcome)
        # The document comes last: while it is missing the cell counts as not done.
        write_document(cell.file, asdict(outcome))
        return outcome


def _measured(cell: Cell, run_id: str, timeout: float, stop: Callable[[], bool]) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(cell.name, cell.level, cell.factors, run_id=run_id, metrics={"cpu_minutes": 0.0})
    try:
        cell.measure(Measurement(cell, outcome, timeout, stop))
    except CellError as error:
        outcome.status, outcome.detail = error.status, str(error)
    outcome.metrics["wall_seconds"] = time.monotonic() - began
    outcome.measured_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return outcome


def _record(cell: Cell, outcome: Outcome) -> None:
    with BenchmarkLog(cell.benchmark, run_id=outcome.run_id, config_hash=cell.config_hash) as log:
        log.cell(
            cell.level,
            {name: (value, UNITS.get(name.rsplit("/")[-1], "1")) for name, value in outcome.metrics.items()},
            repeat=outcome.seed,
            seed=cell.factors.get("seed"),
            step=int(outcome.metrics.get("steps", 0)),
            profile=cell.profile,
            parameters=cell.parameters,
            outcome=outcome.status,
            detail=outcome.detail or None,
        )


def _kernel_kills() -> int:
    """Return the kernel's count of out-of-memory kills; 0 if unknown."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
