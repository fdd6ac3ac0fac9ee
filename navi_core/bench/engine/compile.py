"""Benchmark of scene compilation: time, memory and file size, each case in a fresh process, after its imports.

A process that has compiled before keeps memory and kernels; a fresh one measures what a user sees. A small compilation
first fills numba's cache with the kernels' machine code.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from navi_core.bench.report import Column, Option, Progress, Report, Resolutions, Row, Threads, figure, report
from navi_core.config import CompileConfig, parse_config
from navi_core.errors import ConfigError, SceneError
from navi_core.scenes import FAMILIES, Mesh, compile_mesh, generate_scene, load_gmdag, mesh_from_arrays, read_mesh

SCENES = ("apartment:0", "maze:0", "atrium:0", "tessellated:2000000")
"""Default scenes: families with a seed, and an apartment cut into two million triangles."""
RESOLUTIONS = (512, 2048)
"""Default compile resolutions [voxels along one edge]."""
_TESSELLATED = "tessellated"


def check_scenes(scenes: Sequence[str]) -> None:
    """Validate the scene names before anything is measured.

    Raises:
        ConfigError: A scene cannot be.
    """
    for scene in scenes:
        family, colon, number = scene.partition(":")
        if Path(scene).is_file() or (colon and number.isdigit() and family in (*FAMILIES, _TESSELLATED)):
            continue
        raise ConfigError(
            f"scene {scene!r} is neither a mesh file nor one of "
            + ", ".join(f"{family}:SEED" for family in FAMILIES)
            + f", {_TESSELLATED}:TRIANGLES"
        )


def run_compile(
    scenes: Sequence[str], configs: Sequence[CompileConfig], *, threads: int = 2, version_1: bool = False
) -> Iterator[Row]:
    """Compile every scene with all settings in child processes; yield one row per compilation.

    Args:
        scenes: Mesh files, `family:seed`, or `tessellated:faces`.
        configs: Resolution [voxels along an edge], and tolerance of the decimation [voxel].
        threads: Threads of the kernels.
        version_1: Also write version 1.

    Yields:
        Rows with the keys:
        scene: Name of the scene.
        resolution: Voxels along an edge.
        triangles: Triangles of the mesh.
        kept: Triangles of the compiled scene.
        read_seconds: Wall-clock time of reading or generating the mesh [s].
        seconds: Wall-clock time of reading (a file), compiling and writing [s].
        cpu_seconds: Processor time of the same [s].
        version_1_seconds: Wall-clock time of writing version 1 [s]; 0 where it was not asked for.
        import_mb: Memory of the process after its imports [MB].
        peak_mb: Peak memory of the process [MB], imports and mesh included, before version 1 is written.
        file_mb: Size of the version 2 file [MB].
        runtime_mb: Size of the cells and lists that rays are cast through [MB].
        nodes_before: Nodes of the octree without sharing of subtrees.
        nodes_after: Nodes stored.
        error_voxels: Measured two-sided error of the decimation [voxel].

    Raises:
        SceneError: A compilation failed; the message is that of the compiler.
    """
    # Machine code that numba has not cached yet would be counted as compilation of the scene.
    for decimate in {config.decimate for config in configs}:
        _in_child("maze:0", CompileConfig(resolution=32, decimate=decimate), threads, version_1)
    for scene, config in itertools.product(scenes, configs):
        yield _in_child(scene, config, threads, version_1)


def tessellate(mesh: Mesh, triangles: int) -> Mesh:
    """Subdivide a mesh into about `triangles` triangles with the same surface, the largest first, each into four."""
    corners, semantic = mesh.triangles, mesh.face_semantic
    while len(corners) < triangles:
        # The largest first, so that the last round, which cuts only some, cuts those that stand out.
        edge = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2).max(axis=1)
        order = np.argsort(-edge, kind="stable")
        cut = order[: min(len(order), max(1, (triangles - len(corners)) // 3))]
        a, b, c = (corners[cut, k] for k in range(3))
        ab, bc, ca = (a + b) / 2, (b + c) / 2, (c + a) / 2
        pieces = [np.stack(piece, axis=1) for piece in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
        whole = np.delete(corners, cut, axis=0)
        semantic = np.concatenate([np.delete(semantic, cut), np.tile(semantic[cut], 4)])
        corners = np.concatenate([whole, *pieces])
    faces = np.arange(3 * len(corners)).reshape(-1, 3)
    return mesh_from_arrays(f"{mesh.name}_{len(corners)}", corners.reshape(-1, 3), faces, semantic, mesh.semantic_names)


def _in_child(scene: str, config: CompileConfig, threads: int, version_1: bool) -> Row:
    # As a plain script, so that nothing but the scenes' room is imported; -P keeps its folder off the path.
    command = [sys.executable, "-P", __file__, json.dumps([scene, config.model_dump(), version_1])]
    environment = os.environ | {"NUMBA_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        raise SceneError(f"{scene} at {config.resolution}: {last}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _mesh(scene: str) -> Mesh:
    family, colon, number = scene.partition(":")
    if colon and family == _TESSELLATED:
        return tessellate(generate_scene("apartment", 0), int(number))
    if colon and family in FAMILIES and not Path(scene).is_file():
        return generate_scene(family, int(number))
    return read_mesh(Path(scene))


def _measure(name: str, config: CompileConfig, version_1: bool) -> Row:
    before = _peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scene.gmdag"
        wall, cpu = time.perf_counter(), time.process_time()
        mesh = _mesh(name)
        read_wall, read_cpu = time.perf_counter() - wall, time.process_time() - cpu
        wall, cpu = time.perf_counter(), time.process_time()
        scene = compile_mesh(mesh, config)
        scene.save(file)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        peak = _peak_mb()
        if Path(name).is_file():  # generating a mesh is no part of compiling it
            seconds, cpu_seconds = seconds + read_wall, cpu_seconds + read_cpu
        wall = time.perf_counter()
        if version_1:
            scene.save(Path(folder) / "version1.gmdag", version=1)
        old = time.perf_counter() - wall if version_1 else 0.0
        size, loaded = file.stat().st_size, load_gmdag(file)
    tree, dag, merged = loaded.tree, loaded.dag, scene.decimation
    assert tree is not None
    assert dag is not None
    assert scene.triangles is not None
    return {
        "scene": Path(name).name,
        "resolution": config.resolution,
        "triangles": len(mesh.faces),
        "kept": len(scene.triangles),
        "read_seconds": read_wall,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "version_1_seconds": old,
        "import_mb": before,
        "peak_mb": peak,
        "file_mb": size / 1e6,
        "runtime_mb": tree.nbytes / 1e6,
        "nodes_before": dag.unfolded.nodes,
        "nodes_after": dag.stored.nodes,
        "error_voxels": max(merged.to_original, merged.from_original) / scene.voxel_size if merged else 0.0,
    }


def _peak_mb() -> float:
    """Return the peak resident memory of this process [MB]."""
    import resource

    status = Path("/proc/self/status")
    if status.is_file():  # `getrusage` would return the parent's peak, which a new program inherits on Linux
        return next(int(line.split()[1]) for line in status.open() if line.startswith("VmHWM:")) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def compile_scenes(
    scene: Annotated[
        list[str] | None,
        Option(flag="--scene", help="A mesh file, family:seed or tessellated:faces; may be repeated.", metavar="S"),
    ] = None,
    resolution: Resolutions = None,
    decimate: Annotated[float | None, Option(help="Also merge triangles, within this many voxels.")] = None,
    version_1: Annotated[bool, Option(flag="--version-1", help="Also write version 1.")] = False,
    threads: Threads = 2,
    *,
    progress: Progress,
) -> Report:
    """Benchmark scene compilation in fresh processes."""
    scenes = scene or SCENES
    check_scenes(scenes)
    settings = ({"resolution": size, "decimate": decimate} for size in resolution or RESOLUTIONS)
    configs = [parse_config(CompileConfig, each) for each in settings]
    rows: list[dict[str, Any]] = []
    for measured in run_compile(scenes, configs, threads=threads, version_1=version_1):
        rows.append(measured)
        progress(measured["scene"], len(rows), len(scenes) * len(configs))
    caption = "s: after imports, with reading and writing; MB: imports, peak, file, run time; off: error [voxel]"
    return report(
        "compilation",
        rows,
        {
            "scene": figure("scene"),
            "at": figure("resolution"),
            "faces": _thousands("triangles"),
            "kept": _thousands("kept"),
            "s": figure("seconds", ".2f"),
            "CPU": figure("cpu_seconds", ".2f"),
            **({"v1": figure("version_1_seconds", ".1f")} if version_1 else {}),
            "import": figure("import_mb", ".0f"),
            "peak": figure("peak_mb", ".0f"),
            "file": figure("file_mb", ".1f"),
            "cells": figure("runtime_mb", ".1f"),
            "nodes": _thousands("nodes_before"),
            "stored": _thousands("nodes_after"),
            **({} if decimate is None else {"off": figure("error_voxels", ".2f")}),
        },
        threads=threads,
        words=1,
        caption=caption,
    )


def _thousands(key: str) -> Column:
    return lambda row: str(row[key]) if row[key] < 10_000 else f"{row[key] / 1000:.0f}k"


if __name__ == "__main__":
    asked, settings, old_version = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(_measure(asked, CompileConfig(**settings), old_version)) + "\n")
