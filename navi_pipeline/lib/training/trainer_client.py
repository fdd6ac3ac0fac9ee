"""Client for the engine's trainer: supervised child processes, or Ray jobs with NAVI_TRAINER=ray.

A child that was killed is started again and resumes from its last checkpoint; the run directory's lock
keeps a second trainer out. A child that ends with one of Navi's own errors is not started again: trying
once more would not help.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from navi_core.config import TrainConfig, config_hash
from navi_core.errors import ConfigError, RunError, UnavailableError
from navi_core.machine import variable
from navi_pipeline.lib.records import pipeline_folder, write_document
from navi_pipeline.lib.training.ray_jobs import run_ray_job
from navi_pipeline.lib.training.supervised import fault, run_supervised

APEX = "apex"
"""Name of Ape-X beside the learners' names: the algorithm is dqn, its command is `navi train apex`."""


def algorithm_of(learner: str) -> str:
    """Return the setting `algorithm` of a learner's runs."""
    return "dqn" if learner == APEX else learner


def identified(config: TrainConfig) -> TrainConfig:
    """Return a configuration with the hash of its preference pairs, which is part of the key of the run.

    Raises:
        DemoError: The file of pairs cannot be read.
    """
    if config.algorithm != "dpo" or config.dpo.pairs is None:
        return config
    from navi_core.demos import with_pairs_hash  # imports torch

    return with_pairs_hash(config)


def training_command(learner: str, demonstrations: Sequence[str] = ()) -> list[str]:
    """Return the `navi` command that trains by a learner.

    Ape-X runs in one process; as a Ray job (NAVI_TRAINER=ray) its actors and shards run on the job's cluster.

    Args:
        learner: ppo, grpo, dpo, dqn, bc, apex, or a user-defined one.
        demonstrations: Folders, for bc.
    """
    if learner == "bc":
        return ["bc", *(part for folder in demonstrations for part in ("--demos", folder))]
    if learner == APEX:
        on_ray = variable("NAVI_TRAINER") == "ray"
        return ["learner", *(("--address", "auto") if on_ray else ("--in-process",))]
    return ["train", learner]


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
    stop: Callable[[], bool] = lambda: False,
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
    stop: Callable[[], bool] = lambda: False,
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
    where = variable("NAVI_TRAINER") or "child"
    if where not in ("child", "ray"):
        raise ConfigError(f"NAVI_TRAINER={where!r}; allowed: child (a process of this machine), ray (a Ray job)")
    launch = run_ray_job if where == "ray" else partial(run_supervised, on_device=True)
    for attempt in range(retries + 1):
        code, output, last = launch(command, on_line=on_line, grace_seconds=grace_seconds, stop=stop)
        if code == 0:
            return _object(output, what)
        if why := fault(code, last):
            raise UnavailableError(f"the {what} {why}")
        if code > 0 or attempt == retries or stop():
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


def _object(output: str, what: str) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(result := json.loads(output), dict):
            return result
    raise RunError(f"the {what}'s result is no JSON object: {output[-200:]!r}")
