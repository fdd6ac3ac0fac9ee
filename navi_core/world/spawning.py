"""Spawn (start) poses of scenes: precomputed pools, start poses set by the caller, and scene qualification.

An entry of a pool holds the pose, the readings of its panorama and the observation itself, so that an episode begins
by a lookup and nothing is cast again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from navi_core.config import EnvConfig, SpawnConfig
from navi_core.errors import ConfigError, SceneError
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap, FloorView
from navi_core.world.rewards import RewardTerms, ahead_sector, band_end, structure_fractions, structure_of
from navi_core.world.sensor.panorama import PanoramaReader, SphericalSensor
from navi_core.world.sensor.profiles import floor_limits

SPAWN_CELL = 0.2
"""Voxel edge of the connectivity check [m]."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on a scene's spawn quality: can a drone start and fly there?

    Attributes:
        verdict: PASS (at least 4 viable candidates and best starvation below .5), FAIL (none viable, or
            best starvation at or above the rejection limit), else MARGINAL.
        viable: Number of viable candidates.
        best_starvation: Least share of missing rays over the free candidates.
        candidates: Candidates that lie in free, connected space.
        reason: Why it is FAIL, in words; empty otherwise.
    """

    verdict: Literal["PASS", "MARGINAL", "FAIL"]
    viable: int
    best_starvation: float
    candidates: int
    reason: str = ""


@dataclass(frozen=True)
class SpawnPool:
    """Viable spawn (start) poses of one scene, sorted by score, best first.

    Attributes:
        position: (P, 3) [m].
        yaw: (P,) [rad], toward structure.
        score: (P,).
        verdict: Verdict on the scene.
    """

    position: torch.Tensor
    yaw: torch.Tensor
    score: torch.Tensor
    verdict: Verdict


def spawn_pool(
    field: Field, scene_index: int, config: SpawnConfig, clearance: float = 0.2, *, floor: FloorMap | None = None
) -> SpawnPool:
    """Search a scene's candidate grid for viable spawn poses, by probe rays.

    A candidate must lie in the scene's largest connected free space with `clearance` [m]; it is
    viable if fewer than `max_starvation` of its probe rays miss. Score = 3·band + 2·forward −
    starvation − 1.5·near. The yaw faces the azimuth sector that holds most structure.

    Args:
        field: Geometry.
        scene_index: Scene.
        config: Grid, inset, probe, rejection limit.
        clearance: Distance to the surface that a spawn keeps [m].
        floor: Reachable space at this clearance, where it is known.
    """
    if floor is None:
        floor = FloorMap(field, scene_index, SPAWN_CELL, clearance)
    low, high = (torch.from_numpy(b).to(torch.float64) for b in field.bounds(scene_index))
    margin = (high - low) * config.inset
    axes = [torch.linspace(float(a), float(b), n) for a, b, n in zip(low + margin, high - margin, config.grid)]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 3).to(torch.float32)
    connected = floor.contains(grid)
    grid = grid[connected].to(field.device)
    scene = torch.full((len(grid),), scene_index, dtype=torch.int64, device=field.device)
    free = ~field.within(grid, scene, clearance)
    position, scene = grid[free], scene[free]
    azimuths, elevations = config.probe
    if not len(position):
        return SpawnPool(position, torch.zeros(0), torch.zeros(0), Verdict("FAIL", 0, 1.0, 0))
    sensor = SphericalSensor(field, azimuths, elevations, max_distance=100.0)
    hits = sensor.cast(position, torch.zeros_like(position[:, 0]), scene)
    band = torch.full_like(position[:, 0], band_end(field.volume(scene_index)))
    starvation, near, inside, _ = structure_fractions(hits, azimuths, band).unbind(dim=1)
    by_azimuth = structure_of(hits, band).to(torch.float32).view(-1, azimuths, elevations).sum(dim=2)
    sector = ahead_sector(azimuths)
    # Structure in the bins that would lie ahead after a turn to each azimuth: as many on each side of the seam.
    turns = range(-sector + 1, sector + 1)
    window = torch.stack([torch.roll(by_azimuth, turn, dims=1) for turn in turns]).sum(dim=0)
    best = window.argmax(dim=1)
    yaw = torch.remainder(-best * (2.0 * math.pi / azimuths), 2.0 * math.pi).to(torch.float32)
    forward = window.gather(1, best[:, None])[:, 0] / (2 * sector * elevations)
    score = 3.0 * inside + 2.0 * forward - starvation - 1.5 * near
    viable = starvation < config.max_starvation
    least = float(starvation.min())
    count = int(viable.sum())
    if count == 0 or least >= config.max_starvation:
        word: Literal["PASS", "MARGINAL", "FAIL"] = "FAIL"
    else:
        word = "PASS" if count >= 4 and least < 0.5 else "MARGINAL"
    order = torch.argsort(score[viable], descending=True, stable=True)
    return SpawnPool(
        position[viable][order],
        yaw[viable][order],
        score[viable][order],
        Verdict(word, count, least, len(position)),
    )


def scattered_spawns(
    field: Field, scene_index: int, config: SpawnConfig, clearance: float = 0.2, *, floor: FloorMap | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample random spawn poses in the reachable space of a scene, with random headings; deterministic.

    Poses whose share of missing rays reaches `max_starvation` are left out; of twice as many draws the first
    `config.scattered` others are taken.

    Args:
        field: Geometry.
        scene_index: Scene.
        config: How many, probe, rejection limit.
        clearance: Distance to the surface that a spawn keeps [m].
        floor: Reachable space at this clearance, where it is known.

    Returns:
        position (n, 3) [m] and yaw (n,) [rad], n ≤ `config.scattered`.
    """
    if floor is None:
        floor = FloorMap(field, scene_index, SPAWN_CELL, clearance)
    voxels, draws = np.argwhere(floor.free), torch.arange(2 * config.scattered)
    share = uniform(0, Purpose.SCATTER, draws, 0).numpy()
    picks = voxels[(share * len(voxels)).astype(np.int64)]
    position = torch.from_numpy(floor.corner + (picks + 0.5) * floor.cell).to(torch.float32).to(field.device)
    yaw = 2.0 * math.pi * uniform(0, Purpose.SCATTER, draws, 1).to(torch.float32)
    scene = torch.full((len(position),), scene_index, dtype=torch.int64, device=field.device)
    sensor = SphericalSensor(field, *config.probe, max_distance=100.0)
    hits = sensor.cast(position, torch.zeros_like(position[:, 0]), scene)
    starvation = 1.0 - hits.valid.sum(dim=1) / hits.valid.shape[1]
    kept = torch.nonzero((starvation < config.max_starvation) & ~field.within(position, scene, clearance)).flatten()
    kept = kept[: config.scattered]
    return position[kept], yaw.to(field.device)[kept]


