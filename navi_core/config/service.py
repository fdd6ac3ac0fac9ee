"""Settings of the service: wire, servers, safety gate, continuous training, explorer."""

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from navi_core.config.base import Config
from navi_core.config.world import DynamicsConfig
from navi_core.errors import ConfigError

OBSERVATION_ENDPOINT = "tcp://127.0.0.1:5559"
"""Where an environment publishes `distance_matrix_v2`."""
STEP_ENDPOINT = "tcp://127.0.0.1:5560"
"""Where an environment answers `step_request_v2`."""
ACTION_ENDPOINT = "tcp://127.0.0.1:5557"
"""Where an actor publishes `action_v2` and `telemetry_event_v2`."""


class WireConfig(Config):
    """Settings of the wire protocol: message limits and queue lengths of every socket."""

    max_message_bytes: int = Field(64 * 2**20, ge=1024, le=2**31)
    """A longer frame is refused, and its sender's connection closed [bytes]."""
    queue_length: int = Field(50, ge=1, le=10_000)
    """Messages that wait for one slow reader; later ones are dropped for it alone."""
    heartbeat_seconds: float = Field(1.0, gt=0, le=60)
    """An idle server repeats its last observation as a heartbeat this often [s]."""
    peer_timeout_seconds: float = Field(5.0, gt=0, le=600)
    """A peer that is silent for so long counts as gone; requests are sent again [s]."""
    observation_hz: float = Field(10.0, gt=0, le=1000)
    """Observations a second that a viewer gets of one selected row [Hz]."""


Mode = Literal["step", "stream"]
FARTHEST = 1e5
"""No place is farther from the origin along an axis [m]."""
_Metres = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST)]


class EnvironmentConfig(Config):
    """Settings of the environment server, which simulates drones that actors control."""

    mode: Mode = "step"
    """`step`: a decision is flown when asked for; `stream`: at the decision rate, with the last action."""
    publish: str = OBSERVATION_ENDPOINT
    """Endpoint that publishes observations."""
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
    """Settings of the safety gate: each proposed motion is simulated before it is sent."""

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
    """Settings of the actor server: policy inference, from observations to actions."""

    mode: Mode = "step"
    """`step`: each action is sent as a request, which brings reward and observation; `stream`: published alone."""
    subscribe: tuple[str, ...] = (OBSERVATION_ENDPOINT,)
    """Endpoints of environments to answer; may be repeated."""
    publish: str = ACTION_ENDPOINT
    """Endpoint that publishes actions and telemetry."""
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
    """Disturb drones that are stuck, where actions are not drawn; None: as the policy's settings."""
    done_after: int | None = Field(None, ge=0, le=10_000)
    """Decisions without a way to a frontier of the own map after which a drone hovers; 0: it flies on. None: as the
    policy's settings."""
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
    """x, y, z [m] where all drones of a policy for goals fly; None: each flies to the goal of its environment."""
    gate: GateConfig | None = None
    """The gate; None sends every motion."""
    wire: WireConfig = WireConfig()
    """Limits and queues."""


_WEIGHT_TOLERANCE = 0.01


_ABOVE_ZERO = (
    "gate_disagreement_penalty", "wait_reward_multiplier", "training_interval", "batch_size", "min_batch_size",
    "buffer_capacity", "buffer_bytes", "lock_timeout", "shadow_decisions", "shadow_rows", "rollback_window",
    "learning_rate", "clip", "max_grad_norm",
)  # fmt: skip
_NOT_BELOW_ZERO = ("simulation_reward_weight", "actual_reward_weight", "value_coefficient", "entropy_coefficient")
_SHARES = ("discount", "trace")
_BOUNDS: tuple[tuple[tuple[str, ...], str, Callable[[float], bool], dict[str, float]], ...] = (
    (_ABOVE_ZERO, "be above 0", lambda value: value > 0, {"exclusiveMinimum": 0}),
    (_NOT_BELOW_ZERO, "not be below 0", lambda value: value >= 0, {"minimum": 0}),
    (_SHARES, "be from 0 to 1", lambda value: 0 <= value <= 1, {"minimum": 0, "maximum": 1}),
)
"""Settings, their bound in words, its check, and its JSON schema."""


def _add_bounds(schema: dict[str, Any]) -> None:
    for names, _, _, bounds in _BOUNDS:
        for name in names:
            schema["properties"][name] |= bounds


