"""The sections that `navi serve --set` takes."""

from __future__ import annotations

from navi_core.config.base import Config
from navi_core.config.continuous import ContinuousTrainingConfig
from navi_core.config.service import GateConfig

__all__ = ["ServeConfig"]


class ServeConfig(Config):
    """Gate and learning of a service; what else it needs has flags of its own."""

    gate: GateConfig = GateConfig()
    """Motions are simulated before they are sent (--gate)."""
    training: ContinuousTrainingConfig = ContinuousTrainingConfig()
    """It goes on learning (--learn)."""
