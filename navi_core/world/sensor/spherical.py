"""The spherical depth sensor: directions, normalised depth, observation tensor.

Azimuth i of Az is 2π·i/Az, bin 0 forward; elevation j of El runs from +π/2 (up) to −π/2, both
included. A ray's flat index is i·El + j.
"""

import math

import torch

from navi_core.errors import ConfigError
from navi_core.world.field import Field, RayHits


def spherical_directions(azimuth_bins: int, elevation_bins: int) -> torch.Tensor:
    """Return the unit directions of a panorama in the drone's frame.

    Args:
        azimuth_bins: Az.
        elevation_bins: El.

    Returns:
        (Az·El, 3) float32, (cos e·sin a, sin e, −cos e·cos a).

    Raises:
        ConfigError: A number of bins is not a whole number from 1 to 65536.
    """
    for name, bins in (("azimuth_bins", azimuth_bins), ("elevation_bins", elevation_bins)):
        if not isinstance(bins, int) or isinstance(bins, bool) or not 1 <= bins <= 2**16:
            raise ConfigError(f"{name} is {bins!r}; allowed: 1 to {2**16}")
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
    """

    def __init__(self, field: Field, azimuth_bins: int, elevation_bins: int, max_distance: float) -> None:
        self.field = field
        self.azimuth_bins = azimuth_bins
        self.elevation_bins = elevation_bins
        self.max_distance = max_distance
        self.directions = spherical_directions(azimuth_bins, elevation_bins).to(field.device)

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
        rays, reach, high = self.directions, self.max_distance, self.elevation_bins
        return self.field.cast_rays(position, rays, scene_index, reach, out=out, elevations=high, yaw=yaw)

    def observation(self, hits: RayHits) -> torch.Tensor:
        """Return the (B, 3, Az, El) tensor: normalised depth, semantic id, valid mask."""
        return observation(hits, self.azimuth_bins, self.max_distance)
