"""Privileged planner: pilot with the true map and pose that flies to the next best view.

A real drone could not use it; it shows what is possible, and serves as a teacher.
"""

import math
from typing import Unpack

import numba
import numpy as np
import numpy.typing as npt
import torch

from navi_core.errors import ConfigError
from navi_core.mapping.occupancy_map import FAR
from navi_core.mapping.search import expand, trace_back
from navi_core.pilots.map_pilot import CELL, MapPilot, MapSettings, follow
from navi_core.pilots.pilot import Pose, Scan
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap
from navi_core.world.floor.rooms import storey_of

LEVEL = 0.1
"""Height resolution of the planning maps [m]."""
_VIEW_FAN = 128
_SPACING = 5
"""Cells between two viewpoints along an axis."""
_FAN = 256
_LEAST_CELLS = 50
"""Least number of unseen cells for which another storey is visited."""
_MOVED = 1e-3
"""Deviation from the end of free flight above which a collision is assumed [m]."""

Floats = npt.NDArray[np.float64]


@numba.njit(inline="always")
def cell_ahead(x: float, z: float, dx: float, dz: float, halves: int, nx: int, nz: int) -> int:
    """Return the flat index of the cell `halves` half-cells along (dx, dz) from (x, z) [cells]; -1 outside the grid."""
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
    """Build the viewpoints' visibility lists of floor cells (CSR) by ray marching; first pass counts, second writes.

    Args:
        place: (V, 2) viewpoints [cells].
        fan: (R, 2) directions.
        reach: (V, R) lengths [cells].
        reachable: (X, Z) floor that counts.
        start: (V + 1,) written without `write`: place of each list.
        cells: (n,) flat indices, written with `write`.
        write: Whether this is the second pass.
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
    """Planning map of a scene at one height of flight: passable cells, clearance, viewpoints and what they see.

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
        angle = 2.0 * math.pi * np.arange(_VIEW_FAN) / _VIEW_FAN
        fan = np.stack([np.sin(angle), -np.cos(angle)], axis=1)
        rays = torch.zeros(_VIEW_FAN, 3)
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


class PlannerSettings(MapSettings, total=False):
    """Keyword settings of `PlannerPilot` that the oracle shares."""

    view_radius: float
    patience: float
    lookahead: float


