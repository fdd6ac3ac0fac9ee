"""Benchmark of ray tracers on the same scene and rays: rays per second, and error against brute force.

Machines differ and are shared, so only ratios are reliable. The tracers take turns, and each is judged by its median
process CPU time (of all threads) and wall time.
"""

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import torch

from navi_core.bench.report import (
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
    known_names,
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
from navi_core.world import Field, RayHits, spherical_directions

TRACERS = ("native", "native:8", "native:4", "numba", "open3d")
"""Default tracers: C++ as wide as the CPU allows, with AVX2, and as on any CPU; the numba twin; Open3D
(Embree) where it is installed."""
_BRUTE_TESTS = 2e8
_RANGE = 100.0
"""Maximum range of the rays [m]."""
_SEED = 0
"""Seed of the poses and of the rays sampled for the comparison."""

Cast = Callable[[], tuple[np.ndarray, np.ndarray | None]]


def tracer_names(names: Sequence[str] | None = None) -> list[str]:
    """Return the names of the tracers to measure; by default the available ones of `TRACERS`.

    Raises:
        ConfigError: An unknown tracer, or one asked for by name that cannot be had.
    """
    known = sorted({*TRACERS, *(f"native:{n}" for n in LANES if n)})
    chosen = known_names("tracer", TRACERS if names is None else names, known)
    needs = {}
    if importlib.util.find_spec("open3d") is None:
        needs["open3d"] = "Open3D; install it with: pip install open3d"
    if find_compiler() is None:
        needs["native"] = "a C++ compiler; install one (Debian, Ubuntu: apt install g++)"
    missing = [name for name in chosen if name.partition(":")[0] in needs]
    if missing and names is not None:
        raise ConfigError(f"tracer {missing[0]!r} needs {needs[missing[0].partition(':')[0]]}")
    return [name for name in chosen if name not in missing]


# More than 60 lines: one measurement, its arguments and its row.
def run_raycast(
    scenes: Sequence[Scene],
    names: Sequence[str],
    drones: Sequence[int] = (16,),
    *,
    azimuth_bins: int = 256,
    elevation_bins: int = 48,
    threads: int = 1,
    repeats: int = 7,
    exact_rays: int = 0,
) -> Iterator[Row]:
    """Benchmark every tracer in every scene with every number of drones; yield rows as they are measured.

    Args:
        scenes: Scenes with triangles, compiled at the resolutions to be measured.
        names: Result of `tracer_names`; the tracers take turns.
        drones: Origins of a call, in the free space among the surfaces.
        azimuth_bins: Azimuths of a pose.
        elevation_bins: Elevations of a pose.
        threads: Threads of a call.
        repeats: Turns that each tracer takes.
        exact_rays: Rays compared with every triangle; 0: as many as a second or so allows.

    Raises:
        SceneError: A scene without triangles.

    Yields:
        Rows with the keys:
        scene: Name of the scene.
        resolution: Voxels along an edge.
        tracer: Name of the tracer.
        drones: Origins of a call.
        threads: Threads of a call.
        lanes: SIMD lanes: rays traced at once (native only, else 0).
        mrays_per_second: Million rays a second of wall time, median over the repeats.
        mrays_per_cpu_second: The same per second of process CPU time, median over the repeats.
        times_open3d: CPU speed over that of Open3D in this run; None where it takes no part.
        samples_per_ray: Nodes opened and leaves tested by a tile of 16 rays, per ray; None if not counted.
        memory: Bytes of the arrays that the tracer reads; None for Open3D, which does not report it.
        error_p99: 99th percentile of the depth error against every triangle [voxel].
        disagreement: Share of rays that hit in one and miss in the other.
        semantic_agreement: Share of hits with the name of the exact caster; None for Open3D, which keeps no names.
        exact_rays: Rays that were compared.
        rays: Rays of a repeat.
    """
    directions = spherical_directions(azimuth_bins, elevation_bins)
    for scene in scenes:
        if scene.version == 1:
            raise SceneError(f"scene {scene.name!r} is of version 1; compile it from its mesh to measure it")
    for scene, count in itertools.product(scenes, drones):
        field = Field([scene], tracer="numba", threads=threads)
        origins = free_poses(field, count, _SEED)
        rays = len(origins) * len(directions)
        casts: dict[str, Cast] = {}
        tracers: dict[str, Tracer] = {}
        for name in names:
            if name == "open3d":
                casts[name] = _open3d(scene, origins, directions, threads)
                continue
            tracers[name] = _tracer(field, name, threads)
            casts[name] = _cast(tracers[name], origins, directions)
        answers = {name: [None if x is None else x.copy() for x in cast()] for name, cast in casts.items()}
        # The answers were the warm-up.
        times = take_turns(casts, repeats, warmup=0)
        taken = {name: median(turns) for name, turns in times.items()}
        truth, labels, chosen = _truth(scene, field, origins, directions, exact_rays)
        for name in names:
            tracer = tracers.get(name)
            cpu = taken[name]
            depth, label = answers[name]
            assert depth is not None
            error, disagreement = _error(depth.reshape(-1)[chosen], truth, scene.voxel_size)
            agreement = None
            if label is not None:
                met = (label.reshape(-1)[chosen] > 0) & (labels > 0)
                agreement = float((label.reshape(-1)[chosen] == labels)[met].mean()) if met.any() else float("nan")
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
    """Sample (count, 3) points with at least 0.25 m clearance that have surfaces around them."""
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
    if name == "numba":
        return NumbaTracer(field.packed)
    return NativeTracer(field.packed, threads, int(name.partition(":")[2] or 0))


def _cast(tracer: Tracer, origins: torch.Tensor, directions: torch.Tensor) -> Cast:
    hits = RayHits.empty(len(origins), len(directions))
    scene = torch.zeros(len(origins), dtype=torch.int32)
    start, ray = origins.contiguous(), directions.contiguous()[None]

    def cast() -> tuple[np.ndarray, np.ndarray]:
        tracer.cast(start, ray, scene, _RANGE, 0, hits.depth, hits.semantic, hits.valid)
        return hits.depth.numpy(), hits.semantic.numpy()

    return cast


def _open3d(scene: Scene, origins: torch.Tensor, directions: torch.Tensor, threads: int) -> Cast:
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
        return np.minimum(hits, _RANGE), None

    return cast


def _truth(
    scene: Scene, field: Field, origins: torch.Tensor, directions: torch.Tensor, exact_rays: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute ground truth of a sample of rays by brute force over all triangles: depth, semantic id, index."""
    assert scene.triangles is not None
    total = len(origins) * len(directions)
    count = int(min(exact_rays or min(4000.0, max(64.0, _BRUTE_TESTS / len(scene.triangles))), total))
    chosen = np.sort(np.random.default_rng(_SEED).choice(total, count, replace=False))
    row, ray = np.divmod(chosen, len(directions))
    start, slope = origins.numpy()[row].astype(np.float64), directions.numpy()[ray].astype(np.float64)
    triangles = scene.triangles.astype(np.float64)
    depth = cast_brute(triangles, start, slope)
    first = cast_brute_triangle(triangles, start, slope, depth, TIE * scene.voxel_size)
    semantic = field.packed.hierarchy[4]
    names = np.where((first >= 0) & (depth <= _RANGE), semantic[np.maximum(first, 0)], 0)
    return np.minimum(depth, _RANGE), names, chosen


def _error(depth: np.ndarray, truth: np.ndarray, voxel: float) -> tuple[float, float]:
    hit, true_hit = depth < _RANGE, truth < _RANGE
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
    """Benchmark the ray tracers on the same rays."""
    bins = sizes(size or ["256x48"])
    scenes = [
        each
        for voxels in resolution or [512]
        for each in load_scenes(scene or ["apartment:0", "maze:0", "atrium:0", "rooms:0"], voxels)
    ]
    names, counts = tracer_names(tracer or None), drones or [16]
    rows: list[dict[str, Any]] = []
    for azimuth, elevation in bins:
        for row in run_raycast(
            scenes, names, counts, azimuth_bins=azimuth, elevation_bins=elevation, threads=threads, repeats=repeats,
            exact_rays=exact_rays,
        ):  # fmt: skip
            rows.append(row | {"size": f"{azimuth}x{elevation}"})
            progress(row["scene"], len(rows), len(scenes) * len(names) * len(counts) * len(bins))
    return report(
        "rays",
        rows,
        {
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
        },
        threads=threads,
        words=3,
    )
