"""Reader of Habitat scene instances (`X.scene_instance.json`, of ReplicaCAD and HSSD): a stage and placed objects.

A scene instance names templates; a template is a `.stage_config.json` or `.object_config.json` that names a mesh, or
the mesh itself. They are looked for by name in the dataset: the nearest folder above with a
`.scene_dataset_config.json`.
Articulated objects (URDF) are not read; a warning counts them.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import MAX_TRIANGLES, Part, read_json, reading, rotation_matrix

INSTANCE_SUFFIX = ".scene_instance.json"
"""How the file's name ends."""
_CONFIGS = (".stage_config.json", ".object_config.json")
_ASSETS = (".glb", ".gltf", ".obj", ".ply", ".stl")
_MAX_FILES = 500_000
_MAX_INSTANCES = 100_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Template:
    """Object or stage template of a Habitat dataset: its mesh file and configuration."""

    asset: Path
    config: Path | None
    settings: dict[str, Any]


def read_scene_instance(path: Path, read: Callable[[Path], list[Part]]) -> list[Part]:
    """Read a scene instance: the placed parts of the stage and of every object; +Y up, metres.

    An object is named by its class in the dataset's semantic lexicon where it has one, else by its template.

    Args:
        path: The file.
        read: Reads the mesh file of a template.

    Raises:
        MeshError: The file is broken, or a template or mesh it names cannot be found or read.
    """
    document = _document(path)
    templates = _templates(path, document)
    lexicon = _lexicon(dataset_root(path))
    cache: dict[Path, list[Part]] = {}
    parts: list[Part] = []
    total = 0
    for row, stage in _rows(document):
        template = templates[str(row["template_name"])]
        if template.asset not in cache:
            cache[template.asset] = read(template.asset)
        class_name = lexicon.get(template.settings.get("semantic_id"), "")
        own = () if stage else (class_name, Path(str(row["template_name"])).name)
        total += sum(len(part.faces) for part in cache[template.asset])
        if total > MAX_TRIANGLES:
            raise MeshError(f"its instances have more than {MAX_TRIANGLES} triangles; split the scene")
        parts += _place(cache[template.asset], template.settings, row, stage, tuple(n for n in own if n))
    missing = len(document.get("articulated_object_instances") or [])
    if missing:
        _log.warning("%s: %d articulated objects (URDF) are not read and are missing in the scene", path, missing)
    return parts


def instance_templates(path: Path) -> tuple[list[Path], list[str], int]:
    """Return a scene instance's mesh files, its missing templates, and its number of articulated objects.

    Raises:
        MeshError: The file is broken.
    """
    document = _document(path)
    lost: list[str] = []
    templates = _templates(path, document, lost)
    found = [template.asset for template in templates.values()]
    return found, lost, len(document.get("articulated_object_instances") or [])


def instance_files(path: Path) -> list[Path]:
    """Return the side files of a scene instance: meshes, their configurations, the semantic lexicon.

    Raises:
        MeshError: The file is broken, or a template is missing.
    """
    templates = _templates(path, _document(path)).values()
    configs = (template.config for template in templates if template.config is not None)
    return [*(template.asset for template in templates), *configs, *_lexicon_files(dataset_root(path))]


def dataset_root(path: Path) -> Path:
    """Return the dataset's root: the nearest parent with a `.scene_dataset_config.json`, else the file's folder."""
    for folder in list(Path(os.path.realpath(path)).parents)[:6]:
        if any(folder.glob("*.scene_dataset_config.json")):
            return folder
    return Path(os.path.realpath(path)).parent


