"""Facts of a mesh file from its header, and estimates of what compiling it takes."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from navi_core.config import CompileConfig
from navi_core.errors import MeshError
from navi_core.scenes.readers.collada import count_collada
from navi_core.scenes.readers.gazebo.plan import is_world_name, plan_world
from navi_core.scenes.readers.gltf import read_gltf_facts
from navi_core.scenes.readers.habitat_scene import INSTANCE_SUFFIX, instance_templates
from navi_core.scenes.readers.ply import read_ply_header
from navi_core.scenes.readers.stl import is_text_stl

__all__ = ["CompileEstimate", "MeshFacts", "estimate_compile", "read_facts"]

_SAMPLE = 1 << 20
"""Bytes sampled of a text file."""
_SIMPLE = 100
"""Estimated triangles of a simple shape of a world."""


@dataclass(frozen=True)
class MeshFacts:
    """Facts known without decoding the geometry."""

    triangles: int
    """Triangles over all instances; an estimate where `exact` is false."""
    exact: bool
    """True where the header counts the triangles, or their bytes do."""
    bounds: npt.NDArray[np.float64] | None
    """Bounds (2, 3) in the file's units and axes; None where only the geometry has them."""
    colors: bool
    """True where vertices or faces have colours."""
    properties: tuple[str, ...] = ()
    """Integer properties of the faces (PLY)."""


@dataclass(frozen=True)
class CompileEstimate:
    """Upper estimate of what compiling takes."""

    memory: int
    """Peak memory beyond the process' own [bytes]."""
    seconds: float
    """Time on one core [s]."""
    disk: int
    """Size of the compiled file [bytes]."""


def read_facts(path: Path) -> MeshFacts:
    """Return the facts in a mesh file's header.

    Text files are sampled.

    Raises:
        MeshError: The header is broken, or the file is of another type.
    """
    suffix = path.suffix.lower()
    if not os.path.isfile(path):
        raise MeshError(f"{path}: no such file")
    try:
        size = path.stat().st_size
        if size == 0:
            raise MeshError(f"{path}: the file is empty (0 bytes)")
        if path.name.lower().endswith(INSTANCE_SUFFIX):
            return _instance_facts(path)
        if is_world_name(path):
            return _world_facts(path)
        if suffix == ".dae":
            return MeshFacts(count_collada(path), False, None, False)
        if suffix in (".glb", ".gltf"):
            triangles, bounds, colors = read_gltf_facts(path)
            return MeshFacts(triangles, True, bounds, colors)
        if suffix == ".ply":
            return _ply_facts(path)
        if suffix == ".stl":
            return _stl_facts(path, size)
        if suffix == ".obj":
            return _text_facts(path, size, b"f ")
    except OSError as error:
        raise MeshError(f"{path}: cannot be read: {error.strerror or error}") from None
    raise MeshError(f"{path}: file type {path.suffix!r} is not supported")


def estimate_compile(triangles: int, config: CompileConfig) -> CompileEstimate:
    """Estimate memory, time and disk of compiling, by rules measured on furnished houses.

    Coarser than `estimate_memory`, which needs the triangles themselves.

    Args:
        triangles: Triangles of the mesh.
        config: Merging triangles takes memory and time.
    """
    merging = config.decimate is not None
    return CompileEstimate(
        memory=int((128 << 20) + (2400 if merging else 1200) * triangles),
        seconds=0.2 + (80e-6 if merging else 8e-6) * triangles,
        disk=int(100_000 + 24 * triangles),
    )


def _ply_facts(path: Path) -> MeshFacts:
    _, elements, _ = read_ply_header(path)
    by_name = {element.name: element for element in elements}
    face, vertex = by_name.get("face"), by_name.get("vertex")
    if face is None or face.count == 0:
        raise MeshError(f"{path}: no triangles: it holds points without faces; export a surface")
    names = set(face.names()) | (set(vertex.names()) if vertex else set())
    ids = tuple(name for name in face.names() if name.endswith("_id"))
    # Scans come as triangles or as quads; twice the faces errs upwards.
    return MeshFacts(2 * face.count, False, None, {"red", "green", "blue"} <= names, ids)


def _stl_facts(path: Path, size: int) -> MeshFacts:
    with path.open("rb") as stream:
        head = stream.read(84)
    count = int.from_bytes(head[80:84], "little")
    if not is_text_stl(head, size):
        if size < 84 + 50 * count:
            raise MeshError(f"{path}: truncated: {count} triangles need {84 + 50 * count} bytes, {size} are there")
        return MeshFacts(count, True, None, False)
    return _text_facts(path, size, b"facet")


def _text_facts(path: Path, size: int, key: bytes) -> MeshFacts:
    with path.open("rb") as stream:
        stream.seek(max(0, size // 2 - _SAMPLE // 2))
        middle = stream.read(_SAMPLE)
        stream.seek(max(0, size - _SAMPLE))
        # OBJ files list vertices first: the end of the file is where the faces are.
        last = stream.read(_SAMPLE)
    share = max(_density(block, key) for block in (middle, last))
    return MeshFacts(math.ceil(share * size), False, None, False)


def _density(block: bytes, key: bytes) -> float:
    return sum(line.lstrip().startswith(key) for line in block.splitlines()) / max(len(block), 1)


def _instance_facts(path: Path) -> MeshFacts:
    assets, lost, _ = instance_templates(path)
    if lost:
        raise MeshError(f"{path}: {len(lost)} templates are missing, first {lost[0]!r}; download the whole dataset")
    return MeshFacts(sum(read_facts(asset).triangles for asset in assets), False, None, False)


def _world_facts(path: Path) -> MeshFacts:
    shapes = plan_world(path).shapes
    counts: dict[Path, int] = {}
    for mesh in {shape.mesh for shape in shapes if shape.mesh is not None}:
        # A broken mesh is left out of its world.
        with contextlib.suppress(MeshError):
            counts[mesh] = read_facts(mesh).triangles
    return MeshFacts(sum(_SIMPLE if s.mesh is None else counts.get(s.mesh, 0) for s in shapes), False, None, False)
