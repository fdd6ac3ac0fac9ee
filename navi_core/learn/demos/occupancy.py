"""What a place memory would have told during recorded flights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from navi_core.config import DynamicsConfig
from navi_core.config.place_memory import PLACE_INPUTS
from navi_core.demos import Dataset
from navi_core.world.occupancy_memory import PlaceMemory

__all__ = ["demo_places"]

_ROWS = 32
"""Episodes walked side by side."""


def demo_places(data: Dataset, dynamics: DynamicsConfig) -> npt.NDArray[np.float32]:
    """Fly recorded episodes again in the mind: reckon the poses, draw the maps, read them.

    Args:
        data: The demonstrations; what was flown counts, not what was answered.
        dynamics: Of the drone that flew them.

    Returns:
        (N, PLACE_INPUTS) what the policy is told at each decision.
    """
    told = np.zeros((len(data), PLACE_INPUTS), np.float32)
    # Episodes of like length walk together: what a row whose flight is over is told is thrown away.
    episodes = sorted(data.episodes, key=lambda episode: episode.steps)
    for first in range(0, len(episodes), _ROWS):
        block = episodes[first : first + _ROWS]
        start, length = np.array([e.start for e in block]), np.array([e.steps for e in block])
        memory = PlaceMemory(len(block), data.azimuth_bins, data.elevation_bins, dynamics, data.max_distance)
        for t in range(int(length.max())):
            at = start + np.minimum(t, length - 1)
            obs = torch.from_numpy(data.observations(at))
            if t == 0:
                answer = memory.begin(obs)
            else:
                answer = memory.fly(obs, torch.from_numpy(data.flown[start + np.minimum(t - 1, length - 1)]))
            on = t < length
            told[at[on]] = answer.numpy()[on]
    return told
