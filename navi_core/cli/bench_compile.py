"""`navi bench compile`: what a compilation takes, each in a fresh process."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

__all__ = ["compile_scenes"]


def compile_scenes(
    scene: Annotated[
        list[str] | None,
        typer.Option("--scene", help="A mesh file, family:seed or tessellated:triangles; may be repeated."),
    ] = None,
    resolution: Annotated[list[int] | None, typer.Option(help="Voxels along an edge; may be repeated.")] = None,
    decimate: Annotated[float | None, typer.Option(help="Also merge triangles, within this many voxels.")] = None,
    version_1: Annotated[bool, typer.Option("--version-1", help="Also write version 1.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the kernels.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as one JSON object.")] = False,
) -> None:
    """Compile in fresh processes: seconds after imports, peak memory, sizes, and what sharing gains."""
    from rich.progress import Progress

    from navi_core.bench.compile import RESOLUTIONS, SCENES, compile_cases, run_compile
    from navi_core.record import hardware_profile

    cases = compile_cases(scene or SCENES, resolution or RESOLUTIONS, decimate)
    rows: list[dict[str, Any]] = []
    with Progress(transient=True, disable=as_json) as bar:
        task = bar.add_task("compiling", total=len(cases))
        for measured in run_compile(cases, threads=threads, version_1=version_1):
            rows.append(measured.as_dict())
            bar.advance(task)
    profile = hardware_profile()
    if as_json:
        typer.echo(
            json.dumps({"rows": rows, "hardware": profile["hardware"], "versions": profile["versions"]}, indent=1)
        )
        return
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"compilation on {profile['hardware']}, {threads} thread{'s' if threads > 1 else ''}",
        caption="s: after imports, with reading and writing; MB: imports, peak, file, run time; off: error [voxel]",
        box=SIMPLE,
        padding=0,
        collapse_padding=True,
    )
    heads = ["at", "faces", "kept", "s", "CPU", "v1", "import", "peak", "file", "cells", "nodes", "stored", "off"]
    table.add_column("scene")
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["scene"],
            str(row["resolution"]),
            _thousands(row["triangles"]),
            _thousands(row["kept"]),
            f"{row['seconds']:.2f}",
            f"{row['cpu_seconds']:.2f}",
            f"{row['version_1_seconds']:.1f}" if version_1 else "–",
            f"{row['import_mb']:.0f}",
            f"{row['peak_mb']:.0f}",
            f"{row['file_mb']:.1f}",
            f"{row['runtime_mb']:.1f}",
            _thousands(row["nodes_before"]),
            _thousands(row["nodes_after"]),
            f"{row['error_voxels']:.2f}" if decimate is not None else "–",
        )
    Console().print(table)


def _thousands(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"
