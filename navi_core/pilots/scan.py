"""Metric scan of an observation: points, level ranges, and the nearest surface."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.mapping.occupancy_map import fill_dropped, measured_rays
from navi_core.world.sensor.panorama import denormalise_depth, spherical_directions


def azimuths(bins: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the azimuths (bins,) of an observation in (−π, π], 0 ahead, positive to the right [rad]."""
    angle = torch.arange(bins, device=device) * (2 * math.pi / bins)
    return torch.where(angle > math.pi, angle - 2 * math.pi, angle)


def level_profile(obs: Tensor, max_distance: float, band_degrees: float) -> Tensor:
    """Return the nearest horizontal distance (B, Az) over a band of elevations around the horizon [m].

    A missing ray counts as free up to the sensor's range.

    Args:
        obs: Observations (B, 3, Az, El).
        max_distance: Range of the sensor, M [m].
        band_degrees: Half-width of the band [degrees]; the bins next to the horizon always count.
    """
    elevation = torch.linspace(math.pi / 2, -math.pi / 2, obs.shape[3], device=obs.device)
    nearest = elevation.abs().min() + 1e-4
    band = elevation.abs() <= max(math.radians(band_degrees), float(nearest))
    depth = denormalise_depth(obs[:, 0][:, :, band], max_distance)
    depth = torch.where(obs[:, 2][:, :, band] > 0, depth, max_distance)
    return (depth * torch.cos(elevation[band])).amin(dim=2)


@dataclass(frozen=True)
class Scan:
    """A batch of observations in metres; numpy, for the kernels of the map pilots."""

    points: npt.NDArray[np.float32]
    """(B, R, 3) what the rays met, in the drone's frame: x right, y up, −z ahead [m]."""
    valid: npt.NDArray[np.bool_]
    """(B, R) whether they met anything."""
    depth: npt.NDArray[np.float32]
    """(B, R) distances [m]."""
    reach: npt.NDArray[np.float64]
    """(B, Az) horizontal range of the level rays, the longer one of an even split that did not drop out [m]."""
    met: npt.NDArray[np.bool_]
    """(B, Az) whether all level rays met a surface."""
    clearance: npt.NDArray[np.float64]
    """(B,) nearest surface seen [m]."""


def read_scan(obs: Tensor, max_distance: float) -> Scan:
    """Turn observations (B, 3, Az, El) into metres.

    Args:
        obs: Observations as the environment gives them.
        max_distance: Range of the sensor, M [m].
    """
    rows, _, bins, levels = obs.shape
    directions = spherical_directions(bins, levels).numpy()
    valid = (obs[:, 2] > 0).reshape(rows, -1).cpu().numpy()
    depth = denormalise_depth(obs[:, 0], max_distance).reshape(rows, -1).cpu().numpy().astype(np.float32)
    depth = np.where(valid, depth, np.float32(max_distance))
    elevation = np.abs(np.linspace(math.pi / 2, -math.pi / 2, levels))
    level = np.flatnonzero(elevation <= elevation.min() + 1e-9)
    # Of two rays at one azimuth the longer counts, as it does for what has been seen.
    first, last = int(level[0]), int(level[-1])
    seen = valid.reshape(rows, bins, levels)
    cut = np.where(measured_rays(seen, first, last), depth.reshape(rows, bins, levels)[:, :, level], np.float32(-1.0))
    reach = cut.max(axis=2).astype(np.float64) * math.cos(float(elevation.min()))
    for row in reach:
        fill_dropped(row)
    met = np.all(seen[:, :, level], axis=2)
    clearance = np.where(valid, depth, np.inf).min(axis=1).astype(np.float64)
    return Scan(depth[:, :, None] * directions, valid, depth, reach, met, clearance)
