"""Rollout buffer: preallocated tensors of T decisions × B environments on the training device.

Observations are stored sequence by sequence, so a minibatch copies whole sequences; everything else is (T, B). The
recurrent state is kept at chunk starts only (every `bptt` decisions); the update recomputes the rest. The acting policy
reads each observation after packing and unpacking, so that acting and learning have identical inputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.learn.estimators.losses import gae

_MOST_SEMANTIC = 255


class ObservationCodec:
    """Codec of stored observations (…, *shape): packs them into compact tensors and unpacks them.

    Args:
        shape: Shape of one observation.
        dtype: Type of one observation.
        kind: `full`, or `compact` for panoramas (3, Az, El).

    Attributes:
        parts: Shape and type of every part of a packed observation.

    Raises:
        ConfigError: `compact` for observations that are no panoramas, or with Az·El not a multiple of 8.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, kind: Literal["full", "compact"] = "full"
    ) -> None:
        self.shape, self.kind = shape, kind
        self.parts: list[tuple[tuple[int, ...], torch.dtype]] = [(shape, dtype)]
        if kind == "full":
            return
        if len(shape) != 3 or shape[0] != 3 or shape[1] * shape[2] % 8:
            raise ConfigError(
                f"storage compact keeps panoramas (3, Az, El) with Az·El a multiple of 8, not {shape}; "
                "set storage to full"
            )
        pixels = shape[1:]
        bits = (pixels[0] * pixels[1] // 8,)
        self.parts = [(pixels, torch.float16), (pixels, torch.uint8), (bits, torch.uint8)]

    def pack(self, observations: Tensor) -> list[Tensor]:
        """Pack observations (…, *shape) into parts: one tensor (full), or depth, semantic and valid bits (compact)."""
        if self.kind == "full":
            return [observations]
        depth, semantic, valid = observations.unbind(-3)
        valid = (valid > 0).to(torch.uint8).flatten(-2).unflatten(-1, (-1, 8))
        bits = (valid << self._shifts(observations)).sum(-1, dtype=torch.uint8)
        return [depth.to(torch.float16), semantic.clamp(0, _MOST_SEMANTIC).to(torch.uint8), bits]

    def unpack(self, parts: Sequence[Tensor]) -> Tensor:
        """Unpack parts into observations (…, *shape); with storage `full` the one part is returned as it is."""
        if self.kind == "full":
            return parts[0]
        depth, semantic, bits = parts
        leading = depth.shape[:-2]
        out = torch.empty((*leading, *self.shape), dtype=torch.float32, device=depth.device)
        out[..., 0, :, :] = depth
        out[..., 1, :, :] = semantic
        valid = (bits[..., None] >> self._shifts(bits)) & 1
        out[..., 2, :, :] = valid.view(*leading, *self.shape[1:])
        return out

    @staticmethod
    def _shifts(like: Tensor) -> Tensor:
        return torch.arange(8, dtype=torch.uint8, device=like.device)


class ObservationStore:
    """Buffer of the observations of T decisions × B rows, as chunks·B sequences of `bptt` observations.

    Args:
        chunks: T / bptt.
        bptt: Decisions of a sequence.
        example: (B, …) observation; its shape and device are used.
        kind: `full`, or `compact` for panoramas (B, 3, Az, El).

    Raises:
        ConfigError: `compact` for observations that are no panoramas, or with Az·El not a multiple of 8.
    """

    def __init__(self, chunks: int, bptt: int, example: Tensor, kind: Literal["full", "compact"] = "full") -> None:
        rows, shape = example.shape[0], tuple(example.shape[1:])
        self.bptt, self.rows, self._shape = bptt, rows, shape
        self.codec = ObservationCodec(shape, example.dtype, kind)
        self._slabs = [
            torch.zeros((chunks, rows, bptt, *part), dtype=dtype, device=example.device)
            for part, dtype in self.codec.parts
        ]

    @property
    def numbers(self) -> int:
        """Number of elements of one observation."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """Memory of the buffer [bytes]."""
        return sum(slab.nbytes for slab in self._slabs)

    def write(self, step: int, observation: Tensor) -> Tensor:
        """Store the (B, …) observation of decision `step`; return it after packing and unpacking."""
        chunk, place = divmod(step, self.bptt)
        parts = self.codec.pack(observation)
        for slab, part in zip(self._slabs, parts):
            slab[chunk, :, place] = part
        return self.codec.unpack(parts)

    def sequences(self, index: Tensor | slice) -> Tensor:
        """Gather training sequences (S, bptt, …); a slice of a full store is a view without a copy.

        Args:
            index: Sequence numbers, chunk·B + row.
        """
        return self.codec.unpack(
            [
                slab.flatten(0, 1)[index] if isinstance(index, slice) else slab.flatten(0, 1).index_select(0, index)
                for slab in self._slabs
            ]
        )

    def decisions(self, step: Tensor, row: Tensor) -> Tensor:
        """Gather the observations (N, …) of single decisions.

        Args:
            step: (N,) int64 in [0, T).
            row: (N,) int64 in [0, B).
        """
        place = (step // self.bptt * self.rows + row) * self.bptt + step % self.bptt
        return self.codec.unpack([slab.flatten(0, 2).index_select(0, place) for slab in self._slabs])

    def by_step(self) -> Tensor:
        """Return a time-major copy of all observations, (T, B, …)."""
        every = self.sequences(slice(None))
        out: Tensor = every.unflatten(0, (-1, self.rows)).transpose(1, 2).flatten(0, 1)
        return out


State = tuple[Tensor, ...]


class TerminalBuffer:
    """Buffer of final observations and recurrent states of truncated rows, for batched bootstrap values.

    A truncated episode bootstraps from the critic's value of its last observation, given the recurrent state before
    that observation. The truncation mask is on the device. Entries are therefore placed by a running count on the
    device, and the host reads that count only when the buffer might be full.

    Args:
        capacity: Entries kept before the critic must evaluate them; at least B.
        observation: Example (B, …) observation; its row shape and device are used.
        aux: Example (B, 3) auxiliary input.
        state: Example state, batch-first.
        keep: Whether entries are kept after their evaluation, for learners that store transitions.

    Attributes:
        looks: Whether the host may read tensor values: on the CPU this is free and saves copies.
        kept: Entries since `forget`, where they are kept: places step·B + row (N,), observations, auxiliary inputs.
    """

    def __init__(self, capacity: int, observation: Tensor, aux: Tensor, state: State, *, keep: bool = False) -> None:
        self.capacity, self.keep = capacity, keep
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self.looks = observation.device.type == "cpu"
        # One more entry, for the rows that were not cut off.
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
        """Append the final observations of the rows that were truncated at decision `step`.

        Args:
            step: Decision.
            cut: (B,) bool.
            obs: Returns the (B, …) last observation of every row; called only if needed.
            aux: (B, A) auxiliary input of that observation.
            state: Recurrent state before that observation, batch-first.
            value: Called to evaluate and empty the buffer when the new entries might not fit.
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
        """Clear the entries kept of the last rollout, at the start of a new one."""
        self.kept.clear()

    def value_into(self, value: Callable[[Tensor, Tensor, State], Tensor], target: Tensor) -> None:
        """Evaluate every entry with the critic, write the values to `target` (T, B), and empty the buffer."""
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


@dataclass
class Minibatch:
    """Minibatch of S training sequences of L decisions.

    Attributes:
        obs: (S,L,…).
        aux: (S,L,3).
        reset: (S,L) bool; True where the state is zeroed before the decision.
        actions: (S,L,A) unclamped samples.
        log_probs: (S,L) log-probabilities under the acting policy.
        values: (S,L) values predicted by the acting policy.
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
    """Rollout buffer: T decisions of B rows with observations, actions, rewards, values and advantages.

    Args:
        steps: T.
        bptt: Decisions per training sequence; divides T.
        observation: Example (B,…) observation.
        aux: Example (B,3) auxiliary input.
        state: Example recurrent state, batch-first.
        action_axes: Width of an action.
        storage: Storage format of observations, see `ObservationStore`.
        terminal_capacity: Entries of the `TerminalBuffer`; by default an eighth of the rollout, at least 4 per
            row and 64. When it is full its entries are evaluated early, so any number of truncations is handled.
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
        """Number of training sequences of `bptt` decisions."""
        return self.chunks * self.rows

    def store_chunk_state(self, step: int, state: State) -> None:
        """Store the recurrent state before decision `step` if a chunk starts there."""
        if step % self.bptt == 0:
            for kept, now in zip(self.chunk_state, state):
                kept[step // self.bptt] = now

    def estimate_advantages(
        self, *, gamma: float, lam: float, rho: Tensor | None = None, c: Tensor | None = None
    ) -> None:
        """Fill `advantages` and `returns` by GAE (not yet normalised); the arguments are those of `gae`."""
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
        """Reshape (T, B, …) to training sequences (sequences, bptt, …); sequence i is chunk i // B of row i % B."""
        out: Tensor = x.unflatten(0, (self.chunks, self.bptt)).transpose(1, 2).flatten(0, 1)
        return out

    def flat_index(self, index: Tensor) -> Tensor:
        """Return the indices (S·bptt,) of sequences (S,) in a flattened (T·B, …) tensor."""
        chunk, row = index // self.rows, index % self.rows
        offsets = torch.arange(self.bptt, device=index.device) * self.rows
        return ((chunk * self.bptt * self.rows + row)[:, None] + offsets).reshape(-1)

    def minibatch(self, index: Tensor | slice) -> Minibatch:
        """Gather a minibatch of training sequences.

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
