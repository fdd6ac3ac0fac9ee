"""Results of a study: rows of `studies` and `trials`, export of the best trial as a preset, audit."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from navi_core.config import TrainConfig, config_hash, parse_config
from navi_core.errors import ConfigError, RunError, as_argument
from navi_core.presets import write_yaml
from navi_core.record import navi_home
from navi_pipeline.lib.records import pipeline_log, write_text
from navi_pipeline.lib.studies.catalogue import partition_of, search_space, trial_config, trial_settings
from navi_pipeline.lib.studies.trial_queue import TrialQueue, is_feasible
from navi_pipeline.settings import StudyConfig

STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
"""Optuna's name of a trial's state → the value of the column `state`."""


def trial_row(queue: TrialQueue, trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial as a row of `trials`; its configuration is rebuilt from the study and the sampled parameters."""
    known, metrics = trial.user_attrs, trial.user_attrs.get("metrics", {})
    try:
        config: dict[str, Any] | None = trial_config(queue.config, trial.params).model_dump(mode="json")
    except ConfigError:
        config = None  # its reason names the impossible value
    return {
        "study": queue.config.name,
        "trial": trial.number,
        "run_id": known.get("run_id"),
        "step": int(known.get("steps", 0)),
        "state": "waiting" if queue.is_lost(trial) else STATES[trial.state.name],
        "value": trial.values[0] if trial.values else None,
        "objective_values": list(trial.values) if trial.values else None,
        "params": dict(trial.params),
        "constraints": trial.constraints,
        "feasible": is_feasible(trial),
        "retry_of": known.get("retry_of"),
        "worker": known.get("worker"),
        "reason": known.get("reason"),
        "config": config,
        "config_hash": known.get("config_hash"),
        "seed": (config or {}).get("seed"),
        "reward_ema": metrics.get("reward_ema"),
        "sps": metrics.get("sps"),
        "memory_gib": metrics.get("memory_gib"),
        "started_at": _moment(trial.datetime_start),
        "ended_at": _moment(trial.datetime_complete),
        "wall_time_seconds": known.get("wall_time_seconds"),
        "slot": known.get("slot"),
        "outcome": known.get("outcome"),
        "attempt": known.get("attempt", 1),
        "checkpoint": known.get("checkpoint"),
    }


def record_trials(queue: TrialQueue, trials: Sequence[FrozenTrial]) -> None:
    """Write trials to the outbox as rows of `trials`; a later row of a trial replaces the earlier one."""
    with pipeline_log(f"study-{queue.config.name}", config_hash=config_hash(queue.config)) as log:
        for trial in trials:
            if trial.state != TrialState.WAITING:
                log.row("trials", trial_row(queue, trial))


def record_study(queue: TrialQueue, status: str) -> dict[str, Any]:
    """Write the study's current row of `studies` to the outbox and return it.

    Args:
        queue: The study.
        status: running, finished, stopped or failed.
    """
    config, best = queue.config, queue.best()
    states = Counter(trial.state for trial in queue.latest().values())
    began = [t.datetime_start for t in queue.trials() if t.datetime_start is not None]
    ended = [t.datetime_complete for t in queue.trials() if t.datetime_complete is not None]
    row: dict[str, Any] = {
        "study": config.name,
        "learner": config.learner,
        "objectives": [objective.metric for objective in config.objectives],
        "directions": [objective.direction for objective in config.objectives],
        "sampler": config.sampler,
        "pruner": "hyperband" if config.pruning is not None else "none",
        "storage": type(queue.storage).__name__,
        "search_space": {name: parameter.model_dump() for name, parameter in search_space(config).items()},
        "status": status,
        "trials": states.total(),
        "completed": states[TrialState.COMPLETE],
        "pruned": states[TrialState.PRUNED],
        "failed": states[TrialState.FAIL],
        "best_trial": best[0].number if best else None,
        "best_value": best[0].values[0] if best else None,
        "best_values": [trial.values for trial in best],
        "best_params": dict(best[0].params) if best else None,
        "workers": config.workers,
        "started_at": _moment(min(began)) if began else None,
        "ended_at": _moment(max(ended)) if ended and status != "running" else None,
        "wall_time_seconds": (max(ended) - min(began)).total_seconds() if began and ended else None,
        "seed": config.seed,
    }
    with pipeline_log(f"study-{config.name}", seed=config.seed, config_hash=config_hash(config)) as log:
        log.row("studies", row)
    return row


