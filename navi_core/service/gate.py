"""The gate: a proposed motion is flown in the distance field before it is sent.

From each drone's pose and velocity the drone's own dynamics fly the action for `substeps` (0.5 s), all drones in one
batch. SEND where no collision is predicted and the expected reward is above θ, else WAIT: the drone hovers.

What the reward reads of a panorama is taken from the observation now, and from a coarse panorama that is cast at the
end of the horizon. The simulated drone is at least as fast as the real one (`world/horizon.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from navi_core.config import REWARD_TERMS, EnvConfig, GateConfig
from navi_core.errors import ConfigError
from navi_core.kernels.sight import read_sight
from navi_core.service.situation import Situation
from navi_core.world import Field, FloorMap
from navi_core.world.floor import FloorView
from navi_core.world.horizon import HorizonFlight
from navi_core.world.panorama import Panorama, PanoramaReader
from navi_core.world.rewards import BAND_START, NEAR_DISTANCE, RewardTerms
from navi_core.world.sensor import SphericalSensor, denormalise_depth

__all__ = ["COMPONENTS", "GateVerdict", "RolloutGate"]

COMPONENTS: dict[str, tuple[str, ...]] = {
    "clearance": ("clearance",),
    "progress": ("progress",),
    "novelty": ("exploration", "view_gain"),
    "starvation": ("starvation",),
}
"""Components of the expected reward, and the environment's terms that each is made of."""
_PAID_ONCE = ("clearance", "inspection", "collision", "view_gain")
"""Terms that a horizon pays as a whole; the others are paid by every decision."""
_COARSE = (24, 6)
"""Bins of the panoramas that the gate casts itself."""
_FITS = 0.06
"""Mean error of the normalised depth up to which a scene is the one that a drone is in."""


@dataclass(frozen=True)
class GateVerdict:
    """What the gate found for B proposed motions.

    Attributes:
        send: (B,) bool; else the drone waits.
        collides: (B,) bool, a collision within the horizon.
        expected_reward: (B,) per decision.
        components: (B,) by name, see `COMPONENTS`; with the weights' other terms they add up to the expected reward.
        velocity: (B, 4) body velocity after one decision of the motion [m/s, rad/s].
    """

    send: Tensor
    collides: Tensor
    expected_reward: Tensor
    components: dict[str, Tensor]
    velocity: Tensor

    def __getitem__(self, index: Tensor) -> GateVerdict:
        """Return that of some of the motions: (N,) places, or (B,) bool."""
        return self._each(lambda part: part[index])

    def where(self, index: Tensor, other: GateVerdict) -> GateVerdict:
        """Return the verdict with that of N other motions in the places (N,)."""
        return self._each(lambda ours, theirs: ours.index_copy(0, index, theirs), other)

    def _each(self, change: Callable[..., Tensor], *others: GateVerdict) -> GateVerdict:
        names = ("send", "collides", "expected_reward", "velocity")
        verdicts = (self, *others)
        parts = {name: change(*(getattr(verdict, name) for verdict in verdicts)) for name in names}
        return GateVerdict(
            components={name: change(*(verdict.components[name] for verdict in verdicts)) for name in self.components},
            **parts,
        )


@dataclass(frozen=True)
class _Sight:
    """What B observations say.

    Attributes:
        fractions: (B, 4) as of a `Panorama` of the gate's bins.
        reach: (B, 24) as of a `Panorama` of the gate's bins [m].
    """

    fractions: Tensor
    reach: Tensor


