"""Family `rooms` (rooms-v1): floors of 100–600 m² with corridors, rooms, doors, clutter and sometimes a tall hall."""

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
)


def build_rooms(rng: np.random.Generator) -> MeshBuilder:
    """Build one floor of an office, school or flat: blocks along corridors, each split into rooms."""
    area = float(np.exp(rng.uniform(np.log(100), np.log(600))))
    width, depth = draw_footprint(rng, area, 2.2)
    ceiling = round(rng.uniform(2.5, 3.0), 2)
    corridors, blocks = _corridors(rng, Rect(0.0, 0.0, width, depth))
    target = rng.uniform(11, 20) * (1 + area / 900)
    pieces = [piece for block in blocks for piece in split_rect(rng, block, target, 2.4)]

    tall = {int(np.argmax([p.area for p in pieces]))} if rng.random() < 0.35 else set()
    height = round(ceiling + rng.uniform(2.0, 3.0), 2) if tall else ceiling
    plan = Plan(width, depth, height, thickness=round(rng.uniform(0.1, 0.2), 3))
    plan.rooms = [Room(rect, "corridor", ceiling) for rect in corridors]
    for index, rect in enumerate(pieces):
        # Without a tall hall some rooms get a lower, dropped ceiling; it never comes under 2.4 m.
        plan.rooms.append(Room(rect, _kind(rng, rect, index in tall), height if index in tall else ceiling))
    connect_rooms(rng, plan, loops=rng.uniform(0.08, 0.4), wide=rng.uniform(0.05, 0.3))

    builder = build_fabric(rng, plan, windows=rng.uniform(0.2, 0.7))
    # Large floors are furnished more sparsely, so that meshes stay within a few thousand triangles.
    density = rng.uniform(0.4, 1.2) * min(1.0, (220 / area) ** 0.75)
    furnish_plan(rng, builder, plan, (density * rng.uniform(0.4, 1.6, len(plan.rooms))).tolist())
    return builder


def _corridors(rng: np.random.Generator, floor: Rect) -> tuple[list[Rect], list[Rect]]:
    """Return corridors and the blocks they leave: a spine, crossed by a second corridor on large floors."""
    if floor.area < 160 and rng.random() < 0.3:
        return [], [floor]
    hall = round(float(rng.uniform(1.6, 2.4)), 2)
    along_x = (floor.width > floor.depth) != (rng.random() < 0.15)
    axis = 1 if along_x else 0
    along, length = floor.span(1 - axis), floor.span(axis)[1]
    low = round(float(rng.uniform(0.3, 0.7) * (length - hall)), 2)
    if min(low, length - hall - low) < 2.6:
        # Too narrow for rooms on both sides: the corridor runs along the outer wall.
        low = 0.0
    corridors = [Rect.on_line(axis, (low, low + hall), along)]
    blocks = [Rect.on_line(axis, across, along) for across in ((0.0, low), (low + hall, length))]
    blocks = [block for block in blocks if min(block.width, block.depth) > 0]
    if floor.area > 240:
        # A side corridor through the larger block keeps far rooms from hanging on chains of doors.
        across = blocks.pop(int(np.argmax([b.area for b in blocks]))).span(axis)
        side = round(float(rng.uniform(1.6, 2.2)), 2)
        start = round(float(rng.uniform(0.3, 0.7) * (along[1] - side)), 2)
        corridors.append(Rect.on_line(1 - axis, (start, start + side), across))
        blocks += [Rect.on_line(1 - axis, part, across) for part in ((0.0, start), (start + side, along[1]))]
    return corridors, blocks


def _kind(rng: np.random.Generator, rect: Rect, tall: bool) -> str:
    if tall or rect.area > 45:
        return str(rng.choice(["hall", "lounge"]))
    if rect.area < 9:
        return str(rng.choice(["bathroom", "storage", "office"]))
    return str(
        rng.choice(["office", "office", "meeting", "storage", "lounge", "living", "kitchen", "dining", "bedroom"])
    )
