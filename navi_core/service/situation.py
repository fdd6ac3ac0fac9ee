"""Some drones at one instant, as the gate takes them."""

from __future__ import annotations

from dataclasses import dataclass, fields

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
        obs: (B, 3, Az, El).
    """

    rows: Tensor
    position: Tensor
    yaw: Tensor
    velocity: Tensor
    obs: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> Situation:
        """Return some of the drones: (N,) places, or (B,) bool."""
        return Situation(*(getattr(self, part.name)[index] for part in fields(self)))
