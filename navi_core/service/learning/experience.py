"""Replay experiences of served drones, their trajectories (sequences), and the computation of training rewards.

A Mamba-2 state is thirty times as large as its inputs, so it is stored for the first decision of a trajectory alone,
in half precision. The present weights compute the states in between from the latents (burn-in, Kapturowski et al.
2019).
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from navi_core.config import ContinuousTrainingConfig
from navi_core.policy.cores.base import State
from navi_core.service.gate import COMPONENTS, RolloutGate


@dataclass
class Experience:
    """Experience (transition) of one decision of a served drone; pending until its reward arrives.

    Attributes:
        session_id: Drone.
        latent: (D,) encoder output.
        recurrent_state: State before the decision, each part without its batch axis.
        begins: Whether an episode begins with it; the state is then zero.
        position: (3,) [m].
        yaw: [rad].
        velocity: (4,) body velocity [m/s, rad/s].
        action: (4,) unclamped.
        log_prob: Log-probability of the action under the policy that acted [nat].
        value: Prediction of that policy, in units of reward.
        gate_send: Verdict of the gate on the proposed motion; true without a gate. Where it is false the drone flew
            slower, or hovered.
        expected_reward: Reward that the gate expects of that motion, per decision; 0 without a gate.
        components: Components of the expected reward, by name.
        actual_reward: Reward of the environment; None while pending.
        timestamp: Seconds since 1970.
        model_version: Version of the weights that acted.
        observation: (3, Az, El); None where the buffer stores latents.
        aux: (A,) auxiliary input.
        scene: Number of the scene in the gate's field, −1 where there is none.
        ends: Whether the episode ended with it.
        terminated: Whether the task was done; otherwise the end is a truncation, and the value bootstraps it.
        weights: Weights of expected and actual reward in the effective reward.
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
    weights: tuple[float, float] = (0.3, 0.7)

    @property
    def is_completed(self) -> bool:
        """Whether the experience is complete: its actual reward is known."""
        return self.actual_reward is not None

    @property
    def effective_reward(self) -> float:
        """Expected and actual reward, blended by `weights`; the expected reward alone while pending."""
        if self.actual_reward is None:
            return self.expected_reward
        return self.weights[0] * self.expected_reward + self.weights[1] * self.actual_reward

    def fault(self, width: int | None) -> str | None:
        """Validate shapes and finiteness; return the reason why the experience is invalid, or None.

        Args:
            width: D that the latent must have, None for any.
        """
        for name, length in (("position", 3), ("velocity", 4), ("action", 4), ("aux", None), ("latent", width)):
            value = getattr(self, name)
            if value.ndim != 1 or len(value) != (length or len(value)) or not bool(torch.isfinite(value).all()):
                return f"{name} of shape {tuple(value.shape)} is not {length or 'a row of'} finite numbers"
        reward = 0.0 if self.actual_reward is None else self.actual_reward
        numbers = (self.log_prob, self.value, self.expected_reward, self.yaw, reward)
        return None if all(math.isfinite(number) for number in numbers) else "a number is not finite"


