"""`navi bench train`, `memory`, `dpo` and `dashboard`: how fast a run learns, and whether it learns what it should."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from navi_core.cli.bench.report import Column, Json, Scenes, figure, machine, report
from navi_core.terminal.table import print_json, print_table

__all__ = ["TIME_IS_UP", "register"]

TIME_IS_UP = 124
"""Exit code of a benchmark that measured nothing in the time that it was given; timeout(1) has the same."""


def register(group: typer.Typer) -> None:
    """Add the commands to the group `bench`."""
    group.command("train")(train)
    group.command("memory")(memory)
    group.command("dpo")(dpo)
    group.command("dashboard")(dashboard)


def train(
    preset: Annotated[str, typer.Option(help="Preset: demo, quick, standard.")] = "standard",
    file: Annotated[Path | None, typer.Option("--config", help="YAML or JSON file of settings.")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b=c; may be repeated.")] = None,
    scene: Scenes = None,
    actors: Annotated[int, typer.Option(min=1, help="Environment rows.")] = 16,
    rollout: Annotated[int, typer.Option(min=1, help="Decisions per row and update.")] = 64,
    updates: Annotated[int, typer.Option(min=1, help="Measured updates, after one that warms up.")] = 2,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="End with the last update made in this time.")] = None,
    memory_limit: Annotated[
        float | None, typer.Option(min=0.1, help="Address space that the process may take [GiB]; exit code 12 beyond.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a few updates: decisions per second of two cores, and the time of every stage."""
    from navi_core.bench.limits import limit_memory, memory_faults
    from navi_core.bench.train import run_train
    from navi_core.cli.evaluate import load_scenes
    from navi_core.learn.run.records import run_device
    from navi_core.presets import resolve_config
    from navi_core.world import Field

    config = resolve_config(
        preset=preset, file=file, flags={"actors": actors, "ppo": {"rollout": rollout}}, assignments=assign or ()
    )
    with limit_memory(memory_limit), memory_faults():
        scenes = load_scenes(scene or ["apartment:0,1"], config.compile.resolution)
        field = Field(scenes, device=run_device(config), threads=config.threads)
        try:
            result = run_train(config, field, updates=updates, seconds=seconds, progress=_tell)
        except TimeoutError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(TIME_IS_UP) from None
    about = machine()
    if as_json:
        rates = {
            "steps_per_second": result.steps_per_second,
            "steps_per_2_cpu_seconds": result.steps_per_two_cpu_seconds,
            "forward_ms": None if math.isnan(result.forward_ms) else result.forward_ms,
        }
        print_json(asdict(result) | rates | about)
        return
    policy = config.policy
    title = (
        f"{policy.azimuth_bins}x{policy.elevation_bins}, {policy.encoder} + {policy.core}, {config.ppo.epochs} "
        f"epochs, on {about['hardware']}:\n{result.steps_per_two_cpu_seconds:.0f} steps per 2 CPU-seconds, "
        f"{result.steps_per_second:.0f} steps/s on the wall"
    )
    rows = []
    for stage in result.stages:
        part = stage.name.count("/") > 1
        share = f"({stage.share:.1%})" if part else f"{stage.share:.1%}"
        rows.append((("  " if part else "") + stage.name, f"{stage.milliseconds:.2f}", f"{stage.seconds:.2f}", share))
    print_table(title, ("stage", "mean [ms]", "total [s]", "share"), rows, words=1, dense=True)


def dashboard(
    preset: Annotated[str, typer.Option(help="Preset: demo, quick, standard.")] = "quick",
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b=c; may be repeated.")] = None,
    scene: Scenes = None,
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of measurements with and without an open page.")] = 10,
    rounds: Annotated[int, typer.Option(min=2, help="Updates of each kind in a pair, in turns.")] = 4,
    as_json: Json = False,
) -> None:
    """Train with and without an open dashboard in turns: processor time per 1,000 decisions, and its interval."""
    from navi_core.bench.dashboard import run_dashboard
    from navi_core.cli.evaluate import load_scenes
    from navi_core.presets import resolve_config
    from navi_core.terminal.progress import progress_bar
    from navi_core.world import Field

    config = resolve_config(preset=preset, flags={"threads": 1}, assignments=assign or ())
    field = Field(load_scenes(scene or ["apartment:0-3"], config.compile.resolution), threads=config.threads)
    with progress_bar("updates", quiet=as_json, counted=True) as bar:
        result = run_dashboard(
            config, field, pairs=pairs, rounds=rounds, progress=lambda made: bar("", made, 2 * rounds * (pairs + 1))
        )
    about = machine()
    if as_json:
        print_json(asdict(result) | about)
        return
    rows = [(str(n), f"{off:.4f}", f"{on:.4f}", f"{on / off - 1:+.2%}") for n, (off, on) in
            enumerate(zip(result.without, result.watched), 1)]  # fmt: skip
    caption = (
        f"overhead {result.overhead:+.2%} [{result.low:+.2%}, {result.high:+.2%}], of which showing takes "
        f"{result.direct_share:.2%}; "
        f"{result.observations_per_second:.1f} observations/s while flying, {result.unwatched_observations} while "
        f"nobody watched; the dashboard itself takes {result.page_cpu_share:.0%} of a core"
    )
    print_table(
        f"CPU-seconds per 1,000 decisions, updates of {result.steps:,}, on {about['hardware']}",
        ("pair", "without", "with", "more"), rows, words=1, caption=caption,
    )  # fmt: skip


