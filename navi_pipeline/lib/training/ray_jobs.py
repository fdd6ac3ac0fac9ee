"""Commands as Ray jobs: the trainer on a cluster, followed from here as if it were a child.

The cluster's machines see the same Navi home (a shared folder): configuration, run directory, outbox and result lie
there. A supervisor that died finds its job again by the command and goes on following it; the run directory's lock
keeps a second trainer out in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.config.registry import PLUGINS_VARIABLE
from navi_core.errors import RunError
from navi_core.machine import chosen_threads
from navi_core.record import navi_home
from navi_pipeline.lib.records.documents import content_key, pipeline_folder

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

RAY_ADDRESS = "http://127.0.0.1:8265"
"""Address of Ray's job server, unless NAVI_RAY_ADDRESS is set."""
_KEY = "navi_command"


def run_ray_job(
    command: list[str],
    *,
    on_line: Callable[[str], None],
    grace_seconds: float = 30.0,
    stop: Callable[[], bool] | None = None,
    poll_seconds: float = 0.5,
) -> tuple[int, str, list[str]]:
    """Run a command as a Ray job until it ends; a job of this command that is under way is joined.

    Args:
        command: Program and arguments; the program is replaced by NAVI_RAY_PYTHON where that is set.
        on_line: Called in this thread with every line of the job.
        grace_seconds: Time that a job which was stopped is waited for [s]. How long Ray itself waits between
            SIGTERM and SIGKILL is the cluster's RAY_JOB_STOP_WAIT_TIME_S.
        stop: Asked with every poll; once it answers True the job is stopped.
        poll_seconds: Time between two looks [s].

    Returns:
        Exit code (-15: ended by a stop before it could answer), standard output, its last 20 lines.

    Raises:
        RunError: Ray is not installed or cannot be reached.
    """
    client = _client()
    key = content_key(command[1:])
    folder = pipeline_folder() / "ray"
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{key}.out"
    job = _under_way(client, key)
    if job is None:
        job = _submit(client, key, command, output)
    last: deque[str] = deque(maxlen=20)
    lines = _Lines(client, job)
    stopped_at: float | None = None
    try:
        while not (status := client.get_job_status(job)).is_terminal():
            if stopped_at is None and stop is not None and stop():
                stopped_at = time.monotonic()
                client.stop_job(job)
            if stopped_at is not None and time.monotonic() > stopped_at + grace_seconds:
                break
            lines.forward(on_line, last)
            time.sleep(poll_seconds)
    except BaseException:
        # Cancelled: the trainer checkpoints and ends, as a child would.
        with contextlib.suppress(RuntimeError):
            client.stop_job(job)
        raise
    lines.close()
    lines.forward(on_line, last)
    answer = output.read_text() if output.exists() else ""
    # A trainer that is stopped, from here or from Ray's dashboard, checkpoints and answers.
    if status.value == "SUCCEEDED" or (status.value == "STOPPED" and _is_json(answer)):
        return 0, answer, list(last)
    details = client.get_job_info(job)
    code = getattr(details, "driver_exit_code", None)
    if details.message:
        last.append(str(details.message).splitlines()[-1])
    return (-15 if status.value == "STOPPED" or stopped_at is not None else int(code or 1)), answer, list(last)


def _submit(client: JobSubmissionClient, key: str, command: list[str], output: Path) -> str:
    output.unlink(missing_ok=True)
    program = os.environ.get("NAVI_RAY_PYTHON") or command[0]
    job: str = client.submit_job(
        entrypoint=f"exec {shlex.join([program, *command[1:]])} > {shlex.quote(str(output))}",
        submission_id=f"navi-{key}-{time.time_ns()}",
        metadata={_KEY: key},
        runtime_env={"env_vars": _environment()},
    )
    return job


class _Lines:
    """A job's log, read in a thread of its own because it comes through a socket."""

    def __init__(self, client: JobSubmissionClient, job: str) -> None:
        self._lines: deque[str] = deque()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read(client, job)), daemon=True)
        self._thread.start()

    def forward(self, on_line: Callable[[str], None], last: deque[str]) -> None:
        while self._lines:
            line = self._lines.popleft()
            last.append(line)
            on_line(line)

    def close(self) -> None:
        self._thread.join(timeout=5.0)

    async def _read(self, client: JobSubmissionClient, job: str) -> None:
        rest = ""
        with contextlib.suppress(RuntimeError, OSError):
            async for chunk in client.tail_job_logs(job):
                *whole, rest = (rest + chunk).split("\n")
                self._lines.extend(whole)
        if rest:
            self._lines.append(rest)


def _client() -> JobSubmissionClient:
    address = os.environ.get("NAVI_RAY_ADDRESS") or RAY_ADDRESS
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise RunError("NAVI_TRAINER=ray needs Ray: pip install -e '.[ray]'") from error
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, OSError) as error:
        raise RunError(
            f"no Ray takes jobs at {address} ({str(error).splitlines()[0]}); start one with `ray start --head` "
            "or set NAVI_RAY_ADDRESS"
        ) from error


def _under_way(client: JobSubmissionClient, key: str) -> str | None:
    """Return the job of this command that has not ended."""
    for details in client.list_jobs():
        if (details.metadata or {}).get(_KEY) == key and not details.status.is_terminal():
            return str(details.submission_id)
    return None


def _environment() -> dict[str, str]:
    """Return what the job's process needs to find the same code and the same home."""
    root = str(Path(__file__).resolve().parents[3])
    # Of the threads what the user chose: the share of cores that this container has is not the cluster's.
    names = {"NAVI_SCENES", PLUGINS_VARIABLE, *({"OMP_NUM_THREADS"} & chosen_threads())}
    kept = {name: os.environ[name] for name in sorted(names) if name in os.environ}
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    if PLUGINS_VARIABLE in kept:
        paths.append(str(Path.cwd()))  # where modules of one's own are looked for last of all; a job begins elsewhere
    return kept | {"NAVI_HOME": str(navi_home().absolute()), "PYTHONPATH": os.pathsep.join(paths)}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