def training_reward(
    actual: float, validation: float, agrees: bool | None, config: ContinuousTrainingConfig
) -> float | None:
    """Compute the training reward of one experience from environment and gate; None if it is skipped.

    The gate agrees → actual_weight · actual + simulation_weight · validation; it disagrees → penalty · validation.
    (Actual 1, validation .5: .85 and .25.)

    Args:
        actual: Reward of the environment.
        validation: Reward that the gate expects now; without re-validation, that of the flight.
        agrees: Whether the gate's verdict is the same as in flight; None without re-validation.
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


class Trajectory:
    """Sequence of up to `length` consecutive decisions of one drone: network inputs, rewards and values.

    Args:
        length: Capacity in decisions.
        width: D.
        aux_width: A.
        state: Recurrent state before the first, without a batch axis; None where an episode begins.

    Attributes:
        count: Decisions so far.
        ended: Whether the episode ended with the last decision.
        terminated: It ended because the task was done.
        entries: Decisions that the buffer holds as completed.
    """

    def __init__(self, length: int, width: int, aux_width: int, state: State | None) -> None:
        self.state = None if state is None else tuple(part.to(torch.float16) for part in state)
        self._width = width
        # (T, D + A) latent and auxiliary input of each decision; grows with them.
        self._inputs = np.empty((min(length, 16), width + aux_width), np.float32)
        self.reward = np.full(length, np.nan, np.float32)
        self.value = np.zeros(length, np.float32)
        self.count = self.entries = self._counted = 0
        self.ended = self.terminated = False

    @property
    def nbytes(self) -> int:
        """Memory of the arrays [bytes]."""
        state = sum(part.nbytes for part in self.state or ())
        return state + self._inputs.nbytes + self.reward.nbytes + self.value.nbytes

    @property
    def full(self) -> bool:
        """Whether the trajectory has reached its capacity."""
        return self.count == len(self.reward)

    def grown(self) -> int:
        """Return the memory growth since the last call [bytes]; a trajectory without buffer entries counts as 0."""
        before, self._counted = self._counted, self.nbytes if self.entries else 0
        return self._counted - before

    def append(self, latent: Tensor, aux: Tensor, value: float) -> int:
        """Append a decision; return its index."""
        if self.count == len(self._inputs):
            self._inputs = np.concatenate((self._inputs, np.empty_like(self._inputs)))
        self._inputs[self.count] = np.concatenate((latent.numpy(), aux.numpy()))
        self.value[self.count] = value
        self.count += 1
        return self.count - 1

    def inputs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return copies of the latents (T, D) and auxiliary inputs (T, A) of decisions `start` to `stop` − 1."""
        both = torch.from_numpy(self._inputs[start : min(stop, self.count)].copy())
        return both[:, : self._width], both[:, self._width :]

    def start_state(self, zero: State) -> State:
        """Return the recurrent state before the first decision; `zero` (no batch axis) where an episode begins."""
        return zero if self.state is None else tuple(part.float() for part in self.state)

    def advantage(self, number: int, reward: float, discount: float, trace: float) -> tuple[float, float]:
        """Compute the generalised advantage estimate (GAE) and the target return of a decision.

        Args:
            number: Index of the decision.
            reward: Training reward of the decision; the following decisions keep their rewards.
            discount: γ.
            trace: λ (Schulman et al. 2016, equation 16), along the decisions that follow in the trajectory.
        """
        total, weight = 0.0, 1.0
        for now in range(number, self.count):
            received = reward if now == number else float(self.reward[now])
            if math.isnan(received):
                break  # pending
            if now + 1 < self.count:
                following = float(self.value[now + 1])
            else:
                # The value bootstraps what follows, unless the task was done.
                following = 0.0 if self.terminated else float(self.value[now])
            total += weight * (received + discount * following - float(self.value[now]))
            weight *= discount * trace
        return total, total + float(self.value[number])


@dataclass(frozen=True)
class Sample:
    """Training batch of N completed experiences.

    Attributes:
        rows: (N,) structured: position, yaw, velocity, action, log_prob, value, expected, actual, send, …
        trajectories: Trajectory of each; `rows["place"]` is its number there.
        observation: (N, 3, Az, El), None where latents are stored.
    """

    rows: np.ndarray
    trajectories: list[Trajectory]
    observation: Tensor | None

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> Tensor:
        """Return a copy of a column of the rows as a tensor."""
        return torch.from_numpy(np.ascontiguousarray(self.rows[name]))


@dataclass(frozen=True)
class JudgedRewards:
    """Training rewards of a batch of N experiences after validation by the gate.

    Attributes:
        reward: (N,) float64.
        used: (N,) bool; the others are skipped.
        agreed: Motions with the same verdict of the gate as in flight.
        judged: Motions that the gate re-validated.
    """

    reward: np.ndarray
    used: np.ndarray
    agreed: int
    judged: int


def judged_rewards(sample: Sample, gate: RolloutGate | None, config: ContinuousTrainingConfig) -> JudgedRewards:
    """Compute the training rewards of a batch; the gate re-validates its motions.

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
