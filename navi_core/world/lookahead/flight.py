"""Lookahead flight: held motions of several decisions, flown in the distance field from one observation.

The speed limiter sees the sector ahead as that observation shows it after the turn, and never less far than before
it: the flight foreseen is at least as fast as the one to come.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from navi_core.config import DynamicsConfig
from navi_core.errors import ConfigError
from navi_core.kernels.structs import Drone, Flights, LookaheadFlight, data_pointer
from navi_core.world.dynamics import Dynamics, limiter_bins, linear_speed
from navi_core.world.field import Field
from navi_core.world.sensor.panorama import denormalise_depth

_NOTHING = 2.0
"""Normalised depth where nothing is hit."""


@dataclass(frozen=True)
class Start:
    """Where B flights begin.

    Attributes:
        position: (B, 3) [m].
        yaw: (B,) [rad].
        velocity: (B, 4) of the substep before [m/s, rad/s].
        scene: (B,) int64.
        obs: (N, 3, Az, El) observations.
        place: (B,) int64 which of them each sees; None where there is one for each, in their order.
    """

    position: Tensor
    yaw: Tensor
    velocity: Tensor
    scene: Tensor
    obs: Tensor
    place: Tensor | None = None

    def __len__(self) -> int:
        return len(self.yaw)

    @property
    def seen(self) -> Tensor:
        """(B, 3, Az, El), what each sees."""
        return self.obs if self.place is None else self.obs[self.place]


@dataclass(frozen=True)
class Foreseen:
    """Where B held actions lead.

    Attributes:
        position: (B, 3) at the end [m].
        yaw: (B,) at the end [rad].
        velocity: (B, 4) after one decision [m/s, rad/s].
        collided: (B,) bool, a collision on the way.
        attempted_speed: (B,) largest linear speed of a reverted substep [m/s]; 0 without collision.
        path: (B,) length of the way [m].
        clearance: (B,) distance to the surface where the flight begins [m].
    """

    position: Tensor
    yaw: Tensor
    velocity: Tensor
    collided: Tensor
    attempted_speed: Tensor
    path: Tensor
    clearance: Tensor


@dataclass(frozen=True)
class KernelFlight:
    """A flight as the C++ kernels take it.

    Attributes:
        drone: Of the flight.
        flights: Where they begin; the kernels write where they lead.
        horizon: What limits them, and how long they last.
        scene: (B,) int64.
        foreseen: What the kernels write.
        kept: What the structs point to beside that; they are valid as long as this.
    """

    drone: Drone
    flights: Flights
    horizon: LookaheadFlight
    scene: Tensor
    foreseen: Foreseen
    kept: tuple[Tensor, ...]


def depth_ahead(obs: Tensor, band_degrees: float) -> Tensor:
    """Return (B, Az) the nearest normalised depth ahead of a heading turned to each azimuth; 2 where nothing is hit.

    Args:
        obs: (B, 3, Az, El) normalised depth, semantic id, valid.
        band_degrees: Half-width of the limiter's elevation band [degrees].
    """
    azimuths, elevations = obs.shape[2:]
    side, low, high = limiter_bins(azimuths, elevations, band_degrees)
    nearest = torch.where(obs[:, 2] > 0, obs[:, 0], _NOTHING)[:, :, low:high].amin(dim=2)
    around = torch.cat([nearest[:, -side:], nearest, nearest[:, : side - 1]], dim=1)
    return around.unfold(1, 2 * side, 1).amin(dim=2)


class HorizonFlight:
    """Flies held actions over a number of substeps, a decision's worth of them at a time.

    Args:
        field: Gives the clearance; on the CPU.
        config: Of the drone.
        substeps: Of the whole flight.
        max_distance: Range of the observations [m].
        kernels: Fly by one call of C++ where the field has it, else decision by decision; they agree to rounding.
    """

    def __init__(
        self, field: Field, config: DynamicsConfig, substeps: int, max_distance: float, *, kernels: bool = True
    ) -> None:
        whole, rest = divmod(substeps, config.steps_per_decision)
        self._legs = torch.tensor([config.steps_per_decision] * whole + [rest] * (rest > 0))
        self._tracer = field.native if kernels else None
        self.field, self.config = field, config
        self._max_distance = max_distance
        self._dynamics = Dynamics(field, config)
        self._decisions: Sequence[Dynamics] = ()
        if self._tracer is None:
            self._decisions = [
                Dynamics(field, config.model_copy(update={"steps_per_decision": count}), kernels=kernels)
                for count in self._legs.tolist()
            ]
        self._bins: dict[tuple[int, int], tuple[int, int, int]] = {}

    def fly(self, start: Start, action: Tensor) -> Foreseen:
        """Fly to the end.

        Args:
            start: Of B flights.
            action: (B, 4) to be held, clamped to [−1, 1] here.

        Raises:
            ConfigError: An observation that is not there.
            SceneError: A scene that is not there.
        """
        if self._tracer is None:
            return self._fly_tensors(start, action)
        flight = self.for_kernels(start, action)
        self._tracer.fly_ahead(flight.drone, flight.flights, flight.horizon)
        return flight.foreseen

    def for_kernels(self, start: Start, action: Tensor) -> KernelFlight:
        """Return what the C++ kernels are to know of a flight; arguments as `fly`."""
        s, rows = start, len(start)
        p, y, v = (part.detach().to(torch.float32, copy=True).contiguous() for part in (s.position, s.yaw, s.velocity))
        action, obs = (part.detach().to(torch.float32).contiguous() for part in (action, s.obs))
        place = torch.arange(rows) if s.place is None else s.place.contiguous()
        if rows and not (int(place.min()) >= 0 and int(place.max()) < len(obs)):
            raise ConfigError(f"places {int(place.min())} to {int(place.max())} of {len(obs)} observations")
        attempted, path, soon, clearance = (torch.empty_like(part) for part in (y, y, v, y))
        collided, surface = torch.empty(rows, dtype=torch.bool), self.field.rows(s.scene, rows)
        azimuths, elevations = obs.shape[2:]
        if (azimuths, elevations) not in self._bins:
            bins = limiter_bins(azimuths, elevations, self.config.limiter_elevation_degrees)
            self._bins[azimuths, elevations] = bins
        side, low, high = self._bins[azimuths, elevations]
        real = {"action": action, "position": p, "yaw": y, "velocity": v, "attempted": attempted}
        flights = Flights(
            **{name: data_pointer(part, torch.float32) for name, part in real.items()},
            scene=data_pointer(surface, torch.int32), collided=data_pointer(collided, torch.bool), rows=rows,
        )  # fmt: skip
        horizon = LookaheadFlight(
            obs=data_pointer(obs, torch.float32), obs_index=data_pointer(place, torch.int64),
            azimuths=azimuths, elevations=elevations,
            side=side, low=low, high=high, log_range=math.log1p(self._max_distance),
            legs=data_pointer(self._legs, torch.int64), count=len(self._legs),
            path=data_pointer(path, torch.float32), soon=data_pointer(soon, torch.float32),
            clearance=data_pointer(clearance, torch.float32),
        )  # fmt: skip
        foreseen = Foreseen(p, y, soon, collided, attempted, path, clearance)
        kept = (v, action, obs, place, surface, self._legs)
        scene = s.scene.to(torch.int64).contiguous()
        return KernelFlight(self._dynamics.for_kernels(), flights, horizon, scene, foreseen, kept)

    def _fly_tensors(self, start: Start, action: Tensor) -> Foreseen:
        ahead = depth_ahead(start.seen, self.config.limiter_elevation_degrees)
        scene, yaw = start.scene, start.yaw
        bins, p, y, v, soon = ahead.shape[1], start.position, yaw, start.velocity, start.velocity
        collided, attempted, path = torch.zeros(len(p), dtype=torch.bool), torch.zeros(len(p)), torch.zeros(len(p))
        for number, dynamics in enumerate(self._decisions):
            # Azimuths run clockwise, yaw counter-clockwise.
            turn = ((yaw - y).to(torch.float64) * (bins / (2.0 * math.pi))).round().to(torch.int64) % bins
            seen = torch.maximum(ahead[:, 0], ahead.gather(1, turn[:, None])[:, 0])
            front = torch.where(seen > 1.0, torch.inf, denormalise_depth(seen, self._max_distance))
            motion = dynamics.step(p, y, v, action, front, scene)
            path += linear_speed(motion.position - p)
            collided |= motion.collided
            attempted = torch.maximum(attempted, motion.attempted_speed)
            p, y, v = motion.position, motion.yaw, motion.velocity
            soon = soon if number else v
        return Foreseen(p, y, soon, collided, attempted, path, self.field.distance(start.position, scene))