class RolloutGate:
    """Simulates proposed motions of many drones at once.

    Args:
        field: Scenes that the drones may be in, on the CPU.
        env: The environment's observation, dynamics and reward.
        config: Horizon, threshold, margin.
        capacity: Drones whose visited cells and seen floor are remembered.

    Raises:
        SceneError: A scene without free space.
    """

    def __init__(
        self, field: Field, env: EnvConfig | None = None, config: GateConfig | None = None, capacity: int = 256
    ) -> None:
        self.field, self.env, self.config = field, env or EnvConfig(), config or GateConfig()
        e, c = self.env, self.config
        drone = e.dynamics.model_copy(update={"radius": e.dynamics.radius + c.margin})
        self._horizon = HorizonFlight(field, drone, c.substeps, e.max_distance)
        decisions = c.substeps / e.dynamics.steps_per_decision
        coarse = e.model_copy(update=dict(zip(("azimuth_bins", "elevation_bins"), _COARSE)))
        self._sensor = SphericalSensor(field, *_COARSE, e.max_distance)
        self._reader = PanoramaReader(coarse, field.device, kernels=True)
        # The past is validated by another thread than that which judges the present.
        self._past_reader = PanoramaReader(coarse, field.device, kernels=True)
        maps = [FloorMap(field, i, e.reward.view_cell, e.floor_clearance) for i in range(field.num_scenes)]
        self._view = FloorView(maps, capacity, self._reader.fan, e.reward.view_radius, field.device, kernels=True)
        self._eyes = self._reader.for_kernels(self._sensor.directions)
        self._log_range = math.log1p(e.max_distance)
        self._rewards = RewardTerms(field, capacity, e.reward, e.dynamics.max_speed[0], kernels=True)
        self._scene = torch.full((capacity,), -1)
        self._scale = torch.tensor(
            [c.weights.get(name, 0.0) / (decisions if name in _PAID_ONCE else 1) for name in REWARD_TERMS]
        )

        self._parts = torch.tensor(
            [[float(name in parts) for parts in COMPONENTS.values()] for name in REWARD_TERMS], dtype=torch.float32
        )

    def begin(self, situation: Situation) -> Tensor:
        """Begin episodes: forget what the drones have seen, and find the scenes that they are in.

        Returns:
            (B,) scene of each; −1 where none looks like the observation. Such a drone is told to wait.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        self._check(situation.rows)
        self._rewards.visits[situation.rows] = 0
        self._view.seen[situation.rows] = False
        best, found = torch.full((len(situation),), _FITS), torch.full((len(situation),), -1)
        told = _sampled(situation.obs)[:, 0]
        for scene in range(self.field.num_scenes):
            index = torch.full((len(situation),), scene)
            seen = self._coarse(situation.position, situation.yaw, index, self._reader)
            error = (seen.obs[:, 0] - told).abs().mean(dim=(1, 2))
            best, found = torch.minimum(best, error), torch.where(error < best, index, found)
        self._scene[situation.rows] = found
        return found

    def remember(self, situation: Situation) -> None:
        """Count where drones are as visited, and what they see as seen: once a decision, before motions are judged.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        self._check(situation.rows)
        scene = self._scene_of(situation.rows)
        visits, seen = self._rewards.visits[situation.rows], self._view.seen[situation.rows]
        reach = self._sight(situation.obs, scene).reach
        self._view.mark(situation.position, situation.yaw, reach, scene, seen)
        self._count(situation.position, situation.yaw, scene, visits)
        self._view.seen[situation.rows], self._rewards.visits[situation.rows] = seen, visits

    def judge(self, situation: Situation, action: Tensor) -> GateVerdict:
        """Simulate one motion of each drone, which leaves no trace.

        Args:
            situation: Of B drones, remembered already.
            action: (B, 4) proposed, clamped to [−1, 1] here.

        Raises:
            ConfigError: A drone beyond the capacity.
        """
        s, rows = situation, situation.rows
        self._check(rows)
        scene = self._scene_of(rows)
        visits, seen = self._rewards.visits[rows], self._view.seen[rows]
        motions = (s.position, s.yaw, s.velocity, action, scene, s.obs)
        verdict = self._simulate(motions, self._sight(s.obs, scene), visits, seen, reader=self._reader)
        known = self.knows(rows)
        # Of a drone in no known scene nothing is expected; what is no number moves nobody.
        return replace(
            verdict,
            send=verdict.send & known & action.isfinite().all(dim=1),
            expected_reward=torch.where(known, verdict.expected_reward, 0.0),
            components={name: torch.where(known, part, 0.0) for name, part in verdict.components.items()},
        )

    def collides(self, situation: Situation, action: Tensor) -> Tensor:
        """Return (B,) bool: which motions would collide within the horizon. Cheaper than `judge`, which tells more."""
        s, scene = situation, self._scene_of(situation.rows)
        return self._horizon.fly(s.position, s.yaw, s.velocity, action, scene, s.obs).collided

    def validate(self, position: Tensor, yaw: Tensor, velocity: Tensor, action: Tensor, scene: Tensor) -> GateVerdict:
        """Simulate motions of the past from their poses alone, as drones that have seen nothing before.

        Args:
            position: (B, 3) [m].
            yaw: (B,) [rad].
            velocity: (B, 4) [m/s, rad/s].
            action: (B, 4).
            scene: (B,) scene of each.
        """
        obs = self._coarse(position, yaw, scene, self._past_reader).obs
        now = self._sight(obs, scene)
        visits = self._rewards.visits.new_zeros(len(position), self._rewards.visits.shape[1])
        seen = self._view.seen.new_zeros(len(position), self._view.seen.shape[1])
        self._view.mark(position, yaw, now.reach, scene, seen)
        self._count(position, yaw, scene, visits)
        motions = (position, yaw, velocity, action, scene, obs)
        return self._simulate(motions, now, visits, seen, reader=self._past_reader)

    def scenes(self, rows: Tensor) -> Tensor:
        """Return the (B,) scenes that `begin` found, −1 for none."""
        return self._scene[rows]

    def knows(self, rows: Tensor) -> Tensor:
        """Return (B,) bool: which drones are in a scene that `begin` found."""
        return self._scene[rows] >= 0

    def _scene_of(self, rows: Tensor) -> Tensor:
        """Return the (B,) scenes to simulate in, the first for drones that are in none."""
        return self._scene[rows].clamp(min=0)

    def _check(self, rows: Tensor) -> None:
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(self._scene)):
            raise ConfigError(f"rows {int(rows.min())} to {int(rows.max())}; this gate knows {len(self._scene)}")

    def _simulate(
        self, motions: tuple[Tensor, ...], now: _Sight, visits: Tensor, seen: Tensor, *, reader: PanoramaReader
    ) -> GateVerdict:
        scene = motions[4]
        motion = self._horizon.fly(*motions)
        p, y = motion.position, motion.yaw
        then = self._coarse(p, y, scene, reader)
        rewards = copy.copy(self._rewards)
        rewards.visits = visits
        terms = rewards.compute(
            position=p,
            moved=motion.path * (self.env.dynamics.steps_per_decision / self.config.substeps),
            yaw=y,
            scene_index=scene,
            stamp=torch.ones_like(scene),
            clearance=self.field.distance(p, scene),
            clearance_before=motion.clearance,
            now=then.fractions,
            before=now.fractions,
            collided=motion.collided,
            attempted_speed=motion.attempted_speed,
            view_gain=self._view.mark(p, y, then.reach, scene, seen),
        )
        scaled = terms * self._scale
        components = dict(zip(COMPONENTS, (scaled @ self._parts).unbind(dim=1)))
        expected = scaled.sum(dim=1)
        send = ~motion.collided & (expected > self.config.threshold)
        return GateVerdict(send, motion.collided, expected, components, motion.velocity)

    def _count(self, position: Tensor, yaw: Tensor, scene: Tensor, visits: Tensor) -> None:
        """Count the present poses in (B, cells) visits."""
        rewards = copy.copy(self._rewards)
        rewards.visits = visits
        rewards.explore(position, yaw, scene, torch.ones_like(scene))

    def _coarse(self, position: Tensor, yaw: Tensor, scene: Tensor, reader: PanoramaReader) -> Panorama:
        hits = self._sensor.cast(position.contiguous(), yaw.contiguous(), scene.to(torch.int32))
        return reader.read(hits, self._rewards.band(scene))

    def _sight(self, obs: Tensor, scene: Tensor) -> _Sight:
        """Read observations (B, 3, Az, El) of drones in (B,) scenes."""
        rows, (azimuth, elevation), eyes = len(obs), obs.shape[2:], self._eyes
        near, start = (math.log1p(distance) / self._log_range for distance in (NEAR_DISTANCE, BAND_START))
        band = (self._rewards.band(scene).log1p() / self._log_range).numpy()
        counts, longest = torch.empty(rows, 4, dtype=torch.int32), torch.empty(rows, _COARSE[0])
        azimuths, elevations = _samples(azimuth, elevation)
        read_sight(
            obs.contiguous().numpy(), azimuths.numpy(), elevations.numpy(), near, start, band,
            eyes.ahead, (eyes.horizon_first, eyes.horizon_last), counts.numpy(), longest.numpy(),
        )  # fmt: skip
        fractions = counts / torch.tensor([*[_COARSE[0] * _COARSE[1]] * 3, 2 * eyes.ahead * _COARSE[1]])
        fractions[:, 0] = 1.0 - fractions[:, 0]
        reach = denormalise_depth(longest, self.env.max_distance) * eyes.horizon_cos
        return _Sight(fractions, reach.clamp(max=eyes.view_radius))


def _samples(azimuth_bins: int, elevation_bins: int) -> tuple[Tensor, Tensor]:
    """Return the (24,) azimuth and (6,) elevation bins that are nearest in angle to those of the gate."""
    azimuth = torch.arange(_COARSE[0]) * azimuth_bins // _COARSE[0]
    elevation = (torch.linspace(0, 1, _COARSE[1]) * (elevation_bins - 1)).round().to(torch.int64)
    return azimuth, elevation


def _sampled(obs: Tensor) -> Tensor:
    """Return (B, 3, 24, 6): the observation at the gate's bins, nearest in angle."""
    azimuth, elevation = _samples(*obs.shape[2:])
    return obs[:, :, azimuth[:, None], elevation]
