"""Trainings as Ray jobs: by Dagster Pipes inside a Dagster run, else by a follower, which also rejoins a job.

The cluster's machines see the same Navi home (a shared folder): configuration, run directory, outbox and result lie
there. A supervisor that died finds its job again by the command and goes on following it; the run directory's lock
keeps a second trainer out in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config.registry import PLUGINS_VARIABLE
from navi_core.errors import ConfigError, UnavailableError, install_command
from navi_core.machine import chosen_threads
from navi_core.machine.variables import variables
from navi_core.record import navi_home
from navi_pipeline.lib.commands import dagster_step
from navi_pipeline.lib.records import content_key, pipeline_folder
from navi_pipeline.lib.training.supervised import Reader, follow, python_path

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
    stop: Callable[[], bool] = lambda: False,
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
    read: Reader | None = None
    if job is None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
        request = _request(key, command, output)
        job = str(request["submission_id"])
        if step is None:
            _asked(client.submit_job, **request)
        else:
            read = partial(_read_by_pipes, client, step, request)
    end = partial(_stop, client, job)
    try:
        follow(read or partial(_read, client, job), on_line, stop=stop, end=end, grace_seconds=grace_seconds)
    except UnavailableError:
        raise  # the job goes on, and the same command joins it
    except BaseException:
        # Cancelled: the trainer checkpoints and ends, as a child would.
        end()
        raise
    status = _asked(client.get_job_status, job).value
    answer = output.read_text() if output.exists() else ""
    # A trainer that is stopped, from here or from Ray's dashboard, checkpoints and answers.
    if status == "SUCCEEDED" or (status == "STOPPED" and answer.lstrip().startswith("{")):
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


def _read_by_pipes(
    client: JobSubmissionClient, step: dg.OpExecutionContext, request: dict[str, Any], _: Callable[[str], None]
) -> None:
    """Submit a job by dagster-ray, which makes its lines the step's output, and return when it has ended."""
    from dagster_ray import PipesRayJobClient

    pipes = PipesRayJobClient(client.get_address(), poll_interval=_POLL)
    # It raises for a job that was stopped or failed; its status tells them apart.
    try:
        pipes.run(context=step, submit_job_params=request)
    except RuntimeError:
        pass
    except OSError as error:
        raise _gone(error) from error


def _read(client: JobSubmissionClient, job: str, take: Callable[[str], None]) -> None:
    """Read a job's lines until it has ended. The log of a lost node neither ends nor fails, so the status decides."""

    async def tail() -> None:
        rest = ""
        async for chunk in client.tail_job_logs(job):
            *lines, rest = (rest + chunk).split("\n")
            for line in lines:
                take(line)
        if rest:
            take(rest)

    def read_log() -> None:
        # Whatever keeps the log away, a proxy without websockets for example, is no reason to end the job.
        with contextlib.suppress(Exception):
            asyncio.run(tail())

    reader = threading.Thread(target=read_log, daemon=True)
    reader.start()
    while not _asked(client.get_job_status, job).is_terminal():
        time.sleep(_POLL)
    reader.join(timeout=5.0)


def _stop(client: JobSubmissionClient, job: str) -> None:
    """Stop a job; one that is just being submitted is known to Ray a moment later."""
    for _ in range(20):
        with contextlib.suppress(RuntimeError, OSError):
            client.stop_job(job)
            return
        time.sleep(_POLL)


def _client() -> JobSubmissionClient:
    address = os.environ.get("NAVI_RAY_ADDRESS") or RAY_ADDRESS
    if (Path.home() / ".ray" / "auth_token").exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as `ray start` does; its job client does not
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise UnavailableError(f"NAVI_TRAINER=ray needs Ray: {install_command('ray')}") from error
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
        raise _gone(error) from error


def _gone(error: Exception) -> UnavailableError:
    return UnavailableError(f"Ray no longer answers: {error}; the same command joins its job again")


def _under_way(client: JobSubmissionClient, key: str) -> str | None:
    """Return the id of this command's unfinished Ray job; None if there is none."""
    for details in _asked(client.list_jobs):
        if (details.metadata or {}).get(_KEY) == key and not details.status.is_terminal():
            return str(details.submission_id)
    return None


def _environment() -> dict[str, str]:
    """Return the environment variables of a Ray job: code path, Navi home, plugins, chosen thread counts."""
    # Of the threads what the user chose: the share of cores that this container has is not the cluster's.
    names = {"NAVI_SCENES", "NAVI_DAGSTER_RUN_ID", PLUGINS_VARIABLE, *({"OMP_NUM_THREADS"} & chosen_threads())}
    known = variables()
    kept = {name: known[name] for name in sorted(names) if name in known}
    # Modules of one's own are looked for last of all, in this folder; a job begins elsewhere.
    own = [str(Path.cwd())] if PLUGINS_VARIABLE in kept else []
    return kept | {"NAVI_HOME": str(navi_home().absolute()), "PYTHONPATH": python_path(*own)}
