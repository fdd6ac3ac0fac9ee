"""`navi scenes`: generate, discover, compile, inspect and qualify scenes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.errors import GmdagError, NaviError, SceneError, as_argument, printable
from navi_core.terminal import print_json, print_next, print_records, progress_bar

if TYPE_CHECKING:
    from navi_core.config import CompileConfig
    from navi_core.scenes import CompileReport, Scene, SceneSource

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the results; by default scenes/ of the Navi home.")]
Resolution = Annotated[int, typer.Option(help="Voxels along an edge: a power of two, 16 to 2048.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Scenes compiled at once; by default what cores and memory allow.")
]
UpAxis = Annotated[str, typer.Option(help="Up axis of the files: y or z.")]
UnitScale = Annotated[float, typer.Option(help="Metres per unit of the files.")]
Inputs = Annotated[list[Path], typer.Argument(help="Mesh or .gmdag files, or folders of meshes.", show_default=False)]


def _families() -> list[str]:
    from navi_core.scenes.procedural import FAMILIES

    return sorted(FAMILIES)


app = typer.Typer(name="scenes", help="Meshes and compiled scenes.", no_args_is_help=True)


@app.command()
def generate(
    family: Annotated[
        str,
        typer.Argument(
            help="angled, apartment, atrium, hall, home, maze, rooms, scan, shop or stairs.", autocompletion=_families
        ),
    ],
    seeds: Annotated[str, typer.Option(help="Seeds: 3, 0-11 or 1,4,7.")] = "0",
    out: Out = None,
    resolution: Resolution = 512,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Generate procedural scenes of a family and compile them."""
    from navi_core.scenes import generated_sources, parse_seeds

    sources = generated_sources({family: parse_seeds(seeds)})
    _compile_all(sources, out, _compile_config(resolution), jobs, "", as_json)


@app.command("list")
def discover(
    root: Annotated[Path | None, typer.Argument(help="Folder of meshes; by default that of a training.")] = None,
    as_json: Json = False,
) -> None:
    """List the scenes of a folder or of the default corpus: dataset, source, and whether they are compiled."""
    from navi_core.scenes import discover as discover_sources
    from navi_core.scenes import discover_root
    from navi_core.scenes.compiler import compiled_names

    sources = discover_root(root) if root is not None else discover_sources()
    there = compiled_names((s.name for s in sources), _folder(None))
    rows = [
        {"name": s.name, "dataset": s.dataset, "source": s.origin, "compiled": s.compiled or s.name in there}
        for s in sources
    ]
    _show(rows, as_json, f"{len(rows)} scene{'s' * (len(rows) != 1)}")


