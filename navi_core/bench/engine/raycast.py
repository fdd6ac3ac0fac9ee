"""Benchmark of ray tracers on the same scene and rays: rays per second, error and lost rays against brute force.

Machines differ and are shared, so only ratios are reliable. The tracers take turns, and each is judged by its median
process CPU time (of all threads) and wall time.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch

from navi_core.bench.engine.peers import PEERS, PeerRays, build_peer, missing_package
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
    comma_names,
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
_DISPUTED = 1000
"""Most rays, met by one tracer and missed by another, that are compared with every triangle."""
_SEED = 0
"""Seed of the poses and of the rays sampled for the comparison."""

Cast = Callable[[], None]


def tracer_names(names: Sequence[str] | None = None, peers: Sequence[str] = ()) -> list[str]:
    """Return the names of the tracers to measure, peers last; by default the available ones of `TRACERS`.

    Raises:
        ConfigError: An unknown tracer, or one asked for by name that cannot be had.
    """
    known = sorted({*TRACERS, *(f"native:{n}" for n in LANES if n), *PEERS})
    asked = [*(TRACERS if names is None else names), *peers]
    chosen = known_names("tracer", asked, known)
    missing = {name: f"a package; install it with: pip install {lacks}" for name in chosen if (lacks := _lacks(name))}
    if find_compiler() is None:
        compiler = "a C++ compiler; install one (Debian, Ubuntu: apt install g++)"
        missing |= {name: compiler for name in chosen if name.startswith("native")}
    for name, needs in missing.items():
        if names is not None or name in peers:
            raise ConfigError(f"tracer {name!r} needs {needs}")
    return [name for name in chosen if name not in missing]


def _lacks(name: str) -> str | None:
    return missing_package(name) if name in PEERS else None


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
        times_peers: CPU speed over that of each peer in this run, by its name.
        samples_per_ray: Nodes opened and leaves tested by a tile of 16 rays, per ray; None if not counted.
        memory: Bytes of the arrays that the tracer reads; None for a peer, which does not report it.
        error_p99: 99th percentile of the depth error against every triangle [voxel].
        disagreement: Share of rays that hit in one and miss in the other.
        lost: Rays of all that miss although another tracer hits and so does the search over every triangle.
        semantic_agreement: Share of hits with the name of the exact caster; None for a peer, which keeps no names.
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
        hits = {name: RayHits.empty(len(origins), len(directions)) for name in names if name not in PEERS}
        tracers = {name: _tracer(field, name, threads) for name in hits}
        packed = PeerRays(
            _triangles(scene), origins.numpy(), directions.numpy(), elevation_bins, _RANGE, threads
        )  # fmt: skip
        peers = {name: build_peer(name, packed) for name in names if name in PEERS}
        casts: dict[str, Cast] = {
            name: peers.get(name) or _cast(tracers[name], origins, directions, hits[name]) for name in names
        }
        times = take_turns(casts, repeats, warmup=1)
        depths = {name: peers[name].depth() if name in peers else hits[name].depth.numpy() for name in names}
        taken = {name: median(turns) for name, turns in times.items()}
        truth, labels, chosen = _truth(scene, field, origins, directions, exact_rays)
        lost = _lost(scene, depths, origins, directions)
        for name in names:
            tracer = tracers.get(name)
            cpu = taken[name]
            error, disagreement = _error(depths[name].reshape(-1)[chosen], truth, scene.voxel_size)
            agreement = None
            if name in hits:
                label = hits[name].semantic.numpy().reshape(-1)[chosen]
                met = (label > 0) & (labels > 0)
                agreement = float((label == labels)[met].mean()) if met.any() else float("nan")
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
                "times_peers": {peer: taken[peer] / cpu for peer in peers},
                "samples_per_ray": None if samples is None else float(samples),
                "memory": sum(a.nbytes for a in field.packed.hierarchy) if tracer is not None else None,
                "error_p99": error,
                "disagreement": disagreement,
                "lost": lost[name],
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


def _cast(tracer: Tracer, origins: torch.Tensor, directions: torch.Tensor, hits: RayHits) -> Cast:
    scene = torch.zeros(len(origins), dtype=torch.int32)
    start, ray = origins.contiguous(), directions.contiguous()[None]
    return lambda: tracer.cast(start, ray, scene, _RANGE, 0, hits.depth, hits.semantic, hits.valid)


def _triangles(scene: Scene) -> np.ndarray:
    assert scene.triangles is not None
    return scene.triangles


def _truth(
    scene: Scene, field: Field, origins: torch.Tensor, directions: torch.Tensor, exact_rays: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute ground truth of a sample of rays by brute force over all triangles: depth, semantic id, index."""
    total = len(origins) * len(directions)
    count = int(min(exact_rays or min(4000.0, max(64.0, _BRUTE_TESTS / len(_triangles(scene)))), total))
    chosen = np.sort(np.random.default_rng(_SEED).choice(total, count, replace=False))
    row, ray = np.divmod(chosen, len(directions))
    start, slope = origins.numpy()[row].astype(np.float64), directions.numpy()[ray].astype(np.float64)
    triangles = _triangles(scene).astype(np.float64)
    depth = cast_brute(triangles, start, slope)
    first = cast_brute_triangle(triangles, start, slope, depth, TIE * scene.voxel_size)
    semantic = field.packed.hierarchy[4]
    names = np.where((first >= 0) & (depth <= _RANGE), semantic[np.maximum(first, 0)], 0)
    return np.minimum(depth, _RANGE), names, chosen


