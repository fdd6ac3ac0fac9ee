"""`navi scenes`: generate, discover, compile, inspect and qualify scenes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from navi_core.config import CompileConfig
    from navi_core.scenes import CompiledScene, Scene, SceneSource

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the results; by default scenes/ of the Navi home.")]
Resolution = Annotated[int, typer.Option(help="Voxels along an edge: a power of two, 16 to 2048.")]
Inputs = Annotated[list[Path], typer.Argument(help="Mesh or .gmdag files, or folders of meshes.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the `scenes` group to the `navi` command."""
    group = typer.Typer(help="Meshes and compiled scenes.", no_args_is_help=True)
    for command in (generate, discover, compile, inspect, qualify):
        group.command(command.__name__)(command)
    app.add_typer(group, name="scenes")


def generate(
    family: Annotated[str, typer.Argument(help="apartment, atrium, maze or rooms.")],
    seeds: Annotated[str, typer.Option(help="Seeds: 3, 0-11 or 1,4,7.")] = "0",
    out: Out = None,
    resolution: Resolution = 512,
    as_json: Json = False,
) -> None:
    """Generate scenes of a family and compile them."""
    from navi_core.scenes import generated_sources

    sources = generated_sources({family: parse_seeds(seeds)})
    _compile_all(sources, out, _compile_config(resolution, "y", 1.0), as_json)


def discover(
    root: Annotated[Path | None, typer.Argument(help="Folder of meshes; by default what training would use.")] = None,
    as_json: Json = False,
) -> None:
    """List the scenes that would be used, with where they come from."""
    from navi_core.scenes import discover as discover_sources
    from navi_core.scenes import discover_root

    sources = discover_root(root) if root is not None else discover_sources()
    rows = [{"name": s.name, "dataset": s.dataset, "source": s.origin, "compiled": s.compiled} for s in sources]
    _show(rows, as_json, f"{len(rows)} scenes")


