"""Mesh reader of all supported formats: places instances, labels faces, raises `MeshError` for every fault.

Faces are named from annotations, vertex colours, object names and materials, in the order of `label_faces`.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from navi_core.config import CompileConfig
from navi_core.errors import ConfigError, MeshError, as_argument
from navi_core.scenes.mesh import Mesh, check_mesh
from navi_core.scenes.naming import UNKNOWN_NAME, build_vocabulary, missing_file, printable_name
from navi_core.scenes.readers.annotation import (
    annotation_files,
    annotation_key,
    color_codes,
    face_names,
    find_annotation,
    find_legend,
    read_legend,
)
from navi_core.scenes.readers.collada import collada_up_axis, read_collada, read_collada_facts
from navi_core.scenes.readers.gazebo.plan import WORLD_SUFFIXES, is_world_name, plan_world
from navi_core.scenes.readers.gazebo.world import read_world
from navi_core.scenes.readers.gltf import read_gltf, read_gltf_facts
from navi_core.scenes.readers.gltf_check import gltf_side_files
from navi_core.scenes.readers.habitat_scene import (
    INSTANCE_SUFFIX,
    instance_files,
    instance_templates,
    read_scene_instance,
)
from navi_core.scenes.readers.obj_stl import read_obj, read_obj_facts, read_stl, read_stl_facts
from navi_core.scenes.readers.part import MAX_TRIANGLES, MeshFacts, Part, reading
from navi_core.scenes.readers.ply import read_ply, read_ply_facts

_SOURCES = get_args(CompileConfig.model_fields["semantics"].annotation)
_MAX_COLORS = 1024
"""Different vertex colours that can be classes without a legend; a photographed surface has millions."""
_GENERIC = re.compile(
    r"^(world|scene|root|geometry|mesh|node|object|default|unnamed|material|none)?[._ -]?\d{0,2}$", re.I
)
"""Names that exporters generate, without semantic meaning."""


def label_faces(
    path: Path, parts: Sequence[Part], semantics: str = "auto"
) -> tuple[dict[int, str], npt.NDArray[np.int32]]:
    """Label all faces: return the vocabulary and the semantic id of every face of `parts` in order, shape (F,).

    A face without a name has the id 1, "surface". `auto` takes the first source there is: a complete annotation beside
    the file, vertex colours with a legend beside the file, else `object`, which falls back to the material face by
    face.

    Args:
        path: The mesh file; annotations and legends are looked for beside it.
        parts: Its parts, at least one.
        semantics: As `CompileConfig.semantics`.

    Raises:
        ConfigError: `semantics` is unknown.
        MeshError: The source asked for is missing or broken.
        SceneError: There are more names than ids.
    """
    if semantics not in _SOURCES:
        raise ConfigError(f"semantics {semantics!r} is not one of: {', '.join(_SOURCES)}")
    annotation, legend = find_annotation(path), find_legend(path)
    colored = any(part.colors is not None for part in parts)
    if semantics == "auto" and annotation is None:
        semantics = "vertex_color" if colored and legend is not None else "object"
    if semantics in ("auto", "annotation"):
        if annotation is None:
            raise MeshError(
                f"{path}: no complete annotation lies beside it; see what is missing with: navi doctor "
                f"{as_argument(path.parent)}"
            )
        names, index = face_names(annotation, parts, path)
    elif semantics == "vertex_color":
        if not colored:
            raise MeshError(f"{path}: has no vertex colours; use --semantics auto, object or material")
        names, index = _by_color(path, parts, legend)
    else:
        names = tuple(_part_name(part, path, semantics) for part in parts)
        index = np.repeat(np.arange(len(parts)), [len(part.faces) for part in parts])
    used = {names[i] for i in np.unique(index[index >= 0]).tolist()}
    vocabulary = build_vocabulary(used)
    ids = {name: i for i, name in vocabulary.items()}
    # The last entry serves index −1: an unnamed face.
    table = np.array([*(ids.get(name, 0) for name in names), ids[UNKNOWN_NAME]], dtype=np.int32)
    return vocabulary, table[index]


def _by_color(path: Path, parts: Sequence[Part], listed: Path | None) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    legend = read_legend(listed) if listed is not None else {}
    known = np.array(sorted(legend), dtype=np.int64)
    found = [color_codes(part, known) if part.colors is not None else np.full(len(part.faces), -1) for part in parts]
    colors, inverse = np.unique(np.concatenate(found), return_inverse=True)
    if listed is None:
        if len(colors) > _MAX_COLORS:
            raise MeshError(
                f"{path}: {len(colors)} different vertex colours are no classes; list theirs in "
                f'{path.stem}.semantic.txt (id,RRGGBB,"category",region), or use --semantics object'
            )
        legend = {code: f"#{code:06x}" for code in colors.tolist() if code >= 0}
    return tuple(legend.get(code, UNKNOWN_NAME) for code in colors.tolist()), inverse.reshape(-1)


def _part_name(part: Part, path: Path, source: str) -> str:
    """Return a part's first author-given name of the requested kind; exporter-generated names are skipped."""
    candidates = {"object": (*part.objects, part.material), "material": (part.material,)}.get(source, ())
    for name in candidates:
        text = printable_name(name)
        if text and text not in (path.name, path.stem) and not _GENERIC.match(text):
            return text
    return UNKNOWN_NAME


