"""Dataset layouts (HM3D, Gibson, Replica, Gazebo …): scene files, companion files and usual settings.

Layouts are those of the datasets' releases: HM3D (`00800-TEEsavR23oF/TEEsavR23oF.basis.glb`), Matterport3D
(`17DRP5sb8fy/17DRP5sb8fy.glb`, `.house`, `_semantic.ply`), Gibson (`Allensville.glb`, `.scn`, `_semantic.ply`; raw:
`Allensville/mesh_z_up.obj`), Replica (`apartment_0/mesh.ply`, `habitat/mesh_semantic.ply`) and Habitat scene datasets
(ReplicaCAD, HSSD: `configs/scenes/X.scene_instance.json`). Gazebo's packages have `worlds/X.world` (or `.sdf`) beside
`models/NAME/model.config`.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from navi_core.errors import NaviError, SceneError
from navi_core.scenes.readers.annotation import annotation_key
from navi_core.scenes.readers.gazebo.plan import is_world, is_world_name, plan_world
from navi_core.scenes.readers.habitat_scene import INSTANCE_SUFFIX, dataset_root
from navi_core.scenes.readers.mesh_file import is_mesh_file

_log = logging.getLogger(__name__)
_MAX_FILES = 300_000
_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}
_ANONYMOUS = {"mesh", "mesh_semantic", "mesh_z_up", "scene", "model"}
"""Stems that many folders share: the folder names the scene."""


_EXPORTED = (".glb", ".gltf", ".obj", ".ply", ".stl")
"""What a COLLADA file beside one of the same name was exported to: it was not read once."""
_COLLISIONS = ("_collision", ".collision", ".collider", "_collider")
"""Endings of the stems of collision meshes beside the mesh that is seen."""


@dataclass(frozen=True)
class Layout:
    """Recognised dataset layout of a scene folder."""

    name: str
    """HM3D, Habitat scenes, Gazebo worlds, Replica, Matterport3D, Gibson or plain meshes."""
    why: str
    """What it was recognised by."""
    up_axis: str
    """`y` or `z`: what its files use."""
    up_source: str
    """Where `up_axis` comes from."""


def list_files(root: Path, progress: Callable[[int], None] | None = None) -> tuple[list[Path], bool]:
    """List every file under a folder recursively, sorted; also return whether the listing was cut at 300,000 files.

    Hidden folders and files are left out. Links to folders are followed, as downloaders place datasets by them; a
    folder that is reached in several ways is listed once, under its own path where that lies below the root.

    Args:
        root: The folder.
        progress: Called with the number of files found so far.

    Raises:
        SceneError: There is no such folder.
    """
    if not os.path.isdir(root):
        raise SceneError(f"{root}: no such folder")
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    begin = [root]
    while begin:
        links: list[Path] = []
        for folder, inner, files in (step for top in begin for step in os.walk(top, onerror=_left_out)):
            place = os.stat(folder)
            known = (place.st_dev, place.st_ino) in seen
            seen.add((place.st_dev, place.st_ino))
            inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
            if known:
                inner.clear()
                continue
            links += [Path(folder, name) for name in inner if os.path.islink(os.path.join(folder, name))]
            found += [Path(folder, name) for name in sorted(files) if not name.startswith(".")]
            if progress is not None:
                progress(len(found))
            if len(found) > _MAX_FILES:
                return sorted(found[:_MAX_FILES]), True
        begin = links
    return sorted(found), False


def _left_out(error: OSError) -> None:
    _log.warning("%s: cannot be read and is left out: %s", error.filename, error.strerror)


def split_scenes(files: Iterable[Path]) -> tuple[list[Path], dict[Path, str]]:
    """Separate mesh files into scenes and companion files; each companion file comes with the reason.

    Args:
        files: Files of a folder; others than meshes are ignored.
    """
    everything = set(files)
    meshes = sorted(file for file in everything if is_mesh_file(file))
    instances = {file for file in meshes if file.name.endswith(INSTANCE_SUFFIX)}
    datasets = {dataset_root(file) for file in instances}
    worlds = {file for file in meshes if is_world(file)}
    models = _model_folders(everything, worlds)
    parts: dict[Path, str] = {}
    for file in meshes:
        # Path.resolve raises at a link that leads to itself.
        inside = any(Path(os.path.realpath(file)).is_relative_to(root) for root in datasets)
        model = next((folder.name for folder in file.parents if folder in models), "")
        reasons = (
            _belongs(file, everything),
            "a stage or object of the scene instances" if inside and file not in instances else "",
            f"of the Gazebo model {model}" if model and file not in worlds else "",
            "a Gazebo model" if is_world_name(file) and file not in worlds else "",
        )
        if any(reasons):
            parts[file] = next(filter(None, reasons))
    if worlds and any(file not in parts and file not in worlds for file in meshes):
        placed = _placed(worlds)
        for file in meshes:
            if file not in worlds and (world := placed.get(os.path.realpath(file))):
                parts.setdefault(file, f"of the Gazebo world {world}")
    return [file for file in meshes if file not in parts], parts


def _model_folders(files: set[Path], worlds: set[Path]) -> set[Path]:
    """Return the Gazebo model folders: those with a model.config, and those beside a package's `worlds`."""
    found = {file.parent for file in files if file.name == "model.config"}
    # A world outside a package, for example among scans, does not claim the folders beside it as models.
    homes = {world.parent.parent for world in worlds if world.parent.name == "worlds"}
    return found | {home / name for home in homes for name in ("models", "meshes", "fuel_models")}


