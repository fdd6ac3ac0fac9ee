"""The reachable floor of a scene, and which part of it has been seen.

A scene's reachable set is its largest connected part of free space within the surface's bounds: the
voxels in which the drone keeps its clearance. Seen from above it is a grid of floor cells.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from navi_core.errors import SceneError
from navi_core.kernels.floor import label_components, mark_fan
from navi_core.world.field import Field

__all__ = ["FloorMap", "FloorView"]

_MAX_VOXELS = 200_000_000


class FloorMap:
    """Reachable floor cells of one scene.

    Args:
        field: Geometry.
        scene_index: Scene.
        cell: Edge of a cell [m].
        clearance: Distance to the surface that a reachable voxel keeps [m].

    Attributes:
        origin: (2,) x and z of the grid's minimum corner [m].
        reachable: (nx, nz) bool tensor.
        free: (nx, ny, nz) bool array, the reachable voxels.
        height: (2,) lowest and highest reachable voxel centre [m].

    Raises:
        SceneError: The scene has no free space for the drone, or is too large for the cell size.
    """

    def __init__(self, field: Field, scene_index: int, cell: float, clearance: float) -> None:
        low, high = field.bounds(scene_index)
        size = [max(1, math.ceil(float(extent) / cell)) for extent in high - low]
        name = field.scenes[scene_index].name
        if math.prod(size) > _MAX_VOXELS:
            raise SceneError(
                f"scene {name!r} has {size[0]}×{size[1]}×{size[2]} cells of {cell} m, more than {_MAX_VOXELS}; "
                "use a larger cell"
            )
        self.cell = cell
        self.origin = np.array([low[0], low[2]])
        self._low = np.asarray(low, np.float64)
        axes = [low[a] + (np.arange(size[a]) + 0.5) * cell for a in range(3)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.float32)
        scene = torch.full((len(grid),), scene_index, dtype=torch.int32)
        free = ~field.within(torch.from_numpy(grid), scene, clearance).numpy().reshape(size)
        label, sizes = label_components(free)
        if len(sizes) < 2:
            raise SceneError(f"scene {name!r} has no free space with {clearance} m clearance; is it a closed solid?")
        self.free: npt.NDArray[np.bool_] = label == int(sizes.argmax())
        self.reachable = torch.from_numpy(self.free.any(axis=1))
        level = np.flatnonzero(self.free.any(axis=(0, 2)))
        self.height = np.array([axes[1][level[0]], axes[1][level[-1]]])

    @property
    def area(self) -> float:
        """Reachable floor area [m²]."""
        return float(self.reachable.sum()) * self.cell**2

    def contains(self, points: torch.Tensor) -> torch.Tensor:
        """Return (B,) bool: does each point (B, 3) [m] lie in a reachable voxel?"""
        index = np.floor((points.numpy().astype(np.float64) - self._low) / self.cell).astype(np.int64)
        inside = ((index >= 0) & (index < self.free.shape)).all(axis=1)
        i, j, k = np.clip(index, 0, np.array(self.free.shape) - 1).T
        return torch.from_numpy(inside & self.free[i, j, k])


class FloorView:
    """Which floor cells each row has seen since its stamp changed.

    Args:
        maps: One floor map per scene, all of one cell size.
        rows: Number of rows B.
    """

    def __init__(self, maps: list[FloorMap], rows: int) -> None:
        self.cell = maps[0].cell
        self._origin = np.stack([m.origin for m in maps]).astype(np.float64)
        self._shape = np.array([tuple(m.reachable.shape) for m in maps], np.int64)
        flat = [m.reachable.numpy().reshape(-1) for m in maps]
        self._reachable = np.concatenate(flat)
        self._base = np.concatenate([[0], np.cumsum([len(f) for f in flat])[:-1]]).astype(np.int64)
        self.seen = torch.zeros((rows, max(len(f) for f in flat)), dtype=torch.int32)
        self._rows = np.arange(rows, dtype=np.int64)

    def mark(
        self,
        position: torch.Tensor,
        heading: torch.Tensor,
        reach: torch.Tensor,
        scene_index: torch.Tensor,
        stamp: torch.Tensor,
    ) -> torch.Tensor:
        """Mark what a fan of horizontal rays crosses and return the newly seen area.

        Args:
            position: (B, 3) [m].
            heading: (B, R, 2) horizontal unit directions (x, z).
            reach: (B, R) horizontal length of each ray [m].
            scene_index: (B,).
            stamp: (B,) int, a value per row that changes when its map starts afresh; never 0.

        Returns:
            (B,) float32 newly seen reachable area [m²].
        """
        gain = np.zeros(len(position), np.int32)
        mark_fan(
            np.ascontiguousarray(position[:, [0, 2]].numpy()),
            np.ascontiguousarray(heading.numpy()),
            np.ascontiguousarray(reach.numpy()),
            self._rows,
            stamp.numpy().astype(np.int32),
            scene_index.numpy().astype(np.int32),
            self._origin,
            self._shape,
            self._reachable,
            self._base,
            self.cell,
            self.seen.numpy(),
            gain,
        )
        return torch.from_numpy(gain).to(torch.float32) * self.cell**2

    def fraction(self, scene_index: torch.Tensor, stamp: torch.Tensor) -> torch.Tensor:
        """Return (B,) the share of the reachable floor that each row has seen."""
        seen = (self.seen == stamp[:, None]).sum(dim=1).to(torch.float32)
        total = torch.tensor([self._reachable[b : b + s[0] * s[1]].sum() for b, s in zip(self._base, self._shape)])
        return seen / total[scene_index.long()]
