"""Base class of scripted policies (pilots), observations in, actions out; and helpers to read observations.

Most read nothing else. A privileged pilot also has its pose and scene: it shows what knowing the map is
worth, and teaches. A pilot keeps per-row memory (what it is turning towards, how long it holds a command). The memory
belongs to a row's *key*, so that the same key flies the same way in any batch and at any place in it.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.config import DynamicsConfig, SensorConfig
from navi_core.errors import ConfigError
from navi_core.mapping.level_rays import WHOLE, fill_dropped, measured_rays
from navi_core.mapping.occupancy_map import blocked_cells
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.field import Field
from navi_core.world.goals import relative_goal
from navi_core.world.occupancy_memory import pose_rows
from navi_core.world.sensor.panorama import denormalise_depth, spherical_directions


class PilotSettings(TypedDict, total=False):
    """Keyword settings of every pilot; see `Pilot`."""

    seed: int
    max_distance: float
    dynamics: DynamicsConfig | None


@dataclass(frozen=True)
class Pose:
    """Poses, scenes and goals of rows, the inputs of a privileged pilot."""

    position: Tensor
    """(B, 3) [m]."""
    yaw: Tensor
    """(B,) [rad]."""
    scene_index: Tensor
    """(B,) scene within the field that `attach` was given."""
    goal: Tensor | None = None
    """(B, 3) goal positions [m]; None where the task is to explore."""
    estimate: Tensor | None = None
    """(B, 4) poses x, y, z [m], yaw [rad] by odometry, for subjects that are not privileged; None: the exact ones."""
    scan_age: Tensor | None = None
    """(B,) ages of the observations [decisions]; None: they are present ones."""


class Pilot(ABC):
    """Abstract base class of scripted policies (pilots), with row keys, episode and step counters.

    Args:
        seed: Seed of the pilot's draws.
        max_distance: Range of the sensor whose observations it reads, M [m].
        dynamics: The drone that it flies; by default the default drone.
    """

    name: str
    privileged: bool = False
    """Whether it needs its pose and its scene."""
    reckons: bool = False
    """Whether it reckons its pose, and takes that of an odometry instead where one is given."""
    seeks: bool = False
    """Whether it flies to goals, whose positions relative to the drone it is given as a policy is; see `act_at`."""
    oldest: int = 0
    """Largest age of its observations [decisions]; see `carry`."""
    limited: bool = False
    """Whether its observations may hold unknown rays, so that it flies where its own map is free; see `carry`."""
    finishes: bool = False
    """Whether it keeps a map by which it finds out that nothing is left to see; see `done_after`."""
    done_after: int = 0
    """Decisions without a way to unseen floor after which it hovers; 0: it flies on."""
    done: Tensor | None = None
    """(B,) rows that hover because nothing is left to see; None where it flies on."""
    horizon: int = 200
    """Decisions of a flight, for a pilot that plans to its end."""
    inputs: str = "observation"
    """Inputs, as results name them."""

    def __init__(self, *, seed: int = 0, max_distance: float = 100.0, dynamics: DynamicsConfig | None = None) -> None:
        if seed < 0:
            raise ConfigError(f"seed {seed} of pilot {self.name!r} is negative")
        if not max_distance > 0:
            raise ConfigError(f"max_distance {max_distance} of pilot {self.name!r} is not positive")
        self.seed = seed
        self.max_distance = max_distance
        self.dynamics = dynamics or DynamicsConfig()
        self._keys = torch.zeros(0, dtype=torch.int64)
        self._episode = torch.zeros(0, dtype=torch.int64)
        self._step = torch.zeros(0, dtype=torch.int64)
        self._pose: Pose | None = None
        self._odometry: npt.NDArray[np.float64] | None = None
        self._scan_age: npt.NDArray[np.int64] | None = None
        self._relative_goal: Tensor | None = None

    def _require(self, **limits: tuple[float, float, float]) -> None:
        """Validate settings against their limits, given as name=(value, least, most)."""
        for name, (value, least, most) in limits.items():
            if not least <= value <= most:
                raise ConfigError(f"{self.name}: {name} {value} lies outside [{least:g}, {most:g}]")

    def carry(self, sensor: SensorConfig) -> None:
        """Set the sensor whose observations it reads, before `reset`; by default a prompt full sphere."""
        self.oldest, self.limited = sensor.oldest, sensor.limited

    def executed(self, actions: Tensor) -> None:  # noqa: B027 - only a pilot that reckons its position needs it
        """Record the executed actions, (B, 4), if they differ from those that `act` returned."""

    def reset(self, rows: Tensor, keys: Tensor) -> None:
        """Reset rows to given random keys and empty memory; a first call, or one of another size, sets the batch size.

        Args:
            rows: Rows to reset, bool (B,).
            keys: The rows' keys, int64 (B,); read where `rows` is true.
        """
        if rows.shape != keys.shape or rows.ndim != 1:
            raise ConfigError(f"rows {tuple(rows.shape)} and keys {tuple(keys.shape)} must both have shape (B,)")
        if self._keys.shape != keys.shape or self._keys.device != keys.device:
            self._keys = torch.arange(len(keys), device=keys.device)
            self._episode = torch.zeros_like(self._keys)
            self._step = torch.zeros_like(self._keys)
            self._allocate(len(keys), keys.device)
        self._keys = torch.where(rows, keys.to(torch.int64), self._keys)
        self._episode = torch.where(rows, 0, self._episode)
        self._step = torch.where(rows, 0, self._step)
        self._forget(rows)

    def attach(self, field: Field) -> None:  # noqa: B027 - only a privileged pilot looks at the map
        """Attach the scenes (`Field`) that a privileged pilot's poses index."""

    def act(
        self,
        obs: Tensor,
        reset: Tensor | None = None,
        pose: Pose | None = None,
        odometry: Tensor | None = None,
        scan_age: Tensor | None = None,
    ) -> Tensor:
        """Compute the actions of a batch for one decision.

        Args:
            obs: Observations (B, 3, Az, El) as the environment gives them: normalised depth, semantic id, valid.
            reset: Rows whose observation is the first of a new episode, bool (B,). A row without a key yet
                (no `reset` before) takes its row index.
            pose: Poses of the rows; a privileged pilot needs it, no other may have it.
            odometry: (B, 4) estimated poses x, y, z [m], yaw [rad], which a pilot that reckons takes for its own.
            scan_age: (B,) ages of the observations [decisions], at most `oldest`; None for present ones.

        Returns:
            float32 (B, 4) in [−1, 1]: forward, vertical, lateral, yaw.

        Raises:
            ConfigError: Observations of another shape, or a pose that is missing or not allowed.
        """
        if (pose is not None) != self.privileged:
            raise ConfigError(
                f"pilot {self.name!r} is privileged and needs pose="
                if self.privileged
                else f"pilot {self.name!r} flies by observations alone; call act without pose="
            )
        if obs.ndim != 4 or obs.shape[1] != 3:
            raise ConfigError(f"observations must have shape (B, 3, Az, El), not {tuple(obs.shape)}")
        batch = obs.shape[0]
        if len(self._keys) != batch or self._keys.device != obs.device:
            everyone = torch.ones(batch, dtype=torch.bool, device=obs.device)
            self.reset(everyone, torch.arange(batch, device=obs.device))
        if reset is not None:
            # A row that has not flown yet is already at the start of its first episode.
            begins = reset.to(torch.bool) & (self._step > 0)
            self._episode = self._episode + begins.to(torch.int64)
            self._step = torch.where(begins, 0, self._step)
            self._forget(begins)
        self._pose = pose
        self._odometry = None if odometry is None else odometry.cpu().numpy().astype(np.float64)
        self._scan_age = None if scan_age is None else scan_age.cpu().numpy()
        actions = self._decide(obs)
        self._step = self._step + 1
        return actions

    def act_at(self, obs: Tensor, pose: Pose) -> Tensor:
        """Compute the actions (B, 4) as `act` does, with the parts of a flight's `pose` that the pilot may have."""
        if self.privileged:
            return self.act(obs, pose=pose, scan_age=pose.scan_age)
        if self.seeks and pose.goal is not None:
            here = pose_rows(pose.position, pose.yaw) if pose.estimate is None else pose.estimate
            self._relative_goal = relative_goal(here[:, :3], here[:, 3], pose.goal)
            return self.act(obs, odometry=here, scan_age=pose.scan_age)
        if self.reckons and pose.estimate is not None:
            return self.act(obs, odometry=pose.estimate, scan_age=pose.scan_age)
        return self.act(obs)

    @abstractmethod
    def _decide(self, obs: Tensor) -> Tensor:
        """Policy of the subclass: actions (B, 4) from observations and the pilot's own memory."""

    def _allocate(self, batch: int, device: torch.device) -> None:  # noqa: B027 - a pilot without memory needs none
        """Allocate the per-row memory of `batch` rows."""

    def _forget(self, rows: Tensor) -> None:  # noqa: B027 - a pilot without memory forgets nothing
        """Clear the memory of `rows`, bool (B,)."""


