"""DAgger: the student's policy flies, the teacher labels every decision (Ross, Gordon and Bagnell 2011).

A clone drifts into states that its teacher never visited and has not learned to leave. Flights of the student, labelled
by the teacher, cover these states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from navi_core.config import ExpertConfig
from navi_core.errors import ConfigError
from navi_core.pilots import Pose
from navi_core.world.field import Field


class Flyer(Protocol):
    """Policy interface of a student; the evaluation's policy flyer implements it."""

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
class Student:
    """Student policy with the identity and vocabulary of its weights."""

    flyer: Flyer
    """Policy that flies."""
    weights: str
    """Hash of the weights; a recording is bound to it."""
    vocabulary: Mapping[str, int] | None = None
    """Semantic id by name, as the weights learned them."""

    def require_fit(self, config: ExpertConfig) -> None:
        """Refuse a recording whose sensor differs from the one in the student's training.

        Raises:
            ConfigError: The resolution or range differs, or the settings name other weights.
        """
        for name, here, there in (
            ("azimuth_bins", config.azimuth_bins, self.flyer.azimuth_bins),
            ("elevation_bins", config.elevation_bins, self.flyer.elevation_bins),
            ("max_distance", config.max_distance, self.flyer.max_distance),
            ("pupil", config.pupil, self.weights),
        ):
            if here != there:
                raise ConfigError(f"{name} of the recording is {here}, that of the student {there}; set it alike")


class FixedBatchFlyer:
    """Student flown in batches of one size, so that an episode's bits do not depend on the other rows.

    Args:
        student: Policy that flies.
        keys: (B,) random keys of the rows, at most `block` rows.
        field: Scenes to fly in.
        block: Rows of a batch.
    """

    def __init__(self, student: Student, keys: Tensor, field: Field, block: int) -> None:
        self._flyer, self._rows = student.flyer, len(keys)
        # The first row fills the batch up.
        self._padded = torch.cat((torch.arange(len(keys)), torch.zeros(block - len(keys), dtype=torch.int64)))
        self._flyer.begin(keys[self._padded], field)

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Return actions (B, 4), clamped to [−1, 1]."""
        rows = self._padded
        padded = Pose(pose.position[rows], pose.yaw[rows], pose.scene_index[rows])
        return self._flyer.act(obs[rows], padded)[: self._rows].clamp(-1.0, 1.0)
