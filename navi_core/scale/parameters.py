"""The way of the weights: published with version and checksum, checked before they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from navi_core.errors import CheckpointError
from navi_core.models.weights import weights_hash

__all__ = ["Orders", "ParameterHub", "Parameters"]


@dataclass(frozen=True)
class Parameters:
    """A publication of weights.

    Attributes:
        version: Its number, from 1.
        step: Gradient steps behind it.
        decisions: Decisions that had been learned from.
        checksum: SHA-256 of names, types, shapes and bits.
        arrays: The weights by name.
    """

    version: int
    step: int
    decisions: int
    checksum: str
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor], *, version: int, step: int, decisions: int) -> Parameters:
        """Return a publication of a copy of weights."""
        arrays = {name: x.detach().cpu().contiguous().clone().numpy() for name, x in weights.items()}
        return cls(version, step, decisions, weights_hash(weights), arrays)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights, if they are what was published.

        Raises:
            CheckpointError: The checksum is another one.
        """
        # Copied: what came through shared memory cannot be written to.
        weights = {name: torch.from_numpy(np.array(x)) for name, x in self.arrays.items()}
        found = weights_hash(weights)
        if found != self.checksum:
            raise CheckpointError(
                f"the weights of version {self.version} have the checksum {found[:16]}… and were published with "
                f"{self.checksum[:16]}…; they are not loaded"
            )
        return weights


@dataclass(frozen=True)
class Orders:
    """What an actor is told between two rollouts.

    Attributes:
        parameters: Newer weights than it has; None where there are none.
        stop: Why the run is over; empty while it goes on.
    """

    parameters: Parameters | None
    stop: str = ""


class ParameterHub:
    """Where actors ask for weights, and whether to go on.

    Args:
        description: What an actor from outside needs to know of the run, as plain data.
    """

    def __init__(self, description: dict[str, Any] | None = None) -> None:
        self.description = description or {}
        self._parameters: Parameters | None = None
        self._stop = ""
        self._guests = 0

    def join(self) -> None:
        """Count an actor from outside, whom the run's end is to wait for."""
        self._guests += 1

    def leave(self) -> None:
        """Count it out again."""
        self._guests -= 1

    def guests(self) -> int:
        """Return how many actors from outside there are."""
        return self._guests

    def describe(self) -> dict[str, Any]:
        """Return the description of the run."""
        return self.description

    def publish(self, parameters: Parameters) -> None:
        """Make weights the newest; an older publication that comes late changes nothing."""
        if self._parameters is None or parameters.version > self._parameters.version:
            self._parameters = parameters

    def orders(self, version: int) -> Orders:
        """Return what an actor with a version is to do; 0 has none."""
        newest = self._parameters
        return Orders(newest if newest is not None and newest.version > version else None, self._stop)

    def stop(self, reason: str) -> None:
        """Tell all actors that the run is over."""
        self._stop = reason
