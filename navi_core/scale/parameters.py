"""Published weights: versioned, with a checksum that is verified before loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from navi_core.errors import CheckpointError
from navi_core.models.lineage import weights_hash


@dataclass(frozen=True)
class Parameters:
    """One version of the weights.

    Attributes:
        version: Number of the version, from 1.
        step: Gradient steps so far.
        decisions: Decisions trained on so far.
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
        """Return a version made of a copy of the weights."""
        arrays = {name: x.detach().cpu().contiguous().clone().numpy() for name, x in weights.items()}
        return cls(version, step, decisions, weights_hash(weights), arrays)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights after verifying the checksum.

        Raises:
            CheckpointError: The checksum differs.
        """
        # Copied: arrays from shared memory are read-only.
        weights = {name: torch.from_numpy(np.array(x)) for name, x in self.arrays.items()}
        found = weights_hash(weights)
        if found != self.checksum:
            raise CheckpointError(
                f"the weights of version {self.version} have the checksum {found[:16]}… and were published with "
                f"{self.checksum[:16]}…; they are not loaded"
            )
        return weights


@dataclass(frozen=True)
class ActorCommand:
    """Command to an actor between two rollouts.

    Attributes:
        parameters: Newer weights, or None.
        stop: Reason why the run is over; empty while it goes on.
    """

    parameters: Parameters | None
    stop: str = ""


class ParameterHub:
    """Parameter server: newest weights and the stop signal.

    Args:
        description: Settings and scenes of the run for external actors, as plain data.
    """

    def __init__(self, description: dict[str, Any] | None = None) -> None:
        self.description = description or {}
        self._parameters: Parameters | None = None
        self._stop = ""
        self._guests = 0

    def join(self) -> None:
        """Count an external actor, which the end of the run waits for."""
        self._guests += 1

    def leave(self) -> None:
        """Count an external actor that leaves."""
        self._guests -= 1

    def guests(self) -> int:
        """Return the number of external actors."""
        return self._guests

    def describe(self) -> dict[str, Any]:
        """Return the description of the run."""
        return self.description

    def publish(self, parameters: Parameters) -> None:
        """Publish weights; an older version that arrives late is ignored."""
        if self._parameters is None or parameters.version > self._parameters.version:
            self._parameters = parameters

    def command(self, version: int) -> ActorCommand:
        """Return the command for an actor with a version (0: no weights yet)."""
        newest = self._parameters
        return ActorCommand(newest if newest is not None and newest.version > version else None, self._stop)

    def stop(self, reason: str) -> None:
        """End the run for all actors."""
        self._stop = reason
