"""What callers hand to the world, checked by name before anything is allocated or cast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from navi_core.errors import ConfigError, SceneError
from navi_core.scenes import Scene

__all__ = ["described", "known_ids", "metres", "scene_list", "whole_number"]


def scene_list(scenes: Sequence[Scene]) -> tuple[Scene, ...]:
    """Return a field's scenes; raises `ConfigError` where they are no list of scenes."""
    if not isinstance(scenes, Sequence) or isinstance(scenes, str):
        raise ConfigError(f"a field takes a list of scenes, not {type(scenes).__name__}; write Field([scene])")
    if not scenes:
        raise ConfigError("a field needs at least one scene; see `navi scenes discover`")
    for number, scene in enumerate(scenes):
        if not isinstance(scene, Scene):
            raise ConfigError(
                f"scene {number} of a field is {type(scene).__name__}; take what load_gmdag or compile_mesh returns"
            )
    return tuple(scenes)


def known_ids(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Return a vocabulary; raises `ConfigError` where an id is none."""
    for name, number in vocabulary.items():
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or not 1 <= number < 2**31:
            raise ConfigError(f"semantic id of {name!r} is {number!r}; allowed: whole numbers from 1 to {2**31 - 1}")
    return dict(vocabulary)


def metres(value: float, name: str) -> float:
    """Return a length as a float; infinity is one; raises `SceneError` for anything below 0."""
    try:
        length = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise SceneError(f"{name} is {value!r}, expected a number of metres, 0 or more") from None
    if not length >= 0.0:
        raise SceneError(f"{name} is {length}, expected a number of metres, 0 or more")
    return length


def described(value: object) -> str:
    """Return what a wrong argument is, in words."""
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}".replace("torch.", "")
    return type(value).__name__


def whole_number(name: str, value: int, low: int, high: int) -> int:
    """Return the number.

    Raises:
        ConfigError: It is not a whole number from `low` to `high`.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}; allowed: whole numbers from {low} to {high}")
    return int(value)
