"""Slow twins of frontier and shortest path search on an occupancy map."""

from __future__ import annotations

import heapq

import numpy as np

from navi_core.config.policy import RINGS, SECTORS
from navi_core.mapping.frontier_features import EDGE, NOWHERE, OUTSIDE, UNREACHED, UNSEEN, path_costs
from navi_core.mapping.occupancy_map import FREE, SEEN, VOID, WALL

BOTH = FREE | SEEN
CELL, SIGHT = 0.4, 6.4
COUNTS, BEARINGS = 2 * SECTORS, 2 * SECTORS + SECTORS * len(RINGS)
UNWRITTEN = -7
NEIGHBOURS = [(di, dk) for di in (-1, 0, 1) for dk in (-1, 0, 1) if di or dk]


def scratch_of(size):
    way = np.full((size, size), UNWRITTEN, np.int32)
    return way, np.zeros((16, size * size), np.int32), np.zeros(16, np.int64), np.zeros((size, size), np.uint8)


def measured(marks, box=None, rule=UNSEEN, goal=NOWHERE, here=NOWHERE):
    way, queue, fill, factor = scratch_of(len(marks))
    box = np.array([0, len(marks) - 1, 0, len(marks) - 1] if box is None else box, np.int64)
    path_costs(marks, box, rule, way, queue, fill, factor, goal, here)
    return way


def around(cells, window):
    """Count marked cells in a window around each."""
    padded, span = np.pad(cells, window).astype(int), range(2 * window + 1)
    return sum(padded[a : a + len(cells), b : b + len(cells)] for a in span for b in span)


def frontier_of(marks, rule):
    is_open = (marks & (FREE | WALL)) == FREE
    unseen, inside = is_open & ((marks & SEEN) == 0), (marks & VOID) == 0
    if rule == OUTSIDE:
        return unseen & (around(unseen, 2) >= 15)
    unseen &= inside
    if rule == EDGE:
        unknown = (marks & (FREE | WALL)) == 0
        beside = np.zeros_like(unknown)
        beside[1:-1, 1:-1] = unknown[:-2, 1:-1] | unknown[2:, 1:-1] | unknown[1:-1, :-2] | unknown[1:-1, 2:]
        return is_open & inside & beside & (around(unknown, 2) >= 8)
    return unseen & (around(unseen, 2) >= 15 if rule == UNSEEN else around(unseen, 1) >= 4)


def slow_ways(marks, rule=UNSEEN, goal=None):
    """Dijkstra from the frontier over open cells, or from a goal over all but walls; a cell costs when it is left."""
    known, size = (marks & (FREE | WALL)) == FREE, len(marks)
    free = known if goal is None else (marks & WALL) == 0

    def is_free(i, k):
        return 0 <= i < size and 0 <= k < size and bool(free[i, k])

    def is_known(i, k):
        return 0 <= i < size and 0 <= k < size and bool(known[i, k])

    found = frontier_of(marks, rule)
    if goal is not None:
        found = np.zeros_like(known)
        found[goal] = True
    way = np.full(marks.shape, UNREACHED)
    way[found] = 0
    heap = [(0, int(i), int(k)) for i, k in np.argwhere(found)]
    while heap:
        now, i, k = heapq.heappop(heap)
        if now > way[i, k]:
            continue
        for di, dk in NEIGHBOURS:
            ni, nk = i + di, k + dk
            if not is_free(ni, nk) or (di and dk and not (is_free(ni, k) and is_free(i, nk))):
                continue
            clear = all(is_known(ni + a, nk + b) for a, b in ((1, 0), (-1, 0), (0, 1), (0, -1)))
            there = now + (7 if di and dk else 5) * (1 if clear else 2)
            if there < way[ni, nk]:
                way[ni, nk] = there
                heapq.heappush(heap, (there, ni, nk))
    return way
