"""Dagster utilities: instance and home, work clock, failed runs as rows of `events`.

The work clock counts wall and CPU time of asset and check functions; the rest of a run is orchestration.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from navi_core.errors import NaviError, RunError
from navi_core.machine import using_variables
from navi_core.machine.file_lock import is_locked, open_lock, try_lock
from navi_core.record import navi_home, write_durably
from navi_pipeline.lib.commands import dagster_step
from navi_pipeline.lib.nightly.night import Gate, Night, night_lock
from navi_pipeline.lib.nightly.stages import stages_of, summary_paths, write_summary
from navi_pipeline.lib.records import PACKAGE, pipeline_log, shipped_folder

if TYPE_CHECKING:
    import dagster as dg

PROCESS_TAG = "navi/process"
"""Dagster run tag with the machine's name, or the `process_mark` of a command that executes the run itself."""
POOL = "gpu"
"""Concurrency pool of what trains: as many slots as this machine has GPUs, at least one."""
_CREATION = 60.0
"""Time for which another process may create Dagster's tables [s]."""
FLOW_TAG = "navi/flow"
"""Dagster run tag with the profile of the flow (`navi pipeline materialize`, whole_graph) of the run; "" if none."""


def dagster_home() -> Path:
    """Return the Dagster home: `$DAGSTER_HOME`, or `dagster_home/` of the checkout.

    If there is no checkout, or it is not writable, the home is `dagster/` of the Navi home, created with Navi's
    settings.

    Raises:
        RunError: It holds no dagster.yaml, or this user may not write to it.
    """
    named = os.environ.get("DAGSTER_HOME")
    ours = shipped_folder("dagster_home")
    # A checkout has it beside the package; a copy in an installation is for reading.
    if named or (ours.parent != PACKAGE and _may_write(ours)):
        home = Path(named or ours).absolute()
    else:
        home = navi_home() / "dagster"
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "dagster.yaml").exists():
            write_durably(home / "dagster.yaml", (ours / "dagster.yaml").read_bytes())
    if not (home / "dagster.yaml").exists():
        raise RunError(f"{home} holds no dagster.yaml; unset DAGSTER_HOME, or copy {ours / 'dagster.yaml'} there")
    if not _may_write(home):
        raise RunError(f"{home}, where Dagster keeps its runs, cannot be written; unset DAGSTER_HOME, or name another")
    return home


def what_is_missing(home: Path) -> list[str]:
    """Return a message about the sections of Navi's dagster.yaml that a Dagster home lacks; empty if it has all.

    An upgrade of Navi changes only the dagster.yaml of a checkout: another home's file may contain its owner's changes.
    """
    import yaml

    ours = shipped_folder("dagster_home") / "dagster.yaml"
    # As Dagster reads it: a section that was appended again is no error there.
    all_of_them, there = (yaml.safe_load(file.read_text("utf-8")) or {} for file in (ours, home / "dagster.yaml"))
    lacks = sorted(set(all_of_them) - set(there))
    return [f"{home / 'dagster.yaml'} lacks {', '.join(lacks)}; copy that from {ours}"] if lacks else []


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


@contextmanager
def open_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """Context manager of the Dagster instance of a Dagster home, which `$DAGSTER_HOME` then names.

    Raises:
        RunError: Dagster's storage failed: a full disk, a server that does not answer.
    """
    import dagster as dg
    from dagster.components.core.component_tree import ComponentTreeException
    from sqlalchemy.exc import DBAPIError

    os.environ["DAGSTER_HOME"] = str(home)
    try:
        with _opened_alone(home, lambda: dg.DagsterInstance.from_config(str(home))) as instance:
            yield instance
    except (DBAPIError, ComponentTreeException) as error:
        # The second wraps the first where Dagster loads definitions.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, DBAPIError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise RunError(
            f"Dagster's storage of {home} failed: {cause.orig}; next: see to its disk or server; then the same command"
        ) from error


def _opened_alone(home: Path, open_storage: Callable[[], dg.DagsterInstance]) -> dg.DagsterInstance:
    """Open a Dagster home while no other process does: two that create its tables at once break it for good."""
    descriptor = -1
    try:
        with suppress(OSError):  # a folder for reading, a disk without locks
            descriptor = open_lock(home / "storage.lock")
            if try_lock(descriptor, _CREATION):
                _remove_half_made(home / "history" / "runs" / "index.db")
        return open_storage()
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _remove_half_made(index: Path) -> None:
    """Remove an event index whose creation was killed: Dagster creates its tables only where the file is missing."""
    if not index.exists():
        return
    complete = True
    with suppress(sqlite3.Error), closing(sqlite3.connect(index)) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
        some = "event_logs" in tables and connection.execute("select 1 from event_logs").fetchone()
        complete = "alembic_version" in tables or bool(some)
    if not complete:
        # The database last: a log that stays behind without it would be replayed into the new one.
        for suffix in ("-wal", "-shm", "-journal", ""):
            index.with_name(index.name + suffix).unlink(missing_ok=True)


