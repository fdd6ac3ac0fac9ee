"""Plugin registry of scripted policies (pilots) by name, built-in and custom."""

from collections.abc import Callable
from typing import Any

from navi_core.config import DynamicsConfig, SensorConfig
from navi_core.config.registry import PILOT_NAMES, Parts
from navi_core.errors import ConfigError
from navi_core.pilots.compass import CompassPilot
from navi_core.pilots.frontier import FrontierPilot
from navi_core.pilots.oracle import OraclePilot
from navi_core.pilots.pilot import Pilot
from navi_core.pilots.planner import PlannerPilot
from navi_core.pilots.reactive import FarthestRayPilot, ForwardPlusPilot, RandomPilot, WallFollowingPilot


def _random_held(*, hold: int = 10, **settings: Any) -> Pilot:  # noqa: ANN401 (keywords of the pilot)
    pilot = RandomPilot(hold=hold, **settings)
    pilot.name = "random-held"
    return pilot


PILOTS: Parts[Callable[..., Pilot]] = Parts(
    PILOT_NAMES,
    """Enter a pilot under a name, by which it is then evaluated and flies experts; or as `@register_pilot("mine")`.

    The factory, a class as a rule, is called with the keywords `seed`, `max_distance` and `dynamics` and returns a
    `Pilot`: its `_decide` answers observations (B, 3, Az, El) with actions (B, 4). What a row remembers is made in
    `_allocate` and emptied in `_forget`, and hangs on its key alone: the same key flies the same way in any batch.
    """,
)
"""Plugin registry of scripted pilots by name; of Navi's the planner and the oracle alone are privileged."""
register_pilot = PILOTS.register


for _build in (
    RandomPilot, ForwardPlusPilot, WallFollowingPilot, FarthestRayPilot, CompassPilot, FrontierPilot, PlannerPilot,
    OraclePilot,
):  # fmt: skip
    register_pilot(_build.name, _build)
register_pilot("random-held", _random_held)


def build_pilot(
    name: str,
    *,
    seed: int = 0,
    max_distance: float = 100.0,
    dynamics: DynamicsConfig | None = None,
    sensor: SensorConfig | None = None,
    **settings: Any,  # noqa: ANN401 (keywords of the pilot)
) -> Pilot:
    """Instantiate a scripted policy (pilot) by name.

    Args:
        name: One of `PILOTS`.
        seed: Seed of the pilot's draws.
        max_distance: Range of the sensor whose observations it reads, M [m].
        dynamics: The drone that it flies; by default the default drone.
        sensor: Delay and profiles of the sensor, see `Pilot.carry`; a custom factory does not receive it.
        settings: The pilot's own parameters.

    Raises:
        ConfigError: An unknown name, an unknown parameter, or an impossible value.
    """
    build = PILOTS[name]
    try:
        pilot = build(seed=seed, max_distance=max_distance, dynamics=dynamics, **settings)
    except TypeError as error:
        raise ConfigError(f"pilot {name!r}: {error}") from None
    if not isinstance(pilot, Pilot):
        raise ConfigError(f"pilot {name!r} is built as {type(pilot).__name__}, which is no navi_core.pilots.Pilot")
    if name not in PILOT_NAMES.built_in:
        pilot.name = name
    if sensor is not None:
        pilot.carry(sensor)
    return pilot
