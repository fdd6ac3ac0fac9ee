"""Frontier exploration pilot: scripted policy that flies to the nearest frontier on its own map (Yamauchi 1997).

It reads observations alone. It draws its own map and estimates its position by dead reckoning: its commands through the
drone's dynamics, corrected by matching scans when it hits something.
"""

from typing import Unpack

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.mapping.occupancy_map import FAR, FREE, HIT, SEEN, VOID, WALL, chart
from navi_core.mapping.search import expand, trace_back
from navi_core.pilots.map_pilot import CELL, SHIELD, MapPilot, MapSettings, follow
from navi_core.pilots.pilot import Scan, with_blocked_cells
from navi_core.world.reckoning import reckon

_BAND = 0.25
"""Surfaces closer than this to the height of flight are in the way [m]."""
_SLIP = 0.1
"""Deviation of an odometry from free flight above which a collision is assumed [m]."""
_WINDOW = 2
"""Half-width of the window in which unseen cells are counted [cells]."""

Floats = npt.NDArray[np.float64]


class FrontierPilot(MapPilot):
    """Frontier exploration (Yamauchi 1997): flies to the nearest frontier by path length, on the map it draws itself.

    A frontier is a cell that has been seen, can be flown to, and has at least `unseen` cells in the 5×5 around it that
    were not seen from within `view_radius`. Where nothing lies beneath is none: what begins beyond the window of a scan
    has no end. When none is left, what was seen is forgotten and the place is explored again.

    Tuning of the defaults, on training scenes of each family, at 64×16, 3 starts; C_vis AUC [%], no collision:

    | replan, lookahead | apartments 0–9, 200 decisions | rooms 16–23, 400 | mazes 0–5, 200 | scans 0–15, 200 |
    |---|---|---|---|---|
    | 2, 2.5 m (before 2026-11-24) | 78.9 | 75.5 | 52.4 | |
    | 1, 2.5 m | 80.1 | 76.6 | 56.4 | 66.3 |
    | 1, 1.5 m | 81.3 | 77.3 | 57.5 | 64.9 |
    | 1, 1.0 m | 82.0 | 78.1 | 60.2 | 68.1 |

    One setting is best in all of them. `unseen` 6 or 14 and `comfort` 0.3 m see up to 3.6 % less.

    Args:
        view_radius: Range within which floor counts as seen [m].
        unseen: Unseen cells that make a frontier, of 25.
        extent: Edge of the map around the start of a flight [m].
        replan: See `MapPilot`; smaller here, for a frontier seen on the way need not be reached.
        lookahead: See `MapPilot`.
        settings: The others of `MapPilot`.
    """

    name = "frontier"
    reckons = True

    def __init__(
        self,
        *,
        view_radius: float = 3.2,
        unseen: int = 10,
        extent: float = 76.8,
        replan: int = 1,
        lookahead: float = 1.0,
        **settings: Unpack[MapSettings],
    ) -> None:
        super().__init__(replan=replan, lookahead=lookahead, **settings)
        self._require(
            unseen=(unseen, 1, (2 * _WINDOW + 1) ** 2),
            extent=(extent, 10.0, 400.0),
            view_radius=(view_radius, 0.2, 12.0),
        )
        self.view_radius, self.unseen, self.extent = view_radius, unseen, extent

    def _allocate(self, batch: int, device: torch.device) -> None:
        super()._allocate(batch, device)
        size = round(self.extent / CELL)
        self._marks = np.zeros((batch, size, size), np.uint8)
        self._near = np.full((batch, size, size), FAR, np.uint8)
        self._box = np.zeros((batch, 4), np.int64)
        self._here = np.zeros((batch, 4))
        self._corner, self._started = np.zeros((batch, 4)), np.zeros(batch, np.bool_)
        self._scan: Scan | None = None

    def _forget(self, rows: Tensor) -> None:
        super()._forget(rows)
        gone = rows.cpu().numpy()
        middle = self._marks.shape[1] // 2
        self._marks[gone] = 0
        self._near[gone] = FAR
        self._box[gone] = middle
        self._here[gone] = 0.0
        self._started[gone] = False

    def _locate(self, scan: Scan, fresh: npt.NDArray[np.bool_]) -> Floats:
        d = self.dynamics
        if self._odometry is not None:
            # The middle of the map is the place of the first estimate.
            begins = ~self._started
            self._corner[begins, :3], self._started[begins] = self._odometry[begins, :3], True
            here = self._odometry - self._corner
            follow(
                self._here, here, self._velocity, self._command, ~fresh, _SLIP, d.steps_per_decision, d.substep,
                d.response,
            )  # fmt: skip
            self._here = here
        elif self._scan is not None:
            before = self._scan
            reckon(
                self._here, self._velocity, self._command, np.where(before.met, before.reach, 0.0),
                np.where(scan.met, scan.reach, 0.0), before.clearance, ~fresh, d.radius, d.steps_per_decision,
                d.substep, d.response,
            )  # fmt: skip
        self._scan = scan
        return self._here

    def _survey(self, scan: Scan, pose: Floats, plane: Floats, settled: npt.NDArray[np.bool_]) -> None:
        chart(
            self._marks, self._near, pose, plane, scan.reach, scan.met, scan.points, scan.valid, settled, self._box,
            CELL, _BAND, self.view_radius,
        )  # fmt: skip

    def _route(self, pose: Floats, due: npt.NDArray[np.bool_]) -> None:
        _plan(
            self._marks, self._near, self._box, pose, due, CELL, self.unseen, self._hard, self.comfort / CELL,
            self._path, self._length, self.done_after == 0,
        )  # fmt: skip

    def _shielded(self, scan: Scan, pose: Floats) -> Scan:
        return with_blocked_cells(scan, self._marks, pose, CELL, SHIELD) if self.limited else scan

    def _grids(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], Floats]:
        rows = len(self._near)
        return self._near, np.arange(rows), np.full((rows, 2), -self._near.shape[1] / 2 * CELL)