F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Work:
    """Wall and CPU time of this process and its ended children [s]."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Work) -> Work:
        return Work(self.wall - other.wall, self.cpu - other.cpu)


WORK: defaultdict[str, Work] = defaultdict(Work)
"""Wall and CPU time counted in this process, by name of the asset's or check's function."""


def now() -> Work:
    """Read wall and CPU clocks; only differences are meaningful."""
    return Work(time.monotonic(), sum(os.times()[:4]))


@contextmanager
def worked_as(name: str) -> Iterator[None]:
    """Context manager or decorator that times its block or calls and adds wall and CPU time to `WORK[name]`.

    Meanwhile `NAVI_DAGSTER_RUN_ID` names the Dagster run, so that rows of this thread and its children carry it.
    """
    began, context = now(), dagster_step()
    try:
        with using_variables(NAVI_DAGSTER_RUN_ID=None if context is None else context.run_id):
            yield
    finally:
        WORK[name] += now() - began


def worked(function: F) -> F:
    """Decorator of an asset's or check's function: sums its time, records a check's result, rounds metadata."""

    @wraps(function)
    def measured(*values: object, **named: object) -> object:
        with worked_as(function.__name__):
            made: Any = function(*values, **named)
            made = made._replace(metadata=rounded(made.metadata or {}))
            if hasattr(made, "passed"):
                record_check(made)
        return made

    return measured  # type: ignore[return-value]


def record_check(found: dg.AssetCheckResult | dg.AssetCheckEvaluation) -> None:
    """Record the evaluation of an asset check as a row of `checks`; outside of a Dagster run nothing is recorded.

    Args:
        found: Result of a step with one check, or a result or evaluation that names its check.
    """
    context = dagster_step()
    if context is None:
        return
    if found.asset_key is not None and found.check_name is not None:
        asset, name = found.asset_key, found.check_name
    else:
        ((asset, name),) = context.selected_asset_check_keys
    partition = getattr(found, "partition", None) or (context.partition_key if context.has_partition_key else None)
    metadata = {name: value.value for name, value in (found.metadata or {}).items()}
    with pipeline_log(f"dagster-{context.run_id}") as log:
        log.row(
            "checks",
            {
                "asset": asset.to_user_string(),
                "check_name": name,
                "partition": partition,
                "passed": found.passed,
                "severity": found.severity.value,
                "description": found.description,
                "metadata": {name: v if isinstance(v, int | float | str) else str(v) for name, v in metadata.items()},
            },
        )


def rounded(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as people read it, without None: two decimals from 10 on, else four significant digits."""
    import dagster as dg

    shown = {name: value for name, value in metadata.items() if value is not None}
    for name, value in shown.items():
        number = value.value if isinstance(value, dg.FloatMetadataValue) else value
        if isinstance(number, float):
            near = round(number, 2) if abs(number) >= 10 else float(f"{number:.4g}")
            shown[name] = near if number is value else dg.FloatMetadataValue(near)
    return shown


def materialized(metadata: dict[str, Any], version: str) -> dg.MaterializeResult[None]:
    """Build a materialize result from metadata, shown as by `rounded`, and the data version."""
    import dagster as dg

    return dg.MaterializeResult(metadata=rounded(metadata), data_version=dg.DataVersion(version))


def record_failure(
    run_id: str, job: str, message: str, steps: Sequence[tuple[str, str]], *, night: str | None = None
) -> None:
    """Record a failed Dagster run as a row of `events`, and write the summary of a night that broke down.

    Args:
        run_id: Dagster run id.
        job: Name of the Dagster job.
        message: Dagster's failure message.
        steps: Failed steps and their messages.
        night: Name of the night, if the run was one.
    """
    with pipeline_log(f"dagster-{run_id}") as log:
        detail = f"{job}: {'; '.join(f'{step}: {text}' for step, text in steps) or message}"
        log.row("events", {"event": "run_failure", "detail": detail, "job": job, "steps": [step for step, _ in steps]})
    if night is None:
        return
    try:
        broken = Night(None, night, report=lambda _: None, keep_failed=True)
    except NaviError:
        return  # it broke down before its first stage was over: there is nothing to summarise
    if (broken.failed or set(broken.stages) >= set(stages_of(broken.config))) and summary_paths(night)[0].exists():
        return  # a hard gate failed the run, or the night was over before this run took it up: its summary reports it
    if is_locked(night_lock(night)):
        return  # another run is at work on it, and this one was refused
    broken.note("run", Gate("the run ends", True, False, detail))
    write_summary(broken)
