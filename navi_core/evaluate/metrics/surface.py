"""Surface coverage C_surf: fraction of the visible surface that an episode has seen.

The ground truth is the set of voxels whose surface faces the air around the drone: short axis-parallel rays from every
air voxel close to a surface mark the voxels they hit. Air is every voxel without surface, above a floor, connected to
the drone's reachable space; it may be narrower than the drone. The outside of a scan therefore does not count, nor
surface that faces open ground around rooms.
A voxel is seen once a ray of a fixed panorama hits it within the sensor's range, whatever the subject's resolution.
Each hit is moved slightly towards its origin, so that a wall between two voxels belongs to the one on the air's side.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from navi_core.errors import EvaluationError
from navi_core.evaluate.metrics.coverage import RAYS_PER_CAST
from navi_core.kernels.floor import label_components
from navi_core.world import Field, FloorMap
from navi_core.world.floor.reachable import over_floor
from navi_core.world.floor.rooms import in_rooms
from navi_core.world.sensor.panorama import spherical_directions

SURFACE_RAYS = (128, 32)
"""Azimuth and elevation bins of the panorama."""

_HIT_OFFSET = 1e-3
"""Shift of a hit towards its origin [m]."""


@dataclass(frozen=True)
class SurfaceTruth:
    """Ground truth of one scene's surface coverage: voxels with visible surface."""

    voxels: np.ndarray
    """Voxels that hold surface facing the drone's air, bool (nx, ny, nz)."""
    low: np.ndarray
    """Minimum corner of the grid, float64 (3,) [m]."""
    cell: float
    """Edge of a voxel [m]."""

    @classmethod
    def of(cls, field: Field, scene_index: int, floor: FloorMap) -> Self:
        """Build the ground truth of a scene's visible surface, by rays from the air voxels.

        Args:
            field: Field that holds the scene.
            scene_index: Index of the scene in the field.
            floor: Its reachable space, on the same grid.

        Raises:
            EvaluationError: No surface faces the reachable space.
        """
        cell, shape = floor.cell, floor.free.shape
        low = np.asarray(field.bounds(scene_index)[0], np.float64)
        centres = np.stack(np.meshgrid(*(low[a] + (np.arange(shape[a]) + 0.5) * cell for a in range(3)), indexing="ij"))
        points = torch.from_numpy(centres.reshape(3, -1).T.astype(np.float32)).to(field.device)
        half_diagonal = 0.5 * cell * math.sqrt(3.0)
        empty = ~_within(field, points, scene_index, half_diagonal).reshape(shape)
        empty &= over_floor(~empty)
        label, _ = label_components(empty)
        around = np.unique(label[floor.free & empty])
        air = np.isin(label, around[around > 0]) & empty
        shell = (air & _within(field, points, scene_index, 2.0 * cell).reshape(shape)).reshape(-1)
        if floor.indoors:
            shell[shell] = in_rooms(field, scene_index, points.cpu().numpy()[shell])
        axes = torch.cat([torch.eye(3), -torch.eye(3)])
        truth = cls(np.zeros(shape, dtype=bool), low, cell)
        everything = np.ones(shape, dtype=bool)
        _mark_hits(field, truth, scene_index, points.cpu()[torch.from_numpy(shell)], axes, 3.0 * cell, everything)
        truth.voxels[:] = ~everything
        if not truth.voxels.any():
            raise EvaluationError("no surface faces the reachable space; inspect the scene with `navi scenes show`")
        return truth


@torch.no_grad()
def measure_surface(
    field: Field, truth: SurfaceTruth, scene_index: int, positions: np.ndarray, *, max_distance: float
) -> np.ndarray:
    """Count the visible voxels seen after 0..T decisions of a flight, int64 (T+1,).

    Args:
        field: Field that holds the scene.
        truth: The scene's surface.
        scene_index: Index of the scene in the field.
        positions: The start and the position after each of T decisions, (T+1, 3) [m].
        max_distance: Range of the sensor [m].
    """
    unseen = truth.voxels.copy()
    rays = spherical_directions(*SURFACE_RAYS)
    path = torch.as_tensor(positions, dtype=torch.float32)
    return np.cumsum(_mark_hits(field, truth, scene_index, path, rays, max_distance, unseen))


def _mark_hits(
    field: Field,
    truth: SurfaceTruth,
    scene_index: int,
    origins: torch.Tensor,
    directions: torch.Tensor,
    max_distance: float,
    left: np.ndarray,
) -> np.ndarray:
    """Cast rays from origins (N, 3), clear the hit voxels of mask `left`; return the number cleared by each, (N,)."""
    cleared = np.zeros(len(origins), dtype=np.int64)
    flat, shape = left.reshape(-1), np.array(left.shape)
    ray = directions.numpy().astype(np.float64)
    chunk = max(1, RAYS_PER_CAST // len(ray))
    for first in range(0, len(origins), chunk):
        part = origins[first : first + chunk]
        index = torch.full((len(part),), scene_index, dtype=torch.int64, device=field.device)
        hits = field.cast_rays(part.to(field.device), directions.to(field.device), index, max_distance)
        depth, valid = hits.depth.cpu().numpy().astype(np.float64), hits.valid.cpu().numpy() > 0
        valid &= depth <= max_distance
        row, column = np.nonzero(valid)
        point = part.numpy().astype(np.float64)[row] + ray[column] * (depth[row, column] - _HIT_OFFSET)[:, None]
        voxel = np.floor((point - truth.low) / truth.cell).astype(np.int64)
        inside = ((voxel >= 0) & (voxel < shape)).all(axis=1)
        number = np.ravel_multi_index(tuple(voxel[inside].T), left.shape)
        new = flat[number]
        # Of several rays into one voxel the first one counts.
        fresh, where = np.unique(number[new], return_index=True)
        flat[fresh] = False
        np.add.at(cleared, first + row[inside][new][where], 1)
    return cleared


def _within(field: Field, points: torch.Tensor, scene_index: int, radius: float) -> np.ndarray:
    scene = torch.full((len(points),), scene_index, dtype=torch.int64, device=field.device)
    return field.within(points, scene, radius).cpu().numpy()