def _moment(time: datetime | None) -> str | None:
    """Format a local time of Optuna's as an ISO 8601 text in UTC."""
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def pick_trial(queue: TrialQueue, number: int | None = None) -> FrozenTrial:
    """Select the trial of a number, or the best feasible one; of a Pareto front, the best by the first objective.

    Raises:
        RunError: No trial is complete and feasible, or there is no trial of this number.
    """
    if number is not None:
        trials = queue.trials()
        if not 0 <= number < len(trials) or not trials[number].params:
            raise RunError(f"study {queue.config.name} has no trial {number}; `navi study show` lists them")
        return trials[number]
    best = queue.best()
    if not best:
        raise RunError(f"study {queue.config.name} has no complete and feasible trial; `navi study resume` goes on")
    sign = 1 if queue.config.objectives[0].direction == "maximize" else -1
    return max(best, key=lambda trial: (sign * trial.values[0], -trial.number))


def write_preset(queue: TrialQueue, trial: FrozenTrial, file: Path) -> None:
    """Write a trial's settings as a YAML preset, for `navi train … --preset FILE` and `--config FILE`.

    Raises:
        ConfigError: The study's own preset differs from when the trial was trained.
        RecordError: The file cannot be written.
    """
    trial_config(queue.config, trial.params)  # what training would refuse is not written
    try:
        queue.require_same_settings()
    except ConfigError as error:
        kept = navi_home() / "runs" / str(trial.user_attrs.get("run_id")) / "config.json"
        raise ConfigError(
            f"{error}; trial {trial.number} itself was trained with --config {as_argument(kept)}"
        ) from error
    values = ", ".join(f"{value:.6g}" for value in trial.values or ())
    metrics = ", ".join(objective.metric for objective in queue.config.objectives)
    note = (
        f"# Trial {trial.number} of study {queue.config.name}: {metrics} {values or 'unknown'}.\n"
        f"# Of {selection_note(trials_compared(queue))}.\n"
    )
    write_text(file, note + write_yaml(trial_settings(queue.config, trial.params)), "the preset ")


def trials_compared(queue: TrialQueue) -> int:
    """Return the number of complete and pruned trials, among which the best was selected."""
    return sum(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in queue.latest().values())


def selection_note(trials: int) -> str:
    """Return a note about the selection bias of the best trial's value.

    The maximum over many trials is biased upwards by its seed: the same settings earn less with another seed.

    Args:
        trials: Number of trials compared (see `trials_compared`).
    """
    return f"one seed, chosen from {trials} trials: expect less of it" if trials > 1 else "one seed"


def audit_faults(
    config: StudyConfig, rows: Sequence[dict[str, Any]], partitions: Collection[str] | None = None
) -> list[str]:
    """Audit a finished study and return its faults; empty if every slot has exactly one complete record.

    Args:
        config: Settings of the study.
        rows: All its trials as rows of `trials`.
        partitions: Partitions of the asset `trial` that Dagster knows; None does not look at them.
    """
    faults = []
    latest = {row["slot"]: row for row in sorted(rows, key=lambda row: row["trial"]) if row["slot"] is not None}
    if sorted(latest) != list(range(config.trials)):
        faults.append(f"slots {sorted(latest)} instead of 0 … {config.trials - 1}")
    done = [row["slot"] for row in rows if row["state"] in ("complete", "pruned")]
    faults += [f"slot {slot} counts {done.count(slot)} times" for slot in sorted(set(done)) if done.count(slot) > 1]
    for slot, row in sorted(latest.items()):
        if row["state"] not in ("complete", "pruned"):
            faults.append(f"slot {slot} is {row['state']}: {row['reason']}")
            continue
        if config_hash(parse_config(TrainConfig, row["config"])) != row["config_hash"]:
            faults.append(f"slot {slot}: its configuration is another than its run's")
        if not str(row["run_id"]).endswith(str(row["config_hash"])) or not row["step"] or row["reward_ema"] is None:
            faults.append(f"slot {slot}: its run or its metrics are missing")
        if partitions is not None and partition_of(config.name, slot) not in partitions:
            faults.append(f"slot {slot} has no partition of the asset trial")
    return faults
