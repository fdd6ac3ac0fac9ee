"""Ground-truth coverage: fraction of the reachable floor that an episode saw or flew through.

C_vis counts reachable floor within the view radius and in line of sight: a fan of horizontal rays leaves every
decision's position at the drone's height, and each ray sees the floor cells that it crosses before a surface stops
it or the radius ends. This is the measure of the exploration literature (Chaplot et al. 2020, 3.2 m), computed on the
true scene, not on a sensor or a policy's map. C_visit counts coarse cells flown through. C_seen is C_vis of a limited
sensor: only the rays within its horizontal sector and range at the drone's true yaw count. All count the storey that
the drone is on.

Cells are marked by exact grid traversal (Amanatides & Woo 1987) in numba; a cell is crossed when the segment enters it
before its end. Cells are named (ix, iz); cell (0, 0) has its minimum corner at the grid's origin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numba import njit

from navi_core.world import Field, FloorMap
from navi_core.world.floor.rooms import storey_of
from navi_core.world.sensor.profiles import Profile

RAYS_PER_CAST = 1 << 19
"""Rays cast at once before they are marked, to bound memory."""


@njit(cache=True, nogil=True)
def _mark_segment(
    x: float, z: float, dx: float, dz: float, length: float, wanted: np.ndarray, marked: np.ndarray
) -> int:
    """Rasterise a segment by DDA grid traversal, marking wanted cells; units of cells, (dx, dz) per unit of `length`.

    Returns:
        The number of cells that were not marked before.
    """
    width, depth = wanted.shape
    ix, iz = math.floor(x), math.floor(z)
    step_x = 1 if dx > 0 else -1
    step_z = 1 if dz > 0 else -1
    # Ray parameter at the next crossing of a cell boundary along each axis, and between two of them.
    next_x = ((ix + (1 if dx > 0 else 0)) - x) / dx if dx != 0.0 else math.inf
    next_z = ((iz + (1 if dz > 0 else 0)) - z) / dz if dz != 0.0 else math.inf
    pitch_x = 1.0 / abs(dx) if dx != 0.0 else math.inf
    pitch_z = 1.0 / abs(dz) if dz != 0.0 else math.inf
    new = 0
    while True:
        if 0 <= ix < width and 0 <= iz < depth and wanted[ix, iz] and not marked[ix, iz]:
            marked[ix, iz] = True
            new += 1
        if next_x < next_z:
            if next_x >= length:
                return new
            ix += step_x
            next_x += pitch_x
        else:
            if next_z >= length:
                return new
            iz += step_z
            next_z += pitch_z


@njit(cache=True, nogil=True)
def mark_rays(
    positions: np.ndarray,
    directions: np.ndarray,
    lengths: np.ndarray,
    origin_x: float,
    origin_z: float,
    cell: float,
    wanted: np.ndarray,
    marked: np.ndarray,
) -> np.ndarray:
    """Rasterise horizontal rays onto a grid, position by position: mark the wanted cells that they cross.

    Args:
        positions: Ray origins (T, 2) as (x, z) [m], float64.
        directions: Unit directions (R, 2), float64.
        lengths: Ray lengths (T, R) [m].
        origin_x: Minimum corner of the grid along x [m].
        origin_z: Minimum corner of the grid along z [m].
        cell: Cell edge [m].
        wanted: Cells that count, bool (nx, nz).
        marked: Cells marked so far, bool (nx, nz); updated.

    Returns:
        Newly marked cells at each position, int64 (T,).
    """
    new = np.zeros(len(positions), dtype=np.int64)
    for t in range(len(positions)):
        x = (positions[t, 0] - origin_x) / cell
        z = (positions[t, 1] - origin_z) / cell
        for r in range(len(directions)):
            new[t] += _mark_segment(x, z, directions[r, 0], directions[r, 1], lengths[t, r] / cell, wanted, marked)
    return new


@njit(cache=True, nogil=True)
def mark_path(
    positions: np.ndarray,
    origin_x: float,
    origin_z: float,
    cell: float,
    wanted: np.ndarray,
    marked: np.ndarray,
) -> np.ndarray:
    """Rasterise a flown path onto a grid: mark the wanted cells on it, straight from each position to the next.

    Args:
        positions: Positions (T, 2) as (x, z) [m], float64.
        origin_x: Minimum corner of the grid along x [m].
        origin_z: Minimum corner of the grid along z [m].
        cell: Cell edge [m].
        wanted: Cells that count, bool (nx, nz).
        marked: Cells marked so far, bool (nx, nz); updated.

    Returns:
        Cells newly marked on the way to each position, int64 (T,); the first counts its own cell alone.
    """
    new = np.zeros(len(positions), dtype=np.int64)
    for t in range(len(positions)):
        before = max(t - 1, 0)
        x = (positions[before, 0] - origin_x) / cell
        z = (positions[before, 1] - origin_z) / cell
        dx = (positions[t, 0] - positions[before, 0]) / cell
        dz = (positions[t, 1] - positions[before, 1]) / cell
        new[t] = _mark_segment(x, z, dx, dz, 1.0, wanted, marked)
    return new


FAN_RAYS = 512
"""Rays of the horizontal fan; neighbours are 3.9 cm apart at 3.2 m, under half a 0.1 m cell."""

REPORTED_STEPS = (100, 200, 1000)
"""Decisions at which a curve's value is reported."""

