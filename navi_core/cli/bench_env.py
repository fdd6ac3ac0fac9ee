"""`navi bench env`: how fast the environment is on this machine, and whether it keeps its memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from navi_core.bench import Soak
    from navi_core.scenes import Scene

__all__ = ["env"]


def env(
    scene: Annotated[
        list[str] | None,
        typer.Option("--scene", help="A .gmdag or mesh file, or family:seeds; may be repeated.", metavar="S"),
    ] = None,
    resolution: Annotated[
        list[str] | None, typer.Option(help="Bins of the sensor, such as 256x48; may be repeated.", metavar="AZxEL")
    ] = None,
    drones: Annotated[list[int] | None, typer.Option(min=1, help="Number of drones; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of each case.")] = 30,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the kernels and of torch.")] = 1,
    compiled: Annotated[int, typer.Option(help="Compile resolution of the scenes.")] = 512,
    soak: Annotated[
        int, typer.Option(min=0, help="Instead: so many steps of a small batch, and the memory they keep.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fly random actions: decisions a second, CPU time, where it goes, memory."""
    from navi_core.bench import env_cases, run_env
    from navi_core.bench.env import DRONES, RESOLUTIONS
    from navi_core.cli.evaluate import load_scenes
    from navi_core.record import hardware_profile

    sizes = [_bins(text) for text in resolution] if resolution else list(RESOLUTIONS)
    scenes = load_scenes(scene or ["apartment:0"], compiled)
    profile = hardware_profile()
    machine = {"hardware": profile["hardware"], "versions": profile["versions"]}
    if soak:
        _soak(scenes, soak, machine, as_json)
        return
    rows = [row.as_dict() for row in run_env(env_cases(sizes, drones or DRONES), scenes, threads=threads, steps=steps)]
    if as_json:
        typer.echo(json.dumps({"rows": rows, **machine}, indent=1))
        return
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    threads_text = f"{threads} thread{'s' if threads > 1 else ''}"
    table = Table(
        title=f"environment on {profile['hardware']}, {threads_text}",
        caption="CPU ms a drone's step; % of it: rays, observation, dynamics, rewards, rest; over: all but the rays",
        box=SIMPLE,
        padding=0,
        collapse_padding=True,
    )
    heads = ["sensor", "drones", "steps/s", "CPU ms", "rays", "obs", "dyn", "rew", "rest", "over", "MB"]
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['azimuth_bins']}x{row['elevation_bins']}",
            str(row["drones"]),
            f"{row['steps_per_second']:,.0f}",
            f"{row['cpu_per_1000']:.3f}",
            *(f"{100 * share:.0f}" for share in row["shares"].values()),
            f"{100 * row['overhead']:.0f}",
            f"{row['memory'] / 1e6:.0f}",
        )
    Console().print(table)


def _soak(scenes: list[Scene], steps: int, machine: dict[str, Any], as_json: bool) -> None:
    from rich.progress import Progress

    from navi_core.bench import run_soak

    with Progress(transient=True, disable=as_json) as bar:
        task = bar.add_task("flying", total=steps)
        result: Soak = run_soak(scenes, steps=steps, progress=lambda done, total: bar.update(task, completed=done))
    if as_json:
        told = {"steps": result.steps, "resident": result.resident, "growth": result.growth, "steady": result.steady}
        typer.echo(json.dumps(told | machine, indent=1))
        return
    for step, resident in zip(result.steps, result.resident):
        typer.echo(f"{step:>10,} steps  {resident / 1e6:8.1f} MB")
    word = "steady" if result.steady else "growing"
    typer.echo(f"{word}: {100 * result.growth:+.2f} % after the first tenth (at most 1 % + 5 MB is steady)")


def _bins(text: str) -> tuple[int, int]:
    from navi_core.errors import ConfigError

    azimuth, _, elevation = text.partition("x")
    if not (azimuth.isdecimal() and elevation.isdecimal()) or len(text) > 9:
        raise ConfigError(f"--resolution {text!r}: write azimuth and elevation bins as 256x48")
    return int(azimuth), int(elevation)
