"""Processes of the torture campaign: commands in forks, the way in which they end, and what they leave running."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_PATIENCE = 300.0
"""Time after which a command counts as hanging (s)."""
_POLL = 0.02
_INTERRUPTED = (1, 130, -signal.SIGINT)
"""Exit codes of a server that was interrupted: of Dagster's, of Navi's, of one that does not handle it."""


def run_forked(
    calls: Sequence[Callable[[], None]],
    home: Path,
    output: Path,
    setup: Callable[[], None] = lambda: None,
    seconds: float | None = None,
) -> tuple[int, str]:
    """Run functions in forks at the same time, each a process group, and wait for them.

    Args:
        calls: The functions.
        home: Navi home and current folder of the forks.
        output: File of what they print to stderr.
        setup: Called in each fork first.
        seconds: Time after which they are interrupted (s); None: they end by themselves.

    Returns:
        0 if one of them ended well, else the first exit code (negative: the signal); and what all printed to stderr.
    """
    sys.stdout.flush()
    with output.open("w+b") as log:
        running, codes = [], []
        for call in calls:
            running.append(child := os.fork())
            if child == 0:
                _live(call, setup, log.fileno(), home)
        # Turns are counted, not the clock: a campaign that is suspended suspends its patience.
        for turn in itertools.count():
            ended = [(child, status) for child in running if (status := _status_of(child)) is not None]
            running = [child for child in running if child not in dict(ended)]
            interrupted = seconds is not None and turn > int(seconds / _POLL)
            codes += [0 if interrupted and code in _INTERRUPTED else code for _, code in ended]
            if not running:
                break
            if turn * _POLL > _PATIENCE:
                for child in running:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                return -signal.SIGALRM, "it hangs"
            if seconds is not None and turn == int(seconds / _POLL):
                for child in running:
                    os.killpg(child, signal.SIGINT)
            time.sleep(_POLL)
        log.seek(0)
        return 0 if 0 in codes else codes[0], log.read().decode(errors="replace")


def _status_of(child: int) -> int | None:
    """Return the exit code of a child (negative: the signal), None while it runs."""
    done, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _live(call: Callable[[], None], setup: Callable[[], None], output: int, home: Path) -> None:
    """Run a function as a process of its own, and end."""
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        os.environ |= {"NAVI_HOME": str(home), "DAGSTER_HOME": str(home / "dagster"), "COLUMNS": "200"}
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(output, 2)
        os.chdir(home)
        try:
            setup()
            call()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def faults_of(code: int, text: str, *, becomes_dagster: bool = False) -> list[str]:
    """Return the faults in the way in which a disturbed command ended; Dagster's processes may say what they like."""
    if code == -signal.SIGALRM:
        return ["it hangs"]
    if "Traceback" in text and not becomes_dagster:
        return [f"traceback: {text[text.index('Traceback') :][-2500:]}"]
    if code < 0 and code != -signal.SIGKILL:
        return [f"it ended by signal {-code}: {text[-300:]}"]
    if code > 1 and "error:" not in text and not becomes_dagster:
        return [f"exit code {code} without a message: {text[-300:]}"]
    return []


def orphans(page: str, seconds: float) -> list[int]:
    """Return processes of the last commands that still live after some seconds, and kill them."""
    deadline = time.monotonic() + seconds
    while True:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if page.encode() in (place / "environ").read_bytes() and int(place.name) != os.getpid():
                    found.append(int(place.name))
        if not found or time.monotonic() > deadline:
            for pid in found:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return found
        time.sleep(0.2)
