"""Supervised child processes: launch, termination, detection of orphans and stale runs.

The child leads its own process group and receives SIGTERM when its parent dies, so no cancelled run or killed worker
leaves an orphan. Cancelling sends SIGTERM to the group (a trainer writes a checkpoint and exits), and SIGKILL after a
grace period. A stale run is detected by its free lock and marked in the warehouse.
"""

import contextlib
import errno
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from navi_core.errors import UnavailableError
from navi_core.machine import variables
from navi_core.machine.devices import hold_device
from navi_core.machine.file_lock import is_locked
from navi_core.presets import environment_overrides
from navi_core.record import navi_home
from navi_pipeline.lib.records import pipeline_folder, pipeline_log
from navi_pipeline.lib.warehouse.warehouse import Warehouse

SUPERVISOR = "SUPERVISED_BY"
"""Environment variable with the supervisor's process id, to distinguish an orphan from a separate run."""

# Runs in the child before the real program: PR_SET_PDEATHSIG = 1. The parent may have died before the call, and may
# block or ignore SIGTERM, which a child inherits: Dagster gives it the handler of SIGINT, which background jobs ignore.
_GUARD = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)
if os.getppid() != parent:
    sys.exit(143)
os.execv(sys.argv[2], sys.argv[2:])
"""


def run_supervised(
    command: list[str],
    *,
    on_line: Callable[[str], None],
    grace_seconds: float = 30.0,
    timeout: float | None = None,
    stop: Callable[[], bool] | None = None,
    on_device: bool = False,
    on_end: Callable[[float], None] | None = None,
) -> tuple[int, str, list[str]]:
    """Run a command as a supervised child process, in this environment without `NAVI_*` settings.

    Args:
        command: Program (an absolute path) and arguments.
        on_line: Called in this thread with every line of the child's standard error.
        grace_seconds: Time between SIGTERM and SIGKILL when this call is interrupted [s].
        timeout: Time after its start when the child is ended [s]; None: it may take as long as it likes.
        stop: Asked twice a second; once it answers True the child is sent SIGTERM and has the grace period to end.
        on_device: Wait for a free GPU where the machine has any, and show the child this one alone.
        on_end: Called with the processor time of the child and of its own children, however it ends [s].

    Returns:
        Exit code (negative: the signal), standard output, the last 20 lines of standard error.

    Raises:
        TimeoutError: The time was up; the child has been ended.
    """
    with ExitStack() as held:
        environment, inherited = dict[str, str](), tuple[int, ...]()
        if on_device:
            folder = pipeline_folder() / "devices"
            device = hold_device(folder, report=on_line, ending=stop or (lambda: False))
            environment, inherited = held.enter_context(device)
        process = subprocess.Popen(
            [sys.executable, "-c", _GUARD, str(os.getpid()), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=inherited,
            env=_environment() | environment | {SUPERVISOR: str(os.getpid())},
        )
        return _follow(process, on_line, grace_seconds, timeout, stop, on_end)


def _follow(
    process: subprocess.Popen[str],
    on_line: Callable[[str], None],
    grace_seconds: float,
    timeout: float | None,
    stop: Callable[[], bool] | None,
    on_end: Callable[[float], None] | None,
) -> tuple[int, str, list[str]]:
    """Forward a child's lines until it ends or must end; return its exit code, output and last lines."""
    deadline = None if timeout is None else time.monotonic() + timeout
    lines: queue.Queue[str | None] = queue.Queue()
    output: list[str] = []
    last: deque[str] = deque(maxlen=20)
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=_read_lines, args=(process.stderr, lines), daemon=True),
        threading.Thread(target=lambda: output.append(process.stdout.read()), daemon=True),  # type: ignore[union-attr]
    ]
    for reader in readers:
        reader.start()
    stopped_at: float | None = None
    try:
        while True:
            if stopped_at is None and stop is not None and stop():
                stopped_at = time.monotonic()
                _signalled(process.pid, signal.SIGTERM)
            if stopped_at is not None and time.monotonic() > stopped_at + grace_seconds:
                break
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"not done after {timeout:g} s")
            # A timeout lets signals of a cancelling parent through.
            try:
                line = lines.get(timeout=0.5)
            except queue.Empty:
                continue
            if line is None:
                _wait(process.pid, math.inf if stopped_at is None else grace_seconds)
                break
            last.append(line)
            on_line(line)
    finally:
        _end(process, grace_seconds if stopped_at is None else 0.0, on_end)
    for reader in readers:
        reader.join(timeout=5.0)
    return process.returncode, "".join(output), list(last)


def _read_lines(stream: IO[str], into: queue.Queue[str | None]) -> None:
    for line in stream:
        into.put(line.rstrip("\n"))
    into.put(None)


