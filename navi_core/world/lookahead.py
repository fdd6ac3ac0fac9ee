"""Lookahead: model rollouts of held actions in the distance field, and the reward terms at their end.

The speed limiter sees the sector ahead as the first observation shows it after the turn, and never less far than before
it: the simulated flight is at least as fast as the one to come. What the reward reads of a panorama is taken from the
observation now, at a few of its bins, and from a panorama of as many bins that is cast at the end of the horizon.

On the CPU one call of C++ does it all, row by row (`csrc/step/lookahead.h`); the same is a tensor program here.
"""

import copy
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from navi_core.config import REWARD_TERMS, DynamicsConfig, EnvConfig
from navi_core.errors import ConfigError
from navi_core.kernels.native.library import Drones, Flights, Lookahead, LookaheadFlight, Observed, data_pointer
from navi_core.world.dynamics import Dynamics, limiter_bins, linear_speed
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap, FloorView
from navi_core.world.rewards import BAND_START, NEAR_DISTANCE, RewardTerms
from navi_core.world.sensor.panorama import Panorama, PanoramaReader, SphericalSensor, denormalise_depth

_NOTHING = 2.0
"""Normalised depth of a ray that misses."""


@dataclass(frozen=True)
class Start:
    """Initial states of B simulated flights: pose, velocity, scene, observation.

    Attributes:
        position: (B, 3) [m].
        yaw: (B,) [rad].
        velocity: (B, 4) of the substep before [m/s, rad/s].
        scene: (B,) int64.
        obs: (N, 3, Az, El) observations.
        place: (B,) int64 index of each flight's observation; None where there is one for each, in their order.
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
        """(B, 3, Az, El) observation of each flight."""
        return self.obs if self.place is None else self.obs[self.place]


@dataclass(frozen=True)
class Foreseen:
    """Final states of B simulated flights with held actions.

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


def depth_ahead(obs: Tensor, band_degrees: float) -> Tensor:
    """Return the (B, Az) nearest normalised depth ahead for a heading turned to each azimuth; 2 where nothing is hit.

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
    """Simulator of held actions over a number of substeps, one decision's worth at a time.

    Args:
        field: Gives the clearance; on the CPU.
        config: Dynamics of the drone.
        substeps: Physics substeps of the whole flight.
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
        legs = self._legs.tolist() if self._tracer is None else []
        drones = [config.model_copy(update={"steps_per_decision": count}) for count in legs]
        self._decisions = [Dynamics(field, drone, kernels=kernels) for drone in drones]
        self.drone = self._dynamics.for_kernels()

    def fly(self, start: Start, action: Tensor) -> Foreseen:
        """Simulate the flights with held actions to the end of the horizon.

        Args:
            start: Initial states of B flights.
            action: (B, 4) to be held, clamped to [−1, 1] here.

        Raises:
            ConfigError: An observation that is not there.
            SceneError: A scene that is not there.
        """
        if self._tracer is None:
            return self._fly_tensors(start, action)
        flights, held, foreseen, _kept = self.for_kernels(start, action)
        self._tracer.fly_ahead(self.drone, flights, held)
        return foreseen

    def for_kernels(
        self, start: Start, action: Tensor
    ) -> tuple[Flights, LookaheadFlight, Foreseen, tuple[Tensor, ...]]:
        """Build the ctypes structs and outputs of a simulated flight for the C++ kernels; arguments as `fly`.

        The last return value holds tensors that must outlive the structs.
        """
        s, rows = start, len(start)
        p, y, v = (part.detach().to(torch.float32, copy=True).contiguous() for part in (s.position, s.yaw, s.velocity))
        action, obs = (part.detach().to(torch.float32).contiguous() for part in (action, s.obs))
        place = torch.arange(rows) if s.place is None else s.place.contiguous()
        if rows and not (int(place.min()) >= 0 and int(place.max()) < len(obs)):
            raise ConfigError(f"places {int(place.min())} to {int(place.max())} of {len(obs)} observations")
        attempted, path, soon, clearance = (torch.empty_like(part) for part in (y, y, v, y))
        collided, surface = torch.empty(rows, dtype=torch.bool), self.field.rows(s.scene, rows)
        azimuths, elevations = obs.shape[2:]
        side, low, high = limiter_bins(azimuths, elevations, self.config.limiter_elevation_degrees)
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
        return flights, horizon, foreseen, (v, action, obs, place, surface, self._legs)

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


COARSE = (24, 6)
"""Azimuth and elevation bins of a lookahead's coarse panorama, cast and sampled from observations."""


@dataclass(frozen=True)
class Past:
    """Visit counts and coverage maps of N drones, on which the reward terms depend.

    Attributes:
        visits: (N, cells) int64 as of `RewardTerms`.
        seen: (N, C) bool floor as of `FloorView`.
        shares: (N, 4) starvation, near, band, forward of what each saw last.
    """

    visits: Tensor
    seen: Tensor
    shares: Tensor

    def forget(self, rows: Tensor) -> None:
        """Reset the visit counts and coverage maps of the given drones, by index (B,)."""
        self.visits[rows] = 0
        self.seen[rows] = False
        self.shares[rows] = 0.0


