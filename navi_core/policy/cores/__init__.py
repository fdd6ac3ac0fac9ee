"""Temporal cores: memory with an explicit state.

Every core has `initial_state(B)`, `step(x (B, D), state, reset (B,)) -> y, state` for acting and
`core(x (B, T, D), state, reset (B, T)) -> y, state` for updating; both compute the same function.
The state is a tuple of float32 tensors, batch first. Reset contract: `reset[t]` zeroes the state
(and a convolution window) before t is consumed; `reset[0]` overrides the incoming state; the final
state is not zeroed.
"""

from __future__ import annotations

from collections.abc import Callable

from navi_core.errors import ConfigError
from navi_core.policy.cores.base import TemporalCore
from navi_core.policy.cores.gru import GRUBlock
from navi_core.policy.cores.mamba2 import Mamba2Block
from navi_core.policy.cores.mambapy import MambaPyBlock
from navi_core.policy.cores.none import NoCore
from navi_core.policy.cores.residual import ResidualCore
from navi_core.policy.cores.ssd import ssd_scan

__all__ = [
    "CORES",
    "GRUBlock",
    "Mamba2Block",
    "MambaPyBlock",
    "NoCore",
    "ResidualCore",
    "TemporalCore",
    "build_core",
    "ssd_scan",
]

CORES: dict[str, Callable[[int], TemporalCore]] = {
    "mamba2": Mamba2Block,
    "gru": GRUBlock,
    "mambapy": MambaPyBlock,
    "none": NoCore,
}
"""Temporal cores by name; each takes the model width."""


def build_core(name: str, width: int = 128, layers: int = 1) -> TemporalCore:
    """Build a temporal core.

    Args:
        name: A key of `CORES`.
        width: Model width D.
        layers: 1 is the bare block; more make a pre-norm residual stack.

    Raises:
        ConfigError: The name is unknown, `layers` is below 1, or the width does not fit the core.
    """
    if name not in CORES:
        raise ConfigError(f"no temporal core {name!r}; allowed: {', '.join(sorted(CORES))}")
    if layers < 1:
        raise ConfigError(f"core layers {layers} must be at least 1")
    block = CORES[name]
    return block(width) if layers == 1 else ResidualCore(lambda: block(width), width, layers)
