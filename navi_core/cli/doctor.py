"""`navi doctor`: what a folder holds, what is missing, and what to do next; without a folder, the machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["check_machine", "register"]

_COLOURS = {"ok": "green", "warning": "yellow", "broken": "red"}
_MAX_ROWS = 60


def register(app: typer.Typer) -> None:
    """Add `doctor` to the `navi` command."""
    app.command("doctor")(doctor)


def doctor(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Folder of meshes or scenes; without it, the machine.")
    ] = None,
    resolution: Annotated[int, typer.Option(help="Resolution that the estimates are for.")] = 512,
    semantics: Annotated[str, typer.Option(help="Where names would come from, as in `navi scenes compile`.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Where compiled scenes lie; by default as when compiling.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file whole, however large.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Tell what a folder of scans or meshes holds, what is missing, and what to do; exit code 3 where it is broken."""
    if folder is None:
        rows = check_machine()
        typer.echo(json.dumps({"machine": rows}, indent=1)) if as_json else _print_machine(rows)
        if any(row["state"] == "broken" for row in rows):
            raise typer.Exit(3)
        return
    from navi_core.config import CompileConfig, parse_config
    from navi_core.record import navi_home
    from navi_core.scenes.examination import examine

    config = parse_config(CompileConfig, {"resolution": resolution, "semantics": semantics})
    with _bar(as_json) as progress:
        report = examine(folder, config, out or navi_home() / "scenes", deep=deep, progress=progress)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        _print_folder(report)
    if any(row["state"] == "broken" for row in report["files"]):
        raise typer.Exit(3)


def check_machine() -> list[dict[str, str]]:
    """Return what Navi finds on this machine: rows of `what`, `state` (ok, warning, broken) and `detail`."""
    import shutil

    from navi_core.kernels.native import NativeUnavailableError, find_compiler, load_library
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
    state = "warning" if free < 5 else "ok"
    rows.append(_fact("NAVI_HOME", state if _writable(there) else "broken", f"{home}, {free:.0f} GiB free"))
    root = environment_root()
    if root is None:
        rows.append(_fact("NAVI_SCENES", "ok", "unset: training uses generated apartments"))
    elif root.is_dir():
        rows.append(_fact("NAVI_SCENES", "ok", f"{root}; see it with: navi doctor {root}"))
    else:
        rows.append(_fact("NAVI_SCENES", "broken", f"{root} does not exist; set it to a folder of meshes, or unset it"))
    return rows


def _fact(what: str, state: str, detail: str) -> dict[str, str]:
    return {"what": what, "state": state, "detail": detail}


def _writable(folder: Path) -> bool:
    import os

    return os.access(folder, os.W_OK)


def _print_machine(rows: list[dict[str, str]]) -> None:
    table = _table("this machine", ("what", "state", "detail"))
    for row in rows:
        _add(table, row, ("what", "state", "detail"))
    _console().print(table)
    _console().print("→ navi doctor DIR   looks at a folder of scans or meshes", highlight=False)


def _print_folder(report: dict[str, Any]) -> None:
    layout, totals = report["layout"], report["totals"]
    console = _console()
    console.print(_safe(f"{report['folder']}: {layout['name']} ({layout['why']})"), highlight=False)
    console.print(_safe(f"up axis {layout['up_axis']} ({layout['up_source']})"), highlight=False)
    if report["scenes"]:
        names = ("name", "format", "MB", "triangles", "size (m)", "annotation", "compiled", "memory", "time", "disk")
        table = _table(f"{len(report['scenes'])} scenes at {report['resolution']}³", names)
        for scene in report["scenes"][:_MAX_ROWS]:
            size = " × ".join(f"{v:g}" for v in scene["size"]) if scene["size"] else ""
            about = "" if scene["exact"] else "~"
            table.add_row(
                _safe(scene["name"]), scene["format"], f"{scene['megabytes']:g}", f"{about}{scene['triangles']}", size,
                _safe(scene["annotation"]), scene["compiled"], f"{scene['memory_mb']:.0f} MB",
                f"{scene['seconds']:.0f} s", f"{scene['disk_mb']:.1f} MB",
            )  # fmt: skip
        console.print(table)
        _rest(console, len(report["scenes"]))
        console.print(
            f"to compile: about {totals['seconds']:.0f} s on one core, {totals['disk_mb']:.0f} MB of disk, "
            f"{totals['memory_mb']:.0f} MB of memory for the largest",
            highlight=False,
        )
    # Worst first: of thousands of files only the first rows are shown.
    order = {"broken": 0, "warning": 1, "ok": 2}
    rows = sorted(report["files"], key=lambda row: (order[row["state"]], row["file"]))
    if rows:
        table = _table("files", ("file", "kind", "state", "detail"))
        for row in rows[:_MAX_ROWS]:
            _add(table, row, ("file", "kind", "state", "detail"))
        console.print(table)
        _rest(console, len(rows))
    for step in report["next"]:
        console.print(_safe(f"→ {step}"), highlight=False)


def _rest(console: Any, count: int) -> None:
    if count > _MAX_ROWS:
        console.print(f"… and {count - _MAX_ROWS} more; all of them with --json", highlight=False)


def _table(title: str, names: tuple[str, ...]) -> Any:
    from rich.table import Table

    table = Table(title=title)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _add(table: Any, row: dict[str, str], names: tuple[str, ...]) -> None:
    from rich.text import Text

    table.add_row(*(Text(_safe(row[n]), _COLOURS[row["state"]] if n == "state" else "") for n in names))


def _safe(text: str) -> str:
    from navi_core.errors import printable

    return printable(text)


def _console() -> Any:
    from rich.console import Console

    # A pipe has no width; the tables keep their columns readable there too.
    return Console(width=None if sys.stdout.isatty() else 160, markup=False)


@contextmanager
def _bar(as_json: bool) -> Iterator[Callable[[str, float], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    quiet = as_json or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True, disable=quiet) as bar:
        task = bar.add_task("looking", total=1.0)
        yield lambda what, share: bar.update(task, description=_safe(what)[-80:], completed=share)
