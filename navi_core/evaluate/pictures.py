"""Figures of evaluated flights: top-down maps (PNG), Rerun traces of the median and the worst episode.

Names in figures may be of any script: they are drawn with installed fonts, else as code points, never as empty boxes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from navi_core.errors import EvaluationError, printable
from navi_core.evaluate.result import EvalResult
from navi_core.record.rerun import EpisodeTrace, write_rrd
from navi_core.scenes.display_mesh import display_mesh
from navi_core.world.field import Field
from navi_core.world.floor.overhead import COLOURS, cut_from_above, cut_height, reachable_cut, tint
from navi_core.world.floor.rooms import storey_of
from navi_core.world.sensor.panorama import SphericalSensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    from navi_core.scenes import Scene
    from navi_core.world.floor.reachable import FloorMap


_DEFAULT = "DejaVu Sans"
_BOXES, _REGULAR = "Last Resort", 400
_LONGEST = 90
"""Longest name drawn, in characters."""


def draw_name(text: Text) -> None:
    """Set a plot text to a user-given name literally: no formulas, any script.

    Args:
        text: A title or legend label that holds such a name.
    """
    name = text.get_text()
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"
    name = printable(name)
    families, lacking = _families(frozenset(name))
    codes = {ord(letter): f"\\u{ord(letter):04x}" for letter in lacking}
    text.set_parse_math(False)
    text.set_fontfamily(list(families))
    text.set_text(name.translate(codes))


@lru_cache(maxsize=256)
def _families(letters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Select installed font families that together cover the letters, and the letters that none covers."""
    from matplotlib.font_manager import findfont, fontManager, get_font

    def lacks(file: str, wanted: frozenset[str]) -> frozenset[str]:
        try:
            font = get_font(file)
        except (OSError, RuntimeError):
            # matplotlib caches its font list: a font may be gone or broken.
            return wanted
        return frozenset(letter for letter in wanted if not font.get_char_index(ord(letter)))

    families, lacking = [_DEFAULT], lacks(findfont(_DEFAULT), letters)
    # Last-resort fonts draw a box for every letter.
    upright = {one.name: one.fname for one in fontManager.ttflist if one.style == "normal" and one.weight == _REGULAR}
    for family, file in sorted(upright.items()):
        if not lacking:
            break
        left = lacks(file, lacking) if not family.startswith(_BOXES) else lacking
        if left != lacking:
            families.append(family)
            lacking = left
    return tuple(families), lacking


