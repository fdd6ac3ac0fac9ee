"""The interface of a temporal core."""

from __future__ import annotations

import abc

import torch
from torch import Tensor, nn

__all__ = ["State", "TemporalCore"]

State = tuple[Tensor, ...]
"""Memory of B rows: float32 tensors, batch first."""


class TemporalCore(nn.Module, abc.ABC):
    """Memory with an explicit state; `step` and `forward` compute the same function.

    Reset contract: True zeroes the row's state before that input is consumed, also an incoming
    state; the state after the last input is not zeroed.
    """

    @abc.abstractmethod
    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the zero state of `rows` rows, on the parameters' device unless told otherwise."""

    @abc.abstractmethod
    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Consume one input per row.

        Args:
            x: Inputs (B, D).
            state: State before this step; not modified.
            reset: (B,) bool, or None for no reset.

        Returns:
            Outputs (B, D) and the new state.
        """

    @abc.abstractmethod
    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Consume a sequence.

        Args:
            x: Inputs (B, T, D).
            state: State before the sequence; not modified.
            reset: (B, T) bool, or None for no reset.

        Returns:
            Outputs (B, T, D) and the state after the last step.
        """
