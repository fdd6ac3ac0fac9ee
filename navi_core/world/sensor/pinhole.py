"""Adapter of pinhole depth images (Gazebo, RealSense) to observations of rays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.world.sensor.panorama import normalise_depth, spherical_directions


@dataclass(frozen=True)
class Intrinsics:
    """Intrinsics of a rectified pinhole image [pixel]: focal lengths and principal point, centres at whole numbers."""

    fx: float
    fy: float
    cx: float
    cy: float


class PinholeAdapter:
    """Converter of depth images to observations (B, 3, Az, El) of the rays that fall into the image.

    A ray takes the nearest pixel. Rays outside the image and pixels without depth (0, NaN, −inf) are unknown. Depth
    beyond `farthest` is free to there, and so is +inf: nothing within range (REP 117).

    Args:
        intrinsics: Those of the images.
        height: Rows of an image.
        width: Columns of an image.
        azimuth_bins: Az.
        elevation_bins: El.
        max_distance: Range M of the observations [m].
        nearest: Depths below this are not trusted [m].
        farthest: Range of the camera [m].
        heading: Azimuth that the camera looks at, positive to the right [rad].
        planar: Whether a depth is the distance along the optical axis, as cameras give it; else along the ray.

    Raises:
        ConfigError: No ray falls into the image.
    """

    def __init__(
        self,
        intrinsics: Intrinsics,
        height: int,
        width: int,
        azimuth_bins: int,
        elevation_bins: int,
        max_distance: float,
        *,
        nearest: float = 0.3,
        farthest: float = 5.0,
        heading: float = 0.0,
        planar: bool = True,
    ) -> None:
        rays = spherical_directions(azimuth_bins, elevation_bins).to(torch.float64)
        right, up, ahead = rays[:, 0], rays[:, 1], -rays[:, 2]
        along = ahead * math.cos(heading) + right * math.sin(heading)
        side = right * math.cos(heading) - ahead * math.sin(heading)
        before = along > 1e-6
        depth = torch.where(before, along, 1.0)
        column = (intrinsics.cx + intrinsics.fx * side / depth).round()
        row = (intrinsics.cy - intrinsics.fy * up / depth).round()
        inside = before & (column >= 0) & (column < width) & (row >= 0) & (row < height)
        if not bool(inside.any()):
            raise ConfigError("no ray of the observation falls into the image; check intrinsics, size and heading")
        self._shape, self._bins = (height, width), (azimuth_bins, elevation_bins)
        self._rays = inside.nonzero().squeeze(1)
        self._pixels = (row * width + column)[inside].to(torch.int64)
        self._along = along[inside].to(torch.float32) if planar else torch.ones(len(self._rays))
        self._limits, self._max_distance = (nearest, min(farthest, max_distance)), max_distance

    def observe(self, depth: Tensor, semantic: Tensor | None = None) -> Tensor:
        """Return the observations (B, 3, Az, El) of depth images.

        Args:
            depth: (B, H, W) [m].
            semantic: (B, H, W) semantic ids; None for 0 everywhere.

        Raises:
            ConfigError: Images of another size.
        """
        if depth.ndim != 3 or tuple(depth.shape[1:]) != self._shape:
            raise ConfigError(f"depth images {tuple(depth.shape)}; allowed: (B, {self._shape[0]}, {self._shape[1]})")
        nearest, farthest = self._limits
        metres = depth.flatten(1)[:, self._pixels].to(torch.float32) / self._along
        measured = metres >= nearest  # not for NaN
        hit = measured & (metres <= farthest)
        obs = torch.zeros(len(depth), 3, self._bins[0] * self._bins[1])
        reach = torch.where(measured, metres.clamp(max=farthest), 0.0)
        obs[:, 0, self._rays] = normalise_depth(reach, self._max_distance)
        if semantic is not None:
            ids = semantic.flatten(1)[:, self._pixels].to(torch.float32)
            obs[:, 1, self._rays] = torch.where(hit, ids, 0.0)
        obs[:, 2, self._rays] = hit.to(torch.float32)
        return obs.view(len(depth), 3, *self._bins)