def memory(
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Group of runs; may be repeated. By default all.")
    ] = None,
    core: Annotated[list[str] | None, typer.Option("--core", help="mamba2, gru or your own; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every run.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them; the others follow it.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Decisions at most; by default those of the group.")] = None,
    go_on: Annotated[bool, typer.Option("--go-on", help="Learn on where the target was reached.")] = False,
    as_json: Json = False,
) -> None:
    """Learn tasks that need a memory, with the state carried, forgotten, or begun from zeros in updates."""
    from navi_core.bench.memory import MEMORY_CASES, memory_cases, run_memory
    from navi_core.errors import ConfigError

    unknown = sorted(set(group or ()) - set(MEMORY_CASES))
    if unknown:
        raise ConfigError(f"no group {', '.join(unknown)}; allowed: {', '.join(MEMORY_CASES)}")
    cases = memory_cases(group or (), core or ())
    if steps is not None:
        cases = [replace(case, steps=min(steps, case.steps)) for case in cases]
    made = run_memory(cases, range(first_seed, first_seed + seeds), _tell, until_solved=not go_on)
    rows = [row.as_dict() for row in made]
    columns: dict[str, Column] = {
        "run": figure("case"),
        "seed": figure("seed"),
        "steps": figure("steps"),
        "solved at": figure("solved_at"),
        "best": figure("best", ".3f"),
        "final": figure("final", ".3f"),
        "episodes": figure("episodes"),
        "kept": figure("kept", ".3f"),
        "first ratio": figure("first_ratio", ".1e"),
        "in double": figure("exact_ratio", ".1e"),
        "CPU [s]": figure("cpu_seconds", ".0f"),
    }
    report("memory: mean return of 10 updates", rows, columns, as_json, threads=1, words=1)


def dpo(
    scene: Scenes = None,
    unseen: Annotated[
        list[str] | None, typer.Option("--unseen", help="Scenes to fly before and after; as --scene.", metavar="S")
    ] = None,
    winner: Annotated[str, typer.Option(help="The pilot that is thought the better one.")] = "forward-plus",
    loser: Annotated[str, typer.Option(help="The other.")] = "random",
    count: Annotated[int, typer.Option("--pairs", min=2, help="Pairs.")] = 256,
    updates: Annotated[int, typer.Option(min=1, help="Updates of a run.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds learn.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b=c; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Prefer one pilot's flights to another's: held-out pairs, and coverage of unseen scenes before and after."""
    from navi_core.bench.dpo import dpo_config, run_dpo
    from navi_core.cli.evaluate import load_scenes
    from navi_core.presets import parse_assignments

    changes = parse_assignments(assign or ())
    resolution = dpo_config(first_seed, updates, None, changes).compile.resolution
    flown, other = (load_scenes(s, resolution) for s in (scene or ["apartment:0-15"], unseen or ["apartment:100-115"]))
    wanted = range(first_seed, first_seed + seeds)
    done = run_dpo(
        flown, other, wanted,
        winner=winner, loser=loser, count=count, updates=updates, changes=changes, progress=_tell,
    )  # fmt: skip
    columns: dict[str, Column] = {
        "seed": figure("seed"),
        "pairs": figure("pairs"),
        "updates": figure("updates"),
        "held out": figure("held_out", ".1%"),
        "AUC before": figure("before", ".1f"),
        "after": figure("after", ".1f"),
        "gain": figure("gain", "+.1f"),
        "low": figure("low", "+.1f"),
        "high": figure("high", "+.1f"),
        f"over {loser}": figure("over_loser", "+.1f"),
        "its low": figure("over_loser_low", "+.1f"),
        "its high": figure("over_loser_high", "+.1f"),
        "CPU [s]": figure("cpu_seconds", ".0f"),
    }
    rows = [row.as_dict() for row in done]
    title = f"DPO, {winner} preferred to {loser}; C_vis AUC of {len(other)} unseen scenes"
    report(title, rows, columns, as_json, threads=1, words=1, caption="intervals of 95 % over scenes and starts")


def _tell(line: str) -> None:
    typer.echo(line, err=True)
