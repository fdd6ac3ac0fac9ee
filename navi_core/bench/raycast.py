"""Rays a second of each tracer on the same scene and rays, in one run, with its error against every triangle.

Machines differ and are shared, so the figure to trust is the ratio to the numba twin: the tracers take
turns, repeat after repeat, and each is judged by its median process CPU time (per thread) and wall time.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from navi_core.errors import ConfigError, SceneError
from navi_core.kernels.brute import cast_brute
from navi_core.kernels.tracer import LANES, NativeTracer, NumbaTracer, Tracer
from navi_core.scenes import Scene
from navi_core.world import Field, spherical_directions

__all__ = ["TRACERS", "RaycastCase", "RaycastRow", "free_poses", "raycast_cases", "run_raycast"]

TRACERS = ("numba", "native", "native:8", "native:4", "open3d")
"""Tracers by default; `native:8` is AVX2, `native:4` what any CPU has; Open3D only where it is installed."""
_REFERENCE = "numba"
_BRUTE_TESTS = 2e8

Cast = Callable[[torch.Tensor], np.ndarray]


@dataclass(frozen=True)
class RaycastCase:
    """One line of the benchmark.

    Attributes:
        scene: The scene, compiled at the resolution to be measured.
        tracer: One of `TRACERS`.
    """

    scene: Scene
    tracer: str


@dataclass(frozen=True)
class RaycastRow:
    """What was measured for one case.

    Attributes:
        scene: Name of the scene.
        resolution: Voxels along an edge.
        tracer: The tracer.
        threads: Threads of a call.
        lanes: Rays taken at once (native only, else 0).
        mrays_per_second: Million rays a second of wall time, median over the repeats.
        mrays_per_cpu_second: The same per second of process CPU time, median over the repeats.
        ratio: CPU speed over that of the numba twin in this run.
        error_p99: 99th percentile of the depth error against every triangle [voxel].
        disagreement: Share of rays that hit in one and miss in the other.
        rays: Rays of a repeat.
    """

    scene: str
    resolution: int
    tracer: str
    threads: int
    lanes: int
    mrays_per_second: float
    mrays_per_cpu_second: float
    ratio: float
    error_p99: float
    disagreement: float
    rays: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return asdict(self)


def raycast_cases(scenes: Sequence[Scene], tracers: Sequence[str] = TRACERS) -> list[RaycastCase]:
    """Return every scene with every tracer that is at hand; the numba twin always takes part.

    Raises:
        ConfigError: An unknown tracer, or Open3D asked for by name where it is missing.
        SceneError: A scene without triangles.
    """
    names = list(dict.fromkeys([_REFERENCE, *tracers]))
    known = {"numba", "native", "open3d"} | {f"native:{n}" for n in LANES if n}
    if unknown := sorted(set(names) - known):
        raise ConfigError(f"unknown tracer {unknown[0]!r}; allowed: {', '.join(sorted(known))}")
    if "open3d" in names and importlib.util.find_spec("open3d") is None:
        if tuple(tracers) != TRACERS:
            raise ConfigError("tracer 'open3d' needs Open3D; install it with: pip install open3d")
        names.remove("open3d")
    for scene in scenes:
        if scene.triangles is None:
            raise SceneError(f"scene {scene.name!r} is of version 1; compile it from its mesh to measure it")
    return [RaycastCase(scene, name) for scene in scenes for name in names]


def run_raycast(
    cases: Sequence[RaycastCase],
    *,
    poses: int = 16,
    azimuth_bins: int = 256,
    elevation_bins: int = 48,
    threads: int = 1,
    repeats: int = 7,
    max_distance: float = 100.0,
    seed: int = 0,
) -> Iterator[RaycastRow]:
    """Measure the cases, scene after scene; rows come as they are done.

    Args:
        cases: What to measure, cases of one scene side by side.
        poses: Points of view in a scene, in the free space among its surfaces.
        azimuth_bins: Azimuths of a pose.
        elevation_bins: Elevations of a pose.
        threads: Threads of a call.
        repeats: Turns that each tracer takes.
        max_distance: Range [m].
        seed: Of the poses.
    """
    directions = spherical_directions(azimuth_bins, elevation_bins)
    by_scene: dict[int, list[RaycastCase]] = {}
    for case in cases:
        by_scene.setdefault(id(case.scene), []).append(case)
    for group in by_scene.values():
        scene = group[0].scene
        field = Field([scene], tracer="numba", threads=threads)
        origins = free_poses(field, poses, seed)
        rays = len(origins) * len(directions)
        casts: dict[str, Cast] = {}
        lanes = dict.fromkeys((case.tracer for case in group), 0)
        for name in lanes:
            if name == "open3d":
                casts[name] = _open3d(scene, directions, threads, max_distance)
                continue
            tracer = _tracer(field, name, threads)
            lanes[name] = tracer.lanes if isinstance(tracer, NativeTracer) else 0
            casts[name] = _cast(tracer, directions, max_distance, len(origins))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in casts}
        depth = {name: cast(origins).copy() for name, cast in casts.items()}  # also the warm-up
        for _ in range(repeats):
            for name, cast in casts.items():
                cpu, wall = time.process_time(), time.perf_counter()
                cast(origins)
                times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
        truth, chosen = _truth(scene, origins, directions, max_distance, seed)
        median = {name: np.median(np.array(values), axis=0) for name, values in times.items()}
        for name in casts:
            cpu, wall = median[name]
            error, disagreement = _error(depth[name].reshape(-1)[chosen], truth, max_distance, scene.voxel_size)
            yield RaycastRow(
                scene=scene.name,
                resolution=scene.resolution,
                tracer=name,
                threads=threads,
                lanes=lanes[name],
                mrays_per_second=rays / float(wall) / 1e6,
                mrays_per_cpu_second=rays / float(cpu) / 1e6,
                ratio=float(median[_REFERENCE][0] / cpu),
                error_p99=error,
                disagreement=disagreement,
                rays=rays,
            )


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
    if name == "numba":
        return NumbaTracer(field.packed)
    return NativeTracer(field.packed, threads, int(name.partition(":")[2] or 0))


def _cast(tracer: Tracer, directions: torch.Tensor, max_distance: float, rows: int) -> Cast:
    ray = np.ascontiguousarray(directions.numpy())[None]
    shape = (rows, ray.shape[1])
    depth, label, valid = np.empty(shape, np.float32), np.empty(shape, np.int32), np.empty(shape, np.bool_)
    scene = np.zeros(rows, np.int32)

    def cast(origins: torch.Tensor) -> np.ndarray:
        tracer.cast_surface(origins.numpy(), ray, scene, max_distance, depth, label, valid)
        return depth

    return cast


def _open3d(scene: Scene, directions: torch.Tensor, threads: int, max_distance: float) -> Cast:
    open3d: Any = importlib.import_module("open3d")

    assert scene.triangles is not None
    raycasting = open3d.t.geometry.RaycastingScene(nthreads=threads)
    raycasting.add_triangles(
        open3d.core.Tensor(np.ascontiguousarray(scene.triangles.reshape(-1, 3), np.float32)),
        open3d.core.Tensor(np.arange(3 * len(scene.triangles), dtype=np.uint32).reshape(-1, 3)),
    )
    ray = directions.numpy()

    def cast(origins: torch.Tensor) -> np.ndarray:
        start = np.broadcast_to(origins.numpy()[:, None, :], (len(origins), *ray.shape))
        both = np.concatenate([start, np.broadcast_to(ray, start.shape)], axis=2)
        hits = raycasting.cast_rays(open3d.core.Tensor(both), nthreads=threads)["t_hit"].numpy()
        return np.minimum(hits, max_distance)

    return cast


def _truth(
    scene: Scene, origins: torch.Tensor, directions: torch.Tensor, max_distance: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the depth of a sample of rays against every triangle, and which rays they are."""
    assert scene.triangles is not None
    total = len(origins) * len(directions)
    count = int(min(4000, total, max(64.0, _BRUTE_TESTS / len(scene.triangles))))
    chosen = np.sort(np.random.default_rng(seed).choice(total, count, replace=False))
    row, ray = np.divmod(chosen, len(directions))
    depth = cast_brute(
        scene.triangles.astype(np.float64),
        origins.numpy()[row].astype(np.float64),
        directions.numpy()[ray].astype(np.float64),
    )
    return np.minimum(depth, max_distance), chosen


def _error(depth: np.ndarray, truth: np.ndarray, max_distance: float, voxel: float) -> tuple[float, float]:
    hit, true_hit = depth < max_distance, truth < max_distance
    both = hit & true_hit
    error = float(np.quantile(np.abs(depth - truth)[both] / voxel, 0.99)) if both.any() else float("nan")
    return error, float((hit != true_hit).mean())
