"""Reachable floor of a scene (largest connected free space), and the part of it that each row has seen.

A scene's reachable set is its largest connected part of free space over a floor: the voxels within the surface's
bounds in which the drone keeps its clearance, and beneath which there is surface, or a hole in a floor. Outside the
walls of a scan there is nothing beneath: a drone beyond a window is in no room. Of rooms on open ground that is
larger than they are, the rooms alone are meant (`rooms.py`). Seen from above the set is a grid of floor cells, one for
each storey.
"""

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from navi_core.config.policy import ANTICIPATED
from navi_core.errors import SceneError
from navi_core.kernels.floor import label_components
from navi_core.kernels.native.library import Floors, data_pointer
from navi_core.world.field import Field, cos_sin
from navi_core.world.floor.rooms import find_storeys, rooms_on_open_ground

_MAX_VOXELS = 200_000_000


def over_floor(surface: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Mask the voxels (nx, ny, nz), y upward, that are surface, have surface beneath, or lie over a hole in a floor.

    A gap with nothing beneath that is enclosed by floor at its height is a hole: a scanner misses places
    that are glossy or in shadow, and the rooms beside are one. A gap at the edge of the plan is outside.

    Args:
        surface: Voxels that hold surface, or are near it.
    """
    found: npt.NDArray[np.bool_] = np.maximum.accumulate(surface, axis=1)
    for layer in range(found.shape[1]):
        label, sizes = label_components(np.ascontiguousarray(~found[:, layer : layer + 1]))
        outside = np.zeros(len(sizes), bool)
        for edge in (label[0], label[-1], label[:, :, 0], label[:, :, -1]):
            outside[edge] = True
        outside[0] = False
        found[:, layer] = ~outside[label[:, 0]]
    return found


class FloorMap:
    """Grid of the reachable floor cells of one scene, and its reachable voxels.

    Args:
        field: Geometry.
        scene_index: Scene.
        cell: Edge of a cell [m].
        clearance: Distance to the surface that a reachable voxel keeps [m].
        height_limit: See `DynamicsConfig.height_limit`.

    Attributes:
        origin: (2,) x and z of the grid's minimum corner [m].
        corner: (3,) minimum corner of the voxels [m].
        reachable: (nx, nz) bool tensor, columns with a reachable voxel on whichever storey.
        free: (nx, ny, nz) bool array, the reachable voxels.
        indoors: Whether they are the rooms of a scene that is mostly open ground.
        height: (2,) lowest and highest reachable voxel centre [m].

    Raises:
        SceneError: The scene has no free space for the drone, none over a floor, or is too large for the cell size.
    """

    def __init__(
        self, field: Field, scene_index: int, cell: float, clearance: float, height_limit: float | None = None
    ) -> None:
        low, high = field.bounds(scene_index)
        size = [max(1, math.ceil(float(extent) / cell)) for extent in high - low]
        name = field.scenes[scene_index].name
        if math.prod(size) > _MAX_VOXELS:
            metres = " × ".join(f"{float(extent):.0f}" for extent in high - low)
            raise SceneError(
                f"scene {name!r} measures {metres} m (x, y, z), more than {_MAX_VOXELS:,} cells of {cell} m: cut it "
                "into parts; if its unit is the centimetre, compile it with --unit-scale 0.01 (compile.unit_scale=0.01)"
            )
        self.cell = cell
        self.origin = np.array([low[0], low[2]])
        self.corner = np.asarray(low, np.float64)
        axes = [low[a] + (np.arange(size[a]) + 0.5) * cell for a in range(3)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.float32)
        scene = torch.full((len(grid),), scene_index, dtype=torch.int32, device=field.device)
        near = field.within(torch.from_numpy(grid).to(field.device), scene, clearance).cpu().numpy().reshape(size)
        if near.all():
            raise SceneError(f"scene {name!r} has no free space with {clearance} m clearance; is it a closed solid?")
        # What is near surface lies on it, or under it; where cells are coarse, what is within half a diagonal.
        surface, radius = near, 0.5 * cell * math.sqrt(3.0)
        if clearance < radius:
            surface = field.within(torch.from_numpy(grid).to(field.device), scene, radius).cpu().numpy().reshape(size)
        over = ~near & over_floor(surface)
        if height_limit is not None:
            over[:, axes[1] > field.lid(scene_index, height_limit)] = False
        label, sizes = label_components(over)
        self.free: npt.NDArray[np.bool_] = label == max(1, int(sizes.argmax()))
        # Walls or a ceiling alone are no floor with a hole.
        if 2 * int((self.free & np.maximum.accumulate(surface, axis=1)).sum()) <= int(self.free.sum()):
            raise SceneError(
                f"scene {name!r} has no floor: nothing lies beneath most of its free space; is another axis up?"
            )
        rooms = rooms_on_open_ground(field, scene_index, over, self.free, self.corner, cell)
        self.indoors = rooms is not None
        if rooms is not None:
            self.free = rooms
        self.reachable = torch.from_numpy(self.free.any(axis=1))
        level = np.flatnonzero(self.free.any(axis=(0, 2)))
        self.height = np.array([axes[1][level[0]], axes[1][level[-1]]])

    @cached_property
    def _found(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        return find_storeys(self.free, self.cell)

    @property
    def storeys(self) -> npt.NDArray[np.bool_]:
        """Reachable floor cells of each storey, bool (S, nx, nz), lowest first."""
        return self._found[1]

    @cached_property
    def levels(self) -> npt.NDArray[np.float64]:
        """Start height of each storey, (S,) [m]; a drone is on the last that begins below it, or on the first."""
        return np.asarray(self.corner[1] + self._found[0] * self.cell)

    @property
    def area(self) -> float:
        """Reachable floor area of all storeys [m²]."""
        return float(self.storeys.sum()) * self.cell**2

    def contains(self, points: torch.Tensor) -> torch.Tensor:
        """Return a (B,) bool mask: does each point (B, 3) [m] lie in a reachable voxel?"""
        index = np.floor((points.numpy().astype(np.float64) - self.corner) / self.cell).astype(np.int64)
        inside = ((index >= 0) & (index < self.free.shape)).all(axis=1)
        i, j, k = np.clip(index, 0, np.array(self.free.shape) - 1).T
        return torch.from_numpy(inside & self.free[i, j, k])


_SECTORS, _RING = 16, 3.2
"""Sectors of `FloorView.unseen_around`, and the width of its two rings [m]."""


def _sector_points() -> torch.Tensor:
    """Return 24 points, 3 by 8, of each part of `FloorView.unseen_around`, (ANTICIPATED · 24, 2) right and back [m]."""
    turn = (torch.arange(_SECTORS)[:, None] + torch.tensor([-1 / 3, 0.0, 1 / 3])) * (2.0 * math.pi / _SECTORS)
    away = (torch.arange(ANTICIPATED // _SECTORS)[:, None] + (torch.arange(8) + 0.5) / 8) * _RING
    turn, away = turn[None, :, :, None], away[:, None, None, :]
    return torch.stack([away * turn.sin(), -away * turn.cos()], dim=-1).flatten(0, 3)


class FloorView:
    """Coverage map: reachable floor cells seen by each row in its episode; only the drone's own storey is marked.

    A tensor program of fixed shapes; within a step of the environment on the CPU a kernel walks the rays
    (`csrc/step/panorama.h`). Both mark the same cells to the bit.

    Args:
        maps: One floor map per scene, all of one cell size.
        rows: Number of rows B.
        fan: (R, 2) horizontal unit directions (x, z) in the drone's frame.
        radius: No ray is longer than this [m].
        device: Device of the maps.

    Attributes:
        seen: (B, C) bool, cells of the row's scene, storey slowest, then x; C is a multiple of 8 with at least one cell
            to spare.
    """

    def __init__(
        self,
        maps: list[FloorMap],
        rows: int,
        fan: torch.Tensor,
        radius: float,
        device: torch.device,
    ) -> None:
        self.cell = maps[0].cell
        self._fan = fan.to(device)
        self._crossings = math.ceil(radius / self.cell) + 1
        self._origin = torch.from_numpy(np.stack([m.origin for m in maps]).astype(np.float64)).to(device)
        self._shape = torch.tensor([tuple(m.reachable.shape) for m in maps], device=device)
        # Kept, because a product along an axis of whole numbers is a kernel that torch compiles when it is first asked.
        self._storey_cells = torch.tensor([m.reachable.numel() for m in maps], device=device)
        cells = max(m.storeys.size for m in maps) // 8 * 8 + 8
        self._reachable = torch.zeros(len(maps), cells, dtype=torch.bool, device=device)
        storeys = max(len(m.levels) for m in maps)
        # A storey that a scene does not have begins above everything.
        self._levels = torch.full((len(maps), storeys), math.inf, dtype=torch.float64, device=device)
        for i, m in enumerate(maps):
            self._reachable[i, : m.storeys.size] = torch.from_numpy(m.storeys.reshape(-1))
            self._levels[i, : len(m.levels)] = torch.from_numpy(m.levels)
        self.seen = torch.zeros(rows, cells, dtype=torch.bool, device=device)
        self._bits = torch.arange(8, device=device)
        self._around = _sector_points().to(device)

    def mark(
        self,
        position: torch.Tensor,
        yaw: torch.Tensor,
        reach: torch.Tensor,
        scene_index: torch.Tensor,
        seen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Update the coverage maps with the cells that the fan of horizontal rays crosses; return the newly seen area.

        Args:
            position: (B, 3) [m].
            yaw: (B,) [rad].
            reach: (B, R) horizontal length of each ray [m].
            scene_index: (B,) int64.
            seen: (B, C) maps to update instead of the rows' own.

        Returns:
            (B,) float32 newly seen reachable area [m²].
        """
        seen = self.seen if seen is None else seen
        gain = self._mark_tensors(position, *cos_sin(yaw), reach, scene_index, seen)
        return gain.to(torch.float32) * self.cell**2

    def footprint(
        self, position: torch.Tensor, yaw: torch.Tensor, reach: torch.Tensor, scene_index: torch.Tensor
    ) -> torch.Tensor:
        """Return (B, C/8) uint8 bit-packed masks of the cells seen from each pose; arguments as `mark`."""
        seen = torch.zeros(len(position), self.seen.shape[1], dtype=torch.bool, device=self.seen.device)
        self.mark(position, yaw, reach, scene_index, seen)
        return (seen.view(len(seen), -1, 8) * (1 << self._bits)).sum(dim=2).to(torch.uint8)

    def begin(self, begins: torch.Tensor, footprint: torch.Tensor) -> None:
        """Reset the coverage maps of the rows that begin an episode to their spawn's footprint, which earns no reward.

        Args:
            begins: (B,) bool.
            footprint: (B, C/8) uint8 as `footprint` returns them.
        """
        self.seen.copy_(torch.where(begins[:, None], self.cells(footprint), self.seen))

    def forget_unreachable(self, scene: torch.Tensor) -> None:
        """Clear seen cells that are not reachable, left by an earlier version's floor map. `scene` (B,) int64."""
        self.seen.logical_and_(self._reachable[scene])

    def cells(self, footprint: torch.Tensor) -> torch.Tensor:
        """Unpack bit-packed footprints (B, C/8) into (B, C) bool cells."""
        return ((footprint[:, :, None] >> self._bits) & 1).flatten(1).to(torch.bool)

    def for_kernels(self) -> Floors:
        """Return the ctypes struct of the floor grids for the C++ kernels; valid as long as this view."""
        return Floors(
            fan=data_pointer(self._fan, torch.float32),
            origin=data_pointer(self._origin, torch.float64),
            shape=data_pointer(self._shape, torch.int64),
            levels=data_pointer(self._levels, torch.float64),
            reachable=data_pointer(self._reachable, torch.bool),
            rays=len(self._fan),
            cells=self.seen.shape[1],
            storeys=self._levels.shape[1],
            cell=self.cell,
        )

    def fraction(self, scene_index: torch.Tensor) -> torch.Tensor:
        """Return the (B,) coverage: fraction of the reachable floor that each row has seen."""
        return self.seen.sum(dim=1) / self._reachable.sum(dim=1)[scene_index.long()]

    def unseen_around(self, position: torch.Tensor, yaw: torch.Tensor, scene_index: torch.Tensor) -> torch.Tensor:
        """Return where reachable floor lies around each row that it has not seen, (B, ANTICIPATED) shares of cells.

        The shares are those of 16 sectors, the first ahead and then to the right, within 3.2 m and then from there to
        6.4 m, whatever lies between. Arguments as `mark`.
        """
        cos, sin = (angle[:, None] for angle in cos_sin(yaw))
        right, back = self._around[:, 0], self._around[:, 1]
        x, z = position[:, :1] + right * cos + back * sin, position[:, 2:] + back * cos - right * sin
        origin = self._origin[scene_index].to(x.dtype)
        i, k = ((along - origin[:, n, None]) / self.cell for n, along in enumerate((x, z)))
        i, k = i.floor().long(), k.floor().long()
        nx, nz = (self._shape[scene_index][:, n, None] for n in range(2))
        above = self._levels[scene_index, 1:] <= position[:, 1, None]
        first = (above.sum(dim=1) * self._storey_cells[scene_index])[:, None]
        inside = (i >= 0) & (i < nx) & (k >= 0) & (k < nz)
        flat = torch.where(inside, first + i * nz + k, 0)
        left = self._reachable[scene_index].gather(1, flat) & ~self.seen.gather(1, flat) & inside
        return left.view(len(left), ANTICIPATED, -1).to(torch.float32).mean(dim=2)

    def _mark_tensors(
        self,
        position: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        reach: torch.Tensor,
        scene: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        """Mark cells by tensor operations and return the (B,) newly seen ones: all crossings of grid lines at once."""
        cos, sin = cos[:, None], sin[:, None]
        x, z = self._fan[None, :, 0], self._fan[None, :, 1]
        heading = torch.stack([x * cos + z * sin, z * cos - x * sin], dim=2).to(torch.float64)
        start = (position[:, ::2] - self._origin[scene]) / self.cell
        cell = start.floor()
        side = heading.sign()
        slope = heading.reciprocal()
        first = ((cell[:, None] + (side > 0)) - start[:, None]) * slope
        number = torch.arange(self._crossings, dtype=torch.float64, device=seen.device)
        # A ray along a line never crosses it: its crossings are infinite or no numbers, and not within its length.
        when = first[..., None] + number * slope.abs()[..., None]
        within = when <= (reach.to(torch.float64) / self.cell)[..., None, None]
        before = seen.sum(dim=1)
        above = self._levels[scene, 1:] <= position[:, 1, None]
        first_cell = above.sum(dim=1) * self._storey_cells[scene]
        here = torch.ones_like(cell[:, :1], dtype=torch.bool)
        self._set(seen, cell[:, 0, None], cell[:, 1, None], scene, first_cell, here)
        beyond = cell[:, None, :, None] + side[..., None] * (number + 1.0)
        beside = (start[:, None, :, None] + heading[..., None] * when.flip(2)).floor()
        for entered, on in (
            ((beyond[:, :, 0], beside[:, :, 1]), within[:, :, 0]),
            ((beside[:, :, 0], beyond[:, :, 1]), within[:, :, 1]),
        ):
            self._set(seen, entered[0].flatten(1), entered[1].flatten(1), scene, first_cell, on.flatten(1))
        return seen.sum(dim=1) - before

    def _set(
        self,
        seen: torch.Tensor,
        i: torch.Tensor,
        k: torch.Tensor,
        scene: torch.Tensor,
        first_cell: torch.Tensor,
        on: torch.Tensor,
    ) -> None:
        """Mark reachable cells (B, N) in coverage maps where `on`, on the storeys that begin at `first_cell` (B,)."""
        nx, nz = self._shape[scene, 0, None], self._shape[scene, 1, None]
        inside = on & (i >= 0) & (i < nx) & (k >= 0) & (k < nz)
        # The last cell belongs to no grid; what is not to be marked goes there.
        spare = seen.shape[1] - 1
        index = torch.where(inside, i * nz + k + first_cell[:, None], float(spare)).to(torch.int64)
        reachable = self._reachable[scene].gather(1, index)
        seen.scatter_(1, torch.where(reachable, index, spare), True)
        seen[:, spare] = False
