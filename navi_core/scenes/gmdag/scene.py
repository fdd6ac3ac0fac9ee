"""Compiled scene class and atomic file writing, shared by both `.gmdag` versions."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import struct
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from navi_core.errors import SceneError
from navi_core.kernels import SurfaceTree
from navi_core.kernels.octree.dag import unfold
from navi_core.scenes.decimation import Decimation
from navi_core.scenes.gmdag.dag import Dag, build_dag

MAGIC = b"GDAG"
"""First four bytes of every `.gmdag` file."""
HEADER = struct.Struct("<4sIIffffI")
"""Begin of every `.gmdag` file: magic, version, resolution, minimum corner x y z [m], voxel size [m], length."""
_STALE_SECONDS = 3600.0
"""Age from which a temporary file has no living writer [s]."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Compiled scene, ready for simulation: exact triangles (version 2) or those of a distance octree (version 1)."""

    name: str
    """Scene name, usually the source file's stem."""
    resolution: int
    """Voxels along one edge of the cube."""
    voxel_size: float
    """Edge of a voxel [m]."""
    bounds: npt.NDArray[np.float64]
    """The padded cube [m], shape (2, 3): minimum, maximum."""
    mesh_bounds: npt.NDArray[np.float64]
    """Tight axis-aligned bounds of the surface [m], shape (2, 3)."""
    semantic_names: dict[int, str]
    """Name of each semantic id; 1 is "surface"."""
    source_hash: str
    """SHA-256 (hex) of the source; empty for version 1 files, which do not keep it."""
    compile_hash: str
    """Hash of compiler version and configuration; empty for version 1 files."""
    verdict: str | None
    """Spawn verdict PASS, MARGINAL or FAIL; None before an examination."""
    version: int
    """1 or 2: the file format."""
    triangles: npt.NDArray[np.float32] | None = None
    """Corner positions [m], shape (F, 3, 3)."""
    triangle_semantic: npt.NDArray[np.int32] | None = None
    """Semantic id per triangle, shape (F,)."""
    dag: Dag | None = None
    """Version 2: the octree whose leaves list triangles."""
    compiler_version: int = 0
    """Version 2: version of the compiler that made it."""
    decimation: Decimation | None = None
    """Version 2: what merging triangles changed; None where none were merged."""
    nodes: npt.NDArray[np.uint64] | None = None
    """Version 1: octree words, shape (N,), see `octree`."""

    @cached_property
    def tree(self) -> SurfaceTree | None:
        """Return the octree cells and triangle lists for CUDA ray casting, unfolded lazily; None without triangles."""
        if self.triangles is None:
            return None
        dag = self.dag or build_dag((self.triangles - self.bounds[0]) / self.voxel_size, self.resolution)
        return unfold(dag.children, dag.bounds, dag.items, self.resolution)

    @property
    def has_surface(self) -> bool:
        """Return whether the scene has a surface that a ray can hit; a version 1 file may be empty space."""
        return self.triangles is not None and len(self.triangles) > 0

    def save(self, path: Path | str, version: Literal[1, 2] = 2) -> Path:
        """Save the scene to `path` atomically and return the path.

        Args:
            path: Target file; its folder is made where missing.
            version: File format. A version 1 scene cannot become version 2: its triangles are not the exact ones.

        Raises:
            SceneError: The version is unknown, or the scene lacks what that version holds.
        """
        # The formats need the scene they make.
        from navi_core.scenes.gmdag.file import WRITERS

        if version not in WRITERS:
            raise SceneError(f"no .gmdag version {version!r}; allowed: {', '.join(map(str, WRITERS))}")
        try:
            target = Path(path)
        except TypeError:
            raise SceneError(f"the path to save to is a string or a Path, not {type(path).__name__}") from None
        WRITERS[version](self, target)
        return target

    def hashes(self) -> frozenset[str]:
        """Return the hashes that identify the scene: content hash, and source hash where known."""
        return frozenset({self.content_hash(), self.source_hash} - {""})

    def content_hash(self) -> str:
        """Return the SHA-256 (hex) of the scene's content: geometry, semantics, cube.

        Name, verdict and source are excluded: scenes of equal content simulate identically.
        """
        digest = hashlib.sha256(struct.pack("<4sIId", MAGIC, self.version, self.resolution, self.voxel_size))
        digest.update(np.asarray(self.bounds, dtype="<f8").tobytes())
        for key in sorted(self.semantic_names):
            digest.update(f"{key}\0{self.semantic_names[key]}\0".encode())
        made = ((self.triangles, "<f4"), (self.triangle_semantic, "<i4"))
        for array, dtype in made if self.nodes is None else ((self.nodes, "<u8"),):
            if array is not None:
                digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
        return digest.hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: temporary file, then rename; readers never see a partial file.

    Raises:
        SceneError: The folder cannot be written or the disk is full; nothing is left behind.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_left(path.parent, path.name)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; scenes are as readable as the user's other files.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException as error:
        # Also where the process is stopped in the middle.
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError | ValueError):  # a name that no file can have is a ValueError
            raise SceneError(f"{path}: cannot be written: {error}") from None
        raise


def sweep_left(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that killed writers left behind in a folder: those of one file, or of all."""
    for left in folder.glob(f".{'*' if name is None else glob.escape(name)}.{'?' * 8}.tmp"):
        # Others may sweep, or end, at the same time.
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime >= _STALE_SECONDS:
                left.unlink()
