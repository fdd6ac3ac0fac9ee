"""Lookahead rewards: the reward terms at the end of held motions, for drones with a remembered trajectory.

What the reward reads of a panorama is taken from the observation now, at a few of its bins, and from a panorama of as
many bins that is cast at the end of the horizon.

On the CPU one call of C++ does it all, row by row (`csrc/step/lookahead.h`); the same is a tensor program here.
"""

import copy
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from navi_core.config import REWARD_TERMS, DynamicsConfig, EnvConfig
from navi_core.kernels.structs import Drones, Lookahead, Observed, data_pointer
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap, FloorView
from navi_core.world.lookahead.flight import Foreseen, HorizonFlight, Start
from navi_core.world.rewards import BAND_START, NEAR_DISTANCE, RewardTerms
from navi_core.world.sensor.panorama import Panorama, PanoramaReader, SphericalSensor

COARSE = (24, 6)
"""Azimuth and elevation bins that an outlook casts, and reads of observations."""


@dataclass(frozen=True)
class Past:
    """What N drones have visited and seen.

    Attributes:
        visits: (N, cells) int64 as of `RewardTerms`.
        seen: (N, C) bool floor as of `FloorView`.
        shares: (N, 4) starvation, near, band, forward of what each saw last.
    """

    visits: Tensor
    seen: Tensor
    shares: Tensor

    def __len__(self) -> int:
        return len(self.shares)

    def forget(self, rows: Tensor) -> None:
        """Begin anew with some of the drones: (B,) numbers."""
        self.visits[rows] = 0
        self.seen[rows] = False
        self.shares[rows] = 0.0


class FlightOutlook:
    """Foresees what held motions bring.

    Args:
        field: Scenes that the drones may be in, on the CPU.
        env: The environment's observation and reward.
        drone: Flies.
        substeps: Of the horizon.
        kernels: Ask the C++ where the field has it, else tensor operations; they agree to rounding.

    Attributes:
        maps: Where a drone can be, one a scene.

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
        self.maps = [FloorMap(field, i, reward.view_cell, env.floor_clearance) for i in range(field.num_scenes)]
        self._view = FloorView(self.maps, 0, self._reader.fan, reward.view_radius, field.device)
        self._rewards = RewardTerms(field, 0, reward, drone.max_speed[0])
        self._log_range = math.log1p(env.max_distance)
        band = self._rewards.band(torch.arange(field.num_scenes))
        self._near, self._start = (math.log1p(metres) / self._log_range for metres in (NEAR_DISTANCE, BAND_START))
        self._band = band.log1p() / self._log_range

    def past(self, drones: int) -> Past:
        """Return that of N drones that have seen nothing yet."""
        return Past(
            self._rewards.visits.new_zeros(drones, self._rewards.visits.shape[1]),
            self._view.seen.new_zeros(drones, self._view.seen.shape[1]),
            torch.zeros(drones, 4),
        )

    def look(self, position: Tensor, yaw: Tensor, scene: Tensor) -> Panorama:
        """Cast a coarse panorama from each of B poses: (B, 3) [m], (B,) [rad], (B,) int64."""
        hits = self._sensor.cast(position.contiguous(), yaw.contiguous(), scene.to(torch.int32))
        return self._reader.read(hits, self._rewards.band(scene))

    def remember(self, past: Past, rows: Tensor, start: Start) -> None:
        """Count where drones are as visited, and what they see as seen.

        Args:
            past: Of N drones, updated.
            rows: (B,) int64 numbers of the drones, each at most once.
            start: Where they are and what they see.
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
        """Fly to the end of the horizon; what is seen and visited there leaves no trace.

        Args:
            past: Of N drones, which remember the start.
            rows: (B,) int64 numbers of the drones.
            start: Where the B flights begin.
            action: (B, 4) to be held, clamped to [−1, 1] here.

        Returns:
            Where they lead, and the (B, 10) terms that they bring in the order of `REWARD_TERMS`, of which those that
            grow with the way are of one decision's share of it.
        """
        if self._tracer is None:
            return self._fly_tensors(past, rows, start, action)
        flight = self._horizon.for_kernels(start, action)
        foreseen, rows, terms = flight.foreseen, rows.contiguous(), torch.empty(len(rows), len(REWARD_TERMS))
        drones = _drones(rows, flight.scene, foreseen.position, foreseen.yaw)
        outlook = self._for_kernels(past, _samples(*start.obs.shape[2:]))
        self._tracer.lookahead_terms(outlook, flight.drone, flight.flights, flight.horizon, drones, terms)
        return foreseen, terms

    def foresee(self, start: Start, action: Tensor) -> Foreseen:
        """Fly to the end of the horizon, and nothing else; arguments as `fly`."""
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
        """Return the terms as they count in (B, cells) visits."""
        rewards = copy.copy(self._rewards)
        rewards.visits = visits
        return rewards

    def _sight(self, obs: Tensor, scene: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (B, 4) shares, and the (B, 24) reach [m], of observations (B, 3, Az, El)."""
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
    """Return what the C++ kernels know of B drones; valid as long as the tensors."""
    return Drones(
        rows=data_pointer(rows, torch.int64), scene=data_pointer(scene, torch.int64),
        position=data_pointer(position, torch.float32), yaw=data_pointer(yaw, torch.float32), count=len(rows),
    )  # fmt: skip


@lru_cache
def _samples(azimuth_bins: int, elevation_bins: int) -> tuple[Tensor, Tensor]:
    """Return the (24,) azimuth and (6,) elevation bins that are nearest in angle to the coarse ones."""
    azimuth = (torch.arange(COARSE[0]) * azimuth_bins + COARSE[0] // 2) // COARSE[0] % azimuth_bins
    elevation = (torch.linspace(0, 1, COARSE[1]) * (elevation_bins - 1)).round().to(torch.int64)
    return azimuth, elevation


def sampled(obs: Tensor, place: Tensor | None = None) -> Tensor:
    """Return (B, 3, 24, 6), observations at the coarse bins, nearest in angle.

    Args:
        obs: (N, 3, Az, El).
        place: (B,) which of them; None for all.
    """
    azimuth, elevation = _samples(*obs.shape[2:])
    coarse = obs[:, :, azimuth[:, None], elevation]
    return coarse if place is None else coarse[place]
