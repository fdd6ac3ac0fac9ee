"""Spherical depth sensor: ray directions, ray casts, features computed from panoramas, and their RGB image.

Azimuth i of Az is 2π·i/Az, bin 0 forward; elevation j of El runs from +π/2 (up) to −π/2, both included. A ray's flat
index is i·El + j.

On the CPU one C++ kernel touches every hit once, within a step of the environment or here (`csrc/step/panorama.h`).
Elsewhere, and without a compiler, the same is a tensor program of fixed shapes; its counts agree to the bit, normalised
depths to 2e-7 · (1 + 1 / ln(1 + M)).
"""

import math
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from navi_core.config import EnvConfig
from navi_core.errors import ConfigError
from navi_core.kernels.native.library import Panoramas, Sensor, data_pointer
from navi_core.kernels.rays.tracer import NativeTracer
from navi_core.world.dynamics import front_distance, limiter_bins
from navi_core.world.field import Field, RayHits
from navi_core.world.rewards import ahead_sector, structure_fractions


def spherical_directions(azimuth_bins: int, elevation_bins: int) -> torch.Tensor:
    """Return the unit ray directions of a panorama in the drone's frame.

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
    """Normalise depth d [m] by range M [m]: log1p(clamp(d, 0, M)) / log1p(M)."""
    return torch.log1p(depth.clamp(0.0, max_distance)).div_(math.log1p(max_distance))


def denormalise_depth(value: torch.Tensor, max_distance: float) -> torch.Tensor:
    """Invert `normalise_depth`: return the depth [m]."""
    return torch.expm1(value * math.log1p(max_distance))


def observation(hits: RayHits, azimuth_bins: int, max_distance: float) -> torch.Tensor:
    """Stack (B, Az·El) hits into the (B, 3, Az, El) observation: normalised depth, semantic id, valid mask."""
    shape = (len(hits.depth), azimuth_bins, -1)
    depth = normalise_depth(hits.depth, max_distance)
    channels = [depth, hits.semantic.to(torch.float32), hits.valid.to(torch.float32)]
    return torch.stack([x.view(shape) for x in channels], dim=1)


class SphericalSensor:
    """Spherical depth sensor: casts one panorama (Az·El rays) from each pose.

    Args:
        field: Scenes to cast rays in.
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
        """Cast the rays of one panorama per row.

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
        """Convert hits to the (B, 3, Az, El) observation: normalised depth, semantic id, valid mask."""
        return observation(hits, self.azimuth_bins, self.max_distance)


_STOPS = np.array([0.0, 0.15, 0.3, 0.5, 0.75, 1.0])
_COLOURS = np.array(
    [[255, 250, 220], [255, 196, 92], [226, 92, 76], [142, 46, 120], [56, 34, 112], [14, 14, 44]], np.float64
)
_WIDTH = 512


def panorama_image(observation: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Render an observation as an RGB image: forward in the middle, left on the left, up at the top.

    Args:
        observation: (3, Az, El) normalised depth, semantic id, valid mask.

    Returns:
        (height, width, 3) RGB, each bin a square of pixels, at least 512 wide.
    """
    depth, valid = observation[0], observation[2] > 0.5
    colour = np.stack([np.interp(depth, _STOPS, _COLOURS[:, i]) for i in range(3)], axis=-1)
    image = np.where(valid[..., None], colour, 0.0).round().astype(np.uint8)
    image = np.roll(image, image.shape[0] // 2, axis=0).transpose(1, 0, 2)
    size = max(1, -(-_WIDTH // image.shape[1]))
    return np.ascontiguousarray(image.repeat(size, axis=0).repeat(size, axis=1))


_KEPT = 3


class Recycler:
    """Memory pool of uninitialised float32 tensors on the CPU; released memory is reused.

    Args:
        shape: Shape of the tensors.
    """

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self._free: list[npt.NDArray[np.float32]] = []

    def take(self) -> torch.Tensor:
        """Allocate a tensor from the pool; it is the caller's for as long as it, or a view of it, is held."""
        memory = self._free.pop() if self._free else np.empty(self.shape, np.float32)
        # The tensor's storage holds this array, and it alone; when the storage goes, so does the array.
        lent = memory.view()
        weakref.finalize(lent, _give_back, self._free, memory).atexit = False
        return torch.from_numpy(lent)


def _give_back(free: list[npt.NDArray[np.float32]], memory: npt.NDArray[np.float32]) -> None:
    if len(free) < _KEPT:
        free.append(memory)


@dataclass(frozen=True)
class Panorama:
    """Features of one panorama per row: observation, hit fractions, depth ahead, horizontal reach.

    Attributes:
        obs: (B, 3, Az, El) float32 normalised depth, semantic id, valid mask.
        fractions: (B, 4) starvation, near, band, forward as `structure_fractions`.
        front: (B,) nearest hit that the speed limiter sees [m], infinite where there is none.
        reach: (B, Az) horizontal length of the near-horizon rays, at most the view radius [m].
    """

    obs: torch.Tensor
    fractions: torch.Tensor
    front: torch.Tensor
    reach: torch.Tensor


class PanoramaReader:
    """Feature extractor: converts ray hits of one sensor into observations and the quantities that rewards need.

    Args:
        config: Bins and range of the sensor, limiter, view radius.
        device: Device of the hits.
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
        """Compute the observations and features of a batch of panoramas from their ray hits.

        Args:
            hits: (B, Az·El).
            band: (B,) far end of the structure band [m].

        Returns:
            New tensors; nothing of `hits` is kept.
        """
        return self._read_tensors(hits, band) if self._tracer is None else self._read_native(self._tracer, hits, band)

    def room(self, rows: int) -> torch.Tensor:
        """Allocate an uninitialised (rows, 3, Az, El) observation on the CPU from the memory pool."""
        shape = (rows, 3, self._config.azimuth_bins, self._config.elevation_bins)
        memory = self._memory
        if memory.shape != shape:
            # Held by a name of its own: another thread may ask for another number of rows meanwhile.
            memory = self._memory = Recycler(*shape)
        return memory.take()

    def for_kernels(self, directions: torch.Tensor | None = None) -> Sensor:
        """Return the ctypes struct of the sensor for the C++ kernels.

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
        depth = hits.depth.view(-1, c.azimuth_bins, c.elevation_bins)
        first, last = self._horizon
        # Of two rays at one azimuth the longer counts: either of them sees the floor below its path.
        longest = depth[:, :, first:last].amax(dim=2)
        return Panorama(
            observation(hits, c.azimuth_bins, c.max_distance),
            structure_fractions(hits, c.azimuth_bins, band),
            front_distance(hits.depth, hits.valid, c.azimuth_bins, self._limiter),
            (longest * self._horizon_cos).clamp(max=c.reward.view_radius),
        )