REPORTED_SHARES = (50, 75, 90, 95)
"""Coverage levels [%] whose first decision is reported."""


@dataclass(frozen=True)
class FloorTruth:
    """Ground truth of one scene's coverage: reachable floor in fine cells for C_vis, coarse cells for C_visit."""

    reachable: np.ndarray
    """Reachable floor cells of each storey, bool (S, nx, nz)."""
    levels: np.ndarray
    """Base height of each storey, float64 (S,) [m]; the drone is on the highest one below it."""
    cell: float
    """Edge of a fine cell [m]."""
    visitable: np.ndarray
    """Coarse cells that hold reachable floor, bool (S, mx, mz)."""
    visit_cell: float
    """Edge of a coarse cell [m]."""
    origin: tuple[float, float]
    """Minimum corner of both grids, (x, z) [m]."""

    @classmethod
    def of(cls, floor: FloorMap, visit_cell: float) -> Self:
        """Build the coverage ground truth from a scene's floor map.

        Args:
            floor: Reachable floor of the scene.
            visit_cell: Edge of a coarse cell [m].
        """
        storeys = floor.storeys
        storey, *fine = np.nonzero(storeys)
        coarse = [np.floor((index + 0.5) * floor.cell / visit_cell).astype(np.int64) for index in fine]
        visitable = np.zeros((len(storeys), *(index.max() + 1 for index in coarse)), dtype=bool)
        visitable[storey, coarse[0], coarse[1]] = True
        origin = (float(floor.origin[0]), float(floor.origin[1]))
        return cls(storeys, floor.levels, float(floor.cell), visitable, float(visit_cell), origin)

    @property
    def area(self) -> float:
        """Reachable floor area [m²]."""
        return float(self.reachable.sum()) * self.cell**2


@dataclass(frozen=True)
class Coverage:
    """Coverage curves of one episode of T decisions; entry t is the value after t decisions."""

    seen: np.ndarray
    """Reachable floor area seen, float64 (T+1,) [m²]."""
    visited: np.ndarray
    """Area of the coarse cells flown through, float64 (T+1,) [m²]."""
    seen_share: np.ndarray
    """C_vis, float64 (T+1,) [%]."""
    visited_share: np.ndarray
    """C_visit, float64 (T+1,) [%]."""
    seen_cells: np.ndarray
    """Fine cells of each storey seen in the end, bool (S, nx, nz)."""
    sensed_share: np.ndarray | None = None
    """C_seen of a limited sensor, float64 (T+1,) [%]; None for the full sphere."""

    def metrics(self) -> dict[str, Any]:
        """Compute the reported metrics of the coverage curves by name."""
        found = curve_metrics("c_vis", self.seen_share, self.seen)
        found |= curve_metrics("c_visit", self.visited_share, self.visited)
        if self.sensed_share is not None:
            sensed = curve_metrics("c_seen", self.sensed_share, self.sensed_share)
            found |= {name: sensed[name] for name in ("c_seen_auc", "c_seen_final")}
        return found