class _Format(NamedTuple):
    """Reader functions of one mesh file format, by file suffix."""

    parts: Callable[[Path], list[Part]]
    facts: Callable[[Path], MeshFacts]
    side_files: Callable[[Path], list[Path]] = annotation_files
    """Other files that the result depends on."""


_SIMPLE = 100
"""Estimated triangles of a simple shape of a world."""


def _instance_facts(path: Path) -> MeshFacts:
    assets, lost, _ = instance_templates(path)
    if lost:
        raise MeshError(f"{len(lost)} templates are missing, first {lost[0]!r}; download the whole dataset")
    return MeshFacts(sum(read_facts(asset).triangles for asset in assets))


def _world_facts(path: Path) -> MeshFacts:
    shapes = plan_world(path).shapes
    counts: dict[Path | None, int] = {None: _SIMPLE}
    for mesh in {shape.mesh for shape in shapes if shape.mesh is not None}:
        # A broken mesh is left out of its world.
        with contextlib.suppress(MeshError):
            counts[mesh] = read_facts(mesh).triangles
    return MeshFacts(sum(counts.get(shape.mesh, 0) for shape in shapes))


def _with_buffers(files: Iterable[Path]) -> list[Path]:
    """Return files, each text glTF followed by its buffer files."""
    found = list(files)
    for file in [file for file in found if file.suffix.lower() == ".gltf"]:
        # A broken file is reported or skipped where it is read.
        with contextlib.suppress(MeshError, OSError):
            found += [buffer for buffer in gltf_side_files(file) if buffer.is_file()]
    return found


_FORMATS = {
    ".glb": _Format(read_gltf, read_gltf_facts),
    ".gltf": _Format(read_gltf, read_gltf_facts, lambda path: [*gltf_side_files(path), *annotation_files(path)]),
    ".obj": _Format(read_obj, read_obj_facts),
    ".ply": _Format(read_ply, read_ply_facts),
    ".stl": _Format(read_stl, read_stl_facts),
    ".dae": _Format(read_collada, read_collada_facts),
    INSTANCE_SUFFIX: _Format(
        lambda path: read_scene_instance(path, read_parts),
        _instance_facts,
        lambda path: _with_buffers(instance_files(path)),
    ),
    **dict.fromkeys(
        WORLD_SUFFIXES,
        _Format(
            lambda path: read_world(path, read_parts),
            _world_facts,
            lambda path: _with_buffers(plan_world(path).files),
        ),
    ),
}
MESH_SUFFIXES = tuple(_FORMATS)
"""Endings of the files that can be read."""


def is_mesh_file(path: Path) -> bool:
    """Return whether a file's name has a supported suffix."""
    return path.name.lower().endswith(MESH_SUFFIXES)


