"""Benchmark of PPO and GRPO on reference tasks: samples per CPU-second, CPU time until solved, memory.

Each measurement of PPO runs in a child process with one thread, which isolates its CPU time and memory. Compared
measurements take turns.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from navi_core.bench.report import (
    Column,
    Option,
    Progress,
    Repeats,
    Report,
    Row,
    Table,
    comma_names,
    figure,
    known_names,
    table,
)
from navi_core.bench.task_runs import PPO_TARGETS, run_task, task_config
from navi_core.config import TrainConfig
from navi_core.errors import ConfigError, NaviError, install_command
from navi_core.presets import parse_assignments

PEERS = ("sb3", "gymnasium", "pufferlib")
"""Peers to compare with: other trainers, and gymnasium's vector environment without a trainer."""
_MODULES = {"sb3": "stable_baselines3", "gymnasium": "gymnasium"}
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_TIMEOUT = 3600
MEASURED_ELSEWHERE = {"pufferlib 3.0, its MLP": (320_000.0, 1), "pufferlib 3.0, its LSTM": (45_000.0, 1)}
"""Reference figures of PufferLib (samples per CPU-second, epochs), measured on another day and machine."""


_CASE: Row = {
    "trainer": "navi",
    "task": "cart_pole",
    "width": 64,
    "epochs": 4,
    "rows": 256,
    "rollout": 32,
    "minibatch": 1024,
    "samples": 400_000,
    "processes": 1,
}
"""Default case of a throughput measurement.

trainer: `navi`, or one of `PEERS`.
task: `cart_pole`, or `cart_pole_masked`, whose network is recurrent.
width: Width of navi's network; Stable-Baselines3 has two networks of 64x64.
epochs: Passes over each rollout.
rows: Environment rows.
rollout: Decisions per row and update.
minibatch: Decisions per gradient step.
samples: Decisions that are timed.
processes: Processes that share the rows.
"""