PATHS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Colours of paths (Okabe and Ito 2008), the ones with most contrast first."""
_MARGINS = (0.6, 0.15, 0.3, 0.5)
"""Left, right, top and bottom of the panels [inches]: axis labels and titles."""
_PIXELS = 400
"""Samples along the longer side of the scene."""


# One figure, drawn from top to bottom; a third documents the arguments.
def top_down_map(
    field: Field,
    scene_index: int,
    trajectories: Mapping[str, np.ndarray | Sequence[np.ndarray]],
    floor: FloorMap | None = None,
    seen: np.ndarray | None = None,
) -> bytes:
    """Render a top-down map of a scene, cut at flight height; with a floor map one panel per storey.

    Each colour has one meaning, as in `COLOURS`; a legend below the picture names them. Paths have a white casing.

    Args:
        field: Geometry.
        scene_index: Scene.
        trajectories: Paths by name, (T, 3) each or a list of such [m]; one colour per name. A storey shows the parts
            flown on it.
        floor: Reachable floor; cells outside it are grey.
        seen: Floor cells seen, bool (S, nx, nz), one layer per storey of `floor`; tinted.

    Returns:
        A PNG file.

    Raises:
        EvaluationError: `seen` without `floor` or of another shape, or a path that is not (T, 3).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    if seen is not None and (floor is None or seen.shape != floor.storeys.shape):
        raise EvaluationError("`seen` needs the floor map whose cells it marks, a layer for each storey")
    paths = {name: _paths(name, value) for name, value in trajectories.items()}
    low, high = field.bounds(scene_index)
    levels = floor.levels if floor is not None else np.array([low[1]], np.float64)
    span = np.maximum(high - low, 1e-3)
    scale = 7.0 / float(max(span[0], span[2]))
    size = (len(levels) * max(3.0, span[0] * scale) + 0.4, max(2.0, span[2] * scale) + 1.5)
    figure = NewFigure(figsize=size, dpi=110)
    FigureCanvasAgg(figure)
    for storey in range(len(levels)):
        axes = figure.add_subplot(1, len(levels), storey + 1)
        here = {name: [_on(storey, path, levels) for path in group] for name, group in paths.items()}
        flown = [path[:, 1] for group in here.values() for path in group]
        heights = np.concatenate(flown) if flown else np.zeros(0)
        heights = heights[~np.isnan(heights)]
        above = levels[storey + 1] if storey + 1 < len(levels) else float(high[1])
        middle = levels[storey] + min(1.2, (above - levels[storey]) / 2.0)
        height = float(np.median(heights)) if len(heights) else float(middle)
        _draw_cut(axes, field, scene_index, height, floor, seen)
        legend = _draw_paths(axes, here, levels, storey, paths)
        axes.set(aspect="equal", xlabel="x [m]", ylabel="z [m]")
        which = f", storey {storey + 1} of {len(levels)}" if len(levels) > 1 else ""
        title = f"{field.scenes[scene_index].name}{which}: circle = start, square = end"
        draw_name(axes.set_title(title, fontsize=9))
        if legend and storey == 0:
            # Explicit handles: matplotlib drops labels that begin with an underscore.
            lines, names = list(legend.values()), list(legend)
            key = axes.legend(
                lines, names, loc="upper left", bbox_to_anchor=(0.0, -0.09), ncols=2, fontsize=8, frameon=False
            )
            for label in key.get_texts():
                draw_name(label)
    _draw_legend(figure, floor is not None, seen is not None)
    # Fixed margins: `tight_layout` would draw the whole figure once more to measure its texts.
    left, right, top, bottom = (inches / side for inches, side in zip(_MARGINS, (*size[:1] * 2, *size[1:] * 2)))
    figure.subplots_adjust(left, 0.06 + bottom, 1.0 - right, 1.0 - top, wspace=0.25)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "navi"})
    return buffer.getvalue()


def _draw_cut(
    axes: Axes, field: Field, scene_index: int, height: float, floor: FloorMap | None, seen: np.ndarray | None
) -> None:
    low, high = field.bounds(scene_index)
    span = np.maximum(high - low, 1e-3)
    step = float(max(span[0], span[2])) / _PIXELS
    xs, zs = (np.arange(low[axis] + step / 2, high[axis], step) for axis in (0, 2))
    extent = (float(low[0]), float(high[0]), float(high[2]), float(low[2]))
    if floor is None:
        picture = cut_from_above(field, scene_index, height, xs, zs)
    else:
        cut = cut_height(field, scene_index, height, floor)
        picture, cell = reachable_cut(field, scene_index, cut, floor, xs, zs)
        if seen is not None:
            picture = tint(picture, cell, seen.reshape(-1))
    axes.imshow(picture, extent=extent, interpolation="nearest")


def _draw_legend(figure: Figure, reachable: bool, seen: bool) -> None:
    """Draw the colours of the map with their meanings below it."""
    from matplotlib.patches import Patch

    names = ["floor", *(["seen"] * seen), "furniture", "wall", *(["out of reach"] * reachable)]
    handles = [Patch(facecolor=f"#{bytes(COLOURS[name]).hex()}", edgecolor="#777", label=name) for name in names]
    figure.legend(handles=handles, loc="lower center", ncols=len(names), fontsize=7, frameon=False, handlelength=1.2)


def _draw_paths(
    axes: Axes,
    here: Mapping[str, list[np.ndarray]],
    levels: np.ndarray,
    storey: int,
    whole: Mapping[str, list[np.ndarray]],
) -> dict[str, Line2D]:
    """Plot each name's trajectories on matplotlib axes; return one line of each, for the legend."""
    from matplotlib.patheffects import Normal, Stroke

    legend: dict[str, Line2D] = {}
    casing = [Stroke(linewidth=4.2, foreground="white"), Normal()]
    for index, (name, group) in enumerate(here.items()):
        color = PATHS[index % len(PATHS)]
        for number, path in enumerate(group):
            (line,) = axes.plot(path[:, 0], path[:, 2], color=color, lw=1.8, path_effects=casing)
            legend.setdefault(name, line)
            for end, marker, size in ((0, "o", 6), (-1, "s", 5)):
                point = whole[name][number][end]
                if storey_of(point[1:2], levels)[0] == storey:
                    axes.plot(point[0], point[2], marker, color=color, mec="white", ms=size)
    return legend


