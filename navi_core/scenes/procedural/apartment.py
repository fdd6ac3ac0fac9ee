"""Family `apartment`: one storey of 80–125 m², 4–8 furnished rooms, usually with a corridor."""

import itertools

import numpy as np

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.furnishing import furnish_plan
from navi_core.scenes.procedural.structure import (
    Plan,
    Rect,
    Room,
    build_fabric,
    connect_rooms,
    draw_footprint,
    split_rect,
    split_row,
)

CEILING = 2.6
"""Height of the ceiling [m]."""


def build_apartment(rng: np.random.Generator) -> MeshBuilder:
    """Build an apartment: a partition of the footprint into rooms, doors, windows and furniture."""
    width, depth = draw_footprint(rng, rng.uniform(80, 125), 1.9)
    plan = Plan(width, depth, CEILING, thickness=round(rng.uniform(0.1, 0.18), 3))
    rects = _partition(rng, width, depth)
    kinds = _kinds(rng, rects)
    plan.rooms = [Room(rect, kind, CEILING) for rect, kind in zip(rects, kinds, strict=True)]
    connect_rooms(rng, plan, loops=rng.uniform(0.1, 0.5), wide=rng.uniform(0.05, 0.4))

    builder = build_fabric(rng, plan, windows=0.6)
    clutter = rng.uniform(0.5, 1.3)
    furnish_plan(rng, builder, plan, (clutter * rng.uniform(0.6, 1.4, len(plan.rooms))).tolist())
    return builder


def _partition(rng: np.random.Generator, width: float, depth: float) -> list[Rect]:
    """Return 4–8 rooms; the first is the corridor where the layout has one."""
    for _ in range(100):
        style = rng.choice(["central", "side", "open"], p=[0.5, 0.25, 0.25])
        rects = _open(rng, width, depth) if style == "open" else _with_corridor(rng, width, depth, style == "side")
        rooms = len(rects) - (style != "open")
        if 4 <= rooms <= 8 and all(min(r.width, r.depth) >= 1.5 for r in rects):
            return rects if style != "open" else [Rect(0, 0, 0, 0), *rects]
    raise AssertionError("no partition of 4 to 8 rooms in 100 draws")


def _open(rng: np.random.Generator, width: float, depth: float) -> list[Rect]:
    return split_rect(rng, Rect(0.0, 0.0, width, depth), rng.uniform(11, 18), 2.4)


def _with_corridor(rng: np.random.Generator, width: float, depth: float, side: bool) -> list[Rect]:
    # Built with the corridor along x in the longer direction, then turned if the footprint is.
    turned = depth > width
    long, short = (depth, width) if turned else (width, depth)
    hall = rng.uniform(1.55, 1.9)
    if not side and short - hall < 2 * 2.6:
        return []  # too narrow for rooms on both sides of a corridor: another draw
    low = 0.0 if side else round(float(rng.uniform(2.6, short - hall - 2.6)), 2)
    high = round(low + hall, 2)
    rects = [Rect(0.0, low, long, high)]
    for z0, z1 in ((0.0, low), (high, short)):
        if z1 - z0 < 0.1:
            continue
        cuts = [0.0, *split_row(rng, long, 2.4, rng.uniform(3.0, 4.6)), long]
        rects += [Rect(a, z0, b, z1) for a, b in itertools.pairwise(cuts)]
    if rng.random() < 0.35:
        # The corridor ends early and the last room of its row takes the rest: an L-shaped way round.
        cut = round(float(rng.uniform(0.62, 0.8) * long), 2)
        if long - cut > 1.8:
            rects[0] = Rect(0.0, low, cut, high)
            rects.append(Rect(cut, low, long, high))
    if turned:
        rects = [Rect(r.z0, r.x0, r.z1, r.x1) for r in rects]
    return rects


def _kinds(rng: np.random.Generator, rects: list[Rect]) -> list[str]:
    corridor = rects[0].area > 0
    if not corridor:
        rects.pop(0)
    kinds = ["corridor"] if corridor else []
    rooms = rects[len(kinds) :]
    order = np.argsort([-r.area for r in rooms])
    # The largest is the living room, small ones wash rooms, the rest are drawn.
    pool = ["bedroom", "kitchen", *rng.permutation(["bedroom", "office", "dining", "bedroom", "storage"])]
    named = [""] * len(rooms)
    named[order[0]] = "living"
    named[order[-1]] = "bathroom"
    for index, kind in zip(order[1:-1], pool, strict=False):
        named[index] = str(kind)
    return kinds + named
