"""`navi doctor`: health check of a folder of scans or meshes, or of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.errors import ConfigError, as_argument, printable
from navi_core.terminal import console, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from rich.text import Text

_COLOURS = {"ok": "green", "warning": "yellow", "broken": "red"}
_MAX_ROWS = 60


app = typer.Typer()


@app.command()
def doctor(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Folder of meshes or scenes; without it the machine is checked."),
    ] = None,
    resolution: Annotated[int, typer.Option(help="Resolution that the estimates are for.")] = 512,
    semantics: Annotated[str, typer.Option(help="Source of names, as in `navi scenes compile`.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder of compiled scenes; by default as when compiling.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file whole, however large.")] = False,
    faults: Annotated[
        bool, typer.Option("--faults", help="Ask the package index for known faults of the dependencies (network).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Check a folder of scans or meshes: contents, missing parts, next step; exit code 3 where it is broken."""
    if faults:
        if folder is not None:
            raise ConfigError(f"--faults is about the dependencies, not about {folder}; give one of them")
        _print_faults(as_json)
        return
    if folder is None:
        rows = check_machine() + check_environment()
        print_json({"machine": rows}) if as_json else _print_machine(rows)
        if any(row["state"] == "broken" for row in rows):
            raise typer.Exit(3)
        return
    from navi_core.config import CompileConfig, parse_config
    from navi_core.record import navi_home
    from navi_core.scenes.corpus.examination import examine

    config = parse_config(CompileConfig, {"resolution": resolution, "semantics": semantics})
    with progress_bar("looking", quiet=as_json) as progress:
        report = examine(
            folder,
            config,
            out or navi_home() / "scenes",
            deep=deep,
            progress=progress,
        )
    if as_json:
        print_json(report)
    else:
        _print_folder(report)
    if any(row["state"] == "broken" for row in report["files"]):
        raise typer.Exit(3)


def _print_faults(as_json: bool) -> None:
    """Print the known faults of the dependencies; exit code 3 where there are some."""
    from navi_core.cli.audit import audit_dependencies

    found = audit_dependencies()
    if as_json:
        print_json(found)
    else:
        names = ("package", "version", "fault", "fixed_in")
        if found["faults"]:
            print_table("known faults", names, [[printable(row[name]) for name in names] for row in found["faults"]])
        skipped = f"; the index does not know {printable(', '.join(found['skipped']))}" if found["skipped"] else ""
        console().print(f"{len(found['faults'])} known faults in {found['audited']} packages{skipped}")
    if found["faults"]:
        raise typer.Exit(3)


def check_machine() -> list[dict[str, str]]:
    """Check hardware, kernels, folders, plugins; return rows of `what`, `state` (ok, warning, broken) and `detail`."""
    from navi_core.config.registry import load_plugins, loaded_plugins
    from navi_core.kernels.native.library import NativeUnavailableError, find_compiler, load_library
    from navi_core.record import hardware_profile, navi_home
    from navi_core.scenes import environment_root

    profile = hardware_profile()
    rows = [_fact("hardware", "ok", profile["hardware"])]
    rows.append(_fact("versions", "ok", ", ".join(f"{name} {v}" for name, v in profile["versions"].items())))
    try:
        compiler = find_compiler()
        load_library()
        rows.append(_fact("ray kernels", "ok", f"C++, built with {' '.join(compiler or ['the cached build'])}"))
    except NativeUnavailableError as error:
        rows.append(_fact("ray kernels", "warning", f"numba, about three times slower: {error}"))
    rows.append(
        _fact("GPU", "ok" if profile["gpu"] else "warning", profile["gpu"] or "none: everything runs on the CPU")
    )
    home = navi_home()
    there = next(folder for folder in (home, *home.parents) if folder.is_dir())
    free = shutil.disk_usage(there).free / 2**30
    if os.access(there, os.W_OK):
        rows.append(_fact("NAVI_HOME", "warning" if free < 5 else "ok", f"{home}, {free:.0f} GiB free"))
    else:
        detail = f"{home}: {there} is not writable; set NAVI_HOME to a folder that is"
        rows.append(_fact("NAVI_HOME", "broken", detail))
    root = environment_root()
    if root is None:
        rows.append(_fact("NAVI_SCENES", "ok", "unset: training uses generated apartments"))
    elif root.is_dir():
        rows.append(_fact("NAVI_SCENES", "ok", f"{root}; see it with: navi doctor {as_argument(root)}"))
    else:
        rows.append(_fact("NAVI_SCENES", "broken", f"{root} does not exist; set it to a folder of meshes, or unset it"))
    try:
        load_plugins()
        known = ", ".join(f"{name} ({file})" for name, file in loaded_plugins().items())
        rows.append(_fact("NAVI_PLUGINS", "ok", known or "unset: built-in encoders and temporal cores"))
    except ConfigError as error:
        rows.append(_fact("NAVI_PLUGINS", "broken", str(error)))
    return rows


