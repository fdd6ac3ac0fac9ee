"""A policy behind the gate: what it sees of the floor and hits, with and without, from the same starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from navi_core.bench.cases import Row
from navi_core.config import EnvConfig, EvalConfig, GateConfig
from navi_core.evaluate import EvalResult, build_course, compare, evaluate
from navi_core.evaluate.flight import Flyer
from navi_core.evaluate.subjects import resolve_subject
from navi_core.pilots import Pose
from navi_core.scenes import Scene
from navi_core.service.gate import RolloutGate
from navi_core.service.proposals import propose, velocity_after
from navi_core.world import Field

__all__ = ["GatedFlightRow", "GatedFlyer", "run_gated_flight"]


@dataclass(frozen=True)
class GatedFlightRow(Row):
    """One way to fly a policy, over all episodes."""

    flown: str
    """Without the gate; behind it, hovering where it says WAIT; behind it, slower where that passes."""
    episodes: int
    metric: str
    """What `score` is: `c_vis_auc`, or `spl` of a policy that flies to goals."""
    score: float
    """Mean over scenes [%, or a share]."""
    collisions_per_minute: float
    wait: float
    """Share of decisions that hovered because the gate said WAIT."""
    slower: float
    """Share of decisions that were flown slower than the policy wanted."""
    longest: float
    """Longest wait of any drone [s]."""
    difference: float
    """Of the score less that without the gate, paired."""
    low: float
    """Lower bound of its 95 % interval over scenes and starts."""
    high: float
    """Upper bound."""


class GatedFlyer:
    """A subject of an evaluation whose actions pass the gate, as those of a served policy do.

    Args:
        flyer: The subject.
        env: Observation, dynamics and reward, as the gate takes them.
        config: The gate.

    Attributes:
        recovering: As the subject has it.
        decisions: Judged so far.
        waits: Of these, motions that were held back.
        slowed: Of these, motions that were flown slower.
        longest: Most decisions in a row for which a drone waited.
    """

    def __init__(self, flyer: Flyer, env: EnvConfig, config: GateConfig) -> None:
        self.name, self.max_distance = flyer.name, flyer.max_distance
        self.azimuth_bins, self.elevation_bins = flyer.azimuth_bins, flyer.elevation_bins
        self._flyer, self._env, self._config = flyer, env, config
        self.recovering: Tensor | None = None
        self.decisions = self.waits = self.slowed = self.longest = 0

    def begin(self, keys: Tensor, field: Field) -> None:
        """Start new episodes in all rows."""
        self._flyer.begin(keys, field)
        self._gate = RolloutGate(field, self._env, self._config, capacity=len(keys))
        self._rows = torch.arange(len(keys))
        self._velocity: Tensor | None = None
        self._waited = torch.zeros(len(keys), dtype=torch.int64)

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Answer observations (B, 3, Az, El) with actions (B, 4) that the gate let through."""
        action = self._flyer.act(obs, pose)
        self.recovering = self._flyer.recovering
        if self._velocity is None:
            self._velocity = torch.zeros(len(action), 4)
            self._gate.begin(self._rows, pose.position, pose.yaw, obs)
        moving = (self._rows, pose.position, pose.yaw, self._velocity)
        verdict, command = propose(self._gate, *moving, action, obs, self._config.slower)
        self._velocity = velocity_after(verdict)
        self._waited = torch.where(verdict.send, 0, self._waited + 1)
        self.decisions += len(action)
        self.waits += int((~verdict.send).sum())
        self.slowed += int((verdict.send & (command != action).any(dim=1)).sum())
        self.longest = max(self.longest, int(self._waited.max()))
        return command


def run_gated_flight(
    checkpoint: Path,
    env: EnvConfig,
    vocabulary: Mapping[str, int] | None,
    scenes: Sequence[Scene],
    *,
    starts: int = 3,
    steps: int = 200,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[GatedFlightRow]:
    """Fly a policy from the protocol's starts without the gate, behind it, and behind it without slower motions.

    Args:
        checkpoint: The policy.
        env: What it was trained in; the gate's observation, dynamics and reward.
        vocabulary: Semantic ids by name that it was trained with.
        scenes: Where.
        starts: In each scene.
        steps: Decisions of a flight.
        progress: Called as progress(how, decisions done, decisions in all).
    """
    config = EvalConfig(starts=starts, max_steps=steps, task=env.task)
    metric = "spl" if env.task == "point_goal" else "c_vis_auc"
    course = build_course(scenes, config, vocabulary=vocabulary)
    free: EvalResult | None = None
    rows = []
    gates = {"without": None, "gate, hovers": GateConfig(slower=()), "gate": GateConfig()}
    for how, gate in gates.items():
        subject, gated = resolve_subject(checkpoint, config), None
        if gate is not None:
            gated = GatedFlyer(subject.flyer, env, gate)
            subject = replace(subject, flyer=gated)
        result = evaluate(
            subject, course, progress=None if progress is None else lambda *done, how=how: progress(how, *done)
        )
        free = free or result
        gap = compare(result, free, metric)
        count = 1 if gated is None else gated.decisions
        rows.append(
            GatedFlightRow(
                flown=how,
                episodes=len(result.episodes),
                metric=metric,
                score=result.summary[metric],
                collisions_per_minute=result.summary["collisions_per_minute"],
                wait=0.0 if gated is None else gated.waits / count,
                slower=0.0 if gated is None else gated.slowed / count,
                longest=0.0 if gated is None else gated.longest * config.dynamics.decision_seconds,
                difference=gap.mean_difference,
                low=gap.low,
                high=gap.high,
            )
        )
    return rows
