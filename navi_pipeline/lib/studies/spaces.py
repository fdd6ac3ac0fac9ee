"""Search spaces: one for each learner, sampling, and the resulting settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.presets import merge, merge_sources, setting_sources
from navi_pipeline.settings.studies import ChoiceParameter, FloatParameter, IntParameter, Parameter, StudyConfig

if TYPE_CHECKING:
    from optuna.trial import Trial

_RATE = FloatParameter(low=1e-4, high=3e-3, log=True)
_ENTROPY = FloatParameter(low=1e-4, high=3e-2, log=True)

SPACES: dict[str, dict[str, Parameter]] = {
    "ppo": {
        "ppo.learning_rate": _RATE,
        "ppo.entropy_coefficient": _ENTROPY,
        "ppo.gamma": FloatParameter(low=0.95, high=0.997),
        "ppo.gae_lambda": FloatParameter(low=0.85, high=0.99),
        "ppo.clip": FloatParameter(low=0.1, high=0.3),
        "ppo.epochs": IntParameter(low=1, high=4),
    },
    "grpo": {
        "grpo.learning_rate": _RATE,
        "grpo.ent_coef": _ENTROPY,
        "grpo.gamma": FloatParameter(low=0.95, high=1.0),
        "grpo.update_epochs": IntParameter(low=1, high=4),
        "grpo.normalize_group": ChoiceParameter(choices=("mean", "mean_std")),
    },
    "dqn": {
        "dqn.learning_rate": _RATE,
        "dqn.gamma": FloatParameter(low=0.95, high=0.997),
        "dqn.n_step": IntParameter(low=1, high=5),
        "dqn.replay_ratio": FloatParameter(low=1.0, high=8.0, log=True),
        "replay.alpha": FloatParameter(low=0.0, high=1.0),
    },
    "bc": {
        "bc.learning_rate": _RATE,
        "bc.sequences": IntParameter(low=8, high=64, log=True),
        "bc.bptt": ChoiceParameter(choices=(4, 8, 16, 32)),
    },
}
"""Learner → setting → how it varies, where the study names no space of its own."""


def search_space(config: StudyConfig) -> dict[str, Parameter]:
    """Return what a study searches.

    Raises:
        ConfigError: It names no space, and its learner is not Navi's.
    """
    if not config.space and config.learner not in SPACES:
        raise ConfigError(
            f"study {config.name}: what is to vary of {config.learner}, a learner of your own? Name it in the study's "
            "file, for example space: {ppo.learning_rate: {kind: float, low: 1.0e-4, high: 3.0e-3, log: true}}"
        )
    return config.space or SPACES[config.learner]


def draw(trial: Trial, space: Mapping[str, Parameter]) -> dict[str, Any]:
    """Let a trial propose a value for every setting of a space."""
    return {name: _suggest(trial, name, parameter) for name, parameter in space.items()}


def trial_settings(config: StudyConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings: preset, the study's own, the trial's.

    Raises:
        ConfigError: No such preset.
    """
    values: dict[str, Any] = dict(config.settings)
    for path, value in params.items():
        nested: Any = value
        for part in reversed(path.split(".")):
            nested = {part: nested}
        values = merge(values, nested)
    flags = values | {"algorithm": config.learner}
    return merge_sources(setting_sources(preset=config.preset, environ={}, flags=flags))


def trial_config(config: StudyConfig, params: Mapping[str, Any]) -> TrainConfig:
    """Return the full configuration of a trial.

    Raises:
        ConfigError: A setting does not exist or cannot have this value; the trial's values are named.
    """
    try:
        return parse_config(TrainConfig, trial_settings(config, params))
    except ConfigError as error:
        raise ConfigError(f"study {config.name}, {_described(params) or 'fixed settings'}: {error}") from error


def check_space(config: StudyConfig) -> None:
    """Refuse a study whose space names what is no setting, before anything is trained.

    Raises:
        ConfigError: Names the setting.
    """
    corner_config(config)


def corner_config(config: StudyConfig) -> TrainConfig:
    """Return the configuration in the first corner of the space: what does not vary is in it as in all trials.

    Raises:
        ConfigError: A setting does not exist or cannot have this value.
    """
    return trial_config(config, {name: _corner(parameter) for name, parameter in search_space(config).items()})


def _suggest(trial: Trial, name: str, parameter: Parameter) -> object:
    if isinstance(parameter, ChoiceParameter):
        return trial.suggest_categorical(name, list(parameter.choices))
    if isinstance(parameter, IntParameter):
        return trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log)
    return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)


def _corner(parameter: Parameter) -> object:
    return parameter.choices[0] if isinstance(parameter, ChoiceParameter) else parameter.low


def _described(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{re.sub(r'[^a-z_.]', '?', name)} {value}" for name, value in params.items())
