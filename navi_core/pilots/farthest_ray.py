"""The farthest-ray pilot: fly where the way is longest, as wide as the drone needs it."""

import math
from typing import Unpack

import torch
from torch import Tensor

from navi_core.pilots.pilot import Pilot, PilotSettings
from navi_core.pilots.scan import azimuths, level_profile


class FarthestRayPilot(Pilot):
    """Turns to the azimuth with the longest way and flies along it; it has no map and no memory.

    The length of a way is the least horizontal distance over a window of ±`window_degrees` and a band of elevations.
    Straight on is preferred: a direction at angle α counts `1 − turn_cost·|α|/π` of its length. Speed is `speed` times
    the length ahead over `braking`, times the cosine of the angle that is left to turn.

    Tuning of the defaults, on training scenes alone: 30 settings drawn at random (window 6–30°, band 5–35°, turn_cost
    0.2–1, braking 0.8–4 m, reach 3–15 m, speed 0.5–1), generated apartments 0–3, 3 starts, 200 decisions at 64×16; the
    best three again on apartments 4–9. Narrow windows fly into door frames (48–396 collisions a minute); of those
    without a collision on either set this one sees most, C_vis AUC 50 % and 48 % (forward-plus 53 % and 52 %).

    Args:
        window_degrees: Half-width over which a way must be free [degrees].
        band_degrees: Elevations from the horizon that count as in the way [degrees].
        turn_cost: What turning round costs, in [0, 1].
        braking: Length ahead below which it slows [m].
        reach: Length beyond which a way counts no further [m].
        speed: Largest forward command, in (0, 1].
        settings: Those of `Pilot`.
    """

    name = "farthest-ray"

    def __init__(
        self,
        *,
        window_degrees: float = 21.0,
        band_degrees: float = 22.0,
        turn_cost: float = 0.77,
        braking: float = 2.0,
        reach: float = 8.0,
        speed: float = 0.85,
        **settings: Unpack[PilotSettings],
    ) -> None:
        super().__init__(**settings)
        self._require(
            window_degrees=(window_degrees, 0.0, 90.0),
            band_degrees=(band_degrees, 0.0, 90.0),
            turn_cost=(turn_cost, 0.0, 1.0),
            braking=(braking, 0.1, 20.0),
            reach=(reach, 0.5, 100.0),
            speed=(speed, 0.01, 1.0),
        )
        self.window_degrees, self.band_degrees, self.turn_cost = window_degrees, band_degrees, turn_cost
        self.braking, self.reach, self.speed = braking, reach, speed

    def _decide(self, obs: Tensor) -> Tensor:
        profile = level_profile(obs, self.max_distance, self.band_degrees).clamp(max=self.reach)
        bins = profile.shape[1]
        half = round(self.window_degrees / 360.0 * bins)
        free = torch.stack([profile.roll(shift, dims=1) for shift in range(-half, half + 1)]).amin(dim=0)
        angle = azimuths(bins, obs.device)
        worth = free * (1.0 - self.turn_cost * angle.abs() / math.pi)
        heading = angle[worth.argmax(dim=1)]
        turn = self.dynamics.max_yaw_rate * self.dynamics.decision_seconds
        ahead = free[:, 0]
        actions = torch.zeros(obs.shape[0], 4, device=obs.device)
        pace = ((ahead - self.dynamics.radius) / self.braking).clamp(0.0, 1.0)
        actions[:, 0] = self.speed * pace * torch.cos(heading).clamp(min=0.0)
        # Positive yaw turns to the left, positive azimuths lie to the right.
        actions[:, 3] = (-heading / turn).clamp(-1.0, 1.0)
        return actions
