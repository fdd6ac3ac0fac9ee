"""Catalogue of hyperparameter studies, default search spaces, and the configuration of a trial."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import ConfigError, RunError, did_you_mean
from navi_core.presets import merge, merge_sources, nested, read_config_file, setting_sources
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.training.trainer_client import APEX, algorithm_of, identified
from navi_pipeline.settings import ChoiceParameter, FloatParameter, IntParameter, Parameter, StudyConfig

_FLIGHT = {
    "preset": "quick",
    "trials": 30,
    "workers": 2,
    "constraints": [{"metric": "memory_gib", "at_most": 8.0}],
}

STUDIES: dict[str, dict[str, Any]] = {
    # Small enough for the whole graph: whether everything is wired, not what is best.
    "quick": {
        "learner": "ppo",
        "settings": {
            "task": "cart_pole",
            "actors": 8,
            "total_steps": 1024,
            "threads": 1,
            "ppo": {"rollout": 32, "bptt": 8, "minibatch": 8},
        },
        "space": {
            "ppo.learning_rate": {"kind": "float", "low": 3e-4, "high": 3e-3, "log": True},
            "ppo.epochs": {"kind": "int", "low": 1, "high": 2},
        },
        # Every decision of cart-pole earns 1: the episode return is the time that it stands.
        "objectives": [{"metric": "episode_return"}],
        "trials": 2,
    },
    "ppo": _FLIGHT | {"learner": "ppo", "settings": {"total_steps": 131_072}, "pruning": {"min_steps": 16_384}},
    "grpo": _FLIGHT | {"learner": "grpo", "settings": {"total_steps": 65_536}, "pruning": {"min_steps": 8192}},
    "dqn": _FLIGHT | {"learner": "dqn", "settings": {"total_steps": 32_768}, "pruning": {"min_steps": 4096}},
    "dpo": _FLIGHT | {"learner": "dpo", "settings": {"total_steps": 65_536}, "pruning": {"min_steps": 8192}},
    "apex": _FLIGHT | {"learner": APEX, "settings": {"total_steps": 32_768}, "pruning": {"min_steps": 4096}},
    "ppo_speed": _FLIGHT
    | {
        "learner": "ppo",
        "settings": {"total_steps": 65_536},
        "objectives": [{"metric": "reward_ema"}, {"metric": "sps", "summary": "median"}],
        "space": {
            "policy.encoder": {"kind": "choice", "choices": ["rayvit", "ring_cnn"]},
            "policy.core": {"kind": "choice", "choices": ["gru", "mamba2", "none"]},
            "ppo.epochs": {"kind": "int", "low": 1, "high": 4},
            "ppo.learning_rate": {"kind": "float", "low": 1e-4, "high": 3e-3, "log": True},
        },
        "sampler": "nsga2",
    },
}
"""Settings of the built-in studies by name."""


def find_study(name: str, *, file: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> StudyConfig:
    """Return the validated configuration of a study, from the catalogue or a file.

    Args:
        name: One of `STUDIES`, or the name that a file's study gets.
        file: YAML or JSON file of settings.
        overrides: Settings that win, nested ones key by key.

    Raises:
        ConfigError: There is no such study, or a setting cannot be.
    """
    if file is not None:
        values = read_config_file(file)
    elif name in STUDIES:
        values = STUDIES[name]
    else:
        raise ConfigError(
            f"no study {name!r}; {did_you_mean(name, STUDIES)}allowed: {', '.join(STUDIES)}, or a file: --config FILE"
        )
    return parse_config(StudyConfig, merge({**values, "name": name}, overrides or {}))


def over_scenes(config: StudyConfig, scenes: Sequence[str]) -> StudyConfig:
    """Return a study restricted to these training scenes; its name gets a hash of the scenes.

    Raises:
        RunError: There is no scene.
    """
    if not scenes:
        raise RunError("the corpus has no training scene; materialize scene_sources with train above 0")
    settings = merge(config.settings, {"corpus": {"scenes": list(scenes)}})
    name = f"{config.name}-{content_key(sorted(scenes))[:6]}"
    return config.model_copy(update={"settings": settings, "name": name})


_RATE = FloatParameter(low=1e-4, high=3e-3, log=True)
_ENTROPY = FloatParameter(low=1e-4, high=3e-2, log=True)
_DQN: dict[str, Parameter] = {
    "dqn.learning_rate": _RATE,
    "dqn.gamma": FloatParameter(low=0.95, high=0.997),
    "dqn.n_step": IntParameter(low=1, high=5),
    "dqn.replay_ratio": FloatParameter(low=1.0, high=8.0, log=True),
    "replay.alpha": FloatParameter(low=0.0, high=1.0),
}

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
    "dqn": _DQN,
    APEX: _DQN | {"distributed.param_sync_interval": IntParameter(low=50, high=2000, log=True)},
    "dpo": {
        "dpo.learning_rate": _RATE,
        "dpo.beta": FloatParameter(low=0.02, high=0.5, log=True),
        "dpo.update_epochs": IntParameter(low=1, high=4),
        "dpo.ref_sync_every_updates": IntParameter(low=1, high=16, log=True),
    },
    "bc": {
        "bc.learning_rate": _RATE,
        "bc.sequences": IntParameter(low=8, high=64, log=True),
        "bc.bptt": ChoiceParameter(choices=(4, 8, 16, 32)),
    },
}
"""Default search space by learner: setting → parameter."""


def search_space(config: StudyConfig) -> dict[str, Parameter]:
    """Return the search space of a study: its own, or the learner's default.

    Raises:
        ConfigError: It names no space, and its learner is not Navi's.
    """
    if not config.space and config.learner not in SPACES:
        raise ConfigError(
            f"study {config.name}: what is to vary of {config.learner}, a learner of your own? Name it in the study's "
            "file, for example space: {ppo.learning_rate: {kind: float, low: 1.0e-4, high: 3.0e-3, log: true}}"
        )
    return config.space or SPACES[config.learner]


def partition_of(study: str, slot: int) -> str:
    """Return the partition key of a study's slot, for its run and the asset `trial`."""
    return f"{study}-{slot:04d}"


def trial_settings(config: StudyConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's nested settings, merged from preset, study and sampled parameters.

    Raises:
        ConfigError: No such preset.
    """
    values: dict[str, Any] = dict(config.settings)
    for path, value in params.items():
        values = merge(values, nested(path.split("."), value))
    flags = values | {"algorithm": algorithm_of(config.learner)}
    return merge_sources(setting_sources(preset=config.preset, environ={}, flags=flags))


def trial_config(config: StudyConfig, params: Mapping[str, Any]) -> TrainConfig:
    """Return the validated training configuration of a trial.

    Raises:
        ConfigError: A setting does not exist or cannot have this value; the trial's values are named.
    """
    try:
        return identified(parse_config(TrainConfig, trial_settings(config, params)))
    except ConfigError as error:
        values = ", ".join(f"{re.sub(r'[^a-z_.]', '?', name)} {value}" for name, value in params.items())
        raise ConfigError(f"study {config.name}, {values or 'fixed settings'}: {error}") from error


def corner_config(config: StudyConfig) -> TrainConfig:
    """Return the configuration at the lower corner of the search space, to compare the fixed settings of all trials.

    Raises:
        ConfigError: A setting does not exist or cannot have this value.
    """
    corner = {
        name: parameter.choices[0] if isinstance(parameter, ChoiceParameter) else parameter.low
        for name, parameter in search_space(config).items()
    }
    return trial_config(config, corner)
