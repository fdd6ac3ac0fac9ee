"""Benchmark of scaling: cost curves over drones, scenes, triangles, resolution, sequence length and warehouse rows.

The exponent of a curve is the slope of log cost over log size, by least squares. Over all points it includes the fixed
costs of small sizes; over the upper half of the points it is what further growth costs.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navi_core.bench.engine.compile import tessellate
from navi_core.bench.engine.env import run_env
from navi_core.bench.policy.core import run_core
from navi_core.bench.timing import clocks, median, resident_bytes, take_turns
from navi_core.config import CompileConfig
from navi_core.record.home import load_scenes
from navi_core.scenes import compile_mesh, generate_scene
from navi_core.world import Field, RayHits, spherical_directions
from navi_pipeline.bench.warehouse import SNAPSHOT, UPDATE, measure_questions
from navi_pipeline.lib.reports.pages import line_chart, standalone_chart

_APARTMENT = "apartment:0"
_SIZE = (64, 16)
_DRONES, _STEPS, _REPEATS = 64, 20, 7
_MIB = 2**20
_STATE, _RESIDENT = "state and observations of all drones [MiB]", "resident memory [MiB]"
_QUESTIONS = ("leaderboard", "training_curve", UPDATE, SNAPSHOT)
"""Measurements of the warehouse that are drawn."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Curve:
    """Cost curve: a cost measured over a size.

    Attributes:
        name: What grows, and the cost.
        size: Label of the sizes.
        cost: Label of the costs, with the unit.
        points: (size, cost) of every measurement.
    """

    name: str
    size: str
    cost: str
    points: tuple[tuple[float, float], ...]

    def exponent(self, *, end: bool = False) -> float:
        """Return the slope of log cost over log size: over all points, or over their upper half."""
        kept = self.points[len(self.points) // 2 - (len(self.points) < 4) :] if end else self.points
        sizes, costs = np.log(np.array(kept)).T
        return float(np.polyfit(sizes, costs, 1)[0])

    @property
    def file(self) -> str:
        """Name of the chart's file."""
        return f"{self.name.replace(': ', '-').replace(' ', '-').replace(',', '')}.svg"

    def chart(self) -> str:
        """Draw the curve over logarithmic axes as a standalone SVG document."""
        logs = np.log10(np.array(self.points))
        curve = {self.name: (logs[:, 0].tolist(), logs[:, 1].tolist())}
        return standalone_chart(line_chart(curve, x=f"log10 of {self.size}", y=f"log10 of {self.cost}"))

    def row(self) -> dict[str, Any]:
        """Return the row of the report."""
        (first, start), (last, end) = self.points[0], self.points[-1]
        return {
            "curve": self.name,
            "size": self.size,
            "cost": self.cost,
            "first": first,
            "last": last,
            "first_cost": start,
            "last_cost": end,
            "exponent": self.exponent(),
            "exponent_end": self.exponent(end=True),
            "points": self.points,
        }


def _flights(name: str, size: str, sizes: Sequence[float], rows: Sequence[dict[str, Any]]) -> list[Curve]:
    """Build the curves of time and memory from rows of `run_env`."""
    times = [row["cpu_per_1000"] * row["drones"] for row in rows]
    memory = [row["bytes_per_drone"] * row["drones"] / _MIB for row in rows]
    return [
        Curve(f"{name}: a step", size, "CPU time of a step of all drones [ms]", tuple(zip(sizes, times, strict=True))),
        Curve(f"{name}: state", size, _STATE, tuple(zip(sizes, memory, strict=True))),
    ]


def over_drones(counts: Sequence[int] = (1, 4, 16, 64, 256, 1024, 4096)) -> list[Curve]:
    """Measure a step of the environment over the number of drones."""
    rows = list(run_env([_SIZE], counts, load_scenes([_APARTMENT], 256), steps=_STEPS))
    return _flights("drones", "drones", counts, rows)


def over_scenes(counts: Sequence[int] = (1, 4, 16, 64)) -> list[Curve]:
    """Measure a step of 64 drones over the number of scenes that they are spread over."""
    rows: list[dict[str, Any]] = []
    for count in counts:
        rows += run_env([_SIZE], [_DRONES], load_scenes([f"apartment:0-{count - 1}"], 256), steps=_STEPS)
    return _flights("scenes", "scenes", counts, rows)[:1]


def over_resolution(
    bins: Sequence[tuple[int, int]] = ((32, 8), (64, 16), (128, 32), (256, 64), (512, 128)),
) -> list[Curve]:
    """Measure a step of 64 drones over the rays of a panorama."""
    rows = list(run_env(bins, [_DRONES], load_scenes([_APARTMENT], 256), steps=_STEPS))
    return _flights("resolution", "rays of a panorama", [az * el for az, el in bins], rows)[:1]


def over_triangles(note: Note, counts: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)) -> list[Curve]:
    """Measure compilation, memory and a ray over the triangles of one apartment, cut ever finer."""
    whole = generate_scene("apartment", 0)
    directions = spherical_directions(256, 48)
    middle = torch.from_numpy(whole.triangles.reshape(-1, 3).mean(axis=0)).float()[None]
    Field([compile_mesh(whole, CompileConfig(resolution=256))])  # builds the kernels, so that no size pays for them
    compiled, kept, cast = [], [], []
    for count in counts:
        note(f"{count:,} triangles")
        mesh = tessellate(whole, count)
        number = len(mesh.faces)
        before = resident_bytes()
        start = clocks()[0]
        scene = compile_mesh(mesh, CompileConfig(resolution=256))
        compiled.append((number, clocks()[0] - start))
        field = Field([scene], threads=1)
        gc.collect()
        if (grown := resident_bytes() - before) > 0:  # memory that the process had already is not measured
            kept.append((number, grown / _MIB))
        hits = RayHits.empty(1, len(directions), field.device)
        call = partial(field.cast_rays, middle, directions, torch.zeros(1, dtype=torch.int32), out=hits, elevations=48)
        taken = take_turns({"cast": call}, _REPEATS)
        cast.append((number, 1e9 * median(taken["cast"]) / len(directions)))
        del mesh, scene, field
    named = (("compilation", "CPU time [s]", compiled), ("memory", _RESIDENT, kept))
    curves = [
        Curve(f"triangles: {name}", "triangles", cost, tuple(points)) for name, cost, points in named if len(points) > 1
    ]
    return [*curves, Curve("triangles: a ray", "triangles", "CPU time of a ray [ns]", tuple(cast))]


