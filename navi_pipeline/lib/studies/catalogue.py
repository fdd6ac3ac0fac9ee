"""Catalogue of studies; others are files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from navi_core.config import parse_config
from navi_core.errors import ConfigError, RunError
from navi_core.presets import merge, read_config_file
from navi_pipeline.lib.records import content_key
from navi_pipeline.settings.studies import StudyConfig

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
"""Name → settings of a study."""


def find_study(name: str, *, file: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> StudyConfig:
    """Return the settings of a study.

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
        raise ConfigError(f"no study {name!r}; allowed: {', '.join(STUDIES)}, or a file: --config FILE")
    return parse_config(StudyConfig, merge({**values, "name": name}, overrides or {}))


def over_scenes(config: StudyConfig, scenes: Sequence[str]) -> StudyConfig:
    """Return a study on these scenes; other scenes are another study, so its name distinguishes them.

    Raises:
        RunError: There is no scene.
    """
    if not scenes:
        raise RunError("the corpus has no training scene; materialize scene_sources with train above 0")
    settings = merge(config.settings, {"corpus": {"scenes": list(scenes)}})
    name = f"{config.name}-{content_key(sorted(scenes))[:6]}"
    return config.model_copy(update={"settings": settings, "name": name})
