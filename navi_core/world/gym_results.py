"""Conversion of observations, step outcomes and poses between the environment's tensors and gymnasium's arrays."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from navi_core.errors import NaviError
from navi_core.world.environment import NavigationEnv
from navi_core.world.interface import StepBatch
from navi_core.world.spawning.start_poses import StartPoses

Array = npt.NDArray[Any]
Info = dict[str, Any]
Obs = dict[str, Array]
"""Observations (B, …) by name: "view", and "goal" with goals."""


def begin_episodes(env: NavigationEnv, episode: int, seed: int | None, start: StartPoses) -> Array:
    """Begin an episode of that number in all rows and return (B, 3, Az, El); a refusal changes nothing."""
    if start.drawn:
        return env.reset(seed, episode=episode).numpy()
    before, state = env.seed, env.state_dict()
    try:
        env.reset(seed, episode=episode)
        return env.begin(torch.arange(env.num_envs), env.counters["episode"].clone(), start).numpy()
    except NaviError:
        env.reset(before)
        env.load_state_dict(state)
        raise


def observed(env: NavigationEnv, view: Array) -> Obs:
    """Return the present observations: of the next episode where one has ended."""
    goals = env.relative_goals()
    return {"view": view} if goals is None else {"view": view, "goal": goals.numpy()}


def last_observed(batch: StepBatch) -> dict[str, torch.Tensor]:
    """Return the last observations of the rows whose episode has ended; the others hold anything."""
    return {"view": batch.ended_obs} | ({"goal": batch.info["goal"]} if "goal" in batch.info else {})


def to_user(obs: Obs) -> Any:
    """Return a copy of an observation for the user: the view alone, or a dictionary."""
    mine = {name: value.copy() for name, value in obs.items()}
    return mine if len(mine) > 1 else mine["view"]


def pose_arrays(env: NavigationEnv) -> Info:
    """Return (B, …) arrays of the present poses."""
    return {name: value.numpy() for name, value in cast(Info, env.poses()).items()}


def step_outcome(batch: StepBatch) -> Info:
    """Return the (N, …) outcome of a step."""
    names = ("collision", "void", "speed", "episode_return", "episode_length", "success", "way", "reward_terms")
    return {name: value for name, value in batch.info.items() if name in names}


def end_pose(batch: StepBatch) -> dict[str, torch.Tensor]:
    """Return the (N, …) poses after the step, before any reset."""
    return {name: batch.info[name] for name in ("position", "yaw", "scene_index")}


def spread(value: Any, rows: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return (B, …) arrays of tensors (N, …) of some rows, or of a dictionary of tensors; zeros in the others.

    Args:
        value: The tensors.
        rows: (B,) bool, the rows; None for all.
    """
    if isinstance(value, dict):
        return {name: spread(one, rows) for name, one in value.items()}
    some = value.numpy()
    if rows is None or rows.all():
        return some
    whole = np.zeros((len(rows), *some.shape[1:]), some.dtype)
    whole[rows] = some
    return whole


def where_rows(mask: npt.NDArray[np.bool_], value: Array, otherwise: Array | None) -> Array:
    """Return a value in the rows (B,) of a mask and another one elsewhere."""
    if otherwise is None or mask.all():
        return value
    return np.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, otherwise)


def masked_info(info: Info, mask: npt.NDArray[np.bool_]) -> Info:
    """Return a vector info: every key with a mask of the rows that have it; the others hold zeros."""
    out: Info = {}
    for name, value in info.items():
        if isinstance(value, dict):
            out[name] = masked_info(value, mask)
        else:
            out[name] = np.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros_like(value))
        out[f"_{name}"] = mask.copy()
    return out


def plain_info(info: Info) -> Info:
    """Return the first row's info; numbers as plain values."""
    return {
        name: plain_info(value) if isinstance(value, dict) else (value[0].copy() if value.ndim > 1 else value[0].item())
        for name, value in info.items()
    }
