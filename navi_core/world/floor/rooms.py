"""Segmentation of rooms from the open ground around them, and of storeys: reachable floor over reachable floor.

From a point in a room nearly every horizontal ray hits something, with a ceiling or without; from the ground beside
a house half of them and more miss. Where such ground is the larger part of what can be flown, as around a house
that stands on a plane, most flights would begin outside the walls and be rewarded for the lawn. The rooms alone are the
floor then. Places that are open as a whole, a yard or a street, have no rooms of such a size, and stay as they are.

Seen from above, the floors of two storeys fall on one another, and a horizontal look at one would count as a look at
both. A storey begins at a height at which a large connected patch of floor begins, with reachable space beneath it in
the same columns. Tables, beds, the shelves of a warehouse and stairs are too small, however many they are; slopes and
split levels have nothing beneath them. A hall of double height has its floor on the lower storey alone.
"""

import logging
import math
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from navi_core.kernels.floor import label_components
from navi_core.world.field import Field

_LOG = logging.getLogger("navi.world")

_LOOKS = 16
_ROOM = 12
"""Fewest of 16 rays that hit from a point in a room: just outside a corner they may be as many."""
_OPEN = 10
"""Number of hits below which a point is open ground; in a room without one wall (a scan) hardly a point has so few."""
_BLOCK = 0.5
"""Edge of a block of voxels that share one sample [m]; less than the thickness that separates two sides of a wall."""
_LEAST_AREA = 16.0
"""Least floor area of rooms that count instead of the open ground [m²]; a shed in a yard does not."""
_LEAST_SHARE = 0.1
"""Least floor area of such rooms as a fraction of the whole floor."""
_SAMPLE = 512
_PER_CAST = 1 << 17

_DECIDED: WeakKeyDictionary[Field, dict[int, npt.NDArray[np.float64]]] = WeakKeyDictionary()
"""Positions (N, 3) in the rooms that the first map of a scene found [m], none without such rooms. Its others, of
finer cells, would differ only where it is a near thing, or take the other of two houses, and flights would then begin
where nothing counts."""


