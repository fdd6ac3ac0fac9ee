"""Temporal (recurrent) cores with an explicit state: GRU, MinGRU, Mamba-2, Mamba-1, none; and their registry.

Every core has `initial_state(B)`, `step(x (B, D), state, reset (B,)) -> y, state` for acting and
`core(x (B, T, D), state, reset (B, T)) -> y, state` for updating; both compute the same function.
The state is a tuple of float32 tensors, batch first. Reset contract: `reset[t]` zeroes the state
(and a convolution window) before t is consumed; `reset[0]` also zeroes the incoming state; the final
state is not zeroed.

Each hand-written recurrence has a plain form for torch.compile beside it: whole expressions, no in-place writes,
gradients by autograd. The hand-written forms save memory traffic by in-place writes and custom backwards. A compiler
optimises by itself and does not support theirs: torch 2.11 breaks its graph in them and computes wrong gradients. Both
forms compute the same function.
"""

from collections.abc import Callable

import torch

from navi_core.config.registry import CORE_NAMES, Parts
from navi_core.errors import ConfigError
from navi_core.policy.checks import check_core
from navi_core.policy.cores.base import NoCore, ResidualCore, TemporalCore
from navi_core.policy.cores.gru import GRUBlock
from navi_core.policy.cores.mamba2 import Mamba2Block
from navi_core.policy.cores.mambapy import MambaPyBlock
from navi_core.policy.cores.mingru import MinGRUBlock
from navi_core.policy.cores.ssd import ssd_scan

__all__ = [
    "CORES",
    "GRUBlock",
    "Mamba2Block",
    "MambaPyBlock",
    "MinGRUBlock",
    "NoCore",
    "ResidualCore",
    "TemporalCore",
    "build_core",
    "register_core",
    "ssd_scan",
]

CoreFactory = Callable[[int], TemporalCore]

CORES: Parts[CoreFactory] = Parts(
    CORE_NAMES,
    """Enter a temporal core under a name, which `policy.core` then takes; or as `@register_core("mine")`.

    The factory, a class as a rule, is called with the width D (128 by default) and returns a `TemporalCore`: with
    `initial_state(B)`, a tuple of float32 tensors, batch first; `step`, which acts, one input (B, D) at a time; and
    `forward`, which learns from sequences (B, T, D). Both compute the same function of inputs, state and resets:
    `reset[:, t]` zeroes a row's state before input t is consumed, the incoming one too, and the last state is not
    zeroed. That is tried when a policy is built. `policy.core_layers` stacks what the factory makes.
    """,
)
"""Registry of temporal core factories by name; each takes the model width."""
register_core = CORES.register


register_core("mamba2", Mamba2Block)
register_core("gru", GRUBlock)
register_core("mingru", MinGRUBlock)
register_core("mambapy", MambaPyBlock)
register_core("none", NoCore)


def build_core(name: str, width: int = 128, layers: int = 1) -> TemporalCore:
    """Build a temporal (recurrent) core by name.

    Args:
        name: A key of `CORES`.
        width: Model width D.
        layers: 1 is the bare block; more make a pre-norm residual stack.

    Raises:
        ConfigError: The name is unknown, `layers` is below 1, the width does not fit the core, or one that is not
            built in breaks the contract of `register_core`.
    """
    block = CORES[name]
    if layers < 1:
        raise ConfigError(f"core layers {layers} must be at least 1")
    if name not in CORE_NAMES.built_in:
        with torch.random.fork_rng(devices=[]):
            check_core(name, block(width), width)
    return block(width) if layers == 1 else ResidualCore(lambda: block(width), width, layers)
