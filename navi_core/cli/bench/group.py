"""`navi bench`: how fast and how exact this machine is, as ratios within one run."""

from __future__ import annotations

from typing import Annotated

import typer

from navi_core.cli.bench import fast as bench_fast
from navi_core.cli.bench import learning as bench_learning
from navi_core.cli.bench import offpolicy as bench_offpolicy
from navi_core.cli.bench import policy as bench_policy
from navi_core.cli.bench import service as bench_service
from navi_core.cli.bench.compile import compile_scenes
from navi_core.cli.bench.env import env
from navi_core.cli.bench.evaluation import baselines, evaluation
from navi_core.cli.bench.interval import interval
from navi_core.cli.bench.report import (
    Column,
    Drones,
    Json,
    Repeats,
    Resolutions,
    Scenes,
    Sizes,
    Threads,
    figure,
    report,
    sizes,
)
from navi_core.terminal.progress import progress_bar

__all__ = ["raycast", "register"]


def register(app: typer.Typer) -> None:
    """Add the group `bench` to the `navi` command."""
    group = typer.Typer(name="bench", help=_group.__doc__, no_args_is_help=True)
    group.callback()(_group)
    group.command("raycast")(raycast)
    group.command("env")(env)
    group.command("device")(device)
    group.command("compile")(compile_scenes)
    group.command("interval")(interval)
    group.command("baselines")(baselines)
    group.command("evaluation")(evaluation)
    bench_policy.register(group)
    bench_service.register(group)
    bench_learning.register(group)
    bench_fast.register(group)
    bench_offpolicy.register(group)
    app.add_typer(group)


def _group() -> None:
    """Measure this machine: rays, flight, the policy's parts, a GPU, evaluations, how right an interval is."""


def raycast(
    scene: Scenes = None,
    resolution: Resolutions = None,
    tracer: Annotated[
        list[str] | None,
        typer.Option(
            help="native, native:16, native:8, native:4, octree, numba, octree:numba or open3d; may be repeated."
        ),
    ] = None,
    size: Sizes = None,
    drones: Drones = None,
    threads: Threads = 1,
    repeats: Repeats = 7,
    exact_rays: Annotated[
        int, typer.Option(min=0, help="Rays compared with every triangle; 0: what a second or so allows.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Cast the same rays with every tracer: M rays/s, ratios to Open3D and to the octree, and the error in voxels."""
    from navi_core.bench import raycast as bench
    from navi_core.cli.evaluate import load_scenes

    bins = sizes(size or ["256x48"])
    scenes = []
    for voxels in resolution or [512]:
        scenes += load_scenes(scene or ["apartment:0", "maze:0", "atrium:0", "rooms:0"], voxels)
    cases = bench.raycast_cases(scenes, tuple(tracer or bench.TRACERS), tuple(drones or [16]))
    rows = []
    with progress_bar("casting", quiet=as_json, counted=True) as progress:
        for azimuth, elevation in bins:
            for row in bench.run_raycast(
                cases,
                azimuth_bins=azimuth,
                elevation_bins=elevation,
                threads=threads,
                repeats=repeats,
                exact_rays=exact_rays,
            ):
                rows.append(row.as_dict() | {"size": f"{azimuth}x{elevation}"})
                progress(row.scene, len(rows), len(cases) * len(bins))
    columns: dict[str, Column] = {
        "scene": figure("scene"),
        "tracer": lambda row: row["tracer"] + (f" ({row['lanes']})" if row["tracer"] == "native" else ""),
        "size": figure("size"),
        "res.": figure("resolution"),
        "drones": figure("drones"),
        "M rays/CPU-s": figure("mrays_per_cpu_second", ".2f"),
        "× Open3D": figure("times_open3d", ".2f"),
        "× octree": figure("times_octree", ".1f"),
        "samples": figure("samples_per_ray", ".2f"),
        "MB": figure("memory", ".1f", 1e-6),
        "p99 [voxel]": figure("error_p99", ".1e"),
        "miss": figure("disagreement", ".1e"),
        "names": figure("semantic_agreement", ".4f"),
    }
    report("rays", rows, columns, as_json, threads=threads, words=3)


def device(
    device: Annotated[str, typer.Option(help="cuda, or cpu for the kernels' twin.")] = "cuda",
    scene: Annotated[
        list[str] | None, typer.Option("--scene", help="family:seed; may be repeated.", metavar="S")
    ] = None,
    resolution: Annotated[int, typer.Option(min=64, help="Compile resolution.")] = 512,
    size: Annotated[str, typer.Option(help="Azimuth and elevation bins.", metavar="AZxEL")] = "256x48",
    drones: Drones = None,
    repeats: Repeats = 20,
    tune: Annotated[bool, typer.Option(help="Also measure other builds and orders of rays.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Check the engine on a GPU against the CPU, and measure rays and environment steps a second."""
    from navi_core.bench.device import main

    arguments = ["--device", device, "--resolution", str(resolution), "--size", size, "--repeats", str(repeats)]
    arguments += ["--scene", *scene] if scene else []
    arguments += ["--drones", *map(str, drones)] if drones else []
    raise typer.Exit(main([*arguments, *["--tune"] * tune, *["--json"] * as_json]))
