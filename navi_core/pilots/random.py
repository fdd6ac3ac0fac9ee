"""The random pilot: the floor under every comparison."""

from typing import Unpack

import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.pilots.draws import draw_uniform
from navi_core.pilots.pilot import Pilot, PilotSettings


class RandomPilot(Pilot):
    """Draws every axis uniformly from [−1, 1] and keeps the draw for `hold` decisions.

    With `hold=1` (pilot "random") commands are independent: the drone trembles about its start. With `hold=10`
    (pilot "random-held", one second) it travels farther and collides far more often.

    Args:
        hold: Decisions for which one draw is kept.
        settings: Those of `Pilot`.
    """

    name = "random"

    def __init__(
        self,
        *,
        hold: int = 1,
        **settings: Unpack[PilotSettings],
    ) -> None:
        super().__init__(**settings)
        if hold < 1:
            raise ConfigError(f"hold {hold} of pilot {self.name!r} must be at least 1 decision")
        self.hold = hold

    def _decide(self, obs: Tensor) -> Tensor:  # noqa: ARG002 (the interface's arguments)
        draw = torch.div(self._step, self.hold, rounding_mode="floor")
        return 2.0 * draw_uniform(self.seed, self._keys, self._episode, draw, lanes=range(4)) - 1.0
