"""Top-down images of a scene, cut open at the height of flight, with the floor that a drone has seen."""

import colorsys
import math
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
_BAND = 0.75
"""Height of a band whose flights share an image [m]."""
_GOLDEN_RATIO = 0.61803398875
_SEEN = np.array([51, 191, 89], np.float32)
_SEEN_SHARE = 0.35


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
    """

    image: npt.NDArray[np.uint8]
    corner: tuple[float, float]
    metres_per_pixel: float
    height: float
    floor: npt.NDArray[np.int64]


class OverheadMaps:
    """LRU cache of top-down images of a field's scenes, one for each scene and band of height.

    Args:
        field: Geometry.
        floors: Reachable floor of each scene.
        keep: Images kept; the least recently used is dropped first.
    """

    def __init__(self, field: Field, floors: Sequence[FloorMap], keep: int = 16) -> None:
        self._field, self._floors, self._keep = field, floors, keep
        self._drawn: dict[tuple[int, int], Overhead] = {}

    def at(self, scene_index: int, height: float) -> Overhead:
        """Return the cached top-down image of a scene, cut in the middle of the band that a height [m] lies in."""
        key = (scene_index, math.floor(height / _BAND))
        view = self._drawn.pop(key, None)
        if view is None:
            view = overhead(self._field, scene_index, (key[1] + 0.5) * _BAND, self._floors[scene_index])
        self._drawn[key] = view
        if len(self._drawn) > self._keep:
            del self._drawn[next(iter(self._drawn))]
        return view


def overhead(field: Field, scene_index: int, height: float, floor: FloorMap, pixels: int = OVERHEAD_PIXELS) -> Overhead:
    """Render a scene as a square top-down image; pixels outside the reachable floor of the height's storey are faded.

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
    i = np.floor((xs - floor.origin[0]) / floor.cell).astype(np.int64)
    k = np.floor((zs - floor.origin[1]) / floor.cell).astype(np.int64)
    nx, nz = floor.reachable.shape
    inside = ((k >= 0) & (k < nz))[:, None] & ((i >= 0) & (i < nx))[None, :]
    below = int(storey_of(np.array([height]), floor.levels)[0]) * nx * nz
    cell = np.where(inside, i.clip(0, nx - 1)[None, :] * nz + k.clip(0, nz - 1)[:, None] + below, -1)
    cell[(cell >= 0) & ~floor.storeys.reshape(-1)[cell.clip(0)]] = -1
    picture = cut_from_above(field, scene_index, height, xs, zs)
    outside = (cell < 0)[..., None] & (picture > 0.2)
    picture = np.where(outside, 1.0 - 0.55 * (1.0 - picture), picture)
    corner = (float(middle[0]) - half, float(middle[2]) - half)
    return Overhead((255.0 * picture).round().astype(np.uint8), corner, step, height, cell)


def tint_seen(view: Overhead, seen: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return the (P, P, 3) top-down image with the seen floor tinted.

    Args:
        view: From `overhead`.
        seen: (C,) flat floor cells that were seen, a row of `FloorView.seen`.
    """
    image = view.image.copy()
    mask = (view.floor >= 0) & seen[view.floor.clip(0)]
    image[mask] = (image[mask] * (1.0 - _SEEN_SHARE) + _SEEN * _SEEN_SHARE).astype(np.uint8)
    return image


def cut_from_above(
    field: Field, scene_index: int, height: float, xs: npt.NDArray[np.floating], zs: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Ray-cast a top-down image of the surfaces below a horizontal cut: (nz, nx, 3) in [0, 1], row 0 at the smallest z.

    Surfaces are coloured by their semantic id and darkened with depth; what the cut itself meets (walls, tall
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
    palette = np.array([_colour(index) for index in range(int(semantic.max()) + 1)])
    shade = 1.0 - 0.35 * np.clip(depth / max(reach, 1e-3), 0.0, 1.0)
    colours = np.where(valid[:, None], palette[semantic] * shade[:, None], 1.0)
    solid = field.within(origins, scene, float(xs[1] - xs[0])).cpu().numpy()
    colours[solid] = 0.12
    return colours.reshape(len(xs), len(zs), 3).transpose(1, 0, 2)


def _colour(index: int) -> tuple[float, float, float]:
    """Return a light RGB colour for a semantic id; neighbouring ids get distant hues."""
    return colorsys.hsv_to_rgb((index * _GOLDEN_RATIO) % 1.0, 0.28, 0.97)