_LANES = 16
"""Numbers that one decision may draw."""


def draw_uniform(
    seed: int, keys: Tensor, episode: Tensor, step: Tensor, *, lanes: range, purpose: Purpose = Purpose.PILOT
) -> Tensor:
    """Draw counter-based uniform random numbers in [0, 1).

    Args:
        seed: Seed of the experiment.
        keys: Random keys of the rows, int64 (B,).
        episode: Episode counter, int64 (B,).
        step: Decision counter, int64 (B,).
        lanes: Indices among a decision's 16 numbers.
        purpose: Stream; two purposes never share numbers.

    Returns:
        float32 (B, len(lanes)).
    """
    lane = torch.arange(lanes.start, lanes.stop, device=keys.device)
    counter = step[:, None] * _LANES + lane
    unit = uniform(seed, purpose, keys[:, None].expand_as(counter), episode[:, None], counter)
    # Cut, not rounded, to 24 bits: rounding would now and then give 1.
    return (torch.floor(unit * 2.0**24) * 2.0**-24).to(torch.float32)


def draw_normal(seed: int, keys: Tensor, episode: Tensor, step: Tensor, *, axes: int) -> Tensor:
    """Draw standard normal action noise by Box and Muller's transform; arguments as in `draw_uniform`.

    Returns:
        float32 (B, axes).
    """
    lanes = range(axes)
    radius = draw_uniform(seed, keys, episode, step, lanes=lanes, purpose=Purpose.ACTION).to(torch.float64)
    angle = draw_uniform(seed, keys, episode, step, lanes=lanes, purpose=Purpose.ACTION_PAIR).to(torch.float64)
    noise = torch.sqrt(-2.0 * torch.log1p(-radius)) * torch.cos(2.0 * math.pi * angle)
    return noise.to(torch.float32)