def scene_verdict(field: Field, scene_index: int, config: SpawnConfig | None = None) -> Verdict:
    """Classify a scene's spawn quality; a scene that no drone fits into, or that is too large, is FAIL."""
    try:
        verdict = spawn_pool(field, scene_index, config or SpawnConfig()).verdict
    except SceneError as error:
        return Verdict("FAIL", 0, 1.0, 0, str(error))
    if verdict.verdict != "FAIL":
        return verdict
    seen = f"where most is seen {verdict.best_starvation:.0%} of the rays meet nothing"
    return replace(verdict, reason=f"no viable spawn among {verdict.candidates} free places; {seen}")


POOL_SIZE = 32
"""Best-scored spawn poses kept per scene; each keeps its observation in memory, as the scattered ones do."""

BODY = {"position": 3, "yaw": 1, "velocity": 4, "front": 1, "clearance": 1, "seen": 4, "return": 1}
"""Layout of a packed drone state, widths by name, in the order of `SpawnPools.body` and of the environment's
body: position [m], yaw [rad], velocity [m/s, rad/s], front distance [m], clearance [m], the four fractions of
the panorama, and the episode's return so far."""


@dataclass(frozen=True)
class SpawnPools:
    """Spawn pools of S scenes, up to P entries each, with precomputed state and observation.

    Attributes:
        count: (S,) int64 entries of each scene.
        body: (S, P, 15) float32, by `BODY`.
        obs: (S, P, 3, Az, El) float32 without sensor faults.
        floor: (V, S, P, C/8) uint8 footprints, see `FloorView.footprint`, as each of V sensor profiles sees them.
        view_limits: (V, Az) bounds of the profiles' floor rays [m].
        verdicts: Verdicts on the scenes.
    """

    count: torch.Tensor
    body: torch.Tensor
    obs: torch.Tensor
    floor: torch.Tensor
    view_limits: torch.Tensor
    verdicts: list[Verdict]

    def draw(
        self, seed: int, rows: torch.Tensor, episode: torch.Tensor, episodes_per_scene: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the scene index and the pool slot (B,) of the episodes (B,) of rows (B,)."""
        scene = (rows + episode // episodes_per_scene) % len(self.count)
        return scene, self.draw_slot(seed, rows, episode, scene)

    def draw_slot(self, seed: int, rows: torch.Tensor, episode: torch.Tensor, scene: torch.Tensor) -> torch.Tensor:
        """Draw the pool slot of each row's episode in a given scene (B,)."""
        return (uniform(seed, Purpose.SPAWN, rows, episode) * self.count[scene]).to(torch.int64)


def build_pools(
    sensor: SphericalSensor, reader: PanoramaReader, rewards: RewardTerms, view: FloorView, config: EnvConfig
) -> SpawnPools:
    """Build the spawn pools of all scenes, with the observation at each pose.

    Raises:
        SceneError: A scene without a viable spawn, named with its verdict.
    """
    field = sensor.field
    found = [_probe(field, i, config) for i in range(field.num_scenes)]
    size = max(len(position) for position, _, _ in found)
    scenes, device = field.num_scenes, field.device
    body = torch.zeros(scenes, size, sum(BODY.values()), device=device)
    obs = torch.zeros(scenes, size, 3, config.azimuth_bins, config.elevation_bins, device=device)
    limits = floor_limits(config.sensor, config.azimuth_bins, config.reward.view_radius).to(device)
    floor = torch.zeros(len(limits), scenes, size, view.seen.shape[1] // 8, dtype=torch.uint8, device=device)
    for i, (position, yaw, _) in enumerate(found):
        n = len(position)
        scene = torch.full((n,), i, device=device)
        start = initial_state(sensor, reader, rewards, view, position, yaw, scene, limits)
        body[i, :n], obs[i, :n], floor[:, i, :n] = start
    count = torch.tensor([len(position) for position, _, _ in found], device=device)
    return SpawnPools(count, body, obs, floor, limits, [verdict for _, _, verdict in found])


def drone_state(body: torch.Tensor) -> dict[str, torch.Tensor]:
    """Split a packed drone state (B, 15) into named views (B, width) by `BODY`."""
    return dict(zip(BODY, body.split(list(BODY.values()), dim=1)))


def initial_state(
    sensor: SphericalSensor,
    reader: PanoramaReader,
    rewards: RewardTerms,
    view: FloorView,
    position: torch.Tensor,
    yaw: torch.Tensor,
    scene: torch.Tensor,
    limits: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the entries of a pool for drones at rest at (n, 3) [m], facing (n,) [rad], in scenes (n,).

    The footprints (V, n, C/8) are those within each of the bounds `limits` (V, Az) of the floor rays [m].
    """
    n, device = len(position), position.device
    seen = reader.read(sensor.cast(position, yaw, scene), rewards.band(scene))
    state = {
        "position": position,
        "yaw": yaw,
        "velocity": torch.zeros(n, 4, device=device),
        "front": seen.front,
        "clearance": sensor.field.distance(position, scene),
        "seen": seen.fractions,
        "return": torch.zeros(n, device=device),
    }
    body = torch.cat([state[name].view(n, width) for name, width in BODY.items()], dim=1)
    floors = [view.footprint(position, yaw, seen.reach.minimum(bound), scene) for bound in limits]
    return body, seen.obs, torch.stack(floors)


def _probe(field: Field, index: int, config: EnvConfig) -> tuple[torch.Tensor, torch.Tensor, Verdict]:
    """Search a scene for spawn poses: position (n, 3) [m], yaw (n,) [rad], and verdict; FAIL raises `SceneError`."""
    clearance = config.floor_clearance
    floor = FloorMap(field, index, SPAWN_CELL, clearance, config.dynamics.height_limit)
    pool = spawn_pool(field, index, config.spawn, clearance, floor=floor)
    if pool.verdict.verdict == "FAIL":
        raise SceneError(
            f"scene {field.scenes[index].name!r} has no viable spawn (verdict FAIL, {pool.verdict.candidates} free "
            f"candidates, best starvation {pool.verdict.best_starvation:.2f}); leave it out or see "
            "`navi scenes qualify`"
        )
    position, yaw = pool.position[:POOL_SIZE].to(field.device), pool.yaw[:POOL_SIZE].to(field.device)
    if config.spawn.scattered:
        more = scattered_spawns(field, index, config.spawn, clearance, floor=floor)
        position, yaw = torch.cat([position, more[0]]), torch.cat([yaw, more[1]])
    return position, yaw, pool.verdict


@dataclass(frozen=True)
class StartPoses:
    """Start poses and goals of N episodes, set by the caller; a value of None is drawn at random.

    Attributes:
        scene: (N,) int64 scene within the field.
        position: (N, 3) where the drone begins, at rest [m].
        yaw: (N,) where it faces [rad].
        goal: (N, 3) where a point-goal episode is to end [m].
    """

    scene: torch.Tensor | None = None
    position: torch.Tensor | None = None
    yaw: torch.Tensor | None = None
    goal: torch.Tensor | None = None

    @property
    def drawn(self) -> bool:
        """Whether all start poses and goals are drawn at random."""
        return all(value is None for value in vars(self).values())

    def check(self, rows: int, field: Field, *, goals: bool) -> None:
        """Validate shapes, finiteness, scene indices, and that goals are given only in a task with goals.

        Raises:
            ConfigError: Invalid value; names it and the allowed values.
        """
        shapes = {"scene": (rows,), "position": (rows, 3), "yaw": (rows,), "goal": (rows, 3)}
        for name, shape in shapes.items():
            value: torch.Tensor | None = getattr(self, name)
            if value is None:
                continue
            if tuple(value.shape) != shape:
                raise ConfigError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
            if not bool((value.abs() < 1e6).all()):
                raise ConfigError(f"{name} is {str(value.tolist())[:60]}; allowed: numbers below 1e6")
        if self.scene is not None and not bool(((self.scene >= 0) & (self.scene < field.num_scenes)).all()):
            raise ConfigError(f"scene is {str(self.scene.tolist())[:60]}; allowed: 0 to {field.num_scenes - 1}")
        if self.goal is not None and not goals:
            raise ConfigError("a goal is flown to with task point_goal alone; leave it out, or set that task")

    def check_room(self, scene: torch.Tensor, field: Field, floors: Sequence[FloorMap], radius: float) -> None:
        """Validate that positions have room for the drone, and that they and the goals are reachable.

        Args:
            scene: (N,) int64 of the episodes.
            field: Geometry.
            floors: Reachable space of each scene.
            radius: Radius of the drone [m].

        Raises:
            ConfigError: Names the value and its scene.
        """
        if self.position is None and self.goal is None:
            return
        room = None if self.position is None else field.distance(self.position, scene).tolist()
        for row, index in enumerate(scene.tolist()):
            for what, points in (("position", self.position), ("goal", self.goal)):
                if points is None or bool(floors[index].contains(points[row : row + 1].cpu())):
                    continue
                low, high = (bound.round(2).tolist() for bound in field.bounds(index))
                raise ConfigError(
                    f"{what} {_rounded(points[row])} is not in the reachable space of scene {index}, "
                    f"{field.scenes[index].name!r}, which lies within {low} and {high}; is another scene meant?"
                )
            if room is not None and room[row] <= radius:
                assert self.position is not None
                raise ConfigError(
                    f"position {_rounded(self.position[row])} in scene {index} is {room[row]:.2f} m off the surface; "
                    f"the drone's radius is {radius:g} m"
                )


def _rounded(point: torch.Tensor) -> list[float]:
    return [round(x, 3) for x in point.tolist()]
