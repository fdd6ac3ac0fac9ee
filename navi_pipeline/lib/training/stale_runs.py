"""Runs that nobody works on any more: found by their locks, noted in the warehouse, ended when orphaned."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navi_core.machine.file_lock import is_locked
from navi_core.record import navi_home
from navi_pipeline.lib.records.logs import pipeline_log
from navi_pipeline.lib.training.supervised import SUPERVISOR
from navi_pipeline.lib.warehouse.warehouse import Warehouse

LOCK_PATIENCE = 60.0
"""Time that a run is waited for which another process holds [s]: a trainer that was stopped writes a checkpoint."""


@dataclass(frozen=True)
class SweepReport:
    """What a sweep did.

    Attributes:
        ended: Process ids of orphaned trainers that were ended.
        stale: Runs of status `running` without a lock holder; they are `stopped` now.
        leftovers: Unfinished files that were removed.
    """

    ended: list[int]
    stale: list[str]
    leftovers: int


def runs_in_use(*, prefix: str = "") -> list[str]:
    """Return the runs whose lock a process holds.

    Args:
        prefix: What the names of those runs begin with; the locks of others are not looked at.
    """
    files = sorted((navi_home() / "runs" / ".locks").glob("*.lock"))
    return [file.stem for file in files if file.name.startswith(prefix) and is_locked(file)]


def wait_for_run(run_id: str, *, ending: Callable[[], bool] = lambda: False) -> bool:
    """Let the trainer of a process that died write its last checkpoint.

    Args:
        run_id: The run, or what the names of several begin with.
        ending: Asked five times a second; once it answers True nobody waits any more.

    Returns:
        Whether nobody holds the run now.
    """
    deadline = time.monotonic() + LOCK_PATIENCE
    while held := bool(runs_in_use(prefix=run_id)):
        if time.monotonic() > deadline or ending():
            break
        time.sleep(0.2)
    return not held


def orphaned_trainers() -> dict[int, str]:
    """Return supervised trainers whose supervisor is gone: process id → run.

    The supervisor leaves its process id in the trainer's environment; a trainer that holds a run's lock and has
    another parent by now has lost it, and SIGTERM that its death sends was ignored or came too early.
    """
    found = {}
    folder = navi_home() / "runs" / ".locks"
    for run in runs_in_use():
        with contextlib.suppress(OSError, ValueError):
            pid = int((folder / f"{run}.lock").read_text())
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            supervisor = next((e for e in environment if e.startswith(f"{SUPERVISOR}=".encode())), None)
            if supervisor is not None and supervisor.partition(b"=")[2] != parent.encode():
                found[pid] = run
    return found


def sweep(*, grace_seconds: float = 30.0) -> SweepReport:
    """End orphaned trainers, mark runs that nobody holds as stopped, remove unfinished files.

    Args:
        grace_seconds: Time between SIGTERM (the trainer checkpoints) and SIGKILL [s].
    """
    ended = []
    for pid in orphaned_trainers():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGTERM)
            ended.append(pid)
    deadline = time.monotonic() + grace_seconds
    while any(_there(pid) for pid in ended) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in ended:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    stale = _mark_stale()
    leftovers = 0
    # Of a distributed replay, every shard has a folder of its own.
    for file in (navi_home() / "runs").glob("*/checkpoints/**/.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > 3600.0:
                file.unlink()
                leftovers += 1
    return SweepReport(ended, stale, leftovers)


def _mark_stale() -> list[str]:
    warehouse = Warehouse()
    there = {run for run in _running(warehouse) if (navi_home() / "runs" / run).is_dir()}
    suspects = there - set(runs_in_use())
    if not suspects:
        return []
    # Looked at once more: who let go has sent its last row before, and who has taken a run up since then holds it.
    rows = _running(warehouse)
    held = set(runs_in_use())
    stale = []
    for run, row in rows.items():
        if run not in suspects or run in held:
            continue
        stale.append(run)
        with pipeline_log(run) as log:
            # A row is replaced whole: what the trainer wrote of itself goes in again.
            kept = {name: _sent(name, value) for name, value in row.items()}
            reason = "nobody holds the run: its trainer was killed; the same command resumes it"
            log.row("runs", kept | {"status": "stopped", "reason": reason})
            log.row("events", {"event": "stale_run", "detail": reason})
    if stale:
        warehouse.ingest()
    return stale


def _running(warehouse: Warehouse) -> dict[str, dict[str, Any]]:
    """Return the rows of runs of status `running`, after an ingest."""
    warehouse.ingest()
    rows = warehouse.query("select * exclude (segment, extra) from runs where status = 'running'")
    return {str(row["run_id"]): {str(name): value for name, value in row.items()} for row in rows.to_dict("records")}


def _sent(column: str, value: object) -> object:
    """Return a value as a producer would have sent it."""
    if value is None or value != value:  # NaN and NaT differ from themselves
        return None
    if column in ("config", "versions"):
        return json.loads(str(value))
    return value.isoformat() if hasattr(value, "isoformat") else value


def _there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
