"""Sensor profiles: field of view and range of the sensors that drones carry, as masks over ray directions.

A ray that the sensor does not measure is unknown: depth 0, semantic 0, not valid. A ray that is measured and meets
nothing within the range has the range as its depth and is not valid either: it is free so far. Depth is therefore the
length that is known to be free.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from navi_core.config.world import SensorConfig, SensorProfile
from navi_core.world.sensor.panorama import spherical_directions

_HALF_WIDTH, _HALF_HEIGHT = math.radians(87.0) / 2.0, math.radians(58.0) / 2.0
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Profile:
    """Field of view and range of a sensor; by default the full sphere to the environment's range."""

    headings: tuple[float, ...] = ()
    """Azimuths of its 87° x 58° depth cameras, 0 ahead, positive to the right [degrees]; empty: no camera."""
    elevations: tuple[float, float] = (-90.0, 90.0)
    """Lowest and highest elevation of a sensor that is no camera [degrees]."""
    nearest: float = 0.0
    """Surfaces nearer than this are not measured [m]."""
    farthest: float = math.inf
    """Range [m]."""

    @property
    def limits(self) -> tuple[float, float]:
        """Nearest and farthest surface that is measured [m]."""
        return self.nearest, self.farthest

    def sees(self, directions: Tensor) -> Tensor:
        """Return the (…) bool mask of the unit directions (…, 3) in the drone's frame that lie in the field of view."""
        right, up, ahead = directions[..., 0], directions[..., 1], -directions[..., 2]
        if not self.headings:
            low, high = (math.sin(math.radians(angle)) for angle in self.elevations)
            return (up >= low - _ROUNDING) & (up <= high + _ROUNDING)
        seen = torch.zeros_like(right, dtype=torch.bool)
        for heading in map(math.radians, self.headings):
            # A pinhole image: its edges are planes through the optical centre.
            depth = ahead * math.cos(heading) + right * math.sin(heading)
            side = right * math.cos(heading) - ahead * math.sin(heading)
            within = (side.abs() <= depth * math.tan(_HALF_WIDTH) + _ROUNDING) & (depth > 0)
            seen |= within & (up.abs() <= depth * math.tan(_HALF_HEIGHT) + _ROUNDING)
        return seen

    def horizon(self, angles: Tensor) -> Tensor:
        """Return the (…) bool mask of the azimuths [rad] at which the sensor sees the horizon."""
        level = torch.stack([angles.sin(), torch.zeros_like(angles), -angles.cos()], dim=-1)
        return self.sees(level)


PROFILES: dict[SensorProfile, Profile] = {
    "sphere": Profile(),
    # Livox Mid-360, upright.
    "lidar": Profile(elevations=(-7.0, 52.0), nearest=0.1, farthest=40.0),
    # Stereo depth cameras like a RealSense D435.
    "camera": Profile((0.0,), nearest=0.3, farthest=5.0),
    "two_cameras": Profile((0.0, 180.0), nearest=0.3, farthest=5.0),
    "four_cameras": Profile((0.0, 90.0, 180.0, 270.0), nearest=0.3, farthest=5.0),
}
"""Sensor profiles by name."""


def floor_limits(config: SensorConfig, azimuth_bins: int, radius: float) -> Tensor:
    """Return bounds (P, Az) of horizontal rays by each profile [m]: its range where it sees the horizon, else 0.

    Without profiles there is one bound of `radius` for all, so P is at least 1.
    """
    angles = torch.arange(azimuth_bins, dtype=torch.float64) * (2.0 * math.pi / azimuth_bins)
    chosen = [PROFILES[name] for name in config.profiles] or [Profile()]
    bounds = [p.horizon(angles) * min(p.farthest, radius) for p in chosen]
    return torch.stack(bounds).to(torch.float32)


@functools.cache
def fields_of_view(profiles: tuple[SensorProfile, ...], azimuth_bins: int, elevation_bins: int) -> Tensor:
    """Return the (P, Az·El) bool masks of the rays that lie in the profiles' fields of view."""
    rays = spherical_directions(azimuth_bins, elevation_bins)
    return torch.stack([PROFILES[name].sees(rays) for name in profiles])
