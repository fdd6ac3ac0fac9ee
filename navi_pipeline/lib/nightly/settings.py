"""Settings of a night: small defaults for a short one, a file, single assignments."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig, parse_config
from navi_core.presets import merge, parse_assignments, read_config_file, resolve_config
from navi_pipeline.settings.nightly import NightlyConfig

SMALL_MINUTES = 60.0
"""Length up to which a night is a small one [min]."""

_SMALL: dict[str, Any] = {
    "profile": "quick",
    "train_scenes": 4,
    "validation_scenes": 4,
    "test_scenes": 2,
    "eval_starts": 3,
    "eval_steps": 100,
    "bench_steps": 10,
    "monitor_seconds": 10.0,
    "training_share": 0.5,
    "free_disk_gib": 0.5,
}


def nightly_config(
    *,
    minutes: float | None = None,
    file: Path | str | None = None,
    assignments: Iterable[str] = (),
    train: bool = True,
) -> NightlyConfig:
    """Merge the settings of a night: defaults < small night < file < minutes < assignments.

    Args:
        minutes: Length [min]; None: the default or the file's.
        file: YAML or JSON file; by default the one that `$NAVI_NIGHTLY` names, if it does.
        assignments: `a=b` texts.
        train: False for a validation night.

    Raises:
        ConfigError: A key is unknown, a value impossible, or the file unreadable.
    """
    file = file or os.environ.get("NAVI_NIGHTLY") or None
    values = dict(_SMALL) if minutes is not None and minutes <= SMALL_MINUTES else {}
    values = merge(values, read_config_file(file) if file is not None else {})
    values = merge(values, {"train": train} | ({} if minutes is None else {"minutes": minutes}))
    return parse_config(NightlyConfig, merge(values, parse_assignments(assignments)))


def preset_settings(config: NightlyConfig, scenes: Sequence[str] | None = None) -> TrainConfig:
    """Return what a night's profile trains with.

    Args:
        config: The night's settings.
        scenes: Files of the training scenes; None: those of the preset.

    Raises:
        ConfigError: There is no such profile, or a `NAVI_*` variable is not a setting.
    """
    flags: dict[str, Any] = {"seed": config.seed, "checkpoint_every": config.checkpoint_every}
    if scenes is not None:
        flags["corpus"] = {"scenes": list(scenes)}
    return resolve_config(preset=config.profile, flags=flags)
