"""The best trial's settings as a preset file that training takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from navi_core.errors import ConfigError, RecordError, RunError, as_argument
from navi_core.presets.plain_yaml import write_yaml
from navi_core.record import navi_home
from navi_core.record.durable import write_durably
from navi_pipeline.lib.studies.book import StudyBook
from navi_pipeline.lib.studies.caution import caution, tried
from navi_pipeline.lib.studies.spaces import trial_config, trial_settings

__all__ = ["pick_trial", "write_preset"]


def pick_trial(book: StudyBook, number: int | None = None) -> Any:
    """Return the best feasible trial, of a front the one best by the first objective, or the trial of a number.

    Raises:
        RunError: No trial is complete and feasible, or there is no trial of this number.
    """
    if number is not None:
        trials = book.trials()
        if not 0 <= number < len(trials) or not trials[number].params:
            raise RunError(f"study {book.config.name} has no trial {number}; `navi study show` lists them")
        return trials[number]
    best = book.best()
    if not best:
        raise RunError(f"study {book.config.name} has no complete and feasible trial; `navi study resume` goes on")
    sign = 1 if book.config.objectives[0].direction == "maximize" else -1
    return max(best, key=lambda trial: (sign * trial.values[0], -trial.number))


def write_preset(book: StudyBook, trial: Any, file: Path) -> None:
    """Write a trial's settings as YAML, for `navi train … --preset FILE` and `--config FILE`.

    Raises:
        ConfigError: The study's own preset says something else than when the trial was trained.
        RecordError: The file cannot be written.
    """
    trial_config(book.config, trial.params)  # what training would refuse is not written
    try:
        book.require_same_settings()
    except ConfigError as error:
        kept = navi_home() / "runs" / str(trial.user_attrs.get("run_id")) / "config.json"
        raise ConfigError(
            f"{error}; trial {trial.number} itself was trained with --config {as_argument(kept)}"
        ) from error
    values = ", ".join(f"{value:.6g}" for value in trial.values or ())
    settings = trial_settings(book.config, trial.params)
    metrics = ", ".join(objective.metric for objective in book.config.objectives)
    text = f"# Trial {trial.number} of study {book.config.name}: {metrics} {values or 'unknown'}.\n"
    text += f"# Of {caution(tried(book))}.\n"
    text += write_yaml(settings)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, text.encode())
    except OSError as error:
        raise RecordError(f"cannot write the preset {file}: {error.strerror or error}") from error
