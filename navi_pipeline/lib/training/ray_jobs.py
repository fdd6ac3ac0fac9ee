"""Trainings as Ray jobs: by Dagster Pipes inside a Dagster run, else by a follower, which also rejoins a job.

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
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from navi_core.config.registry import PLUGINS_VARIABLE
from navi_core.errors import ConfigError, UnavailableError
from navi_core.machine import chosen_threads
from navi_core.machine.variables import variables
from navi_core.record import navi_home
from navi_pipeline.lib.commands import dagster_step
from navi_pipeline.lib.records import content_key, pipeline_folder

if TYPE_CHECKING:
    import dagster as dg
    from ray.job_submission import JobSubmissionClient

RAY_ADDRESS = "http://127.0.0.1:8265"
"""Default address of Ray's job server; NAVI_RAY_ADDRESS overrides it."""
_KEY = "navi_command"
_POLL = 0.5
"""Time between two looks at a job [s]."""


def run_ray_job(
    command: list[str],
    *,
    on_line: Callable[[str], None],
    grace_seconds: float = 30.0,
    stop: Callable[[], bool] | None = None,
) -> tuple[int, str, list[str]]:
    """Run a command as a Ray job until it ends; a running job of the same command is joined.

    Args:
        command: Program and arguments; the program is replaced by NAVI_RAY_PYTHON where that is set.
        on_line: Called in this thread with every line of the job; inside a Dagster run its lines are the step's output.
        grace_seconds: Time that a job which was stopped is waited for [s]. How long Ray itself waits between
            SIGTERM and SIGKILL is the cluster's RAY_JOB_STOP_WAIT_TIME_S.
        stop: Asked twice a second; once it answers True the job is stopped.

    Returns:
        Exit code (-15: ended by a stop before it could answer), standard output, last 20 lines of a failed job.

    Raises:
        ConfigError: NAVI_RAY_CPUS, NAVI_RAY_GPUS or NAVI_RAY_RESOURCES is no amount.
        UnavailableError: Ray is not installed or does not answer, or its job could not begin.
    """
    client, key = _client(), content_key(command[1:])
    output = pipeline_folder() / "ray" / f"{key}.out"
    job, step = _under_way(client, key), dagster_step()
    if job is None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
        request = _request(key, command, output)
        job = str(request["submission_id"])
        if step is not None:
            _run_by_pipes(step, client, request, stop)
        else:
            _asked(client.submit_job, **request)
            _follow(client, job, on_line, grace_seconds, stop)
    else:
        _follow(client, job, on_line, grace_seconds, stop)
    status = _asked(client.get_job_status, job).value
    answer = output.read_text() if output.exists() else ""
    # A trainer that is stopped, from here or from Ray's dashboard, checkpoints and answers.
    if status == "SUCCEEDED" or (status == "STOPPED" and _is_json(answer)):
        return 0, answer, []
    last = _asked(client.get_job_logs, job).splitlines()[-20:]
    details = _asked(client.get_job_info, job)
    # Without an exit code it never began, or its node is gone.
    code = getattr(details, "driver_exit_code", None) or UnavailableError.exit_code
    if details.message:
        last.append(str(details.message).splitlines()[-1])
    return (int(code) if status == "FAILED" else -15), answer, last


def _request(key: str, command: list[str], output: Path) -> dict[str, Any]:
    """Return the arguments of Ray's `submit_job`."""
    program = os.environ.get("NAVI_RAY_PYTHON") or command[0]
    return {
        "entrypoint": f"exec {shlex.join([program, *command[1:]])} > {shlex.quote(str(output))}",
        "submission_id": f"navi-{key}-{time.time_ns()}",
        "metadata": {_KEY: key},
        "runtime_env": {"env_vars": _environment()},
        **_resources(),
    }


def _resources() -> dict[str, Any]:
    """Return what a job asks its node for: CPUs (1 by default), GPUs (none), custom resources such as `big=1,fast=2`.

    Raises:
        ConfigError: A variable is no amount.
    """
    given = {name: os.environ.get(f"NAVI_RAY_{name}") or usual for name, usual in
             (("CPUS", "1"), ("GPUS", "0"), ("RESOURCES", ""))}  # fmt: skip
    try:
        custom = dict(part.split("=") for part in given["RESOURCES"].split(",") if part)
        return {
            "entrypoint_num_cpus": float(given["CPUS"]),
            "entrypoint_num_gpus": float(given["GPUS"]),
            "entrypoint_resources": {name.strip(): float(amount) for name, amount in custom.items()},
        }
    except ValueError as error:
        raise ConfigError(f"{error}; allowed: NAVI_RAY_CPUS=2, NAVI_RAY_GPUS=0.5, NAVI_RAY_RESOURCES=name=1") from None


