"""Some drones at one instant, as the gate takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Situation"]


@dataclass(frozen=True)
class Situation:
    """Where B drones are, how fast they are, and what they see.

    Attributes:
        rows: (B,) numbers of the drones, below the gate's capacity, each at most once.
        position: (B, 3) [m].
        yaw: (B,) [rad].
        velocity: (B, 4) body velocity [m/s, rad/s].
        obs: (N, 3, Az, El) observations.
        place: (B,) which of them each sees; None where there is one for each, in their order.
    """

    rows: Tensor
    position: Tensor
    yaw: Tensor
    velocity: Tensor
    obs: Tensor
    place: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> Situation:
        """Return some of the drones: (M,) places, or (B,) bool. Their observations are not copied."""
        place = torch.arange(len(self)) if self.place is None else self.place
        rows, position, yaw, velocity = (x[index] for x in (self.rows, self.position, self.yaw, self.velocity))
        return Situation(rows, position, yaw, velocity, self.obs, place[index])
