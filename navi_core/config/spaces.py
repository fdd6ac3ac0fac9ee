"""What a reference task shows and takes; flight has a panorama and four axes, and needs none of this."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Spaces"]


@dataclass(frozen=True)
class Spaces:
    """The two sides of a task.

    Attributes:
        observation: Numbers of an observation.
        axes: Width of an action.
        choices: Every allowed action, each with `axes` numbers; empty where actions are continuous in (−1, 1).
        scale: Usual magnitude of each number of an observation, by which a network divides; empty for 1.
        shape: (C, H, W) of observations that are pictures, bytes; empty for vectors.
    """

    observation: int
    axes: int = 1
    choices: tuple[tuple[float, ...], ...] = ()
    scale: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def observed(self) -> tuple[int, ...]:
        """Shape of an observation."""
        return self.shape or (self.observation,)
