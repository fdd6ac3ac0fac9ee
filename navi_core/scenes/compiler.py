"""Scene compiler: padding, quantisation to the cube, surface tree, and the sidecar file."""

import contextlib
import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from navi_core.config import CompileConfig, config_hash
from navi_core.errors import MeshError, SceneError
from navi_core.scenes.decimation import decimate
from navi_core.scenes.gmdag.dag import Progress, build_dag
from navi_core.scenes.gmdag.file import load_gmdag
from navi_core.scenes.gmdag.scene import Scene, write_atomically
from navi_core.scenes.manifest import note_verdict
from navi_core.scenes.memory import check_memory, check_reading, check_references
from navi_core.scenes.mesh import Mesh, check_mesh
from navi_core.scenes.naming import file_stem
from navi_core.scenes.readers.mesh_file import hash_source, read_mesh

COMPILER_VERSION = 3
"""Raised whenever the same mesh and configuration would give another scene; older files are then rebuilt."""

_KEY = re.compile("-[0-9a-f]{8}$")
"""What compiling adds to it there."""


_STAGES = {
    "read": (0.0, 0.2),
    "bounds": (0.2, 0.25),
    "decimate": (0.25, 0.45),
    "tree": (0.45, 0.7),
    "dag": (0.7, 0.85),
    "write": (0.85, 1.0),
}
"""Share of the whole at which each stage begins and ends."""


@dataclass(frozen=True)
class CompiledScene:
    """Result of `compile_to_file`: the compiled scene, its file, and whether the file was reused."""

    path: Path
    """The `.gmdag` file."""
    scene: Scene
    """Its content."""
    skipped: bool
    """True where the file was already there and unchanged."""
    seconds: float
    """Wall-clock time of the call [s]."""


def compile_hash(config: CompileConfig) -> str:
    """Return the cache key (16 hex digits) of compiler version and configuration; a change forces recompilation."""
    return hashlib.sha256(f"{COMPILER_VERSION}:{config_hash(config)}".encode()).hexdigest()[:16]


def compile_mesh(
    mesh: Path | str | Mesh, config: CompileConfig | None = None, progress: Progress | None = None
) -> Scene:
    """Compile a triangle mesh into an in-memory scene: triangles indexed by an octree DAG (`.gmdag` version 2).

    Args:
        mesh: A mesh file, or a `Mesh` that is already in metres and +Y up (`up_axis` and `unit_scale`
            apply to files only).
        config: Resolution, padding, list length, decimation; defaults where left out.
        progress: Called with the stage (read, bounds, decimate, tree, dag) and the share of the whole that is done.

    Raises:
        MeshError: The file cannot be read or holds no usable surface.
        SceneError: It would need more memory than there is.
    """
    report = progress or (lambda _stage, _share: None)
    scene = _compile(mesh, config or CompileConfig(), _spread(report))
    report("done", 1.0)
    return scene


def _spread(progress: Progress) -> Progress:
    """Wrap a progress callback: convert the fraction of a stage into the fraction of the whole compilation."""

    def report(stage: str, share: float) -> None:
        begin, end = _STAGES[stage]
        progress(stage, begin + (end - begin) * share)

    return report


def _compile(mesh: Path | str | Mesh, config: CompileConfig, report: Progress) -> Scene:
    if not isinstance(mesh, Mesh | Path | str):
        raise MeshError(f"a mesh is a Mesh or the path of a file, not {type(mesh).__name__}")
    if not isinstance(config, CompileConfig):
        raise SceneError(f"config is {type(config).__name__}; write CompileConfig(resolution=512)")
    report("read", 0.0)
    if isinstance(mesh, Mesh):
        checked = check_mesh(mesh)
    else:
        check_reading(Path(mesh))
        checked = read_mesh(mesh, up_axis=config.up_axis, unit_scale=config.unit_scale, semantics=config.semantics)
    check_memory(checked, config)
    report("bounds", 0.0)
    decimation = None
    if config.decimate is not None:
        report("decimate", 0.0)
        checked, decimation = decimate(checked, config.decimate, _voxel_size(checked.bounds, config))
    triangles = checked.triangles.astype(np.float32) + np.float32(0)  # no negative zeros: equal means equal bits
    corners = triangles.reshape(-1, 3)
    mesh_bounds = np.stack([corners.min(axis=0), corners.max(axis=0)]).astype(np.float64)
    voxel = _voxel_size(mesh_bounds, config)
    lower = (mesh_bounds.mean(axis=0) - voxel * config.resolution / 2).astype(np.float32).astype(np.float64)
    step = float(np.spacing(np.abs(mesh_bounds).max().astype(np.float32)))
    if step > voxel / 4:
        raise MeshError(
            f"{checked.name}: {np.abs(mesh_bounds).max():.6g} m from the origin, positions are only exact to "
            f"{step:.2g} m, too coarse for voxels of {voxel:.2g} m; move the mesh nearer to the origin"
        )
    scaled = (triangles - lower) / voxel
    return Scene(
        name=checked.name,
        resolution=config.resolution,
        voxel_size=voxel,
        bounds=np.stack([lower, lower + voxel * config.resolution]),
        mesh_bounds=mesh_bounds,
        semantic_names=dict(checked.semantic_names),
        source_hash=checked.source_hash,
        compile_hash=compile_hash(config),
        verdict=None,
        version=2,
        triangles=triangles,
        triangle_semantic=checked.face_semantic.astype(np.int32),
        dag=build_dag(
            scaled,
            config.resolution,
            config.max_leaf_triangles,
            report,
            lambda references: check_references(checked.name, references, config),
        ),
        compiler_version=COMPILER_VERSION,
        decimation=decimation,
    )


