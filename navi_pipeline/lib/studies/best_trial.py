"""Best trial of a study: its settings as a preset file, and a note on selection bias."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import ConfigError, RecordError, RunError, as_argument
from navi_core.presets.plain_yaml import write_yaml
from navi_core.record import navi_home
from navi_core.record.durable import write_durably
from navi_pipeline.lib.studies.spaces import trial_config, trial_settings
from navi_pipeline.lib.studies.trial_queue import TrialQueue, number_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def pick_trial(queue: TrialQueue, number: int | None = None) -> FrozenTrial:
    """Return the best feasible trial, of a front the one best by the first objective, or the trial of a number.

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
    """Write a trial's settings as YAML, for `navi train … --preset FILE` and `--config FILE`.

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
    settings = trial_settings(queue.config, trial.params)
    metrics = ", ".join(objective.metric for objective in queue.config.objectives)
    text = f"# Trial {trial.number} of study {queue.config.name}: {metrics} {values or 'unknown'}.\n"
    text += f"# Of {selection_note(trials_compared(queue))}.\n"
    text += write_yaml(settings)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, text.encode())
    except OSError as error:
        raise RecordError(f"cannot write the preset {file}: {error.strerror or error}") from error


def trials_compared(queue: TrialQueue) -> int:
    """Return how many trials the best was chosen from; those that were pruned had their chance, too."""
    trials = list(queue.latest().values())
    return number_of(trials, "COMPLETE") + number_of(trials, "PRUNED")


def selection_note(trials: int) -> str:
    """Return what to think of the best value, in words.

    The best of many values owes some of its lead to its seed: the same settings earn less with another.

    Args:
        trials: How many it was chosen from (see `trials_compared`).
    """
    return f"one seed, chosen from {trials} trials: expect less of it" if trials > 1 else "one seed"