def _run_by_pipes(
    step: dg.OpExecutionContext,
    client: JobSubmissionClient,
    request: dict[str, Any],
    stop: Callable[[], bool] | None,
) -> None:
    """Run a job by dagster-ray, which forwards its lines and a cancellation; a thread asks `stop` meanwhile."""
    from dagster_ray import PipesRayJobClient

    over = threading.Event()
    failures: list[Exception] = []

    def watch() -> None:
        try:
            while not over.wait(_POLL):
                if stop is not None and stop():
                    _asked(client.stop_job, request["submission_id"])
                    return
        except Exception as error:  # raised behind the join, as `_follow` raises it
            failures.append(error)
            with contextlib.suppress(RuntimeError, OSError):
                client.stop_job(request["submission_id"])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        # It raises for a job that was stopped or failed; its status tells them apart.
        with contextlib.suppress(RuntimeError):
            PipesRayJobClient(client.get_address(), poll_interval=_POLL).run(context=step, submit_job_params=request)
    finally:
        over.set()
        watcher.join()
    if failures:
        raise failures[0]


def _follow(
    client: JobSubmissionClient,
    job: str,
    on_line: Callable[[str], None],
    grace_seconds: float,
    stop: Callable[[], bool] | None,
) -> None:
    """Follow a job until it ends, or until the grace period after a stop is over."""
    lines: SimpleQueue[str] = SimpleQueue()
    reader = threading.Thread(target=lambda: asyncio.run(_read(client, job, lines)), daemon=True)
    reader.start()
    stopped_at: float | None = None
    try:
        while not _asked(client.get_job_status, job).is_terminal():
            if stopped_at is None and stop is not None and stop():
                stopped_at = time.monotonic()
                _asked(client.stop_job, job)
            if stopped_at is not None and time.monotonic() > stopped_at + grace_seconds:
                break
            while not lines.empty():
                on_line(lines.get())
            time.sleep(_POLL)
    except BaseException:
        # Cancelled: the trainer checkpoints and ends, as a child would.
        with contextlib.suppress(RuntimeError, OSError):
            client.stop_job(job)
        raise
    reader.join(timeout=5.0)
    while not lines.empty():
        on_line(lines.get())


async def _read(client: JobSubmissionClient, job: str, lines: SimpleQueue[str]) -> None:
    rest = ""
    with contextlib.suppress(RuntimeError, OSError):
        async for chunk in client.tail_job_logs(job):
            *whole, rest = (rest + chunk).split("\n")
            for line in whole:
                lines.put(line)
    if rest:
        lines.put(rest)


def _client() -> JobSubmissionClient:
    address = os.environ.get("NAVI_RAY_ADDRESS") or RAY_ADDRESS
    if (Path.home() / ".ray" / "auth_token").exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as `ray start` does; its job client does not
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise UnavailableError("NAVI_TRAINER=ray needs Ray: pip install -e '.[ray]'") from error
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, OSError) as error:
        raise UnavailableError(
            f"no Ray takes jobs at {address} ({str(error).splitlines()[0]}); start one with `ray start --head` "
            "or set NAVI_RAY_ADDRESS"
        ) from error


def _asked(question: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
    """Call a method of Ray's client.

    Raises:
        UnavailableError: Ray does not answer.
    """
    try:
        return question(*arguments, **named)
    except (RuntimeError, OSError) as error:
        raise UnavailableError(f"Ray no longer answers: {error}; the same command joins its job again") from error


def _under_way(client: JobSubmissionClient, key: str) -> str | None:
    """Return the id of this command's unfinished Ray job; None if there is none."""
    for details in _asked(client.list_jobs):
        if (details.metadata or {}).get(_KEY) == key and not details.status.is_terminal():
            return str(details.submission_id)
    return None


def _environment() -> dict[str, str]:
    """Return the environment variables of a Ray job: code path, Navi home, plugins, chosen thread counts."""
    root = str(Path(__file__).resolve().parents[3])
    # Of the threads what the user chose: the share of cores that this container has is not the cluster's.
    names = {"NAVI_SCENES", "NAVI_DAGSTER_RUN_ID", PLUGINS_VARIABLE, *({"OMP_NUM_THREADS"} & chosen_threads())}
    known = variables()
    kept = {name: known[name] for name in sorted(names) if name in known}
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
