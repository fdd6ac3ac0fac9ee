"""What a person flew: observations and answers of one flight, kept small, and taken back at will."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["FlightLog"]


@dataclass
class FlightLog:
    """Decisions of one recorded flight; depth stays exact, ids take two bytes and the valid mask one."""

    depth: list[npt.NDArray[np.float32]] = field(default_factory=list)
    """(Az, El) normalised depth before each decision."""
    semantic: list[npt.NDArray[np.uint16]] = field(default_factory=list)
    """(Az, El) semantic ids."""
    valid: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    """(Az, El) valid mask."""
    actions: list[npt.NDArray[np.float32]] = field(default_factory=list)
    """(4,) in [−1, 1]."""

    def __len__(self) -> int:
        """Return the number of decisions."""
        return len(self.actions)

    def add(self, observation: npt.NDArray[np.float32], action: npt.NDArray[np.float32]) -> None:
        """Keep one decision.

        Args:
            observation: (3, Az, El) before it.
            action: (4,) the answer.
        """
        self.depth.append(observation[0].copy())
        self.semantic.append(observation[1].astype(np.uint16))
        self.valid.append(observation[2] > 0.5)
        self.actions.append(action.copy())

    def cut(self, length: int) -> None:
        """Forget every decision from number `length` on."""
        for kept in (self.depth, self.semantic, self.valid, self.actions):
            del kept[length:]

    def observations(self) -> npt.NDArray[np.float32]:
        """Return all observations, (N, 3, Az, El) float32."""
        channels = (np.stack(self.depth), np.stack(self.semantic), np.stack(self.valid))
        return np.stack([channel.astype(np.float32) for channel in channels], axis=1)