def over_sequences(steps: Sequence[int] = (8, 32, 128, 512, 2048)) -> list[Curve]:
    """Measure forward and backward of the recurrent cores over the length of a training sequence."""
    found: dict[str, list[tuple[float, float]]] = {"gru": [], "mingru": [], "mamba2": []}
    for row in run_core(list(found), [(8, count) for count in steps], repeats=5):
        found[row["core"]].append((float(row["shape"].split("x")[1]), row["both_ms"]))
    cost = "CPU time forward and backward, 8 rows [ms]"
    return [Curve(f"sequence: {core}", "decisions", cost, tuple(points)) for core, points in found.items()]


def over_rows(note: Note, counts: Sequence[int] = (10_000, 100_000, 1_000_000, 10_000_000)) -> list[Curve]:
    """Measure queries, the ingest of an update and the snapshot's size over the metric rows of a warehouse."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for count in counts:
        for row in measure_questions(count, 3, note):
            found.setdefault((row["name"], row["unit"]), []).append((count, row["cpu_value"]))
    return [
        Curve(f"warehouse: {name}", "metric rows", f"{'CPU time' if unit == 'ms' else 'size'} [{unit}]", tuple(points))
        for (name, unit), points in found.items()
        if name in _QUESTIONS
    ]


CURVES = ("drones", "scenes", "resolution", "sequence", "warehouse", "triangles")
"""Names of the groups of curves, in the order of their measurement."""


def measure_curves(names: Sequence[str], note: Note) -> Iterator[Curve]:
    """Measure the curves of the named groups on one thread.

    Args:
        names: From `CURVES`.
        note: Called with the current task.
    """
    groups: dict[str, Callable[[], list[Curve]]] = {
        "drones": over_drones,
        "scenes": over_scenes,
        "resolution": over_resolution,
        "sequence": over_sequences,
        "warehouse": partial(over_rows, note),
        "triangles": partial(over_triangles, note),
    }
    for name in names:
        note(name)
        yield from groups[name]()


def machine_limits(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return for every curve of memory the bytes of one more, and how many this machine's memory holds.

    Returns:
        Rows with curve, size (what is counted), bytes (None where no growth was measured), memory of the machine [B]
        and most (how many it holds, None likewise).
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows = []
    for curve in curves:
        if curve.cost not in (_STATE, _RESIDENT):
            continue
        (size, cost), (last_size, last_cost) = curve.points[-2:]
        each = (last_cost - cost) * _MIB / (last_size - size)
        most = memory / each if each > 0 else None
        row = {"curve": curve.name, "size": curve.size, "bytes": each if most else None, "memory": memory, "most": most}
        rows.append(row)
    return rows


def write_charts(curves: Sequence[Curve], folder: Path) -> list[Path]:
    """Write the chart of every curve as an SVG file; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for curve in curves:
        file = folder / curve.file
        file.write_text(curve.chart())
        files.append(file)
    return files
