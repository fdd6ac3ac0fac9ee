"""What one panorama says: the observation, and everything that rewards and the speed limiter read from it.

On the CPU one kernel touches every hit once: the C++ tracer itself within a step of the environment
(`csrc/step/panorama.h`), its numba twin here (`kernels/rays/panorama.py`), with the same bits. Elsewhere the same is a
tensor program of fixed shapes; its counts agree to the bit, normalised depths to 2e-7 · (1 + 1 / ln(1 + M)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from navi_core.config import EnvConfig
from navi_core.kernels.rays.panorama import read_hits
from navi_core.kernels.structs import Sensor, data_pointer
from navi_core.world.dynamics import front_distance, limiter_bins
from navi_core.world.field import RayHits
from navi_core.world.rewards import ahead_sector, structure_fractions
from navi_core.world.sensor.spherical import observation
from navi_core.world.sensor.tensor_pool import Recycler

__all__ = ["Panorama", "PanoramaReader"]


@dataclass(frozen=True)
class Panorama:
    """What one panorama per row says.

    Attributes:
        obs: (B, 3, Az, El) float32 normalised depth, semantic id, valid mask.
        fractions: (B, 4) starvation, near, band, forward as `rewards.Perception`.
        front: (B,) nearest hit that the speed limiter sees [m], infinite where there is none.
        reach: (B, Az) horizontal length of the near-horizon rays, at most the view radius [m].
    """

    obs: torch.Tensor
    fractions: torch.Tensor
    front: torch.Tensor
    reach: torch.Tensor


class PanoramaReader:
    """Reads hits of one sensor.

    Args:
        config: Bins and range of the sensor, limiter, view radius.
        device: Where the hits are.
        kernels: Use the CPU's kernels.

    Attributes:
        fan: (Az, 2) horizontal unit directions (x, z) of the azimuths in the drone's frame.
    """

    def __init__(self, config: EnvConfig, device: torch.device, *, kernels: bool) -> None:
        self._config, self._kernels = config, kernels
        azimuths, elevations = config.azimuth_bins, config.elevation_bins
        self._memory = Recycler(0)
        self._limiter = limiter_bins(azimuths, elevations, config.dynamics.limiter_elevation_degrees)
        self._ahead = ahead_sector(azimuths)
        # The rays nearest to the horizon: one elevation bin, or the two around an even split.
        self._horizon = ((elevations - 1) // 2, elevations // 2 + 1)
        self._horizon_cos = math.sin(math.pi * (elevations // 2) / (elevations - 1))
        rays = azimuths * elevations
        self._shares = torch.tensor(
            [rays, rays, rays, 2 * self._ahead * elevations], dtype=torch.float32, device=device
        )
        angle = torch.arange(azimuths, dtype=torch.float64) * (2.0 * math.pi / azimuths)
        self.fan = torch.stack([angle.sin(), -angle.cos()], dim=1).to(torch.float32).to(device)

    def read(self, hits: RayHits, band: torch.Tensor) -> Panorama:
        """Read a batch of panoramas.

        Args:
            hits: (B, Az·El).
            band: (B,) far end of the structure band [m].

        Returns:
            New tensors; nothing of `hits` is kept.
        """
        return self._read_kernel(hits, band) if self._kernels else self._read_tensors(hits, band)

    def room(self, rows: int) -> torch.Tensor:
        """Return an uninitialised (rows, 3, Az, El) observation on the CPU, in memory that comes back."""
        shape = (rows, 3, self._config.azimuth_bins, self._config.elevation_bins)
        memory = self._memory
        if memory.shape != shape:
            # Held by a name of its own: another thread may ask for another number of rows meanwhile.
            memory = self._memory = Recycler(*shape)
        return memory.take()

    def for_kernels(self, directions: torch.Tensor) -> Sensor:
        """Return what the C++ kernels know of the sensor.

        Args:
            directions: (Az·El, 3) of its rays; the struct is valid as long as they are.
        """
        c = self._config
        side, low, high = self._limiter
        first, last = self._horizon
        return Sensor(
            directions=data_pointer(directions, torch.float32),
            azimuths=c.azimuth_bins,
            elevations=c.elevation_bins,
            max_distance=c.max_distance,
            scale=1.0 / math.log1p(c.max_distance),
            limiter_side=side,
            limiter_low=low,
            limiter_high=high,
            ahead=self._ahead,
            horizon_first=first,
            horizon_last=last,
            horizon_cos=self._horizon_cos,
            view_radius=c.reward.view_radius,
        )

    def _read_kernel(self, hits: RayHits, band: torch.Tensor) -> Panorama:
        c, rows = self._config, len(band)
        obs = self.room(rows)
        counts = torch.empty(rows, 4, dtype=torch.int32)
        front, reach = torch.empty(rows), torch.empty(rows, c.azimuth_bins)
        read_hits(
            hits.depth.numpy(),
            hits.semantic.numpy(),
            hits.valid.numpy(),
            band.numpy(),
            c.azimuth_bins,
            c.max_distance,
            1.0 / math.log1p(c.max_distance),
            self._limiter,
            self._ahead,
            self._horizon,
            self._horizon_cos,
            c.reward.view_radius,
            obs.numpy().reshape(rows, 3, -1),
            counts.numpy(),
            front.numpy(),
            reach.numpy(),
        )
        fractions = counts / self._shares
        fractions[:, 0] = 1.0 - fractions[:, 0]
        return Panorama(obs, fractions, front, reach)

    def _read_tensors(self, hits: RayHits, band: torch.Tensor) -> Panorama:
        c = self._config
        seen = structure_fractions(hits, c.azimuth_bins, band)
        depth = hits.depth.view(-1, c.azimuth_bins, c.elevation_bins)
        first, last = self._horizon
        # Of two rays at one azimuth the longer counts: either of them sees the floor below its path.
        longest = depth[:, :, first:last].amax(dim=2)
        return Panorama(
            observation(hits, c.azimuth_bins, c.max_distance),
            torch.stack([seen.starvation, seen.near, seen.band, seen.forward], dim=1),
            front_distance(hits.depth, hits.valid, c.azimuth_bins, self._limiter),
            (longest * self._horizon_cos).clamp(max=c.reward.view_radius),
        )
