"""Inspection of a scene folder before compilation: dataset type, scenes, missing files, next steps.

Only headers are read, no geometry: a folder of a thousand scans takes seconds. Small files are read whole, which
validates them fully; `deep` reads every file.
"""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from navi_core.config import CompileConfig
from navi_core.errors import NaviError, as_argument
from navi_core.scenes.compiler import collected_warnings, compiled_files, is_current, output_path
from navi_core.scenes.corpus.corpus import named_sources
from navi_core.scenes.corpus.layouts import Layout, list_files, recognise, split_scenes
from navi_core.scenes.gmdag.file import load_gmdag
from navi_core.scenes.manifest import read_manifest
from navi_core.scenes.memory import estimate_compile
from navi_core.scenes.mesh import lies_on_its_side, likely_unit, unit_doubt
from navi_core.scenes.readers.annotation import find_annotation, find_legend, missing_annotation
from navi_core.scenes.readers.gazebo.plan import is_world_name, plan_world
from navi_core.scenes.readers.habitat_scene import INSTANCE_SUFFIX, instance_templates
from navi_core.scenes.readers.mesh_file import hash_source, read_facts, read_mesh, source_files
from navi_core.scenes.readers.part import MeshFacts

_WHOLE_FILE, _WHOLE_FOLDER = 8 << 20, 96 << 20
"""Bytes of a file, and of all files together, that are read whole without `deep`."""
_MAX_SCENES = 2000
_FOREIGN = {
    **dict.fromkeys((".fbx", ".blend", ".3ds", ".usd", ".usda", ".usdc", ".usdz", ".off", ".x3d", ".wrl"),
                    "a mesh type that is not read: export it as GLB (Blender: File → Export → glTF 2.0)"),
    **dict.fromkeys((".las", ".laz", ".e57", ".pcd", ".xyz", ".pts"),
                    "a point cloud has no surface: reconstruct a mesh first (MeshLab: Screened Poisson)"),
    **dict.fromkeys((".zip", ".tar", ".gz", ".tgz", ".7z", ".rar"), "an archive: unpack it"),
    ".urdf": "an articulated object: it is left out of scenes",
    ".splat": "Gaussians have no surface: export a mesh",
}  # fmt: skip

Report = dict[str, Any]