@numba.njit(cache=True)
def _frontiers(
    marks: npt.NDArray[np.uint8], near: npt.NDArray[np.uint8], unseen: int, hard: int
) -> npt.NDArray[np.bool_]:
    """Detect the frontier cells (seen, near unseen ones) of an occupancy map; returns a mask (X, Z)."""
    nx, nz = marks.shape
    total = np.zeros((nx + 1, nz + 1), np.int32)
    for i in range(nx):
        line = 0
        for k in range(nz):
            line += 1 if marks[i, k] & (SEEN | HIT | WALL | VOID) == 0 else 0
            total[i + 1, k + 1] = total[i, k + 1] + line
    found = np.zeros((nx, nz), np.bool_)
    w = _WINDOW
    for i in range(w, nx - w):
        for k in range(w, nz - w):
            if marks[i, k] & (SEEN | VOID) == SEEN and near[i, k] >= hard:
                count = total[i + w + 1, k + w + 1] - total[i - w, k + w + 1]
                count += total[i - w, k - w] - total[i + w + 1, k - w]
                found[i, k] = count >= unseen
    return found


@numba.njit(cache=True)
def _plan(
    marks: npt.NDArray[np.uint8],
    near: npt.NDArray[np.uint8],
    box: npt.NDArray[np.int64],
    pose: Floats,
    due: npt.NDArray[np.bool_],
    cell: float,
    unseen: int,
    hard: int,
    soft: float,
    path: npt.NDArray[np.int32],
    length: npt.NDArray[np.int64],
    again: bool,
) -> None:
    """Plan the shortest path to the nearest frontier for the rows that are `due`; without one, explore `again`."""
    size = marks.shape[1]
    for b in range(marks.shape[0]):
        if not due[b]:
            continue
        i0, i1, k0, k1 = box[b, 0], box[b, 1] + 1, box[b, 2], box[b, 3] + 1
        drawn, gap = marks[b, i0:i1, k0:k1], near[b, i0:i1, k0:k1]
        i = int(pose[b, 0] / cell + size / 2.0) - i0
        k = int(pose[b, 2] / cell + size / 2.0) - k0
        cost = np.empty(drawn.shape, np.float32)
        parent = np.empty(drawn.shape, np.int32)
        passable = (drawn & FREE) != 0
        goal = expand(passable, gap, _frontiers(drawn, gap, unseen, hard), i, k, hard, soft, True, cost, parent)
        length[b] = trace_back(parent, goal, path[b], size, i0, k0) if goal >= 0 else 0
        if goal < 0 and again:
            drawn[:] = drawn & ~SEEN
