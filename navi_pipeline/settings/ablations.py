"""Settings of ablations."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.errors import ConfigError


class AblationConfig(Config):
    """What every cell of an ablation shares."""

    preset: str = "demo"
    """Preset, or file, of the settings that do not vary."""
    base: dict[str, object] = {}
    """Settings laid on the preset for every variant."""
    variants: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_+.-]{1,64}$")], dict[str, object]] = {}
    """Variants beside the catalogue's: what each changes, settings by section; `algorithm` names another learner."""
    steps: Count = 300_000
    """Decisions that a cell trains, summed over rows."""
    seeds: int = Field(5, ge=1, le=100)
    """Training seeds 0 … n − 1 of every variant; a verdict needs five."""
    train: tuple[str, ...] = ("rooms:0-15",)
    """Generated scenes to train in, family:seeds."""
    scenes: tuple[str, ...] = ("rooms-v1:validation",)
    """Unseen scenes that the final policies fly in, as `navi evaluate --scene`."""
    protocol: str = "quick"
    """Length of those flights: quick or full."""
    demo_episodes: int = Field(8, ge=1, le=10_000)
    """Demonstrations of each training scene, for what is cloned first."""
    demo_pilot: str = "frontier"
    """Who flies them."""
    timeout: float = Field(7200.0, gt=0, le=1e6)
    """Wall time after which a command of a cell is ended [s]."""

    @model_validator(mode="after")
    def _cells_differ(self) -> Self:
        if "algorithm" in self.base:
            raise ConfigError("the base learns by ppo; another learner is a variant, --vary NAME:algorithm=grpo")
        for who, settings in {"base": self.base, **self.variants}.items():
            if "seed" in settings:
                raise ConfigError(f"{who} sets the seed, which would make all cells one; use --seeds")
            if settings.get("algorithm") == "bc":
                raise ConfigError(f"variant {who!r}: a clone alone is no variant; `navi ablate bc+ppo` begins with one")
        return self
