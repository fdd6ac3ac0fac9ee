"""Benchmark of the safety gate: latency, prevented collisions, and its effect on a policy's coverage.

The policy flies with and without the gate from the same starts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from navi_core.bench.report import Option, Progress, Report, Row, Scenes, Size, Threads, figure, report, sizes
from navi_core.bench.timing import CPU, WALL, median, take_turns
from navi_core.config import EnvConfig, EvalConfig, GateConfig
from navi_core.evaluate import EvalResult, build_course, compare, evaluate
from navi_core.evaluate.flight.frozen_starts import Flyer
from navi_core.evaluate.flight.subjects import resolve_subject
from navi_core.evaluate.statistics import binomial_bounds
from navi_core.learn.run.process import torch_threads
from navi_core.pilots import Pose
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene
from navi_core.service.gate import DroneState, RolloutGate, choose_action
from navi_core.service.policies.served_model import checkpoint_file, training_of
from navi_core.world import Field, NavigationEnv


# More than 60 lines: one measurement, its arguments and its row.
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
    """Benchmark the safety gate with random motions: latency, prevented collisions, false alarms.

    Args:
        scenes: Scenes of the drones.
        sessions: Number of drones.
        azimuth_bins: Azimuth bins of the observations.
        elevation_bins: Elevation bins of the observations.
        threads: Threads of the kernels and of torch.
        repeats: Number of timed batches.
        decisions: Length of the flights [decisions].
        seed: Seed of starts and actions.

    Returns:
        A row with the keys:
        sessions: Drones judged in one batch.
        substeps: Simulated physics steps per drone.
        cpu_ms: Median CPU time of a batch [ms].
        wall_ms: Median wall time of a batch [ms].
        fastest_ms: Least wall time of a batch [ms]: what a busy machine leaves of a quiet one.
        slower_ms: Median wall time of a batch whose motions that would collide are proposed again, slower [ms].
        motions: Random motions whose truth was flown, each held for the horizon.
        colliding: Fraction of these motions that collide.
        prevented: Fraction of colliding motions that the gate holds back (recall).
        false_wait: Fraction of harmless motions that the gate holds back (false positives).
        collisions_without: Collision events of a random policy.
        gated: Motions of the flights behind the gate.
        collisions_behind: Collisions behind the gate, as it is served, from the same starts with the same draws.
        upper: Upper 95 % bound of the probability that a gated motion collides.
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
        "gated": sessions * decisions,
        "collisions_behind": behind,
        "upper": binomial_bounds(behind, sessions * decisions)[1],
    }