class FlightOutlook:
    """Predictor of end states and reward terms of held actions over a horizon.

    Args:
        field: Scenes that the drones may be in, on the CPU.
        env: The environment's observation and reward.
        drone: Flies.
        substeps: Physics substeps of the horizon.
        kernels: Ask the C++ where the field has it, else tensor operations; they agree to rounding.

    Attributes:
        maps: Reachable floor, one map a scene.

    Raises:
        SceneError: A scene without free space.
    """

    def __init__(
        self, field: Field, env: EnvConfig, drone: DynamicsConfig, substeps: int, *, kernels: bool = True
    ) -> None:
        self._tracer = field.native if kernels else None
        self._field = field
        self._decision = drone.steps_per_decision / substeps
        self._horizon = HorizonFlight(field, drone, substeps, env.max_distance, kernels=kernels)
        coarse = env.model_copy(update=dict(zip(("azimuth_bins", "elevation_bins"), COARSE)))
        self._sensor = SphericalSensor(field, *COARSE, env.max_distance)
        # Without kernels: several threads may look at once.
        self._reader = PanoramaReader(coarse, field.device)
        self._eyes = self._reader.for_kernels(self._sensor.directions)
        reward = env.reward
        self.maps = [
            FloorMap(field, i, reward.view_cell, env.floor_clearance, env.dynamics.height_limit)
            for i in range(field.num_scenes)
        ]
        self._view = FloorView(self.maps, 0, self._reader.fan, reward.view_radius, field.device)
        self._rewards = RewardTerms(field, 0, reward, env.dynamics.max_speed[0])
        self._log_range = math.log1p(env.max_distance)
        band = self._rewards.band(torch.arange(field.num_scenes))
        self._near, self._start = (math.log1p(metres) / self._log_range for metres in (NEAR_DISTANCE, BAND_START))
        self._band = band.log1p() / self._log_range

    def past(self, drones: int) -> Past:
        """Allocate empty visit counts and coverage maps for N drones."""
        return Past(
            self._rewards.visits.new_zeros(drones, self._rewards.visits.shape[1]),
            self._view.seen.new_zeros(drones, self._view.seen.shape[1]),
            torch.zeros(drones, 4),
        )

    def look(self, position: Tensor, yaw: Tensor, scene: Tensor) -> Panorama:
        """Ray-cast a coarse panorama from each of B poses: (B, 3) [m], (B,) [rad], (B,) int64."""
        hits = self._sensor.cast(position.contiguous(), yaw.contiguous(), scene.to(torch.int32))
        return self._reader.read(hits, self._rewards.band(scene))

    def remember(self, past: Past, rows: Tensor, start: Start) -> None:
        """Update visit counts and coverage maps of the given drones from their current poses and observations.

        Args:
            past: Memory of N drones, updated.
            rows: (B,) int64 numbers of the drones, each at most once.
            start: Their poses and observations.
        """
        if self._tracer is None:
            return self._remember_tensors(past, rows, start)
        scene = self._field.rows(start.scene, len(start)).to(torch.int64)
        obs = start.seen.detach().to(torch.float32).contiguous()
        position, yaw = (part.detach().to(torch.float32).contiguous() for part in (start.position, start.yaw))
        rows, bins = rows.contiguous(), _samples(*obs.shape[2:])
        observed = Observed(obs=data_pointer(obs, torch.float32), azimuths=obs.shape[2], elevations=obs.shape[3])
        drones = _drones(rows, scene, position, yaw)
        return self._tracer.remember(self._for_kernels(past, bins), drones, observed)

    def fly(self, past: Past, rows: Tensor, start: Start, action: Tensor) -> tuple[Foreseen, Tensor]:
        """Simulate held actions to the horizon and return end states and reward terms; `past` stays unchanged.

        Args:
            past: Memory of N drones, start included.
            rows: (B,) int64 numbers of the drones.
            start: Initial states of the B flights.
            action: (B, 4) to be held, clamped to [−1, 1] here.

        Returns:
            Final states, and the (B, 10) reward terms in the order of `REWARD_TERMS`; of the terms that
            grow with the path, one decision's share.
        """
        if self._tracer is None:
            return self._fly_tensors(past, rows, start, action)
        flights, held, foreseen, _kept = self._horizon.for_kernels(start, action)
        rows, scene = rows.contiguous(), start.scene.to(torch.int64).contiguous()
        terms = torch.empty(len(rows), len(REWARD_TERMS))
        drones = _drones(rows, scene, foreseen.position, foreseen.yaw)
        outlook = self._for_kernels(past, _samples(*start.obs.shape[2:]))
        self._tracer.lookahead_terms(outlook, self._horizon.drone, flights, held, drones, terms)
        return foreseen, terms

    def foresee(self, start: Start, action: Tensor) -> Foreseen:
        """Simulate held actions to the horizon without reward terms; arguments as `fly`."""
        return self._horizon.fly(start, action)

    def _for_kernels(self, past: Past, bins: tuple[Tensor, Tensor]) -> Lookahead:
        assert self._tracer is not None
        rewards = self._rewards.for_kernels()
        rewards.visits = data_pointer(past.visits, torch.int64)
        azimuths, elevations = (data_pointer(part, torch.int64) for part in bins)
        return Lookahead(
            scenes=self._tracer.scenes(), sensor=self._eyes, floors=self._view.for_kernels(), rewards=rewards,
            seen=data_pointer(past.seen, torch.bool), fractions=data_pointer(past.shares, torch.float32),
            azimuths=azimuths, elevations=elevations, near=self._near, start=self._start,
            band=data_pointer(self._band, torch.float32), log_range=self._log_range, decision=self._decision,
        )  # fmt: skip

    def _remember_tensors(self, past: Past, rows: Tensor, start: Start) -> None:
        s, visits, seen = start, past.visits[rows], past.seen[rows]
        past.shares[rows], reach = self._sight(s.seen, s.scene)
        self._view.mark(s.position, s.yaw, reach, s.scene, seen)
        self._counting(visits).explore(s.position, s.yaw, s.scene, torch.ones_like(s.scene))
        past.seen[rows], past.visits[rows] = seen, visits

    def _fly_tensors(self, past: Past, rows: Tensor, start: Start, action: Tensor) -> tuple[Foreseen, Tensor]:
        scene, motion = start.scene, self._horizon.fly(start, action)
        position, yaw = motion.position, motion.yaw
        then = self.look(position, yaw, scene)
        # Indexing has copied what is counted in here.
        terms = self._counting(past.visits[rows]).compute(
            position=position,
            moved=motion.path * self._decision,
            yaw=yaw,
            scene_index=scene,
            stamp=torch.ones_like(scene),
            clearance=self._field.distance(position, scene),
            clearance_before=motion.clearance,
            now=then.fractions,
            before=past.shares[rows],
            collided=motion.collided,
            attempted_speed=motion.attempted_speed,
            view_gain=self._view.mark(position, yaw, then.reach, scene, past.seen[rows]),
        )
        return motion, terms

    def _counting(self, visits: Tensor) -> RewardTerms:
        """Return a shallow copy of the reward terms that uses the given (B, cells) visit counts."""
        rewards = copy.copy(self._rewards)
        rewards.visits = visits
        return rewards

    def _sight(self, obs: Tensor, scene: Tensor) -> tuple[Tensor, Tensor]:
        """Reduce observations (B, 3, Az, El) to the (B, 4) structure fractions and the (B, 24) horizontal reach [m]."""
        eyes, coarse = self._eyes, sampled(obs)
        depth, hit = coarse[:, 0], coarse[:, 2] > 0
        band = hit & (depth >= self._start) & (depth <= self._band[scene][:, None, None])
        ahead = torch.cat([band[:, : eyes.ahead], band[:, COARSE[0] - eyes.ahead :]], dim=1)
        counts = torch.stack(
            [part.flatten(1).sum(dim=1) for part in (hit, hit & (depth <= self._near), band, ahead)], 1
        )
        shares = counts / torch.tensor([*[COARSE[0] * COARSE[1]] * 3, 2 * eyes.ahead * COARSE[1]])
        shares[:, 0] = 1.0 - shares[:, 0]
        longest = depth[:, :, eyes.horizon_first : eyes.horizon_last].amax(dim=2).clamp(min=0.0)
        # In double and rounded once, as the kernels take it: their mathematical library is another one.
        metres = torch.expm1(longest.to(torch.float64) * self._log_range).to(torch.float32)
        return shares, (metres * eyes.horizon_cos).clamp(max=eyes.view_radius)