class PlannerPilot(MapPilot):
    """Next-best-view planner on the true map: flies to the viewpoint with most unseen floor per metre of path.

    Viewpoints lie on a lattice of 0.5 m. The gain of one is the unseen floor within `view_radius` and line of sight of
    it, on the storey that is flown; its price the length of the way plus `patience`. When a storey is seen, it flies to
    another through the nearest column that is free between the two heights; when everything is seen, or nothing else
    can be reached, it is forgotten and explored again. A pose that names a goal is flown to by the shortest way.

    Tuning of the defaults, on training scenes alone: one setting at a time on generated apartments 0–3, 3 starts, 200
    decisions at 64×16. C_vis AUC 85, 86, 86, 85 % for `patience` 0.3, 1, 3, 8 m; 86, 86, 85 % for `replan` 3, 5, 10. No
    collision.

    Args:
        view_radius: Range within which floor counts as seen [m].
        patience: Constant added to every path length [m]; small values prefer near viewpoints, large ones high gains.
        replan: See `MapPilot`.
        lookahead: See `MapPilot`.
        settings: The others of `MapPilot`.
    """

    name = "planner"
    privileged = True
    inputs = "true map and pose"
    _pose: Pose

    def __init__(
        self,
        *,
        view_radius: float = 3.2,
        patience: float = 1.0,
        replan: int = 5,
        lookahead: float = 2.5,
        **settings: Unpack[MapSettings],
    ) -> None:
        super().__init__(replan=replan, lookahead=lookahead, **settings)
        self._require(view_radius=(view_radius, 0.2, 100.0), patience=(patience, 1e-6, 1000.0))
        self.view_radius, self.patience = view_radius, patience
        self._field: Field | None = None

    def attach(self, field: Field) -> None:
        """Attach the scenes that poses index; maps of other scenes are dropped."""
        if field is not self._field:
            self._field = field
            self._floors: dict[int, FloorMap] = {}
            self._shafts: dict[tuple[int, int, int], npt.NDArray[np.bool_]] = {}
            self._numbers: dict[tuple[int, int], int] = {}
            self._slices: list[Slice] = []
            self._near = np.zeros((0, 1, 1), np.uint8)

    def _allocate(self, batch: int, device: torch.device) -> None:
        super()._allocate(batch, device)
        self._grid = np.zeros(batch, np.int64)
        self._corner = np.zeros((batch, 2))
        self._seen = np.zeros((batch, 1, 1, 1), np.bool_)
        self._here = np.zeros((batch, 4))

    def _locate(self, scan: Scan, fresh: npt.NDArray[np.bool_]) -> Floats:  # noqa: ARG002 (the interface's arguments)
        if self._field is None:
            raise ConfigError("the planner needs the scenes: call attach(field) before act")
        d = self.dynamics
        pose = np.concatenate([self._pose.position.numpy(), self._pose.yaw.numpy()[:, None]], axis=1).astype(np.float64)
        follow(
            self._here, pose, self._velocity, self._command, ~fresh, _MOVED, d.steps_per_decision, d.substep,
            d.response,
        )  # fmt: skip
        self._here = pose
        return pose

    def _survey(self, scan: Scan, pose: Floats, plane: Floats, settled: npt.NDArray[np.bool_]) -> None:  # noqa: ARG002 (the interface's arguments)
        assert self._field is not None
        scene = self._pose.scene_index
        wanted = np.round(plane / LEVEL).astype(np.int64)
        keys = np.stack([scene.numpy(), wanted], axis=1)
        self._prepare(self._field, keys)
        grid = np.array([self._numbers[int(s), int(level)] for s, level in keys], np.int64)
        # Another height is another map: what was seen belongs to the floor and stays.
        self._grid = grid
        self._corner = np.stack([self._floors[int(s)].origin for s in keys[:, 0]])
        begins = self._step.cpu().numpy() == 0
        self._seen[begins] = False
        here = [int(storey_of(pose[b, 1:2], self._floors[int(s)].levels)[0]) for b, s in enumerate(keys[:, 0])]
        turn = torch.arange(_FAN, dtype=torch.float64) * (2.0 * math.pi / _FAN)
        rays = torch.stack([turn.sin(), torch.zeros_like(turn), -turn.cos()], dim=1).to(torch.float32)
        reach = self._field.cast_rays(self._pose.position, rays, scene, self.view_radius).depth
        lengths = reach.clamp(max=self.view_radius).numpy().astype(np.float64)
        # The rays are cast from the present pose, however late the scans are.
        _look(self._seen, np.array(here, np.int64), self._here, self._corner, lengths, CELL)

    def _prepare(self, field: Field, keys: npt.NDArray[np.int64]) -> None:
        """Build the planning maps (slices) that are missing, and pad all grids to one size."""
        for scene, level in np.unique(keys, axis=0).tolist():
            if (scene, level) in self._numbers:
                continue
            keep = self.dynamics.radius + self.margin
            if scene not in self._floors:
                self._floors[scene] = FloorMap(
                    field, scene, CELL, self.dynamics.radius + 0.05, self.dynamics.height_limit
                )
            self._numbers[scene, level] = len(self._slices)
            self._slices.append(Slice(field, scene, self._floors[scene], level * LEVEL, keep, self.view_radius))
            nx = max(s.near.shape[0] for s in self._slices)
            nz = max(s.near.shape[1] for s in self._slices)
            self._near = np.zeros((len(self._slices), nx, nz), np.uint8)
            for number, one in enumerate(self._slices):
                self._near[number, : one.near.shape[0], : one.near.shape[1]] = one.near
            storeys = max(len(floor.levels) for floor in self._floors.values())
            if self._seen.shape[1:] != (storeys, nx, nz):
                grown = np.zeros((len(self._seen), storeys, nx, nz), np.bool_)
                grown[tuple(slice(length) for length in self._seen.shape)] = self._seen
                self._seen = grown
                # Flat indices of paths mean other cells now.
                self._length[:] = 0

    def _route(self, pose: Floats, due: npt.NDArray[np.bool_]) -> None:
        for b in np.flatnonzero(due).tolist():
            one = self._slices[self._grid[b]]
            i = int((pose[b, 0] - self._corner[b, 0]) / CELL)
            k = int((pose[b, 2] - self._corner[b, 1]) / CELL)
            nx, nz = one.passable.shape
            cost, parent = np.empty((nx, nz), np.float32), np.empty((nx, nz), np.int32)
            expand(
                one.passable, one.near, np.zeros_like(one.passable), i, k, self._hard, self.comfort / CELL, False, cost,
                parent,
            )  # fmt: skip
            seen = self._seen[b, one.storey, :nx, :nz]
            if self._pose.goal is not None:
                goal = self._goal_cell(self._pose.goal[b], b, cost)
            else:
                goal = self._best_view(b, one, seen, cost, i * nz + k)
                goal = self._leave(b, one, pose[b], cost) if goal < 0 else goal
            self._length[b] = trace_back(parent, goal, self._path[b], self._near.shape[2]) if goal >= 0 else 0

    def _best_view(
        self,
        b: int,  # noqa: ARG002 (the oracle needs it)
        one: Slice,
        seen: npt.NDArray[np.bool_],
        cost: npt.NDArray[np.float32],
        here: int,
    ) -> int:
        """Select the next best view of row b: flat index of the viewpoint, −1 where nothing worth a flight is left.

        Cells that a viewpoint promises in vain to a row in its cell count as seen; otherwise the row would stay.
        """
        views = one.viewpoints, one.view_start, one.view_cells
        goal = _best_view(*views, seen, cost, self.patience / CELL)
        if goal == here:
            v = int(np.searchsorted(one.viewpoints, here))
            cells = one.view_cells[one.view_start[v] : one.view_start[v + 1]]
            seen[cells // seen.shape[1], cells % seen.shape[1]] = True
            goal = _best_view(*views, seen, cost, self.patience / CELL)
        return goal

    def _goal_cell(self, target: torch.Tensor, b: int, cost: npt.NDArray[np.float32]) -> int:
        """Return the flyable cell nearest to a target (3,) [m], −1 if the row is there already."""
        wanted = (target.numpy()[[0, 2]].astype(np.float64) - self._corner[b]) / CELL - 0.5
        i, k = np.meshgrid(*(np.arange(n) for n in cost.shape), indexing="ij")
        away = np.where(np.isfinite(cost), (i - wanted[0]) ** 2 + (k - wanted[1]) ** 2, np.inf)
        goal = int(away.argmin())
        return -1 if cost.reshape(-1)[goal] == 0.0 else goal

    def _climb(self, scan: Scan) -> Floats:
        if self._pose.goal is None:
            return super()._climb(scan)
        return (self._pose.goal[:, 1] - self._pose.position[:, 1]).numpy().astype(np.float64)

    def _leave(self, b: int, one: Slice, pose: Floats, cost: npt.NDArray[np.float32]) -> int:
        """Select the goal cell for changing to a storey with unseen floor, −1 where there is none.

        A row that is there begins to change its height. Where nothing is left, what was seen is forgotten, unless the
        flight ends with it.
        """
        scene = int(self._pose.scene_index[b])
        floor, (nx, nz) = self._floors[scene], one.passable.shape
        best, goal, wanted = np.inf, -1, 0.0
        for storey in range(len(floor.levels)):
            if storey == one.storey or (floor.storeys[storey] & ~self._seen[b, storey, :nx, :nz]).sum() < _LEAST_CELLS:
                continue
            # A storey begins a clearance above its floor.
            height = floor.levels[storey] - self.dynamics.radius - 0.05 + self.cruise_height
            way = np.where(self._shaft(scene, floor, self._plane[b], height) & one.passable, cost, np.inf)
            if way.min() < best:
                best, goal, wanted = float(way.min()), int(way.argmin()), float(height)
        if goal < 0:
            self._seen[b] &= self.done_after > 0
        elif best == 0.0:
            self._fly_to_height(b, wanted, pose[1])
            return -1
        return goal

    def _shaft(self, scene: int, floor: FloorMap, height: float, other: float) -> npt.NDArray[np.bool_]:
        """Mask the columns (X, Z) that are free between two heights [m], for changing storeys."""
        low = float(floor.height[0])
        ends = sorted(int(np.clip(round((h - low) / floor.cell), 0, None)) for h in (height, other))
        first = int(np.flatnonzero(floor.free.any(axis=(0, 2)))[0])
        key = (scene, ends[0], ends[1])
        if key not in self._shafts:
            self._shafts[key] = np.asarray(floor.free[:, first + ends[0] : first + ends[1] + 1].all(axis=1))
        return self._shafts[key]

    def _grids(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], Floats]:
        return self._near, self._grid, self._corner


