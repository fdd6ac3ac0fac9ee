"""`navi bench cartpole`, `navi bench grpo` and `navi bench gae`: the fast path, and PPO beside its peers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from navi_core.cli.bench.report import Column, Json, Repeats, figure, machine, report, sizes
from navi_core.terminal.progress import progress_bar
from navi_core.terminal.table import print_json

__all__ = ["register"]


def register(group: typer.Typer) -> None:
    """Add the commands to the group `bench`."""
    group.command("cartpole")(cartpole)
    group.command("grpo")(grpo)
    group.command("gae")(gae)


def cartpole(
    against: Annotated[
        str, typer.Option(help="Peers in one run, by commas: sb3, gymnasium, pufferlib.", metavar="NAMES")
    ] = "",
    task: Annotated[str, typer.Option(help="What is learned: cart_pole, acrobot, lunar_lander.")] = "cart_pole",
    seeds: Annotated[int, typer.Option(min=0, help="So many seeds learn; 0 measures speed alone.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    peer_seeds: Annotated[int, typer.Option(min=0, help="With so many of them sb3 learns too; minutes each.")] = 1,
    target: Annotated[
        float | None, typer.Option(help="Mean return of 100 episodes that counts as solved; by default the task's.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Decisions of a speed measurement; 0 leaves speed out.")
    ] = 400_000,
    repeats: Repeats = 3,
    processes: Annotated[int, typer.Option(min=1, help="Also measure so many processes together.")] = 1,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of learning, such as epochs=4; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn cart-pole by the fast path: samples per CPU-second, CPU-seconds and steps until solved, memory."""
    from navi_core.bench import cartpole as bench
    from navi_core.bench.tasks import PPO_TARGETS, ppo_settings
    from navi_core.presets import parse_assignments

    peers = tuple(filter(None, (name.strip() for name in against.split(","))))
    cases = bench.cartpole_cases(peers, processes, samples) if samples else []
    settings = ppo_settings(task, parse_assignments(assign or ()))
    if target is None:
        target = PPO_TARGETS.get(task, PPO_TARGETS["cart_pole"])
    learners = {"navi": seeds} | ({"sb3": peer_seeds} if "sb3" in peers and task == "cart_pole" else {})
    with progress_bar("cart-pole", quiet=as_json, counted=True) as progress:
        speed = list(bench.run_cartpole(cases, repeats, progress))
        wanted = range(first_seed, first_seed + seeds)
        solved = [row.as_dict() for row in bench.run_solve(learners, wanted, settings, target, progress)]
    rows, caption = [row.as_dict() for row in speed], None
    if "pufferlib" in peers and rows:
        caption, blank = bench.against_puffer(speed), dict.fromkeys(rows[0])
        rows += [
            blank | {"trainer": f"{name} *", "epochs": epochs, "samples_per_cpu_second": rate}
            for name, (rate, epochs) in bench.MEASURED_ELSEWHERE.items()
        ]
    if as_json:
        print_json({"speed": rows, "learning": solved, "pufferlib": caption, **machine()})
        return
    if rows:
        _speed(rows, caption)
    if solved:
        _learning(solved, target)


def grpo(
    task: Annotated[str, typer.Option(help="What is learned, such as acrobot.")] = "cart_pole",
    seeds: Annotated[int, typer.Option(min=1, help="So many seeds learn.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    target: Annotated[float, typer.Option(help="Mean return of 100 episodes that counts as solved.")] = 450.0,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of learning, such as group_size=8; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn a task by GRPO on groups of whole episodes: steps and CPU-seconds until solved, final return."""
    from navi_core.bench.grpo import run_grpo
    from navi_core.presets import parse_assignments

    settings = {"task": task} | parse_assignments(assign or ())
    with progress_bar("grpo", quiet=as_json, counted=True) as progress:
        wanted = range(first_seed, first_seed + seeds)
        rows = [row.as_dict() for row in run_grpo(wanted, settings, target, progress)]
    if as_json:
        print_json({"learning": rows, **machine()})
        return
    _learning(rows, target)


def _speed(rows: list[dict[str, Any]], caption: str | None) -> None:
    columns: dict[str, Column] = {
        "trainer": figure("trainer"),
        "network": figure("network"),
        "epochs": figure("epochs"),
        "batch": figure("batch"),
        "minibatch": figure("minibatch"),
        "processes": figure("processes"),
        "samples/s": figure("samples_per_second", ",.0f"),
        "samples/CPU-s": figure("samples_per_cpu_second", ",.0f"),
        "× SB3": figure("times_sb3", ".1f"),
        "peak MB": figure("peak_mb", ".0f"),
    }
    report("cart-pole, speed", rows, columns, False, threads=1, words=2, caption=caption)


def _learning(rows: list[dict[str, Any]], target: float) -> None:
    import statistics

    columns: dict[str, Column] = {
        "trainer": figure("trainer"),
        "network": figure("network"),
        "epochs": figure("epochs"),
        "batch": figure("batch"),
        "minibatch": figure("minibatch"),
        "seed": figure("seed"),
        "solved at": figure("solved_at"),
        "CPU-s to solve": figure("cpu_seconds_to_solve", ".2f"),
        "steps": figure("steps"),
        "CPU-s": figure("cpu_seconds", ".2f"),
        "training return": figure("training_return", ".1f"),
        "final return": figure("final_return", ".1f"),
    }
    parts = []
    for trainer in dict.fromkeys(row["trainer"] for row in rows):
        own = [row for row in rows if row["trainer"] == trainer]
        times = [row["cpu_seconds_to_solve"] for row in own if row["cpu_seconds_to_solve"] is not None]
        middle = f"median {statistics.median(times):.2f} CPU-s" if len(times) == len(own) else "no median"
        parts.append(f"{trainer}: {len(times)} of {len(own)} reach {target:g}, {middle}")
    report(f"{rows[0]['task']}, learning", rows, columns, False, threads=1, words=2, caption="; ".join(parts))


def gae(
    size: Annotated[
        list[str] | None, typer.Option("--size", help="Steps and rows; may be repeated.", metavar="TxB")
    ] = None,
    repeats: Repeats = 20,
    as_json: Json = False,
) -> None:
    """Estimate the same advantages in every way: CPU time, ratio to a loop over numbers, error against float64."""
    from navi_core.bench.gae import run_gae

    rows = [row.as_dict() for row in run_gae(sizes(size or ["128x64", "128x4096"]), repeats)]
    columns: dict[str, Column] = {
        "way": figure("way"),
        "T": figure("steps"),
        "B": figure("rows"),
        "CPU [ms]": figure("milliseconds", ".3f"),
        "M samples/CPU-s": figure("samples_per_cpu_second", ".2f", 1e-6),
        "× Python loop": figure("times_python", ",.0f"),
        "error": figure("error", ".1e"),
    }
    report("GAE", rows, columns, as_json, threads=1, words=1)
