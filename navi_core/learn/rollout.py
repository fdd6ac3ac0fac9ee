"""Rollout storage: preallocated (T,B,…) tensors on the training device.

The recurrent state is kept at chunk starts only (every `bptt` decisions); the update recomputes
the rest. Observations at which an episode was cut off, with the state that had consumed
everything before them, wait in a small side buffer and are valued together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.learn.advantages import gae

__all__ = ["Minibatch", "Rollout", "TerminalBuffer"]

State = tuple[Tensor, ...]


@dataclass
class Minibatch:
    """S sequences of L decisions.

    Attributes:
        obs: (S,L,3,Az,El).
        aux: (S,L,3).
        reset: (S,L) bool; True where the state is zeroed before the decision.
        actions: (S,L,4) unclamped samples.
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


class TerminalBuffer:
    """Observations and unreset states of cut-off rows, valued in one batch.

    Args:
        capacity: Entries kept before they must be valued.
        observation: Example (B,3,Az,El) observation; its row shape and device are used.
        aux: Example (B,3) auxiliary input.
        state: Example state, batch-first.
    """

    def __init__(self, capacity: int, observation: Tensor, aux: Tensor, state: State) -> None:
        self.capacity = capacity
        self.count = 0
        self._obs, self._aux = (_rows_like(x, capacity) for x in (observation, aux))
        self._state = tuple(_rows_like(x, capacity) for x in state)
        self._slot = torch.zeros(capacity, dtype=torch.int64, device=observation.device)

    def fits(self, entries: int) -> bool:
        """Whether `entries` more can be added before valuing."""
        return self.count + entries <= self.capacity

    def add(self, step: int, rows: Tensor, obs: Tensor, aux: Tensor, state: State) -> None:
        """Keep `rows` (N,) of (B,…) tensors, to be valued for decision `step`."""
        place = slice(self.count, self.count + rows.numel())
        self._obs[place] = obs[rows]
        self._aux[place] = aux[rows]
        for kept, now in zip(self._state, state):
            kept[place] = now[rows]
        self._slot[place] = step * obs.shape[0] + rows
        self.count += rows.numel()

    def value_into(self, value: Callable[[Tensor, Tensor, State], Tensor], target: Tensor) -> None:
        """Value every entry, write the results to `target` (T,B) and forget the entries."""
        if self.count:
            n = self.count
            values = value(self._obs[:n], self._aux[:n], tuple(x[:n] for x in self._state))
            target.view(-1)[self._slot[:n]] = values.to(target.dtype)
        self.count = 0


class Rollout:
    """T decisions of B rows and everything an update needs of them.

    Args:
        steps: T.
        bptt: Decisions per training sequence; divides T.
        observation: Example (B,3,Az,El) observation.
        aux: Example (B,3) auxiliary input.
        state: Example recurrent state, batch-first.
        action_axes: Width of an action.
        terminal_capacity: Entries of the side buffer; by default 4 per row, at least 64. When it is
            full its content is valued early, so any number of endings is handled.
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
        terminal_capacity: int | None = None,
    ) -> None:
        if steps % bptt:
            raise ConfigError(f"rollout {steps} is not a multiple of bptt {bptt}")
        rows, device = observation.shape[0], observation.device
        self.steps, self.rows, self.bptt = steps, rows, bptt
        self.chunks = steps // bptt
        self.obs = torch.zeros((steps, *observation.shape), dtype=observation.dtype, device=device)
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
        capacity = terminal_capacity if terminal_capacity is not None else max(64, 4 * rows)
        self.terminal = TerminalBuffer(max(capacity, rows), observation, aux, state)

    @property
    def sequences(self) -> int:
        """Training sequences of `bptt` decisions."""
        return self.chunks * self.rows

    def store_chunk_state(self, step: int, state: State) -> None:
        """Keep the state before decision `step` if a chunk starts there."""
        if step % self.bptt == 0:
            for kept, now in zip(self.chunk_state, state):
                kept[step // self.bptt] = now

    def estimate_advantages(self, *, gamma: float, lam: float) -> None:
        """Fill `advantages` and `returns` (not yet normalised)."""
        advantages, returns = gae(
            self.rewards,
            self.values,
            self.terminated,
            self.truncated,
            self.bootstrap_values,
            gamma=gamma,
            lam=lam,
        )
        self.advantages.copy_(advantages)
        self.returns.copy_(returns)

    def normalise_advantages(self) -> None:
        """Bring the rollout's advantages to mean 0 and population deviation 1."""
        deviation, mean = torch.std_mean(self.advantages, correction=0)
        self.advantages.sub_(mean).div_(deviation + 1e-8)

    def minibatch(self, index: Tensor) -> Minibatch:
        """Gather sequences.

        Args:
            index: (S,) int64 in [0, sequences); sequence i is chunk i // B of row i % B.
        """
        chunk, row = index // self.rows, index % self.rows
        offsets = torch.arange(self.bptt, device=index.device) * self.rows
        flat = ((chunk * self.bptt * self.rows + row)[:, None] + offsets).reshape(-1)

        # index_select on a flat leading axis copies whole observations; advanced indexing walks elements.
        def take(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, flat).unflatten(0, (index.numel(), self.bptt))

        return Minibatch(
            obs=take(self.obs),
            aux=take(self.aux),
            reset=take(self.reset),
            actions=take(self.actions),
            log_probs=take(self.log_probs),
            values=take(self.values),
            advantages=take(self.advantages),
            returns=take(self.returns),
            state=tuple(x.flatten(0, 1).index_select(0, index) for x in self.chunk_state),
        )


def _rows_like(example: Tensor, rows: int) -> Tensor:
    return torch.zeros((rows, *example.shape[1:]), dtype=example.dtype, device=example.device)