class ContinuousTrainingConfig(Config):
    """Settings of continuous training: experience buffer, background trainer, rewards, admission of versions."""

    model_config = ConfigDict(json_schema_extra=_add_bounds)

    enabled: bool = True
    """Train at all; without it experiences are not even collected."""
    store: Literal["latent", "observation"] = "latent"
    """What an experience keeps: the encoder's output, or the observation, so that the encoder is trained too."""
    train_on_wait: bool = False
    """Also learn from motions that hover: they complete with their expected reward. By default few do, because
    colliding motions fly slower (gate.slower); with gate.slower=[] each of them hovers."""
    gate_validation_enabled: bool = True
    """Ask the gate again before an experience is learned from."""
    skip_disagreed_experiences: bool = False
    """Do not learn from experiences that the gate now judges differently."""
    gate_disagreement_penalty: float = 0.5
    """Weight of the validation's reward where the gate disagrees."""
    wait_reward_multiplier: float = 0.5
    """Weight of the expected reward that completes a motion which hovers (train_on_wait)."""
    simulation_reward_weight: float = 0.3
    """Share of the simulated reward."""
    actual_reward_weight: float = 0.7
    """Share of the reward that came."""
    reward_mode: Literal["validated", "gate_signal", "actual_only"] = "validated"
    """Learn from both rewards, from the simulated one alone, or from the actual one alone."""
    training_interval: float = 1.0
    """From the start of one update to that of the next [s]."""
    batch_size: int = 32
    """Experiences of an update."""
    min_batch_size: int = 8
    """Fewer completed experiences wait."""
    buffer_capacity: int = 10_000
    """Experiences kept; the oldest go."""
    buffer_bytes: int = 2**30
    """Memory of the buffer; where it is reached the oldest go [bytes]."""
    lock_timeout: float = 5.0
    """How long a lock is waited for; then a warning, and nothing is done [s]."""
    state_interval: Annotated[int, Field(ge=1, le=1024)] = 128
    """Decisions from one stored recurrent state of a session to the next; between them states are recomputed."""
    shadow_evaluation: Annotated[int, Field(ge=1)] | Literal["off"] = "off"
    """Every so many versions one is flown beside that in service, which it follows if it is not worse; off: the
    latest serves always."""
    shadow_decisions: int = 60
    """Decisions that each of the two flies in a shadow evaluation."""
    shadow_rows: int = 8
    """Drones of a shadow evaluation."""
    rollback_window: int = 100
    """Most episodes that began before an admission, and after it, that decide on rolling back: the first 10, 20, 40, …
    after it, when they have ended."""
    learning_rate: float = 3e-4
    """Of Adam."""
    clip: float = 0.2
    """ε of the clipped importance ratio."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.003
    """Weight of the entropy."""
    max_grad_norm: float = 0.5
    """Bound of the gradient's norm."""
    discount: float = 0.99
    """γ of the rewards that follow."""
    trace: float = 0.95
    """λ of the advantages (Schulman et al. 2016)."""
    record_share: float = Field(1.0, ge=0, le=1)
    """Share of the experiences, drawn at random, that the warehouse keeps, 450 to 590 bytes each: 16 drones that decide
    ten times a second make 6 to 8 GB a day. All are learned from."""

    @model_validator(mode="after")
    def _all_errors_at_once(self) -> Self:
        faults = [
            f"{name} is {getattr(self, name)}, must {words}"
            for names, words, within, _ in _BOUNDS
            for name in names
            if not within(getattr(self, name))
        ]
        if self.min_batch_size > self.batch_size:
            faults.append(f"min_batch_size {self.min_batch_size} is above batch_size {self.batch_size}")
        if self.batch_size > self.buffer_capacity:
            faults.append(f"batch_size {self.batch_size} is above buffer_capacity {self.buffer_capacity}")
        total = self.simulation_reward_weight + self.actual_reward_weight
        if abs(total - 1.0) > _WEIGHT_TOLERANCE:
            faults.append(f"simulation_reward_weight and actual_reward_weight add up to {total:g}, must be 1 ± 0.01")
        if faults:
            raise ConfigError("; ".join(faults))
        return self


class ServeConfig(Config):
    """Settings of `navi serve`: gate and continuous training; other options are flags."""

    gate: GateConfig = GateConfig()
    """Motions are simulated before they are sent (--gate)."""
    training: ContinuousTrainingConfig = ContinuousTrainingConfig()
    """It goes on learning (--learn)."""


class ExplorerConfig(Config):
    """Settings of the explorer: manual flight through a scene."""

    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the starts."""
    azimuth_bins: int = Field(64, ge=8, le=4096)
    """Azimuth bins of the observations; those of `demos expert`, so that both may lie in one dataset."""
    elevation_bins: int = Field(16, ge=4, le=2048)
    """Elevation bins of the observations."""
    sharp_bins: tuple[int, int] = (256, 48)
    """Azimuth and elevation bins of the picture for the person where it differs from the drone's."""
    max_distance: float = Field(100.0, gt=0, le=1e5)
    """Range of the sensor, M [m]."""
    max_decisions: int = Field(6000, ge=2, le=100_000)
    """Decisions of a recorded flight at most; it is then saved and ended."""
    undo_decisions: int = Field(30, ge=1, le=10_000)
    """Decisions that one undo takes back."""
    idle_seconds: float = Field(0.5, gt=0, le=60)
    """Time without a word from the page after which the drone hovers [s]."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """The drone."""