@numba.njit(cache=True)
def _look(
    seen: npt.NDArray[np.bool_],
    storey: npt.NDArray[np.int64],
    pose: Floats,
    corner: Floats,
    reach: Floats,
    cell: float,
) -> None:
    """Update coverage maps `seen` (B, S, X, Z): mark the cells of each row's storey in its level ray fan (B, R) [m]."""
    nx, nz, rays = seen.shape[2], seen.shape[3], reach.shape[1]
    for b in range(seen.shape[0]):
        x, z = (pose[b, 0] - corner[b, 0]) / cell, (pose[b, 2] - corner[b, 1]) / cell
        for r in range(rays):
            angle = 2.0 * math.pi * r / rays
            dx, dz = math.sin(angle), -math.cos(angle)
            for n in range(int(reach[b, r] / cell * 2.0) + 1):
                at = cell_ahead(x, z, dx, dz, n, nx, nz)
                if at >= 0:
                    seen[b, storey[b], at // nz, at % nz] = True


@numba.njit(cache=True)
def _best_view(
    viewpoints: npt.NDArray[np.int32],
    view_start: npt.NDArray[np.int64],
    view_cells: npt.NDArray[np.int32],
    seen: npt.NDArray[np.bool_],
    cost: npt.NDArray[np.float32],
    patience: float,
) -> int:
    """Select the next best view: flat index of the viewpoint, −1 where nothing worth a flight is left."""
    nz = cost.shape[1]
    best, chosen = 0.0, -1
    for v in range(viewpoints.shape[0]):
        price = cost[viewpoints[v] // nz, viewpoints[v] % nz]
        if price == np.inf:
            continue
        gain = 0
        for n in range(view_start[v], view_start[v + 1]):
            gain += not seen[view_cells[n] // nz, view_cells[n] % nz]
        # A handful of cells in a corner is not worth a flight.
        if gain >= 3 and gain / (price + patience) > best:
            best, chosen = gain / (price + patience), viewpoints[v]
    return chosen
