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
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from navi_core.errors import UnavailableError
from navi_core.machine import variables
from navi_core.machine.devices import hold_device
from navi_core.machine.file_lock import is_locked
from navi_core.presets import environment_overrides
from navi_core.record import navi_home
from navi_pipeline.lib.records import PACKAGE, pipeline_folder, pipeline_log
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


Reader = Callable[[Callable[[str], None]], None]
"""Function that passes each line of a child or a job to another function, and returns when it has ended."""


def run_supervised(
    command: list[str],
    *,
    on_line: Callable[[str], None],
    grace_seconds: float = 30.0,
    timeout: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
    on_device: bool = False,
    on_end: Callable[[float], None] = lambda _: None,
) -> tuple[int, str, list[str]]:
    """Run a command as a supervised child process, in this environment without `NAVI_*` settings.

    Args:
        command: Program (an absolute path) and arguments.
        on_line: Called in this thread with every line of the child's standard error.
        grace_seconds: Time between SIGTERM and SIGKILL when this call is interrupted [s].
        timeout: Time after its start when the child is ended [s].
        stop: Asked twice a second; once it answers True the child is sent SIGTERM and has the grace period to end.
        on_device: Wait for a free GPU where the machine has any, and show the child this one alone.
        on_end: Called with the processor time of the child and of its own children, however it ends [s].

    Returns:
        Exit code (negative: the signal), standard output, the last 20 lines of standard error.

    Raises:
        TimeoutError: The time was up; the child has been ended.
    """
    device: AbstractContextManager[tuple[dict[str, str], tuple[int, ...]]] = nullcontext(({}, ()))
    if on_device:
        device = hold_device(pipeline_folder() / "devices", report=on_line, ending=stop)
    with device as (environment, inherited), TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _GUARD, str(os.getpid()), *command],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=inherited,
            env=_environment() | environment | {SUPERVISOR: str(os.getpid())},
        )

        def read(take: Callable[[str], None]) -> None:
            for line in process.stderr or ():
                take(line.rstrip("\n"))
            _wait(process.pid, math.inf)

        def end() -> None:
            _signalled(process.pid, signal.SIGTERM)

        try:
            last = follow(read, on_line, stop=stop, end=end, grace_seconds=grace_seconds, timeout=timeout)
            grace_seconds = 0.0
        finally:
            _end(process, grace_seconds, on_end)
        output.seek(0)
        return process.returncode, output.read(), last


def follow(
    read: Reader,
    on_line: Callable[[str], None],
    *,
    stop: Callable[[], bool],
    end: Callable[[], None],
    grace_seconds: float,
    timeout: float = math.inf,
) -> list[str]:
    """Forward the lines of a child process or a Ray job until it ends, or must end; return the last 20.

    Args:
        read: Called in a thread of its own.
        on_line: Called in this thread with every line.
        stop: Asked twice a second.
        end: Called once, when `stop` answers True; the lines are followed for the grace period.
        grace_seconds: Grace period [s].
        timeout: Time limit [s].

    Raises:
        TimeoutError: The time was up.
        NaviError: As `read`.
    """
    deadline, given_up = time.monotonic() + timeout, math.inf
    lines: queue.Queue[str | Exception | None] = queue.Queue()
    last: deque[str] = deque(maxlen=20)

    def pump() -> None:
        try:
            read(lines.put)
            lines.put(None)
        except Exception as error:
            lines.put(error)

    threading.Thread(target=pump, daemon=True).start()
    while time.monotonic() < given_up:
        # A timeout lets signals of a cancelling parent through.
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=0.5)
            if isinstance(line, Exception):
                raise line
            if line is None:
                break
            last.append(line)
            on_line(line)
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done after {timeout:g} s")
        if given_up == math.inf and stop():
            given_up = time.monotonic() + grace_seconds
            end()
    return list(last)


