"""The forward-plus pilot: fly ahead, and turn towards the freer half when the way is blocked.

Named after the baseline of embodied navigation (Savva et al. 2019) that goes forward and turns on contact; with a
depth sensor it turns *before* contact. It has no map and no memory but the side that it is turning to.
"""

import math
from typing import Unpack

import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.pilots.draws import draw_uniform
from navi_core.pilots.pilot import Pilot, PilotSettings
from navi_core.pilots.scan import azimuths, level_profile

_SIDE, _DRIFT = range(0, 1), range(1, 2)
"""Lanes of a decision's random numbers."""


class ForwardPlusPilot(Pilot):
    """Flies ahead; when the front sector is closer than `threshold` it turns until the sector is clear.

    The side is the half (left or right) with the larger mean free distance, the other one with probability
    `flip`; it is held until the sector is freer than `clear`. While flying ahead the heading drifts by a random
    yaw command that is held for `drift_hold` decisions. `flip` and `drift` break the closed loops that a
    rule without memory otherwise flies for ever.

    Tuning of the defaults, on training scenes alone: 45 settings drawn at random (threshold 0.7–1.5 m, clear
    0.2–1.2 m more, sector 15–40°, speed 0.6–1, turn rate 0.3–1, flip 0–0.25, drift 0–0.3) on generated apartments
    0–5, 5 starts, 400 decisions at 64×16; the best four again on apartments 6–11. C_vis AUC ranged from 18 to 62 %;
    the chosen setting has 61 % and 68 % without a collision, the hand-set one it replaced 42 % and 46 %, random
    23 % and 24 %. Narrow sectors (15°) get stuck at door frames (19–440 collisions a minute).

    Args:
        threshold: Front distance under which a turn begins [m].
        clear: Front distance above which a turn ends [m].
        sector_degrees: Half-width of the front sector [degrees].
        band_degrees: Elevations from the horizon that count as in the way [degrees].
        speed: Forward command while the way is free, in (0, 1].
        turn_rate: Yaw command of a turn, in (0, 1].
        flip: Probability of turning to the less free side.
        drift: Largest yaw command of the random drift, in [0, 1].
        drift_hold: Decisions for which one drift command is kept.
        settings: Those of `Pilot`.
    """

    name = "forward-plus"

    _HORIZON = 5.0
    """Distance beyond which a half counts no further as freer [m]."""

    def __init__(
        self,
        *,
        threshold: float = 1.5,
        clear: float = 1.7,
        sector_degrees: float = 20.0,
        band_degrees: float = 20.0,
        speed: float = 1.0,
        turn_rate: float = 0.8,
        flip: float = 0.0,
        drift: float = 0.1,
        drift_hold: int = 10,
        **settings: Unpack[PilotSettings],
    ) -> None:
        super().__init__(**settings)
        if not 0 < threshold <= clear:
            raise ConfigError(f"forward-plus needs 0 < threshold ≤ clear, not threshold {threshold}, clear {clear}")
        self._require(
            sector_degrees=(sector_degrees, 0.0, 90.0),
            band_degrees=(band_degrees, 0.0, 90.0),
            speed=(speed, 0.0, 1.0),
            turn_rate=(turn_rate, 0.0, 1.0),
            flip=(flip, 0.0, 1.0),
            drift=(drift, 0.0, 1.0),
        )
        if drift_hold < 1:
            raise ConfigError(f"forward-plus: drift_hold {drift_hold} must be at least 1 decision")
        self.threshold = threshold
        self.clear = clear
        self.sector_degrees = sector_degrees
        self.band_degrees = band_degrees
        self.speed = speed
        self.turn_rate = turn_rate
        self.flip = flip
        self.drift = drift
        self.drift_hold = drift_hold
        self._turning = torch.zeros(0)

    def _allocate(self, batch: int, device: torch.device) -> None:
        self._turning = torch.zeros(batch, device=device)

    def _forget(self, rows: Tensor) -> None:
        self._turning = torch.where(rows, 0.0, self._turning)

    def _decide(self, obs: Tensor) -> Tensor:
        front, left, right = self._look(obs)
        draw = draw_uniform(self.seed, self._keys, self._episode, self._step, lanes=_SIDE)[:, 0]
        # Positive yaw turns counter-clockwise seen from above: to the left.
        freer = torch.where(left >= right, 1.0, -1.0)
        side = torch.where(draw < self.flip, -freer, freer)
        begins = torch.where(front < self.threshold, side, 0.0)
        holds = torch.where(front > self.clear, 0.0, self._turning)
        self._turning = torch.where(self._turning == 0, begins, holds)

        held = torch.div(self._step, self.drift_hold, rounding_mode="floor")
        drift = draw_uniform(self.seed, self._keys, self._episode, held, lanes=_DRIFT)[:, 0]
        free = self._turning == 0
        actions = torch.zeros(obs.shape[0], 4, device=obs.device)
        actions[:, 0] = torch.where(free, self.speed, 0.0)
        actions[:, 3] = torch.where(free, self.drift * (2.0 * drift - 1.0), self.turn_rate * self._turning)
        return actions

    def _look(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the nearest distance ahead and the mean free distance of the left and right halves, (B,) each [m].

        Distances are horizontal, the nearest over the elevation band; bins to the right have azimuths in (0, π).
        """
        profile = level_profile(obs, self.max_distance, self.band_degrees)
        azimuth = azimuths(obs.shape[2], obs.device)
        front = profile[:, azimuth.abs() <= math.radians(self.sector_degrees) + 1e-4].amin(dim=1)
        reach = profile.clamp(max=self._HORIZON)
        ahead = azimuth.abs() <= math.pi / 2 + 1e-4
        right = reach[:, ahead & (azimuth > 1e-4)].mean(dim=1)
        left = reach[:, ahead & (azimuth < -1e-4)].mean(dim=1)
        return front, left, right
