"""Runners of a policy: any number of drones in one batch, state in and out."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navi_core.config import PolicyConfig
from navi_core.errors import ConfigError
from navi_core.models import ExportedPolicy
from navi_core.policy import NavigationPolicy
from navi_core.policy.cores.base import State


@dataclass(frozen=True)
class Decision:
    """One decision of N drones.

    Attributes:
        action: (N, 4) unclamped.
        value: (N,).
        state: After this step, where the runner computes.
        log_prob: (N,) of the actions; None where the runtime has none.
        latent: (N, D) encoder output.
    """

    action: Tensor
    value: Tensor
    state: State
    latent: Tensor
    log_prob: Tensor | None = None


class Runner(abc.ABC):
    """Computes a policy.

    Args:
        config: Network configuration.
        name: Name of the policy on the wire.
    """

    def __init__(self, config: PolicyConfig, name: str) -> None:
        self.config, self.name = config, name

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of an exported program; empty for a policy."""
        return {}

    @abc.abstractmethod
    def initial_state(self, rows: int) -> State:
        """Return the zero state of `rows` drones, where the runner computes."""

    @abc.abstractmethod
    def decide(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor | None) -> Decision:
        """Decide for N drones.

        Args:
            obs: (N, 3, Az, El).
            aux: (N, 3) auxiliary inputs of the step before.
            state: Of the N drones.
            reset: (N,) bool, an episode begins.
            noise: (N, 4) standard normal draws; None flies the typical action.
        """


class EagerRunner(Runner):
    """The policy as torch computes it.

    Args:
        policy: Moved to the device.
        name: Name of the policy on the wire.
        device: Computes it and keeps the states; all other inputs and outputs are on the host.
    """

    def __init__(self, policy: NavigationPolicy, name: str, device: torch.device | str = "cpu") -> None:
        super().__init__(policy.config, name)
        self.device = torch.device(device)
        self.policy = policy.eval().to(self.device)

    def initial_state(self, rows: int) -> State:
        """Return the zero state of `rows` drones."""
        return self.policy.initial_state(rows, self.device)

    def decide(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor | None) -> Decision:
        """Decide for N drones."""
        device = self.device
        with torch.no_grad():
            draws = None if noise is None else noise.to(device)
            out = self.policy.act(obs.to(device), aux.to(device), state, reset.to(device), draws)
        # One copy to the host, and one wait for the device.
        parts = (out.action, out.value[:, None], out.log_prob[:, None], out.embedding)
        split = torch.split(torch.cat(parts, dim=1).cpu(), [part.shape[1] for part in parts], dim=1)
        action, value, log_prob, latent = (part.contiguous() for part in split)
        return Decision(action, value.squeeze(1), out.state, latent, log_prob.squeeze(1))


class ProgramRunner(Runner):
    """Exported programs of several sizes; drones that fill no program are joined by empty ones.

    Args:
        programs: By their rows.
        name: Name of the policy on the wire.
    """

    def __init__(self, programs: Mapping[int, ExportedPolicy], name: str) -> None:
        if not programs:
            raise ConfigError("a policy of no programs")
        self._programs = dict(sorted(programs.items()))
        self._max_rows = max(self._programs)
        super().__init__(self._programs[self._max_rows].config, name)
        self._zero = {rows: program.initial_state() for rows, program in self._programs.items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the largest program."""
        return self._programs[self._max_rows].metadata

    def initial_state(self, rows: int) -> State:
        """Return the zero state of `rows` drones."""
        return tuple(torch.zeros(rows, *part.shape[1:]) for part in self._zero[self._max_rows])

    def decide(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor | None) -> Decision:
        """Decide for N drones.

        Raises:
            ConfigError: Noise is given: programs fly the typical action alone.
        """
        if noise is not None:
            raise ConfigError("an exported program flies the typical action; sample with --runtime eager")
        parts = []
        for start in range(0, len(obs), self._max_rows):
            chunk = slice(start, start + self._max_rows)
            parts.append(self._call(obs[chunk], aux[chunk], tuple(s[chunk] for s in state), reset[chunk]))
        if len(parts) == 1:
            return parts[0]
        after = tuple(torch.cat(each) for each in zip(*(p.state for p in parts)))
        action, value, latent = (torch.cat(each) for each in zip(*((p.action, p.value, p.latent) for p in parts)))
        return Decision(action, value, after, latent)

    def _call(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor) -> Decision:
        count = len(obs)
        rows = next(size for size in self._programs if size >= count)
        if rows > count:
            obs, aux, reset = (_padded(x, rows) for x in (obs, aux, reset))
            state = tuple(_padded(part, rows) for part in state)
        acted = self._programs[rows].act(obs, aux, reset, state)
        after = tuple(part[:count] for part in acted.state)
        return Decision(acted.action[:count], acted.value[:count], after, acted.latent[:count])


def _padded(tensor: Tensor, rows: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