def _rows(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield (instance entry, whether it is the stage) of a scene instance document."""
    stage = document.get("stage_instance")
    if isinstance(stage, dict):
        yield stage, True
    for row in document.get("object_instances") or []:
        yield row, False


def _document(path: Path) -> dict[str, Any]:
    document = read_json(path)
    objects = document.get("object_instances") or []
    if not isinstance(objects, list) or not all(isinstance(row, dict) for row in objects):
        raise MeshError(f"{path}: 'object_instances' is not a list of objects")
    if len(objects) > _MAX_INSTANCES:
        raise MeshError(f"{path}: {len(objects)} objects, more than {_MAX_INSTANCES}")
    if not objects and not isinstance(document.get("stage_instance"), dict):
        raise MeshError(f"{path}: has neither a stage_instance nor object_instances")
    return document


def _templates(path: Path, document: dict[str, Any], lost: list[str] | None = None) -> dict[str, _Template]:
    """Resolve the templates of a document by name; unresolved names go to `lost`, or raise without it."""
    root = dataset_root(path)
    index = _index(root)
    found: dict[str, _Template] = {}
    for name in dict.fromkeys(str(row.get("template_name")) for row, _ in _rows(document)):
        try:
            found[name] = _template(name, index, path, root)
        except MeshError:
            if lost is None:
                raise
            lost.append(name)
    return found


def _index(root: Path) -> dict[str, Path]:
    """Index a dataset's configurations and meshes by name; configurations win, then the first path."""
    configs: dict[str, Path] = {}
    assets: dict[str, Path] = {}
    count = 0
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        count += len(files)
        if count > _MAX_FILES:
            raise MeshError(f"{root}: more than {_MAX_FILES} files; keep the dataset in a folder of its own")
        for name in sorted(files):
            kind = next((suffix for suffix in _CONFIGS if name.endswith(suffix)), None)
            if kind is not None:
                configs.setdefault(name.removesuffix(kind), Path(folder) / name)
            elif name.lower().endswith(_ASSETS):
                assets.setdefault(Path(name).stem, Path(folder) / name)
    return assets | configs


def _template(name: str, index: dict[str, Path], path: Path, root: Path) -> _Template:
    key = Path(name).name
    for suffix in (*_CONFIGS, *_ASSETS):
        key = key.removesuffix(suffix)
    found = index.get(key)
    if found is None:
        raise MeshError(f"{path}: the template {name!r} is nowhere under {root}; download the whole dataset")
    _require_inside(found, root)
    if not found.name.endswith(_CONFIGS):
        return _Template(found, None, {})
    settings = read_json(found)
    asset = settings.get("render_asset")
    if not isinstance(asset, str) or not os.path.isfile(file := found.parent / asset):
        raise MeshError(f"{found}: its render_asset {asset!r} does not exist; download the whole dataset")
    if not file.name.lower().endswith(_ASSETS):
        raise MeshError(f"{found}: its render_asset {asset!r} is no mesh file ({', '.join(_ASSETS)})")
    _require_inside(file, root)
    return _Template(file, found, settings)


def _require_inside(file: Path, root: Path) -> None:
    if not Path(os.path.realpath(file)).is_relative_to(root):
        raise MeshError(f"{file}: lies outside the dataset {root}, or is a link out of it; copy the file there")


def _place(
    parts: list[Part], settings: dict[str, Any], row: dict[str, Any], stage: bool, names: tuple[str, ...]
) -> list[Part]:
    """Transform a template's parts into the world; objects are placed by their centre of mass (Habitat's rule)."""
    turn = _orientation(settings.get("up", (0, 1, 0)), settings.get("front", (0, 0, -1)))
    scale = (
        np.broadcast_to(np.asarray(settings.get("scale", 1.0), float), 3)
        * float(settings.get("units_to_meters", 1.0))
        * float(row.get("uniform_scale", 1.0))
        * np.broadcast_to(np.asarray(row.get("non_uniform_scale", 1.0), float), 3)
    )
    placed = [part.points * scale @ turn.T for part in parts]
    centre = np.zeros(3)
    if not stage and str(row.get("translation_origin", "COM")).lower() != "asset_local" and placed:
        if "COM" in settings:
            centre = (np.asarray(settings["COM"], float).reshape(3) * scale) @ turn.T
        else:
            corners = np.concatenate(placed)
            centre = (corners.min(axis=0) + corners.max(axis=0)) / 2
    quaternion = np.asarray(row.get("rotation", (1, 0, 0, 0)), float).reshape(4)
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    rotation = rotation_matrix(x, y, z, w)
    move = np.asarray(row.get("translation", (0, 0, 0)), float).reshape(3)
    out = [
        replace(part, points=(points - centre) @ rotation.T + move, objects=(*names, *part.objects))
        for part, points in zip(parts, placed, strict=True)
    ]
    if not all(np.isfinite(part.points).all() for part in out):
        raise MeshError(f"the placement of {row['template_name']!r} is not finite")
    return out


def _orientation(up: npt.ArrayLike, front: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the rotation matrix that takes an asset's `up` to +Y and its `front` to −Z."""
    y, z = np.asarray(up, float).reshape(3), -np.asarray(front, float).reshape(3)
    y = y / np.linalg.norm(y)
    z = z - y * (z @ y)
    z = z / np.linalg.norm(z)
    return np.stack([np.cross(y, z), y, z])


def _lexicon_files(root: Path) -> list[Path]:
    return sorted(root.glob("configs/ssd/*semantic_lexicon.json")) + sorted(
        root.glob("semantics/*semantic_lexicon.json")
    )


def _lexicon(root: Path) -> dict[Any, str]:
    """Load the class names by semantic id from the dataset's lexicon; empty if it has none."""
    found: dict[Any, str] = {}
    for file in _lexicon_files(root):
        with reading(file):
            found |= {int(row["id"]): str(row["name"]) for row in read_json(file)["classes"]}
    return found