def compile(
    meshes: Inputs,
    out: Out = None,
    resolution: Resolution = 512,
    up_axis: Annotated[str, typer.Option(help="Up axis of the files: y or z.")] = "y",
    unit_scale: Annotated[float, typer.Option(help="Metres per unit of the files.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Compile meshes into .gmdag files; what is unchanged is reused."""
    _compile_all(_sources(meshes), out, _compile_config(resolution, up_axis, unit_scale), as_json)


def inspect(
    files: Annotated[list[Path], typer.Argument(help=".gmdag files.", show_default=False)], as_json: Json = False
) -> None:
    """Show what compiled scenes hold."""
    from navi_core.scenes import load_gmdag

    rows = [_facts(load_gmdag(file), file) for file in files]
    _show(
        rows,
        as_json,
        "compiled scenes",
        hidden=("file", "words", "semantic_names", "source_hash", "bounds", "content_hash"),
    )


def qualify(
    scenes: Inputs,
    out: Out = None,
    resolution: Resolution = 512,
    write: Annotated[bool, typer.Option("--write", help="Store the verdict in the version 2 files.")] = False,
    as_json: Json = False,
) -> None:
    """Judge where a drone could start: PASS, MARGINAL or FAIL (never used for training)."""
    from navi_core.config import SpawnConfig
    from navi_core.scenes import compile_source, store_verdict
    from navi_core.world import Field, scene_verdict

    sources = _sources(scenes)
    rows: list[dict[str, Any]] = []
    with _progress("qualifying", len(sources), as_json) as advance:
        for source in sources:
            advance(source.name)
            compiled = compile_source(source, _folder(out), _compile_config(resolution, "y", 1.0))
            verdict = scene_verdict(Field([compiled.scene]), 0, SpawnConfig())
            if write and compiled.scene.version == 2:
                store_verdict(compiled.path, compiled.scene, verdict.verdict)
            rows.append(
                {
                    "name": source.name,
                    "verdict": verdict.verdict,
                    "viable": verdict.viable,
                    "candidates": verdict.candidates,
                    "best_starvation": round(verdict.best_starvation, 4),
                    "gmdag": str(compiled.path),
                }
            )
    _show(rows, as_json, "spawn verdicts", hidden=("gmdag",))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of "3", "0-11" or "1,4,7".

    Raises:
        ConfigError: The text is none of these.
    """
    from navi_core.errors import ConfigError

    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        # Ten digits hold every seed below 2³¹.
        numbers = [first, last] if dash else [first]
        if not all(re.fullmatch("[0-9]{1,10}", n) and int(n) < 2**31 for n in numbers) or int(numbers[-1]) < int(first):
            raise ConfigError(
                f"seeds {text!r} cannot be read at {part!r}; write 3, 0-11 or 1,4,7, each below 2147483648"
            )
        end = int(last) if dash else int(first)
        if end - int(first) > 100_000:
            raise ConfigError(f"seeds {text!r}: at most 100,000 scenes at once")
        seeds += range(int(first), end + 1)
    return tuple(dict.fromkeys(seeds))


def _compile_config(resolution: int, up_axis: str, unit_scale: float) -> CompileConfig:
    from navi_core.config import CompileConfig, parse_config

    return parse_config(CompileConfig, {"resolution": resolution, "up_axis": up_axis, "unit_scale": unit_scale})


def _folder(out: Path | None) -> Path:
    if out is not None:
        return out
    from navi_core.record import navi_home

    return navi_home() / "scenes"


def _sources(paths: list[Path]) -> list[SceneSource]:
    from navi_core.config import CorpusConfig
    from navi_core.scenes import discover as discover_sources
    from navi_core.scenes import discover_root

    files = tuple(str(path) for path in paths if not path.is_dir())
    found = discover_sources(CorpusConfig(scenes=files)) if files else []
    for path in paths:
        if path.is_dir():
            found += discover_root(path)
    return found


def _compile_all(sources: list[SceneSource], out: Path | None, config: CompileConfig, as_json: bool) -> None:
    from navi_core.scenes import compile_corpus

    folder = _folder(out)
    rows: list[dict[str, Any]] = []

    def note(source: SceneSource, done: CompiledScene) -> None:
        rows.append(
            {
                "name": source.name,
                "file": done.path.name,
                "gmdag": str(done.path),
                "triangles": 0 if done.scene.triangles is None else len(done.scene.triangles),
                "resolution": done.scene.resolution,
                "bytes": done.path.stat().st_size,
                "seconds": round(done.seconds, 3),
                "skipped": done.skipped,
            }
        )

    with _progress("compiling", len(sources), as_json) as advance:
        compile_corpus(sources, folder, config, progress=lambda name, _: advance(name), done=note)
    fresh = sum(not row["skipped"] for row in rows)
    title = f"{fresh} compiled, {len(rows) - fresh} unchanged in {folder}"
    _show(rows, as_json, title, hidden=("gmdag", "resolution"))


def _facts(scene: Scene, path: Path) -> dict[str, Any]:
    size = scene.mesh_bounds[1] - scene.mesh_bounds[0]
    return {
        "file": str(path),
        "name": scene.name,
        "version": scene.version,
        "resolution": scene.resolution,
        "voxel_size": scene.voxel_size,
        "size": [round(float(v), 3) for v in size],
        "triangles": None if scene.triangles is None else len(scene.triangles),
        "words": None if scene.nodes is None else len(scene.nodes),
        "semantics": len(scene.semantic_names),
        "verdict": scene.verdict,
        "bounds": scene.bounds.tolist(),
        "semantic_names": {str(k): v for k, v in scene.semantic_names.items()},
        "source_hash": scene.source_hash,
        "content_hash": scene.content_hash(),
    }


def _show(rows: list[dict[str, Any]], as_json: bool, title: str, hidden: tuple[str, ...] = ()) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    names = [name for name in (rows[0] if rows else {}) if name not in hidden]
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    # A pipe has no width; the table keeps its columns readable there too.
    Console(width=None if sys.stdout.isatty() else 140, markup=False).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " × ".join(f"{v:g}" for v in value)
    return str(value)


@contextmanager
def _progress(title: str, total: int, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr that names the current scene; nothing with --json."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True, disable=as_json) as bar:
        task = bar.add_task(title, total=total)
        started = False

        def advance(name: str) -> None:
            nonlocal started
            bar.update(task, description=f"{title} {name}", advance=int(started))
            started = True

        yield advance
        bar.update(task, completed=total)
