"""Settings of ablations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from navi_core.config.base import Config, Count

__all__ = ["AblationConfig"]


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
    """Training seeds 0 … n − 1 of every variant; from five on "better" is said."""
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
