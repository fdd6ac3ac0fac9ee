"""Training rewards of a sample of experiences, validated by the gate."""

from dataclasses import dataclass

import numpy as np
import torch

from navi_core.config import ContinuousTrainingConfig
from navi_core.service.gate.gate import COMPONENTS, RolloutGate
from navi_core.service.learning.experience import training_reward
from navi_core.service.learning.replay_buffer import Sample


@dataclass(frozen=True)
class JudgedRewards:
    """Rewards of a sample.

    Attributes:
        reward: (N,) float64.
        used: (N,) bool; the others are skipped.
        agreed: Motions that the gate judges as before.
        judged: Motions that it was asked about.
    """

    reward: np.ndarray
    used: np.ndarray
    agreed: int
    judged: int


def judged_rewards(sample: Sample, gate: RolloutGate | None, config: ContinuousTrainingConfig) -> JudgedRewards:
    """Validate the motions of a sample by the gate, and weigh their rewards.

    The gate agrees with a motion that was sent where it finds no collision. It agrees with one that was not sent as
    proposed where it would not send it again: for a collision, or an expected reward not above its threshold.

    Args:
        sample: Completed experiences.
        gate: None without one; the actual reward counts whole.
        config: Validation, mode, weights, flags.
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
        # The novelty of then counts, because later flights have changed it. A motion that was sent is rejected for a
        # collision alone; one that was not sent, where nothing holds it back now.
        reward_then = verdict.expected_reward - verdict.components["novelty"] + novelty
        sent, free = torch.from_numpy(rows["send"][index]), ~verdict.collides
        same = torch.where(sent, free, ~(free & (reward_then > gate.config.threshold)))
        for place, agree, reward in zip(index.tolist(), same.tolist(), verdict.expected_reward.tolist()):
            agrees[place], validation[place] = agree, reward
    rewards = [
        training_reward(actual, expected, agree, config)
        for actual, expected, agree in zip(rows["actual"].tolist(), validation.tolist(), agrees)
    ]
    used = np.array([reward is not None for reward in rewards])
    return JudgedRewards(
        np.array([0.0 if reward is None else reward for reward in rewards]),
        used,
        sum(agree is True for agree in agrees),
        sum(agree is not None for agree in agrees),
    )