def rooms_on_open_ground(
    field: Field,
    scene_index: int,
    free: npt.NDArray[np.bool_],
    largest: npt.NDArray[np.bool_],
    corner: npt.NDArray[np.float64],
    cell: float,
) -> npt.NDArray[np.bool_] | None:
    """Segment the room voxels of a scene that is mostly open ground; None for any other scene.

    Args:
        field: Geometry.
        scene_index: Scene.
        free: Voxels (nx, ny, nz), y upward, that a drone can be in, over a floor.
        largest: Those of the largest connected part.
        corner: (3,) minimum corner of the voxels [m].
        cell: Their edge [m].

    Returns:
        Voxels of the largest connected part of the rooms that have a way to the ground, where more than half of the
        floor of `largest` is open, and the rooms have 16 m² and a tenth of the floor or more.
    """
    decided = _DECIDED.setdefault(field, {})
    if scene_index not in decided:
        inside = _decide(field, scene_index, largest, corner, cell)
        places = np.argwhere(inside) if inside is not None else np.zeros((0, 3))
        decided[scene_index] = corner + (places[:: max(1, len(places) // _SAMPLE)] + 0.5) * cell
        return inside
    known = decided[scene_index]
    if not len(known):
        return None
    label, sizes = label_components(_met_of_all(field, scene_index, free, corner, cell) >= _ROOM)
    inside = label == _part_of(label, sizes, (known - corner) / cell)
    return inside if inside.any() else None


def _decide(
    field: Field, scene_index: int, largest: npt.NDArray[np.bool_], corner: npt.NDArray[np.float64], cell: float
) -> npt.NDArray[np.bool_] | None:
    """Segment the room voxels of a scene on its first floor map; None where all reachable floor counts.

    A space that is closed on all sides is first of all a block: only one with a path to the ground is a room.
    """
    if not _seems_open(field, scene_index, largest, corner, cell):
        return None
    met = _met_of_all(field, scene_index, largest, corner, cell)
    label, sizes = label_components(met >= _ROOM)
    inside: npt.NDArray[np.bool_] = label == max(1, int(sizes.argmax()))
    floor, within = largest.any(axis=1), inside.any(axis=1)
    open_ground = int((floor & ~(met >= _OPEN).any(axis=1)).sum())
    if within.sum() < max(_LEAST_AREA / cell**2, _LEAST_SHARE * floor.sum()) or 2 * open_ground <= floor.sum():
        return None
    _LOG.warning(
        "scene %r: %.0f m² of open ground lie around rooms of %.0f m²; the rooms are its floor, and what is flown "
        "outside counts for nothing",
        field.scenes[scene_index].name, (floor & ~within).sum() * cell**2, within.sum() * cell**2,
    )  # fmt: skip
    return inside


def in_rooms(field: Field, scene_index: int, points: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Return a (N,) bool mask: is each point (N, 3) [m] in a room, even one too narrow for a drone?"""
    met = [_met(field, scene_index, points[i : i + _PER_CAST]) for i in range(0, len(points), _PER_CAST)]
    return np.concatenate([np.zeros(0, np.uint8), *met]) >= _ROOM


def _part_of(label: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64], places: npt.NDArray[np.float64]) -> int:
    """Return the label of the connected component with most points (N, 3) [voxel], the largest if none lie in any."""
    i, j, k = np.clip(np.floor(places).astype(np.int64), 0, np.array(label.shape) - 1).T
    votes = np.bincount(label[i, j, k], minlength=len(sizes))
    votes[0] = 0
    return max(1, int((votes if votes.any() else sizes).argmax()))


def _seems_open(
    field: Field, scene_index: int, free: npt.NDArray[np.bool_], corner: npt.NDArray[np.float64], cell: float
) -> bool:
    """Estimate by samples whether a quarter or more of the free voxels may be open ground; most scenes are not."""
    stride = max(1, round((int(free.sum()) / _SAMPLE) ** (1 / 3)))
    places = np.argwhere(free[stride // 2 :: stride, stride // 2 :: stride, stride // 2 :: stride])
    if not len(places):
        return True
    met = _met(field, scene_index, corner + (places * stride + stride // 2 + 0.5) * cell)
    return bool((met < _OPEN).mean() >= 0.25)


def _met_of_all(
    field: Field, scene_index: int, free: npt.NDArray[np.bool_], corner: npt.NDArray[np.float64], cell: float
) -> npt.NDArray[np.uint8]:
    """Return the ray-hit count `_met` of each free voxel, 0 elsewhere, sampled at one voxel of each block.

    It is the block's highest: what lies over the top of a wall is no room for what lies in one beside it.
    """
    found, edge = np.zeros(free.shape, np.uint8), max(1, int(_BLOCK / cell))
    for first in range(0, len(free), edge):
        places = np.argwhere(free[first : first + edge])
        if not len(places):
            continue
        places = places[np.argsort(-places[:, 1], kind="stable")]
        block = (places[:, 1] // edge) * (free.shape[2] // edge + 1) + places[:, 2] // edge
        _, speaker, member = np.unique(block, return_index=True, return_inverse=True)
        met = _met(field, scene_index, corner + (places[speaker] + (first, 0, 0) + 0.5) * cell)
        i, j, k = places.T
        found[first + i, j, k] = met[member]
    return found


def _met(field: Field, scene_index: int, points: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Count the hits of 16 horizontal rays from each point (N, 3) [m], at any range."""
    turn = (np.arange(_LOOKS) + 0.5) * (2 * math.pi / _LOOKS)
    looks = np.stack([np.cos(turn), np.zeros(_LOOKS), np.sin(turn)], axis=1).astype(np.float32)
    low, high = field.bounds(scene_index)
    origins = torch.from_numpy(points.astype(np.float32)).to(field.device)
    scene = torch.full((len(points),), scene_index, dtype=torch.int32, device=field.device)
    hits = field.cast_rays(
        origins, torch.from_numpy(looks).to(field.device), scene, max_distance=float(np.linalg.norm(high - low)) + 1.0
    )
    return np.asarray(hits.valid.sum(dim=1).cpu().numpy(), np.uint8)


_STOREY_HEIGHT = 1.8
"""Least height between two storeys' floors [m]."""

_HEADROOM = 1.0
"""Least reachable height above a floor [m]."""

_LEAST_STOREY_AREA = 8.0
"""Least area of a connected patch of an upper floor above another [m²]."""

_UNEVENNESS = 0.3
"""Height differences that count as one floor [m]."""


def find_storeys(free: npt.NDArray[np.bool_], cell: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Segment the reachable voxels into storeys: the first layer and the floor cells of each.

    Args:
        free: Reachable voxels (nx, ny, nz), y upward.
        cell: Their edge [m].

    Returns:
        First layers, int64 (S,), rising, S ≥ 1; and floor cells, bool (S, nx, nz). Of one storey they are all columns
        with a reachable voxel.
    """
    begins = free.copy()
    begins[:, 1:] &= ~free[:, :-1]
    beneath = np.zeros_like(free)
    beneath[:, 1:] = np.maximum.accumulate(free, axis=1)[:, :-1]
    floor = begins & beneath & _with_headroom(free, max(1, round(_HEADROOM / cell)))
    area = floor.sum(axis=(0, 2)) * cell**2
    even, apart = max(1, round(_UNEVENNESS / cell)), max(1, round(_STOREY_HEIGHT / cell))
    first = [int(np.flatnonzero(free.any(axis=(0, 2)))[0])]
    for layer in range(free.shape[1]):
        if layer < first[-1] + apart or area[layer] == 0 or area[layer : layer + even].sum() < _LEAST_STOREY_AREA:
            continue
        if _largest(floor[:, layer : layer + even]) * cell**2 >= _LEAST_STOREY_AREA:
            first.append(layer)
    ends = [*first[1:], free.shape[1]]
    floors = [free[:, : ends[0]].any(axis=1)]
    floors += [begins[:, low:high].any(axis=1) for low, high in zip(first[1:], ends[1:], strict=True)]
    return np.array(first, dtype=np.int64), np.stack(floors)


def storey_of(heights: npt.NDArray[np.floating], levels: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the storey index of each height [m], given where storeys begin [m]; below the first is the first."""
    return np.maximum(np.searchsorted(levels, heights, side="right") - 1, 0).astype(np.int64)


def _largest(floor: npt.NDArray[np.bool_]) -> int:
    """Return the size [columns] of the largest connected component of a slab (nx, layers, nz), seen from above."""
    return int(label_components(np.maximum.reduce(floor, axis=1, keepdims=True))[1].max(initial=0))


def _with_headroom(free: npt.NDArray[np.bool_], layers: int) -> npt.NDArray[np.bool_]:
    """Mask the voxels with headroom: at least `layers` free voxels upward, their own included."""
    count = np.zeros((free.shape[0], free.shape[1] + 1, free.shape[2]), dtype=np.int32)
    np.cumsum(free, axis=1, out=count[:, 1:])
    enough = np.zeros_like(free)
    if free.shape[1] >= layers:
        enough[:, : free.shape[1] - layers + 1] = count[:, layers:] - count[:, :-layers] == layers
    return enough
