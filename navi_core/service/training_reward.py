"""What an experience is worth when it is learned from: the reward that came, checked by the gate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from navi_core.config import ContinuousTrainingConfig
from navi_core.service.gate import COMPONENTS, RolloutGate
from navi_core.service.replay_buffer import Sample

__all__ = ["JudgedRewards", "judged_rewards", "training_reward"]


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


def training_reward(
    actual: float, validation: float, agrees: bool | None, config: ContinuousTrainingConfig
) -> float | None:
    """Return the reward of one experience, None where it is skipped.

    The gate agrees → actual_weight · actual + simulation_weight · validation; it disagrees → penalty · validation.
    (Actual 1, validation .5: .85 and .25.)

    Args:
        actual: That came.
        validation: Expected by the gate: asked again, or then where it is not asked.
        agrees: Whether the gate judges as it did then; None where it was not asked.
        config: Mode, weights, flags.
    """
    if agrees is False and config.skip_disagreed_experiences:
        return None
    if config.reward_mode == "actual_only":
        return actual
    if config.reward_mode == "gate_signal":
        return validation
    if agrees is False:
        return config.gate_disagreement_penalty * validation
    return config.actual_reward_weight * actual + config.simulation_reward_weight * validation


def judged_rewards(sample: Sample, gate: RolloutGate | None, config: ContinuousTrainingConfig) -> JudgedRewards:
    """Ask the gate again about the motions of a sample, and weigh their rewards.

    It agrees with a motion that was sent where it finds no collision, and with one that waited where it would hold it
    back again: for a collision, or for an expected reward not above its threshold.

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
        # sent is doubted for a wall in the way alone; one that waited, where nothing holds it back any more.
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