def _on(storey: int, path: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Mask the points of a path on other storeys with NaN, so that plotted lines break there."""
    if len(levels) == 1:
        return path
    return np.where((storey_of(path[:, 1], levels) == storey)[:, None], path, np.nan)


def _paths(name: str, value: np.ndarray | Sequence[np.ndarray]) -> list[np.ndarray]:
    group = [value] if isinstance(value, np.ndarray) else list(value)
    for path in group:
        if path.ndim != 2 or path.shape[1] != 3 or not len(path):
            raise EvaluationError(f"path of {name!r} has shape {path.shape}, expected (T, 3)")
    return group


_BINS = (128, 24)
"""Azimuth and elevation bins of the panoramas, independent of the subject's resolution."""
_BLOCK = 64
"""Panoramas cast at once."""


def representative_episodes(result: EvalResult, metric: str | None = None) -> dict[str, int]:
    """Select representative episodes: the indices of the median (the lower of two) and the worst.

    Args:
        result: An evaluation with paths; files of `navi evaluate --out` have none.
        metric: Metric to rank by; more is better. By default the protocol's `coverage_metric`.

    Raises:
        EvaluationError: The result holds no paths.
    """
    if not result.trajectories:
        raise EvaluationError("the result keeps no paths; fly it again: files of `navi evaluate --out` have none")
    values = [value for scene in result.by_scene(metric or result.config.coverage_metric).values() for value in scene]
    order = sorted(range(len(values)), key=lambda index: values[index])
    return {"median": order[(len(order) - 1) // 2], "worst": order[0]}


def episode_trace(result: EvalResult, index: int, field: Field, scene_index: int) -> EpisodeTrace:
    """Re-render the panoramas along an episode, with its curves, for a trace.

    Args:
        result: The evaluation.
        index: Index of the episode.
        field: Field that holds the scene.
        scene_index: Index of the scene in the field.
    """
    row, positions, yaws = result.episodes[index], result.trajectories[index], result.yaws[index]
    sensor = SphericalSensor(field, *_BINS, max_distance=100.0)
    position, yaw = torch.from_numpy(positions), torch.from_numpy(yaws)
    scene = torch.full((len(position),), scene_index, dtype=torch.int64)
    parts = []
    for first in range(0, len(position), _BLOCK):
        block = slice(first, first + _BLOCK)
        hits = sensor.cast(position[block], yaw[block], scene[block])
        parts.append((hits.depth.numpy(), hits.semantic.numpy().astype(np.uint16), hits.valid.numpy()))
    depth, semantic, valid = (np.concatenate(arrays).reshape(-1, *_BINS) for arrays in zip(*parts, strict=True))
    seconds = result.config.dynamics.decision_seconds
    moved = np.linalg.norm(np.diff(positions, axis=0, prepend=positions[:1]), axis=1)
    return EpisodeTrace(
        name=f"{result.subject}, {row['scene']}, start {row['start']}",
        positions=positions,
        yaws=yaws,
        depth=depth,
        semantic=semantic,
        valid=valid,
        directions=sensor.directions.numpy(),
        seconds=np.arange(len(positions)) * seconds,
        scalars={
            "clearance_m": field.distance(position, scene).numpy().astype(np.float64),
            "speed_m_per_s": (moved / seconds).astype(np.float64),
            "path_m": np.cumsum(moved, dtype=np.float64),
        },
        mesh=display_mesh(field.scenes[scene_index]),
    )


def write_traces(folder: Path, result: EvalResult, scenes: Sequence[Scene]) -> list[Path]:
    """Write Rerun recordings `<subject>-median.rrd` and `<subject>-worst.rrd` of representative episodes.

    Args:
        folder: Folder of the files.
        result: The evaluation.
        scenes: The scenes it was flown in.

    Returns:
        The files.

    Raises:
        EvaluationError: The result keeps no paths.
        RecordError: The extra `rerun` is not installed, or a file cannot be written.
    """
    field, names = Field(scenes), [scene.name for scene in scenes]
    written = []
    for word, index in representative_episodes(result).items():
        path = folder / f"{result.subject.replace('/', '_')}-{word}.rrd"
        write_rrd(path, episode_trace(result, index, field, names.index(str(result.episodes[index]["scene"]))))
        written.append(path)
    return written
