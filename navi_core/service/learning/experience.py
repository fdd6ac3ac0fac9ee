"""Experience: one decision of a served drone and its reward."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from navi_core.config import ContinuousTrainingConfig
from navi_core.policy.cores.base import State

_EXPECTED_SHARE, _ACTUAL_SHARE = 0.3, 0.7
"""Shares of the expected and of the actual reward in the effective one."""


@dataclass
class Experience:
    """A decision, pending until its reward arrives.

    Attributes:
        session_id: Drone.
        latent: (D,) encoder output.
        recurrent_state: State before the decision, each part without its batch axis.
        begins: Whether an episode begins with it; the state is then zero.
        position: (3,) [m].
        yaw: [rad].
        velocity: (4,) body velocity [m/s, rad/s].
        action: (4,) unclamped.
        log_prob: Of the action under the policy that acted [nat].
        value: Prediction of that policy, in units of reward.
        gate_send: Verdict of the gate on the proposed motion; true without a gate. Where it is false the drone flew
            slower, or hovered.
        expected_reward: Of the gate for that motion, per decision; 0 without a gate.
        components: Of the expected reward, by name.
        actual_reward: Reward of the environment; None while pending.
        timestamp: Seconds since 1970.
        model_version: Of the weights that acted.
        observation: (3, Az, El); None where the buffer stores latents.
        aux: (A,) auxiliary input.
        scene: Number of the scene in the gate's field, −1 where there is none.
        ends: Whether the episode ended with it.
        terminated: Whether the task was done; otherwise the end is a truncation, and the value bootstraps it.
    """

    session_id: int
    latent: Tensor
    recurrent_state: State
    action: Tensor
    log_prob: float
    value: float
    begins: bool = False
    position: Tensor = field(default_factory=lambda: torch.zeros(3))
    yaw: float = 0.0
    velocity: Tensor = field(default_factory=lambda: torch.zeros(4))
    gate_send: bool = True
    expected_reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    actual_reward: float | None = None
    timestamp: float = 0.0
    model_version: int = 0
    observation: Tensor | None = None
    aux: Tensor = field(default_factory=lambda: torch.zeros(3))
    scene: int = -1
    ends: bool = False
    terminated: bool = False

    @property
    def is_completed(self) -> bool:
        """Whether the actual reward is known."""
        return self.actual_reward is not None

    @property
    def effective_reward(self) -> float:
        """0.3 · expected + 0.7 · actual; the expected reward alone while pending."""
        if self.actual_reward is None:
            return self.expected_reward
        return _EXPECTED_SHARE * self.expected_reward + _ACTUAL_SHARE * self.actual_reward

    def fault(self, width: int | None) -> str | None:
        """Return what makes the experience invalid, None for a valid one.

        Args:
            width: D that the latent must have, None for any.
        """
        for name, shape in (("position", (3,)), ("velocity", (4,)), ("action", (4,))):
            value = getattr(self, name)
            if tuple(value.shape) != shape or not bool(torch.isfinite(value).all()):
                return f"{name} is not {shape[0]} finite numbers"
        if self.aux.ndim != 1 or not bool(torch.isfinite(self.aux).all()):
            return f"aux {tuple(self.aux.shape)} is no row of finite numbers"
        if self.latent.ndim != 1 or (width is not None and len(self.latent) != width):
            return f"the latent has shape {tuple(self.latent.shape)}, expected ({width},)"
        if not bool(torch.isfinite(self.latent).all()):
            return "the latent is not finite"
        reward = 0.0 if self.actual_reward is None else self.actual_reward
        numbers = (self.log_prob, self.value, self.expected_reward, self.yaw, reward)
        return None if all(math.isfinite(number) for number in numbers) else "a number is not finite"


def training_reward(
    actual: float, validation: float, agrees: bool | None, config: ContinuousTrainingConfig
) -> float | None:
    """Return the training reward of one experience, None where it is skipped.

    The gate agrees → actual_weight · actual + simulation_weight · validation; it disagrees → penalty · validation.
    (Actual 1, validation .5: .85 and .25.)

    Args:
        actual: Reward of the environment.
        validation: Reward that the gate expects now, or expected then if it is not asked.
        agrees: Whether the gate judges as before; None where it is not asked.
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