@app.command()
def compile(
    meshes: Inputs,
    out: Out = None,
    resolution: Resolution = 512,
    up_axis: UpAxis = "y",
    unit_scale: UnitScale = 1.0,
    semantics: Annotated[
        str, typer.Option(help="Source of names: auto, annotation, vertex_color, object, material or none.")
    ] = "auto",
    decimate: Annotated[
        float | None, typer.Option(help="Merge triangles; moves the surface by about this distance at most (voxels).")
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Compile meshes into .gmdag files, several at once; unchanged ones are reused, failures are listed at the end."""
    options = {"up_axis": up_axis, "unit_scale": unit_scale, "semantics": semantics, "decimate": decimate}
    config = _compile_config(resolution, **options)
    usual = {"resolution": 512, "up_axis": "y", "unit_scale": 1.0, "semantics": "auto", "decimate": None}
    given = {name: value for name, value in ({"resolution": resolution} | options).items() if value != usual[name]}
    retry = "".join(f" --{name.replace('_', '-')} {value}" for name, value in given.items())
    retry += f" --out {as_argument(out)}" if out is not None else ""
    _compile_all(_sources(meshes), out, config, jobs, retry, as_json)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A set of buildings: places-v1.")] = "places-v1",
    root: Annotated[Path, typer.Option(help="Folder of the buildings.")] = Path("places"),
    out: Annotated[
        Path | None, typer.Option(help="Also compile those that are there, into a folder per kind and split here.")
    ] = None,
    resolution: Resolution = 512,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Check the buildings of a set by their hashes, and print the commands that bring the missing ones.

    Navi brings no data: each building has its own licence and recipe. Fly and report each kind by itself.
    """
    from navi_core.scenes.corpus.places import read_places

    places = read_places(name)
    states = {place: place.state(root) for place in places}
    rows = [
        {"name": place.name, "kind": place.kind, "split": place.split, "licence": place.licence, "state": state,
         "get": place.get}
        for place, state in states.items()
    ]  # fmt: skip
    title = f"{name} in {root}: {sum(state == 'present' for state in states.values())} of {len(rows)} present"
    _show(rows, as_json, title, hidden=("get",))
    changed = [place.file for place, state in states.items() if state == "changed"]
    if changed:
        raise SceneError(
            f"{len(changed)} of {len(rows)} are not those of the recipe: {', '.join(changed)}; next: move them "
            f"away, and run: navi scenes fetch {name} --root {as_argument(root)}"
        )
    wanted = dict.fromkeys(command for place, state in states.items() if state == "missing" for command in place.get)
    if wanted and not as_json:
        print_next(f"mkdir -p {as_argument(root)} && cd {as_argument(root)}")
        for command in wanted:
            typer.echo(f"      {command}", err=True)
    if out is not None:
        for kind, split in sorted({(place.kind, place.split) for place in places}):
            there = [root / p.file for p, s in states.items() if (p.kind, p.split, s) == (kind, split, "present")]
            if there:
                config = _compile_config(resolution, up_axis="y")
                _compile_all(_sources(there), out / f"{kind}-{split}", config, jobs, "", as_json)


@app.command("show")
def inspect(
    files: Annotated[list[Path], typer.Argument(help=".gmdag files, or folders of them.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show the facts of compiled scenes: size, resolution, triangles, octree nodes, semantics, verdict."""
    from navi_core.scenes import load_gmdag

    rows = [_facts(load_gmdag(file), file) for name in files for file in _compiled_in(name)]
    for row in rows:
        if not row["surface"]:
            # The name of a file is the user's own; the warning goes where tables and JSON do not.
            typer.echo(
                f"warning: {row['file']}: holds no surface: every ray flies through it; compile its mesh again",
                err=True,
            )
    _show(rows if as_json else [_brief(row) for row in rows], as_json, "compiled scenes, lengths in metres")


def _compiled_in(path: Path) -> list[Path]:
    """Return the `.gmdag` files of a folder, sorted; a path that is no folder is returned as it is."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.glob("*.gmdag") if file.is_file())
    if not found:
        raise GmdagError(
            f"the folder holds no .gmdag file; compile its meshes with: navi scenes compile {as_argument(path)}",
            path=path,
        )
    return found


@app.command()
def qualify(
    scenes: Inputs,
    out: Out = None,
    resolution: Resolution = 512,
    up_axis: UpAxis = "y",
    unit_scale: UnitScale = 1.0,
    write: Annotated[bool, typer.Option("--write", help="Store the verdict in the version 2 files.")] = False,
    as_json: Json = False,
) -> None:
    """Qualify scenes by spawn poses: PASS, MARGINAL or FAIL (never used for training); meshes are compiled first."""
    from navi_core.config import SpawnConfig
    from navi_core.scenes import compile_source, store_verdict
    from navi_core.world import Field, scene_verdict

    sources = _sources(scenes)
    config = _compile_config(resolution, up_axis=up_axis, unit_scale=unit_scale)
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    with progress_bar("qualifying", quiet=as_json) as progress:
        for number, source in enumerate(sources):
            progress(source.name, number, len(sources))
            try:
                compiled = compile_source(source, _folder(out), config)
            except SceneError as error:
                # One alone fails as itself; of many, the others are judged.
                if len(sources) == 1:
                    raise
                faults.append(f"{source.name}: {printable(str(error))}")
                continue
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
                    "reason": verdict.reason,
                    "gmdag": str(compiled.path),
                }
            )
    _show(rows, as_json, "spawn verdicts", hidden=("reason", "gmdag"))
    for row in rows:
        if row["reason"]:
            typer.echo(f"{row['name']}: {row['reason']}", err=True)
    for fault in faults:
        typer.echo(f"failed: {fault}", err=True)
    if faults:
        raise SceneError(f"{len(faults)} of {len(sources)} scenes could not be judged")


def _compile_config(resolution: int, **options: object) -> CompileConfig:
    from navi_core.config import CompileConfig, parse_config

    return parse_config(CompileConfig, {"resolution": resolution} | options)


def _folder(out: Path | None) -> Path:
    if out is not None:
        return out
    from navi_core.record import navi_home

    return navi_home() / "scenes"


def _sources(paths: list[Path]) -> list[SceneSource]:
    from navi_core.scenes import scenes_named

    return sorted(scenes_named(str(path) for path in paths), key=lambda source: source.name)


def _compile_all(
    sources: list[SceneSource], out: Path | None, config: CompileConfig, jobs: int | None, retry: str, as_json: bool
) -> None:
    from navi_core.scenes import compile_corpus, estimate_source
    from navi_core.scenes.compiler import collected_warnings
    from navi_core.scenes.corpus.pool import default_jobs

    folder = _folder(out)
    rows: list[dict[str, Any]] = []
    faults: list[tuple[SceneSource, NaviError]] = []
    estimates = [estimate_source(source, config) for source in sources]
    jobs = jobs if jobs is not None else default_jobs(estimates)
    if len(sources) > 1 and not as_json:
        largest = max(estimate.memory for estimate in estimates) / 2**30
        typer.echo(
            f"{len(sources)} scenes, {min(jobs, len(sources))} at a time, up to {largest:.1f} GiB each", err=True
        )

    def fault(source: SceneSource, error: NaviError) -> None:
        faults.append((source, error))

    with progress_bar("compiling", quiet=as_json) as progress, collected_warnings() as warnings:
        # One source alone fails as itself; of many, the others go on.
        failed = fault if len(sources) > 1 else None
        try:
            compile_corpus(
                sources, folder, config, progress,
                done=lambda done: rows.append(_compile_row(done)), jobs=jobs, failed=failed,
            )  # fmt: skip
        except SceneError:
            # Where none succeeded, each failure is listed below.
            if len(faults) < len(sources):
                raise
    for text in warnings:
        typer.echo(f"warning: {printable(text)}", err=True)
    rows.sort(key=lambda row: row["name"])
    fresh = sum(not row["skipped"] for row in rows)
    title = f"{fresh} compiled, {len(rows) - fresh} unchanged in {folder}"
    merged = any(row["decimated"] for row in rows)
    _show(rows, as_json, title, hidden=("gmdag", "resolution") if merged else ("gmdag", "resolution", "decimated"))
    if rows and not as_json and not faults:
        print_next(
            f"navi train ppo --preset quick --scene {as_argument(folder if len(rows) > 1 else rows[0]['gmdag'])}"
        )
    if faults:
        for source, error in faults:
            typer.echo(f"failed: {source.name}: {printable(str(error))}", err=True)
        again = " ".join(as_argument(source.path) for source, _ in faults[:20] if source.path is not None)
        more = f" (and {len(faults) - 20} more)" if len(faults) > 20 else ""
        command = f"navi scenes compile {again}{retry}" if again else "the same command"
        raise SceneError(f"{len(faults)} of {len(sources)} scenes failed; when mended, retry with: {command}{more}")


def _compile_row(done: CompileReport) -> dict[str, Any]:
    """Build the result row of a compiled scene: files, sizes, compile time, octree sharing, decimation error."""
    decimated = None
    if done.decimation is not None:
        merged, voxel = done.decimation, done.voxel_size
        error = max(merged.to_original, merged.from_original)
        decimated = f"{merged.before} → {merged.after}, off by at most {100 * error:.2g} cm ({error / voxel:.2g} voxel)"
    return {
        "name": done.row.name,
        "file": done.row.gmdag.name,
        "gmdag": str(done.row.gmdag),
        "triangles": done.triangles,
        "resolution": done.row.resolution,
        "bytes": done.row.gmdag.stat().st_size,
        "seconds": round(done.seconds, 3),
        "skipped": done.skipped,
        "sharing": None if done.sharing is None else round(done.sharing, 2),
        "decimated": decimated,
    }


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
        **_sharing(scene),
        "semantics": len(scene.semantic_names),
        "verdict": scene.verdict,
        "surface": scene.has_surface,
        "bounds": scene.bounds.tolist(),
        "semantic_names": {str(k): v for k, v in scene.semantic_names.items()},
        "source_hash": scene.source_hash,
        "content_hash": scene.content_hash(),
    }


def _sharing(scene: Scene) -> dict[str, Any]:
    """Return octree statistics: nodes and list entries without and with subtree sharing, and the decimation error."""
    dag, merged = scene.dag, scene.decimation
    return {
        "nodes": None if dag is None else dag.unfolded.nodes,
        "nodes_stored": None if dag is None else dag.stored.nodes,
        "items": None if dag is None else dag.unfolded.items,
        "items_stored": None if dag is None else dag.stored.items,
        "decimation": None if merged is None else asdict(merged),
        "decimation_error": None if merged is None else max(merged.to_original, merged.from_original),
    }


def _brief(facts: dict[str, Any]) -> dict[str, Any]:
    """Select the columns that fit a terminal; counts without and with sharing are merged into one cell."""

    def shared(kind: str) -> str | None:
        return None if facts[kind] is None else f"{facts[kind]} > {facts[kind + '_stored']}"

    # In a narrow terminal the middle ones are left out.
    kept = ("name", "size", "triangles", "resolution", "voxel_size", "version")
    rest = ("decimation_error", "semantics", "verdict", "surface")
    return (
        {name: facts[name] for name in kept}
        | {"nodes > stored": shared("nodes"), "items > stored": shared("items")}
        | {name: facts[name] for name in rest if facts[name] is not None}
    )


def _show(rows: list[dict[str, Any]], as_json: bool, title: str, hidden: tuple[str, ...] = ()) -> None:
    if as_json:
        print_json(rows)
    else:
        print_records(title, rows, hidden)