def _lost(
    scene: Scene, depths: dict[str, np.ndarray], origins: torch.Tensor, directions: torch.Tensor
) -> dict[str, int]:
    """Count the rays of each tracer that miss although another one hits and so does a search over every triangle."""
    met = {name: depth.reshape(-1) < _RANGE for name, depth in depths.items()}
    disputed = np.flatnonzero(np.any(list(met.values()), axis=0) & ~np.all(list(met.values()), axis=0))[:_DISPUTED]
    row, ray = np.divmod(disputed, len(directions))
    start, slope = origins.numpy()[row].astype(np.float64), directions.numpy()[ray].astype(np.float64)
    hit = cast_brute(_triangles(scene).astype(np.float64), start, slope) < _RANGE
    return {name: int((hit & ~each[disputed]).sum()) for name, each in met.items()}


def _error(depth: np.ndarray, truth: np.ndarray, voxel: float) -> tuple[float, float]:
    hit, true_hit = depth < _RANGE, truth < _RANGE
    both = hit & true_hit
    error = float(np.quantile(np.abs(depth - truth)[both] / voxel, 0.99)) if both.any() else float("nan")
    return error, float((hit != true_hit).mean())


def _ratio(peer: str) -> Column:
    return lambda row: f"{row['times_peers'][peer]:.2f}"


def _means(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Describe the speed of each own tracer over that of each peer: geometric mean over the rows, and the least."""
    lines = []
    for name, peer in itertools.product((n for n in names if n not in PEERS), (n for n in names if n in PEERS)):
        ratios = [row["times_peers"][peer] for row in rows if row["tracer"] == name]
        mean = float(np.exp(np.mean(np.log(ratios))))
        lines.append(f"{name}: {mean:.2f} × {peer} (geometric mean of {len(ratios)}), at least {min(ratios):.2f}")
    return lines


def raycast(
    scene: Scenes = None,
    resolution: Resolutions = None,
    tracer: Annotated[
        list[str] | None,
        Option(help="native, native:16, native:8, native:4, numba or a peer; may be repeated."),
    ] = None,
    against: Annotated[
        str, Option(help="Peers to measure in the same run, by commas: embree16, embree8:avx2, embree1, open3d, warp.")
    ] = "",
    size: Sizes = None,
    drones: Drones = None,
    threads: Threads = 1,
    repeats: Repeats = 7,
    exact_rays: Annotated[
        int, Option(min=0, help="Rays compared with every triangle; 0: as many as a second allows.")
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
    # Peers alone would compare nothing; without --tracer the two paths of C++ meet them.
    asked, counts = comma_names(against), drones or [16]
    names = tracer_names(tracer or (["native", "native:8"] if asked else None), asked)
    rows: list[dict[str, Any]] = []
    for azimuth, elevation in bins:
        for row in run_raycast(
            scenes, names, counts, azimuth_bins=azimuth, elevation_bins=elevation, threads=threads, repeats=repeats,
            exact_rays=exact_rays,
        ):  # fmt: skip
            rows.append(row | {"size": f"{azimuth}x{elevation}"})
            progress(row["scene"], len(rows), len(scenes) * len(names) * len(counts) * len(bins))
    document = report(
        "rays",
        rows,
        {
            "scene": figure("scene"),
            "tracer": lambda row: row["tracer"] + (f" ({row['lanes']})" if row["tracer"] == "native" else ""),
            "size": figure("size"),
            "res.": figure("resolution"),
            "drones": figure("drones"),
            "M rays/CPU-s": figure("mrays_per_cpu_second", ".2f"),
            **{f"× {peer}": _ratio(peer) for peer in names if peer in PEERS},
            "samples": figure("samples_per_ray", ".2f"),
            "MB": figure("memory", ".1f", 1e-6),
            "p99 [voxel]": figure("error_p99", ".1e"),
            "miss": figure("disagreement", ".1e"),
            "lost": figure("lost"),
            "names": figure("semantic_agreement", ".4f"),
        },
        threads=threads,
        words=3,
    )
    return replace(document, lines=_means(rows, names))
