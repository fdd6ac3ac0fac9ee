"""Rollout storage: preallocated tensors on the training device.

Observations lie sequence after sequence, everything else (T, B). The recurrent state is kept at chunk
starts only (every `bptt` decisions); the update recomputes the rest.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.learn.estimators.losses import gae
from navi_core.learn.rollout.observation_store import ObservationStore, State, TerminalBuffer


@dataclass
class Minibatch:
    """S sequences of L decisions.

    Attributes:
        obs: (S,L,…).
        aux: (S,L,3).
        reset: (S,L) bool; True where the state is zeroed before the decision.
        actions: (S,L,A) unclamped samples.
        log_probs: (S,L) of the acting policy.
        values: (S,L) of the acting policy.
        advantages: (S,L), normalised over the rollout.
        returns: (S,L).
        state: Recurrent state before the first decision, batch-first.
    """

    obs: Tensor
    aux: Tensor
    reset: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    state: State


class Rollout:
    """T decisions of B rows and everything an update needs of them.

    Args:
        steps: T.
        bptt: Decisions per training sequence; divides T.
        observation: Example (B,…) observation.
        aux: Example (B,3) auxiliary input.
        state: Example recurrent state, batch-first.
        action_axes: Width of an action.
        storage: How observations are kept, see `ObservationStore`.
        terminal_capacity: Entries of the side buffer; by default an eighth of the rollout, at least 4 per
            row and 64. When it is full its content is valued early, so any number of endings is handled.
        keep_ends: Keep the observations at which episodes were cut off, for learners that store transitions.

    Raises:
        ConfigError: `bptt` does not divide `steps`, or the storage does not fit the observation.
    """

    def __init__(
        self,
        steps: int,
        bptt: int,
        observation: Tensor,
        aux: Tensor,
        state: State,
        *,
        action_axes: int = 4,
        storage: Literal["full", "compact"] = "full",
        terminal_capacity: int | None = None,
        keep_ends: bool = False,
    ) -> None:
        if steps % bptt:
            raise ConfigError(f"rollout {steps} is not a multiple of bptt {bptt}")
        rows, device = observation.shape[0], observation.device
        self.steps, self.rows, self.bptt = steps, rows, bptt
        self.chunks = steps // bptt
        self.observations = ObservationStore(self.chunks, bptt, observation, storage)
        self.aux = torch.zeros((steps, *aux.shape), dtype=aux.dtype, device=device)
        self.actions = torch.zeros((steps, rows, action_axes), device=device)
        (
            self.log_probs,
            self.values,
            self.rewards,
            self.bootstrap_values,
            self.advantages,
            self.returns,
            self.episode_return,
            self.episode_length,
        ) = torch.zeros((8, steps, rows), device=device)
        self.reset, self.terminated, self.truncated = torch.zeros((3, steps, rows), dtype=torch.bool, device=device)
        self.chunk_state: State = tuple(
            torch.zeros((self.chunks, *x.shape), dtype=x.dtype, device=device) for x in state
        )
        capacity = terminal_capacity if terminal_capacity is not None else max(64, 4 * rows, steps * rows // 8)
        self.terminal = TerminalBuffer(max(capacity, rows), observation, aux, state, keep=keep_ends)

    @property
    def sequences(self) -> int:
        """Training sequences of `bptt` decisions."""
        return self.chunks * self.rows

    def store_chunk_state(self, step: int, state: State) -> None:
        """Keep the state before decision `step` if a chunk starts there."""
        if step % self.bptt == 0:
            for kept, now in zip(self.chunk_state, state):
                kept[step // self.bptt] = now

    def estimate_advantages(
        self, *, gamma: float, lam: float, rho: Tensor | None = None, c: Tensor | None = None
    ) -> None:
        """Fill `advantages` and `returns` (not yet normalised); the arguments are those of `gae`."""
        advantages, returns = gae(
            self.rewards,
            self.values,
            self.terminated,
            self.truncated,
            self.bootstrap_values,
            gamma=gamma,
            lam=lam,
            rho=rho,
            c=c,
        )
        self.advantages.copy_(advantages)
        self.returns.copy_(returns)

    def in_sequences(self, x: Tensor) -> Tensor:
        """Return (sequences, bptt, …) of a (T, B, …) tensor; sequence i is chunk i // B of row i % B."""
        out: Tensor = x.unflatten(0, (self.chunks, self.bptt)).transpose(1, 2).flatten(0, 1)
        return out

    def flat_index(self, index: Tensor) -> Tensor:
        """Return the places (S·bptt,) of sequences (S,) in a flattened (T·B, …) tensor."""
        chunk, row = index // self.rows, index % self.rows
        offsets = torch.arange(self.bptt, device=index.device) * self.rows
        return ((chunk * self.bptt * self.rows + row)[:, None] + offsets).reshape(-1)

    def minibatch(self, index: Tensor | slice) -> Minibatch:
        """Gather sequences.

        Args:
            index: (S,) int64 in [0, sequences), or a slice of them: observations and states are then views.
        """
        numbers = torch.arange(self.sequences, device=self.values.device)[index] if isinstance(index, slice) else index
        flat = self.flat_index(numbers)

        # index_select on a flat leading axis copies whole entries; advanced indexing walks elements.
        def take(x: Tensor) -> Tensor:
            out: Tensor = x.flatten(0, 1).index_select(0, flat).unflatten(0, (-1, self.bptt))
            return out

        def start(x: Tensor) -> Tensor:
            every = x.flatten(0, 1)
            return every[index] if isinstance(index, slice) else every.index_select(0, index)

        return Minibatch(
            obs=self.observations.sequences(index),
            aux=take(self.aux),
            reset=take(self.reset),
            actions=take(self.actions),
            log_probs=take(self.log_probs),
            values=take(self.values),
            advantages=take(self.advantages),
            returns=take(self.returns),
            state=tuple(start(x) for x in self.chunk_state),
        )
