"""Reading mesh files through trimesh: every instance placed, every name kept, every fault a `MeshError`."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from navi_core.errors import ConfigError, MeshError
from navi_core.scenes.gltf_check import check_glb, check_gltf, gltf_side_files
from navi_core.scenes.mesh import Mesh, check_mesh
from navi_core.scenes.obj_reader import read_obj
from navi_core.scenes.semantics import UNKNOWN_NAME, build_vocabulary

__all__ = ["MESH_SUFFIXES", "hash_source", "read_mesh"]

MESH_SUFFIXES = (".glb", ".gltf", ".obj", ".ply", ".stl")
"""File types that can be read."""

_MAX_TRIANGLES = 50_000_000
"""Triangles over all instances: a small file can place one mesh a million times."""

_GENERIC = re.compile(
    r"^(world|scene|root|geometry|mesh|node|object|default|unnamed|material|none)?[._ -]?\d{0,2}$", re.I
)
"""Names that exporters make up; they say nothing about what a surface is."""


def read_mesh(path: Path | str, *, up_axis: Literal["y", "z"] = "y", unit_scale: float = 1.0) -> Mesh:
    """Read a mesh file into world coordinates: +Y up, metres.

    Scene-graph transforms are applied to every instance. A face's semantic is the name of its node,
    else of its geometry or material, else "surface".

    Args:
        path: A .glb, .gltf, .obj, .ply or .stl file.
        up_axis: The file's up axis; "z" is turned to +Y (x, y, z → x, z, −y).
        unit_scale: Metres per unit of the file.

    Raises:
        MeshError: The file is missing, of another type, broken, or holds no usable surface.
        ConfigError: `up_axis` or `unit_scale` is impossible.
    """
    file = Path(path)
    if up_axis not in ("y", "z"):
        raise ConfigError(f"up_axis {up_axis!r} is not one of: y, z")
    if not (np.isfinite(unit_scale) and unit_scale > 0):
        raise ConfigError(f"unit_scale {unit_scale!r} must be a positive number of metres per unit")
    source_hash = hash_source(file)
    _check_container(file)
    parts = _load(file)
    if not parts:
        raise MeshError(f"{file}: the file holds no triangles; export a surface, not points or curves")
    vocabulary = build_vocabulary(name for name, _, _ in parts)
    ids = {name: i for i, name in vocabulary.items()}
    offsets = np.cumsum([0, *(len(points) for _, points, _ in parts)])
    if offsets[-1] >= 2**31:
        raise MeshError(f"{file}: {offsets[-1]} vertices do not fit 32-bit indices; split the scene")
    vertices = np.concatenate([points for _, points, _ in parts]) * unit_scale
    if up_axis == "z":
        vertices = vertices[:, [0, 2, 1]] * np.array([1.0, 1.0, -1.0])
    faces = np.concatenate([f + o for (_, _, f), o in zip(parts, offsets, strict=False)]).astype(np.int32)
    semantic = np.concatenate([np.full(len(f), ids[name], dtype=np.int32) for name, _, f in parts])
    return check_mesh(Mesh(vertices, faces, semantic, vocabulary, file.stem, source_hash), str(file))


def hash_source(path: Path) -> str:
    """Return the SHA-256 (hex) of a mesh file and of the files it refers to.

    Side files are the buffers of a .gltf and the material libraries of an .obj.

    Raises:
        MeshError: The file is missing, unreadable or of an unsupported type.
    """
    _check_suffix(path)
    digest = hashlib.sha256()
    for file in (path, *_side_files(path)):
        try:
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        except FileNotFoundError:
            raise MeshError(_missing(file)) from None
        except OSError as error:
            raise MeshError(f"{file}: cannot be read: {error}") from None
    return digest.hexdigest()


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in MESH_SUFFIXES:
        hint = "; it is already compiled: load it with load_gmdag" if path.suffix.lower() == ".gmdag" else ""
        raise MeshError(
            f"{path}: file type {path.suffix!r} is not supported; allowed: {', '.join(MESH_SUFFIXES)}{hint}"
        )
    if not os.path.exists(path):
        raise MeshError(_missing(path))
    if not path.is_file():
        raise MeshError(f"{path}: is not a file")
    if path.stat().st_size == 0:
        raise MeshError(f"{path}: the file is empty (0 bytes)")


def _missing(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"{path}: does not exist, and neither does the folder {folder}"
    names = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in MESH_SUFFIXES)
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.4) or names[:3]
    known = f"; did you mean {', '.join(near)}?" if near else f"; {folder} holds no meshes"
    return f"{path}: does not exist{known} List what is there with: navi scenes discover {folder}"


def _side_files(path: Path) -> list[Path]:
    suffix = path.suffix.lower()
    if suffix == ".gltf":
        return gltf_side_files(path)
    if suffix == ".obj":
        with path.open("rb") as stream:
            names = [line[7:].strip().decode("utf-8", "replace") for line in stream if line.startswith(b"mtllib ")]
        # A lost material library costs names only; the surface is still whole.
        return [file for name in dict.fromkeys(names) if os.path.isfile(file := path.parent / name)]
    return []


def _check_container(path: Path) -> None:
    """Compare what the file's header promises with its size, before anything is allocated."""
    suffix, size = path.suffix.lower(), path.stat().st_size
    if suffix == ".glb":
        check_glb(path)
    elif suffix == ".gltf":
        check_gltf(path)
    elif suffix == ".stl":
        with path.open("rb") as stream:
            head = stream.read(84)
        if not head.lstrip().lower().startswith(b"solid"):
            if size < 84:
                raise MeshError(f"{path}: truncated: {size} bytes, a binary STL header alone has 84")
            count = int.from_bytes(head[80:84], "little")
            if size < 84 + 50 * count:
                raise MeshError(f"{path}: truncated: {count} triangles need {84 + 50 * count} bytes, {size} are there")
    elif suffix == ".ply":
        with path.open("rb") as stream:
            head = stream.read(65536)
        if not head.startswith(b"ply"):
            raise MeshError(f"{path}: does not begin with 'ply'")
        for kind, number in re.findall(rb"element (\w+) (\d+)", head.split(b"end_header")[0]):
            # Every element takes at least one byte, in text as in binary.
            if int(number) > size:
                raise MeshError(
                    f"{path}: truncated: {int(number)} elements {kind.decode()!r} cannot lie in {size} bytes"
                )


