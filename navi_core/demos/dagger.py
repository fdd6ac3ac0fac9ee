"""A pupil in the air: its policy flies, its teacher says at every decision what should have been done.

A clone errs into places that its teacher never flew to, and has not learned the way out of them. Flights of the pupil,
answered by the teacher, show just these (DAgger: Ross, Gordon and Bagnell 2011).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from navi_core.config import ExpertConfig
from navi_core.errors import ConfigError
from navi_core.pilots import Pose
from navi_core.world.field import Field

__all__ = ["Flyer", "Pupil"]


class Flyer(Protocol):
    """What flies as a pupil; a policy of the evaluation is one."""

    azimuth_bins: int
    """Az of its observations."""
    elevation_bins: int
    """El of its observations."""
    max_distance: float
    """Range of its sensor [m]."""

    def begin(self, keys: Tensor, field: Field) -> None:
        """Start new episodes in all rows (B,)."""

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Answer observations (B, 3, Az, El) with actions (B, 4)."""


@dataclass(frozen=True)
class Pupil:
    """A flyer and what it was trained with."""

    flyer: Flyer
    """Who flies."""
    weights: str
    """Hash of its weights; a recording is bound to it."""
    vocabulary: Mapping[str, int] | None = None
    """Semantic ids by name that it knows."""

    def require_fit(self, config: ExpertConfig) -> None:
        """Refuse a recording that the pupil could not see as it learned to.

        Raises:
            ConfigError: Another resolution or range, or the settings name other weights.
        """
        for name, here, there in (
            ("azimuth_bins", config.azimuth_bins, self.flyer.azimuth_bins),
            ("elevation_bins", config.elevation_bins, self.flyer.elevation_bins),
            ("max_distance", config.max_distance, self.flyer.max_distance),
            ("pupil", config.pupil, self.weights),
        ):
            if here != there:
                raise ConfigError(f"{name} of the recording is {here}, that of the pupil {there}; set it alike")


class Cockpit:
    """Flies a pupil in blocks of one size, so that an episode's bits do not depend on what is flown beside it.

    Args:
        pupil: Who flies.
        keys: (B,) what the rows' draws hang on, at most `block` rows.
        field: Where.
        block: Rows of a block.
    """

    def __init__(self, pupil: Pupil, keys: Tensor, field: Field, block: int) -> None:
        self._flyer, self._rows = pupil.flyer, len(keys)
        # What is missing in a block is its first row again.
        self._filled = torch.cat((torch.arange(len(keys)), torch.zeros(block - len(keys), dtype=torch.int64)))
        self._flyer.begin(keys[self._filled], field)

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Return actions (B, 4), clamped to [−1, 1]."""
        all_of = self._filled
        whole = Pose(pose.position[all_of], pose.yaw[all_of], pose.scene_index[all_of])
        return self._flyer.act(obs[all_of], whole)[: self._rows].clamp(-1.0, 1.0)
