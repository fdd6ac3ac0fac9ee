"""The Mamba-1 block of the package mambapy, with an explicit state and resets.

The package's own sequence form neither takes nor returns a state. Its parameters, modules and
`step` are used as they are; the sequence form here carries the state and honours resets. Weights
move to and from a plain `mambapy.mamba.MambaBlock` through `block`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from navi_core.errors import ConfigError
from navi_core.policy.cores.base import State, TemporalCore
from navi_core.policy.cores.convolution import causal_convolution
from navi_core.policy.cores.selective_scan import selective_scan


class MambaPyBlock(TemporalCore):
    """One Mamba-1 layer, (B, T, D) to (B, T, D); 153,344 parameters with the defaults.

    The state is (conv window (B, E, kernel − 1), oldest first; SSM state (B, E, N)), E the inner width.

    Args:
        width: Model width D.
        state_size: N; mamba2's by default, so that both remember as much per channel.
        kernel: Taps of the causal convolution.
        expand: Inner width over D.

    Raises:
        ConfigError: The package is not installed.
    """

    def __init__(self, width: int = 128, *, state_size: int = 64, kernel: int = 4, expand: int = 2) -> None:
        super().__init__()
        try:
            from mambapy.mamba import MambaBlock, MambaConfig
        except ImportError:
            raise ConfigError(
                "temporal core mambapy needs the package of that name: pip install mambapy; or choose mamba2 or gru"
            ) from None
        config = MambaConfig(d_model=width, n_layers=1, d_state=state_size, d_conv=kernel, expand_factor=expand)
        self.block = MambaBlock(config)
        self.width, self.inner, self.state_size, self.kernel = width, config.d_inner, state_size, kernel

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the zero state of `rows` rows."""
        device = self.block.D.device if device is None else device
        return (
            torch.zeros(rows, self.inner, self.kernel - 1, device=device),
            torch.zeros(rows, self.inner, self.state_size, device=device),
        )

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Consume one input (B, D) per row, by the package's own step."""
        window, h = state if reset is None else (part * (~reset)[:, None, None] for part in state)
        y, (h, window) = self.block.step(x, (h, window))
        return y, (window, h)

    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Consume a sequence (B, T, D); equals `step` applied T times."""
        block, (window, h) = self.block, state
        raw, z = block.in_proj(x).chunk(2, dim=-1)
        mixed, window = causal_convolution(raw, window, block.conv1d.weight, block.conv1d.bias, reset)
        values = F.silu(mixed)
        sizes = (block.config.dt_rank, self.state_size, self.state_size)
        dt, maps_in, maps_out = block.x_proj(values).split(sizes, dim=-1)
        dt = F.softplus(block.dt_proj(dt))
        y, h = selective_scan(values, dt, -torch.exp(block.A_log), maps_in, maps_out, block.D, h, reset)
        return block.out_proj(y * F.silu(z)), (window, h)