def _load(path: Path) -> list[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
    """Return (semantic name, vertices (V, 3), faces (F, 3)) of every instance, placed by its transform."""
    if path.suffix.lower() == ".obj":
        return [(_semantic_name(names, path), points, faces) for names, points, faces in read_obj(path)]
    import trimesh

    quiet = logging.getLogger("trimesh")
    level = quiet.level
    try:
        # trimesh logs every oddity before it raises; the error below says it once, and clearly.
        quiet.setLevel(logging.CRITICAL)
        scene = trimesh.load_scene(str(path), process=False)
        return _instances(scene, path)
    except MeshError:
        raise
    except (Exception, MemoryError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise MeshError(f"{path}: the file is broken or truncated ({reason})") from error
    finally:
        quiet.setLevel(level)


def _instances(scene: Any, path: Path) -> list[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
    parts = []
    total = 0
    for node in sorted(scene.graph.nodes_geometry):
        transform, key = scene.graph[node]
        geometry = scene.geometry[key]
        faces = getattr(geometry, "faces", None)
        if faces is None or len(faces) == 0:
            continue
        total += len(faces)
        if total > _MAX_TRIANGLES:
            raise MeshError(f"{path}: its instances have more than {_MAX_TRIANGLES} triangles; split the scene")
        transform = np.asarray(transform, dtype=np.float64)
        if not np.isfinite(transform).all():
            raise MeshError(f"{path}: the transform of node {node!r} is not finite")
        points = np.asarray(geometry.vertices, dtype=np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            points = points @ transform[:3, :3].T + transform[:3, 3]
        material = getattr(getattr(getattr(geometry, "visual", None), "material", None), "name", None)
        name = _semantic_name((node, key, material), path)
        parts.append((name, points, np.asarray(faces, dtype=np.int64)))
    return parts


def _semantic_name(candidates: Sequence[object], path: Path) -> str:
    """Return the first candidate that an author, not an exporter, chose."""
    for name in candidates:
        text = str(name).strip() if name else ""
        if text and text not in (path.name, path.stem) and not _GENERIC.match(text):
            return text
    return UNKNOWN_NAME