def _end(process: subprocess.Popen[str], grace_seconds: float, on_end: Callable[[float], None]) -> None:
    """Terminate the child's process group: SIGTERM, grace period, SIGKILL."""
    if not _wait(process.pid, 0.0):
        _signalled(process.pid, signal.SIGTERM)
        _wait(process.pid, grace_seconds)
    # Also after a regular end: processes that the child may have left in its group go with it.
    _signalled(process.pid, signal.SIGKILL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    on_end(used.ru_utime + used.ru_stime)


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
    kept = {
        name: value
        for name, value in variables().items()
        if not (name.startswith("NAVI_") and environment_overrides({name: value}))
    }
    return kept | {"PYTHONPATH": python_path()}


def python_path(*more: str) -> str:
    """Return the PYTHONPATH of a child or a job, which finds the same code also where Navi is not installed."""
    return os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")]), *more])


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
    for run in runs_in_use():
        with contextlib.suppress(OSError, ValueError):
            pid = int((navi_home() / "runs" / ".locks" / f"{run}.lock").read_text())
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            environment = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
            supervisor = dict(entry.partition("=")[::2] for entry in environment).get(SUPERVISOR, parent)
            if supervisor != parent:
                found[pid] = run
    return found


def sweep(*, grace_seconds: float = 30.0) -> SweepReport:
    """Clean up: end orphaned trainers, mark runs without a process as stopped, remove unfinished files.

    Args:
        grace_seconds: Time between SIGTERM (the trainer checkpoints) and SIGKILL [s].
    """
    ended = {pid: _mark(pid) for pid in orphaned_trainers() if _signalled(pid, signal.SIGTERM)}
    deadline = time.monotonic() + grace_seconds
    while any(mark and _mark(pid) == mark for pid, mark in ended.items()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid, mark in ended.items():
        # Also after a regular end, for what is left in its group; a later process of the same id is not of that group.
        if _mark(pid) in (mark, None):
            _signalled(pid, signal.SIGKILL)
    stale = _mark_stale()
    leftovers = 0
    # Of a distributed replay, every shard has a folder of its own.
    for file in (navi_home() / "runs").glob("*/checkpoints/**/.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > 3600.0:
                file.unlink()
                leftovers += 1
    return SweepReport(list(ended), stale, leftovers)


def process_mark(pid: int) -> str:
    """Return host name, id and start time of a process, an identity that survives the reuse of process ids.

    Raises:
        OSError: There is no such process any more.
    """
    if not Path("/proc/self").exists():
        return f"{platform.node()} {pid} unknown"
    state, *about = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if state == "Z":
        raise ProcessLookupError(f"process {pid} has ended")
    return f"{platform.node()} {pid} {about[18]}"


def _mark(pid: int) -> str | None:
    """Return the identity of a process beyond its id; None if it has ended."""
    with contextlib.suppress(OSError):
        return process_mark(pid)
    return None


def _mark_stale() -> list[str]:
    warehouse = Warehouse()
    suspects = {run for run in _running(warehouse) if (navi_home() / "runs" / run).is_dir()} - set(runs_in_use())
    # Looked at once more: who let go has sent its last row before, and who has taken a run up since then holds it.
    rows = _running(warehouse)
    stale = sorted((suspects & rows.keys()) - set(runs_in_use()))
    reason = "nobody holds the run: its trainer was killed; the same command resumes it"
    for run in stale:
        with pipeline_log(run) as log:
            # A row is replaced whole: what the trainer wrote of itself goes in again.
            log.row("runs", rows[run] | {"status": "stopped", "reason": reason})
            log.row("events", {"event": "stale_run", "detail": reason})
    if stale:
        warehouse.ingest()
    return stale


def _running(warehouse: Warehouse) -> dict[str, dict[str, Any]]:
    """Query the runs of status `running` after an ingest, by run id, as JSON values that a producer sends."""
    warehouse.ingest()
    rows = warehouse.query(
        "select run_id, to_json(row)::text as row from "
        "(select * exclude (segment, extra) from runs where status = 'running') as row"
    )
    return {run: json.loads(row) for run, row in rows.itertuples(index=False)}
