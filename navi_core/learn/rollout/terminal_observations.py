"""Observations at which episodes were cut off, kept aside to be valued together.

A truncated episode is worth the critic's value of its last observation, seen from the state that
had consumed everything before it. Which rows are cut is known to the device alone; entries are
therefore placed by a running count on the device, and the host looks at that count only when the
buffer might be full.
"""

from collections.abc import Callable

import torch
from torch import Tensor

State = tuple[Tensor, ...]


class TerminalBuffer:
    """Observations and unreset states of cut-off rows, valued in one batch.

    Args:
        capacity: Entries kept before they must be valued; at least B.
        observation: Example (B, …) observation; its row shape and device are used.
        aux: Example (B, 3) auxiliary input.
        state: Example state, batch-first.

        keep: Whether entries outlive their valuation, for learners that store transitions.

    Attributes:
        looks: Whether values may be read by the host: on the CPU this costs nothing and spares copies.
        kept: Entries since `forget`, where they are kept: places step·B + row (N,), observations, auxiliary inputs.
    """

    def __init__(self, capacity: int, observation: Tensor, aux: Tensor, state: State, *, keep: bool = False) -> None:
        self.capacity, self.keep = capacity, keep
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self.looks = observation.device.type == "cpu"
        # One more entry, into which everything is written that nobody wants.
        self._obs, self._aux = (_rows_like(x, capacity + 1) for x in (observation, aux))
        self._state = tuple(_rows_like(x, capacity + 1) for x in state)
        self._slot = torch.zeros(capacity + 1, dtype=torch.int64, device=observation.device)
        self._row = torch.arange(observation.shape[0], device=observation.device)
        self._count = torch.zeros((), dtype=torch.int64, device=observation.device)
        self._most = 0  # the host's bound of the count

    def add(
        self,
        step: int,
        cut: Tensor,
        obs: Callable[[], Tensor],
        aux: Tensor,
        state: State,
        value: Callable[[], None],
    ) -> None:
        """Keep the rows that were cut off at decision `step`.

        Args:
            step: Decision.
            cut: (B,) bool.
            obs: Gives the (B, …) last observation of every row; asked only if it is needed.
            aux: (B, A) the auxiliary input that belongs to it.
            state: State that has consumed everything before it, batch-first.
            value: Called to value and empty the buffer when its entries and these might not fit.
        """
        rows = len(self._row)
        if self.looks and not bool(cut.any()):
            return
        if self._most + rows > self.capacity:
            self._most = int(self._count)
            if self._most + rows > self.capacity:
                value()
        place = torch.where(cut, self._count + torch.cumsum(cut, 0) - 1, self.capacity)
        for kept, now in zip((self._obs, self._aux, *self._state), (obs(), aux, *state)):
            kept.index_copy_(0, place, now)
        self._slot.index_copy_(0, place, step * rows + self._row)
        self._count += cut.sum()
        self._most += rows

    def forget(self) -> None:
        """Begin a new rollout."""
        self.kept.clear()

    def value_into(self, value: Callable[[Tensor, Tensor, State], Tensor], target: Tensor) -> None:
        """Value every entry, write the results to `target` (T, B) and forget the entries."""
        n = int(self._count) if self._most else 0
        if n:
            # On a device batches of B, whatever there is: some of its kernels are planned anew for every other number.
            size = n if self.looks else len(self._row)
            parts = [slice(i, i + size) for i in range(0, n, size)]
            valued = [value(self._obs[i], self._aux[i], tuple(x[i] for x in self._state)) for i in parts]
            values = torch.cat(valued)[:n]
            target.view(-1)[self._slot[:n]] = values.to(target.dtype)
            if self.keep:
                self.kept.append((self._slot[:n].clone(), self._obs[:n].clone(), self._aux[:n].clone()))
        self._count.zero_()
        self._most = 0


def _rows_like(example: Tensor, rows: int) -> Tensor:
    return torch.zeros((rows, *example.shape[1:]), dtype=example.dtype, device=example.device)
