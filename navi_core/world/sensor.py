"""The spherical depth sensor: directions, normalised depth, observation tensor.

Azimuth i of Az is 2π·i/Az, bin 0 forward; elevation j of El runs from +π/2 (up) to −π/2, both
included. A ray's flat index is i·El + j.
"""

from __future__ import annotations

import math

import torch

from navi_core.kernels.panorama import turn_directions
from navi_core.world.field import Field, RayHits

__all__ = ["SphericalSensor", "denormalise_depth", "normalise_depth", "observation", "spherical_directions"]


def spherical_directions(azimuth_bins: int, elevation_bins: int) -> torch.Tensor:
    """Return the unit directions of a panorama in the drone's frame.

    Args:
        azimuth_bins: Az.
        elevation_bins: El.

    Returns:
        (Az·El, 3) float32, (cos e·sin a, sin e, −cos e·cos a).
    """
    a = torch.arange(azimuth_bins, dtype=torch.float64) * (2.0 * math.pi / azimuth_bins)
    e = torch.linspace(math.pi / 2, -math.pi / 2, elevation_bins, dtype=torch.float64)
    azimuth, elevation = torch.meshgrid(a, e, indexing="ij")
    direction = torch.stack(
        [elevation.cos() * azimuth.sin(), elevation.sin(), -elevation.cos() * azimuth.cos()], dim=-1
    )
    return direction.reshape(-1, 3).to(torch.float32)


def normalise_depth(depth: torch.Tensor, max_distance: float) -> torch.Tensor:
    """Return log1p(clamp(d, 0, M)) / log1p(M) for depth d [m] and range M [m]."""
    return torch.log1p(depth.clamp(0.0, max_distance)).div_(math.log1p(max_distance))


def denormalise_depth(value: torch.Tensor, max_distance: float) -> torch.Tensor:
    """Return the depth [m] of a normalised value."""
    return torch.expm1(value * math.log1p(max_distance))


def observation(hits: RayHits, azimuth_bins: int, max_distance: float) -> torch.Tensor:
    """Return the (B, 3, Az, El) tensor of (B, Az·El) hits: normalised depth, semantic id, valid mask."""
    shape = (len(hits.depth), azimuth_bins, -1)
    depth = normalise_depth(hits.depth, max_distance)
    channels = [depth, hits.semantic.to(torch.float32), hits.valid.to(torch.float32)]
    return torch.stack([x.view(shape) for x in channels], dim=1)


class SphericalSensor:
    """Casts panoramas from poses.

    Args:
        field: Where to look.
        azimuth_bins: Az.
        elevation_bins: El.
        max_distance: Range M [m].
        kernels: Turn directions by a kernel of the CPU instead of tensor operations; the bits are the same.
            By default where the field is on the CPU.
    """

    def __init__(
        self,
        field: Field,
        azimuth_bins: int,
        elevation_bins: int,
        max_distance: float,
        *,
        kernels: bool | None = None,
    ) -> None:
        self._kernels = field.device.type == "cpu" if kernels is None else kernels
        self.field = field
        self.azimuth_bins = azimuth_bins
        self.elevation_bins = elevation_bins
        self.max_distance = max_distance
        self.directions = spherical_directions(azimuth_bins, elevation_bins).to(field.device)
        self._rays = torch.empty(0, device=field.device)

    def cast(
        self, position: torch.Tensor, yaw: torch.Tensor, scene_index: torch.Tensor, out: RayHits | None = None
    ) -> RayHits:
        """Cast one panorama per row.

        Args:
            position: (B, 3) [m].
            yaw: (B,) [rad]; counter-clockwise seen from above.
            scene_index: (B,).
            out: Hits of an earlier call with the same shape, to be overwritten; saves fresh memory.

        Returns:
            Hits of shape (B, Az·El); `out` where it was given.
        """
        rays = self._turned(yaw)
        return self.field.cast_rays(
            position, rays, scene_index, self.max_distance, out=out, elevations=self.elevation_bins
        )

    def observation(self, hits: RayHits) -> torch.Tensor:
        """Return the (B, 3, Az, El) tensor: normalised depth, semantic id, valid mask."""
        return observation(hits, self.azimuth_bins, self.max_distance)

    def _turned(self, yaw: torch.Tensor) -> torch.Tensor:
        """Return the (B, Az·El, 3) directions in the world; they are overwritten by the next call."""
        cos, sin = yaw.cos(), yaw.sin()
        shape = (len(yaw), *self.directions.shape)
        if self._rays.shape != shape:
            self._rays = self.directions.new_empty(shape)
        # Yaw turns −Z towards −X: (x, z) → (x·cos ψ + z·sin ψ, −x·sin ψ + z·cos ψ).
        if self._kernels:
            turn_directions(*(x.numpy() for x in (self.directions, cos, sin, self._rays)))
            return self._rays
        x, y, z = self.directions.unbind(-1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.stack([x * cos + z * sin, y.expand(len(yaw), -1), z * cos - x * sin], dim=-1, out=self._rays)