def cartpole_cases(against: Sequence[str] = (), processes: int = 1, samples: int = 400_000) -> list[Row]:
    """Build the throughput benchmark's configurations: widths 64 and 32 at 4 epochs and at 1, a MinGRU, and the peers.

    Args:
        against: Peers, of `PEERS`.
        processes: Also measure so many processes together.
        samples: Decisions that are timed in each turn; a peer is given fewer.

    Raises:
        ConfigError: There is no such peer, or it is not installed.
    """
    for name in known_names("peer", against, PEERS):
        if name in _MODULES and importlib.util.find_spec(_MODULES[name]) is None:
            raise ConfigError(f"{name} is not installed; {install_command('bench')}, or leave it out of --against")
    cases: list[Row] = [{"width": width, "epochs": epochs} for width in (64, 32) for epochs in (4, 1)]
    # A memory pays in larger batches: products of many rows.
    cases.append({"task": "cart_pole_masked", "epochs": 2, "rows": 2048, "minibatch": 8192})
    if processes > 1:
        cases += [{"epochs": epochs, "processes": processes} for epochs in (4, 1)]
    if "sb3" in against:
        peer: Row = {"trainer": "sb3", "rows": 8, "rollout": 128, "minibatch": 64, "samples": max(4096, samples // 50)}
        cases += [peer | {"epochs": epochs} for epochs in (4, 1)]
    if "gymnasium" in against:
        cases += [{"trainer": name, "epochs": 0} for name in ("navi environment", "gymnasium")]
    return [_CASE | {"samples": samples} | case for case in cases]


def run_cartpole(
    cases: Sequence[Row], repeats: int = 3, progress: Callable[[str, int, int], None] = lambda *_: None
) -> Iterator[Row]:
    """Run the throughput benchmark (PPO, peers, bare environments), interleaved in turns; yield the rows at the end.

    Args:
        cases: Cases to measure.
        repeats: Turns; the median counts.
        progress: Called after every measurement with its name, how many are done and of how many.

    Yields:
        Rows with the keys:
        trainer: Name of the trainer.
        network: Hidden layers, trunk and number of weights.
        epochs: Passes over each rollout; 0 where nothing is learned.
        batch: Decisions of a rollout.
        minibatch: Decisions per gradient step.
        processes: Processes, of one thread each.
        samples_per_second: By the wall.
        samples_per_cpu_second: By the CPU time of all processes.
        times_sb3: Ratio of the latter to Stable-Baselines3 with as many epochs in the same run.
        peak_mb: Largest resident memory of a process [MB].
    """
    taken: list[list[dict[str, Any]]] = [[] for _ in cases]
    for turn in range(repeats):
        for number, case in enumerate(cases):
            taken[number].append(_in_child("throughput", case))
            progress(case["trainer"], turn * len(cases) + number + 1, repeats * len(cases))
    rates = [statistics.median(m["samples"] / m["cpu_seconds"] for m in turns) for turns in taken]
    peers = {case["epochs"]: rate for case, rate in zip(cases, rates) if case["trainer"] == "sb3"}
    for case, turns, rate in zip(cases, taken, rates):
        peer = peers.get(case["epochs"])
        yield {
            "trainer": case["trainer"],
            "network": turns[0]["network"],
            "epochs": case["epochs"],
            "batch": case["rows"] * case["rollout"],
            "minibatch": case["minibatch"],
            "processes": case["processes"],
            "samples_per_second": statistics.median(m["samples"] / m["seconds"] for m in turns),
            "samples_per_cpu_second": rate,
            "times_sb3": None if peer is None else rate / peer,
            "peak_mb": max(m["peak_mb"] for m in turns),
        }


def against_puffer(rows: Sequence[Row]) -> str:
    """Format the throughput ratios of `navi` at 1 epoch to the stated reference figures of PufferLib."""
    row = next((r for r in rows if r["trainer"] == "navi" and (r["processes"], r["epochs"]) == (1, 1)), None)
    if row is None:
        return ""
    ratios = {name: row["samples_per_cpu_second"] / rate for name, (rate, _) in MEASURED_ELSEWHERE.items()}
    parts = "; ".join(f"{r:.1f} × {name} ({'' if r >= 3 else 'not '}3 ×)" for name, r in ratios.items())
    return f"* not run here: stated figures of another day and machine, at 1 epoch. navi at {row['network']}: {parts}"


def run_solve(
    trainers: Mapping[str, int],
    seeds: Sequence[int],
    task: str,
    changes: Mapping[str, Any],
    target: float,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Iterator[Row]:
    """Train PPO (and a peer) on a task with every seed, measure the time until solved; yield one row per run.

    Args:
        trainers: `navi`, and perhaps `sb3` (cart-pole alone), and with how many of the seeds each learns.
        seeds: Seeds.
        task: Reference task.
        changes: Settings of the training run that differ from the benchmark's.
        target: Mean return of 100 episodes that counts as solved.
        progress: As in `run_cartpole`.

    Yields:
        Rows with the keys:
        trainer: Name of the trainer.
        task: Reference task.
        network: Hidden layers, trunk and number of weights.
        epochs: Passes over each rollout.
        batch: Decisions of a rollout.
        minibatch: Decisions per gradient step.
        seed: Seed of everything.
        solved_at: Decisions until the mean return of 100 episodes reached the target; None if never.
        cpu_seconds_to_solve: CPU time until then.
        steps: Decisions of the whole run.
        cpu_seconds: CPU time of the whole run.
        training_return: Mean return of the last 100 training episodes.
        final_return: Mean return of 100 episodes from other starts, the most probable action taken.
    """
    runs = [(seed, who) for i, seed in enumerate(seeds) for who, count in trainers.items() if i < count]
    for done, (seed, trainer) in enumerate(runs, 1):
        ask = {"trainer": trainer, "task": task, "seed": seed, "changes": dict(changes), "target": target}
        yield _in_child("solve", ask)
        progress(f"{trainer} seed {seed}", done, len(runs))


def solve(config: TrainConfig, trainer: str, target: float) -> Row:
    """Train PPO or GRPO on a reference task; return its learning results as a row of `run_solve`.

    Args:
        config: A run of ppo or grpo.
        trainer: Name of the trainer in the row.
        target: Mean return of the last 100 training episodes that counts as solved.
    """
    run, rule = run_task(config, target=target), config.rule
    if config.algorithm == "ppo":
        epochs, minibatch = rule.epochs, rule.minibatch * rule.bptt
    else:
        epochs, minibatch = rule.update_epochs, rule.groups_per_step * rule.group_size * rule.horizon
    return {
        "trainer": trainer,
        "task": config.task,
        "network": run.network,
        "epochs": epochs,
        "batch": config.actors * rule.rollout,
        "minibatch": minibatch,
        "seed": config.seed,
        "solved_at": run.solved_at,
        "cpu_seconds_to_solve": run.cpu_seconds_to_solve,
        "steps": run.steps,
        "cpu_seconds": run.cpu_seconds,
        "training_return": run.recent,
        "final_return": run.final_return,
    }


def _in_child(kind: str, ask: dict[str, Any]) -> dict[str, Any]:
    environment = os.environ | dict.fromkeys(_THREADS, "1")
    command = [sys.executable, "-m", "navi_core.bench.cartpole_worker", kind, json.dumps(ask)]
    if ask.get("processes", 1) > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ask['processes']}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode:
        raise NaviError(f"the measurement of {ask['trainer']} failed:\n" + "\n".join(done.stderr.splitlines()[-8:]))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cartpole(
    against: Annotated[
        str, Option(help="Peers in one run, by commas: sb3, gymnasium, pufferlib.", metavar="NAMES")
    ] = "",
    task: Annotated[str, Option(help="Task: cart_pole, cart_pole_masked, acrobot, lunar_lander.")] = "cart_pole",
    seeds: Annotated[int, Option(min=0, help="Number of seeds; 0 measures speed alone.")] = 5,
    first_seed: Annotated[int, Option(min=0, help="First seed.")] = 0,
    peer_seeds: Annotated[int, Option(min=0, help="Seeds that sb3 learns, too; minutes each.")] = 1,
    target: Annotated[
        float | None, Option(help="Mean return of 100 episodes that counts as solved; by default the task's.")
    ] = None,
    samples: Annotated[int, Option(min=0, help="Decisions of a speed measurement; 0 leaves speed out.")] = 400_000,
    repeats: Repeats = 3,
    processes: Annotated[int, Option(min=1, help="Also measure so many processes together.")] = 1,
    assign: Annotated[
        list[str] | None, Option(flag="--set", help="A setting of learning, such as ppo.epochs=4; may be repeated.")
    ] = None,
    *,
    progress: Progress,
) -> Report:
    """Benchmark PPO on a reference task: throughput and learning."""
    peers = comma_names(against)
    cases = cartpole_cases(peers, processes, samples) if samples else []
    changes = parse_assignments(assign or ())
    task_config("ppo", task, 0, changes)
    if target is None:
        target = PPO_TARGETS.get(task, PPO_TARGETS["cart_pole"])
    learners = {"navi": seeds} | ({"sb3": peer_seeds} if "sb3" in peers and task == "cart_pole" else {})
    speed = list(run_cartpole(cases, repeats, progress))
    wanted = range(first_seed, first_seed + seeds)
    solved = list(run_solve(learners, wanted, task, changes, target, progress))
    rows, caption = [*speed], None
    if "pufferlib" in peers and rows:
        caption, blank = against_puffer(speed), dict.fromkeys(rows[0])
        rows += [
            blank | {"trainer": f"{name} *", "epochs": epochs, "samples_per_cpu_second": rate}
            for name, (rate, epochs) in MEASURED_ELSEWHERE.items()
        ]
    tables = [table("cart-pole, speed", rows, _SPEED_COLUMNS, words=2, caption=caption)] if rows else []
    tables += [learning_table(solved, target)] if solved else []
    return Report({"speed": rows, "learning": solved, "pufferlib": caption}, tables)


_SPEED_COLUMNS: dict[str, Column] = {
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


def learning_table(rows: list[dict[str, Any]], target: float) -> Table:
    """Build the table of learning runs; its caption counts the seeds that reach the target."""
    parts = []
    for trainer in dict.fromkeys(row["trainer"] for row in rows):
        runs = [row for row in rows if row["trainer"] == trainer]
        times = [row["cpu_seconds_to_solve"] for row in runs if row["cpu_seconds_to_solve"] is not None]
        middle = f"median {statistics.median(times):.2f} CPU-s" if len(times) == len(runs) else "no median"
        parts.append(f"{trainer}: {len(times)} of {len(runs)} reach {target:g}, {middle}")
    return table(
        f"{rows[0]['task']}, learning",
        rows,
        {
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
        },
        words=2,
        caption="; ".join(parts),
    )


def run_grpo(
    task: str,
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    target: float,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Iterator[Row]:
    """Train GRPO on a task with every seed; yield one row per run.

    Args:
        task: Reference task.
        seeds: Seeds.
        changes: Settings of the training run that differ from the benchmark's.
        target: Mean return of 100 training episodes that counts as solved.
        progress: Called after every seed with its name, how many are done and of how many.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    for done, seed in enumerate(seeds, 1):
        yield solve(task_config("grpo", task, seed, changes), "grpo", target)
        progress(f"grpo seed {seed}", done, len(seeds))


def grpo(
    task: Annotated[str, Option(help="Task, such as acrobot.")] = "cart_pole",
    seeds: Annotated[int, Option(min=1, help="Number of seeds.")] = 5,
    first_seed: Annotated[int, Option(min=0, help="First seed.")] = 0,
    target: Annotated[float, Option(help="Mean return of 100 episodes that counts as solved.")] = 450.0,
    assign: Annotated[
        list[str] | None, Option(flag="--set", help="A setting of learning, such as grpo.clip=0.1; may be repeated.")
    ] = None,
    *,
    progress: Progress,
) -> Report:
    """Benchmark GRPO on a reference task with several seeds."""
    wanted = range(first_seed, first_seed + seeds)
    rows = list(run_grpo(task, wanted, parse_assignments(assign or ()), target, progress))
    return Report({"learning": rows}, [learning_table(rows, target)])
