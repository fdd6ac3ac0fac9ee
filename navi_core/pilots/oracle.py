"""Long-horizon oracle: privileged pilot that flies its candidates in a model to the end of the flight first.

It shows how far the greedy planner is from what is possible with the true map; it is too slow for anything else.
"""

import heapq
from typing import Unpack
from weakref import WeakKeyDictionary

import numba
import numpy as np
import numpy.typing as npt
import torch

from navi_core.mapping.search import expand
from navi_core.pilots.map_pilot import CELL
from navi_core.pilots.planner import PlannerPilot, PlannerSettings, Slice

PATIENCES = (0.3, 1.0, 3.0, 8.0)
"""Patience of the rules that name candidates [m]."""
_RULES = np.array([0.5, 1.0, 3.0])
"""Patience of the greedy rules that fly on from a candidate [m]."""
_LINK = 10
"""Cells along an axis within which viewpoints are linked."""
_PACE = 0.86
"""Share of the top speed that flights along ways have on average: 0.43 m of 0.5 m a decision."""
_LEAST_GAIN = 3
"""Unseen cells for which a viewpoint is worth a flight."""
_LEAST_DECISIONS = 20
"""Least decisions ahead that are planned for, at the end of a flight and beyond it."""

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Graph:
    """Ways between the viewpoints of a planning map.

    Args:
        one: Planning map.
        hard: Squared distance to surfaces below which a cell is not entered [cells²].
        soft: Distance to surfaces up to which closeness costs [cells].

    Attributes:
        way: (V, V) cost of the way between two viewpoints [cells]; infinite where no links lead there.
        before: (V, V) viewpoint before the second on the way from the first; −1 for none.
        seer_start: (X·Z + 1,) where each floor cell's list begins in `seers`.
        seers: Viewpoints that see the cells.
    """

    def __init__(self, one: Slice, hard: int, soft: float) -> None:
        links, start = _links(one.passable, one.near, one.viewpoints, hard, soft)
        count = len(one.viewpoints)
        self.way, self.before = np.empty((count, count), np.float32), np.empty((count, count), np.int32)
        _all_ways(start, links[:, 0].astype(np.int32), links[:, 1].astype(np.float32), self.way, self.before)
        order = np.argsort(one.view_cells, kind="stable")
        owners = np.repeat(np.arange(count, dtype=np.int32), np.diff(one.view_start))
        self.seers = owners[order]
        self.seer_start = np.zeros(one.passable.size + 1, np.int64)
        np.cumsum(np.bincount(one.view_cells, minlength=one.passable.size), out=self.seer_start[1:])


