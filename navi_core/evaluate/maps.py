"""A top-down picture of a scene with the paths flown in it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from navi_core.errors import EvaluationError
from navi_core.world.overhead import cut_from_above

if TYPE_CHECKING:
    from navi_core.world.field import Field
    from navi_core.world.floor import FloorMap

__all__ = ["top_down_map"]

_PIXELS = 400
"""Samples along the longer side of the scene."""


def top_down_map(
    field: Field,
    scene_index: int,
    trajectories: Mapping[str, np.ndarray | Sequence[np.ndarray]],
    floor: FloorMap | None = None,
    seen: np.ndarray | None = None,
) -> bytes:
    """Draw a scene from above, cut open at the height of flight.

    Below the cut, surfaces are coloured by their semantic name and darkened with depth; what the cut itself meets
    (walls, tall furniture) is black.

    Args:
        field: Geometry.
        scene_index: Scene.
        trajectories: Paths by name, (T, 3) each or a list of such [m]; one colour per name.
        floor: Reachable floor; what lies outside it is faded.
        seen: Floor cells seen, bool (nx, nz) on the grid of `floor`; tinted.

    Returns:
        A PNG file.

    Raises:
        EvaluationError: `seen` without `floor` or of another shape, or a path that is not (T, 3).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if seen is not None and (floor is None or seen.shape != tuple(floor.reachable.shape)):
        raise EvaluationError("`seen` needs the floor map whose cells it marks")
    paths = {name: _paths(name, value) for name, value in trajectories.items()}
    low, high = field.bounds(scene_index)
    flown = [path[:, 1] for group in paths.values() for path in group]
    height = float(np.median(np.concatenate(flown))) if flown else float(low[1] + min(1.2, (high[1] - low[1]) / 2))

    span = np.maximum(high - low, 1e-3)
    step = float(max(span[0], span[2])) / _PIXELS
    xs, zs = (np.arange(low[axis] + step / 2, high[axis], step) for axis in (0, 2))
    image = cut_from_above(field, scene_index, height, xs, zs)
    extent = (float(low[0]), float(high[0]), float(high[2]), float(low[2]))
    scale = 7.0 / float(max(span[0], span[2]))
    figure = Figure(figsize=(max(3.0, span[0] * scale) + 0.4, max(2.0, span[2] * scale) + 0.8), dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(image, extent=extent, interpolation="nearest")
    if floor is not None:
        x0, z0 = (float(value) for value in floor.origin)
        cells = floor.reachable.cpu().numpy().astype(bool)
        grid = (x0, x0 + cells.shape[0] * floor.cell, z0 + cells.shape[1] * floor.cell, z0)
        veil = np.zeros((*cells.T.shape, 4), np.float32)
        veil[~cells.T] = (1.0, 1.0, 1.0, 0.45)
        if seen is not None:
            veil[(cells & seen).T] = (0.2, 0.75, 0.35, 0.3)
        axes.imshow(veil, extent=grid, interpolation="nearest")
        axes.set_xlim(extent[:2])
        axes.set_ylim(extent[2:])
    for index, (name, group) in enumerate(paths.items()):
        color = f"C{index}"
        for number, path in enumerate(group):
            axes.plot(path[:, 0], path[:, 2], color=color, lw=1.4, alpha=0.9, label=name if number == 0 else None)
            axes.plot(*path[0, ::2], "o", color=color, mec="black", ms=6)
            axes.plot(*path[-1, ::2], "s", color=color, mec="black", ms=5)
    axes.set_aspect("equal")
    axes.set_xlabel("x [m]")
    axes.set_ylabel("z [m]")
    axes.set_title(f"{field.scenes[scene_index].name}: circle = start, square = end", fontsize=9)
    if paths:
        axes.legend(loc="upper right", fontsize=8, framealpha=0.85)
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "navi"})
    return buffer.getvalue()


def _paths(name: str, value: np.ndarray | Sequence[np.ndarray]) -> list[np.ndarray]:
    group = [value] if isinstance(value, np.ndarray) else list(value)
    for path in group:
        if path.ndim != 2 or path.shape[1] != 3 or not len(path):
            raise EvaluationError(f"path of {name!r} has shape {path.shape}, expected (T, 3)")
    return group