def _placed(worlds: Iterable[Path]) -> dict[str, str]:
    """Map files that Gazebo worlds reference (meshes, models) to the name of a world that uses them."""
    found: dict[str, str] = {}
    for world in sorted(worlds):
        # A broken file is reported when it is read.
        with contextlib.suppress(NaviError):
            found |= {os.path.realpath(file): world.name for file in plan_world(world).files}
    return found


def scene_name(file: Path) -> str:
    """Return the scene name of a file: its stem, or the folder's name where the stem is empty."""
    name = annotation_key(file)
    folder = Path(os.path.realpath(file)).parent
    if name in _ANONYMOUS or file.stem in _ANONYMOUS:
        return (folder.parent if folder.name == "habitat" else folder).name or name
    return name


def recognise(root: Path, files: Collection[Path]) -> Layout:
    """Recognise the dataset layout of a folder.

    Args:
        root: The folder.
        files: Its files.
    """
    configs = [file for file in files if file.name.endswith(".scene_dataset_config.json")]
    for name, test, what in _SIGNS:
        hits = [file for file in files if test(file)]
        if hits:
            more = f" and {len(hits) - 1} more" if len(hits) > 1 else ""
            shown = os.path.relpath(hits[0], root)
            axis, source = _up_axis(configs, name)
            return Layout(name, f"{what}: {shown}{more}", axis, source)
    return Layout("plain meshes", "no file of a known dataset", "y", "the usual axis of glTF and OBJ")


_HM3D_FOLDER = re.compile(r"^\d{5}-[A-Za-z0-9]{11}$")
_SIGNS: tuple[tuple[str, Callable[[Path], bool], str], ...] = (
    ("Habitat scenes", lambda f: f.name.endswith(INSTANCE_SUFFIX), "scene instances"),
    ("Gazebo worlds", is_world, "worlds"),
    ("HM3D", lambda f: bool(_HM3D_FOLDER.match(f.parent.name)), "folders of five digits, a dash and eleven letters"),
    ("HM3D", lambda f: f.name.endswith((".semantic.txt", ".semantic.glb", ".basis.glb")), "HM3D file names"),
    ("HM3D", lambda f: f.name.startswith("hm3d"), "its dataset configuration"),
    ("Replica", lambda f: f.name in ("info_semantic.json", "mesh_semantic.ply", "glass.sur"), "Replica file names"),
    ("Matterport3D", lambda f: f.suffix == ".house", "Matterport house files"),
    ("Matterport3D", lambda f: f.name.startswith("mp3d") or f.parent.name == "region_segmentations", "its file names"),
    ("Gibson", lambda f: f.suffix == ".scn" or f.name == "mesh_z_up.obj", "Gibson file names"),
    ("Gibson", lambda f: f.name.startswith("gibson"), "its dataset configuration"),
)
_USUAL_UP = {"HM3D": "z", "Matterport3D": "z", "Gibson": "z", "Replica": "z"}
_TURNED = {
    "Habitat scenes": "scene instances are placed with +Y up",
    "Gazebo worlds": "worlds have +Z up and are turned when they are read",
}


def _up_axis(configs: list[Path], name: str) -> tuple[str, str]:
    if name in _TURNED:
        return "y", _TURNED[name]
    for config in configs:
        try:
            up = json.loads(config.read_bytes())["stages"]["default_attributes"]["up"]
            axis = {(0.0, 1.0, 0.0): "y", (0.0, 0.0, 1.0): "z"}.get((float(up[0]), float(up[1]), float(up[2])))
        except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError):
            continue
        if axis is not None:
            return axis, f"'up' in {config.name}"
    return _USUAL_UP[name], f"usual for {name}; no scene_dataset_config.json confirms it"


def _belongs(file: Path, files: set[Path]) -> str:
    """Classify a mesh file as companion file or scene; return why it is a companion, empty where it is a scene."""
    folder, key, stem, lower = file.parent, annotation_key(file), file.stem, file.name.lower()
    twin = next((stem + ending for ending in _EXPORTED if folder / (stem + ending) in files), "")
    seen = next((stem.removesuffix(ending) for ending in _COLLISIONS if stem.endswith(ending)), "")
    rules = (
        (lower.endswith(".semantic.glb"), f"the annotation of {key}"),
        (
            lower.endswith(".basis.glb") and folder / f"{key}.glb" in files,
            f"the same scene as {key}.glb with other textures",
        ),
        (lower == "mesh_preseg_semantic.ply", "an older state of mesh_semantic.ply"),
        (
            lower == "mesh_semantic.ply" and folder.name == "habitat" and folder.parent / "mesh.ply" in files,
            "the annotation of mesh.ply",
        ),
        (lower.endswith("_semantic.ply") and folder / f"{key}.glb" in files, f"the annotation of {key}.glb"),
        (lower == "mesh_z_up.obj" and folder / "mesh.obj" in files, "the same scene as mesh.obj"),
        (lower.endswith(".dae") and twin, f"the same scene as {twin}"),
        (folder.name == "region_segmentations", "one room of a Matterport house"),
        (seen and folder / (seen + file.suffix) in files, "a collision mesh"),
    )
    return next((reason for holds, reason in rules if holds), "")