class OraclePilot(PlannerPilot):
    """Planner that looks ahead to the end of the flight: its choices are the best of many flights in a model.

    The model is a graph of the planner's viewpoints. Whenever the way is due, about `candidates` viewpoints, the best
    by unseen floor per way at four patiences, are each flown to and on to the horizon by the greedy rule at three
    patiences. The one whose flight has the largest area under its coverage curve is taken. As the planner it looks all
    around, whatever the sensor, and it is no bound either: its flights in the model are greedy.

    `replan` was chosen on the validation floors rooms 201, 203 and 205, 2 starts, 200 decisions at 64×16: C_vis AUC
    68.2, 67.1, 66.1 % for 2, 3, 5 decisions (planner 64.7 %). Longer intervals let it wait at its stops.

    Args:
        candidates: Viewpoints that are flown in the model whenever the way is due.
        replan: See `MapPilot`.
        settings: Those of `PlannerPilot`.
    """

    name = "oracle"
    inputs = "true map and pose, length of the flight"

    def __init__(self, *, candidates: int = 30, replan: int = 2, **settings: Unpack[PlannerSettings]) -> None:
        super().__init__(replan=replan, **settings)
        self._require(candidates=(candidates, 1, 1000))
        self.candidates = candidates
        self._graphs: WeakKeyDictionary[Slice, Graph] = WeakKeyDictionary()

    def _allocate(self, batch: int, device: torch.device) -> None:
        super()._allocate(batch, device)
        self._stop = np.full(batch, -1, np.int64)

    def _forget(self, rows: torch.Tensor) -> None:
        super()._forget(rows)
        self._stop[rows.cpu().numpy()] = -1

    def _best_view(self, b: int, one: Slice, seen: npt.NDArray[np.bool_], cost: Floats, here: int) -> int:
        if one not in self._graphs:
            self._graphs[one] = Graph(one, self._hard, self.comfort / CELL)
        graph, ways = self._graphs[one], cost.reshape(-1)[one.viewpoints]
        known = seen.reshape(-1).copy()
        gain = _gains(one.view_start, one.view_cells, known)
        chosen = _candidates(gain, ways, graph.way, one.viewpoints == here, self.candidates, int(self._stop[b]))
        if not len(chosen):
            return super()._best_view(b, one, seen, cost, here)
        nearest = int(ways.argmin())
        d = self.dynamics
        left = max(self.horizon - int(self._step[b]), _LEAST_DECISIONS)
        length = left * _PACE * d.max_speed[0] * d.decision_seconds / CELL
        best = _fly_model(
            chosen, nearest, float(ways[nearest]), length, _RULES / CELL, gain, known, graph.way, graph.before,
            one.view_start, one.view_cells, graph.seer_start, graph.seers,
        )  # fmt: skip
        self._stop[b] = best
        return int(one.viewpoints[best])