# Above 60 lines: a third of it describes the report, another is the report itself.
def examine(
    root: Path,
    config: CompileConfig | None = None,
    compiled: Path | None = None,
    *,
    deep: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Report:
    """Inspect a scene folder and return a report as plain data.

    Args:
        root: The folder, searched with its subfolders.
        config: How the scenes would be compiled; decides the estimates and whether compiled files are current.
        compiled: Where compiled scenes lie, besides those inside the folder.
        deep: Read every file whole.
        progress: Called with what is looked at and the share done.

    Returns:
        `folder`; `layout` (name, why, up_axis, up_source); `scenes` (name, file, format, megabytes, triangles, exact,
        size, annotation, missing, compiled, memory_mb, seconds, disk_mb); `files` (file, kind mesh|part|scene|manifest|
        unusable, state ok|warning|broken, detail); `totals`; `next` (commands and advice).

    Raises:
        SceneError: There is no such folder.
    """
    config = config or CompileConfig()
    report = progress or (lambda _what, _share: None)
    files, cut = list_files(root, lambda count: report(f"{count} files", 0.0))
    meshes, parts = split_scenes(files)
    layout = recognise(root, files)
    # As they are named when the folder is compiled: without spaces, and no name twice.
    named = {source.path: source.name for source in named_sources([(f, f.relative_to(root)) for f in meshes], "")}
    rows: list[Report] = []
    scenes: list[Report] = []

    def add_row(file: Path, kind: str, state: str, detail: str) -> None:
        rows.append({"file": str(file.relative_to(root)), "kind": kind, "state": state, "detail": detail})

    budget = _WHOLE_FOLDER
    others = [file for file in files if _kind(file)]
    for number, file in enumerate([*meshes[:_MAX_SCENES], *others]):
        report(str(file.relative_to(root)), number / (len(meshes) + len(others)))
        if _kind(file):
            add_row(file, _kind(file), *_look_at_other(file))
            continue
        size = _bytes(file)
        whole = deep or (size <= min(_WHOLE_FILE, budget) and not file.name.endswith(INSTANCE_SUFFIX))
        budget -= size if whole else 0
        scene, state, detail = _look_at_mesh(file, named[file], size / 1e6, layout, config, compiled, whole)
        scenes.append({"file": str(file.relative_to(root))} | scene)
        add_row(file, "mesh", state, detail)
    for file, why in parts.items():
        add_row(file, "part", "ok", why)
    for file in files:
        if file.suffix.lower() in _FOREIGN:
            add_row(file, "unusable", "warning", _FOREIGN[file.suffix.lower()])
    rows.sort(key=lambda row: row["file"])
    return {
        "folder": str(root),
        "layout": asdict(layout),
        "resolution": config.resolution,
        "scenes": scenes,
        "files": rows,
        "totals": {
            "scenes": len(scenes),
            "files": len(files),
            "triangles": sum(scene["triangles"] for scene in scenes),
            "seconds": round(sum(scene["seconds"] for scene in scenes if scene["compiled"] != "current"), 1),
            "disk_mb": round(sum(scene["disk_mb"] for scene in scenes), 1),
            "memory_mb": max((scene["memory_mb"] for scene in scenes), default=0.0),
        },
        "next": _advice(root, layout, scenes, rows, cut or len(meshes) > _MAX_SCENES),
    }


def _kind(file: Path) -> str:
    if file.suffix.lower() == ".gmdag":
        return "scene"
    return "manifest" if file.name == "manifest.json" else ""


def _look_at_mesh(
    file: Path, name: str, megabytes: float, layout: Layout, config: CompileConfig, compiled: Path | None, whole: bool
) -> tuple[Report, str, str]:
    annotation, missing = _annotation(file)
    scene: Report = {
        "name": name,
        "format": INSTANCE_SUFFIX[1:] if file.name.endswith(INSTANCE_SUFFIX) else file.suffix.lower()[1:],
        "megabytes": round(megabytes, 2),
        "triangles": 0,
        "exact": False,
        "size": None,
        "annotation": annotation,
        "missing": missing,
        "compiled": "no",
        "memory_mb": 0.0,
        "seconds": 0.0,
        "disk_mb": 0.0,
    }
    try:
        facts = read_facts(file)
        axes = [0, 2, 1] if layout.up_axis == "z" else [0, 1, 2]
        size = None if facts.bounds is None else (facts.bounds[1] - facts.bounds[0])[axes]
        names, notes = "", list[str]()
        if whole:
            up_axis: Any = layout.up_axis
            with collected_warnings() as notes:
                mesh = read_mesh(file, up_axis=up_axis, semantics=config.semantics)
            size = mesh.bounds[1] - mesh.bounds[0]
            facts = MeshFacts(len(mesh.faces), True, mesh.bounds)
            names = f", {len(set(mesh.face_semantic.tolist()))} semantic names"
        scene["compiled"] = _compiled(file, name, config, compiled, whole)
    except (NaviError, OSError) as error:
        return scene, "broken", str(error).removeprefix(f"{file}: ")
    estimate = estimate_compile(facts.triangles, config)
    scene |= {
        "triangles": facts.triangles,
        "exact": facts.exact,
        "size": None if size is None else [round(float(v), 2) for v in size],
        "memory_mb": round(estimate.memory / 1e6, 1),
        "seconds": round(estimate.seconds, 1),
        "disk_mb": round(estimate.disk / 1e6, 2),
    }
    count = f"{'' if facts.exact else 'about '}{facts.triangles} triangles"
    shown = "size not in the header" if size is None else " × ".join(f"{v:.1f}" for v in size) + " m"
    doubt = _doubt(size, layout.up_axis)
    if missing:
        doubt.append(f"{'it' if is_world_name(file) else 'its annotation'} lacks {missing[0]}")
    # A warning of the reader about the whole file is reported once.
    notes = [note.removeprefix(f"{file}: ") for note in notes if not any(text in note for text in doubt)]
    return scene, "warning" if doubt else "ok", "; ".join([f"{count}, {shown}{names}", *doubt, *notes])


def _bytes(file: Path) -> int:
    """Return the bytes read to load a scene; for a Gazebo world the size of its meshes."""
    files = [file]
    if is_world_name(file):
        # A broken file is reported when it is read.
        with contextlib.suppress(NaviError):
            files += plan_world(file).files
    return sum(one.stat().st_size for one in files if one.is_file())


def _annotation(file: Path) -> tuple[str, list[str]]:
    try:
        if file.name.endswith(INSTANCE_SUFFIX):
            _, lost, articulated = instance_templates(file)
            return "objects", [*lost, *([f"{articulated} articulated objects (URDF)"] if articulated else [])]
        if is_world_name(file):
            return "objects", list(plan_world(file).lost)
    except NaviError:
        return "none", []
    missing = list(missing_annotation(file))
    if find_annotation(file) is not None:
        return "complete", missing
    return "partial" if missing else "legend" if find_legend(file) is not None else "none", missing


def _doubt(size: np.ndarray | None, up_axis: str) -> list[str]:
    if size is None:
        return []
    unit = unit_doubt(size)
    if unit is not None:
        return [unit]
    if max(size[0], size[2]) < 2.0:
        return ["under 2 m wide: is this an object, or is its unit not the metre? (--unit-scale)"]
    if size[1] > max(size[0], size[2]):
        return [f"higher than wide: does it need --up-axis {'y' if up_axis == 'z' else 'z'}?"]
    return []


def _compiled(file: Path, name: str, config: CompileConfig, folder: Path | None, whole: bool) -> str:
    """Return the compilation status of a scene: `current`, `current (by date)`, `outdated` or `no`."""
    if folder is None or not folder.is_dir():
        return "no"
    if whole:
        digest = hash_source(file)
        # A file that was compiled alone has its own name, which several may share; only its content identifies it.
        names = (name, named_sources([(file, Path(file.name))], "")[0].name)
        if any(is_current(output_path(one, digest, folder, config), digest, config) for one in names):
            return "current"
    there = compiled_files(name, folder)
    if not there:
        return "no"
    if whole:
        return "outdated"
    changed = max(f.stat().st_mtime for f in source_files(file))
    return "current (by date)" if max(f.stat().st_mtime for f in there) > changed else "outdated"


def _look_at_other(file: Path) -> tuple[str, str]:
    try:
        if file.suffix.lower() == ".gmdag":
            return _scene_state(file)
        rows = read_manifest(file).rows
    except (NaviError, OSError) as error:
        # A manifest.json of another program is no error.
        known = file.suffix.lower() == ".gmdag" or "not a corpus manifest" not in str(error)
        return "broken" if known else "warning", str(error).removeprefix(f"{file}: ")
    lost = [row.name for row in rows if not row.gmdag.is_file()]
    detail = f"{len(rows)} scenes" + (f", file of {lost[0]} is missing" if lost else "")
    return "broken" if lost else "ok", detail


def _scene_state(file: Path) -> tuple[str, str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scene = load_gmdag(file)
    detail = f"version {scene.version}, resolution {scene.resolution}, voxel {scene.voxel_size * 100:.1f} cm"
    detail += f", verdict {scene.verdict}" if scene.verdict else ""
    if not scene.has_surface:
        return "warning", f"{detail}; it holds no surface: every ray flies through it; compile its mesh again"
    if caught:
        return "warning", f"{detail}; {str(caught[0].message).removeprefix(f'{file}: ')}"
    return "ok", detail


def _advice(root: Path, layout: Layout, scenes: list[Report], rows: list[Report], cut: bool) -> list[str]:  # noqa: C901
    folder, steps = as_argument(root), []
    if cut:
        steps.append("the folder is too large to look at whole; name one of its subfolders")
    broken = [row["file"] for row in rows if row["state"] == "broken"]
    if broken:
        steps.append(f"repair, download again or remove {len(broken)} broken files, first {broken[0]}")
    lacking = [scene for scene in scenes if scene["missing"]]
    if lacking:
        steps.append(
            f"{len(lacking)} scenes lack something, first {lacking[0]['file']}: {lacking[0]['missing'][0]}; they "
            "compile without those names or objects"
        )
    if layout.name in _ANNOTATED and scenes and not any(scene["annotation"] == "complete" for scene in scenes):
        steps.append(f"no scene is annotated: {_ANNOTATED[layout.name]}; without it every surface is one class")
    axis = f" --up-axis {layout.up_axis}" if layout.up_axis != "y" else ""
    usable = {row["file"] for row in rows if row["kind"] == "mesh" and row["state"] != "broken"}
    measured = [scene for scene in scenes if scene["file"] in usable and scene["size"] is not None]
    units = {scene["file"]: likely_unit(np.asarray(scene["size"])) for scene in measured}
    doubted = [file for file, unit in units.items() if unit != 1.0]
    unit = setting = ""
    if doubted and set(units.values()) == {0.01}:
        steps.append("all measure as if in centimetres; if they are in metres, leave the unit out of what follows")
        unit, setting = " --unit-scale 0.01", " --set compile.unit_scale=0.01"
    elif doubted:
        steps.append(
            f"{len(doubted)} of {len(scenes)} scenes may not be in metres, first {doubted[0]}; keep those of another "
            "unit in a folder of their own, and give --unit-scale (training: --set compile.unit_scale=0.01) for it"
        )
    if not axis and (
        lying := [s["file"] for s in measured if lies_on_its_side(np.asarray(s["size"]) * (units[s["file"]] or 1.0))]
    ):
        steps.append(
            f"{len(lying)} scenes seem to lie on their side, first {lying[0]}: y is the height; add --up-axis z "
            "(training: --set compile.up_axis=z) if it is not"
        )
    waiting = [scene for scene in scenes if scene["file"] in usable and not scene["compiled"].startswith("current")]
    if waiting:
        steps.append(f"navi scenes compile {folder}{axis}{unit}   # compiles {len(waiting)} of {len(scenes)} scenes")
    if usable:
        setting = (f" --set compile.up_axis={layout.up_axis}" if axis else "") + setting
        steps.append(f"NAVI_SCENES={folder} navi train ppo --preset quick{setting}   # trains in them")
    compiled = [row for row in rows if row["kind"] == "scene" and row["state"] != "broken"]
    if compiled and not scenes:
        steps.append(f"navi scenes qualify {folder}   # checks that a drone can start in them")
        steps.append(f"NAVI_SCENES={folder} navi train ppo --preset quick   # trains in them")
    if not scenes and not compiled:
        steps.append("no usable mesh or .gmdag here; navi scenes generate apartment --seeds 0-11   # makes scenes")
    return steps


_ANNOTATED = {
    "HM3D": "get X.semantic.glb and X.semantic.txt (the hm3d-*-semantic-annots archives) beside each scene",
    "Matterport3D": "keep X.house and X_semantic.ply (the habitat task archive) beside each X.glb",
    "Gibson": "keep X.scn and X_semantic.ply (made of the 3D scene graph annotations) beside each X.glb",
    "Replica": "keep habitat/mesh_semantic.ply and habitat/info_semantic.json beside each mesh.ply",
}
