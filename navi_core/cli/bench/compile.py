"""`navi bench compile`: what a compilation takes, each in a fresh process."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from navi_core.cli.bench.report import Column, Json, Resolutions, Threads, figure, report
from navi_core.terminal.progress import progress_bar

__all__ = ["compile_scenes"]


def compile_scenes(
    scene: Annotated[
        list[str] | None,
        typer.Option("--scene", help="A mesh file, family:seed or tessellated:faces; may be repeated.", metavar="S"),
    ] = None,
    resolution: Resolutions = None,
    decimate: Annotated[float | None, typer.Option(help="Also merge triangles, within this many voxels.")] = None,
    version_1: Annotated[bool, typer.Option("--version-1", help="Also write version 1.")] = False,
    threads: Threads = 2,
    as_json: Json = False,
) -> None:
    """Compile in fresh processes: seconds after imports, peak memory, sizes, and what sharing gains."""
    from navi_core.bench.compile import RESOLUTIONS, SCENES, compile_cases, run_compile

    cases = compile_cases(scene or SCENES, resolution or RESOLUTIONS, decimate)
    rows: list[dict[str, Any]] = []
    with progress_bar("compiling", quiet=as_json, counted=True) as progress:
        for measured in run_compile(cases, threads=threads, version_1=version_1):
            rows.append(measured.as_dict())
            progress(measured.scene, len(rows), len(cases))
    columns: dict[str, Column] = {
        "scene": figure("scene"),
        "at": figure("resolution"),
        "faces": _thousands("triangles"),
        "kept": _thousands("kept"),
        "s": figure("seconds", ".2f"),
        "CPU": figure("cpu_seconds", ".2f"),
        **({"v1": figure("version_1_seconds", ".1f")} if version_1 else {}),
        "import": figure("import_mb", ".0f"),
        "peak": figure("peak_mb", ".0f"),
        "file": figure("file_mb", ".1f"),
        "cells": figure("runtime_mb", ".1f"),
        "nodes": _thousands("nodes_before"),
        "stored": _thousands("nodes_after"),
        **({} if decimate is None else {"off": figure("error_voxels", ".2f")}),
    }
    caption = "s: after imports, with reading and writing; MB: imports, peak, file, run time; off: error [voxel]"
    report("compilation", rows, columns, as_json, threads=threads, words=1, caption=caption)


def _thousands(key: str) -> Column:
    return lambda row: str(row[key]) if row[key] < 10_000 else f"{row[key] / 1000:.0f}k"
