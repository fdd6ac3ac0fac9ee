"""Runner for the cells (factor combinations) of a sweep: one after the other, each in a child process, each once.

Out of memory, crash and timeout are recorded as outcomes. Only an interruption of the sweep itself stops it; it then
resumes with the first cell without an outcome.
"""

import errno
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from navi_core.errors import RunError
from navi_core.machine.file_lock import wait_for_lock
from navi_core.record import hardware_profile
from navi_pipeline.lib.records import BenchmarkLog, content_key, pipeline_folder, read_document, write_document
from navi_pipeline.lib.records import Outcome as Status
from navi_pipeline.lib.training.supervised import interruption, run_supervised
from navi_pipeline.settings import SweepConfig

UNITS = {
    "steps_per_second": "1/s",
    "steps_per_2_cpu_seconds": "1/s",
    "forward_ms": "ms",
    "update_ms": "ms",
    "wall_seconds": "s",
    "peak_memory_mb": "MB",
    "mrays_per_cpu_second": "Mrays/s",
    "error_p99": "voxel",
    "disagreement": "share",
}
"""Units of the figures by the last part of their names; 1 for those not listed."""


def read_train(document: dict[str, Any]) -> tuple[dict[str, float], list[list[float]]]:
    """Extract metrics and reward curve from the JSON output of `navi bench train --json`."""
    updating = [
        float(stage["seconds"])
        for stage in document["stages"]
        if stage["name"].startswith("update/") and stage["name"].count("/") == 1
    ]
    figures = {
        "steps": float(document["total_steps"]),
        "reward_ema": float(document["reward_ema"]),
        "steps_per_second": float(document["steps_per_second"]),
        "steps_per_2_cpu_seconds": float(document["steps_per_2_cpu_seconds"]),
        "update_ms": 1e3 * sum(updating) / max(int(document["updates"]), 1),
        "peak_memory_mb": float(document["peak_memory_mb"]),
    }
    if document["forward_ms"] is not None:
        figures["forward_ms"] = float(document["forward_ms"])
    return figures, [[float(steps), float(reward)] for steps, reward in document["curve"]]


Answer = TypeVar("Answer")
Reader = Callable[[dict[str, Any]], tuple[dict[str, float], list[list[float]]]]


