"""MinGRU core: a gated recurrent unit whose gates see the input alone (Feng et al. 2024, arXiv:2410.01201).

Without a product of state and weights, a sequence costs one product for all its steps. On a CPU, PPO of small networks
runs this core in a compiled form (`navi_core.learn.algorithms.compiled_ppo`).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from navi_core.policy.cores.base import State, TemporalCore


class MinGRUBlock(TemporalCore):
    """MinGRU core of one layer, h_t = h' + σ(z_t)·(c_t − h'), (z_t, c_t) = W·x_t + b; the state is (h (B, D),).

    Args:
        width: Width of inputs, state and outputs D; 33,024 parameters at D 128.
    """

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(2 * width, width))
        self.bias = nn.Parameter(torch.empty(2 * width))
        bound = 1 / math.sqrt(width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the all-zero initial recurrent state for a batch of `rows`."""
        return (torch.zeros(rows, self.width, device=self.bias.device if device is None else device),)

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Advance the core by one input (B, D) per row; `reset` (B,) zeroes a row's state first."""
        gate, candidate = F.linear(x, self.weight, self.bias).chunk(2, dim=-1)
        h = torch.lerp(_kept(state[0], reset), candidate, gate.sigmoid())
        return h, (h,)

    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Run the core over a sequence (B, T, D); equals `step` applied T times."""
        gates, candidates = F.linear(x, self.weight, self.bias).chunk(2, dim=-1)
        gates, h, outputs = gates.sigmoid(), state[0], []
        for t in range(x.shape[1]):
            h = torch.lerp(_kept(h, None if reset is None else reset[:, t]), candidates[:, t], gates[:, t])
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h,)


def _kept(h: Tensor, reset: Tensor | None) -> Tensor:
    return h if reset is None else h * (~reset)[:, None]
