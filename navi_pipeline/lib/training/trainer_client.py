"""Client for the engine's trainer: supervised child processes, or Ray jobs with NAVI_TRAINER=ray.

A child that was killed is started again and resumes from its last checkpoint; the run directory's lock
keeps a second trainer out. A child that ends with one of Navi's own errors is not started again: trying
once more would not help.

A Ray job is followed from here as if it were a child. The cluster's machines see the same Navi home (a shared folder):
configuration, run directory, outbox and result lie there. A supervisor that died finds its job again by the command
and goes on following it; the run directory's lock keeps a second trainer out in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import TrainConfig, config_hash
from navi_core.config.registry import PLUGINS_VARIABLE
from navi_core.errors import ConfigError, RunError, UnavailableError
from navi_core.machine import chosen_threads
from navi_core.record import navi_home
from navi_pipeline.lib.records import content_key, pipeline_folder, write_document
from navi_pipeline.lib.training.supervised import fault, run_supervised

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

RAY_ADDRESS = "http://127.0.0.1:8265"
"""Default address of Ray's job server; NAVI_RAY_ADDRESS overrides it."""
_KEY = "navi_command"


def run_ray_job(
    command: list[str],
    *,
    on_line: Callable[[str], None],
    grace_seconds: float = 30.0,
    stop: Callable[[], bool] | None = None,
    poll_seconds: float = 0.5,
) -> tuple[int, str, list[str]]:
    """Run a command as a Ray job until it ends; a running job of the same command is joined.

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
        UnavailableError: Ray is not installed or does not answer, or its job could not begin.
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
        while not (status := _asked(client.get_job_status, job)).is_terminal():
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
    details = _asked(client.get_job_info, job)
    # Without an exit code it never began, or its node is gone.
    code = getattr(details, "driver_exit_code", None) or UnavailableError.exit_code
    if details.message:
        last.append(str(details.message).splitlines()[-1])
    return (-15 if status.value == "STOPPED" or stopped_at is not None else int(code)), answer, list(last)


def _submit(client: JobSubmissionClient, key: str, command: list[str], output: Path) -> str:
    output.unlink(missing_ok=True)
    program = os.environ.get("NAVI_RAY_PYTHON") or command[0]
    job: str = _asked(
        client.submit_job,
        entrypoint=f"exec {shlex.join([program, *command[1:]])} > {shlex.quote(str(output))}",
        submission_id=f"navi-{key}-{time.time_ns()}",
        metadata={_KEY: key},
        runtime_env={"env_vars": _environment()},
    )
    return job


class _Lines:
    """Log reader of a Ray job: a thread that tails the log through a socket and buffers its lines."""

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


def run_name(asset: str, partition: str, config: TrainConfig) -> str:
    """Return the id of the run that a training of this configuration makes or takes up."""
    return f"{asset}-{partition}-{config_hash(config)}"


def train_in_child(
    config: TrainConfig,
    *,
    asset: str,
    partition: str,
    on_line: Callable[[str], None],
    command: Sequence[str] = ("train", "ppo"),
    retries: int = 2,
    grace_seconds: float = 30.0,
    stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Train with a `navi` command in a supervised child process, or as a Ray job, until it ends.

    Args:
        config: Full configuration; environment settings (`NAVI_*`) must be resolved in it already.
        asset: Asset name of the run directory's key.
        partition: Partition of the key.
        on_line: Called with every line of the trainer.
        command: `navi` command with its arguments besides the configuration.
        retries: Times that a killed child is started again.
        grace_seconds: Time between SIGTERM and SIGKILL when cancelled [s].
        stop: Asked twice a second; once it answers True the trainer checkpoints and ends.

    Returns:
        The trainer's result: checkpoint, run_id, steps, reason, …

    Raises:
        RunError: The trainer failed; its last lines are given.
    """
    file = pipeline_folder() / "configs" / f"{partition}-{config_hash(config)}.json"
    write_document(file, config.model_dump(mode="json"))
    arguments = [*command, "--config", str(file), "--asset", asset, "--partition", partition, "--json"]
    result = run_navi(
        arguments, what="trainer", on_line=on_line, retries=retries, grace_seconds=grace_seconds, stop=stop
    )
    if "checkpoint" not in result:
        raise RunError(f"the trainer's result names no checkpoint: {str(result)[-200:]}")
    return result


def run_navi(
    arguments: Sequence[str],
    *,
    what: str,
    on_line: Callable[[str], None],
    retries: int = 2,
    grace_seconds: float = 30.0,
    stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Run a `navi` command in a supervised child process, or as a Ray job, and parse its JSON output.

    Args:
        arguments: Command-line arguments of `navi`.
        what: Name of the child in messages.
        on_line: Called with every line of its standard error.
        retries: Times that a killed child is started again.
        grace_seconds: Time between SIGTERM and SIGKILL when cancelled [s].
        stop: Asked twice a second; once it answers True the child is stopped, and is not started again.

    Raises:
        ConfigError: NAVI_TRAINER names no way to run it.
        UnavailableError: A GPU, the cluster or disk space is missing.
        RunError: It failed; its last lines are given.
    """
    command = [sys.executable, "-m", "navi_core.cli.main", *arguments]
    launch = _launcher()
    for attempt in range(retries + 1):
        code, output, last = launch(command, on_line=on_line, grace_seconds=grace_seconds, stop=stop)
        if code == 0:
            return _object(output, what)
        if why := fault(code, last):
            raise UnavailableError(f"the {what} {why}")
        if code > 0 or attempt == retries or (stop is not None and stop()):
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise RunError(f"the {what} {how}; its last lines:\n" + "\n".join(last))
        on_line(f"the {what} was killed by signal {-code}; it is started again and goes on where it stood")
    raise AssertionError("unreachable")


def ended_of_itself(reason: str | None) -> bool:
    """Return whether a run is complete: ended by its steps, its epochs, or early stopping.

    Args:
        reason: Reason in the trainer's result, such as `total_steps` or `early_stopping: plateau`.
    """
    return reason is not None and reason.partition(":")[0] in ("total_steps", "epochs", "early_stopping")


def require_whole(result: dict[str, Any], what: str) -> None:
    """Raise if a training was stopped before its end.

    Args:
        result: Result of the trainer.
        what: Name of the training in the message.

    Raises:
        RunError: The training was stopped.
    """
    if not ended_of_itself(result.get("reason")):
        raise RunError(
            f"{what} was stopped at step {result.get('steps', 0):,} ({result.get('reason')}); "
            "begun again, it goes on from there"
        )


def _launcher() -> Callable[..., tuple[int, str, list[str]]]:
    """Return the function that launches commands, chosen by NAVI_TRAINER: child (the default) or ray."""
    launchers: dict[str, Callable[..., tuple[int, str, list[str]]]] = {
        "child": partial(run_supervised, on_device=True),
        "ray": run_ray_job,
    }
    where = os.environ.get("NAVI_TRAINER") or "child"
    if where not in launchers:
        raise ConfigError(f"NAVI_TRAINER={where!r}; allowed: child (a process of this machine), ray (a Ray job)")
    return launchers[where]


def _object(output: str, what: str) -> dict[str, Any]:
    try:
        result = json.loads(output)
    except ValueError as error:
        raise RunError(f"the {what}'s result is not JSON: {output[-200:]!r}") from error
    if not isinstance(result, dict):
        raise RunError(f"the {what}'s result is {type(result).__name__}, not an object: {output[-200:]!r}")
    return result