def _format_of(path: Path) -> _Format:
    """Return the reader of a file by its suffix; the file must be readable."""
    if not is_mesh_file(path):
        hint = "; it is already compiled: load it with load_gmdag" if path.suffix.lower() == ".gmdag" else ""
        raise MeshError(
            f"{path}: file type {path.suffix!r} is not supported; allowed: {', '.join(MESH_SUFFIXES)}{hint}"
        )
    if not os.path.exists(path):
        names = (file.name for file in path.parent.glob("*") if is_mesh_file(file))
        command = "List what is there with: navi scenes list"
        raise MeshError(f"{path}: {missing_file(path, names, 'meshes', command)}")
    if not path.is_file():
        raise MeshError(f"{path}: is not a file")
    if path.stat().st_size == 0:
        raise MeshError(f"{path}: the file is empty (0 bytes)")
    return next(form for suffix, form in _FORMATS.items() if path.name.lower().endswith(suffix))


def read_mesh(
    path: Path | str, *, up_axis: Literal["y", "z"] = "y", unit_scale: float = 1.0, semantics: str = "auto"
) -> Mesh:
    """Read a mesh file and convert it to world coordinates: +Y up, metres.

    Scene-graph transforms are applied to every instance. Where names come from: `label_faces`.

    Args:
        path: A .glb, .gltf, .obj, .ply, .stl, .dae, .scene_instance.json, .world or .sdf file.
        up_axis: The file's up axis; "z" is turned to +Y (x, y, z → x, z, −y). Gazebo worlds and COLLADA files that
            declare +Z up are turned without it, once.
        unit_scale: Metres per unit of the file.
        semantics: As `CompileConfig.semantics`.

    Raises:
        MeshError: The file is missing, of another type, broken, or holds no usable surface.
        ConfigError: An option is impossible.
    """
    file = Path(path)
    if up_axis not in ("y", "z"):
        raise ConfigError(f"up_axis {up_axis!r} is not one of: y, z")
    if not (np.isfinite(unit_scale) and unit_scale > 0):
        raise ConfigError(f"unit_scale {unit_scale!r} must be a positive number of metres per unit")
    parts = read_parts(file)
    if not parts:
        raise MeshError(f"{file}: the file holds no triangles; export a surface, not points or curves")
    offsets = np.cumsum([0, *(len(part.points) for part in parts)])
    if offsets[-1] >= 2**31 or sum(len(part.faces) for part in parts) > MAX_TRIANGLES:
        raise MeshError(f"{file}: {offsets[-1]} vertices are too many for one scene; split it")
    # Not within `reading`, which would turn the error of an option into a fault of the file.
    with np.errstate(invalid="ignore", over="ignore"):
        vocabulary, semantic = label_faces(file, parts, semantics)
    with reading(file):
        vertices = np.concatenate([part.points for part in parts]) * unit_scale
        is_dae = file.suffix.lower() == ".dae"
        if up_axis == "z" or is_world_name(file) or (is_dae and collada_up_axis(file) == "z"):
            vertices = vertices[:, [0, 2, 1]] * np.array([1.0, 1.0, -1.0])
        faces = np.concatenate([part.faces + o for part, o in zip(parts, offsets, strict=False)]).astype(np.int32)
        # Hashed after reading: a caller that hashed it before detects a change meanwhile.
        source_hash = hash_source(file)
        return check_mesh(Mesh(vertices, faces, semantic, vocabulary, annotation_key(file), source_hash), str(file))


def hash_source(path: Path) -> str:
    """Return the SHA-256 (hex) of a mesh file and of the files it refers to.

    Side files are the buffers of a .gltf, the templates of a scene instance, the models and meshes of a world (with
    their buffers), annotations and legends.

    Raises:
        MeshError: The file is missing, unreadable or of an unsupported type.
    """
    digest = hashlib.sha256()
    for file in source_files(path):
        with reading(file), file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def source_files(path: Path) -> list[Path]:
    """Return a mesh file and its side files, the inputs of `hash_source`.

    Raises:
        MeshError: The file is missing, broken or of an unsupported type.
    """
    with reading(path):
        return list(dict.fromkeys((path, *_format_of(path).side_files(path))))


def read_parts(path: Path) -> list[Part]:
    """Read the placed parts of a mesh file in its own units and axes, unlabelled and unchecked.

    Raises:
        MeshError: The file is missing, of another type, or broken.
    """
    with reading(path):
        return _format_of(path).parts(path)


def read_facts(path: Path) -> MeshFacts:
    """Read mesh facts (triangle count, bounds) from a file's header; text files are sampled.

    Raises:
        MeshError: The file is missing, of another type, or its header is broken.
    """
    with reading(path):
        return _format_of(path).facts(path)
