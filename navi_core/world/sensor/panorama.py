"""Reading of panoramas: the observation, and the inputs of rewards and of the speed limiter.

On the CPU one C++ kernel touches every hit once, within a step of the environment or here (`csrc/step/panorama.h`).
Elsewhere, and without a compiler, the same is a tensor program of fixed shapes; its counts agree to the bit, normalised
depths to 2e-7 · (1 + 1 / ln(1 + M)).
"""

import math
from dataclasses import dataclass

import torch

from navi_core.config import EnvConfig
from navi_core.kernels.rays.tracer import NativeTracer
from navi_core.kernels.structs import Panoramas, Sensor, data_pointer
from navi_core.world.dynamics import front_distance, limiter_bins
from navi_core.world.field import RayHits
from navi_core.world.rewards import ahead_sector, structure_fractions
from navi_core.world.sensor.spherical import observation
from navi_core.world.sensor.tensor_pool import Recycler


@dataclass(frozen=True)
class Panorama:
    """Readings of one panorama per row.

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
        tracer: The C++ kernels; None takes the tensor program.

    Attributes:
        fan: (Az, 2) horizontal unit directions (x, z) of the azimuths in the drone's frame.
    """

    def __init__(self, config: EnvConfig, device: torch.device, *, tracer: NativeTracer | None = None) -> None:
        self._config, self._tracer = config, tracer
        azimuths, elevations = config.azimuth_bins, config.elevation_bins
        self._memory = Recycler(0)
        self._limiter = limiter_bins(azimuths, elevations, config.dynamics.limiter_elevation_degrees)
        self._ahead = ahead_sector(azimuths)
        # The rays nearest to the horizon: one elevation bin, or the two around an even split.
        self._horizon = ((elevations - 1) // 2, elevations // 2 + 1)
        self._horizon_cos = math.sin(math.pi * (elevations // 2) / (elevations - 1))
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
        return self._read_tensors(hits, band) if self._tracer is None else self._read_native(self._tracer, hits, band)

    def room(self, rows: int) -> torch.Tensor:
        """Return an uninitialised (rows, 3, Az, El) observation on the CPU, in memory that comes back."""
        shape = (rows, 3, self._config.azimuth_bins, self._config.elevation_bins)
        memory = self._memory
        if memory.shape != shape:
            # Held by a name of its own: another thread may ask for another number of rows meanwhile.
            memory = self._memory = Recycler(*shape)
        return memory.take()

    def for_kernels(self, directions: torch.Tensor | None = None) -> Sensor:
        """Return what the C++ kernels know of the sensor.

        Args:
            directions: (Az·El, 3) of its rays, for casts; the struct is valid as long as they are.
        """
        c = self._config
        side, low, high = self._limiter
        first, last = self._horizon
        return Sensor(
            directions=None if directions is None else data_pointer(directions, torch.float32),
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

    def _read_native(self, tracer: NativeTracer, hits: RayHits, band: torch.Tensor) -> Panorama:
        rows = len(band)
        obs, fractions = self.room(rows), torch.empty(rows, 4)
        front, reach = torch.empty(rows), torch.empty(rows, self._config.azimuth_bins)
        band = band.contiguous()
        panoramas = Panoramas(
            depth=data_pointer(hits.depth, torch.float32),
            semantic=data_pointer(hits.semantic, torch.int32),
            valid=data_pointer(hits.valid, torch.bool),
            band=data_pointer(band, torch.float32),
            rows=rows,
            obs=data_pointer(obs, torch.float32),
            fractions=data_pointer(fractions, torch.float32),
            front_distance=data_pointer(front, torch.float32),
            reach=data_pointer(reach, torch.float32),
        )
        tracer.read_panoramas(self.for_kernels(), panoramas)
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
