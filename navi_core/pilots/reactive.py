"""Reactive (map-free) pilots: random, forward-plus, farthest ray, wall following; and recovery of stuck drones.

None has a map. Forward-plus is named after the baseline of embodied navigation (Savva et al. 2019) that goes forward
and turns on contact; with a depth sensor it turns *before* contact.

Recovery is for a drone that does not leave its spot. Where a wall blocks the typical action of a policy, the drone sees
the same again, its recurrent state comes to rest, and it pushes against the wall to its end. Sampled flights come free
by themselves, which is why training does not unlearn it; flights by the typical action need this.
"""

import math
from typing import Unpack

import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.pilots.pilot import Pilot, PilotSettings, azimuths, draw_normal, draw_uniform, level_profile


class RandomPilot(Pilot):
    """Random policy: draws every axis uniformly from [−1, 1] and keeps the draw for `hold` decisions.

    With `hold=1` (pilot "random") commands are independent: the drone trembles about its start. With `hold=10`
    (pilot "random-held", one second) it travels farther and collides far more often.

    Args:
        hold: Decisions for which one draw is kept.
        settings: Those of `Pilot`.
    """

    name = "random"
    inputs = "none"

    def __init__(
        self,
        *,
        hold: int = 1,
        **settings: Unpack[PilotSettings],
    ) -> None:
        super().__init__(**settings)
        self._require(hold=(hold, 1, math.inf))
        self.hold = hold

    def _decide(self, obs: Tensor) -> Tensor:  # noqa: ARG002 (the interface's arguments)
        draw = torch.div(self._step, self.hold, rounding_mode="floor")
        return 2.0 * draw_uniform(self.seed, self._keys, self._episode, draw, lanes=range(4)) - 1.0


_SIDE, _DRIFT = range(0, 1), range(1, 2)
"""Lanes of a decision's random numbers."""


class ForwardPlusPilot(Pilot):
    """Forward-and-turn policy: flies ahead; if the front sector is closer than `threshold`, turns until it is clear.

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
            drift_hold=(drift_hold, 1, math.inf),
        )
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
        turn = torch.where(free, self.drift * (2.0 * drift - 1.0), self.turn_rate * self._turning)
        return _forward_and_turn(torch.where(free, self.speed, 0.0), turn)

    def _look(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Measure the nearest distance ahead and the mean free distances of the left and right halves, (B,) each [m].

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


class FarthestRayPilot(Pilot):
    """Reactive policy that turns to the azimuth with the longest free range and flies along it; no map, no memory.

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
        turn_cost: Discount of a direction behind, in [0, 1].
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
        pace = ((ahead - self.dynamics.radius) / self.braking).clamp(0.0, 1.0)
        # Positive yaw turns to the left, positive azimuths lie to the right.
        return _forward_and_turn(
            self.speed * pace * torch.cos(heading).clamp(min=0.0), (-heading / turn).clamp(-1.0, 1.0)
        )


class WallFollowingPilot(Pilot):
    """Wall-following policy; the side is drawn at the start of each episode.

    The distance to the wall is the least one between abeam and 60° ahead of it, so that a corner is met in time.
    Without a wall within reach it flies on in an arc towards where the wall was, through the door.

    Tuning of the defaults, on training scenes alone: 30 settings drawn at random (distance 0.4–1.6 m, gain 0.3–3,
    threshold 0.6–1.6 m, speed 0.3–1, arc 0.15–1, sector 15–45°), generated apartments 0–3, 3 starts, 200 decisions at
    64×16; the best two again on apartments 4–9. C_vis AUC 48 % and 42 % without a collision; the hand-set one that it
    replaced had 32 %. Furniture leads it around tables for long; walls alone are followed through every door.

    Args:
        distance: Distance kept to the wall [m].
        gain: Yaw command per metre of error.
        threshold: Front distance below which it turns away from the wall on the spot [m].
        speed: Forward command along the wall, in (0, 1].
        arc: Yaw command towards a wall that has ended, in (0, 1].
        sector_degrees: Half-width of the front sector [degrees].
        band_degrees: Elevations from the horizon that count as in the way [degrees].
        settings: Those of `Pilot`.
    """

    name = "wall-following"

    def __init__(
        self,
        *,
        distance: float = 0.65,
        gain: float = 1.3,
        threshold: float = 1.3,
        speed: float = 0.9,
        arc: float = 0.9,
        sector_degrees: float = 20.0,
        band_degrees: float = 20.0,
        **settings: Unpack[PilotSettings],
    ) -> None:
        super().__init__(**settings)
        self._require(
            distance=(distance, 0.1, 10.0),
            gain=(gain, 0.0, 20.0),
            threshold=(threshold, 0.1, 10.0),
            speed=(speed, 0.01, 1.0),
            arc=(arc, 0.01, 1.0),
            sector_degrees=(sector_degrees, 0.0, 90.0),
            band_degrees=(band_degrees, 0.0, 90.0),
        )
        self.distance, self.gain, self.threshold = distance, gain, threshold
        self.speed, self.arc = speed, arc
        self.sector_degrees, self.band_degrees = sector_degrees, band_degrees

    def _decide(self, obs: Tensor) -> Tensor:
        profile = level_profile(obs, self.max_distance, self.band_degrees)
        angle = azimuths(profile.shape[1], obs.device)
        zero = torch.zeros_like(self._step)
        draw = draw_uniform(self.seed, self._keys, self._episode, zero, lanes=_SIDE)[:, 0]
        # +1: the wall is to the right, where azimuths are positive.
        side = torch.where(draw < 0.5, 1.0, -1.0)
        front = profile[:, angle.abs() <= math.radians(self.sector_degrees) + 1e-4].amin(dim=1)
        beside = (angle.abs() >= math.radians(30)) & (angle.abs() <= math.radians(100))
        right = profile[:, beside & (angle > 0)].amin(dim=1)
        left = profile[:, beside & (angle < 0)].amin(dim=1)
        wall = torch.where(side > 0, right, left)
        # Positive yaw turns to the left, away from a wall on the right.
        follow = (self.gain * (self.distance - wall)).clamp(-self.arc, self.arc) * side
        blocked = front < self.threshold
        pace = ((front - self.dynamics.radius) / (2.0 * self.threshold)).clamp(0.0, 1.0)
        return _forward_and_turn(torch.where(blocked, 0.0, self.speed * pace), torch.where(blocked, side, follow))


