"""Rays a second of each tracer on the same scene and rays, in one run, with its error against every triangle.

Machines differ and are shared, so the figures to trust are the ratios: the tracers take turns, repeat after
repeat, and each is judged by its median process CPU time (of all threads) and wall time.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch

from navi_core.bench.report import (
    Column,
    Drones,
    Option,
    Progress,
    Repeats,
    Report,
    Resolutions,
    Row,
    Scenes,
    Sizes,
    Threads,
    figure,
    grouped,
    report,
    sizes,
)
from navi_core.bench.timing import WALL, median, take_turns
from navi_core.errors import ConfigError, SceneError
from navi_core.kernels.native.library import find_compiler
from navi_core.kernels.rays.brute import cast_brute, cast_brute_triangle
from navi_core.kernels.rays.tile import TIE
from navi_core.kernels.rays.tracer import LANES, NativeTracer, NumbaTracer, Tracer
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene
from navi_core.world import Field, spherical_directions

TRACERS = ("native", "native:8", "native:4", "numba", "open3d")
"""Tracers by default: C++ as wide as the CPU allows, with AVX2, and as on any CPU; the numba twin; Open3D
(Embree) where it is installed."""
_BRUTE_TESTS = 2e8

Cast = Callable[[], tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class RaycastCase:
    """One line of the benchmark.

    Attributes:
        scene: The scene, compiled at the resolution to be measured.
        tracer: One of `TRACERS`, or "native:16".
        drones: Origins of a call.
    """

    scene: Scene
    tracer: str
    drones: int


def raycast_cases(
    scenes: Sequence[Scene], tracers: Sequence[str] = TRACERS, drones: Sequence[int] = (16,)
) -> list[RaycastCase]:
    """Return every scene with every number of drones and every tracer that is at hand.

    Raises:
        ConfigError: An unknown tracer, or one asked for by name that cannot be had.
        SceneError: A scene without triangles.
    """
    known = {*TRACERS, *(f"native:{n}" for n in LANES if n)}
    if unknown := sorted(set(tracers) - known):
        raise ConfigError(f"unknown tracer {unknown[0]!r}; allowed: {', '.join(sorted(known))}")
    missing = {}
    for name in tracers:
        if name == "open3d" and importlib.util.find_spec("open3d") is None:
            missing[name] = "Open3D; install it with: pip install open3d"
        if _is_native(name) and find_compiler() is None:
            missing[name] = "a C++ compiler; install one (Debian, Ubuntu: apt install g++)"
    if missing and tuple(tracers) != TRACERS:
        name, need = next(iter(missing.items()))
        raise ConfigError(f"tracer {name!r} needs {need}")
    names = [name for name in dict.fromkeys(tracers) if name not in missing]
    for scene in scenes:
        if scene.version == 1:
            raise SceneError(f"scene {scene.name!r} is of version 1; compile it from its mesh to measure it")
    return [RaycastCase(scene, name, count) for scene in scenes for count in drones for name in names]


def _is_native(name: str) -> bool:
    return name.startswith("native")


# More than 60 lines: one measurement, its arguments and its row.
def run_raycast(
    cases: Sequence[RaycastCase],
    *,
    azimuth_bins: int = 256,
    elevation_bins: int = 48,
    threads: int = 1,
    repeats: int = 7,
    max_distance: float = 100.0,
    exact_rays: int = 0,
    seed: int = 0,
) -> Iterator[Row]:
    """Measure the cases, scene after scene; rows come as they are done.

    Args:
        cases: What to measure, cases of one scene side by side.
        azimuth_bins: Azimuths of a pose.
        elevation_bins: Elevations of a pose.
        threads: Threads of a call.
        repeats: Turns that each tracer takes.
        max_distance: Range [m].
        exact_rays: Rays compared with every triangle; 0: as many as a second or so allows.
        seed: Of the poses, which lie in the free space among the surfaces.

    Yields:
        Rows with the keys:
        scene: Name of the scene.
        resolution: Voxels along an edge.
        tracer: The tracer.
        drones: Origins of a call.
        threads: Threads of a call.
        lanes: Rays taken at once (native only, else 0).
        mrays_per_second: Million rays a second of wall time, median over the repeats.
        mrays_per_cpu_second: The same per second of process CPU time, median over the repeats.
        times_open3d: CPU speed over that of Open3D in this run; None where it takes no part.
        samples_per_ray: Nodes opened and leaves tested by a tile of 16 rays, per ray; None where nobody counts.
        memory: Bytes of the arrays that the tracer reads; None for Open3D, which does not report it.
        error_p99: 99th percentile of the depth error against every triangle [voxel].
        disagreement: Share of rays that hit in one and miss in the other.
        semantic_agreement: Share of hits with the name of the exact caster; None for Open3D, which keeps no names.
        exact_rays: Rays that were compared.
        rays: Rays of a repeat.
    """
    directions = spherical_directions(azimuth_bins, elevation_bins)
    for group in grouped(cases, lambda case: (id(case.scene), case.drones)):
        scene = group[0].scene
        field = Field([scene], tracer="numba", threads=threads)
        origins = free_poses(field, group[0].drones, seed)
        rays = len(origins) * len(directions)
        casts: dict[str, Cast] = {}
        tracers: dict[str, Tracer] = {}
        for name in (case.tracer for case in group):
            if name == "open3d":
                casts[name] = _open3d(scene, origins, directions, threads, max_distance)
                continue
            tracers[name] = _tracer(field, name, threads)
            casts[name] = _cast(tracers[name], origins, directions, max_distance)
        answers = {name: [None if x is None else x.copy() for x in cast()] for name, cast in casts.items()}
        # The answers were the warm-up.
        times = take_turns(casts, repeats, warmup=0)
        taken = {name: median(turns) for name, turns in times.items()}
        truth, names, chosen = _truth(scene, field, origins, directions, max_distance, exact_rays, seed)
        for case in group:
            name = case.tracer
            tracer = tracers.get(name)
            cpu = taken[name]
            depth, label = answers[name]
            assert depth is not None
            error, disagreement = _error(depth.reshape(-1)[chosen], truth, max_distance, scene.voxel_size)
            agreement = None
            if label is not None:
                met = (label.reshape(-1)[chosen] > 0) & (names > 0)
                agreement = float((label.reshape(-1)[chosen] == names)[met].mean()) if met.any() else float("nan")
            samples = tracer.work.sum() / rays if isinstance(tracer, NumbaTracer) else None
            yield {
                "scene": scene.name,
                "resolution": scene.resolution,
                "tracer": name,
                "drones": len(origins),
                "threads": threads,
                "lanes": tracer.lanes if isinstance(tracer, NativeTracer) else 0,
                "mrays_per_second": rays / median(times[name], WALL) / 1e6,
                "mrays_per_cpu_second": rays / cpu / 1e6,
                "times_open3d": taken["open3d"] / cpu if "open3d" in taken else None,
                "samples_per_ray": None if samples is None else float(samples),
                "memory": sum(a.nbytes for a in field.packed.hierarchy) if tracer is not None else None,
                "error_p99": error,
                "disagreement": disagreement,
                "semantic_agreement": agreement,
                "exact_rays": len(chosen),
                "rays": rays,
            }


def free_poses(field: Field, count: int, seed: int) -> torch.Tensor:
    """Return (count, 3) points at least a quarter metre from any surface that see surfaces around them."""
    rng = np.random.default_rng(seed)
    low, high = field.bounds(0)
    look = spherical_directions(16, 8)
    found: list[torch.Tensor] = []
    for _ in range(200):
        points = torch.from_numpy(rng.uniform(low, high, (256, 3)).astype(np.float32))
        scene = torch.zeros(len(points), dtype=torch.int32)
        seen = field.cast_rays(points, look, scene).valid.float().mean(dim=1)
        found += list(points[(field.distance(points, scene) > 0.25) & (seen > 0.6)])
        if len(found) >= count:
            return torch.stack(found[:count])
    raise SceneError(f"scene {field.scenes[0].name!r} has too little free space for {count} poses")


def _tracer(field: Field, name: str, threads: int) -> Tracer:
    if not _is_native(name):
        return NumbaTracer(field.packed)
    return NativeTracer(field.packed, threads, int(name.partition(":")[2] or 0))


def _cast(tracer: Tracer, origins: torch.Tensor, directions: torch.Tensor, max_distance: float) -> Cast:
    ray = np.ascontiguousarray(directions.numpy())[None]
    shape = (len(origins), ray.shape[1])
    depth, label, valid = np.empty(shape, np.float32), np.empty(shape, np.int32), np.empty(shape, np.bool_)
    scene = np.zeros(len(origins), np.int32)
    start = np.ascontiguousarray(origins.numpy())

    def cast() -> tuple[np.ndarray, np.ndarray]:
        tracer.cast(start, ray, scene, max_distance, depth, label, valid)
        return depth, label

    return cast


def _open3d(scene: Scene, origins: torch.Tensor, directions: torch.Tensor, threads: int, max_distance: float) -> Cast:
    open3d: Any = importlib.import_module("open3d")

    assert scene.triangles is not None
    raycasting = open3d.t.geometry.RaycastingScene(nthreads=threads)
    raycasting.add_triangles(
        open3d.core.Tensor(np.ascontiguousarray(scene.triangles.reshape(-1, 3), np.float32)),
        open3d.core.Tensor(np.arange(3 * len(scene.triangles), dtype=np.uint32).reshape(-1, 3)),
    )
    # The rays are laid out beforehand: only the casting is timed.
    shape = (len(origins), len(directions), 3)
    start = np.broadcast_to(origins.numpy()[:, None, :], shape)
    both = open3d.core.Tensor(np.concatenate([start, np.broadcast_to(directions.numpy(), shape)], axis=2))

    def cast() -> tuple[np.ndarray, None]:
        hits = raycasting.cast_rays(both, nthreads=threads)["t_hit"].numpy()
        return np.minimum(hits, max_distance), None

    return cast


def _truth(
    scene: Scene,
    field: Field,
    origins: torch.Tensor,
    directions: torch.Tensor,
    max_distance: float,
    exact_rays: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return depth and name of a sample of rays against every triangle, and which rays they are."""
    assert scene.triangles is not None
    total = len(origins) * len(directions)
    count = int(min(exact_rays or min(4000.0, max(64.0, _BRUTE_TESTS / len(scene.triangles))), total))
    chosen = np.sort(np.random.default_rng(seed).choice(total, count, replace=False))
    row, ray = np.divmod(chosen, len(directions))
    start, slope = origins.numpy()[row].astype(np.float64), directions.numpy()[ray].astype(np.float64)
    triangles = scene.triangles.astype(np.float64)
    depth = cast_brute(triangles, start, slope)
    first = cast_brute_triangle(triangles, start, slope, depth, TIE * scene.voxel_size)
    semantic = field.packed.hierarchy[4]
    names = np.where((first >= 0) & (depth <= max_distance), semantic[np.maximum(first, 0)], 0)
    return np.minimum(depth, max_distance), names, chosen


