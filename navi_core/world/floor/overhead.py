"""Top-down images of a scene, cut open at the height of flight, with the floor that a drone has seen.

Each colour has one meaning (`COLOURS`): pale floor, blue seen floor (contrast of at least 3 to 1), sand furniture,
black walls, grey where a drone cannot get to.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap
from navi_core.world.floor.rooms import storey_of

OVERHEAD_PIXELS = 256
"""Edge of the published image in pixels (the wire's `overhead`)."""
_MARGIN = 0.5
"""Margin around the scene's bounds [m]."""
_BAND = 0.5
"""Height of a band whose flights share an image [m]."""
_ABOVE, _BELOW_CEILING = 0.3, 0.3
"""Distances of the cut: above the drone, and below the ceiling [m]."""
_COLUMNS = 512
"""Columns of floor from which the height of a ceiling is measured."""
_LEVEL = 0.15
"""Height above the storey's floor up to which a surface is drawn as floor [m]."""
_FLOOR_NAMES = re.compile(r"floor|ground|terrain|carpet|rug|grass|stair", re.IGNORECASE)
COLOURS = {
    "floor": (246, 246, 246),
    "seen": (106, 140, 175),
    "furniture": (222, 200, 155),
    "wall": (31, 31, 31),
    "out of reach": (196, 199, 204),
    "nothing below": (255, 255, 255),
}
"""RGB of each meaning."""


@dataclass(frozen=True, eq=False)
class Overhead:
    """Square top-down image of a scene, x to the right, z downwards: yaw 0 flies up the image.

    Attributes:
        image: (P, P, 3) uint8 RGB.
        corner: x and z of the upper left corner [m].
        metres_per_pixel: Edge of a pixel [m].
        height: Height of the horizontal cut [m].
        floor: (P, P) int64 flat cell of `FloorView` that each pixel lies in, on the storey of the height; −1 outside
            the reachable floor.
        tintable: (N,) int64 flat pixels that show reachable floor.
    """

    image: npt.NDArray[np.uint8]
    corner: tuple[float, float]
    metres_per_pixel: float
    height: float
    floor: npt.NDArray[np.int64]
    tintable: npt.NDArray[np.int64]


class OverheadMaps:
    """LRU cache of top-down images of a field's scenes, one for each scene and band of height.

    Args:
        field: Geometry.
        floors: Reachable floor of each scene.
        keep: Images kept; the least recently used is dropped first.
    """

    def __init__(self, field: Field, floors: Sequence[FloorMap], keep: int = 32) -> None:
        self._field, self._floors, self._keep = field, floors, keep
        self._drawn: dict[tuple[int, int, float], Overhead] = {}
        self._ceilings: dict[tuple[int, int], float] = {}

    def at(self, scene_index: int, height: float) -> Overhead:
        """Return the cached top-down image of a scene, cut above a drone at a height [m] and below its ceiling."""
        floor, middle = self._floors[scene_index], (math.floor(height / _BAND) + 0.5) * _BAND
        storey = (scene_index, int(storey_of(np.array([middle]), floor.levels)[0]))
        if storey not in self._ceilings:
            self._ceilings[storey] = ceiling_height(self._field, *storey, floor)
        # Bands below a ceiling share their image.
        cut = min(middle + _ABOVE, self._ceilings[storey] - _BELOW_CEILING)
        key = (*storey, cut)
        view = self._drawn.pop(key, None)
        if view is None:
            view = overhead(self._field, scene_index, cut, floor)
        self._drawn[key] = view
        if len(self._drawn) > self._keep:
            del self._drawn[next(iter(self._drawn))]
        return view


def cut_height(field: Field, scene_index: int, height: float, floor: FloorMap) -> float:
    """Return the height [m] to cut a scene at for a drone: 0.3 m above it, at most 0.3 m below its storey's ceiling.

    Args:
        field: Geometry.
        scene_index: Scene.
        height: Height of the drone [m].
        floor: Reachable floor of the scene.
    """
    storey = int(storey_of(np.array([height]), floor.levels)[0])
    return min(height + _ABOVE, ceiling_height(field, scene_index, storey, floor) - _BELOW_CEILING)


def ceiling_height(field: Field, scene_index: int, storey: int, floor: FloorMap) -> float:
    """Return the height of a storey's ceiling [m], the median over its reachable floor; infinite under the sky."""
    return _median_hit(field, scene_index, storey, floor, 1.0)


def floor_height(field: Field, scene_index: int, height: float, floor: FloorMap) -> float:
    """Return the height of the floor surface [m], a median, of the storey of a drone at a height; see `cut_height`."""
    storey = int(storey_of(np.array([height]), floor.levels)[0])
    found = _median_hit(field, scene_index, storey, floor, -1.0)
    return found if math.isfinite(found) else float(floor.levels[storey])


def _median_hit(field: Field, scene_index: int, storey: int, floor: FloorMap, up: float) -> float:
    """Return the median height [m] of what rays up (1) or down (−1) from a storey's reachable floor hit; ∞ for none."""
    i, k = np.nonzero(floor.storeys[storey])
    some = np.linspace(0, len(i) - 1, min(_COLUMNS, len(i))).astype(np.int64)
    i, k = i[some], k[some]
    # Of each column the lowest reachable voxel of the storey: above it is free space up to a ceiling.
    first = max(0, round(float(floor.levels[storey] - floor.corner[1]) / floor.cell))
    layer = first + floor.free[i, first:, k].argmax(axis=1)
    points = floor.corner + (np.stack((i, layer, k), axis=1) + 0.5) * floor.cell
    scene = torch.full((len(points),), scene_index, dtype=torch.int64, device=field.device)
    ray = torch.tensor([[0.0, up, 0.0]], device=field.device)
    hits = field.cast_rays(torch.from_numpy(points.astype(np.float32)).to(field.device), ray, scene, 100.0)
    return float(
        np.median(np.where(hits.valid[:, 0].cpu().numpy(), points[:, 1] + up * hits.depth[:, 0].cpu().numpy(), np.inf))
    )


def overhead(field: Field, scene_index: int, height: float, floor: FloorMap, pixels: int = OVERHEAD_PIXELS) -> Overhead:
    """Render a scene as a square top-down image; pixels outside the reachable floor of the height's storey are grey.

    Args:
        field: Geometry.
        scene_index: Scene.
        height: Height of the cut [m].
        floor: Reachable floor of the scene.
        pixels: Edge of the picture.
    """
    low, high = field.bounds(scene_index)
    middle, half = (low + high) / 2.0, float(max(high[0] - low[0], high[2] - low[2])) / 2.0 + _MARGIN
    step = 2.0 * half / pixels
    xs, zs = (float(middle[axis]) - half + (np.arange(pixels) + 0.5) * step for axis in (0, 2))
    picture, cell = reachable_cut(field, scene_index, height, floor, xs, zs)
    corner = (float(middle[0]) - half, float(middle[2]) - half)
    return Overhead(picture, corner, step, height, cell, _tintable(picture, cell))


def reachable_cut(
    field: Field,
    scene_index: int,
    height: float,
    floor: FloorMap,
    xs: npt.NDArray[np.floating],
    zs: npt.NDArray[np.floating],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return `cut_from_above` with grey where no drone gets to, and each pixel's floor cell as `Overhead.floor`."""
    i = np.floor((xs - floor.origin[0]) / floor.cell).astype(np.int64)
    k = np.floor((zs - floor.origin[1]) / floor.cell).astype(np.int64)
    nx, nz = floor.reachable.shape
    inside = ((k >= 0) & (k < nz))[:, None] & ((i >= 0) & (i < nx))[None, :]
    below = int(storey_of(np.array([height]), floor.levels)[0]) * nx * nz
    cell = np.where(inside, i.clip(0, nx - 1)[None, :] * nz + k.clip(0, nz - 1)[:, None] + below, -1)
    cell[(cell >= 0) & ~floor.storeys.reshape(-1)[cell.clip(0)]] = -1
    picture = cut_from_above(field, scene_index, height, xs, zs)
    shown = ~_is(picture, "wall") & ~_is(picture, "nothing below")
    grey = (0.3 * picture + 0.7 * np.array(COLOURS["out of reach"])).astype(np.uint8)
    return np.where((shown & (cell < 0))[..., None], grey, picture), cell


def tint_seen(view: Overhead, seen: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return the (P, P, 3) top-down image with the seen floor tinted.

    Args:
        view: From `overhead`.
        seen: (C,) flat floor cells that were seen, a row of `FloorView.seen`.
    """
    return _tinted(view.image, view.floor, view.tintable, seen)


def tint(
    picture: npt.NDArray[np.uint8], cell: npt.NDArray[np.int64], seen: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint8]:
    """Return a picture and cells of `reachable_cut` with the seen floor tinted; arguments as `tint_seen`."""
    return _tinted(picture, cell, _tintable(picture, cell), seen)


def _tintable(picture: npt.NDArray[np.uint8], cell: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.flatnonzero((cell >= 0) & _is(picture, "floor"))


def _tinted(
    picture: npt.NDArray[np.uint8],
    cell: npt.NDArray[np.int64],
    tintable: npt.NDArray[np.int64],
    seen: npt.NDArray[np.bool_],
) -> npt.NDArray[np.uint8]:
    image = picture.copy()
    image.reshape(-1, 3)[tintable[seen[cell.reshape(-1)[tintable]]]] = COLOURS["seen"]
    return image


def _is(image: npt.NDArray[np.uint8], meaning: str) -> npt.NDArray[np.bool_]:
    """Mask the pixels (P, P) of one meaning."""
    return np.asarray((image == np.array(COLOURS[meaning], np.uint8)).all(axis=-1))


def cut_from_above(
    field: Field, scene_index: int, height: float, xs: npt.NDArray[np.floating], zs: npt.NDArray[np.floating]
) -> npt.NDArray[np.uint8]:
    """Ray-cast a top-down image of the surfaces below a horizontal cut: (nz, nx, 3) uint8, row 0 at the smallest z.

    Colours are those of `COLOURS`; furniture is darker where it is higher. What the cut itself meets (walls, tall
    furniture) is black, and what has nothing below it is white.

    Args:
        field: Geometry.
        scene_index: Scene.
        height: Height of the cut [m].
        xs: Columns [m].
        zs: Rows [m].
    """
    points = np.stack(np.meshgrid(xs, [height], zs, indexing="ij"), axis=-1).reshape(-1, 3)
    origins = torch.from_numpy(points.astype(np.float32)).to(field.device)
    scene = torch.full((len(origins),), scene_index, dtype=torch.int64, device=field.device)
    reach = height - float(field.bounds(scene_index)[0][1]) + 0.5
    down = torch.tensor([[0.0, -1.0, 0.0]], device=field.device)
    hits = field.cast_rays(origins, down, scene, reach)
    depth, valid, semantic = (x[:, 0].cpu().numpy() for x in (hits.depth, hits.valid, hits.semantic))
    solid = field.within(origins, scene, float(xs[1] - xs[0])).cpu().numpy()
    named = [number for number, name in field.semantic_names.items() if _FLOOR_NAMES.search(name)]
    # Without names the floor is the height that most surfaces have.
    below = valid & ~solid
    level = float(np.median(depth[below & (depth > 0.5)])) if (below & (depth > 0.5)).any() else reach
    is_floor = below & (np.isin(semantic, named) | (depth >= level - _LEVEL))
    shade = 1.0 - 0.3 * np.clip(1.0 - depth / max(level, 1e-3), 0.0, 1.0)
    colours = np.full((len(points), 3), COLOURS["nothing below"], np.uint8)
    colours[below] = (np.array(COLOURS["furniture"]) * shade[below, None]).astype(np.uint8)
    colours[is_floor] = COLOURS["floor"]
    colours[solid] = COLOURS["wall"]
    return colours.reshape(len(xs), len(zs), 3).transpose(1, 0, 2)