class _Flight:
    """Vectorised environment with a gate and a random policy."""

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
        """Return the drones' state; `life`: an environment `state_dict`, to save copying it."""
        life = life or self.env.state_dict()
        return DroneState(self.rows, life["position"], life["yaw"].squeeze(1), life["velocity"], self.obs)

    def judge(self, action: torch.Tensor, life: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Return (B,) whether the gate lets the actions pass."""
        return choose_action(self.gate, self.situation(life), action).flown.send

    def choose_action(self, action: torch.Tensor, life: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the (B, 4) actions to fly, where colliding ones are replaced by slower proposals."""
        return choose_action(self.gate, self.situation(life), action, self.gate.config.slower).command

    def fly(self, action: torch.Tensor) -> torch.Tensor:
        """Step the environment with actions (B, 4); return (B,) collisions. The gate restarts where an episode ends."""
        batch = self.env.step(action)
        self.obs = batch.obs
        ended = batch.truncated
        if bool(ended.any()):
            self.gate.begin(self.situation()[ended])
        return batch.info["collision"]


def _truth(flight: _Flight, decisions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Label random actions (N,) by simulation: whether they collide when held, and whether the gate blocks them."""
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
            action = flight.choose_action(action, flight.env.state_dict())
        total += int(flight.fly(action).sum())
    return total


def gate(
    scene: Scenes = None,
    size: Size = "256x48",
    sessions: Annotated[int, Option(min=1, max=4096, help="Drones judged in one batch.")] = 64,
    repeats: Annotated[int, Option(min=1, help="Batches that are timed.")] = 50,
    decisions: Annotated[int, Option(min=1, help="Decisions of each evaluated flight.")] = 50,
    threads: Threads = 1,
    seed: Annotated[int, Option(help="Seed of starts and motions.")] = 0,
) -> Report:
    """Benchmark the safety gate: latency and prevented collisions."""
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
    return report(
        "gate",
        [row],
        {
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
            "gated motions": figure("gated"),
            "behind the gate": figure("collisions_behind"),
            "at most, 95 %": figure("upper", ".1e"),
        },
        threads=threads,
    )


_SENT, _SLOWER, _STANDS, _WAITS = range(4)


class GatedFlyer:
    """Adapter that evaluates a subject behind the safety gate, as a served policy flies.

    Args:
        flyer: Subject of the evaluation.
        env: Observation, dynamics and reward, as the gate takes them.
        config: Settings of the gate.

    Attributes:
        recovering: `recovering` of the subject.
        padded: `padded` of the subject.
        done: `done` of the subject.
        blocks: Of each block of rows since the flyer was made, decision by decision, (B,) `_SENT`, `_SLOWER`,
            `_STANDS` or `_WAITS`.
    """

    def __init__(self, flyer: Flyer, env: EnvConfig, config: GateConfig) -> None:
        self.name, self.max_distance = flyer.name, flyer.max_distance
        self.azimuth_bins, self.elevation_bins, self.padded = flyer.azimuth_bins, flyer.elevation_bins, flyer.padded
        self._flyer, self._env, self._config = flyer, env, config
        self.recovering: Tensor | None = None
        self.done: Tensor | None = None
        self.blocks: list[list[Tensor]] = []

    def begin(self, keys: Tensor, field: Field) -> None:
        """Begin new episodes in all rows, with a new gate."""
        self._flyer.begin(keys, field)
        self._gate = RolloutGate(field, self._env, self._config, capacity=len(keys))
        self._rows = torch.arange(len(keys))
        self._velocity: Tensor | None = None
        self.blocks.append([])

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Return the gated actions (B, 4) for observations (B, 3, Az, El)."""
        action = self._flyer.act(obs, pose)
        self.recovering, self.done = self._flyer.recovering, self._flyer.done
        begins = self._velocity is None
        velocity = torch.zeros(len(action), 4) if self._velocity is None else self._velocity
        situation = DroneState(self._rows, pose.position, pose.yaw, velocity, obs)
        if begins:
            self._gate.begin(situation)
        proposal = choose_action(self._gate, situation, action, self._config.slower)
        self._velocity = proposal.velocity
        slower = ~proposal.proposed.send
        stands = slower & ~proposal.command[:, :3].any(dim=1)
        how = torch.where(stands, _STANDS, torch.where(slower, _SLOWER, _SENT))
        self.blocks[-1].append(torch.where(proposal.flown.send, how, _WAITS))
        return proposal.command

    def outcomes(self, result: EvalResult) -> list[Tensor]:
        """Return the gate outcomes (T,) of each episode of a result, without padding rows."""
        columns = [column for block in self.blocks for column in torch.stack(block).unbind(dim=1)]
        return [column[: row["steps"]] for column, row in zip(columns, result.episodes)]


# More than 60 lines: one measurement, its arguments and its row.
def run_gated_flight(
    checkpoint: Path,
    env: EnvConfig,
    vocabulary: Mapping[str, int] | None,
    scenes: Sequence[Scene],
    *,
    starts: int = 3,
    steps: int = 200,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Row]:
    """Evaluate a policy without the gate, with a gate that hovers at WAIT, and with the gate as served.

    Args:
        checkpoint: Checkpoint of the policy.
        env: Training environment of the policy; observation and reward of the gate.
        vocabulary: Semantic ids by name that it was trained with.
        scenes: Scenes of the evaluation.
        starts: Starts in each scene.
        steps: Decisions of a flight.
        progress: Called as progress(how, decisions done, decisions in all).

    Returns:
        Rows with the keys:
        flown: Without the gate; behind it, hovering at WAIT; behind it, slower where that passes.
        episodes:
        metric: What `score` is: `c_vis_auc`, or `spl` of a policy that flies to goals.
        score: Mean over scenes [%, or a share].
        difference: Paired difference of the score to that without the gate.
        low: Lower bound of its 95 % interval over scenes and starts.
        high: Upper bound.
        collisions_per_minute:
        wait: Share that hovered because of the gate's WAIT.
        slower: Share that was flown slower than the policy wanted.
        stands: Share that did not move from its place, turning or not, because of the gate: WAIT, or slower to the
            end.
        longest: Longest time for which a drone did not [s].
    """
    config = EvalConfig(starts=starts, max_steps=steps, task=env.task)
    metric = "spl" if env.task == "point_goal" else "c_vis_auc"
    # The gate simulates the dynamics of the evaluated drone.
    seen = env.model_copy(update={"dynamics": config.dynamics})
    course = build_course(scenes, config, vocabulary=vocabulary)
    free: EvalResult | None = None
    rows = []
    gates = {"without": None, "gate, hovers": GateConfig(slower=()), "gate": GateConfig()}
    for how, gate in gates.items():
        subject, gated = resolve_subject(checkpoint, config), None
        if gate is not None:
            gated = GatedFlyer(subject.flyer, seen, gate)
            subject = replace(subject, flyer=gated)
        result = evaluate(
            subject, course, progress=None if progress is None else lambda *done, how=how: progress(how, *done)
        )
        free = free or result
        gap = compare(result, free, metric)
        outcomes = [torch.full((1,), _SENT)] if gated is None else gated.outcomes(result)
        every = torch.cat(outcomes)
        rows.append(
            {
                "flown": how,
                "episodes": len(result.episodes),
                "metric": metric,
                "score": result.summary[metric],
                "difference": gap.mean_difference,
                "low": gap.low,
                "high": gap.high,
                "collisions_per_minute": result.summary["collisions_per_minute"],
                "wait": float((every == _WAITS).float().mean()),
                "slower": float((every == _SLOWER).float().mean()),
                "stands": float((every >= _STANDS).float().mean()),
                "longest": max(_longest(column >= _STANDS) for column in outcomes) * config.dynamics.decision_seconds,
            }
        )
    return rows


def _longest(flags: Tensor) -> int:
    """Return the length of the longest run of True in (T,) bool."""
    most = run = 0
    for flag in flags.tolist():
        run = run + 1 if flag else 0
        most = max(most, run)
    return most


def gated_flight(
    model: Annotated[str, Option(argument=True, help="A checkpoint, version or alias of the registry.")] = "champion",
    scene: Scenes = None,
    starts: Annotated[int, Option(min=1, help="Starts in each scene.")] = 3,
    steps: Annotated[int, Option(min=1, help="Decisions of each flight.")] = 200,
    *,
    progress: Progress,
) -> Report:
    """Benchmark a policy's flight without and behind the safety gate."""
    env, vocabulary = training_of(model)
    file, _ = checkpoint_file(model)
    scenes = load_scenes(scene or ["apartment:9000-9007"], 512)
    rows = run_gated_flight(file, env, vocabulary, scenes, starts=starts, steps=steps, progress=progress)
    return report(
        f"{model} and the gate",
        list(rows),
        {
            "flown": figure("flown"),
            "metric": figure("metric"),
            "score": figure("score"),
            "difference": figure("difference"),
            "low": figure("low"),
            "high": figure("high"),
            "collisions/min": figure("collisions_per_minute"),
            "WAIT": figure("wait", ".3f"),
            "slower": figure("slower", ".3f"),
            "stands": figure("stands", ".3f"),
            "longest [s]": figure("longest", ".1f"),
        },
        words=2,
    )
