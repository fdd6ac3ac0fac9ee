"""Custom temporal core: leaky integrators with learned decays."""

import torch
from torch import nn

from navi_core.policy import TemporalCore, register_core


@register_core("leaky")
class Leaky(TemporalCore):
    """One leaky integrator for each feature. `step` and `forward` compute the same function."""

    def __init__(self, width):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(width))

    def initial_state(self, rows, device=None):
        """Return zeros, one row for each drone."""
        return (torch.zeros(rows, len(self.decay), device=device or self.decay.device),)

    def step(self, x, state, reset=None):
        """Compute one decision: x (B, D), reset (B,)."""
        h = state[0] if reset is None else state[0] * (~reset)[:, None]
        h = torch.lerp(x, h, self.decay.sigmoid())
        return x + h, (h,)

    def forward(self, x, state, reset=None):
        """Compute sequences for learning: x (B, T, D), reset (B, T)."""
        outputs = []
        for t in range(x.shape[1]):
            y, state = self.step(x[:, t], state, None if reset is None else reset[:, t])
            outputs.append(y)
        return torch.stack(outputs, 1), state
