"""`navi doctor`: what a folder holds, what is missing, and what to do next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["examine", "register"]

_SKIPPED_FOLDERS = {".git", ".venv", "__pycache__", "node_modules"}
_MAX_FILES = 500


def register(app: typer.Typer) -> None:
    """Add `doctor` to the `navi` command."""
    app.command("doctor")(doctor)


def doctor(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to look at.")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Look at a folder's meshes, compiled scenes and manifests; exit code 3 where something is broken."""
    report = examine(folder)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        _print(report)
    if any(row["state"] == "broken" for row in report["files"]):
        raise typer.Exit(3)


def examine(folder: Path) -> dict[str, Any]:
    """Return the findings: `files` (file, kind, state ok|warning|broken, detail) and `next` (what to do).

    Args:
        folder: The folder, searched with its subfolders.

    Raises:
        SceneError: There is no such folder.
    """
    from navi_core.errors import NaviError, SceneError
    from navi_core.scenes import MESH_SUFFIXES, load_gmdag, read_manifest, read_mesh

    if not folder.is_dir():
        raise SceneError(f"{folder}: no such folder")
    found = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not _SKIPPED_FOLDERS.intersection(file.relative_to(folder).parts)
    )
    files: list[dict[str, str]] = []
    looked = 0
    for file in found:
        suffix = file.suffix.lower()
        kind = "mesh" if suffix in MESH_SUFFIXES else "scene" if suffix == ".gmdag" else ""
        if file.name == "manifest.json":
            kind = "manifest"
        if not kind:
            continue
        looked += 1
        if looked > _MAX_FILES:
            break
        try:
            if kind == "mesh":
                state, detail = _mesh_state(read_mesh(file))
            elif kind == "scene":
                state, detail = _scene_state(file, load_gmdag)
            else:
                rows = read_manifest(file).rows
                lost = [row.name for row in rows if not row.gmdag.is_file()]
                state = "broken" if lost else "ok"
                detail = f"{len(rows)} scenes" + (f", file of {lost[0]} is missing" if lost else "")
        except (NaviError, OSError) as error:
            state, detail = "broken", str(error).removeprefix(f"{file}: ")
        files.append({"file": str(file.relative_to(folder)), "kind": kind, "state": state, "detail": detail})
    return {"folder": str(folder), "files": files, "next": _advice(folder, files, looked > _MAX_FILES)}


def _mesh_state(mesh: Any) -> tuple[str, str]:
    size = mesh.bounds[1] - mesh.bounds[0]
    extent = " × ".join(f"{v:.1f}" for v in size)
    names = len(set(mesh.semantic_names) & set(mesh.face_semantic.tolist()))
    detail = f"{len(mesh.faces)} triangles, {extent} m, {names} semantic names"
    if max(size[0], size[2]) < 2.0:
        return "warning", f"{detail}; under 2 m wide: is this an object, or is its unit not the metre?"
    if size[1] > max(size[0], size[2]):
        return "warning", f"{detail}; higher than wide: does it need --up-axis z?"
    return "ok", detail


def _scene_state(file: Path, load: Any) -> tuple[str, str]:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scene = load(file)
    detail = f"version {scene.version}, resolution {scene.resolution}, voxel {scene.voxel_size * 100:.1f} cm"
    detail += f", verdict {scene.verdict}" if scene.verdict else ""
    if caught:
        return "warning", f"{detail}; {str(caught[0].message).removeprefix(f'{file}: ')}"
    return "ok", detail


def _advice(folder: Path, files: list[dict[str, str]], cut: bool) -> list[str]:
    kinds = [row["kind"] for row in files if row["state"] != "broken"]
    steps = []
    if cut:
        steps.append(f"only the first {_MAX_FILES} files were looked at; name a smaller folder")
    broken = [row["file"] for row in files if row["state"] == "broken"]
    if broken:
        steps.append(f"repair or remove {len(broken)} broken files, first {broken[0]}")
    if "mesh" in kinds:
        steps.append(f"navi scenes compile {folder} --out DIR   compiles the {kinds.count('mesh')} meshes")
        steps.append(f"NAVI_SCENES={folder} navi train ppo   trains in them")
    elif "scene" in kinds:
        steps.append("navi scenes qualify FILE…   tells which scenes a drone can start in")
    if not files:
        steps.append("no mesh, .gmdag or manifest here; navi scenes generate apartment --seeds 0-11   makes scenes")
    if "manifest" not in kinds and kinds.count("scene") > 1:
        steps.append("no manifest.json: name the .gmdag files one by one, or compile the corpus again")
    return steps


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colour = {"ok": "green", "warning": "yellow", "broken": "red"}
    table = Table(title=report["folder"])
    for name in ("file", "kind", "state", "detail"):
        table.add_column(name, overflow="fold")
    for row in report["files"]:
        table.add_row(row["file"], row["kind"], Text(row["state"], colour[row["state"]]), row["detail"])
    console = Console(markup=False)
    console.print(table)
    for step in report["next"]:
        console.print(f"→ {step}", highlight=False, markup=False)
