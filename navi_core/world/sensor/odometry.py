"""Odometry with a stated drift: the pose that a body reckons, with a scale error and a gyro bias of each flight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from navi_core.config import OdometryConfig
from navi_core.world.counter_random import Purpose, uniform


class Odometry:
    """Pose estimates of rows, which begin at the true poses and drift.

    Each flight has both errors at their full stated size; their signs are functions of seed and key.

    Args:
        config: Size of the errors.
        seed: Seed of the signs.
        keys: (B,) int64 keys of the flights.
        decision_seconds: Duration of a decision [s].
    """

    def __init__(self, config: OdometryConfig, seed: int, keys: Tensor, decision_seconds: float) -> None:
        draws = uniform(seed, Purpose.ODOMETRY, keys[:, None].expand(-1, 2), 0, torch.arange(2, device=keys.device))
        sign = torch.where(draws < 0.5, -1.0, 1.0).to(torch.float64)
        self._scale = 1.0 + config.scale * sign[:, 0]
        self._bias = math.radians(config.gyro_degrees) * decision_seconds * sign[:, 1]
        self._true: tuple[Tensor, Tensor] | None = None

    def follow(self, position: Tensor, yaw: Tensor) -> tuple[Tensor, Tensor]:
        """Return the estimated positions (B, 3) [m] and yaws (B,) [rad] for the next true ones."""
        there, turned = position.to(torch.float64), yaw.to(torch.float64)
        if self._true is None:
            self._position, self._yaw = there, turned
        else:
            before, faced = self._true
            moved = self._scale[:, None] * (there - before)
            # What the body measures is turned by the error of its heading.
            off = self._yaw - faced
            sin, cos = off.sin(), off.cos()
            x, z = moved[:, 0] * cos + moved[:, 2] * sin, moved[:, 2] * cos - moved[:, 0] * sin
            self._position = self._position + torch.stack([x, moved[:, 1], z], dim=1)
            self._yaw = torch.remainder(self._yaw + (turned - faced) + self._bias, 2.0 * math.pi)
        self._true = there, turned
        return self._position.to(position.dtype), self._yaw.to(yaw.dtype)
