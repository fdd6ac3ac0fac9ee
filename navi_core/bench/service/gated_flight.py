"""A policy behind the gate: what it sees of the floor and hits, with and without, from the same starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from navi_core.bench.report import Column, Option, Progress, Report, Row, Scenes, figure, report
from navi_core.config import EnvConfig, EvalConfig, GateConfig
from navi_core.evaluate import EvalResult, build_course, compare, evaluate
from navi_core.evaluate.flight.frozen_starts import Flyer
from navi_core.evaluate.flight.subjects import resolve_subject
from navi_core.pilots import Pose
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene
from navi_core.service.gate import DroneState, RolloutGate, choose_action
from navi_core.service.policies.served_model import checkpoint_file, training_of
from navi_core.world import Field

_SENT, _SLOWER, _STANDS, _WAITS = range(4)


class GatedFlyer:
    """A subject of an evaluation whose actions pass the gate, as those of a served policy do.

    Args:
        flyer: The subject.
        env: Observation, dynamics and reward, as the gate takes them.
        config: The gate.

    Attributes:
        recovering: As the subject has it.
        blocks: Of each block of rows since the flyer was made, decision by decision, (B,) `_SENT`, `_SLOWER`,
            `_STANDS` or `_WAITS`.
    """

    def __init__(self, flyer: Flyer, env: EnvConfig, config: GateConfig) -> None:
        self.name, self.max_distance = flyer.name, flyer.max_distance
        self.azimuth_bins, self.elevation_bins = flyer.azimuth_bins, flyer.elevation_bins
        self._flyer, self._env, self._config = flyer, env, config
        self.recovering: Tensor | None = None
        self.blocks: list[list[Tensor]] = []

    def begin(self, keys: Tensor, field: Field) -> None:
        """Start new episodes in all rows."""
        self._flyer.begin(keys, field)
        self._gate = RolloutGate(field, self._env, self._config, capacity=len(keys))
        self._rows = torch.arange(len(keys))
        self._velocity: Tensor | None = None
        self.blocks.append([])

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Answer observations (B, 3, Az, El) with actions (B, 4) that the gate let through."""
        action = self._flyer.act(obs, pose)
        self.recovering = self._flyer.recovering
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
        """Return the outcome of the decisions (T,) of each episode of a result, without rows that fill a block."""
        columns = [column for block in self.blocks for column in torch.stack(block).unbind(dim=1)]
        return [column[: row["steps"]] for column, row in zip(columns, result.episodes)]


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
    """Fly a policy from the protocol's starts without the gate, behind it hovering for WAIT, and behind it as served.

    Args:
        checkpoint: The policy.
        env: What it was trained in; the gate's observation and reward.
        vocabulary: Semantic ids by name that it was trained with.
        scenes: Where.
        starts: In each scene.
        steps: Decisions of a flight.
        progress: Called as progress(how, decisions done, decisions in all).

    Returns:
        Rows with the keys:
        flown: Without the gate; behind it, hovering at WAIT; behind it, slower where that passes.
        episodes:
        metric: What `score` is: `c_vis_auc`, or `spl` of a policy that flies to goals.
        score: Mean over scenes [%, or a share].
        difference: Of the score less that without the gate, paired.
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
    """Return the most in a row of (T,) bool."""
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
    """Fly a policy without and behind the gate."""
    env, vocabulary = training_of(model)
    file, _ = checkpoint_file(model)
    scenes = load_scenes(scene or ["apartment:9000-9007"], 512)
    rows = run_gated_flight(file, env, vocabulary, scenes, starts=starts, steps=steps, progress=progress)
    columns: dict[str, Column] = {
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
    }
    return report(f"{model} and the gate", list(rows), columns, words=2)