def _end(process: subprocess.Popen[str], grace_seconds: float, on_end: Callable[[float], None] | None) -> None:
    """Terminate the child's process group: SIGTERM, grace period, SIGKILL."""
    if not _wait(process.pid, 0.0):
        _signalled(process.pid, signal.SIGTERM)
        _wait(process.pid, grace_seconds)
    # Also after a regular end: processes that the child may have left in its group go with it.
    _signalled(process.pid, signal.SIGKILL)
    _wait(process.pid, math.inf)
    if on_end is not None:
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        on_end(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"))
    process.wait()


def _signalled(pid: int, number: int) -> bool:
    """Send a signal to a process group; return whether there is one that may be sent it."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _wait(pid: int, seconds: float) -> bool:
    """Wait until a child has ended, and leave it to be reaped: its group and its clocks stay its own until then.

    Returns:
        Whether it has ended.
    """
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def _environment() -> dict[str, str]:
    """Return the child's environment, without variables that override settings: its configuration file holds them."""
    kept = {}
    for name, value in variables().items():
        if name.startswith("NAVI_") and environment_overrides({name: value}):
            continue
        kept[name] = value
    # The child must find the same code, also where Navi is not installed.
    root = str(Path(__file__).resolve().parents[3])
    kept["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept


_TOLD_TO_END = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Exit codes of a child that was terminated by a signal from outside."""
_FAULTS = {
    "has no room": [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT)],
    "lost its GPU": [
        "no CUDA-capable device is detected",
        "CUDA-capable device(s) is/are busy or unavailable",
        "CUDA driver initialization failed",
        "uncorrectable ECC error",
        "GPU is lost",
    ],
}
"""Faults of the infrastructure, with the words of the system's or the driver's message."""


def interruption(code: int, last: Sequence[str]) -> str | None:
    """Return the external cause of a child's end (a signal or a fault) as a predicate; None for any other end.

    Args:
        code: Exit code of the child.
        last: Last lines of the child's output.
    """
    if code in _TOLD_TO_END:
        return f"was ended by {signal.Signals(-code).name}"
    return fault(code, last)


def fault(code: int, last: Sequence[str]) -> str | None:
    """Return the fault of the infrastructure (full disk, no GPU, no cluster) behind a child's end, as a predicate.

    Args:
        code: Exit code of the child.
        last: Last lines of the child's output.
    """
    if code == UnavailableError.exit_code:
        return f"cannot run: {last[-1] if last else 'no output'}"
    # What was only logged before its error did not end it, and may well be logged each time.
    ended_by = ("\n" + "\n".join(last)).rpartition("\nerror: ")[2].splitlines() if code else []
    found = (f"{name}: {line}" for line in ended_by for name, words in _FAULTS.items() if any(w in line for w in words))
    return next(found, None)


LOCK_PATIENCE = 60.0
"""Maximum wait for a run that another process holds [s]; a stopped trainer writes a checkpoint first."""


@dataclass(frozen=True)
class SweepReport:
    """Result of a cleanup: ended orphans, runs marked as stopped, removed files.

    Attributes:
        ended: Process ids of orphaned trainers that were ended.
        stale: Runs of status `running` without a lock holder; they are `stopped` now.
        leftovers: Unfinished files that were removed.
    """

    ended: list[int]
    stale: list[str]
    leftovers: int


def runs_in_use(*, prefix: str = "") -> list[str]:
    """List the runs whose lock a process holds.

    Args:
        prefix: Prefix of the run names; other locks are not checked.
    """
    files = sorted((navi_home() / "runs" / ".locks").glob("*.lock"))
    return [file.stem for file in files if file.name.startswith(prefix) and is_locked(file)]


def wait_for_run(run_id: str, *, ending: Callable[[], bool] = lambda: False) -> bool:
    """Wait until a run's lock is released (at most 60 s), so that a terminating trainer writes its last checkpoint.

    Args:
        run_id: Name of the run, or prefix of several.
        ending: Polled five times a second; True ends the wait.

    Returns:
        Whether the run is free now.
    """
    deadline = time.monotonic() + LOCK_PATIENCE
    while held := bool(runs_in_use(prefix=run_id)):
        if time.monotonic() > deadline or ending():
            break
        time.sleep(0.2)
    return not held


def orphaned_trainers() -> dict[int, str]:
    """Find supervised trainers whose supervisor is gone: process id → run.

    The supervisor's process id is in the trainer's environment. A trainer that holds a run's lock but has another
    parent is an orphan: it ignored the SIGTERM of its parent's death, or received it too early.
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
    """Clean up: end orphaned trainers, mark runs without a process as stopped, remove unfinished files.

    Args:
        grace_seconds: Time between SIGTERM (the trainer checkpoints) and SIGKILL [s].
    """
    ended = [pid for pid in orphaned_trainers() if _signalled(pid, signal.SIGTERM)]
    deadline = time.monotonic() + grace_seconds
    while any(_there(pid) for pid in ended) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in ended:
        _signalled(pid, signal.SIGKILL)
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
    """Query the runs of status `running` after an ingest, by run id."""
    warehouse.ingest()
    rows = warehouse.query("select * exclude (segment, extra) from runs where status = 'running'")
    return {str(row["run_id"]): {str(name): value for name, value in row.items()} for row in rows.to_dict("records")}


def _sent(column: str, value: object) -> object:
    """Convert a database value back to the JSON value that a producer sends."""
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
