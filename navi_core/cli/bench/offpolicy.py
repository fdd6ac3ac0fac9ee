"""`navi bench dqn`, `apex`, `replay` and `smoothing`: learning off policy."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli.bench.report import Column, Json, Repeats, figure, machine, report
from navi_core.terminal.progress import progress_bar
from navi_core.terminal.table import print_json, print_table

if TYPE_CHECKING:
    from navi_core.bench.smoothing_table import SmoothingRow

__all__ = ["register"]


def register(group: typer.Typer) -> None:
    """Add the commands to the group `bench`."""
    # Products of small networks are too small to be shared; read when numpy loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    group.command("dqn")(dqn)
    group.command("apex")(apex)
    group.command("replay")(replay)
    group.command("smoothing")(smoothing)


def dqn(
    task: Annotated[str, typer.Option(help="cart_pole, acrobot, snake or lunar_lander.")] = "cart_pole",
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds learn.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    until_solved: Annotated[bool, typer.Option("--until-solved", help="End a run where it is solved.")] = False,
    against: Annotated[str, typer.Option(help="Peers in the same run: sb3.", metavar="NAMES")] = "",
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, such as dqn.n_step=1; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn a task by Double DQN with prioritised replay: return of the last 100 episodes, steps and CPU-seconds."""
    from navi_core.bench.dqn import DQN_TARGETS, run_dqn
    from navi_core.presets import parse_assignments

    peers = tuple(filter(None, (name.strip() for name in against.split(","))))
    lines = lambda line: typer.echo(line, err=True)  # noqa: E731
    runs = run_dqn(
        task, range(first_seed, first_seed + seeds), against=peers, changes=parse_assignments(assign or ()),
        until_solved=until_solved, progress=lines,
    )  # fmt: skip
    rows = [row.as_dict() for row in runs]
    columns: dict[str, Column] = {
        "trainer": figure("trainer"),
        "network": figure("network"),
        "seed": figure("seed"),
        "steps": figure("steps"),
        "solved at": figure("solved_at"),
        "last 100": figure("recent", ".1f"),
        "best 100": figure("best", ".1f"),
        "evaluated at": figure("evaluated_at"),
        "evaluation": figure("final", ".1f"),
        "batch": figure("batch"),
        "gradients": figure("gradient_steps"),
        "steps/CPU-s": figure("steps_per_cpu_second", ",.0f"),
        "CPU [s]": figure("cpu_seconds", ".1f"),
    }
    caption = None
    if task in DQN_TARGETS:
        own = [row for row in rows if row["trainer"] == "navi"]
        solved, seen = (sum(row[name] is not None for row in own) for name in ("solved_at", "evaluated_at"))
        caption = f"{DQN_TARGETS[task]:g} reached by the last 100 training episodes in {solved} of {len(own)} seeds"
        caption += f", by an evaluation in {seen}"
    report(f"Double DQN, {task}", rows, columns, as_json, threads=1, words=2, caption=caption)


