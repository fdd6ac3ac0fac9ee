"""`navi bench env`: how fast the environment is on this machine, and whether it keeps its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from navi_core.cli.bench.report import Drones, Json, Scenes, Sizes, Threads, figure, machine, report, sizes
from navi_core.terminal.progress import progress_bar
from navi_core.terminal.table import print_json

if TYPE_CHECKING:
    from navi_core.scenes import Scene

__all__ = ["env"]


def env(
    scene: Scenes = None,
    resolution: Annotated[int, typer.Option(help="Compile resolution.")] = 512,
    size: Sizes = None,
    drones: Drones = None,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of each case.")] = 30,
    threads: Threads = 1,
    soak: Annotated[
        int, typer.Option(min=0, help="Instead: so many steps of a small batch, and the memory they keep.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Fly random actions: decisions a second, CPU time, where it goes, memory."""
    from navi_core.bench import env_cases, run_env
    from navi_core.bench.env import DRONES, RESOLUTIONS
    from navi_core.cli.evaluate import load_scenes

    cases = env_cases(sizes(size) if size else RESOLUTIONS, drones or DRONES)
    scenes = load_scenes(scene or ["apartment:0"], resolution)
    if soak:
        _soak(scenes, soak, as_json)
        return
    rows = []
    with progress_bar("flying", quiet=as_json, counted=True) as progress:
        for row in run_env(cases, scenes, threads=threads, steps=steps):
            rows.append(row.as_dict())
            progress("", len(rows), len(cases))
    columns = {
        "sensor": lambda row: f"{row['azimuth_bins']}x{row['elevation_bins']}",
        "drones": figure("drones"),
        "steps/s": figure("steps_per_second", ",.0f"),
        "CPU ms": figure("cpu_per_1000", ".3f"),
        "cast ms": figure("cast_per_1000", ".3f"),
        "over": figure("overhead", ".1f", 100.0),
        "over wall": figure("overhead_wall", ".1f", 100.0),
        "MB": figure("memory", ".0f", 1e-6),
    }
    caption = (
        "CPU ms of a drone's step, and of a plain cast_rays of the same rays right after it; "
        "over: % of the step that the cast does not take, of CPU and of wall time"
    )
    report("environment", rows, columns, as_json, threads=threads, words=1, caption=caption)


def _soak(scenes: list[Scene], steps: int, as_json: bool) -> None:
    from navi_core.bench import run_soak

    with progress_bar("flying", quiet=as_json) as progress:
        result = run_soak(scenes, steps=steps, progress=lambda done, total: progress("", done, total))
    if as_json:
        told = {"steps": result.steps, "resident": result.resident, "growth": result.growth, "steady": result.steady}
        print_json(told | machine())
        return
    for step, resident in zip(result.steps, result.resident):
        typer.echo(f"{step:>10,} steps  {resident / 1e6:8.1f} MB")
    word = "steady" if result.steady else "growing"
    typer.echo(f"{word}: {100 * result.growth:+.2f} % after the first tenth (at most 1 % + 5 MB is steady)")
