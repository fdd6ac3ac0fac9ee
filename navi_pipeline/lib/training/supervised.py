"""Running a command as a supervised child.

The child is its own process group and gets SIGTERM when its parent dies, so that neither a cancelled
run nor a killed worker leaves one behind. Cancelling sends SIGTERM to the group (a trainer
checkpoints and exits), and SIGKILL after a grace period.
"""

import contextlib
import errno
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from navi_core.presets import environment_overrides

SUPERVISOR = "SUPERVISED_BY"
"""Environment variable of a child that names its supervisor, to distinguish an orphan from a separate run."""

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


# Above 60 lines: deadline, stop and grace period end one loop and share its clock.
def run_supervised(
    command: list[str],
    *,
    on_line: Callable[[str], None],
    grace_seconds: float = 30.0,
    timeout: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[int, str, list[str]]:
    """Run a command as a supervised child, in this process's environment without `NAVI_*` settings.

    Args:
        command: Program (an absolute path) and arguments.
        on_line: Called in this thread with every line of the child's standard error.
        grace_seconds: Time between SIGTERM and SIGKILL when this call is interrupted [s].
        timeout: Time after which the child is ended [s]; None: it may take as long as it likes.
        stop: Asked twice a second; once it answers True the child is sent SIGTERM and has the grace period to end.

    Returns:
        Exit code (negative: the signal), standard output, the last 20 lines of standard error.

    Raises:
        TimeoutError: The time was up; the child has been ended.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    process = subprocess.Popen(
        [sys.executable, "-c", _GUARD, str(os.getpid()), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env=_environment() | {SUPERVISOR: str(os.getpid())},
    )
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
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
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
                process.wait(None if stopped_at is None else grace_seconds)
                break
            last.append(line)
            on_line(line)
    except subprocess.TimeoutExpired:
        pass  # stopped and still there: killed below
    finally:
        _end(process, grace_seconds if stopped_at is None else 0.0)
    for reader in readers:
        reader.join(timeout=5.0)
    return process.returncode, "".join(output), list(last)


def _read_lines(stream: IO[str], into: queue.Queue[str | None]) -> None:
    for line in stream:
        into.put(line.rstrip("\n"))
    into.put(None)


def _end(process: subprocess.Popen[str], grace_seconds: float) -> None:
    """End the child's whole group: SIGTERM, a grace period, SIGKILL."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    # Also after a regular end: processes that the child may have left in its group go with it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment() -> dict[str, str]:
    """Return this environment without the variables that are settings: the configuration file holds them."""
    kept = {}
    for name, value in os.environ.items():
        if name.startswith("NAVI_") and environment_overrides({name: value}):
            continue
        kept[name] = value
    # The child must find the same code, also where Navi is not installed.
    root = str(Path(__file__).resolve().parents[3])
    kept["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept


_TOLD_TO_END = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Exit codes of a child that somebody ended, or that the machine did when it was shut down."""
_NO_ROOM = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT))


def interruption(code: int, last: Sequence[str]) -> str | None:
    """Return what ended a child that did nothing wrong, as a sentence without its subject; None for any other.

    Args:
        code: Its exit code.
        last: Its last lines of output.
    """
    if code in _TOLD_TO_END:
        return f"was ended by {signal.Signals(-code).name}"
    return f"has no room: {last[-1]}" if code and disk_is_full("\n".join(last)) else None


def disk_is_full(output: str) -> bool:
    """Return whether a child failed because the disk is full, or this user's share of it.

    Args:
        output: Its last line of output.
    """
    # What was only logged before its error did not end it, and may well be logged each time.
    ended_by = f"\n{output}".rpartition("\nerror: ")[2]
    return any(word in ended_by for word in _NO_ROOM)
