"""Checks of arguments of the world, by name, before anything is allocated or cast."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from navi_core.errors import ConfigError, NonFiniteError, SceneError
from navi_core.scenes import Scene


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


def shaped_actions(actions: torch.Tensor, rows: int, device: torch.device) -> torch.Tensor:
    """Return (B, 4) float32 actions of B rows on a device; raises `ConfigError` where they are none."""
    if not isinstance(actions, torch.Tensor) or actions.is_complex():
        raise ConfigError(f"actions is {described(actions)}, expected a float tensor ({rows}, 4)")
    if tuple(actions.shape) != (rows, 4):
        raise ConfigError(f"actions of shape {tuple(actions.shape)}, expected ({rows}, 4)")
    return actions.detach().to(device, torch.float32)


def finite_actions(action: torch.Tensor, *, refuse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (B, 4) actions to be flown, hovering where they were no numbers, and (B,) where that was.

    A pose that is no number would never leave the kernels' grid walks.

    Args:
        action: (B, 4).
        refuse: Raise `NonFiniteError` instead, which names the row; on the CPU, where looking costs no wait.
    """
    finite = torch.isfinite(action).all(dim=1)
    if refuse and not finite.numpy().all():
        raise bad_action(action, int(finite.numpy().argmin()))
    return torch.where(finite[:, None], action, 0.0), ~finite


def bad_action(action: torch.Tensor, row: int) -> NonFiniteError:
    """Return the error that refuses a row's action, which is no number."""
    return NonFiniteError("action", f"the action of row {row} is {action[row].tolist()}, not finite")


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
