"""Which code of a user's own a policy is made of."""

from __future__ import annotations

from navi_core.policy.cores import CORES
from navi_core.policy.encoders import ENCODERS

__all__ = ["own_networks"]


def own_networks(encoder: str, core: str) -> str | None:
    """Return the sources of the parts that are not Navi's, by digits; None where both are built in.

    With the weights and the code of Navi they tell how a policy flies.

    Raises:
        ConfigError: A part is neither built in nor registered.
    """
    parts = {"encoder": (encoder, ENCODERS.source(encoder)), "core": (core, CORES.source(core))}
    told = [f"{kind} {name} {source}" for kind, (name, source) in parts.items() if source is not None]
    return ", ".join(told) or None
