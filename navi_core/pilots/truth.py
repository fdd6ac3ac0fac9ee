"""True map of a scene at one height for the planner: free cells and the cells visible from each."""

import math

import numba
import numpy as np
import numpy.typing as npt
import torch

from navi_core.mapping.occupancy_map import FAR
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap
from navi_core.world.floor.rooms import storey_of

LEVEL = 0.1
"""Heights are rounded to this [m]."""
_FAN = 128
_SPACING = 5
"""Cells between two viewpoints along an axis."""


@numba.njit(inline="always")
def cell_ahead(x: float, z: float, dx: float, dz: float, halves: int, nx: int, nz: int) -> int:
    """Return the flat index of the cell `halves` half cells along (dx, dz) from (x, z) [cells]; -1 outside the grid."""
    i, k = math.floor(x + dx * halves * 0.5), math.floor(z + dz * halves * 0.5)
    return i * nz + k if 0 <= i < nx and 0 <= k < nz else -1


@numba.njit(cache=True)
def _views(
    place: npt.NDArray[np.float64],
    fan: npt.NDArray[np.float64],
    reach: npt.NDArray[np.float64],
    reachable: npt.NDArray[np.bool_],
    start: npt.NDArray[np.int64],
    cells: npt.NDArray[np.int32],
    write: bool,
) -> None:
    """List the floor cells that each viewpoint sees; first the counts, then the cells.

    Args:
        place: (V, 2) viewpoints [cells].
        fan: (R, 2) directions.
        reach: (V, R) lengths [cells].
        reachable: (X, Z) floor that counts.
        start: (V + 1,) written without `write`: place of each list.
        cells: (n,) flat indices, written with `write`.
        write: Which of the two passes.
    """
    nx, nz = reachable.shape
    stamp = np.full(nx * nz, -1, np.int32)
    total = 0
    for v in range(place.shape[0]):
        for r in range(fan.shape[0]):
            steps = int(reach[v, r] * 2.0)
            for n in range(steps + 1):
                at = cell_ahead(place[v, 0], place[v, 1], fan[r, 0], fan[r, 1], n, nx, nz)
                if at >= 0 and reachable[at // nz, at % nz] and stamp[at] != v:
                    stamp[at] = v
                    if write:
                        cells[total] = at
                    total += 1
        if not write:
            start[v + 1] = total


class Slice:
    """A scene at one height.

    Args:
        field: Geometry.
        scene_index: Scene.
        floor: Its reachable floor; its grid is this grid.
        height: Height of flight [m].
        clearance: Distance to surfaces at which a cell can be flown through [m].
        view_radius: Range within which floor counts as seen [m].

    Attributes:
        passable: (X, Z) bool.
        near: (X, Z) uint8 squared clearance [cells²].
        storey: The storey that the height lies on.
        reachable: (X, Z) bool, floor of that storey, to be seen.
        viewpoints: (V,) flat indices of places to look from.
        view_start: (V + 1,) where each viewpoint's list begins in `view_cells`.
        view_cells: Flat indices of the floor cells that the viewpoints see.
    """

    def __init__(
        self, field: Field, scene_index: int, floor: FloorMap, height: float, clearance: float, view_radius: float
    ) -> None:
        nx, nz = floor.reachable.shape
        x = floor.origin[0] + (np.arange(nx) + 0.5) * floor.cell
        z = floor.origin[1] + (np.arange(nz) + 0.5) * floor.cell
        grid = np.stack(np.meshgrid(x, [height], z, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.float32)
        points = torch.from_numpy(grid)
        gap = field.distance(points, torch.full((len(points),), scene_index, dtype=torch.int32)).numpy()
        cells = np.clip(gap.reshape(nx, nz) / floor.cell, 0.0, math.sqrt(FAR))
        self.near = np.minimum(cells**2, FAR).astype(np.uint8)
        self.storey = int(storey_of(np.array([height]), floor.levels)[0])
        self.reachable = floor.storeys[self.storey]
        self.passable = (gap.reshape(nx, nz) >= clearance) & floor.reachable.numpy()
        lattice = np.zeros((nx, nz), bool)
        lattice[_SPACING // 2 :: _SPACING, _SPACING // 2 :: _SPACING] = True
        self.viewpoints = np.flatnonzero((self.passable & lattice).reshape(-1)).astype(np.int32)
        angle = 2.0 * math.pi * np.arange(_FAN) / _FAN
        fan = np.stack([np.sin(angle), -np.cos(angle)], axis=1)
        rays = torch.zeros(_FAN, 3)
        rays[:, 0], rays[:, 2] = torch.from_numpy(fan[:, 0]), torch.from_numpy(fan[:, 1])
        origins = points[torch.from_numpy(self.viewpoints.astype(np.int64))]
        index = torch.full((len(origins),), scene_index, dtype=torch.int64)
        reach = field.cast_rays(origins, rays, index, view_radius).depth.clamp(max=view_radius).numpy()
        reach = reach.astype(np.float64) / floor.cell
        place = np.stack([self.viewpoints // nz + 0.5, self.viewpoints % nz + 0.5], axis=1)
        self.view_start = np.zeros(len(place) + 1, np.int64)
        _views(place, fan, reach, self.reachable, self.view_start, np.zeros(0, np.int32), False)
        self.view_cells = np.zeros(int(self.view_start[-1]), np.int32)
        _views(place, fan, reach, self.reachable, self.view_start, self.view_cells, True)


def slice_scene(
    field: Field, scene_index: int, floor: FloorMap, level: int, clearance: float, view_radius: float
) -> Slice:
    """Return the slice of a scene at a height of `level` times `LEVEL`; arguments as of `Slice`."""
    return Slice(field, scene_index, floor, level * LEVEL, clearance, view_radius)