@dataclass(frozen=True)
class Cell:
    """Cell of a sweep: one combination of factors, measured by one `navi` command in a child process.

    Attributes:
        factors: Factor name → level; includes the seed if there are repeats.
        arguments: Arguments of `navi`; the command prints one JSON document.
        read: Parser of that document: returns figures by name, and (decisions, reward) pairs.
        settings: Contents of the file given as `--config`; None: no such file.
        scenes: Scene files given as `--scene`.
        scene_hashes: Content hashes of the scenes, part of the key.
        asked: Options that differ from the profile's defaults, by name.
    """

    factors: dict[str, Any]
    arguments: tuple[str, ...]
    read: Reader
    settings: dict[str, Any] | None = None
    scenes: tuple[str, ...] = ()
    scene_hashes: tuple[str, ...] = ()
    asked: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the cell within the sweep, such as gru/seed1."""
        return "/".join(f"seed{value}" if key == "seed" else str(value) for key, value in self.factors.items())

    @property
    def level(self) -> str:
        """Values of the swept parameters (the name without the seed); cells of one level are repeats."""
        return "/".join(str(value) for key, value in self.factors.items() if key != "seed")


@dataclass(frozen=True)
class Outcome:
    """Outcome of one cell of a sweep: status, metrics, reward curve.

    Attributes:
        cell: Name of the cell.
        level: Name of the cell without the seed.
        factors: Factor name → level.
        status: ok, out_of_memory, crash or timeout; each is a result.
        detail: Last line of output, if the status is not ok.
        metrics: Figures by name; `wall_seconds` always.
        curve: (decisions, smoothed reward) pairs.
        run_id: Run id of its rows in the warehouse.
        measured_at: Time of the measurement, ISO 8601 in UTC.
        reused: Whether the outcome was loaded from an earlier run.
    """

    cell: str
    level: str
    factors: dict[str, Any]
    status: Status
    detail: str
    metrics: dict[str, float]
    curve: list[list[float]]
    run_id: str
    measured_at: str
    reused: bool = field(default=False, compare=False)


_STATUS: dict[int, Status] = {errno.ENOMEM: "out_of_memory", 124: "timeout"}
"""Exit code → outcome other than a crash; `navi bench` exits with 124 if its time limit allowed no measurement."""
_VERSION = 1


def run_cells(
    sweep: str,
    cells: Sequence[Cell],
    config: SweepConfig,
    *,
    on_line: Callable[[str], None],
    again: bool = False,
) -> list[Outcome]:
    """Run the pending cells (factor combinations) of a sweep, and return the outcomes of all.

    Args:
        sweep: Name of the sweep.
        cells: Cells to measure.
        config: Settings of the sweep, with time and memory limits of a cell.
        on_line: Called with a line for every cell.
        again: Measure all cells again; earlier rows stay in the history.

    Raises:
        RunError: A cell was stopped, or the disk is full; it has no outcome yet.
    """
    outcomes: list[Outcome] = []
    keys = [cell_key(sweep, cell) for cell in cells]
    # A sweep that was interrupted goes on as the same run; one that is asked for again is another.
    run_id = f"{sweep}-{config.profile}-{content_key(keys)}" + (f"-{time.time_ns()}" if again else "")
    for number, (cell, key) in enumerate(zip(cells, keys, strict=True), start=1):
        file = outcome_path(sweep, cell)
        # One process measures a cell: another one of the same sweep waits for what it finds.
        with wait_for_lock(file.with_suffix(".lock")):
            if file.exists() and not again:
                outcomes.append(Outcome(**(read_document(file, made_by=sweep) | {"reused": True})))
                continue
            outcome = _measure(sweep, cell, key, run_id, config)
            _record(sweep, cell, outcome, config)
            # The document comes last: while it is missing the cell counts as not done.
            write_document(file, asdict(outcome))
        outcomes.append(outcome)
        on_line(f"{sweep} {number}/{len(cells)} {cell.name}: {_described(outcome)}")
    return outcomes


ALL_FAILED = "mend that, then give the same command again, which measures all of them anew"


def failure_reasons(outcomes: Iterable[Any]) -> str:
    """Return why cells failed, the most frequent reason first, such as `2 timeout (not one update …)`; empty if none.

    Args:
        outcomes: Outcomes of the cells of a sweep or an ablation.
    """
    reasons = Counter(f"{o.status} ({o.detail})" if o.detail else o.status for o in outcomes if o.status != "ok")
    return "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())


def outcome_path(sweep: str, cell: Cell) -> Path:
    """Return the path of the JSON document that holds a cell's outcome."""
    return pipeline_folder() / "sweeps" / sweep / f"{cell_key(sweep, cell)}.json"


def cell_key(sweep: str, cell: Cell) -> str:
    """Return the cache key of a measurement: cell, scene contents, machine, library versions."""
    profile = hardware_profile()
    machine = [profile["hardware"], profile["versions"]]
    return content_key(sweep, cell.factors, cell.arguments, cell.settings, cell.scene_hashes, machine, _VERSION)


