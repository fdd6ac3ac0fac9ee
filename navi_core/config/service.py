"""Settings of the servers and of the gate; those of continuous training lie beside them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator

from navi_core.config.base import Config
from navi_core.config.wire import ACTION_ENDPOINT, OBSERVATION_ENDPOINT, STEP_ENDPOINT, WireConfig
from navi_core.errors import ConfigError

__all__ = ["FARTHEST", "ActorConfig", "EnvironmentConfig", "GateConfig"]

Mode = Literal["step", "stream"]
FARTHEST = 1e5
"""No place is farther from the origin along an axis [m]."""
_Metres = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST)]


class EnvironmentConfig(Config):
    """The environment server: drones that fly what actors ask."""

    mode: Mode = "step"
    """`step`: a decision is flown when asked for; `stream`: at the decision rate, with the last action."""
    publish: str = OBSERVATION_ENDPOINT
    """Where observations are published."""
    answer: str = STEP_ENDPOINT
    """Where step requests are answered (mode step)."""
    actions: tuple[str, ...] = (ACTION_ENDPOINT,)
    """Actors whose actions are flown (mode stream)."""
    sessions: int = Field(1, ge=1, le=4096)
    """Drones, numbered from `first_env_id` on."""
    first_env_id: int = Field(0, ge=0, le=2**30)
    """Number of the first drone; drones that share an actor need numbers of their own."""
    backlog: int = Field(256, ge=1, le=65536)
    """Requests that wait; a later one is answered `busy`."""
    http: str | None = None
    """host:port of the health and metrics pages; None has none, port 0 takes any free one."""
    seed: int = 0
    """Seed of spawns and sensor faults."""
    wire: WireConfig = WireConfig()
    """Limits and queues."""


class GateConfig(Config):
    """The gate: a proposed motion is simulated before it is sent."""

    substeps: int = Field(25, ge=1, le=500)
    """Physics substeps simulated; 25 are 0.5 s."""
    threshold: float = 0.0
    """θ: expected reward per decision that a motion must exceed to be sent."""
    weights: dict[str, float] = {
        "exploration": 1.0,
        "progress": 1.0,
        "clearance": 1.0,
        "starvation": 1.0,
        "view_gain": 1.0,
        "collision": 1.0,
    }
    """Weights of the environment's reward terms in the expected reward; others are 0. Not those of training:
    where all floor is known `explore` pays nothing for any motion, and every drone would wait for ever."""
    slower: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = (0.75, 0.5, 0.25, 0.1, 0.0)
    """Shares of its translation with which a motion that would collide is proposed again, the fastest first.
    Empty: every WAIT hovers, for a collision or for its expected reward."""
    margin: float = Field(0.0, ge=0, le=5)
    """Added to the drone's radius: clearance that the simulation keeps [m]."""

    @field_validator("slower")
    @classmethod
    def _falls(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if any(before <= after for before, after in pairwise(shares)):
            raise ConfigError(f"gate.slower {list(shares)} does not fall; write the fastest first, as [0.75, 0.25]")
        return shares


class ActorConfig(Config):
    """The actor server: a policy that answers observations with actions."""

    mode: Mode = "step"
    """`step`: each action is sent as a request, which brings reward and observation; `stream`: published alone."""
    subscribe: tuple[str, ...] = (OBSERVATION_ENDPOINT,)
    """Environments whose observations are answered."""
    publish: str = ACTION_ENDPOINT
    """Where actions and telemetry are published."""
    step_endpoint: str = STEP_ENDPOINT
    """Environment that is asked to fly (mode step)."""
    runtime: Literal["eager", "onnx", "aoti"] = "eager"
    """How a checkpoint is computed: by torch as written, or as programs exported when the server starts."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where a policy is computed by torch; exported programs run on the CPU."""
    max_sessions: int = Field(256, ge=1, le=4096)
    """Drones served at once; later ones wait until one is gone."""
    idle_seconds: float = Field(60.0, gt=0)
    """A drone that is silent for so long is forgotten [s]."""
    groups: int = Field(1, ge=1, le=16)
    """Parts that the drones are asked for in turn, so that acting and flying overlap on several cores."""
    recovery: bool | None = None
    """Disturb drones that are stuck, where actions are not drawn; None: as the policy's settings say."""
    sample: bool = False
    """Draw actions instead of flying the most typical ones; continuous training needs it."""
    follow: str | None = "champion"
    """Alias of the registry whose moves are followed without losing a session; None stays with the first model."""
    poll_seconds: float = Field(2.0, gt=0)
    """How often the registry is looked at [s]."""
    http: str | None = None
    """host:port of the health and metrics pages; None has none, port 0 takes any free one."""
    seed: int = 0
    """Seed of sampled actions."""
    threads: int = Field(1, ge=1, le=64)
    """Threads of one decision."""
    goal: tuple[_Metres, _Metres, _Metres] | None = None
    """x, y, z [m] where all drones of a policy for goals fly; None: each flies where its environment says."""
    gate: GateConfig | None = None
    """The gate; None sends every motion."""
    wire: WireConfig = WireConfig()
    """Limits and queues."""
