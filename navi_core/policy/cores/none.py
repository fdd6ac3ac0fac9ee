"""No memory: what goes in comes out, and the state is empty."""

from __future__ import annotations

import torch
from torch import Tensor

from navi_core.policy.cores.base import State, TemporalCore

__all__ = ["NoCore"]


class NoCore(TemporalCore):
    """The identity, for tasks whose observation says everything.

    Args:
        width: Model width D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the empty state."""
        return ()

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Return inputs (B, D) as they are."""
        return x, state

    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Return sequences (B, T, D) as they are."""
        return x, state