def _measure(sweep: str, cell: Cell, key: str, run_id: str, config: SweepConfig) -> Outcome:
    arguments = [*cell.arguments, *(word for scene in cell.scenes for word in ("--scene", scene))]
    if cell.settings is not None:
        file = pipeline_folder() / "configs" / f"{sweep}-{key}.json"
        write_document(file, cell.settings)
        arguments += ["--config", str(file)]
    began = time.monotonic()
    status: Status = "ok"
    detail, metrics, curve = "", dict[str, float](), list[list[float]]()
    try:
        metrics, curve = run_command(
            arguments, f"cell {cell.name} of {sweep}", cell.read, timeout=config.timeout, grace_seconds=2.0
        )
    except CellError as error:
        status = error.status
        detail = str(error)
    metrics["wall_seconds"] = time.monotonic() - began
    return Outcome(
        cell=cell.name,
        level=cell.level,
        factors=cell.factors,
        status=status,
        detail=detail,
        metrics=metrics,
        curve=curve,
        run_id=run_id,
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


class CellError(Exception):
    """Failure of a `navi` command that is recorded as its cell's outcome.

    Args:
        status: Outcome of the cell.
        detail: Reason.
    """

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def run_command(
    arguments: Sequence[str],
    name: str,
    read: Callable[[dict[str, Any]], Answer],
    *,
    timeout: float,
    grace_seconds: float = 30.0,
    on_line: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Run a `navi` command of a cell in a child process, and parse the JSON document that it prints.

    Args:
        arguments: Command-line arguments of `navi`.
        name: Name of the cell in error messages.
        read: Reader of the document.
        timeout: Wall time after which it is ended [s].
        grace_seconds: Time between SIGTERM and SIGKILL [s].
        on_line: Called with every line of its standard error.

    Raises:
        CellError: It failed, which is an outcome: out of memory, crash, timeout.
        RunError: It was stopped, or the disk is full; there is no outcome yet.
    """
    command, kills = [sys.executable, "-m", "navi_core.cli.main", *arguments], _kernel_kills()
    try:
        code, output, last = run_supervised(
            command, on_line=on_line, timeout=timeout, grace_seconds=grace_seconds, on_device=True
        )
    except TimeoutError as error:
        raise CellError("timeout", str(error)) from None
    if why := interruption(code, last):
        raise RunError(f"{name} {why}; the same command goes on with it")
    last_line = last[-1] if last else "no output"
    if code < 0 and _kernel_kills() > kills:
        raise CellError("out_of_memory", f"killed by the kernel: {last_line}")
    if code in _STATUS:
        raise CellError(_STATUS[code], last_line)
    if code != 0:
        raise CellError("crash", f"{f'exit code {code}' if code > 0 else f'signal {-code}'}: {last_line}")
    try:
        return read(json.loads(output))
    except (ValueError, KeyError, TypeError) as error:
        raise CellError("crash", f"its answer cannot be read: {type(error).__name__} {error}") from error


def _kernel_kills() -> int:
    """Return the kernel's count of out-of-memory kills; 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _record(sweep: str, cell: Cell, outcome: Outcome, config: SweepConfig) -> None:
    digest = content_key(cell.arguments, cell.settings)
    with BenchmarkLog(sweep, run_id=outcome.run_id, config_hash=digest) as log:
        log.cell(
            cell.level,
            {name: (value, UNITS.get(name.rsplit("/")[-1], "1")) for name, value in outcome.metrics.items()},
            repeat=int(cell.factors.get("seed", 0)),
            seed=cell.factors.get("seed"),
            step=int(outcome.metrics.get("steps", 0)),
            profile=_size(cell, config),
            parameters={"profile": config.profile, **cell.factors},
            outcome=outcome.status,
            detail=outcome.detail or None,
        )


def _size(cell: Cell, config: SweepConfig) -> str:
    """Return the group-by key of a cell for averages: profile and changed options, such as `full, steps 5000`."""
    return ", ".join([config.profile, *(f"{name} {value}" for name, value in sorted(cell.asked.items()))])


def _described(outcome: Outcome) -> str:
    if outcome.status != "ok":
        return f"{outcome.status} after {outcome.metrics['wall_seconds']:.0f} s ({outcome.detail})"
    shown = [name for name in ("reward_ema", "steps_per_second", "forward_ms") if name in outcome.metrics]
    rest = [f"{name} {outcome.metrics[name]:.4g}" for name in shown]
    return ", ".join([f"{outcome.metrics['wall_seconds']:.0f} s", *rest])
