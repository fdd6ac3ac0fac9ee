"""Trajectory: consecutive decisions of one session, from a stored recurrent state on.

A Mamba-2 state is thirty times as large as its inputs, so it is stored for the first decision of a trajectory alone,
in half precision. The present weights compute the states in between from the latents (burn-in, Kapturowski et al.
2019).
"""

import numpy as np
import torch
from torch import Tensor

from navi_core.policy.cores.base import State


class Trajectory:
    """Latents, rewards and values of up to `length` decisions in a row.

    Args:
        length: Capacity in decisions.
        width: D.
        state: Recurrent state before the first, without a batch axis; None where an episode begins.

    Attributes:
        count: Decisions so far.
        ended: The episode ended with the last.
        terminated: It ended because the task was done.
    """

    __slots__ = ("_aux", "_aux_width", "_latent", "count", "ended", "reward", "state", "terminated", "value")

    def __init__(self, length: int, width: int, state: State | None) -> None:
        self.state = None if state is None else tuple(part.to(torch.float16) for part in state)
        self._latent = np.empty((min(length, 16), width), np.float32)
        self._aux: np.ndarray | None = None
        self._aux_width = 3
        self.reward = np.full(length, np.nan, np.float32)
        self.value = np.zeros(length, np.float32)
        self.count = 0
        self.ended = self.terminated = False

    @property
    def nbytes(self) -> int:
        """Memory of the arrays [bytes]."""
        aux = 0 if self._aux is None else self._aux.nbytes
        state = 0 if self.state is None else sum(part.nbytes for part in self.state)
        return self._latent.nbytes + aux + state + self.reward.nbytes + self.value.nbytes

    @property
    def full(self) -> bool:
        """Whether the capacity is reached."""
        return self.count == len(self.reward)

    def append(self, latent: Tensor, aux: Tensor, value: float) -> int:
        """Add a decision and return its number."""
        number = self.count
        if number == len(self._latent):
            grown = np.empty((min(2 * number, len(self.reward)), self._latent.shape[1]), np.float32)
            grown[:number] = self._latent
            self._latent = grown
        self._latent[number] = latent.numpy()
        self._aux_width = len(aux)
        if self._aux is not None or bool(aux.any()):
            if self._aux is None:
                self._aux = np.zeros((len(self.reward), len(aux)), np.float32)
            self._aux[number] = aux.numpy()
        self.value[number] = value
        self.count += 1
        return number

    def inputs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return copies of the latents (T, D) and auxiliary inputs (T, A) of decisions start to stop − 1."""
        latent = torch.from_numpy(self._latent[start:stop].copy())
        if self._aux is None:
            return latent, torch.zeros(len(latent), self._aux_width)
        return latent, torch.from_numpy(self._aux[start:stop].copy())

    def start_state(self, zero: State) -> State:
        """Return the state before the first decision; `zero` (without a batch axis) where an episode begins."""
        return zero if self.state is None else tuple(part.float() for part in self.state)

    def advantage(self, number: int, reward: float, discount: float, trace: float) -> tuple[float, float]:
        """Return the generalised advantage of a decision, and its target return.

        Args:
            number: The decision.
            reward: Its training reward; the following decisions keep their rewards.
            discount: γ.
            trace: λ (Schulman et al. 2016, equation 16), along the decisions that follow in the trajectory.
        """
        last = self.count - 1
        total, weight, now = 0.0, 1.0, number
        while True:
            received = reward if now == number else float(self.reward[now])
            if received != received:
                break  # pending
            value = float(self.value[now])
            if now == last:
                # The value bootstraps what follows, unless the task was done.
                total += weight * (received + (0.0 if self.terminated else discount * value) - value)
                break
            total += weight * (received + discount * float(self.value[now + 1]) - value)
            weight *= discount * trace
            now += 1
        return total, total + float(self.value[number])
