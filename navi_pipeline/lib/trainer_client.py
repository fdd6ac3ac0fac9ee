"""Training in a supervised child process.

The child is its own process group and gets SIGTERM when its parent dies, so that neither a cancelled
run nor a killed worker leaves a trainer behind. Cancelling sends SIGTERM to the group (the trainer
checkpoints and exits), and SIGKILL after a grace period. A child that was killed is started again and
resumes from its last checkpoint; the run directory's lock keeps a second trainer out. A child that
ends with one of Navi's own errors is not started again: trying once more would not help.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig, config_hash
from navi_core.errors import RunError
from navi_core.presets import environment_overrides
from navi_pipeline.lib.documents import pipeline_folder, write_document

__all__ = ["run_supervised", "train_in_child"]

# Runs in the child before the real program: PR_SET_PDEATHSIG = 1. The parent may have died before the call.
_GUARD = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)
if os.getppid() != parent:
    sys.exit(143)
os.execv(sys.argv[2], sys.argv[2:])
"""


def train_in_child(
    config: TrainConfig,
    *,
    asset: str,
    partition: str,
    on_line: Callable[[str], None],
    retries: int = 2,
    grace_seconds: float = 30.0,
) -> dict[str, Any]:
    """Train with `navi train ppo` in a child process until it ends.

    Args:
        config: Full configuration; environment settings (`NAVI_*`) must be resolved in it already.
        asset: Asset name of the run directory's key.
        partition: Partition of the key.
        on_line: Called with every line that the trainer says.
        retries: Times that a killed child is started again.
        grace_seconds: Time between SIGTERM and SIGKILL when cancelled [s].

    Returns:
        The trainer's result: checkpoint, run_id, steps, reason, …

    Raises:
        RunError: The trainer failed; its last lines are given.
    """
    file = pipeline_folder() / "configs" / f"{partition}-{config_hash(config)}.json"
    write_document(file, config.model_dump(mode="json"))
    command = [sys.executable, "-m", "navi_core.cli.main", "train", "ppo", "--config", str(file)]
    command += ["--asset", asset, "--partition", partition, "--json"]
    for attempt in range(retries + 1):
        code, output, last = run_supervised(command, on_line=on_line, grace_seconds=grace_seconds)
        if code == 0:
            return _result(output)
        if code > 0 or attempt == retries:
            what = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise RunError(f"the trainer {what}; its last lines:\n" + "\n".join(last))
        on_line(f"the trainer was killed by signal {-code}; it is started again and resumes from its last checkpoint")
    raise AssertionError("unreachable")


def run_supervised(
    command: list[str],
    *,
    on_line: Callable[[str], None],
    grace_seconds: float = 30.0,
    env: dict[str, str] | None = None,
) -> tuple[int, str, list[str]]:
    """Run a command as a supervised child.

    Args:
        command: Program (an absolute path) and arguments.
        on_line: Called in this thread with every line of the child's standard error.
        grace_seconds: Time between SIGTERM and SIGKILL when this call is interrupted [s].
        env: Environment; by default this process's without `NAVI_*` settings.

    Returns:
        Exit code (negative: the signal), standard output, the last 20 lines of standard error.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _GUARD, str(os.getpid()), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env=_environment() if env is None else env,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    output: list[str] = []
    last: deque[str] = deque(maxlen=20)
    assert process.stdout is not None and process.stderr is not None
    readers = [
        threading.Thread(target=_read_lines, args=(process.stderr, lines), daemon=True),
        threading.Thread(target=lambda: output.append(process.stdout.read()), daemon=True),  # type: ignore[union-attr]
    ]
    for reader in readers:
        reader.start()
    try:
        while True:
            # A timeout lets signals of a cancelling parent through.
            try:
                line = lines.get(timeout=0.5)
            except queue.Empty:
                continue
            if line is None:
                break
            last.append(line)
            on_line(line)
        code = process.wait()
    finally:
        _end(process, grace_seconds)
    for reader in readers:
        reader.join(timeout=5.0)
    return code, "".join(output), list(last)


def _read_lines(stream: Any, into: queue.Queue[str | None]) -> None:
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
    root = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept


def _result(output: str) -> dict[str, Any]:
    try:
        result = json.loads(output)
    except ValueError as error:
        raise RunError(f"the trainer's result is not JSON: {output[-200:]!r}") from error
    if not isinstance(result, dict) or "checkpoint" not in result:
        raise RunError(f"the trainer's result names no checkpoint: {output[-200:]!r}")
    return result