def azimuths(bins: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the azimuths (bins,) of an observation in (−π, π], 0 ahead, positive to the right [rad]."""
    angle = torch.arange(bins, device=device) * (2 * math.pi / bins)
    return torch.where(angle > math.pi, angle - 2 * math.pi, angle)


def level_profile(obs: Tensor, max_distance: float, band_degrees: float) -> Tensor:
    """Reduce observations to the nearest horizontal distance (B, Az) [m] over a band of elevations around the horizon.

    A missing ray counts as free up to the sensor's range. Unknown rays are left out; an azimuth without known ones is
    blocked.

    Args:
        obs: Observations (B, 3, Az, El).
        max_distance: Range of the sensor, M [m].
        band_degrees: Half-width of the band [degrees]; the bins next to the horizon always count.
    """
    elevation = torch.linspace(math.pi / 2, -math.pi / 2, obs.shape[3], device=obs.device)
    nearest = elevation.abs().min() + 1e-4
    band = elevation.abs() <= max(math.radians(band_degrees), float(nearest))
    normalised = obs[:, 0][:, :, band]
    depth = denormalise_depth(normalised, max_distance)
    hit = obs[:, 2][:, :, band] > 0
    depth = torch.where(hit | (normalised < WHOLE), depth, max_distance)
    known = hit | (depth > 0)
    nearest = torch.where(known, depth * torch.cos(elevation[band]), math.inf).amin(dim=2)
    return torch.where(known.any(dim=2), nearest, 0.0)


@dataclass(frozen=True)
class Scan:
    """Metric scan of a batch of observations: points, ranges, clearance; NumPy, for the kernels of the map pilots."""

    points: npt.NDArray[np.float32]
    """(B, R, 3) hit points of the rays, in the drone's frame: x right, y up, −z ahead [m]."""
    valid: npt.NDArray[np.bool_]
    """(B, R) whether the rays hit."""
    depth: npt.NDArray[np.float32]
    """(B, R) distances, of rays that meet nothing how far they are free, of unknown ones 0 [m]."""
    reach: npt.NDArray[np.float64]
    """(B, Az) horizontal range of the level rays, the longer one of an even split that did not drop out [m]; 0 where
    all are unknown."""
    met: npt.NDArray[np.bool_]
    """(B, Az) whether all level rays met a surface."""
    clearance: npt.NDArray[np.float64]
    """(B,) nearest surface seen [m]."""


def moved_scan(scan: Scan, before: npt.NDArray[np.float64], now: npt.NDArray[np.float64]) -> Scan:
    """Return a late scan with its points in the present frame of the drone; where that moved, level ranges are unknown.

    Args:
        scan: The scan.
        before: (B, 4) poses x, y, z [m], yaw [rad] that it was taken from.
        now: (B, 4) present poses.
    """
    turn = (before[:, 3] - now[:, 3])[:, None]
    sin, cos = np.sin(turn), np.cos(turn)
    x, y, z = np.moveaxis(scan.points.astype(np.float64), 2, 0)
    gap, face = before[:, :3] - now[:, :3], now[:, 3]
    right = gap[:, 0] * np.cos(face) - gap[:, 2] * np.sin(face)
    back = gap[:, 0] * np.sin(face) + gap[:, 2] * np.cos(face)
    points = np.stack([x * cos + z * sin + right[:, None], y + gap[:, 1:2], z * cos - x * sin + back[:, None]], axis=2)
    points = points.astype(np.float32)
    reach = np.where((before == now).all(axis=1)[:, None], scan.reach, 0.0)
    return replace(scan, points=points, depth=np.linalg.norm(points, axis=2), reach=reach)


def with_blocked_cells(
    scan: Scan, marks: npt.NDArray[np.uint8], pose: npt.NDArray[np.float64], cell: float, radius: float
) -> Scan:
    """Return a scan with a point for each cell nearby that is not known to be free, at the drone's height.

    Unknown cells count where the scan's level rays are unknown, too.

    Args:
        scan: The scan.
        marks: (B, G, G) marks of the rows' maps, see `mapping.occupancy_map`.
        pose: (B, 4) x, y, z [m] from the middle of the map, and yaw [rad].
        cell: Edge of a cell [m].
        radius: Distance up to which cells count [m].
    """
    return with_points(scan, *blocked_cells(marks, pose, scan.reach, cell, radius))


def with_points(scan: Scan, points: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> Scan:
    """Return a scan with further points (B, N, 3) in the drone's frame [m], where `valid` (B, N)."""
    return replace(
        scan, points=np.concatenate([scan.points, points], axis=1), valid=np.concatenate([scan.valid, valid], axis=1)
    )


def front_share(scan: Scan, dynamics: DynamicsConfig) -> npt.NDArray[np.float64]:
    """Return the share (B,) of the linear speed that the speed limiter leaves, by a scan's points."""
    x, y, z = np.moveaxis(scan.points, 2, 0)
    band = np.abs(y) <= scan.depth * math.sin(math.radians(dynamics.limiter_elevation_degrees)) + 1e-6
    front = np.where(scan.valid & band & (np.abs(x) <= -z), scan.depth, np.inf).min(axis=1).astype(np.float64)
    share: npt.NDArray[np.float64] = np.clip(front / dynamics.limiter_distance, dynamics.limiter_floor, 1.0)
    return share


def read_scan(obs: Tensor, max_distance: float) -> Scan:
    """Convert observations (B, 3, Az, El) to a metric scan.

    Args:
        obs: Observations as the environment gives them.
        max_distance: Range of the sensor, M [m].
    """
    rows, _, bins, levels = obs.shape
    directions = spherical_directions(bins, levels).numpy()
    valid = (obs[:, 2] > 0).reshape(rows, -1).cpu().numpy()
    normalised = obs[:, 0].reshape(rows, -1).cpu()
    depth = denormalise_depth(normalised, max_distance).numpy().astype(np.float32)
    depth = np.where(valid | (normalised.numpy() < WHOLE), depth, np.float32(max_distance))
    elevation = np.abs(np.linspace(math.pi / 2, -math.pi / 2, levels))
    level = np.flatnonzero(elevation <= elevation.min() + 1e-9)
    # Of two rays at one azimuth the longer counts, as it does for what has been seen.
    first, last = int(level[0]), int(level[-1])
    seen = valid.reshape(rows, bins, levels)
    measured = measured_rays(seen, normalised.numpy().reshape(rows, bins, levels), first, last)
    cut = np.where(measured, depth.reshape(rows, bins, levels)[:, :, level], np.float32(-1.0))
    reach = cut.max(axis=2).astype(np.float64) * math.cos(float(elevation.min()))
    for row in reach:
        fill_dropped(row)
    met = np.all(seen[:, :, level], axis=2)
    clearance = np.where(valid, depth, np.inf).min(axis=1).astype(np.float64)
    return Scan(depth[:, :, None] * directions, valid, depth, reach, met, clearance)
