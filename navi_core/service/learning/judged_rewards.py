"""What a sample of experiences is worth when it is learned from: the rewards that came, checked by the gate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from navi_core.config import ContinuousTrainingConfig
from navi_core.service.gate.gate import COMPONENTS, RolloutGate
from navi_core.service.learning.replay_buffer import Sample
from navi_core.service.learning.training_reward import training_reward

__all__ = ["JudgedRewards", "judged_rewards"]


@dataclass(frozen=True)
class JudgedRewards:
    """Rewards of a sample.

    Attributes:
        reward: (N,) float64.
        used: (N,) bool; the others are not learned from.
        agreed: How many the gate judges as it did then.
        judged: How many it was asked about.
    """

    reward: np.ndarray
    used: np.ndarray
    agreed: int
    judged: int


def judged_rewards(sample: Sample, gate: RolloutGate | None, config: ContinuousTrainingConfig) -> JudgedRewards:
    """Ask the gate again about the motions of a sample, and weigh their rewards.

    It agrees with a motion that was sent where it finds no collision, and with one that was not sent as it was drawn
    where it would not send it again: for a collision, or for an expected reward not above its threshold.

    Args:
        sample: Completed experiences.
        gate: None without one: nothing was expected, and the reward that came is all there is.
        config: Whether it is asked; mode, weights, flags.
    """
    rows, count = sample.rows, len(sample)
    if gate is None:
        return JudgedRewards(rows["actual"].astype(np.float64), np.ones(count, dtype=bool), 0, 0)
    validation = rows["expected"].astype(np.float64)
    known = rows["scene"] >= 0
    agrees: list[bool | None] = [None] * count
    if config.gate_validation_enabled and known.any():
        index = np.flatnonzero(known)
        position, yaw, velocity, action = (
            torch.from_numpy(np.ascontiguousarray(rows[name][index]))
            for name in ("position", "yaw", "velocity", "action")
        )
        verdict = gate.validate(
            position, yaw, velocity, action, torch.from_numpy(rows["scene"][index].astype(np.int64))
        )
        novelty = torch.from_numpy(rows["components"][index, list(COMPONENTS).index("novelty")])
        # What the novelty of the place has become since is no disagreement, so that of then counts. A motion that was
        # sent is doubted for a wall in the way alone; one that was not, where nothing holds it back any more.
        worth_then = verdict.expected_reward - verdict.components["novelty"] + novelty
        sent, free = torch.from_numpy(rows["send"][index]), ~verdict.collides
        same = torch.where(sent, free, ~(free & (worth_then > gate.config.threshold)))
        for place, agree, reward in zip(index.tolist(), same.tolist(), verdict.expected_reward.tolist()):
            agrees[place], validation[place] = agree, reward
    worth = [
        training_reward(actual, expected, agree, config)
        for actual, expected, agree in zip(rows["actual"].tolist(), validation.tolist(), agrees)
    ]
    used = np.array([reward is not None for reward in worth])
    return JudgedRewards(
        np.array([0.0 if reward is None else reward for reward in worth]),
        used,
        sum(agree is True for agree in agrees),
        sum(agree is not None for agree in agrees),
    )
