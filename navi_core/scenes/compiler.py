"""From a mesh to a scene: padding, quantisation to the cube, the surface tree, and the file beside it."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from navi_core.config import CompileConfig, config_hash
from navi_core.errors import MeshError, SceneError
from navi_core.scenes.dag import build_dag
from navi_core.scenes.gmdag import load_gmdag
from navi_core.scenes.mesh import Mesh, check_mesh
from navi_core.scenes.scene import Scene, write_atomically

__all__ = [
    "COMPILER_VERSION",
    "CompiledScene",
    "compile_hash",
    "compile_mesh",
    "compile_to_file",
    "is_current",
    "output_path",
    "store_verdict",
]

COMPILER_VERSION = 2
"""Raised whenever the same mesh and configuration would give another scene; older files are then rebuilt."""

Progress = Callable[[str, float], None]
"""Called with a stage name and the share of the work done, 0 to 1."""


@dataclass(frozen=True)
class CompiledScene:
    """What `compile_to_file` made or found."""

    path: Path
    """The `.gmdag` file."""
    scene: Scene
    """Its content."""
    skipped: bool
    """True where the file was already there and unchanged."""
    seconds: float
    """Wall-clock time of the call [s]."""


def compile_hash(config: CompileConfig) -> str:
    """Return the hash (16 hex digits) of compiler version and configuration: what decides a recompilation."""
    return hashlib.sha256(f"{COMPILER_VERSION}:{config_hash(config)}".encode()).hexdigest()[:16]


def compile_mesh(
    mesh: Path | str | Mesh, config: CompileConfig | None = None, progress: Progress | None = None
) -> Scene:
    """Compile a mesh into a scene (version 2).

    Args:
        mesh: A mesh file, or a `Mesh` that is already in metres and +Y up (`up_axis` and `unit_scale`
            apply to files only).
        config: Resolution, padding and list length; defaults where left out.
        progress: Told the stage and the share done.

    Raises:
        MeshError: The file cannot be read or holds no usable surface.
    """
    config = config or CompileConfig()
    report = progress or (lambda stage, share: None)
    report("read", 0.0)
    checked = check_mesh(mesh) if isinstance(mesh, Mesh) else _read(Path(mesh), config)
    report("bounds", 0.2)
    triangles = checked.triangles.astype(np.float32) + np.float32(0)  # no negative zeros: equal means equal bits
    semantic = checked.face_semantic.astype(np.int32)
    corners = triangles.reshape(-1, 3).astype(np.float64)
    mesh_bounds = np.stack([corners.min(axis=0), corners.max(axis=0)])
    size = float((mesh_bounds[1] - mesh_bounds[0]).max()) + 2 * config.padding
    # float32 values, as version 1 headers hold them: both versions then share one grid.
    voxel = float(np.float32(size / config.resolution))
    lower = (mesh_bounds.mean(axis=0) - voxel * config.resolution / 2).astype(np.float32).astype(np.float64)
    bounds = np.stack([lower, lower + voxel * config.resolution])
    step = float(np.spacing(np.abs(mesh_bounds).max().astype(np.float32)))
    if step > voxel / 4:
        raise MeshError(
            f"{checked.name}: {np.abs(mesh_bounds).max():.6g} m from the origin, positions are only exact to "
            f"{step:.2g} m, too coarse for voxels of {voxel:.2g} m; move the mesh nearer to the origin"
        )
    scaled = (triangles.astype(np.float64) - lower) / voxel
    dag = build_dag(scaled, config.resolution, config.max_leaf_triangles, report)
    report("done", 1.0)
    return Scene(
        name=checked.name,
        resolution=config.resolution,
        voxel_size=voxel,
        bounds=bounds,
        mesh_bounds=mesh_bounds,
        semantic_names=dict(checked.semantic_names),
        source_hash=checked.source_hash,
        compile_hash=compile_hash(config),
        verdict=None,
        version=2,
        triangles=triangles,
        triangle_semantic=semantic,
        dag=dag,
        compiler_version=COMPILER_VERSION,
    )


def output_path(name: str, source_hash: str, out_dir: Path | str, config: CompileConfig) -> Path:
    """Return where a source's scene lies: `<name>-<8 hex digits of source and configuration>.gmdag`."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "scene"
    key = hashlib.sha256(f"{source_hash}:{config_hash(config)}".encode()).hexdigest()[:8]
    return Path(out_dir) / f"{stem}-{key}.gmdag"


def compile_to_file(
    source: Path | str | Mesh,
    out_dir: Path | str,
    config: CompileConfig | None = None,
    progress: Progress | None = None,
    *,
    name: str | None = None,
) -> CompiledScene:
    """Compile a mesh into a file of `out_dir`, or reuse the file that is already there.

    The file is reused when source hash, compiler version and configuration are unchanged; a broken
    file is rebuilt. It appears in one rename, so that an error or a kill leaves nothing half-written.

    Args:
        source: A mesh file or a `Mesh`.
        out_dir: Folder of the results, made where missing.
        config: How to compile.
        progress: Told the stage and the share done.
        name: Scene name; the mesh's or the file's stem where left out.

    Raises:
        MeshError: The source cannot be used.
        SceneError: The file cannot be written.
    """
    config = config or CompileConfig()
    start = time.perf_counter()
    if isinstance(source, Mesh):
        name, source_hash = name or source.name, source.source_hash
    else:
        from navi_core.scenes.reader import hash_source

        name, source_hash = name or Path(source).stem, hash_source(Path(source))
    path = output_path(name, source_hash, out_dir, config)
    existing = _reusable(path, source_hash, config)
    if existing is not None:
        return CompiledScene(path, existing, True, time.perf_counter() - start)
    scene = replace(compile_mesh(source, config, progress), name=name)
    scene.save(path)
    write_atomically(_sidecar(path), json.dumps(_stamp(path, source_hash, config), indent=1).encode())
    return CompiledScene(path, scene, False, time.perf_counter() - start)


def is_current(path: Path, source_hash: str, config: CompileConfig) -> bool:
    """Tell by the sidecar and the file's size alone whether a compiled file is up to date."""
    try:
        return json.loads(_sidecar(path).read_text()) == _stamp(path, source_hash, config)
    except (OSError, ValueError):
        return False


def store_verdict(path: Path, scene: Scene, verdict: str) -> None:
    """Write a spawn verdict into a version 2 file, keeping the file current for `compile_to_file`.

    Args:
        path: The scene's file.
        scene: Its content.
        verdict: PASS, MARGINAL or FAIL.

    Raises:
        SceneError: The file cannot be written.
    """
    scene.with_verdict(verdict).save(path)
    try:
        stamp = json.loads(_sidecar(path).read_text())
    except (OSError, ValueError):
        return
    write_atomically(_sidecar(path), json.dumps(stamp | {"bytes": path.stat().st_size}, indent=1).encode())


def _reusable(path: Path, source_hash: str, config: CompileConfig) -> Scene | None:
    if not is_current(path, source_hash, config):
        return None
    try:
        scene = load_gmdag(path)
    except SceneError:
        return None
    same = scene.source_hash == source_hash and scene.compile_hash == compile_hash(config)
    return scene if same else None


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".json")


def _stamp(path: Path, source_hash: str, config: CompileConfig) -> dict[str, str | int]:
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "source_hash": source_hash,
        "compile_hash": compile_hash(config),
        "compiler_version": COMPILER_VERSION,
    }


def _read(path: Path, config: CompileConfig) -> Mesh:
    from navi_core.scenes.reader import read_mesh

    return read_mesh(path, up_axis=config.up_axis, unit_scale=config.unit_scale, semantics=config.semantics)