def _voxel_size(mesh_bounds: npt.NDArray[np.float64], config: CompileConfig) -> float:
    """Return the voxel edge length [m], rounded to float32 as in version 1 headers: both versions share one grid."""
    size = float((mesh_bounds[1] - mesh_bounds[0]).max()) + 2 * config.padding
    return float(np.float32(size / config.resolution))


def output_path(name: str, source_hash: str, out_dir: Path | str, config: CompileConfig) -> Path:
    """Return the output path of a compiled scene: `<name>-<8 hex digits of source and configuration>.gmdag`."""
    key = hashlib.sha256(f"{source_hash}:{config_hash(config)}".encode()).hexdigest()[:8]
    return Path(out_dir) / f"{file_stem(name)}-{key}.gmdag"


def without_key(file: Path) -> str:
    """Strip the cache-key suffix `-<8 hex digits>`, appended by the compiler, from a compiled file's stem."""
    return _KEY.sub("", file.stem)


def compiled_names(names: Iterable[str], out_dir: Path | str) -> set[str]:
    """Return the subset of scene names with a compiled file in a folder (any source and configuration, one listing)."""
    there = {without_key(file) for file in Path(out_dir).glob("*.gmdag") if _KEY.search(file.stem)}
    return {name for name in names if file_stem(name) in there}


def compiled_files(name: str, out_dir: Path | str) -> list[Path]:
    """List the compiled `.gmdag` files of a scene name in a folder, of any source and configuration, sorted."""
    return sorted(Path(out_dir).glob(f"{file_stem(name)}-{'[0-9a-f]' * 8}.gmdag"))


def compile_to_file(
    source: Path | str | Mesh,
    out_dir: Path | str,
    config: CompileConfig | None = None,
    progress: Progress | None = None,
    *,
    name: str | None = None,
) -> CompiledScene:
    """Compile a mesh into a `.gmdag` file in `out_dir`, or reuse the up-to-date file that is already there.

    The file is reused when source hash, compiler version and configuration are unchanged; a broken
    file is rebuilt. It appears in one rename, so that an error or a kill leaves nothing half-written.

    Args:
        source: A mesh file or a `Mesh`.
        out_dir: Folder of the results, made where missing.
        config: How to compile.
        progress: Called with the stage (as `compile_mesh`, then write) and the share of the whole that is done.
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
        name, source_hash = name or Path(source).stem, hash_source(Path(source))
    path = output_path(name, source_hash, out_dir, config)
    existing = _reusable(path, source_hash, config)
    if existing is not None:
        return CompiledScene(path, existing, True, time.perf_counter() - start)
    report = progress or (lambda _stage, _share: None)
    scene = replace(_compile(source, config, _spread(report)), name=name)
    if scene.source_hash != source_hash:
        raise MeshError(f"{source}: changed while it was read; compile it again when it is complete")
    report("write", _STAGES["write"][0])
    scene.save(path)
    write_atomically(_sidecar(path), json.dumps(_stamp(path, source_hash, config), indent=1).encode())
    report("done", 1.0)
    return CompiledScene(path, scene, False, time.perf_counter() - start)


def is_current(path: Path, source_hash: str, config: CompileConfig) -> bool:
    """Check whether a compiled file is up to date by its sidecar JSON and file size, without reading the scene."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads(_sidecar(path).read_text()) == _stamp(path, source_hash, config))
    return False


def store_verdict(path: Path, scene: Scene, verdict: str) -> None:
    """Save a spawn check's result (PASS, MARGINAL, FAIL) in a version 2 file and its manifest; it stays reusable.

    Args:
        path: The scene's file.
        scene: Its content.
        verdict: PASS, MARGINAL or FAIL.

    Raises:
        SceneError: The file or the manifest cannot be written.
    """
    replace(scene, verdict=verdict).save(path)
    note_verdict(path, verdict)
    # A scene that was saved alone has no sidecar.
    with contextlib.suppress(OSError, ValueError):
        stamp = json.loads(_sidecar(path).read_text())
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


@contextlib.contextmanager
def collected_warnings(logger: str = "navi_core.scenes") -> Iterator[list[str]]:
    """Context manager that collects log warnings below `logger`, so that they do not break a progress bar."""
    notes: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger(logger)
    # Not propagated: the caller passes them to an outer collector once.
    before = log.propagate, log.handlers
    log.propagate, log.handlers = False, [handler]
    try:
        yield notes
    finally:
        log.propagate, log.handlers = before
