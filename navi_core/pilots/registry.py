"""Pilots by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from navi_core.config import DynamicsConfig
from navi_core.errors import ConfigError
from navi_core.pilots.farthest_ray import FarthestRayPilot
from navi_core.pilots.forward_plus import ForwardPlusPilot
from navi_core.pilots.frontier import FrontierPilot
from navi_core.pilots.pilot import Pilot
from navi_core.pilots.planner import PlannerPilot
from navi_core.pilots.random import RandomPilot
from navi_core.pilots.wall_following import WallFollowingPilot

__all__ = ["PILOTS", "build_pilot"]


def _random_held(*, hold: int = 10, **settings: Any) -> Pilot:
    pilot = RandomPilot(hold=hold, **settings)
    pilot.name = "random-held"
    return pilot


PILOTS: dict[str, Callable[..., Pilot]] = {
    "random": RandomPilot,
    "random-held": _random_held,
    "forward-plus": ForwardPlusPilot,
    "wall-following": WallFollowingPilot,
    "farthest-ray": FarthestRayPilot,
    "frontier": FrontierPilot,
    "planner": PlannerPilot,
}
"""Every scripted pilot by its name; the planner alone is privileged."""


def build_pilot(
    name: str,
    *,
    seed: int = 0,
    max_distance: float = 100.0,
    dynamics: DynamicsConfig | None = None,
    **settings: Any,
) -> Pilot:
    """Build a scripted pilot.

    Args:
        name: One of `PILOTS`.
        seed: Seed of the pilot's draws.
        max_distance: Range of the sensor whose observations it reads, M [m].
        dynamics: The drone that it flies; by default the default drone.
        settings: The pilot's own parameters.

    Raises:
        ConfigError: An unknown name, an unknown parameter, or an impossible value.
    """
    if name not in PILOTS:
        near = difflib.get_close_matches(name, PILOTS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no pilot {name!r}; {hint}allowed: {', '.join(PILOTS)}")
    try:
        return PILOTS[name](seed=seed, max_distance=max_distance, dynamics=dynamics, **settings)
    except TypeError as error:
        raise ConfigError(f"pilot {name!r}: {error}") from None
