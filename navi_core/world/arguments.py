"""Validation of the arguments of fields and environments, by name, before anything is allocated or cast."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from navi_core.errors import ConfigError, NonFiniteError, SceneError
from navi_core.scenes import Scene


def scene_list(scenes: Sequence[Scene]) -> tuple[Scene, ...]:
    """Validate the scenes of a field and return them as a tuple; raises `ConfigError` for anything else."""
    if not isinstance(scenes, Sequence) or isinstance(scenes, str):
        raise ConfigError(f"a field takes a list of scenes, not {type(scenes).__name__}; write Field([scene])")
    if not scenes:
        raise ConfigError("a field needs at least one scene; see `navi scenes list`")
    for number, scene in enumerate(scenes):
        if not isinstance(scene, Scene):
            raise ConfigError(
                f"scene {number} of a field is {type(scene).__name__}; take what load_gmdag or compile_mesh returns"
            )
    return tuple(scenes)


def known_ids(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Validate a vocabulary (semantic id by name) and return a copy; raises `ConfigError` for an invalid id."""
    for name, number in vocabulary.items():
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or not 1 <= number < 2**31:
            raise ConfigError(f"semantic id of {name!r} is {number!r}; allowed: whole numbers from 1 to {2**31 - 1}")
    return dict(vocabulary)


def metres(value: float, name: str) -> float:
    """Validate a length [m] and return it as a float; infinity is allowed; raises `SceneError` for anything below 0."""
    try:
        length = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise SceneError(f"{name} is {value!r}, expected a number of metres, 0 or more") from None
    if not length >= 0.0:
        raise SceneError(f"{name} is {length}, expected a number of metres, 0 or more")
    return length


def shaped_actions(actions: torch.Tensor, rows: int, device: torch.device) -> torch.Tensor:
    """Validate the actions of B rows and return them as (B, 4) float32 on a device; raises `ConfigError` otherwise."""
    if not isinstance(actions, torch.Tensor) or actions.is_complex():
        raise ConfigError(f"actions is {described(actions)}, expected a float tensor ({rows}, 4)")
    if tuple(actions.shape) != (rows, 4):
        raise ConfigError(f"actions of shape {tuple(actions.shape)}, expected ({rows}, 4)")
    return actions.detach().to(device, torch.float32)


def finite_actions(action: torch.Tensor, *, refuse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace non-finite actions (B, 4) by zero (hover); return the actions and a (B,) bool mask of the replaced rows.

    A NaN pose would never leave the kernels' grid walks.

    Args:
        action: (B, 4).
        refuse: Raise `NonFiniteError` instead, which names the row; on the CPU, where looking costs no wait.
    """
    finite = torch.isfinite(action).all(dim=1)
    if refuse and not finite.numpy().all():
        raise bad_action(action, int(finite.numpy().argmin()))
    return torch.where(finite[:, None], action, 0.0), ~finite


def bad_action(action: torch.Tensor, row: int) -> NonFiniteError:
    """Build the error for a row whose action is NaN or infinite."""
    return NonFiniteError("action", f"the action of row {row} is {action[row].tolist()}, not finite")


def described(value: object) -> str:
    """Describe a wrong argument for an error message: dtype and shape of a tensor, else the type's name."""
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}".replace("torch.", "")
    return type(value).__name__


def whole_number(name: str, value: int, low: int, high: int) -> int:
    """Validate that an argument is a whole number within bounds (both included) and return it.

    Raises:
        ConfigError: It is not a whole number from `low` to `high`.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}; allowed: whole numbers from {low} to {high}")
    return int(value)
