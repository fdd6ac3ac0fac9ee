"""Temporal (recurrent) cores: abstract interface, identity core, and residual stack of cores."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
"""Recurrent state of B rows: float32 tensors, batch first."""


class AutogradContext(Protocol):
    """Protocol of the `ctx` of a `torch.autograd.Function`, which torch leaves untyped."""

    saved_tensors: tuple[Any, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors for the backward pass."""

    def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401 (`forward` sets the attributes)

    def __setattr__(self, name: str, value: object) -> None: ...


class TemporalCore(nn.Module, abc.ABC):
    """Abstract temporal (recurrent) core with an explicit state; `step` and `forward` compute the same function.

    Reset contract: True zeroes the row's state before that input is consumed, also the incoming
    state; the state after the last input is not zeroed.
    """

    @abc.abstractmethod
    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the all-zero initial recurrent state for a batch of `rows`, on the parameters' device by default."""

    @abc.abstractmethod
    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Run the core for one step: one input per row, with the recurrent state passed in and out.

        Args:
            x: Inputs (B, D).
            state: State before this step; not modified.
            reset: (B,) bool, or None for no reset.

        Returns:
            Outputs (B, D) and the new state.
        """

    @abc.abstractmethod
    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Run the core over a sequence, with the recurrent state passed in and out.

        Args:
            x: Inputs (B, T, D).
            state: State before the sequence; not modified.
            reset: (B, T) bool, or None for no reset.

        Returns:
            Outputs (B, T, D) and the state after the last step.
        """


class NoCore(TemporalCore):
    """Identity core without memory, for tasks with a Markov observation.

    Args:
        width: Model width D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def initial_state(self, _rows: int, _device: torch.device | str | None = None) -> State:
        """Return the empty recurrent state."""
        return ()

    def step(self, x: Tensor, state: State, _reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Return inputs (B, D) unchanged."""
        return x, state

    def forward(self, x: Tensor, state: State, _reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Return sequences (B, T, D) unchanged."""
        return x, state


class ResidualCore(TemporalCore):
    """Pre-norm residual stack of temporal cores with the interface of one; the layers' states are concatenated.

    Args:
        build: Factory of one block.
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
        """Return the all-zero initial recurrent state for a batch of `rows`: the tensors of every layer in order."""
        return tuple(part for block in self.blocks for part in block.initial_state(rows, device))

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Advance the stack by one input (B, D) per row; see the block's `step`."""
        return self._run(x, state, reset, step=True)

    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Run the stack over a sequence (B, T, D); see the block's `forward`."""
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