def _forward_and_turn(forward: Tensor, turn: Tensor) -> Tensor:
    """Build actions (B, 4) from forward and yaw commands (B,)."""
    still = torch.zeros_like(forward)
    return torch.stack([forward, still, still, turn], dim=1)


PATIENCE = 0.5
"""Time on one spot after which a drone is stuck [s]."""
SPOT = 0.1
"""Radius of a spot [m]."""
SPOT_TURN = 0.1
"""Largest turn of a drone that counts as staying on the spot [rad]."""
AWAY = 1.0
"""Distance from the spot at which a stuck drone is free [m]."""
DISTURBANCE = 1.0
"""Standard deviation of the action noise of stuck drones, vertical axis excepted, as a share of the limits."""


class Recovery:
    """Recovery behaviour: perturbs the actions of stuck drones until they are free; others pass unchanged.

    Args:
        rows: Drones R.
        decision_hz: Decisions a second.
        seed: Seed of the disturbances, which are functions of seed, key and decision alone.

    Attributes:
        stuck: (R,) bool, drones whose last actions were disturbed.
    """

    def __init__(self, rows: int, decision_hz: float, seed: int = 0) -> None:
        self._seed, self._patience = seed, max(1, round(PATIENCE * decision_hz))
        self._spot = torch.zeros(rows, 4, dtype=torch.float64)
        self._still = torch.zeros(rows, dtype=torch.int64)
        self.stuck = torch.zeros(rows, dtype=torch.bool)

    def act(
        self, action: Tensor, pose: Tensor, begins: Tensor, keys: Tensor, step: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Filter the policy's actions of some drones: perturb those of stuck ones.

        Args:
            action: (n, 4) actions of the policy, as shares of the limits.
            pose: (n, 4) x, y, z [m] and yaw [rad] at which it was decided.
            begins: (n,) bool, a flight begins.
            keys: (n,) int64 random keys of the disturbances.
            step: (n,) int64, number of the decision.
            rows: (n,) which drones they are; all of them where it is None.

        Returns:
            (n, 4); clamped to [−1, 1] where it is disturbed.
        """
        which = slice(None) if rows is None else rows
        here, spot, still = pose.to(torch.float64), self._spot[which], self._still[which]
        away = (here[:, :3] - spot[:, :3]).norm(dim=1)
        turned = torch.remainder(here[:, 3] - spot[:, 3] + math.pi, 2.0 * math.pi).sub(math.pi).abs()
        stays = (away <= SPOT) & (turned <= SPOT_TURN) & ~begins
        still = torch.where(stays, still + 1, torch.zeros_like(still))
        stuck = (self.stuck[which] & (away < AWAY) & ~begins) | (still >= self._patience)
        # A stuck drone keeps the spot that it must leave.
        self._spot[which] = torch.where((stays | stuck)[:, None], spot, here)
        self._still[which], self.stuck[which] = still, stuck
        if not bool(stuck.any()):
            return action
        noise = DISTURBANCE * draw_normal(self._seed, keys, torch.zeros_like(keys), step, axes=4)
        noise[:, 1] = 0.0
        return torch.where(stuck[:, None], (action + noise.to(action)).clamp(-1.0, 1.0), action)
