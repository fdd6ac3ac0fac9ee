"""Settings of the training that goes on in service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from navi_core.config.base import Config
from navi_core.errors import ConfigError

__all__ = ["ContinuousTrainingConfig"]

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
"""Settings, their bound in words, whether a value keeps it, and how a JSON schema tells it."""


def _tell_bounds(schema: dict[str, Any]) -> None:
    for names, _, _, told in _BOUNDS:
        for name in names:
            schema["properties"][name] |= told


class ContinuousTrainingConfig(Config):
    """Experience buffer, background trainer, rewards, admission of versions; every error is named at once."""

    model_config = ConfigDict(json_schema_extra=_tell_bounds)

    enabled: bool = True
    """Train at all; without it experiences are not even collected."""
    store: Literal["latent", "observation"] = "latent"
    """What an experience keeps: the encoder's output, or the observation, so that the encoder is trained too."""
    train_on_wait: bool = False
    """Also learn from motions that the gate held back: they complete with their expected reward."""
    gate_validation_enabled: bool = True
    """Ask the gate again before an experience is learned from."""
    skip_disagreed_experiences: bool = False
    """Do not learn from experiences that the gate now judges differently."""
    gate_disagreement_penalty: float = 0.5
    """Weight of the validation's reward where the gate disagrees."""
    wait_reward_multiplier: float = 0.5
    """Weight of the expected reward that completes a motion which was held back."""
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
