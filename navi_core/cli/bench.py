"""`navi bench`: how fast and how exact this machine is, as ratios within one run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from navi_core.cli import bench_policy
from navi_core.cli.bench_compile import compile_scenes
from navi_core.cli.bench_env import env

__all__ = ["raycast", "register"]


def register(app: typer.Typer) -> None:
    """Add the group `bench` to the `navi` command."""
    group = typer.Typer(name="bench", help="Measure this machine.", no_args_is_help=True)
    group.callback()(_group)
    group.command("raycast")(raycast)
    group.command("env")(env)
    group.command("device")(device)
    group.command("compile")(compile_scenes)
    bench_policy.register(group)
    app.add_typer(group)


def _group() -> None:
    """Measure this machine."""


def raycast(
    scene: Annotated[
        list[str] | None,
        typer.Option("--scene", help="A .gmdag or mesh file, or family:seeds; may be repeated.", metavar="S"),
    ] = None,
    resolution: Annotated[list[int] | None, typer.Option(help="Compile resolution; may be repeated.")] = None,
    tracer: Annotated[
        list[str] | None,
        typer.Option(
            help="native, native:16, native:8, native:4, octree, numba, octree:numba or open3d; may be repeated."
        ),
    ] = None,
    drones: Annotated[list[int] | None, typer.Option(min=1, help="Origins of a call; may be repeated.")] = None,
    azimuth: Annotated[int, typer.Option(min=1, help="Azimuth bins of a pose.")] = 256,
    elevation: Annotated[int, typer.Option(min=1, help="Elevation bins of a pose.")] = 48,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a call.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Turns that each tracer takes; the median counts.")] = 7,
    exact_rays: Annotated[
        int, typer.Option(min=0, help="Rays compared with every triangle; 0: what a second or so allows.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as one JSON object.")] = False,
) -> None:
    """Cast the same rays with every tracer: M rays/s, ratios to Open3D and to the octree, and the error in voxels."""
    from navi_core.bench import raycast as bench
    from navi_core.cli.evaluate import load_scenes
    from navi_core.record import hardware_profile

    scenes = []
    for size in resolution or [512]:
        scenes += load_scenes(scene or ["apartment:0", "maze:0", "atrium:0", "rooms:0"], size)
    cases = bench.raycast_cases(scenes, tuple(tracer or bench.TRACERS), tuple(drones or [16]))
    rows = [
        row.as_dict()
        for row in bench.run_raycast(
            cases,
            azimuth_bins=azimuth,
            elevation_bins=elevation,
            threads=threads,
            repeats=repeats,
            exact_rays=exact_rays,
        )
    ]
    profile = hardware_profile()
    if as_json:
        typer.echo(
            json.dumps({"rows": rows, "hardware": profile["hardware"], "versions": profile["versions"]}, indent=1)
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"rays on {profile['hardware']}, {threads} thread{'s' if threads > 1 else ''}")
    for name in ("scene", "tracer"):
        table.add_column(name, no_wrap=True)
    columns = (
        "res.",
        "drones",
        "M rays/CPU-s",
        "× Open3D",
        "× octree",
        "samples",
        "MB",
        "p99 [voxel]",
        "miss",
        "names",
    )
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["scene"],
            row["tracer"] + (f" ({row['lanes']})" if row["tracer"] == "native" else ""),
            str(row["resolution"]),
            str(row["drones"]),
            f"{row['mrays_per_cpu_second']:.2f}",
            _or_dash(row["times_open3d"], ".2f"),
            _or_dash(row["times_octree"], ".1f"),
            _or_dash(row["samples_per_ray"], ".2f"),
            _or_dash(None if row["memory"] is None else row["memory"] / 1e6, ".1f"),
            f"{row['error_p99']:.1e}",
            f"{row['disagreement']:.1e}",
            _or_dash(row["semantic_agreement"], ".4f"),
        )
    Console().print(table)


def device(
    device: Annotated[str, typer.Option(help="cuda, or cpu for the kernels' twin.")] = "cuda",
    drones: Annotated[list[int] | None, typer.Option(min=1, help="Rows of a batch; may be repeated.")] = None,
    resolution: Annotated[int, typer.Option(min=64, help="Compile resolution.")] = 512,
    azimuth: Annotated[int, typer.Option(min=1, help="Azimuth bins.")] = 256,
    elevation: Annotated[int, typer.Option(min=2, help="Elevation bins.")] = 48,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each timing; the median counts.")] = 20,
    tune: Annotated[bool, typer.Option(help="Also measure other builds and orders of rays.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Check the engine on a GPU against the CPU, and measure rays and environment steps a second."""
    from navi_core.bench.device import main

    numbers = {"resolution": resolution, "azimuth": azimuth, "elevation": elevation, "repeats": repeats}
    arguments = ["--device", device, *(word for name, n in numbers.items() for word in (f"--{name}", str(n)))]
    arguments += ["--drones", *map(str, drones or (256, 1024, 4096))]
    arguments += ["--tune"] * tune + ["--json"] * as_json
    raise typer.Exit(main(arguments))


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
