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
Words = npt.NDArray[np.uint64]


class Graph:
    """Ways between the viewpoints of a planning map.

    Args:
        one: Planning map.
        hard: Squared distance to surfaces below which a cell is not entered [cells²].
        soft: Distance to surfaces up to which closeness costs [cells].

    Attributes:
        way: (V, V) cost of the way between two viewpoints [cells]; infinite where no links lead there.
        before: (V, V) viewpoint before the second on the way from the first; −1 for none.
        near: (V, V) the viewpoints in the order of the way to them.
        start: (V + 1,) where each viewpoint's list begins in `words` and `masks`.
        words: Words of 64 floor cells of which the viewpoints see some.
        masks: Bits of the cells that they see there.
    """

    def __init__(self, one: Slice, hard: int, soft: float) -> None:
        links, start = _links(one.passable, one.near, one.viewpoints, hard, soft)
        count = len(one.viewpoints)
        self.way = np.empty((count, count), np.float32)
        self.before, self.near = np.empty((count, count), np.int32), np.empty((count, count), np.int32)
        other, length = links[:, 0].astype(np.int32), links[:, 1].astype(np.float32)
        _all_ways(start, other, length, self.way, self.before, self.near)
        self.start, self.words, self.masks = _pack_views(one.view_start, one.view_cells)


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
        known = _pack_cells(seen)
        gain = _gains(known, graph.start, graph.words, graph.masks)
        chosen = _candidates(gain, ways, graph.way, one.viewpoints == here, self.candidates, int(self._stop[b]))
        if not len(chosen):
            return super()._best_view(b, one, seen, cost, here)
        nearest = int(ways.argmin())
        d = self.dynamics
        left = max(self.horizon - int(self._step[b]), _LEAST_DECISIONS)
        length = left * _PACE * d.max_speed[0] * d.decision_seconds / CELL
        best = _fly_model(
            chosen, nearest, float(ways[nearest]), length, _RULES / CELL, gain, known, graph.way, graph.before,
            graph.near, graph.start, graph.words, graph.masks,
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
def _all_ways(start: Longs, other: Ints, length: Floats, way: Floats, before: Ints, near: Ints) -> None:
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
        near[source] = np.argsort(reached)


def _pack_cells(seen: npt.NDArray[np.bool_]) -> Words:
    """Return the cells of a grid (X, Z) as bits, 64 to a word (⌈X·Z / 64⌉,)."""
    packed = np.zeros(-(-seen.size // 64) * 8, np.uint8)
    packed[: -(-seen.size // 8)] = np.packbits(seen, bitorder="little")
    return packed.view(np.uint64)


@numba.njit(cache=True)
def _pack_views(view_start: Longs, view_cells: Ints) -> tuple[Longs, Ints, Words]:
    """Return the cells that the viewpoints see as bits: `start`, `words` and `masks` of a `Graph`."""
    start = np.zeros(len(view_start), np.int64)
    words, masks = np.empty(len(view_cells), np.int32), np.empty(len(view_cells), np.uint64)
    total = 0
    for v in range(len(view_start) - 1):
        for cell in np.sort(view_cells[view_start[v] : view_start[v + 1]]):
            if total == start[v] or words[total - 1] != cell // 64:
                words[total], masks[total] = cell // 64, 0
                total += 1
            masks[total - 1] |= np.uint64(1) << np.uint64(cell % 64)
        start[v + 1] = total
    return start, words[:total].copy(), masks[:total].copy()


@numba.njit(cache=True)
def _count_bits(word: np.uint64) -> int:
    """Count the set bits of a word: of each pair of bits, four, eight, and all eight bytes by the product."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@numba.njit(cache=True)
def _unseen(v: int, known: Words, start: Longs, words: Ints, masks: Words) -> int:
    """Count the unseen cells of a viewpoint."""
    count = 0
    for n in range(start[v], start[v + 1]):
        count += _count_bits(masks[n] & ~known[words[n]])
    return count


@numba.njit(cache=True)
def _gains(known: Words, start: Longs, words: Ints, masks: Words) -> Ints:
    """Count the unseen cells of each viewpoint."""
    gain = np.empty(len(start) - 1, np.int32)
    for v in range(len(gain)):
        gain[v] = _unseen(v, known, start, words, masks)
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
def _greedy(
    at: int, gain: Ints, known: Words, way: Floats, near: Ints, patience: float, start: Longs, words: Ints, masks: Words
) -> int:
    """Select the other viewpoint with most unseen cells per way, the first of equals; −1 for none.

    Gains only fall while a flight lasts. So those counted before are bounds: only a viewpoint whose bound could win is
    counted again, and the search ends where no gain could make up for the way.

    Args:
        at: Where the flight is.
        gain: (V,) bounds; written.
        known: Cells that are seen, as bits.
        way: See `Graph`.
        near: See `Graph`.
        patience: Patience of the rule [cells].
        start: See `Graph`.
        words: See `Graph`.
        masks: See `Graph`.
    """
    goal, most, most_gain = -1, 0.0, gain.max()
    for v in near[at]:
        price = way[at, v] + patience
        if most_gain / price < most:
            break
        if v == at or gain[v] / price < most:
            continue
        gain[v] = _unseen(v, known, start, words, masks)
        value = gain[v] / price
        if gain[v] >= _LEAST_GAIN and (value > most or (value == most and v < goal)):
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
    seen: Words,
    way: Floats,
    before: Ints,
    near: Ints,
    start: Longs,
    words: Ints,
    masks: Words,
) -> int:
    """Return the candidate whose best flight in the model sees most floor for the longest part of the way.

    Args:
        candidates: Viewpoints to try first.
        begin: Viewpoint at which the flights begin.
        first: Way to it [cells].
        length: Way to the end of the flight [cells].
        patiences: Patience of the greedy rules [cells].
        gain: (V,) unseen cells of the viewpoints.
        seen: Cells that are seen, as bits.
        way: See `Graph`.
        before: See `Graph`.
        near: See `Graph`.
        start: See `Graph`.
        words: See `Graph`.
        masks: See `Graph`.
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
                    found = 0
                    for n in range(start[at], start[at + 1]):
                        found += _count_bits(masks[n] & ~known[words[n]])
                        known[words[n]] |= masks[n]
                    score += found * max(length - flown, 0.0)
                goal = _greedy(at, left, known, way, near, patiences[p], start, words, masks)
            if score > best:
                best, chosen = score, candidates[c]
    return int(chosen)
