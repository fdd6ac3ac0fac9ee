"""Rows of a study: one of `studies`, one of `trials` for every trial."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from navi_core.config import config_hash
from navi_core.errors import ConfigError
from navi_pipeline.lib.records import pipeline_log
from navi_pipeline.lib.studies.spaces import search_space, trial_config
from navi_pipeline.lib.studies.trial_queue import TrialQueue, constraint_values, is_feasible, number_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


def trial_row(queue: TrialQueue, trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial as a row of `trials`; its configuration is made again from the study and its values."""
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
        "state": _STATES[trial.state.name],
        "value": trial.values[0] if trial.values else None,
        "objective_values": list(trial.values) if trial.values else None,
        "params": dict(trial.params),
        "constraints": constraint_values(trial),
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
    """Write trials to the outbox; a trial that is written again replaces its row."""
    with pipeline_log(f"study-{queue.config.name}", config_hash=config_hash(queue.config)) as log:
        for trial in trials:
            if trial.state.name != "WAITING":
                log.row("trials", trial_row(queue, trial))


def record_study(queue: TrialQueue, status: str) -> dict[str, Any]:
    """Write how the study stands, and return that row.

    Args:
        queue: The study.
        status: running, finished, stopped or failed.
    """
    config, trials = queue.config, list(queue.latest().values())
    best = queue.best()
    began = [t.datetime_start for t in queue.trials() if t.datetime_start is not None]
    ended = [t.datetime_complete for t in queue.trials() if t.datetime_complete is not None]
    row: dict[str, Any] = {
        "study": config.name,
        "learner": config.learner,
        "objectives": [objective.metric for objective in config.objectives],
        "directions": [objective.direction for objective in config.objectives],
        "sampler": config.sampler,
        "pruner": "hyperband" if config.pruning is not None else "none",
        "storage": queue.study._storage.__class__.__name__,
        "search_space": {name: parameter.model_dump() for name, parameter in search_space(config).items()},
        "status": status,
        "trials": len(trials),
        "completed": number_of(trials, "COMPLETE"),
        "pruned": number_of(trials, "PRUNED"),
        "failed": number_of(trials, "FAIL"),
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
    """Return a time of Optuna's, which is local, as UTC."""
    if time is None:
        return None
    from datetime import UTC

    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