def _error(depth: np.ndarray, truth: np.ndarray, max_distance: float, voxel: float) -> tuple[float, float]:
    hit, true_hit = depth < max_distance, truth < max_distance
    both = hit & true_hit
    error = float(np.quantile(np.abs(depth - truth)[both] / voxel, 0.99)) if both.any() else float("nan")
    return error, float((hit != true_hit).mean())


def raycast(
    scene: Scenes = None,
    resolution: Resolutions = None,
    tracer: Annotated[
        list[str] | None,
        Option(help="native, native:16, native:8, native:4, numba or open3d; may be repeated."),
    ] = None,
    size: Sizes = None,
    drones: Drones = None,
    threads: Threads = 1,
    repeats: Repeats = 7,
    exact_rays: Annotated[
        int, Option(min=0, help="Rays compared with every triangle; 0: what a second or so allows.")
    ] = 0,
    *,
    progress: Progress,
) -> Report:
    """Cast the same rays with every tracer."""
    bins = sizes(size or ["256x48"])
    scenes = [
        each
        for voxels in resolution or [512]
        for each in load_scenes(scene or ["apartment:0", "maze:0", "atrium:0", "rooms:0"], voxels)
    ]
    cases = raycast_cases(scenes, tuple(tracer or TRACERS), tuple(drones or [16]))
    rows: list[dict[str, Any]] = []
    for azimuth, elevation in bins:
        for row in run_raycast(
            cases, azimuth_bins=azimuth, elevation_bins=elevation, threads=threads, repeats=repeats,
            exact_rays=exact_rays,
        ):  # fmt: skip
            rows.append(row | {"size": f"{azimuth}x{elevation}"})
            progress(row["scene"], len(rows), len(cases) * len(bins))
    columns: dict[str, Column] = {
        "scene": figure("scene"),
        "tracer": lambda row: row["tracer"] + (f" ({row['lanes']})" if row["tracer"] == "native" else ""),
        "size": figure("size"),
        "res.": figure("resolution"),
        "drones": figure("drones"),
        "M rays/CPU-s": figure("mrays_per_cpu_second", ".2f"),
        "× Open3D": figure("times_open3d", ".2f"),
        "samples": figure("samples_per_ray", ".2f"),
        "MB": figure("memory", ".1f", 1e-6),
        "p99 [voxel]": figure("error_p99", ".1e"),
        "miss": figure("disagreement", ".1e"),
        "names": figure("semantic_agreement", ".4f"),
    }
    return report("rays", rows, columns, threads=threads, words=3)