def measure_coverage(
    field: Field,
    truth: FloorTruth,
    scene_index: int,
    positions: np.ndarray,
    *,
    view_radius: float,
    yaws: np.ndarray | None = None,
    profile: Profile | None = None,
) -> Coverage:
    """Compute the coverage curves of a flown path.

    Args:
        field: Field that holds the scene.
        truth: The scene's floor.
        scene_index: Index of the scene in the field.
        positions: The start and the position after each of T decisions, (T+1, 3) [m].
        view_radius: Distance within which floor counts as seen [m].
        yaws: Yaw at each position, (T+1,) [rad]; for C_seen.
        profile: Sensor whose C_seen is measured; None for none.
    """
    angles = 2.0 * math.pi * np.arange(FAN_RAYS) / FAN_RAYS
    fan = np.stack([np.sin(angles), -np.cos(angles)], axis=1)
    rays = torch.zeros(FAN_RAYS, 3)
    rays[:, 0] = torch.from_numpy(fan[:, 0])
    rays[:, 2] = torch.from_numpy(fan[:, 1])
    marked, entered = np.zeros_like(truth.reachable), np.zeros_like(truth.visitable)
    new, visits, fresh = np.zeros((3, len(positions)), dtype=np.int64)
    sensed = np.zeros_like(truth.reachable)
    flat = np.ascontiguousarray(positions[:, ::2], dtype=np.float64)
    for storey, first, last in _stays(storey_of(positions[:, 1], truth.levels)):
        wanted = truth.visitable[storey]
        visits[first:last] = mark_path(flat[first:last], *truth.origin, truth.visit_cell, wanted, entered[storey])
        for begin in range(first, last, max(1, RAYS_PER_CAST // FAN_RAYS)):
            end = min(last, begin + max(1, RAYS_PER_CAST // FAN_RAYS))
            origins = torch.as_tensor(positions[begin:end], dtype=torch.float32, device=field.device)
            index = torch.full((end - begin,), scene_index, dtype=torch.int64, device=field.device)
            depth = field.cast_rays(origins, rays.to(field.device), index, view_radius).depth
            lengths = depth.clamp(max=view_radius).cpu().numpy().astype(np.float64)
            wanted = truth.reachable[storey]
            grid = (*truth.origin, truth.cell, wanted)
            new[begin:end] = mark_rays(flat[begin:end], fan, lengths, *grid, marked[storey])
            if profile is not None:
                assert yaws is not None, "a sensor profile needs the yaws of the flight"
                # Azimuths in the drone's frame run clockwise, yaw counter-clockwise.
                azimuth = torch.from_numpy(angles + yaws[begin:end, None].astype(np.float64))
                within = np.where(profile.horizon(azimuth).numpy(), np.minimum(lengths, profile.farthest), 0.0)
                fresh[begin:end] = mark_rays(flat[begin:end], fan, within, *grid, sensed[storey])
    seen, visited = np.cumsum(new), np.cumsum(visits)
    return Coverage(
        seen=seen * truth.cell**2,
        visited=visited * truth.visit_cell**2,
        seen_share=100.0 * seen / truth.reachable.sum(),
        visited_share=100.0 * visited / truth.visitable.sum(),
        seen_cells=marked,
        sensed_share=None if profile is None else 100.0 * np.cumsum(fresh) / truth.reachable.sum(),
    )


def _stays(storeys: np.ndarray) -> list[tuple[int, int, int]]:
    """Split a path into segments on one storey each: (storey, first, last + 1), in order."""
    edges = [0, *(np.flatnonzero(np.diff(storeys)) + 1).tolist(), len(storeys)]
    return [(int(storeys[first]), first, last) for first, last in pairwise(edges)]


def curve_metrics(name: str, share: np.ndarray, area: np.ndarray) -> dict[str, Any]:
    """Compute the reported metrics of one coverage curve.

    Args:
        name: Prefix of the names.
        share: Coverage after 0..T decisions, (T+1,) [%], never falling.
        area: The same, (T+1,) [m²].

    Returns:
        `<name>_auc`, the mean over decisions 1..T [%]; `<name>_final` [%] and `<name>_m2` [m²] at the end;
        `<name>_at_<k>` [%], None where the episode is shorter; `<name>_steps_to_<p>`, the decisions after which
        p % are reached, None if never.
    """
    flown = len(share) - 1
    at = {f"{name}_at_{step}": float(share[step]) if step <= flown else None for step in REPORTED_STEPS}
    # `argmax` finds the first decision that reaches the percentage.
    steps_to = {
        f"{name}_steps_to_{percent}": int((share >= percent).argmax()) if share[-1] >= percent else None
        for percent in REPORTED_SHARES
    }
    return {
        f"{name}_auc": float(share[1:].mean()) if flown else float(share[0]),
        f"{name}_final": float(share[-1]),
        f"{name}_m2": float(area[-1]),
        **at,
        **steps_to,
    }


def mean_curve(coverages: Sequence[Coverage], scenes: Sequence[str], points: int = 41) -> dict[str, list[float]]:
    """Compute the mean C_vis curve of evaluated flights: the mean over scenes of the means over their starts.

    Args:
        coverages: One of each flight, all of the same length T.
        scenes: Name of each flight's scene.
        points: Decisions at which it is read, evenly spread over 0..T.

    Returns:
        `step`, the decisions, and `c_vis_percent` [%].
    """
    steps = np.unique(np.linspace(0, len(coverages[0].seen_share) - 1, points).round().astype(np.int64))
    by_scene: dict[str, list[np.ndarray]] = {}
    for coverage, scene in zip(coverages, scenes, strict=True):
        by_scene.setdefault(scene, []).append(coverage.seen_share[steps])
    mean = np.mean([np.mean(curves, axis=0) for curves in by_scene.values()], axis=0)
    return {"step": [int(step) for step in steps], "c_vis_percent": [round(float(value), 3) for value in mean]}