def check_environment() -> list[dict[str, str]]:
    """Measure the Python environment: size of its packages, time of imports in fresh processes."""
    packages = Path(sysconfig.get_path("purelib"))
    size = sum(file.lstat().st_size for file in packages.rglob("*") if not file.is_dir())
    times = (f"{name} {_import_seconds(name):.1f} s" for name in ("navi_core.cli.main", "torch", "navi_core.learn"))
    return [
        _fact("packages", "ok", f"{size / 1e9:.1f} GB in {packages}"),
        _fact("import times", "ok", ", ".join(times)),
    ]


def _import_seconds(name: str) -> float:
    """Time the import of a module in a fresh process [s]."""
    program = f"import time; start = time.perf_counter(); import {name}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def _fact(what: str, state: str, detail: str) -> dict[str, str]:
    return {"what": what, "state": state, "detail": detail}


def _print_machine(rows: list[dict[str, str]]) -> None:
    names = ("what", "state", "detail")
    print_table("this machine", names, [_cells(row, names) for row in rows])
    console().print("→ navi doctor DIR   looks at a folder of scans or meshes")


def _print_folder(report: dict[str, Any]) -> None:
    layout, totals = report["layout"], report["totals"]
    out = console()
    out.print(printable(f"{report['folder']}: {layout['name']} ({layout['why']})"))
    out.print(printable(f"up axis {layout['up_axis']} ({layout['up_source']})"))
    if report["scenes"]:
        names = ("name", "format", "MB", "triangles", "size (m)", "annotation", "compiled", "memory", "time", "disk")
        rows = [
            (
                printable(scene["name"]),
                scene["format"],
                f"{scene['megabytes']:g}",
                f"{'' if scene['exact'] else '~'}{scene['triangles']}",
                " × ".join(f"{v:g}" for v in scene["size"]) if scene["size"] else "",
                printable(scene["annotation"]),
                scene["compiled"],
                f"{scene['memory_mb']:.0f} MB",
                f"{scene['seconds']:.0f} s",
                f"{scene['disk_mb']:.1f} MB",
            )
            for scene in report["scenes"][:_MAX_ROWS]
        ]
        print_table(f"scenes at {report['resolution']}³: {len(report['scenes'])}", names, rows)
        _rest(len(report["scenes"]))
        out.print(
            f"to compile: about {totals['seconds']:.0f} s on one core, {totals['disk_mb']:.0f} MB of disk, "
            f"{totals['memory_mb']:.0f} MB of memory for the largest",
        )
    # Worst first: of thousands of files only the first rows are shown.
    order = {"broken": 0, "warning": 1, "ok": 2}
    files = sorted(report["files"], key=lambda row: (order[row["state"]], row["file"]))
    if files:
        columns = ("file", "kind", "state", "detail")
        print_table("files", columns, [_cells(row, columns) for row in files[:_MAX_ROWS]])
        _rest(len(files))
    for step in report["next"]:
        out.print(printable(f"→ {step}"))


def _rest(count: int) -> None:
    if count > _MAX_ROWS:
        console().print(f"… and {count - _MAX_ROWS} more; all of them with --json")


def _cells(row: dict[str, str], names: tuple[str, ...]) -> list[Text]:
    from rich.text import Text

    return [Text(printable(row[n]), _COLOURS[row["state"]] if n == "state" else "") for n in names]