def _drones(rows: Tensor, scene: Tensor, position: Tensor, yaw: Tensor) -> Drones:
    """Build the ctypes struct of B drones for the C++ kernels; valid as long as the tensors."""
    return Drones(
        rows=data_pointer(rows, torch.int64), scene=data_pointer(scene, torch.int64),
        position=data_pointer(position, torch.float32), yaw=data_pointer(yaw, torch.float32), count=len(rows),
    )  # fmt: skip


@lru_cache
def _samples(azimuth_bins: int, elevation_bins: int) -> tuple[Tensor, Tensor]:
    """Return the (24,) azimuth and (6,) elevation bins that are nearest in angle to the coarse grid's."""
    azimuth = (torch.arange(COARSE[0]) * azimuth_bins + COARSE[0] // 2) // COARSE[0] % azimuth_bins
    elevation = (torch.linspace(0, 1, COARSE[1]) * (elevation_bins - 1)).round().to(torch.int64)
    return azimuth, elevation


def sampled(obs: Tensor, place: Tensor | None = None) -> Tensor:
    """Downsample observations to the coarse (B, 3, 24, 6) bins, nearest in angle.

    Args:
        obs: (N, 3, Az, El).
        place: (B,) which of them; None for all.
    """
    azimuth, elevation = _samples(*obs.shape[2:])
    coarse = obs[:, :, azimuth[:, None], elevation]
    return coarse if place is None else coarse[place]