def apex(
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds learn.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    actors: Annotated[int, typer.Option(min=1, help="Actor processes.")] = 2,
    in_process: Annotated[bool, typer.Option("--in-process", help="Without Ray, all in one process.")] = False,
    kill: Annotated[bool, typer.Option("--kill", help="Kill an actor and a shard on the way.")] = False,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, such as total_steps=50000; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn cart-pole by Ape-X: return of the last 100 episodes, and what every stage does in a second."""
    from navi_core.bench.apex import run_apex_bench
    from navi_core.presets import parse_assignments

    lines = lambda line: typer.echo(line, err=True)  # noqa: E731
    runs = run_apex_bench(
        range(first_seed, first_seed + seeds), actors=actors, in_process=in_process, kill=kill,
        changes=parse_assignments(assign or ()), progress=lines,
    )  # fmt: skip
    # Ray says on standard output when a process died; that belongs to the result.
    with redirect_stdout(sys.stderr):
        rows = [row.as_dict() for row in runs]
    columns: dict[str, Column] = {
        "place": figure("place"),
        "seed": figure("seed"),
        "steps": figure("steps"),
        "solved at": figure("solved_at"),
        "last 100": figure("recent", ".1f"),
        "best 100": figure("best", ".1f"),
        "actors [steps/s]": figure("actor_steps_per_s", ",.0f"),
        "added/s": figure("shard_adds_per_s", ",.0f"),
        "drawn/s": figure("shard_samples_per_s", ",.0f"),
        "gradients/s": figure("learner_updates_per_s", ",.1f"),
        "sync age [s]": figure("sync_age_s", ".2f"),
        "actors died": figure("actors_replaced"),
        "shards died": figure("shards_replaced"),
        "wall [s]": figure("seconds", ".0f"),
        "learner CPU [s]": figure("learner_cpu_seconds", ".0f"),
    }
    caption = (
        f"{actors} actors, {rows[0]['shards']} shards; rates of the run's second half, with whatever else ran here"
    )
    report("Ape-X, cart_pole", rows, columns, as_json, threads=1, words=1, caption=caption)


def replay(
    capacity: Annotated[list[int] | None, typer.Option(min=2, help="Items; may be repeated.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Items of a call.")] = 256,
    repeats: Repeats = 50,
    as_json: Json = False,
) -> None:
    """Draw by priority: items a second, and how exactly, beside running sums."""
    from navi_core.bench.replay import run_replay

    rows = [row.as_dict() for row in run_replay(capacity or [10_000, 100_000, 1_000_000], batch, repeats)]
    columns: dict[str, Column] = {
        "draws by": figure("name"),
        "capacity": figure("capacity"),
        "batch": figure("batch"),
        "added/CPU-s": figure("add", ",.0f"),
        "drawn/CPU-s": figure("sample", ",.0f"),
        "updated/CPU-s": figure("update", ",.0f"),
        "error [deviations]": figure("error", ".2f"),
        "MB": figure("nbytes", ".1f", 1e-6),
    }
    report("prioritised replay", rows, columns, as_json, threads=1, words=1)


def smoothing(
    task: Annotated[list[str] | None, typer.Option(help="cart_pole, acrobot or lunar_lander.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds learn.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them; stopping was chosen on 0 … 4.")] = 10,
    ablation: Annotated[bool, typer.Option("--ablation", help="alpha_step × d on noisy cart-pole instead.")] = False,
    minutes: Annotated[float, typer.Option(min=0, help="Begin no cell after so many; 0 only reports.")] = 1e9,
    out: Annotated[Path | None, typer.Option(help="Folder of cells; by default bench/smoothing of the home.")] = None,
    as_json: Json = False,
) -> None:
    """Compare no smoothing, drift smoothing, and stopping early; cells that are done are not run again."""
    from navi_core.bench import smoothing as bench
    from navi_core.bench import smoothing_table as table
    from navi_core.errors import ConfigError
    from navi_core.record import navi_home

    tasks = task or list(bench.NOISE)
    unknown = sorted(set(tasks) - set(bench.NOISE))
    if unknown:
        raise ConfigError(f"no task {', '.join(unknown)}; allowed: {', '.join(bench.NOISE)}")
    wanted = range(first_seed, first_seed + seeds)
    cells = bench.ablation_cells("cart_pole", wanted) if ablation else bench.smoothing_cells(tasks, wanted)
    folder = out if out is not None else navi_home() / "bench" / "smoothing"
    with progress_bar("smoothing", quiet=as_json, counted=True) as progress:
        curves = bench.run_cells(cells, folder, minutes=minutes, progress=progress)
    rows = table.smoothing_table(curves)
    done = f"{len(curves)} of {len(cells)} cells"
    if as_json:
        print_json(
            {"rows": [row.as_dict() | {"verdict": table.verdict(row)} for row in rows], "done": done, **machine()}
        )
        return
    _compared(rows, done)


def _compared(rows: list[SmoothingRow], done: str) -> None:
    from navi_core.bench.smoothing_table import MEASURES, verdict

    def interval(row: SmoothingRow, name: str) -> str:
        low, high = row.intervals[name]
        return f"{row.means[name]:,.4g} [{low:,.4g}, {high:,.4g}]"

    def shares(row: SmoothingRow) -> list[Any]:
        relative = f"{row.mean_step:.2g} ({row.relative_step:.1%})"
        return [f"{row.smoothed_share:.0%}", relative, f"{row.clipped_share:.1%}"]

    print_table(
        f"Double DQN with and without drift smoothing ({done}); mean and 95 % interval over seeds",
        ("task", "variant", "seeds", *(name.replace("_", " ") for name in MEASURES)),
        ([r.task, r.variant, str(r.seeds), *(interval(r, name) for name in MEASURES)] for r in rows),
        words=2,
        dense=True,
    )
    print_table(
        "What smoothing did, what changed to the same seeds' baseline, and what stopping early would do",
        ("task", "variant", "smoothed", "mean ‖Δh‖", "clipped", "stopped", "steps saved", "gain kept", "verdict"),
        (
            [r.task, r.variant, *shares(r), f"{r.stopped:.0%}", f"{r.saved:.0%}", f"{r.kept:.0%}", verdict(r)]
            for r in rows
        ),
        words=2,
        dense=True,
        caption="in brackets ‖Δh‖ in deviations of the temporal differences; gain kept: least share, over seeds, of "
        "the final return above random that was there at the stop",
    )
