"""The gate: how long it takes, and how much of a random policy's collisions it prevents."""

from collections.abc import Sequence
from typing import Annotated

import torch

from navi_core.bench.report import Column, Option, Report, Row, Scenes, Size, Threads, figure, report, sizes
from navi_core.bench.timing import CPU, WALL, median, take_turns
from navi_core.config import EnvConfig, GateConfig
from navi_core.learn.run.threads import torch_threads
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene
from navi_core.service.gate import DroneState, RolloutGate, choose_action
from navi_core.world import Field, NavigationEnv


def run_gate(
    scenes: Sequence[Scene],
    *,
    sessions: int = 64,
    azimuth_bins: int = 256,
    elevation_bins: int = 48,
    threads: int = 1,
    repeats: int = 50,
    decisions: int = 50,
    seed: int = 0,
) -> Row:
    """Measure the gate.

    Args:
        scenes: Where the drones are.
        sessions: Drones.
        azimuth_bins: Of their observations.
        elevation_bins: Of their observations.
        threads: Of the kernels and of torch.
        repeats: Batches that are timed.
        decisions: Of the flights whose motions are judged.
        seed: Of starts and motions.

    Returns:
        A row with the keys:
        sessions: Drones judged in one batch.
        substeps: Simulated for each.
        cpu_ms: Median CPU time of a batch [ms].
        wall_ms: Median wall time of a batch [ms].
        fastest_ms: Least wall time of a batch [ms]: what a busy machine leaves of a quiet one.
        slower_ms: Median wall time of a batch whose motions that would collide are proposed again, slower [ms].
        motions: Random motions whose truth was flown, each held for the horizon.
        colliding: Share of them that collide.
        prevented: Share of the colliding ones that the gate holds back.
        false_wait: Share of the others that it holds back too.
        collisions_without: Collision events of a random policy.
        collisions_behind: The same behind the gate, from the same starts with the same draws.
    """
    env_config = EnvConfig(azimuth_bins=azimuth_bins, elevation_bins=elevation_bins, stagger=False)
    config = GateConfig()
    with torch_threads(threads):
        field = Field(scenes, threads=threads)
        flight = _Flight(field, env_config, config, sessions, seed)
        action, life = flight.draw(), flight.env.state_dict()
        calls = {"gate": lambda: flight.judge(action, life), "slower": lambda: flight.choose_action(action, life)}
        times = take_turns(calls, repeats, warmup=5)
        truth = _truth(_Flight(field, env_config, config, sessions, seed + 1), decisions)
        without, behind = (
            _collisions(_Flight(field, env_config, config, sessions, seed + 2), decisions, gated)
            for gated in (False, True)
        )
    collides, waits = truth
    return {
        "sessions": sessions,
        "substeps": config.substeps,
        "cpu_ms": 1e3 * median(times["gate"], CPU),
        "wall_ms": 1e3 * median(times["gate"], WALL),
        "fastest_ms": 1e3 * float(times["gate"][:, WALL].min()),
        "slower_ms": 1e3 * median(times["slower"], WALL),
        "motions": len(collides),
        "colliding": float(collides.float().mean()),
        "prevented": float(waits[collides].float().mean()),
        "false_wait": float(waits[~collides].float().mean()),
        "collisions_without": without,
        "collisions_behind": behind,
    }


class _Flight:
    """Drones, a gate that knows them, and random motions."""

    def __init__(self, field: Field, env: EnvConfig, config: GateConfig, rows: int, seed: int) -> None:
        self.env = NavigationEnv(field, rows, env, seed=seed)
        self.gate = RolloutGate(field, env, config, capacity=rows)
        self.rows = torch.arange(rows)
        self._generator = torch.Generator().manual_seed(seed)
        self.obs = self.env.reset()
        self.gate.begin(self.situation())

    def draw(self) -> torch.Tensor:
        return torch.rand(len(self.rows), 4, generator=self._generator) * 2 - 1

    def situation(self, life: dict[str, torch.Tensor] | None = None) -> DroneState:
        """Return where the drones are; `life`: a state of the environment, to save copying it."""
        life = life or self.env.state_dict()
        return DroneState(self.rows, life["position"], life["yaw"].squeeze(1), life["velocity"], self.obs)

    def judge(self, action: torch.Tensor, life: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return (B,) whether the motions are sent."""
        return choose_action(self.gate, self.situation(life), action).flown.send

    def choose_action(self, action: torch.Tensor, life: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the (B, 4) actions to be flown where what would collide is proposed again."""
        return choose_action(self.gate, self.situation(life), action, self.gate.config.slower).command

    def fly(self, action: torch.Tensor) -> torch.Tensor:
        """Fly one decision; returns (B,) collisions. Where an episode ends the gate begins anew."""
        batch = self.env.step(action)
        self.obs = batch.obs
        ended = batch.truncated
        if bool(ended.any()):
            self.gate.begin(self.situation()[ended])
        return batch.info["collision"]


def _truth(flight: _Flight, decisions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return of many random motions whether they collide when they are held, and whether the gate holds them back."""
    held = -(-flight.gate.config.substeps // flight.env.config.dynamics.steps_per_decision)
    collides, waits = [], []
    for _ in range(decisions):
        action = flight.draw()
        waits.append(~flight.judge(action))
        before, obs = flight.env.state_dict(), flight.obs
        hit = torch.zeros(len(action), dtype=torch.bool)
        for _ in range(held):
            hit |= flight.env.step(action).info["collision"]
        collides.append(hit)
        flight.env.load_state_dict(before)
        flight.obs = obs
        flight.fly(flight.draw())
    return torch.cat(collides), torch.cat(waits)


def _collisions(flight: _Flight, decisions: int, gated: bool) -> int:
    total = 0
    for _ in range(decisions):
        action = flight.draw()
        if gated:
            action = torch.where(flight.judge(action)[:, None], action, 0.0)
        total += int(flight.fly(action).sum())
    return total


def gate(
    scene: Scenes = None,
    size: Size = "256x48",
    sessions: Annotated[int, Option(min=1, max=4096, help="Drones judged in one batch.")] = 64,
    repeats: Annotated[int, Option(min=1, help="Batches that are timed.")] = 50,
    decisions: Annotated[int, Option(min=1, help="Decisions of the flights that are judged.")] = 50,
    threads: Threads = 1,
    seed: Annotated[int, Option(help="Seed of starts and motions.")] = 0,
) -> Report:
    """Time the gate and count the collisions that it prevents."""
    ((azimuth, elevation),) = sizes([size])
    row = run_gate(
        load_scenes(scene or ["apartment:0", "maze:0"], 512),
        sessions=sessions,
        azimuth_bins=azimuth,
        elevation_bins=elevation,
        threads=threads,
        repeats=repeats,
        decisions=decisions,
        seed=seed,
    )
    columns: dict[str, Column] = {
        "sessions": figure("sessions"),
        "substeps": figure("substeps"),
        "CPU p50 [ms]": figure("cpu_ms"),
        "p50 [ms]": figure("wall_ms"),
        "fastest [ms]": figure("fastest_ms"),
        "with slower ones [ms]": figure("slower_ms"),
        "motions": figure("motions"),
        "colliding": figure("colliding", ".3f"),
        "prevented": figure("prevented", ".3f"),
        "false WAIT": figure("false_wait", ".3f"),
        "collisions": figure("collisions_without"),
        "behind the gate": figure("collisions_behind"),
    }
    return report("gate", [row], columns, threads=threads)
