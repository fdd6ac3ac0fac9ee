"""Temporal core: interface, identity, and residual stack."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
"""Memory of B rows: float32 tensors, batch first."""


class AutogradContext(Protocol):
    """Context of a `torch.autograd.Function`, which torch leaves untyped."""

    saved_tensors: tuple[Any, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the backward pass."""

    def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401 (`forward` sets the attributes)

    def __setattr__(self, name: str, value: object) -> None: ...


class TemporalCore(nn.Module, abc.ABC):
    """Memory with an explicit state; `step` and `forward` compute the same function.

    Reset contract: True zeroes the row's state before that input is consumed, also an incoming
    state; the state after the last input is not zeroed.
    """

    @abc.abstractmethod
    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the zero state of `rows` rows, on the parameters' device by default."""

    @abc.abstractmethod
    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Consume one input per row.

        Args:
            x: Inputs (B, D).
            state: State before this step; not modified.
            reset: (B,) bool, or None for no reset.

        Returns:
            Outputs (B, D) and the new state.
        """

    @abc.abstractmethod
    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Consume a sequence.

        Args:
            x: Inputs (B, T, D).
            state: State before the sequence; not modified.
            reset: (B, T) bool, or None for no reset.

        Returns:
            Outputs (B, T, D) and the state after the last step.
        """


class NoCore(TemporalCore):
    """Identity, for tasks with a Markov observation.

    Args:
        width: Model width D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def initial_state(self, _rows: int, _device: torch.device | str | None = None) -> State:
        """Return the empty state."""
        return ()

    def step(self, x: Tensor, state: State, _reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Return inputs (B, D) as they are."""
        return x, state

    def forward(self, x: Tensor, state: State, _reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Return sequences (B, T, D) as they are."""
        return x, state


class ResidualCore(TemporalCore):
    """Stack of temporal blocks with the interface of one; the states lie one after another.

    Args:
        build: Makes one block.
        width: Model width D.
        layers: Number of blocks, at least 2.
    """

    def __init__(self, build: Callable[[], TemporalCore], width: int, layers: int) -> None:
        super().__init__()
        self.blocks: Sequence[TemporalCore] = nn.ModuleList(build() for _ in range(layers))  # type: ignore[assignment]
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.width = width

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the zero state of `rows` rows: the tensors of every layer in order."""
        return tuple(part for block in self.blocks for part in block.initial_state(rows, device))

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Consume one input (B, D) per row; see the block's `step`."""
        return self._run(x, state, reset, step=True)

    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Consume a sequence (B, T, D); see the block's `forward`."""
        return self._run(x, state, reset, step=False)

    def _run(self, x: Tensor, state: State, reset: Tensor | None, *, step: bool) -> tuple[Tensor, State]:
        per_layer = len(state) // len(self.blocks)
        new: list[Tensor] = []
        for i, (block, norm) in enumerate(zip(self.blocks, self.norms)):
            part = state[i * per_layer : (i + 1) * per_layer]
            y, part = (block.step if step else block)(norm(x), part, reset)
            x = x + y
            new.extend(part)
        return self.final_norm(x), tuple(new)