@numba.njit(cache=True)
def _links(
    passable: npt.NDArray[np.bool_], near: npt.NDArray[np.uint8], viewpoints: Ints, hard: int, soft: float
) -> tuple[npt.NDArray[np.float64], Longs]:
    """Search the ways from each viewpoint to those within `_LINK` cells: (N, 2) other end, cost; starts (V + 1,)."""
    nx, nz = passable.shape
    number = np.full((nx, nz), -1, np.int32)
    for v in range(len(viewpoints)):
        number[viewpoints[v] // nz, viewpoints[v] % nz] = v
    found = [(0.0, 0.0)]
    start = np.zeros(len(viewpoints) + 1, np.int64)
    for v in range(len(viewpoints)):
        i, k = viewpoints[v] // nz, viewpoints[v] % nz
        low_i, low_k = max(0, i - _LINK), max(0, k - _LINK)
        free = passable[low_i : i + _LINK + 1, low_k : k + _LINK + 1].copy()
        gaps = near[low_i : i + _LINK + 1, low_k : k + _LINK + 1].copy()
        cost, parent = np.empty(free.shape, np.float32), np.empty(free.shape, np.int32)
        expand(free, gaps, np.zeros(free.shape, np.bool_), i - low_i, k - low_k, hard, soft, False, cost, parent)
        for n in range(free.shape[0]):
            for m in range(free.shape[1]):
                other = number[low_i + n, low_k + m]
                if other >= 0 and other != v and cost[n, m] < np.inf:
                    found.append((np.float64(other), np.float64(cost[n, m])))
        start[v + 1] = len(found) - 1
    links = np.empty((len(found) - 1, 2))
    for n in range(len(links)):
        links[n, 0], links[n, 1] = found[n + 1]
    return links, start


@numba.njit(cache=True)
def _all_ways(start: Longs, other: Ints, length: Floats, way: Floats, before: Ints) -> None:
    """Run Dijkstra's search from every viewpoint along its links; see `Graph`."""
    way[:] = np.inf
    before[:] = -1
    for source in range(len(way)):
        reached, last = way[source], before[source]
        reached[source] = 0.0
        queue = [(np.float32(0.0), np.int32(source))]
        while len(queue) > 0:
            cost, v = heapq.heappop(queue)
            if cost > reached[v]:
                continue
            for n in range(start[v], start[v + 1]):
                total = np.float32(cost + length[n])
                if total < reached[other[n]]:
                    reached[other[n]], last[other[n]] = total, v
                    heapq.heappush(queue, (total, other[n]))


@numba.njit(cache=True)
def _gains(view_start: Longs, view_cells: Ints, seen: npt.NDArray[np.bool_]) -> Ints:
    """Count the unseen cells of each viewpoint."""
    gain = np.zeros(len(view_start) - 1, np.int32)
    for v in range(len(gain)):
        for n in range(view_start[v], view_start[v + 1]):
            gain[v] += not seen[view_cells[n]]
    return gain


def _candidates(gain: Ints, ways: Floats, way: Floats, here: npt.NDArray[np.bool_], most: int, stop: int) -> Longs:
    """Select candidates: the last choice, and the best by gain per way at each patience, apart from each other."""
    chosen: list[int] = []
    able = (gain >= _LEAST_GAIN) & np.isfinite(ways) & ~here
    if 0 <= stop < len(able) and able[stop]:
        chosen.append(stop)
    for patience in PATIENCES:
        value = np.where(able, gain / (np.where(able, ways, 0.0) + patience / CELL), 0.0)
        for v in chosen:
            value[way[v] < _LINK] = 0.0
        for _ in range(-(-most // len(PATIENCES))):
            v = int(value.argmax())
            if value[v] <= 0.0:
                break
            chosen.append(v)
            value[way[v] < _LINK] = 0.0
    return np.array(chosen, np.int64)


@numba.njit(cache=True)
def _look_around(cells: Ints, known: npt.NDArray[np.bool_], left: Ints, seer_start: Longs, seers: Ints) -> int:
    """Mark cells as known, and take new ones from the gains `left` of all viewpoints that see them; return how many."""
    found = 0
    for cell in cells:
        if not known[cell]:
            known[cell] = True
            found += 1
            for m in range(seer_start[cell], seer_start[cell + 1]):
                left[seers[m]] -= 1
    return found


@numba.njit(cache=True)
def _greedy(at: int, left: Ints, way: Floats, patience: float) -> int:
    """Select the other viewpoint with most unseen cells per way; −1 for none."""
    goal, most = -1, 0.0
    for v in range(len(left)):
        value = left[v] / (way[at, v] + patience)
        if left[v] >= _LEAST_GAIN and value > most and v != at:
            goal, most = v, value
    return goal


@numba.njit(cache=True)
def _fly_model(
    candidates: Longs,
    begin: int,
    first: float,
    length: float,
    patiences: npt.NDArray[np.float64],
    gain: Ints,
    seen: npt.NDArray[np.bool_],
    way: Floats,
    before: Ints,
    view_start: Longs,
    view_cells: Ints,
    seer_start: Longs,
    seers: Ints,
) -> int:
    """Return the candidate whose best flight in the model sees most floor for the longest part of the way.

    Args:
        candidates: Viewpoints to try first.
        begin: Viewpoint at which the flights begin.
        first: Way to it [cells].
        length: Way to the end of the flight [cells].
        patiences: Patience of the greedy rules [cells].
        gain: (V,) unseen cells of the viewpoints.
        seen: (X·Z,) cells that are seen.
        way: See `Graph`.
        before: See `Graph`.
        view_start: See `Slice`.
        view_cells: See `Slice`.
        seer_start: See `Graph`.
        seers: See `Graph`.
    """
    best, chosen = -1.0, candidates[0]
    for c in range(len(candidates)):
        for p in range(len(patiences)):
            left, known = gain.copy(), seen.copy()
            at, flown, score, goal = begin, first, 0.0, int(candidates[c])
            while goal >= 0 and flown < length and way[goal, at] < np.inf:
                while at != goal and flown < length:
                    beyond = before[goal, at]
                    flown += way[goal, at] - way[goal, beyond]
                    at = beyond
                    found = _look_around(
                        view_cells[view_start[at] : view_start[at + 1]], known, left, seer_start, seers
                    )
                    score += found * max(length - flown, 0.0)
                goal = _greedy(at, left, way, patiences[p])
            if score > best:
                best, chosen = score, candidates[c]
    return int(chosen)
